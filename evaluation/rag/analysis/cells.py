"""One policy on one query, from its record to the values of all measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.evaluation.rag.analysis.names import OF_USE, Name
from fairqr.evaluation.rag.measures import attribution, retrieval
from fairqr.evaluation.rag.measures.groups import GroupExposure, group_exposure
from fairqr.evaluation.rag.measures.utility_bounds import UtilityBounds, is_answer
from fairqr.evaluation.rag.records import AnswerRecord, PolicyRecord
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.exposure import FloatArray

__all__ = ["Cell", "measure_record"]


class Cell(NamedTuple):
    """The measures of one policy on one query.

    Attributes:
        record: What was measured.
        values: By name.
        groups: By attribute; empty if the collection has no groups or nothing was drawn.
        counts: Over how many things the values are: rankings ``drawn``; ``distinct`` ones among
            those that were ``generated`` from; of the generations, how many ``failed``, by status,
            and how many gave an answer that is ``empty``, which counts; ``pairs`` of a document
            and a distinct answer, and those that are ``unjudged``.
    """

    record: PolicyRecord
    values: Mapping[Name, Score]
    groups: Mapping[str, GroupExposure]
    counts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of a record, the failed ones left out.

    An empty answer used nothing, which needs no verdict.
    """

    rankings: NDArray[np.intp]
    times: NDArray[np.intp]
    utilities: FloatArray
    attributed: NDArray[np.bool_]
    judged: NDArray[np.bool_]

    @classmethod
    def of(cls, record: PolicyRecord) -> _Answers | None:
        found = [answer for answer in record.answers if is_answer(answer)]
        if not found:
            return None
        verdicts = [_verdicts(answer) for answer in found]
        return cls(
            rankings=np.array([answer.ranking for answer in found], dtype=np.intp),
            times=np.array([answer.times for answer in found], dtype=np.intp),
            utilities=np.array([answer.utility or 0.0 for answer in found]),
            attributed=np.array([[bool(used) for used in row] for row in verdicts]),
            judged=np.array([[used is not None for used in row] for row in verdicts]),
        )

    def shown(self, n: int) -> FloatArray:
        """Return the exposure of each of n documents in what was answered."""
        return retrieval.item_exposure(self.rankings, n, self.times)

    def used(self, n: int) -> FloatArray:
        """Return the attributed exposure of each of n documents."""
        return attribution.attributed_exposure(self.rankings, self.attributed, self.times, n)


def _verdicts(answer: AnswerRecord) -> tuple[bool | None, ...]:
    length = len(answer.ranking)
    if len(answer.used) != length:
        # Nothing judged.
        return (None,) * length
    return (False,) * length if answer.status == "empty" else answer.used


def measure_record(
    record: PolicyRecord,
    bounds: UtilityBounds,
    memberships: Mapping[str, FloatArray] | None = None,
) -> Cell:
    """Measure one policy on one query.

    Args:
        record: What was drawn and generated.
        bounds: The greatest utility of each query.
        memberships: By attribute, shape (n, G + 1), in the order of the record's pool.
    """
    if not record.samples or not record.pool:
        missing = Undefined(Reason.MISSING, record.failure)
        return Cell(record, dict.fromkeys(Name, missing), {}, _count(record, None))
    useful = np.zeros(len(record.pool), dtype=bool)
    useful[list(record.useful)] = True
    answers = _Answers.of(record)
    exposure = retrieval.item_exposure(record.samples, useful.size)
    values = {
        **_of_retrieval(record, useful, exposure),
        **_of_utility(record, answers, bounds),
        **_of_use(answers, useful),
    }
    of_answers = (answers.shown(useful.size), answers.used(useful.size)) if answers else ()
    groups = {
        name: group_exposure(rows, exposure, useful, record.k, *of_answers)
        for name, rows in (memberships or {}).items()
    }
    # In the order of the names, so that files repeat.
    return Cell(record, {name: values[name] for name in Name}, groups, _count(record, answers))


def _of_retrieval(
    record: PolicyRecord, useful: NDArray[np.bool_], exposure: FloatArray
) -> dict[Name, Score]:
    found = retrieval.machine_user(record.samples, useful, record.k)
    fixed = record.policy == "deterministic"
    unbiased = retrieval.disparity(found, unbiased=True)
    return {
        Name.EE_D: retrieval.disparity(found),
        Name.EE_D_K: retrieval.disparity(found, "fair-rag"),
        # A fixed ranking is known whole: there is nothing to correct.
        Name.EE_D_UNBIASED: retrieval.disparity(found) if fixed else unbiased,
        Name.EE_R: retrieval.relevance(found),
        Name.EE_R_FAIR_RAG: retrieval.relevance(found, "fair-rag"),
        Name.EE_L: retrieval.loss(found),
        Name.NOT_USEFUL: retrieval.not_useful(exposure, useful),
    }


def _of_utility(
    record: PolicyRecord, answers: _Answers | None, bounds: UtilityBounds
) -> dict[Name, Score]:
    expected: Score = Undefined(Reason.NO_ANSWER)
    if answers is not None:
        expected = retrieval.expected_utility(answers.utilities, answers.times)
    every, own = bounds.greatest(record), bounds.greatest(record, "retriever")
    return {
        Name.EU: expected,
        Name.EU_MAX: retrieval.normalised_utility(expected, every),
        Name.EU_MAX_RETRIEVER: retrieval.normalised_utility(expected, own),
        Name.EU_MAX_FAIR_RAG: retrieval.normalised_utility(expected, own, "fair-rag"),
    }


def _of_use(answers: _Answers | None, useful: NDArray[np.bool_]) -> dict[Name, Score]:
    if answers is None:
        return dict.fromkeys(OF_USE, Undefined(Reason.NO_ANSWER))
    if not answers.judged.any():
        return dict.fromkeys(OF_USE, Undefined(Reason.NO_VERDICT))
    n, k = useful.size, answers.rankings.shape[1]
    shown, used = answers.shown(n), answers.used(n)
    even = float(shown @ shown) / k
    share = attribution.attribution_share(used)
    return {
        Name.EAR: attribution.expected_attribution_rate(
            answers.attributed, answers.judged, answers.times
        ),
        Name.EE_D_K_ANSWERED: even,
        Name.EAE_D_K: attribution.attributed_disparity(used, k),
        Name.SHARE: share,
        Name.SHARE_EXCESS: share if isinstance(share, Undefined) else share - even,
        Name.USED_NOT_USEFUL: retrieval.not_useful(used, useful),
    }


def _count(record: PolicyRecord, answers: _Answers | None) -> dict[str, Any]:
    failed: Counter[str] = Counter()
    for answer in record.answers:
        if not is_answer(answer):
            failed[answer.status] += answer.times
    return {
        "drawn": len(record.samples),
        "distinct": len(record.answers),
        "generated": sum(answer.times for answer in record.answers),
        "failed": failed,
        "empty": sum(answer.times for answer in record.answers if answer.status == "empty"),
        "pairs": answers.judged.size if answers else 0,
        "unjudged": int((~answers.judged).sum()) if answers else 0,
    }
