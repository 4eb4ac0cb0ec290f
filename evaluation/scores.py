"""The score of a query: a value, or the reason why there is none. Never NaN."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Reason(StrEnum):
    """Why a measure has no value for a query: a fixed word, and a sentence."""

    sentence: str

    def __new__(cls, word: str, sentence: str = "") -> Self:
        """Make a member."""
        reason = str.__new__(cls, word)
        reason._value_, reason.sentence = word, sentence
        return reason

    MISSING = "missing", "The run has no document for the query."
    NO_RELEVANT = "no_relevant", "No document is relevant to the query."
    ALL_RELEVANT = "all_relevant", "All items are relevant, so that every order is as good."
    NO_KNOWN_GROUP = "no_known_group", "No document that was measured has a known group."
    EMPTY_GROUP = "empty_group", "A group has no member among the documents ranked."
    NO_TARGET = "no_target", "The target is undefined: no relevant document has a known group."
    NO_ROOM = (
        "no_room",
        "The cut-off takes in all items, so that every order gets the same value.",
    )
    ONE_RANKING = "one_ranking", "The correction for few samples needs at least two rankings."
    INFINITE = (
        "infinite",
        "The divergence is infinite: a group has exposure and a target of 0, or the other way "
        "round.",
    )
    NO_ANSWER = "no_answer", "No answer was generated, or every generation failed."
    NO_UTILITY = (
        "no_utility",
        "No answer to the query was worth anything, so that nothing can be related to the best "
        "one.",
    )
    NO_VERDICT = (
        "no_verdict",
        "For no document of an answer is it known whether the answer used it.",
    )
    NO_ATTRIBUTION = "no_attribution", "No answer used any document."


@dataclass(frozen=True, slots=True)
class Undefined:
    """A measure has no value for a query.

    Attributes:
        reason: Why, as a fixed word.
        sentence: Why in this case, as a sentence; optional.
    """

    reason: Reason
    sentence: str = ""


Score = float | Undefined
"""A finite number, or why there is none."""
