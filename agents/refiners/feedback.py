"""Refiners: they propose keywords that lead a query toward an under-represented group."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.replies import Question, Status, Usage
from fairqr.prompts.template import PromptReference, PromptTemplate, fence
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine, require
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import intersection
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.words import folded_words, phrase_parts, words_in

SHORTEST_WORD = 3
"""The least letters of a word that relevance feedback learns from a text."""

RESULTS = 500
"""How many results of a query it searches for a group's documents."""

TEACHERS = 10
"""How many of a group's documents it learns from."""

CANDIDATES = 100
"""How many of the most frequent words it looks up in the index."""

MAX_KEYWORDS = 8
MAX_CHARACTERS = 40
MAX_WORDS = 4
# How many keywords of a reply we look at.
MAX_CANDIDATES = 1000

RefinementStatus = Literal[Status, "repeated", "unknown_terms"]


@dataclass(frozen=True, slots=True)
class RefinementRequest:
    """A request for keywords.

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
class Refinement:
    """The keywords that a refiner proposes, or why it proposes none.

    Attributes:
        status: ``ok``; or ``empty`` (no usable keyword), ``repeated`` (no new keyword),
            ``unknown_terms`` (no keyword that any document contains), or why the model failed.
        keywords: The keywords to add to the query; not empty if ``ok``.
        drop: Keywords of earlier rounds to remove.
        reason: The model's reason, if the prompt asks for one.
        message: A sentence for users; empty if ``ok``.
        usage: What it cost.
    """

    status: RefinementStatus
    keywords: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    usage: Usage = Usage()  # noqa: RUF009 - frozen


class Refiner(Protocol):
    """Proposes keywords for a query and a group."""

    @property
    def name(self) -> str:
        """The name for results."""

    @property
    def prompt(self) -> PromptReference | None:
        """The prompt in use, if there is one."""

    async def start(self) -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Propose keywords; errors of a model never raise."""


@runtime_checkable
class RoundRefiner(Protocol):
    """A refiner that handles all groups of a round at once, from the hits of the query."""

    async def refine_all(
        self, requests: Sequence[RefinementRequest], original: Hits
    ) -> list[Refinement]:
        """Propose keywords for each group; all requests have the same query.

        Args:
            requests: One for each group.
            original: The hits of the query, with the groups of these attributes.
        """


_WORD = {"type": "string", "minLength": 2, "maxLength": 16}
_WORDS = {"type": "array", "items": _WORD, "minItems": 4, "maxItems": 5}
_PROPERTIES = {
    "topic": _WORDS,
    "keywords": _WORDS,
    "drop": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 4},
    "reason": {"type": "string", "maxLength": 300},
}


def reply_schema(fields: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of a reply with these fields, in this order."""
    return {
        "type": "object",
        "properties": {field: _PROPERTIES[field] for field in fields},
        "required": list(fields),
        "additionalProperties": False,
    }


def validated(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the texts in a reply of a model; only the keywords must be there.

    Raises:
        ValueError: A part is of the wrong kind.
    """
    given: dict[str, Any] = {"topic": [], "drop": []}
    given |= {key: it for key, it in value.items() if it is not None}
    reason = given.get("reason")
    found: dict[str, Any] = {"reason": fence(reason, 1000) if isinstance(reason, str) else ""}
    for field in ("topic", "keywords", "drop"):
        if not isinstance(items := given.get(field), list):
            raise ValueError(f"'{field}': it must be a list of texts")
        # The cache keeps no more than we will look at.
        found[field] = [item for item in items[:MAX_CANDIDATES] if isinstance(item, str)]
    return found


class LLMRefiner:
    """Asks a language model for keywords.

    Args:
        model: The chat model.
        prompt: A ``refine`` prompt. Its input variables are among query, attribute, group and
            keywords. Its output fields are among topic (words on the query's topic), keywords
            (words of the group), drop and reason.
    """

    def __init__(self, model: ChatModel, prompt: PromptTemplate) -> None:
        self.name = model.name
        self.prompt = prompt.reference
        self._model = model
        self._template = prompt

    async def start(self) -> None:
        """Check that nothing is missing; the embedded model starts when it is first asked."""
        await self._model.check()

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Ask the model, clean its keywords, and keep the new ones."""
        values = {
            "query": fence(request.query, 300),
            "attribute": fence(request.attribute, 64),
            "group": fence(request.group, 100),
            "keywords": fence(", ".join(request.keywords), 500) or "none",
        }
        reply = await self._model.ask(
            Question(
                prompt=self._template,
                values={name: values[name] for name in self._template.input_variables},
                schema=reply_schema(self._template.output),
                validate=validated,
                temperature=request.temperature,
                seed=request.seed,
                may_ask_again=request.may_ask_again,
            ),
            deadline,
        )
        if reply.status != "ok":
            return Refinement(reply.status, message=reply.message, usage=reply.usage)
        # Both lists in turn, so that a limit cuts both equally.
        pairs = itertools.zip_longest(reply.value["topic"], reply.value["keywords"])
        proposed = [word for pair in pairs for word in pair if word is not None]
        made = refinement_from(proposed, request, who=f"The model {self.name}")
        unwanted = reply.value["drop"] if made.status != "empty" else ()
        drop = tuple(word for word in request.keywords if word in unwanted)
        reason = reply.value["reason"] if made.status == "ok" else ""
        return replace(made, drop=drop, reason=reason, usage=reply.usage)


def refinement_from(proposed: Sequence[str], request: RefinementRequest, who: str) -> Refinement:
    """Clean proposed keywords, and return them with a status that says what is left."""
    if keywords := clean_keywords(proposed, known=[request.query, *request.keywords]):
        return Refinement("ok", tuple(keywords))
    if clean_keywords(proposed):
        return Refinement("repeated", message=f"{who} proposed nothing new for {request.group}.")
    return Refinement("empty", message=f"{who} proposed no usable keyword for {request.group}.")


def clean_keywords(candidates: Iterable[str], *, known: Iterable[str] = ()) -> list[str]:
    """Return at most 8 usable keywords, in their order.

    A keyword has 1 to 4 words and at most 40 characters. Punctuation is dropped. So are words that
    occur in ``known`` or earlier among the keywords, since repeating a word changes its weight but
    not its meaning. ``sci-fi`` repeats ``sci`` and ``fi``. In scripts without spaces a word counts
    as new even if it is a part of a longer run, since many engines do not find it by that run.

    Args:
        candidates: What the model proposed.
        known: Texts with the words that are already in the query, in any case.
    """
    seen = {part for text in known for part in folded_words(text)}
    kept: list[str] = []
    for candidate in candidates:
        words = phrase_parts(candidate) if len(candidate) <= MAX_CHARACTERS else []
        if len(kept) >= MAX_KEYWORDS or len(words) > MAX_WORDS:
            continue
        new: list[str] = []
        taken: set[str] = set()
        for word in words:
            parts = set(folded_words(word))
            if not parts <= seen | taken:
                new.append(word)
                taken |= parts
        if any(map(str.isalpha, "".join(new))):
            kept.append(" ".join(new))
            seen |= taken
    return kept


class FeedbackRefiner:
    """Expands a query with words of the group's best documents, without a language model.

    It treats the group's best documents for the query as relevant, and adds the words that are
    typical of them (pseudo-relevance feedback, Rocchio 1971, within a group).

    Args:
        engine: The engine with the documents.
    """

    name = "feedback"
    prompt: PromptReference | None = None

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine

    async def start(self) -> None:
        """Check that the engine can count documents.

        Raises:
            UnsupportedError: The engine cannot.
        """
        require(self._engine, "document_frequencies", "The refiner 'feedback'")

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        """Search for the query, and choose words for one group; see :meth:`refine_all`."""
        del deadline  # reading ten documents takes no time
        (original,) = await self._engine.search([Query(request.query, RESULTS)])
        (refinement,) = await self.refine_all([request], original)
        return refinement

    async def refine_all(
        self, requests: Sequence[RefinementRequest], original: Hits
    ) -> list[Refinement]:
        """Choose for each group the words with the largest Σ_d score(d)·tf(w,d)/|d| · ln(N/df(w)).

        The sum is over the group's best documents for the query. Each is weighted by its retrieval
        score and by its membership in the group. The engine is asked once for the texts and once
        for the counts, for all groups together.
        """
        merits = [self._merits(request, original) for request in requests]
        wanted = list(dict.fromkeys(id_ for merit in merits for id_ in merit))
        # A document that was deleted meanwhile is missing here.
        shares = {it.id: _word_shares(it) for it in await self._engine.documents(wanted)}
        frequent = [_heaviest(_mixture(shares, merit), CANDIDATES) for merit in merits]
        words = list(dict.fromkeys(word for weights in frequent for word in weights))
        every, *counts = await self._engine.search(
            [Query("", 0), *(Query(word, 0, every_word=True) for word in words)]
        )
        # A word that the engine analyzes to nothing, such as a stop word, is in no document.
        rarity = {
            word: math.log((every.total or 0) / count.total)
            for word, count in zip(words, counts, strict=True)
            if count.total
        }
        refinements = []
        for request, merit, weights in zip(requests, merits, frequent, strict=True):
            typical = {word: weights[word] * rarity[word] for word in weights if word in rarity}
            proposed = list(_heaviest(typical, len(typical)))
            made = refinement_from(proposed, request, who="Relevance feedback")
            if not merit:
                said = f"The query finds no documents of {request.group} to learn from."
                made = Refinement("unsupported", message=said)
            refinements.append(made)
        return refinements

    def _merits(self, request: RefinementRequest, original: Hits) -> dict[str, float]:
        """Return the ids of the group's best documents, with score · membership."""
        dimension = Dimension.named(self._engine.schema, request.attribute)
        members = intersection([original.memberships[it.name] for it in dimension.factors])
        share = members[:RESULTS, dimension.groups.index(request.group)]
        merit = share * np.asarray(original.scores[:RESULTS])
        best = [int(row) for row in np.argsort(-merit, kind="stable") if merit[row] > 0]
        return {original.ids[row]: float(merit[row]) for row in best[:TEACHERS]}


def _word_shares(document: Document) -> dict[str, float]:
    """Return the share of each word in a text, without digits and the words of its title.

    A name identifies one person; it is not typical of a group.
    """
    # In the text's own Unicode form, which is the one that its engine has indexed.
    found = words_in(document.text.casefold())
    words = [it for it in found if len(it) >= SHORTEST_WORD and not any(map(str.isdigit, it))]
    own_name = set(words_in(document.title.casefold()))
    counts = Counter(words)
    return {word: counts[word] / len(words) for word in counts if word not in own_name}


def _mixture(
    shares: Mapping[str, Mapping[str, float]], merit: Mapping[str, float]
) -> dict[str, float]:
    """Return the sum of the word shares of documents by their merit (Lavrenko & Croft 2001)."""
    found: dict[str, float] = defaultdict(float)
    for id_, score in merit.items():
        for word, share in shares.get(id_, {}).items():
            found[word] += score * share
    return found


def _heaviest(weights: Mapping[str, float], n: int) -> dict[str, float]:
    """Return the n words with the highest weights, best first; ties in alphabetical order."""
    best = sorted(weights, key=lambda word: (-weights[word], word))[:n]
    return {word: weights[word] for word in best}
