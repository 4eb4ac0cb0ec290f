"""The interface of attributors, which judge whether a document entails an answer; their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from pydantic import BaseModel, Field

from fairqr.agents.models.cache import ReplyCache, cache_key
from fairqr.agents.models.replies import Status, Usage
from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.sources.schema import validated

VerdictStatus = Literal[Status, "empty_answer", "empty_document", "answer_too_long"]
"""``empty_answer`` and ``empty_document``: there is nothing to judge. ``answer_too_long``: the
answer leaves no room for a document. For the others, see :data:`Status`."""

RAW = "{answer}"
"""The template whose hypothesis is the answer itself."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A document and a claim that may follow from it.

    Attributes:
        premise: The document's text.
        hypothesis: The answer, or a sentence made of it; see :func:`hypothesis_of`.
    """

    premise: str
    hypothesis: str


@dataclass(frozen=True, slots=True)
class Entailment:
    """Whether a premise entails a hypothesis.

    Attributes:
        status: ``ok``, or why there is no verdict.
        attributed: Whether the premise entails the hypothesis; None unless ``ok``.
        score: The probability of entailment in [0, 1], if the attributor has one; the greatest of
            all windows.
        message: A sentence for users that says why it failed; empty if ``ok``.
        usage: What it cost.
    """

    status: VerdictStatus
    attributed: bool | None = None
    score: float | None = None
    message: str = ""
    usage: Usage = Usage()  # noqa: RUF009 - frozen


class Attributor(Protocol):
    """Judges whether documents entail answers."""

    @property
    def name(self) -> str:
        """The name for results, e.g. ``transformers:org/model``."""

    async def start(self) -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        """Return a verdict for each pair, in order; errors of a model never raise."""


class AttributorName(BaseModel, frozen=True, extra="forbid"):
    """The parts of an attributor's name, such as ``transformers:org/model?threshold=0.7``.

    Results state the name, and it opens the same attributor again.

    Attributes:
        kind: For example ``transformers``.
        model: The part after the colon; may be empty.
        threshold: The score from which a document counts as used; optional. Each kind has its own
            default rule.
    """

    kind: str
    model: str = ""
    threshold: float | None = Field(None, gt=0, le=1)

    @classmethod
    def parse(cls, text: str) -> AttributorName:
        """Read a name.

        Raises:
            InputError: An option is unknown or out of range.
        """
        name, _, option = text.partition("?")
        kind, _, model = name.partition(":")
        parts = {"kind": kind, "model": model}
        if option:
            key, _, value = option.partition("=")
            if key != "threshold":
                raise InputError(
                    f"'{one_line(option, 80)}' is not an option of the attributor '{name}'; write "
                    "threshold=0.7."
                )
            parts["threshold"] = value
        return validated(cls, parts, f"The attributor '{text}'", InputError)

    def __str__(self) -> str:
        name = f"{self.kind}:{self.model}" if self.model else self.kind
        if self.threshold is None:
            return name
        return f"{name}?threshold={self.threshold:g}"


def hypothesis_of(answer: str, template: str = RAW) -> str:
    """Make an answer into a hypothesis; an empty answer stays empty.

    Args:
        answer: The generated text.
        template: A text with ``{answer}`` once, e.g. ``The tag of this film is {answer}.``
    """
    text = " ".join(answer.split())
    return template.replace("{answer}", text) if text else ""


def without_words(pair: Pair) -> Entailment | None:
    """Return the verdict on a pair with nothing to judge, or None.

    A text without a letter or a digit has no words. Nothing follows from it, and it claims nothing.
    """
    if not any(map(str.isalnum, pair.hypothesis)):
        return Entailment("empty_answer", message="The answer has no words.")
    if not any(map(str.isalnum, pair.premise)):
        return Entailment("empty_document", message="The document has no words.")
    return None


class CachedAttributor(ABC):
    """Judges each pair once, even if it occurs several times in a call or in earlier calls.

    Only verdicts with status ``ok`` are kept. Of equal pairs in a call only the first has the cost.

    Args:
        name: The full name.
        cache: Where to keep verdicts; optional.

    Attributes:
        name: The full name, for results.
        identity: Everything that a verdict depends on, such as the weights and the threshold; empty
            before ``start()``.
    """

    def __init__(self, name: AttributorName, cache: ReplyCache | None = None) -> None:
        self.name = str(name)
        self.identity = ""
        self._cache = cache

    @abstractmethod
    async def start(self) -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""

    @abstractmethod
    async def judge_new(self, pairs: Sequence[Pair]) -> list[Entailment]:
        """Return a verdict for each of different pairs, after the start."""

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        """Look up all pairs, and judge those that are not in the cache."""
        await self.start()
        verdict_of = await self._known_verdicts(pairs)
        new_pairs = [pair for pair in dict.fromkeys(pairs) if pair not in verdict_of]
        if new_pairs:
            new_verdicts = dict(zip(new_pairs, await self.judge_new(new_pairs), strict=True))
            await self._keep(new_verdicts)
            verdict_of |= new_verdicts

        verdicts = []
        for pair in pairs:
            verdicts.append(verdict_of[pair])
            # Of equal pairs only the first has the cost.
            verdict_of[pair] = replace(verdict_of[pair], usage=Usage())
        return verdicts

    async def _known_verdicts(self, pairs: Sequence[Pair]) -> dict[Pair, Entailment]:
        """Return the verdicts on pairs with nothing to judge, and those in the cache."""
        key_of = {pair: self._key(pair) for pair in pairs}
        kept = await self._cache.get_many([*key_of.values()]) if self._cache else {}
        verdict_of = {}
        for pair, key in key_of.items():
            entry = kept.get(key, {})
            empty = without_words(pair)
            if entry.keys() >= {"attributed", "score"}:  # or a reply of a model
                verdict_of[pair] = Entailment("ok", entry["attributed"], entry["score"])
            elif empty:
                verdict_of[pair] = empty
        return verdict_of

    async def _keep(self, verdicts: Mapping[Pair, Entailment]) -> None:
        """Keep verdicts, but for failures."""
        if not self._cache:
            return
        entries = {}
        for pair, verdict in verdicts.items():
            if verdict.status == "ok":
                entry = {"attributed": verdict.attributed, "score": verdict.score}
                entries[self._key(pair)] = entry
        await self._cache.put_many(entries)

    def _key(self, pair: Pair) -> str:
        return cache_key(attributor=self.identity, premise=pair.premise, hypothesis=pair.hypothesis)


def judge_in_words(name: str) -> str:
    """Return the name of an attributor for people: overlap is not inference, and says so."""
    if name.startswith("overlap"):
        return f"{name}, which compares shared words"
    return name
