"""Asking a chat model for an object, a text or a choice, with a cache and typed failures.

Models are named as langchain's ``init_chat_model`` names them (``openai:gpt-4o``); ``local:…`` is
the embedded one, behind the same client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairqr.agents.asking import Asking, choice_of, text_of
from fairqr.agents.cache import ReplyCache, cache_key
from fairqr.agents.conversation import converse
from fairqr.agents.endpoint import Endpoint
from fairqr.agents.forms import ChoiceForm, Form, ObjectForm, TextForm
from fairqr.agents.question import OnToken, Question, Wanted
from fairqr.agents.replies import Choice, Reply, TextReply
from fairqr.agents.streaming import Telling

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

__all__ = ["ChatModel"]


class ChatModel:
    """A chat model that answers questions.

    Equal questions that are asked at the same time are asked once, if there is a cache; each gives
    up at its own deadline. The embedded model answers one question after the other, and the time
    of a request begins when it is its turn.

    Args:
        name: ``provider:model`` as ``init_chat_model`` takes it, or ``local:smollm2-135m``.
        base_url: Where an OpenAI-compatible server listens; the provider's own where None.
        cache: Where replies are kept; None asks anew each time.
        timeout: Seconds that one request may take.
        attempts: How often a request that can heal is made.
        client: A chat model of LangChain's to ask, instead of one that is opened by its name; see
            :meth:`of`.
        model_options: More for ``init_chat_model``.

    Raises:
        ModelUnavailableError: The name or the URL is malformed.
        InputError: The timeout is not positive.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        cache: ReplyCache | None = None,
        timeout: float = 60.0,
        attempts: int = 4,
        client: BaseChatModel | None = None,
        **model_options: Any,
    ) -> None:
        self.name = name
        self._endpoint = Endpoint(
            name,
            base_url=base_url,
            timeout=timeout,
            attempts=attempts,
            options=model_options,
            given=client,
        )
        self._asking = Asking(name, cache)

    @classmethod
    def of(cls, client: BaseChatModel) -> ChatModel:
        """Return a chat model that asks one of LangChain's, with its own settings and callbacks.

        Nothing is kept in the cache of replies, for we cannot tell what its replies depend on, and
        nothing is asked again but by the client itself.
        """
        told = client._get_ls_params()
        provider = told.get("ls_provider") or client._llm_type
        model = told.get("ls_model_name") or type(client).__name__
        return cls(f"{provider}:{model}", attempts=1, client=client)

    @property
    def base_url(self) -> str | None:
        """Where its server listens; None for the provider's own."""
        return self._endpoint.base_url

    @property
    def fingerprint(self) -> str:
        """A hash of everything about the model that can change a reply."""
        return cache_key(**self._endpoint.identity)

    @property
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as is known."""
        return self._endpoint.gives_probabilities

    async def start(self, wanted: Wanted = "object") -> None:
        """Make the model ready, so that what is missing is known before any work is done.

        Args:
            wanted: What it will be asked for.

        Raises:
            ModelUnavailableError: An extra, the weights, or a key is missing, or no provider is so
                named.
        """
        await self._endpoint.client(wanted)

    async def ask(self, question: Question, deadline: float | None = None) -> Reply:
        """Ask for a JSON object, from the cache if the same was asked before.

        Args:
            question: What to ask.
            deadline: Seconds from now after which to give up.

        Returns:
            A reply whose status says whether it has a value.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        return await self._reply(question, ObjectForm(question), deadline)

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Ask for a text, from the cache if the same was asked before.

        Args:
            question: What to ask; its schema and ``validate`` do not matter.
            deadline: Seconds from now after which to give up.
            on_token: Told each piece as it comes, or the whole text at once where it comes at once.
                A text that breaks off after its first piece is a failure, and is not begun again.

        Returns:
            A reply whose status says whether it has a text.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
        """
        telling = Telling(on_token) if on_token else None
        reply = await self._reply(question, TextForm(), deadline, telling)
        return text_of(reply, self.name, telling)

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        """Ask how probable it is that the reply begins with each of a few words.

        The probabilities are those of the first token, of which the ten likeliest are looked at; a
        label that is not among them has 0. P(label) is divided by the sum over the labels.

        Args:
            question: What to ask; its schema and ``validate`` do not matter.
            labels: One token each in the model's vocabulary, such as short words.
            deadline: Seconds from now after which to give up.

        Returns:
            A choice whose status says whether there are probabilities.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
            ValueError: There are fewer than two labels, or two that are alike but for their case.
        """
        form = ChoiceForm(tuple(labels))
        if not self._endpoint.gives_probabilities:
            return Choice("unsupported", message=str(self._endpoint.no_probabilities()))
        reply = await self._reply(question, form, deadline)
        return choice_of(reply)

    async def _reply(
        self,
        question: Question,
        form: Form,
        deadline: float | None,
        telling: Telling | None = None,
    ) -> Reply:
        """Ask, or join those who ask the same."""
        return await self._asking.reply(
            lambda: self._key(question, form),
            form,
            lambda left: converse(self._endpoint, question, form, left, telling),
            deadline,
            telling,
        )

    def _key(self, question: Question, form: Form) -> str:
        return cache_key(
            **self._endpoint.identity,
            prompt=question.prompt.sha256,
            values=dict(question.values),
            temperature=question.temperature,
            seed=question.seed,
            max_tokens=question.reply_tokens,
            **form.key,
        )
