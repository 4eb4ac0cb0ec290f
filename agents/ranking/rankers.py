"""Rankers: they take items in one order and return them in another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelUnavailableError, one_line
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import fence

Shown = Literal["title", "text", "title_text"]
"""What a ranker reads of an item."""

Persona = Literal["neutral", "unprotected", "protected"]
"""For whom a model ranks: a neutral person, or a person of one of the two sides."""

MAX_PERSONA_CHARACTERS = 100
"""How much of the word for a persona is shown."""


@dataclass(frozen=True, slots=True)
class RankItem:
    """A document as a ranker sees it.

    Attributes:
        id: Unique in a list.
        title: May be empty.
        text: May be empty.
    """

    id: str
    title: str
    text: str

    def shown(self, part: Shown) -> str:
        """Return what a ranker reads; if the wanted part is empty, return the other."""
        if part == "title":
            return self.title or self.text
        if part == "text":
            return self.text or self.title
        return "\n".join(text for text in (self.title, self.text) if text)


@dataclass(frozen=True, slots=True)
class Cost:
    """The largest cost of one or several rankings, estimated before anything is asked.

    Attributes:
        calls: Questions to a language model; 0 for pointwise models.
        tokens: The approximate number of tokens read and written.
    """

    calls: int = 0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.calls + other.calls, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class ItemRanking:
    """The items in the order of a ranker.

    Attributes:
        order: Positions in the given list, best first; each exactly once.
        asked: How many questions the order is based on: windows, or comparisons in both orders; 0
            for pointwise models.
        failures: How many of them failed, by status; the items in them keep their order.
        repairs: How many items were repaired in replies, by kind (``missing``, ``duplicate``,
            ``stranger``).
        scores: One for each position of the given list, if the ranker gives scores.
        usage: What it cost.
        warnings: Sentences for users.
        message: A sentence that says why the last failed question failed; empty if only the status
            is known.
    """

    order: tuple[int, ...]
    asked: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    repairs: Mapping[str, int] = field(default_factory=dict)
    scores: tuple[float, ...] | None = None
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    warnings: tuple[str, ...] = ()
    message: str = ""

    @property
    def failed(self) -> bool:
        """Whether no question was answered, so that the order is unchanged."""
        return self.asked > 0 and sum(self.failures.values()) >= self.asked


class ItemRanker(Protocol):
    """Orders items by their relevance to a query."""

    @property
    def name(self) -> str:
        """The name for results, e.g. ``listwise(local:smollm2-135m, 20/10)``."""

    async def start(self) -> None:
        """Prepare for work.

        Raises:
            ModelUnavailableError: Something is missing.
            PromptError: The prompt cannot be used.
        """

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return the largest cost of :meth:`rank`; the arguments are the same."""

    async def rank(
        self, query: str, items: Sequence[RankItem], group: str = "", deadline: float | None = None
    ) -> ItemRanking:
        """Rank the items; errors of a model never raise.

        Args:
            query: The query as the user wrote it.
            items: The items in their initial order, which matters to many rankers.
            group: The word for the persona, such as ``female``. Prompts put it before the persona,
                and pointwise models before the query. Empty for a neutral persona.
            deadline: Seconds from now after which nothing more is asked.

        Raises:
            ModelUnavailableError: As :meth:`start` raises it.
            InputError: Not even two items fit into what the model reads at once.
        """


def moment_after(seconds: float | None) -> float | None:
    """Return the moment in this number of seconds, by ``time.monotonic``; None for None."""
    return None if seconds is None else time.monotonic() + seconds


def seconds_until(moment: float | None) -> float | None:
    """Return the seconds until a moment; negative after it, None for None."""
    return None if moment is None else moment - time.monotonic()


def group_of(persona: str, words: Sequence[str]) -> str:
    """Return the word for a persona; empty for a neutral one.

    Args:
        persona: A :data:`Persona`.
        words: The words for the protected side and the other side.
    """
    if persona == "protected":
        return words[0]
    if persona == "unprotected":
        return words[1]
    return ""


def persona_prefix(group: str) -> str:
    """Return the text before the persona in a prompt: the word and a space, or nothing."""
    word = fence(group, MAX_PERSONA_CHARACTERS)
    return f"{word} " if word else ""


RankerName = Literal["listwise", "pairwise", "monot5", "monobert"]

RANKERS: Mapping[RankerName, str] = {
    "listwise": "a language model that sorts overlapping windows, from the last to the first "
    "(RankGPT, Sun et al. 2023)",
    "pairwise": "a language model that compares documents two at a time, in both orders "
    "(PRP, Qin et al. 2024)",
    "monot5": "a T5 that says whether a document is relevant (Nogueira et al. 2020)",
    "monobert": "a BERT that classifies a document as relevant (Nogueira & Cho 2019)",
}

POINTWISE = ("monot5", "monobert")
"""The rankers that score one document at a time, by weights of their own."""

ENDPOINT = "rerank"
"""The ranker that asks an endpoint; only probes have it, and no search."""

By = Literal["probabilities", "reply"]
"""How a pair is decided: by the probabilities of the labels, or by reading a reply."""


@dataclass(frozen=True, slots=True)
class RankerOptions:
    """How a ranker works, in ranges that the caller checked; each uses what it needs.

    Attributes:
        shown: What it reads of an item.
        length: The most characters of an item that are shown.
        window, step: The windows of the listwise ranker; the step is smaller than the window.
        context: How many tokens the model reads and writes at once; defaults to what the model
            states, or no limit.
        by: How the pairwise ranker asks, if the model can.
        concurrency: How many comparisons run at the same time, over all lists.
        weights: The hub id or folder of monoT5 or monoBERT, or the address of an endpoint.
        versions: The versions of prompts, by id.
    """

    shown: Shown = "title_text"
    length: int = 2000
    window: int = 20
    step: int = 10
    context: int | None = None
    by: By = "probabilities"
    concurrency: int = 8
    weights: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def open_ranker(
    name: str,
    model: LanguageModel | None = None,
    prompts: PromptLibrary | None = None,
    options: RankerOptions | None = None,
) -> ItemRanker:
    """Return a ranker.

    Args:
        name: One of :data:`RANKERS`, or :data:`ENDPOINT`.
        model: The language model to ask; monoT5, monoBERT and endpoints need none.
        prompts: The library of prompts.
        options: How the ranker works.

    Raises:
        InputError: The ranker does not exist.
        ModelUnavailableError: The ranker needs a language model, but none is given.
        PromptError: The prompt does not exist.
    """
    from fairqr.agents.ranking.endpoint import EndpointRanker
    from fairqr.agents.ranking.listwise import ListwiseRanker
    from fairqr.agents.ranking.pairwise import PairwiseJudge, PairwiseRanker
    from fairqr.agents.ranking.pointwise import MODELS, PointwiseRanker

    options = options or RankerOptions()
    if name in MODELS:
        return PointwiseRanker(name, options)
    if name == ENDPOINT:
        return EndpointRanker(options)
    if name not in RANKERS:
        raise InputError(f"There is no ranker '{one_line(name)}'; choose {', '.join(RANKERS)}.")
    if model is None:
        raise ModelUnavailableError(
            f"The ranker {name} asks a language model, but none is given; name one, such as "
            "openai:gpt-4o or local:smollm2-135m."
        )
    prompt = (prompts or PromptLibrary()).get(name, options.versions.get(name))
    if name == "listwise":
        return ListwiseRanker(model, prompt, options)
    return PairwiseRanker(PairwiseJudge(model, prompt, options), options)
