"""The score of a query: a value, or the reason why there is none. Never NaN."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a measure has no value for a query; docs/glossary.md explains each."""

    MISSING = "missing"
    NO_RELEVANT = "no_relevant"
    ALL_RELEVANT = "all_relevant"
    NO_KNOWN_GROUP = "no_known_group"
    EMPTY_GROUP = "empty_group"
    NO_TARGET = "no_target"
    NO_ROOM = "no_room"
    ONE_RANKING = "one_ranking"
    INFINITE = "infinite"
    NO_ANSWER = "no_answer"
    NO_UTILITY = "no_utility"
    NO_VERDICT = "no_verdict"
    NO_ATTRIBUTION = "no_attribution"
    OTHER_READER = "other_reader"


Score = float | Reason
"""A finite number, or why there is none."""
