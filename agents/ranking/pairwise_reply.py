"""A model's preferences between two documents, and how to read them from replies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fairqr.agents.models.replies import Status, Usage

LABELS = ("A", "B")
"""The labels of the first and the second document in the prompt ``pairwise``."""

Position = Literal["first", "second"]

ReplyStatus = Literal["empty", "both", "neither", "refused", "essay", "parse_error"]

PreferenceStatus = Literal[Status, ReplyStatus, "tie"]
"""``tie`` is an answer that prefers neither; all others but ``ok`` are failures."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Which of two documents a model prefers in one order.

    Attributes:
        status: ``ok``; ``tie`` if both labels are equally probable; or what came instead of an
            answer: a refusal, both, neither, an essay, nothing, or a failure of the model.
        choice: The position of the preferred document; None unless ``ok``.
        log_odds: ln P(first label) − ln P(second label), between −13.8 and 13.8; None if a reply
            was read or the model failed.
        mass: The total probability of both labels among all possible replies; None if a reply was
            read or the model failed.
        message: A sentence that says why there is no choice; empty if ``ok``.
        usage: What it cost.
    """

    status: PreferenceStatus
    choice: Position | None = None
    log_odds: float | None = None
    mass: float | None = None
    message: str = ""
    usage: Usage = Usage()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model's preferences between two documents in both orders.

    Attributes:
        one_first: The preference with the one document first.
        other_first: The preference with the other document first.
    """

    one_first: Preference
    other_first: Preference

    @property
    def winner(self) -> Literal["one", "other"] | None:
        """The document preferred both times; None if the answers differ or one is missing."""
        match self.one_first.choice, self.other_first.choice:
            case "first", "second":
                return "one"
            case "second", "first":
                return "other"
        return None

    @property
    def flips(self) -> bool:
        """Whether the same position is preferred both times."""
        return self.one_first.choice is not None and (
            self.one_first.choice == self.other_first.choice
        )

    def preferred(self, one: str, other: str) -> tuple[str, str]:
        """Return the preferences with the one document first, and with the other first.

        Args:
            one: The name of the one document.
            other: The name of the other document.

        Returns:
            For each order, one of these names, or the status of an answer that prefers neither.
        """
        return (
            _named(self.one_first, one, other),
            _named(self.other_first, other, one),
        )

    @property
    def failure(self) -> PreferenceStatus | None:
        """The status of the first answer that failed; None if neither did. A tie is an answer."""
        for each in (self.one_first, self.other_first):
            if each.status not in ("ok", "tie"):
                return each.status
        return None

    @property
    def usage(self) -> Usage:
        """The cost of both questions."""
        return self.one_first.usage + self.other_first.usage


def _named(preference: Preference, first: str, second: str) -> str:
    if preference.choice is None:
        return preference.status
    return first if preference.choice == "first" else second


ESSAY_WORDS = 6
"""A reply without an answer is an essay if it has more words than this."""

MOST = 10_000
"""How many characters of a reply we look at."""

_NOUN = r"(?:the )?(?:passage|article|document|text|item|option|choice|label)s?"
_ONE = rf"(?:{_NOUN} )?([ab])"
_MORE = rf"(?:the )?(?:more|most) relevant(?: (?:one|{_NOUN}))?"
_LEAD = rf"(?:(?:(?:(?:my|the|final) )*(?:answer|choice)|{_MORE})(?: is|:) ?)?"
_ANSWER = re.compile(rf"{_LEAD}{_ONE}(?: is {_MORE}(?: to the query)?)?")
_BOTH = re.compile(
    rf"{_LEAD}(?:both\b.*|{_ONE} ?(?:and|or|&|,|/|>|=| ) ?{_ONE}|(?:they are )?equal(?:ly\b.*)?)"
)
_NEITHER = re.compile(rf"{_LEAD}(?:neither|none|no (?:passage|article|document))\b.*")
_REFUSED = re.compile(
    r"(?:i ?'?a?m (?:sorry|unable|not able)|sorry|as an ai|unfortunately|"
    r"i (?:cannot|can't|can not|won't|will not|apologi[sz]e|decline))\b"
)
# What people and models put around a letter: **A**, (A), [A], "A", `A`.
_MARKS = re.compile(r"[*_`\"\u201c\u201d()\[\]{}<>]")
_AROUND = " .,:;!?'#-"


def parse_preference(reply: str) -> Position | ReplyStatus:
    """Read which of the two documents a reply prefers.

    A reply is an answer if the whole reply, or one of its lines, is a label. The label may have a
    noun before it, marks around it, or the words of the question: ``A``, ``(B)``, ``**A**``,
    ``Passage B.``, ``Answer: A``, ``The more relevant passage is B``, ``A is more relevant``. Other
    lines, such as explanations, are ignored. Two lines that answer differently are ``both``.

    Args:
        reply: The text that the model wrote.

    Returns:
        The position; or ``empty``; ``both`` (also for equal documents) or ``neither``; ``refused``
        if the reply begins like a refusal; ``essay`` for other prose of more than six words; or
        ``parse_error`` for the rest.
    """
    text = _MARKS.sub("", reply[:MOST].casefold().replace("\u2019", "'"))
    lines = [" ".join(line.split()).strip(_AROUND) for line in text.splitlines()]
    lines = [line for line in lines if line]
    if not text.strip():
        return "empty"
    chosen = {match[1] for line in lines if (match := _ANSWER.fullmatch(line))}
    if len(chosen) == 1:
        return "first" if chosen == {LABELS[0].casefold()} else "second"
    begin = lines[0] if lines else ""
    if chosen or _BOTH.fullmatch(begin):
        return "both"
    if _NEITHER.fullmatch(begin):
        return "neither"
    if _REFUSED.match(begin):
        return "refused"
    return "essay" if len(text.split()) > ESSAY_WORDS else "parse_error"
