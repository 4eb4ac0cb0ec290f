"""What judges whether an answer used a document: does the document entail the answer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fairqr.agents.replies import Status, Usage

__all__ = [
    "RAW",
    "Attributor",
    "Pair",
    "Verdict",
    "VerdictStatus",
    "hypothesis_of",
    "without_words",
]

VerdictStatus = Literal[Status, "empty_answer", "empty_document", "answer_too_long"]
"""``empty_answer`` and ``empty_document``: there is nothing to judge. ``answer_too_long``: the
answer leaves the model no room for a document. See :data:`Status`."""

RAW = "{answer}"
"""The hypothesis is the answer as it is."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A document and what may follow from it.

    Attributes:
        premise: The document's text.
        hypothesis: The answer, perhaps made into a sentence; see :func:`hypothesis_of`.
    """

    premise: str
    hypothesis: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a premise entails a hypothesis.

    Attributes:
        status: ``ok``, or why there is no verdict.
        attributed: None unless ``ok``.
        score: The probability of entailment in [0, 1], as far as the attributor has one; for a
            premise read in several windows the greatest.
        message: Why it failed, for people; empty if ``ok``.
        usage: What it cost.
    """

    status: VerdictStatus
    attributed: bool | None = None
    score: float | None = None
    message: str = ""
    usage: Usage = Usage()  # noqa: RUF009 - frozen


class Attributor(Protocol):
    """Judges pairs."""

    @property
    def name(self) -> str:
        """What judged and how, as it stands in results, e.g. ``transformers:org/model``."""
        ...

    async def start(self) -> None:
        """Make ready; raises ModelUnavailableError where something is missing."""
        ...

    async def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return a verdict for each pair, in order; never raises for what a model does wrong."""
        ...


def hypothesis_of(answer: str, template: str = RAW) -> str:
    """Make an answer into a hypothesis; an answer that is empty stays so.

    Args:
        answer: As it was generated.
        template: With ``{answer}`` once, e.g. ``The tag of this film is {answer}.``
    """
    text = " ".join(answer.split())
    return template.replace("{answer}", text) if text else ""


def without_words(pair: Pair) -> Verdict | None:
    """Return the verdict on a pair that has nothing to judge, or None.

    Text without a letter or a digit has no words: nothing follows from it, and it claims nothing.
    """
    if not any(map(str.isalnum, pair.hypothesis)):
        return Verdict("empty_answer", message="The answer has no words.")
    if not any(map(str.isalnum, pair.premise)):
        return Verdict("empty_document", message="The document has no words.")
    return None
