"""The language models of a process, opened once, and what is made of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx

from fairqr.agents.attribution.attributor import Attributor, AttributorName
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import Generator
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.opening import SEQ2SEQ, open_generator, open_model
from fairqr.agents.models.recorded import RecordedModel
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.graph.integrations.learnt import LearntWords
from fairqr.graph.search.models import GivenModel
from fairqr.graph.service.execution.capabilities import NOTHING, Capabilities

MODELS = 32
"""How many models to keep open."""


class Models:
    """Language models, opened when they are first used.

    Args:
        capabilities: What requests may name.
        replies: The file that keeps the replies of models; optional.
        seconds: How long to wait for a model's server when we look whether it responds.

    Attributes:
        open: Opens a model by its name, or returns it if it is open.
        learnt_words: Returns the words that a model gave before, by its name; None if it gives no
            words.
    """

    def __init__(self, capabilities: Capabilities, replies: Path | None, seconds: float) -> None:
        self._capabilities = capabilities
        # No model is asked the same twice, or opened twice.
        self._replies = ReplyCache(replies)
        self.open = lru_cache(MODELS)(self._open)
        self.learnt_words = lru_cache(MODELS)(self._open_learnt_words)

        # One client for all checks, since it takes long to make. Each check opens a new connection.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=seconds, limits=limits)

    async def close(self) -> None:
        """Close the client of checks."""
        await self._http.aclose()

    async def start_default(self) -> ChatModel | None:
        """Start the default model and return it; None if it needs no start."""
        model = self.open(self._capabilities.default_model)
        if not isinstance(model, ChatModel):
            return None
        await model.start()
        return model

    async def check_default(self) -> None:
        """Check that the server of the default model responds; we send no prompt.

        Raises:
            ModelUnavailableError: It does not.
        """
        model = await self.start_default()
        if model is None or model.base_url is None:
            return
        address = f"{model.base_url.rstrip('/')}/models"
        try:
            await self._http.get(address)
        except httpx.HTTPError:
            raise ModelUnavailableError(
                f"The server of the model {model.name} cannot be reached; check that it runs."
            ) from None

    def attributor(self, name: str, writer: str) -> Attributor | str | None:
        """Return the attributor of answers; None for none, and a name for what needs no chat model.

        Args:
            name: The name of the attributor, or :data:`NOTHING`.
            writer: The name of the model that writes the answers. It also judges if the attributor
                is a chat model that is not named.

        Raises:
            InputError: The model cannot judge.
        """
        if name == NOTHING:
            return None
        parsed_name = AttributorName.parse(name)
        if parsed_name.kind != "llm":
            return name

        model_name = parsed_name.model or writer
        model = self.open(model_name)
        if not isinstance(model, ChatModel):
            raise InputError(f"The model '{model_name}' cannot judge; choose another one.")
        return open_attributor(name, chat=model, prompts=self._capabilities.prompts)

    def _open(self, name: str) -> GivenModel | Generator:
        """Return a language model; the configured key goes only to the configured address."""
        if name == FeedbackRefiner.name:
            return name  # each graph makes one of its engine
        provider = name.partition(":")[0]
        if provider == SEQ2SEQ:
            return open_generator(name, cache=self._replies)

        _, entry = self._capabilities.model(name)
        options: dict[str, Any] = {
            "base_url": entry.base_url,
            "timeout": entry.timeout,
            "reasoning_tokens": entry.reasoning_tokens,
        }
        if entry.extra_body:
            options["extra_body"] = entry.extra_body
        if entry.key is not None:
            options["api_key"] = entry.key
        return open_model(name, cache=self._replies, **options)

    def _open_learnt_words(self, name: str) -> LearntWords | None:
        """Return the words that a model gave before; None if it gives no words."""
        model = self.open(name)
        if not isinstance(model, ChatModel | RecordedModel):
            return None
        return LearntWords(model, self._capabilities.prompts)
