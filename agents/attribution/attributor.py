"""The interface of attributors, which judge whether a document entails an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from urllib.parse import parse_qsl

from fairqr.agents.models.replies import Status, Usage
from fairqr.base.errors import InputError

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


@dataclass(frozen=True, slots=True)
class AttributorName:
    """The parts of an attributor's name, such as ``transformers:org/model?threshold=0.7``.

    Results state the name, and it opens the same attributor again.

    Attributes:
        kind: For example ``transformers``.
        model: The part after the colon; may be empty.
        threshold: The score from which a document counts as used; optional. Each kind has its own
            default rule.
        entailment: The number of the model's output for entailment, from 0; by default it is looked
            up.

    Raises:
        InputError: The threshold is not above 0 and at most 1.
    """

    kind: str
    model: str = ""
    threshold: float | None = None
    entailment: int | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise InputError(
                f"The threshold of attribution must be above 0 and at most 1, not "
                f"{self.threshold:g}."
            )

    @classmethod
    def parse(cls, text: str) -> AttributorName:
        """Read a name.

        Raises:
            InputError: An option is unknown, occurs twice, or is not a number.
        """
        named, _, options = text.partition("?")
        kind, _, model = named.partition(":")
        pairs = parse_qsl(options, keep_blank_values=True)
        values = dict(pairs)
        if not values.keys() <= {"threshold", "entailment"} or len(values) < len(pairs):
            raise InputError(
                f"'{options}' are not options of the attributor '{named}'; write options such as "
                "threshold=0.7 and entailment=2, each once, joined by '&'."
            )
        try:
            threshold = float(values["threshold"]) if "threshold" in values else None
            entailment = int(values["entailment"]) if "entailment" in values else None
        except ValueError:
            raise InputError(
                f"The options of the attributor '{text}' must be numbers, such as threshold=0.7 "
                "and entailment=2."
            ) from None
        return cls(kind, model, threshold, entailment)

    def __str__(self) -> str:
        options = [] if self.entailment is None else [f"entailment={self.entailment}"]
        if self.threshold is not None:
            options.append(f"threshold={self.threshold:g}")
        named = f"{self.kind}:{self.model}" if self.model else self.kind
        return f"{named}?{'&'.join(options)}" if options else named


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
