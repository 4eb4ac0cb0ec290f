"""Measures of Fair RAG on one query: who is exposed, and what answers are worth.

"Towards Fair RAG" (Kim & Diaz 2024), on the expected exposure of Diaz et al. (2020). A query has a
pool of n documents, m of them useful. N rankings are sampled; the generator reads the first k of
each, all alike (the machine user: MU(r) = 1 up to k, else 0).

* ε_i = (1/N) Σ_s MU(rank of i in s): what document i is exposed. Sums to min(k, n).
* ε^a_i = (1/N) Σ_s MU(rank of i in s)·a(i, ŷ_s), the attributed exposure: how often document i was
  read and used (reconstructed). a(i, ŷ) = 1 if answer ŷ used document i, as an attributor says; a
  document without a verdict counts as not used. Sums to k·EAR where every verdict is known, and is
  never above ε of the same rankings.

Everything is of one query; means over queries come later. A value is a number or a typed reason.

Two conventions go by name; see :meth:`fairqr.evaluation.expected_exposure.ExpectedExposure.score`.
``bounds``, the default, is right: (value − least)/(greatest − least) of what rankings of the query
can reach. ``fair-rag`` gives the numbers of the paper and its code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import InputError
from fairqr.evaluation.expected_exposure import expected_exposure, target_exposure
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.sources.schema import Attribute


class Name(StrEnum):
    """A measure of one policy on one query.

    ``exposure of not useful`` and ``use of not useful`` are shares in [0, 1] of ε and of ε^a; low
    is better. ``EU`` (eq. 7) is the mean utility of the answers, each as often as its ranking was
    drawn; ``EU/u_max`` divides it by the greatest utility of an answer, see
    :func:`greatest_utilities`. ``EAR`` (eq. 9) is the mean over samples of the share of the
    documents read that were used, among those with a verdict. ``EAE-D/k`` = Σ (ε^a)²/k (eq. 11,
    reconstructed) is on one scale with EE-D/k of the answered samples; ``EAE-D/(k·EAR)`` =
    Σ (ε^a)² / Σ ε^a is in (0, 1], and 1 where the same documents are used always.
    """

    EE_D = "EE-D"
    EE_D_K = "EE-D/k"
    EE_D_UNBIASED = "EE-D, unbiased"
    EE_R = "EE-R"
    EE_R_FAIR_RAG = "EE-R, fair-rag"
    EE_L = "EE-L"
    NOT_USEFUL = "exposure of not useful"
    EU = "EU"
    EU_MAX = "EU/u_max"
    EU_MAX_RETRIEVER = "EU/u_max, retriever"
    EU_MAX_FAIR_RAG = "EU/u_max, fair-rag"
    EAR = "EAR"
    EE_D_K_ANSWERED = "EE-D/k, answered"
    EAE_D_K = "EAE-D/k"
    SHARE = "EAE-D/(k·EAR)"
    USED_NOT_USEFUL = "use of not useful"


_ALL = tuple(Name)
OF_RANKINGS, OF_ANSWERS, OF_USE = _ALL[:7], _ALL[7:11], _ALL[11:]
"""The measures of rankings, of the worth of answers, and of the documents that answers used."""

GROUP_SUMS = ("exposure", "target", "useful_exposure", "attributed", "answered")
"""What is summed over the documents of a group, see :func:`group_exposure`."""

Greatest = Mapping[tuple[str, ...], float]


class Cell(NamedTuple):
    """The measures of one policy on one query.

    Attributes:
        values: By name.
        groups: By attribute what :func:`group_exposure` returns; empty if the collection has no
            groups or nothing was drawn.
        counts: Over how many things the values are: rankings ``drawn``; ``distinct`` ones among
            those that were ``generated`` from; of the generations, how many ``failed``, by status,
            and how many gave an answer that is ``empty``, which counts; ``pairs`` of a document
            and a distinct answer, and those that are ``unjudged``.
    """

    record: PolicyRecord
    values: Mapping[Name, Score]
    groups: Mapping[str, FloatArray]
    counts: Mapping[str, Any]


def item_exposure(
    rankings: ArrayLike, n: int, times: ArrayLike | None = None, gained: ArrayLike = 1.0
) -> FloatArray:
    """Return ε, the expected exposure of each document, shape (n,), each in [0, 1].

    Args:
        rankings: Shape (N, r): positions, each row cut at k.
        n: How many documents the pool has.
        times: Shape (N,): how often each row was drawn; by default once.
        gained: What a place counts, such as whether its document was used, which gives ε^a; of a
            shape that goes with (N, r).

    Raises:
        InputError: There is no ranking.
    """
    ranked = np.asarray(rankings, dtype=np.intp)
    if ranked.ndim != 2 or not len(ranked):
        raise InputError("Exposure needs at least one ranking of documents.")
    weights = np.ones(len(ranked)) if times is None else np.asarray(times, dtype=np.float64)
    values = np.broadcast_to(np.asarray(gained, dtype=np.float64), ranked.shape)
    total = np.bincount(ranked.ravel(), (values * weights[:, None]).ravel(), n)
    return np.asarray(total / weights.sum(), dtype=np.float64)


def is_answer(answer: AnswerRecord) -> bool:
    """Return whether a generation came to an answer that can be judged, be it an empty one."""
    return answer.status in ("ok", "empty") and answer.utility is not None


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
        keys = [query, (*query, record.retriever)][: 1 + (record.policy != "deterministic")]
        for answer in filter(is_answer, record.answers):
            for key in keys:
                greatest[key] = max(answer.utility or 0.0, greatest.get(key, 0.0))
    return greatest


def measure_record(
    record: PolicyRecord,
    greatest: Greatest,
    memberships: Mapping[str, FloatArray] | None = None,
) -> Cell:
    """Measure one policy on one query.

    Args:
        record: What was drawn and generated; failed generations are left out of everything that
            needs answers.
        greatest: See :func:`greatest_utilities`.
        memberships: By attribute, shape (n, G + 1), in the order of the record's pool.
    """
    n, k, answers = len(record.pool), record.k, list(filter(is_answer, record.answers))
    verdicts = np.array([_verdicts(answer) for answer in answers], dtype=np.float64)
    failed: Counter[str] = Counter()
    for answer in record.answers:
        if not is_answer(answer):
            failed[answer.status] += answer.times
    counts = {
        "drawn": len(record.samples),
        "distinct": len(record.answers),
        "generated": sum(answer.times for answer in record.answers),
        "failed": failed,
        "empty": sum(answer.times for answer in answers if answer.status == "empty"),
        "pairs": verdicts.size,
        "unjudged": int(np.isnan(verdicts).sum()),
    }
    if not record.samples or not n:
        missing = Undefined(Reason.MISSING, record.failure)
        return Cell(record, dict.fromkeys(Name, missing), {}, counts)
    useful = np.isin(np.arange(n), record.useful)
    found = expected_exposure(record.samples, useful, Discount("top_k", k), k)
    exposure = item_exposure(record.samples, n)
    values: dict[Name, Score] = {
        Name.EE_D: found.score("disparity"),
        Name.EE_D_K: found.score("disparity", "fair-rag"),
        # A fixed ranking is known whole: there is nothing to correct.
        Name.EE_D_UNBIASED: found.score("disparity", unbiased=record.policy != "deterministic"),
        Name.EE_R: found.score("relevance"),
        Name.EE_R_FAIR_RAG: found.score("relevance", "fair-rag"),
        # As for EE-R: where every ranking is as relevant, none can be nearer to the target.
        Name.EE_L: found.without_room("relevance") or found.score("loss"),
        Name.NOT_USEFUL: _share(exposure, ~useful),
    }
    if not answers:
        values |= dict.fromkeys((*OF_ANSWERS, *OF_USE), Undefined(Reason.NO_ANSWER))
        nothing = np.zeros(n)
        return Cell(
            record, values, _groups(memberships, useful, k, exposure, nothing, nothing), counts
        )
    rankings, times = [it.ranking for it in answers], np.array([it.times for it in answers])
    shown = item_exposure(rankings, n, times)
    used = item_exposure(rankings, n, times, np.nan_to_num(verdicts))
    values |= _of_utility(record, answers, times, greatest)
    judged = (~np.isnan(verdicts)).sum(axis=1)
    weights = np.where(judged > 0, times, 0.0)
    if weights.any():
        rates = np.nansum(verdicts, axis=1) / np.maximum(judged, 1)
        total = float(used.sum())
        values |= {
            Name.EAR: float(weights @ rates / weights.sum()),
            Name.EE_D_K_ANSWERED: float(shown @ shown) / len(rankings[0]),
            Name.EAE_D_K: float(used @ used) / len(rankings[0]),
            Name.SHARE: float(used @ used) / total if total else Undefined(Reason.NO_ATTRIBUTION),
            Name.USED_NOT_USEFUL: _share(used, ~useful),
        }
    else:
        values |= dict.fromkeys(OF_USE, Undefined(Reason.NO_VERDICT))
    return Cell(record, values, _groups(memberships, useful, k, exposure, shown, used), counts)


def _verdicts(answer: AnswerRecord) -> list[float]:
    """Return 1 for each document that was used, 0 for the others, and NaN without a verdict."""
    if len(answer.used) != len(answer.ranking):
        # Nothing judged.
        return [np.nan] * len(answer.ranking)
    # An empty answer used nothing, which needs no verdict.
    is_empty = answer.status == "empty"
    return [0.0 if is_empty else np.nan if used is None else used for used in answer.used]


def _share(exposure: FloatArray, places: Any) -> Score:
    total = float(exposure.sum())
    if total <= 0:
        return Undefined(Reason.NO_ATTRIBUTION)
    return float(exposure[places].sum()) / total


def _of_utility(
    record: PolicyRecord, answers: Sequence[AnswerRecord], times: Any, greatest: Greatest
) -> dict[Name, Score]:
    weights = np.asarray(times, dtype=np.float64)
    expected = float(weights @ np.array([it.utility or 0.0 for it in answers]) / weights.sum())
    query = (record.collection, record.generator, record.query)
    own = _ratio(expected, *(greatest.get((*query, it)) for it in ("", record.retriever)))
    # The paper's code calls an answer that is worth nothing perfect where none is worth more.
    perfect = own == Undefined(Reason.NO_UTILITY)
    return {
        Name.EU: expected,
        Name.EU_MAX: _ratio(expected, greatest.get(query)),
        Name.EU_MAX_RETRIEVER: own,
        Name.EU_MAX_FAIR_RAG: 1.0 if perfect else own,
    }


def _ratio(expected: float, *greatest: float | None) -> Score:
    best = max((it for it in greatest if it is not None), default=None)
    if best is None:
        return Undefined(Reason.NO_ANSWER)
    return expected / best if best > 0 else Undefined(Reason.NO_UTILITY)


def memberships_of(
    attribute: Attribute, documents: Sequence[Mapping[str, Mapping[str, float]]]
) -> FloatArray:
    """Return the share of each group in each document, the unknown last, shape (n, G + 1).

    Each row sums to 1.

    Args:
        attribute: One of the collection's schema.
        documents: The groups of each document by attribute.
    """
    known = len(attribute.groups)
    rows = np.zeros((len(documents), known + 1))
    for row, groups in zip(rows, documents, strict=True):
        row[:known] = attribute.membership(dict(groups.get(attribute.name, {})))[:known]
        row[known] = max(0.0, 1.0 - row[:known].sum())
    return rows


def _groups(memberships: Mapping[str, FloatArray] | None, *exposures: Any) -> dict[str, FloatArray]:
    return {name: group_exposure(rows, *exposures) for name, rows in (memberships or {}).items()}


def group_exposure(
    memberships: FloatArray,
    useful: ArrayLike,
    k: int,
    exposure: ArrayLike,
    answered: ArrayLike,
    attributed: ArrayLike,
) -> FloatArray:
    """Sum the exposure of documents over groups, in documents.

    Args:
        memberships: Shape (n, G + 1), the unknown last.
        useful: Shape (n,).
        k: How many documents are read.
        exposure: ε, shape (n,).
        answered: ε over the samples that were answered, shape (n,).
        attributed: ε^a, shape (n,).

    Returns:
        The rows of :data:`GROUP_SUMS`, each of shape (G + 1,): Σ_i ε_i·membership, which sums to k;
        the target Σ_i ε*_i·membership, what groups get if useful documents come first; the exposure
        of useful documents; and the sums of ε^a and of ε over the answered samples.
    """
    labels = np.asarray(useful, dtype=bool)
    best, other = target_exposure(labels.size, int(labels.sum()), Discount("top_k", k), k)
    shown = np.asarray(exposure, dtype=np.float64)
    rows = (shown, np.where(labels, best, other), shown * labels, attributed, answered)
    return np.array([np.asarray(row, dtype=np.float64) @ memberships for row in rows])
