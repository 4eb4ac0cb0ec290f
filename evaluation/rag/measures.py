"""Measures of Fair RAG: who is exposed, what answers are worth, and what they used.

"Towards Fair RAG" (Kim & Diaz 2024), on the expected exposure of Diaz et al. (2020). A query has a
pool of n documents, m of them useful. N rankings are sampled; the generator reads the first k of
each, all alike (the machine user: MU(r) = 1 up to k, else 0). With another browsing model, MU(r) is
its discount up to k, and k is Σ MU(r)² in the names EE-D/k and EAE-D/k.

* ε_i = (1/N) Σ_s MU(rank of i in s): what document i is exposed. Sums to min(k, n).
* ε^a_i = (1/N) Σ_s MU(rank of i in s)·a(i, ŷ_s), the attributed exposure: how often document i was
  read and used (reconstructed). a(i, ŷ) = 1 if answer ŷ used document i, as an attributor says; a
  document without a verdict counts as not used. Sums to k·EAR where every verdict is known, and is
  never above ε of the same rankings.

A value is of one query, and a number or a typed reason. A mean is always over queries: several
seeds of a policy on a query are averaged first, and so are generators and retrievers where a table
joins them. A query without a value is left out, and every mean says over how many queries it is.

Two conventions go by name; see :meth:`fairqr.evaluation.expected_exposure.ExpectedExposure.score`.
``bounds``, the default, is right: (value − least)/(greatest − least) of what rankings of the query
can reach. ``fair-rag`` gives the numbers of the paper and its code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.evaluation.expected_exposure import expected_exposure, target_exposure
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord
from fairqr.evaluation.rag.targets import graded_target
from fairqr.evaluation.scores import Reason, Score
from fairqr.retrieval.fairness.exposure import Discount, FloatArray, item_exposure


class Name(StrEnum):
    """A measure of one policy on one query.

    ``EE-R, graded`` and ``EE-L, graded`` hold exposure against :func:`graded_target`, by what can
    be reached. ``exposure of not useful`` and ``use of not useful`` are shares in [0, 1] of ε and
    of ε^a; low is better. ``EU`` (eq. 7) is the mean utility of the answers, each as often as its
    ranking was drawn; ``EU/u_max`` divides it by the greatest utility of an answer, see
    :func:`greatest_utilities`. ``EAR`` (eq. 9) is the mean over samples of the share of the
    documents read that were used, among those with a verdict. ``EAE-D/k`` = Σ (ε^a)²/k (eq. 11,
    reconstructed) is on one scale with EE-D/k of the answered samples; ``EAE-D/(k·EAR)`` = Σ (ε^a)²
    / Σ ε^a is in (0, 1], and 1 where the same documents are used always. ``EAE-D/k, same norm`` is
    our reading of the paper's equations 10 and 11 by its footnote 6, which says that both exposure
    vectors have the same norm: ε^a is scaled to sum to k first. It has the range of EE-D/k below 1,
    equals it where documents are used in proportion to their exposure, is above it where use is
    more concentrated, and is at most k.
    """

    EE_D = "EE-D"
    EE_D_K = "EE-D/k"
    EE_D_UNBIASED = "EE-D, unbiased"
    EE_R = "EE-R"
    EE_R_FAIR_RAG = "EE-R, fair-rag"
    EE_L = "EE-L"
    EE_R_GRADED = "EE-R, graded"
    EE_L_GRADED = "EE-L, graded"
    NOT_USEFUL = "exposure of not useful"
    EU = "EU"
    EU_MAX = "EU/u_max"
    EU_MAX_RETRIEVER = "EU/u_max, retriever"
    EU_MAX_FAIR_RAG = "EU/u_max, fair-rag"
    EAR = "EAR"
    EE_D_K_ANSWERED = "EE-D/k, answered"
    EAE_D_K = "EAE-D/k"
    SHARE = "EAE-D/(k·EAR)"
    EAE_D_NORMED = "EAE-D/k, same norm"
    USED_NOT_USEFUL = "use of not useful"


OF_RANKINGS = (
    Name.EE_D,
    Name.EE_D_K,
    Name.EE_D_UNBIASED,
    Name.EE_R,
    Name.EE_R_FAIR_RAG,
    Name.EE_L,
    Name.EE_R_GRADED,
    Name.EE_L_GRADED,
    Name.NOT_USEFUL,
)
"""The measures of rankings."""

OF_ANSWERS = (Name.EU, Name.EU_MAX, Name.EU_MAX_RETRIEVER, Name.EU_MAX_FAIR_RAG)
"""The measures of what answers are worth."""

OF_USE = (
    Name.EAR,
    Name.EE_D_K_ANSWERED,
    Name.EAE_D_K,
    Name.SHARE,
    Name.EAE_D_NORMED,
    Name.USED_NOT_USEFUL,
)
"""The measures of the documents that answers used."""

GRADED = (Name.EE_R_GRADED, Name.EE_L_GRADED)

GROUP_SUMS = ("exposure", "target", "useful_exposure", "attributed", "answered")
"""What is summed over the documents of a group: ε; ε*, what they get if useful documents come
first; the exposure of useful documents; ε^a; and ε over the answered samples."""

PART = ["collection", "generator"]
POLICY = [*PART, "retriever", "policy"]
KEYS = [*POLICY, "seed", "query"]
"""The columns that identify a row. The oracle has no retriever."""

FIXED = 1e-9
"""A normalised EE-D that is nearer to 1 than this belongs to a fixed ranking."""

Greatest = Mapping[tuple[str, ...], float]
"""The greatest utilities; see :func:`greatest_utilities`."""


def graded_scores(exposure: FloatArray, gains: FloatArray, k: int) -> dict[str, Score]:
    """Return Σ ε·t and Σ (ε − t)² against the graded target t, by what rankings can reach.

    Both ends of the first, and the greatest of the second, are fixed rankings: with the k documents
    of the greatest t, or of the least. The least loss is 0.
    """
    if not (gains > 0).any():
        return dict.fromkeys(GRADED, Reason.NO_RELEVANT)
    target = graded_target(gains, k)
    read = min(k, len(target))
    by_target = np.sort(target)
    least = by_target[:read].sum()
    greatest = by_target[len(target) - read :].sum()
    if greatest - least < FIXED:
        return dict.fromkeys(GRADED, Reason.NO_ROOM)
    loss = float(np.sum((exposure - target) ** 2))
    greatest_loss = float(read - 2 * least + target @ target)
    return {
        Name.EE_R_GRADED: float((exposure @ target - least) / (greatest - least)),
        Name.EE_L_GRADED: loss / greatest_loss,
    }


def greatest_utilities(records: Iterable[PolicyRecord]) -> Greatest:
    """Return u_max (App. C.3), empirical: the more rankings were answered, the higher it is.

    Returns:
        By collection, generator and query, as the paper's text has it: the greatest utility over
        the oracle, every α, every retriever and the deterministic rankings. By these and the
        retriever, as the paper's code has it: over every α of that retriever; the oracle's
        retriever is empty, and its answers count for each of them.
    """
    greatest: dict[tuple[str, ...], float] = {}
    for record in records:
        query = (record.collection, record.generator, record.query)
        utilities = [answer.utility for answer in record.answers if answer.utility is not None]
        best = max(utilities, default=-1.0)
        keys: list[tuple[str, ...]] = [query]
        if record.policy != "deterministic":
            keys.append((*query, record.retriever))
        for key in keys:
            greatest[key] = max(best, greatest.get(key, best))
    return greatest


def measure_record(
    record: PolicyRecord, greatest: Greatest, gains: FloatArray, reader: Discount | None = None
) -> tuple[dict[str, Any], FloatArray]:
    """Measure one policy on one query.

    Args:
        record: What was drawn and generated; failed generations are left out of everything that
            needs answers.
        greatest: See :func:`greatest_utilities`.
        gains: The gains of each document of the pool, shape (n,); see
            :attr:`fairqr.evaluation.rag.store.PolicyRecord.gains`.
        reader: MU, beyond k always 0; by default all k documents are read alike.

    Returns:
        The measures by name, and over how many things they are: rankings ``drawn``; ``distinct``
        ones among those that were ``generated`` from; of the generations, how many ``failed``, by
        status, and how many gave an answer that is ``empty``, which counts; ``pairs`` of a document
        and a distinct answer, and those that are ``unjudged``. And of each document the values of
        :data:`GROUP_SUMS`, shape (5, n); of none if nothing was drawn.
    """
    answered = _answered(record)
    counts = _counts_of(record, answered)
    if not record.samples:
        return dict.fromkeys(Name, Reason.MISSING) | counts, np.empty((len(GROUP_SUMS), 0))
    n = len(record.pool)
    k = record.k
    useful = np.isin(np.arange(n), record.useful)
    discount = Discount("top_k", k) if reader is None else reader
    attention = discount.weights(min(n, k))
    exposure = item_exposure(record.samples, n, gained=attention)
    values = _of_rankings(record, useful, discount, exposure)
    if discount.kind == "top_k":
        values |= graded_scores(exposure, gains, k)
    else:
        values |= dict.fromkeys(GRADED, Reason.OTHER_READER)
    shown = np.zeros(n)
    used = np.zeros(n)
    if answered.answers:
        rankings = [answer.ranking for answer in answered.answers]
        by_use = attention * np.nan_to_num(answered.verdicts)
        shown = item_exposure(rankings, n, answered.times, attention)
        used = item_exposure(rankings, n, answered.times, by_use)
        values |= _of_utility(record, answered.expected_utility, greatest)
        values |= _of_use(answered, shown, used, useful, attention)
    else:
        values |= dict.fromkeys((*OF_ANSWERS, *OF_USE), Reason.NO_ANSWER)
    target = np.where(useful, *target_exposure(n, int(useful.sum()), discount, k))
    documents = np.array([exposure, target, exposure * useful, used, shown])
    in_order = {name: values[name] for name in Name}
    return in_order | counts, documents


class _Answered(NamedTuple):
    """The answers of one policy on one query that did not fail.

    Attributes:
        answers: One for each distinct ranking.
        times: How often each ranking was drawn, shape (A,).
        verdicts: Whether each used each document that it read, NaN without a verdict, shape (A, k).
    """

    answers: list[AnswerRecord]
    times: NDArray[np.int64]
    verdicts: FloatArray

    @property
    def expected_utility(self) -> float:
        """The mean utility of the answers, each as often as its ranking was drawn."""
        utilities = np.array([answer.utility for answer in self.answers])
        return float(self.times @ utilities / self.times.sum())


def _answered(record: PolicyRecord) -> _Answered:
    answers = [answer for answer in record.answers if answer.utility is not None]
    times = np.array([answer.times for answer in answers])
    verdicts = np.array([_verdicts(answer) for answer in answers], dtype=np.float64)
    return _Answered(answers, times, verdicts)


def _verdicts(answer: AnswerRecord) -> list[float]:
    """Return 1 for each document that was used, 0 for the others, and NaN without a verdict."""
    if not answer.used:
        return [np.nan] * len(answer.ranking)
    if answer.status == "empty":
        # An empty answer used nothing, which needs no verdict.
        return [0.0] * len(answer.used)
    return [np.nan if used is None else float(used) for used in answer.used]


def _counts_of(record: PolicyRecord, answered: _Answered) -> dict[str, Any]:
    """Return over how many things the measures of a record are."""
    generated = 0
    empty = 0
    failed = Counter[str]()
    for answer in record.answers:
        generated += answer.times
        if answer.status == "empty":
            empty += answer.times
        if answer.utility is None:
            failed[answer.status] += answer.times
    return {
        "drawn": len(record.samples),
        "distinct": len(record.answers),
        "generated": generated,
        "failed": failed,
        "empty": empty,
        "pairs": answered.verdicts.size,
        "unjudged": int(np.isnan(answered.verdicts).sum()),
    }


def _of_rankings(
    record: PolicyRecord, useful: NDArray[np.bool_], discount: Discount, exposure: FloatArray
) -> dict[str, Any]:
    """Return the measures of rankings, but for the graded ones."""
    expected = expected_exposure(record.samples, useful, discount, record.k)
    is_random = record.policy != "deterministic"
    return {
        Name.EE_D: expected.score("disparity"),
        Name.EE_D_K: expected.score("disparity", "fair-rag"),
        # A fixed ranking is known whole: there is nothing to correct.
        Name.EE_D_UNBIASED: expected.score("disparity", unbiased=is_random),
        Name.EE_R: expected.score("relevance"),
        Name.EE_R_FAIR_RAG: expected.score("relevance", "fair-rag"),
        # As for EE-R: where every ranking is as relevant, none can be nearer to the target.
        Name.EE_L: expected.without_room("relevance") or expected.score("loss"),
        Name.NOT_USEFUL: _ratio(float(exposure[~useful].sum()), float(exposure.sum())),
    }


def _ratio(part: float, whole: float, nothing: Reason = Reason.NO_ATTRIBUTION) -> Score:
    return part / whole if whole > 0 else nothing


def _of_utility(record: PolicyRecord, expected: float, greatest: Greatest) -> dict[str, Score]:
    """Return the measures of what answers are worth."""
    query = (record.collection, record.generator, record.query)
    of_oracle = greatest.get((*query, ""), -1.0)
    of_retriever = greatest.get((*query, record.retriever), -1.0)
    best = max(of_oracle, of_retriever)
    reason = Reason.NO_ANSWER if best < 0 else Reason.NO_UTILITY
    by_retriever = _ratio(expected, best, reason)
    return {
        Name.EU: expected,
        Name.EU_MAX: _ratio(expected, greatest[query], Reason.NO_UTILITY),
        Name.EU_MAX_RETRIEVER: by_retriever,
        # If no answer is worth anything, the paper's code calls each of them perfect.
        Name.EU_MAX_FAIR_RAG: 1.0 if best == 0 else by_retriever,
    }


def _of_use(
    answered: _Answered,
    shown: FloatArray,
    used: FloatArray,
    useful: NDArray[np.bool_],
    attention: FloatArray,
) -> dict[str, Score]:
    """Return the measures of use, given the exposures of what was shown and of what was used."""
    judged = (~np.isnan(answered.verdicts)).sum(axis=1)
    weights = np.where(judged > 0, answered.times, 0.0)
    if not weights.any():
        return dict.fromkeys(OF_USE, Reason.NO_VERDICT)
    rates = np.nansum(answered.verdicts, axis=1) / np.maximum(judged, 1)
    total = float(used.sum())
    squares = float(used @ used)
    # All attention that there is, and the disparity of one fixed ranking: both k where all are read
    # alike.
    whole = float(attention.sum())
    of_fixed = float(attention @ attention)
    return {
        Name.EAR: float(weights @ rates / weights.sum()),
        Name.EE_D_K_ANSWERED: float(shown @ shown) / of_fixed,
        Name.EAE_D_K: squares / of_fixed,
        Name.SHARE: _ratio(squares * whole, total * of_fixed),
        Name.EAE_D_NORMED: _ratio(squares * whole**2, total**2 * of_fixed),
        Name.USED_NOT_USEFUL: _ratio(float(used[~useful].sum()), total),
    }
