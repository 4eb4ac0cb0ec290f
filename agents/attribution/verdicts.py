"""The interface of attributors: they judge whether a document entails an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fairqr.agents.models.replies import Status, Usage

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
class Verdict:
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
        ...

    async def start(self) -> None:
        """Prepare for work; raises ModelUnavailableError if something is missing."""
        ...

    async def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return a verdict for each pair, in order; errors of a model never raise."""
        ...


def hypothesis_of(answer: str, template: str = RAW) -> str:
    """Make an answer into a hypothesis; an empty answer stays empty.

    Args:
        answer: The generated text.
        template: A text with ``{answer}`` once, e.g. ``The tag of this film is {answer}.``
    """
    text = " ".join(answer.split())
    return template.replace("{answer}", text) if text else ""


def without_words(pair: Pair) -> Verdict | None:
    """Return the verdict on a pair with nothing to judge, or None.

    A text without a letter or a digit has no words. Nothing follows from it, and it claims nothing.
    """
    if not any(map(str.isalnum, pair.hypothesis)):
        return Verdict("empty_answer", message="The answer has no words.")
    if not any(map(str.isalnum, pair.premise)):
        return Verdict("empty_document", message="The document has no words.")
    return None
