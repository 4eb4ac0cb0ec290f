"""The language models that can be asked to rank, whatever runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.question import ChoiceForm, Form, OnToken, Question, Wanted
from fairqr.agents.models.replies import Choice, Reply, Status, TextReply
from fairqr.agents.models.streaming import TokenRelay


class RankingModel(Protocol):
    """Writes a text, or gives probabilities for the first word of a reply.

    Examples are :class:`fairqr.agents.models.chat.ChatModel` and
    :class:`fairqr.agents.ranking.causal.CausalModel`.
    """

    @property
    def name(self) -> str:
        """The name for results."""
        ...

    @property
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as we know."""
        ...

    async def start(self, wanted: Wanted = "object") -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""
        ...

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Ask for a text; see :meth:`fairqr.agents.models.chat.ChatModel.write`."""
        ...

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        """Ask for the probabilities that the reply begins with each label.

        See :meth:`fairqr.agents.models.chat.ChatModel.weigh`.
        """
        ...


def asked_once(model: RankingModel) -> LanguageModel:
    """Return a model that keeps its replies: ours as it is, or a wrapper around another."""
    return model if isinstance(model, LanguageModel) else _GivenModel(model)


class _GivenModel(LanguageModel):
    """A wrapper around a caller's model, so that it gets no question twice in a step of a graph.

    Args:
        model: The caller's model.
    """

    def __init__(self, model: RankingModel) -> None:
        super().__init__(model.name, None)
        self._model = model

    @property
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as we know."""
        return self._model.gives_probabilities

    @property
    def context_tokens(self) -> int | None:
        """How many tokens the model reads and writes together, if it states that."""
        found: int | None = getattr(self._model, "context_tokens", None)
        return found

    async def start(self, wanted: Wanted = "object") -> None:
        """Start the model."""
        await self._model.start(wanted)

    async def _identity(self) -> Mapping[str, str]:
        return {"model": self.name}

    async def _ask(
        self, question: Question, form: Form, deadline: float | None, relay: TokenRelay | None
    ) -> tuple[Reply, float]:
        if isinstance(form, ChoiceForm):
            choice = await self._model.weigh(question, form.labels, deadline)
            value = {"probabilities": choice.probabilities, "mass": choice.mass}
            return Reply(choice.status, value, choice.message, choice.usage), 0.0
        on_token = relay.send if relay else None
        text = await self._model.write(question, deadline, on_token)
        status: Status = "ok" if text.status == "empty" else text.status
        return Reply(status, {"text": text.text}, text.message, text.usage), 0.0
