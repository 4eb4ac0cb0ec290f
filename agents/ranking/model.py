"""The language models that can be asked to rank, whatever runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairqr.agents.question import OnToken, Question, Wanted
from fairqr.agents.replies import Choice, TextReply

__all__ = ["RankingModel"]


class RankingModel(Protocol):
    """Writes a text, or weighs a few words to begin with.

    :class:`fairqr.agents.chat.ChatModel` is one, and
    :class:`fairqr.agents.ranking.causal.CausalModel`.
    """

    @property
    def name(self) -> str:
        """As it stands in results."""
        ...

    @property
    def gives_probabilities(self) -> bool:
        """Whether :meth:`weigh` can work, as far as is known."""
        ...

    async def start(self, wanted: Wanted = "object") -> None:
        """Make ready; raises ModelUnavailableError where something is missing."""
        ...

    async def write(
        self,
        question: Question,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> TextReply:
        """Ask for a text; see :meth:`fairqr.agents.chat.ChatModel.write`."""
        ...

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Choice:
        """Ask how probable it is that the reply begins with each label.

        See :meth:`fairqr.agents.chat.ChatModel.weigh`.
        """
        ...
