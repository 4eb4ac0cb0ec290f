"""What a refiner is asked and what it answers.

A refiner proposes words that lead a query toward its topic, or toward an under-represented group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, Protocol, runtime_checkable

from fairqr.agents.models.replies import Status, Usage
from fairqr.prompts.template import PromptReference
from fairqr.retrieval.engines.engine import Hits

RefinementStatus = Literal[Status, "repeated"]


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A request for words of the topic, and for other ways to ask.

    Attributes:
        query: The original query.
        seed: For repeatable sampling.
        temperature: Defaults to the prompt's own.
        may_ask_again: Whether to ask the model once more if its reply cannot be used.
    """

    query: str
    seed: int | None = None
    temperature: float | None = None
    may_ask_again: bool = True


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A request for words of a group.

    Attributes:
        query: The original query.
        attribute: For example ``gender``.
        group: The under-represented group, e.g. ``female``.
        keywords: The keywords in use for this group, from earlier rounds.
        seed: For repeatable sampling.
        temperature: Defaults to the prompt's own.
        may_ask_again: Whether to ask the model once more if its reply cannot be used.
    """

    query: str
    attribute: str
    group: str
    keywords: Sequence[str] = ()
    seed: int | None = None
    temperature: float | None = None
    may_ask_again: bool = True


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a reply that is not used.

    Attributes:
        text: The part, or how it begins if it is long; empty if it is no text.
        reason: Ends a sentence that begins with the text, such as ``repeats the query``.
    """

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refinement:
    """What a refiner proposes, or why it proposes nothing.

    Attributes:
        status: ``ok``; or ``empty`` (nothing usable), ``repeated`` (nothing new), ``unsupported``
            (nothing to learn from), or why the model failed.
        topic: Words or phrases of the topic.
        queries: Other ways to ask, as whole queries.
        keywords: Words of the group.
        phrases: Phrases that join the topic and the group.
        names: Names that texts about the group on this topic contain.
        passage: A made text, as a relevant document might say it.
        drop: Keywords of earlier rounds to remove.
        reason: The model's reason, if the prompt asks for one.
        message: A sentence for users; empty if ``ok``.
        usage: What it cost.
        left_out: What was proposed but is not used, and why.
    """

    status: RefinementStatus
    _: KW_ONLY
    topic: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    passage: str = ""
    drop: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    left_out: tuple[LeftOut, ...] = ()


class Refiner(Protocol):
    """Proposes words of a group for a query."""

    @property
    def name(self) -> str:
        """The name for results."""

    @property
    def prompts(self) -> Sequence[PromptReference]:
        """The prompts that it asks with, if there are any."""

    async def start(self) -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""

    async def refine(self, request: GroupRequest, deadline: float | None = None) -> Refinement:
        """Propose words of one group; errors of a model never raise.

        Args:
            request: The query and the group.
            deadline: Seconds from now after which to give up.
        """


@runtime_checkable
class TopicRefiner(Protocol):
    """A refiner that also proposes words of the topic; it is asked once in each search."""

    async def refine_topic(
        self, request: TopicRequest, deadline: float | None = None
    ) -> Refinement:
        """Propose words of the topic; errors of a model never raise.

        Args:
            request: The query.
            deadline: Seconds from now after which to give up.
        """


@runtime_checkable
class RoundRefiner(Protocol):
    """A refiner that handles all groups of a round at once, from the hits of the query."""

    async def refine_all(
        self, requests: Sequence[GroupRequest], original: Hits
    ) -> list[Refinement]:
        """Propose words for each group; all requests have the same query.

        Args:
            requests: One for each group.
            original: The hits of the query, with the groups of these attributes.
        """
