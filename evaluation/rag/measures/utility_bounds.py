"""The best that any answer to a query was worth, by which expected utility is divided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from fairqr.evaluation.rag.records import AnswerRecord, PolicyRecord
from fairqr.evaluation.scores import Reason, Score, Undefined

__all__ = ["Scope", "UtilityBounds", "is_answer"]

Scope = Literal["all", "retriever"]
"""``all``, the paper's text: answers over oracle rankings, every α, every retriever and the
deterministic rankings. ``retriever``, the paper's code: the oracle, and every α of that retriever.
"""


def is_answer(answer: AnswerRecord) -> bool:
    """Return whether a generation came to an answer that can be judged, be it an empty one."""
    return answer.status in ("ok", "empty") and answer.utility is not None


class UtilityBounds:
    """u_max of each query and generator (App. C.3 of "Towards Fair RAG").

    It is empirical: the more rankings were answered, the higher it is.

    Args:
        records: All policies of an experiment.
    """

    def __init__(self, records: Iterable[PolicyRecord]) -> None:
        self._all: dict[tuple[str, str, str], float] = {}
        self._oracle: dict[tuple[str, str, str], float] = {}
        self._retriever: dict[tuple[str, str, str, str], float] = {}
        for record in records:
            values = [answer.utility or 0.0 for answer in record.answers if is_answer(answer)]
            if not values:
                continue
            key, best = (record.collection, record.generator, record.query), max(values)
            self._all[key] = max(best, self._all.get(key, best))
            if record.policy == "oracle":
                self._oracle[key] = max(best, self._oracle.get(key, best))
            elif record.policy == "plackett-luce":
                own = (*key, record.retriever)
                self._retriever[own] = max(best, self._retriever.get(own, best))

    def greatest(self, record: PolicyRecord, scope: Scope = "all") -> Score:
        """Return u_max for the query and generator of a record.

        Args:
            record: Of any policy.
            scope: Which answers count. The oracle has no retriever: with ``retriever`` its u_max is
                that of its own answers.

        Returns:
            Undefined where no such answer is there.
        """
        key = (record.collection, record.generator, record.query)
        if scope == "all":
            found = [self._all.get(key)]
        else:
            found = [self._oracle.get(key), self._retriever.get((*key, record.retriever))]
        known = [value for value in found if value is not None]
        return max(known) if known else Undefined(Reason.NO_ANSWER)
