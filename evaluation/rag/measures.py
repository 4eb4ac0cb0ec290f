"""Measures of Fair RAG on one query: who is exposed, and what answers are worth.

"Towards Fair RAG" (Kim & Diaz 2024), on the expected exposure of Diaz et al. (2020). A query has a
pool of n documents, m of them useful. N rankings are sampled; the generator reads the first k of
each, all alike (the machine user: MU(r) = 1 up to k, else 0).

* ε_i = (1/N) Σ_s MU(rank of i in s): what document i is exposed. Sums to min(k, n).
* ε^a_i = (1/N) Σ_s MU(rank of i in s)·a(i, ŷ_s), the attributed exposure: how often document i was
  read and used (reconstructed). a(i, ŷ) = 1 if answer ŷ used document i, as an attributor says.
  Sums to k·EAR, and is never above ε of the same rankings.

Everything is of one query; means over queries come later. A value is a number or a typed reason.

Two conventions go by name. ``bounds``, the default, is right: (value − least)/(greatest − least) of
what rankings of the query can reach. ``fair-rag`` gives the numbers of the paper and its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import InputError
from fairqr.evaluation.expected_exposure import ExpectedExposure, expected_exposure, target_exposure
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.sources.schema import Attribute

Normalization = Literal["bounds", "fair-rag"]

Scope = Literal["all", "retriever"]
"""``all``, the paper's text: answers over oracle rankings, every α, every retriever and the
deterministic rankings. ``retriever``, the paper's code: the oracle, and every α of that retriever.
"""


def machine_user(samples: ArrayLike, useful: ArrayLike, k: int) -> ExpectedExposure:
    """Return EE-D, EE-R and EE-L of sampled rankings, not normalised, with what can be reached.

    Args:
        samples: Shape (N, min(k, n)): positions of documents, best first.
        useful: Shape (n,): which documents are useful.
        k: How many documents the generator reads; with k > n it reads all n.

    Raises:
        InputError: There is no ranking or no document, or a position is none of a document.
    """
    return expected_exposure(samples, useful, Discount("top_k", k), k)


def item_exposure(samples: ArrayLike, n: int, times: ArrayLike | None = None) -> FloatArray:
    """Return ε, the expected exposure of each document, shape (n,), each in [0, 1].

    Args:
        samples: Shape (N, r), each row cut at k.
        n: How many documents the pool has.
        times: Shape (N,): how often each row was drawn; by default once.
    """
    ranked = np.asarray(samples, dtype=np.intp)
    return mean_of_rows(ranked, np.ones(ranked.shape), n, times)


def loss(found: ExpectedExposure) -> Score:
    """Return EE-L = Σ (ε_i − ε*_i)², by what can be reached, in [0, 1]; 0 is fair.

    1 is the fixed ranking with the useful documents last. The paper normalises no EE-L.

    Returns:
        Undefined for m = 0, m = n and k ≥ n.
    """
    return found.without_room("relevance") or found.loss / found.bounds.loss[1]


def not_useful(exposure: ArrayLike, useful: ArrayLike) -> Score:
    """Return Σ_{i not useful} ε_i / Σ ε_i: the share of exposure that goes to what does not help.

    In [0, 1], low is better; no ranking is below max(0, k−m)/k. Also for attributed exposure: the
    share of use.

    Args:
        exposure: Shape (n,), of any kind.
        useful: Shape (n,).

    Returns:
        Undefined where nothing has exposure.
    """
    values = np.asarray(exposure, dtype=np.float64)
    total = float(values.sum())
    if total <= 0:
        return Undefined(Reason.NO_ATTRIBUTION)
    return float(values[~np.asarray(useful, dtype=bool)].sum()) / total


def expected_utility(utilities: ArrayLike, times: ArrayLike) -> Score:
    """Return EU (eq. 7): the mean utility of the answers, each as often as its ranking was drawn.

    High is good; in units of the task's utility. Leave failed generations out first.

    Args:
        utilities: Shape (A,).
        times: Shape (A,).

    Returns:
        Undefined without answers.
    """
    values, weights = np.asarray(utilities, dtype=np.float64), np.asarray(times, dtype=np.float64)
    if not weights.sum():
        return Undefined(Reason.NO_ANSWER)
    return float(weights @ values / weights.sum())


def normalised_utility(
    expected: Score, greatest: Score, normalization: Normalization = "bounds"
) -> Score:
    """Return EU/u_max, u_max being the best that any answer to the query was worth (App. C.3).

    1 is best. It is above 1 only where u_max leaves out the answers that EU is of.

    Args:
        expected: EU.
        greatest: u_max, see :class:`UtilityBounds`.
        normalization: ``fair-rag`` gives 1 for u_max = 0, as the paper's code does.

    Returns:
        Undefined where either is, and for u_max = 0: an answer worth nothing is not perfect.
    """
    if isinstance(expected, Undefined):
        return expected
    if isinstance(greatest, Undefined):
        return greatest
    if greatest <= 0:
        return 1.0 if normalization == "fair-rag" else Undefined(Reason.NO_UTILITY)
    return expected / greatest


def mean_of_rows(
    rankings: ArrayLike, gained: ArrayLike, n: int, times: ArrayLike | None = None
) -> FloatArray:
    """Return the mean gain of each of n documents over rankings, shape (n,).

    Args:
        rankings: Shape (N, r): positions.
        gained: Shape (N, r): the worth of each place of each ranking.
        n: How many documents the pool has.
        times: Shape (N,): how often each ranking was drawn; by default once.

    Raises:
        InputError: There is no ranking.
    """
    ranked = np.asarray(rankings, dtype=np.intp)
    if ranked.ndim != 2 or not len(ranked):
        raise InputError("Exposure needs at least one ranking of documents.")
    weights = np.ones(len(ranked)) if times is None else np.asarray(times, dtype=np.float64)
    values = np.asarray(gained, dtype=np.float64) * weights[:, None]
    total = np.bincount(ranked.ravel(), values.ravel(), n)
    return np.asarray(total / weights.sum(), dtype=np.float64)


def expected_attribution_rate(attributed: ArrayLike, judged: ArrayLike, times: ArrayLike) -> Score:
    """Return EAR (eq. 9): the mean over samples of AR, the share of documents read that were used.

    AR = (1/k) Σ_{i in the first k} a(i, ŷ), in [0, 1] (eq. 8). High: answers use what they are
    given. A document without a verdict is left out of its answer's AR; an answer without any
    verdict is left out of the mean.

    Args:
        attributed: Shape (A, k): which documents of each ranking the answer used.
        judged: Shape (A, k): for which of them that is known.
        times: Shape (A,): how often each ranking was drawn.

    Returns:
        Undefined if nothing is known.
    """
    known = np.asarray(judged, dtype=bool)
    used = (np.asarray(attributed, dtype=bool) & known).sum(axis=-1)
    counts = known.sum(axis=-1)
    weights = np.where(counts > 0, np.asarray(times, dtype=np.float64), 0.0)
    if not weights.sum():
        return Undefined(Reason.NO_VERDICT)
    return float(weights @ (used / np.maximum(counts, 1)) / weights.sum())


def attributed_exposure(
    rankings: ArrayLike, attributed: ArrayLike, times: ArrayLike, n: int
) -> FloatArray:
    """Return ε^a (eq. 10, reconstructed): how often each document was read and used, shape (n,).

    ε^a_i ≤ ε_i of the same rankings; the sum is k·EAR where every verdict is known. A document
    without a verdict counts as not used.

    Args:
        rankings: Shape (A, k): positions.
        attributed: Shape (A, k).
        times: Shape (A,).
        n: How many documents the pool has.

    Raises:
        InputError: There is no answer.
    """
    return mean_of_rows(rankings, attributed, n, times)


def attributed_disparity(exposure: ArrayLike, k: int) -> float:
    """Return EAE-D/k = Σ (ε^a_i)² / k (eq. 11, reconstructed; on one scale with EE-D/k).

    In [0, 1], and never above EE-D/k of the same rankings: where little is used it is low, and
    looks fair. See :func:`attribution_share`.

    Args:
        exposure: ε^a.
        k: How many documents are read, at most n.
    """
    values = np.asarray(exposure, dtype=np.float64)
    return float(values @ values) / k


def attribution_share(exposure: ArrayLike) -> Score:
    """Return EAE-D/(k·EAR) = Σ (ε^a_i)² / Σ ε^a_i, in (0, 1] (reconstructed).

    The chance that what was used in one sample is used in one that is drawn again, itself included:
    1 where the same documents are used always, low where use is spread. With k·EAR taken as the sum
    of ε^a, which it is where every verdict is known, it stays in (0, 1].

    Returns:
        Undefined for EAR = 0.
    """
    values = np.asarray(exposure, dtype=np.float64)
    total = float(values.sum())
    return float(values @ values) / total if total > 0 else Undefined(Reason.NO_ATTRIBUTION)


@dataclass(frozen=True, slots=True)
class GroupExposure:
    """The exposure of each group of an attribute, from a policy on one query, shapes (G + 1,).

    The last place of each array is the unknown.

    Attributes:
        pool: The sum of memberships over the pool.
        useful: The same over useful documents.
        exposure: Σ_i ε_i·membership, in documents; sums to k.
        target: Σ_i ε*_i·membership: the exposure of groups if useful documents come first.
        useful_exposure: Exposure given to useful documents: the groups' share in what helps.
        answered: Exposure over the samples that were answered; zeros without answers.
        attributed: Σ_i ε^a_i·membership; sums to k·EAR.
    """

    pool: FloatArray
    useful: FloatArray
    exposure: FloatArray
    target: FloatArray
    useful_exposure: FloatArray
    answered: FloatArray
    attributed: FloatArray

    @property
    def disparity(self) -> float:
        """EE-D = Σ_g ε_g² over the known groups, in squared documents, in [0, k²].

        The low end is even between groups, whatever their sizes.
        """
        return float((self.exposure[:-1] ** 2).sum())

    @property
    def relevance(self) -> float:
        """EE-R = Σ_g ε_g·ε*_g over the known groups, in squared documents; high is good."""
        return float(self.exposure[:-1] @ self.target[:-1])

    @property
    def loss(self) -> float:
        """EE-L = Σ_g (ε_g − ε*_g)² over the known groups; 0 is fair: groups get their target."""
        return float(((self.exposure - self.target)[:-1] ** 2).sum())

    @property
    def attributed_disparity(self) -> float:
        """EAE-D = Σ_g (ε^a_g)² over the known groups, at most EE-D of the answered samples."""
        return float((self.attributed[:-1] ** 2).sum())

    def rates(self) -> list[Score]:
        """Return by group, the unknown last, the share of its exposure that was used, in [0, 1].

        The attribution rate of a group; a document without a verdict counts as not used. Undefined
        for a group that no answered sample exposed.
        """
        return [
            min(1.0, float(used / shown)) if shown > 0 else Undefined(Reason.EMPTY_GROUP)
            for used, shown in zip(self.attributed, self.answered, strict=True)
        ]


def memberships_of(
    attribute: Attribute, documents: Sequence[Mapping[str, Mapping[str, float]]]
) -> FloatArray:
    """Return the share of each group in each document, the unknown last, shape (n, G + 1).

    Each row sums to 1.

    Args:
        attribute: One of the collection's schema.
        documents: The groups of each document by attribute.
    """
    rows = np.zeros((len(documents), len(attribute.groups) + 1))
    known = len(attribute.groups)
    for row, groups in zip(rows, documents, strict=True):
        shares = attribute.membership(dict(groups.get(attribute.name, {})))
        row[:known] = shares[:known]
        row[known] = max(0.0, 1.0 - row[:known].sum())
    return rows


def group_exposure(
    memberships: FloatArray,
    exposure: FloatArray,
    useful: ArrayLike,
    k: int,
    answered: FloatArray | None = None,
    attributed: FloatArray | None = None,
) -> GroupExposure:
    """Sum the exposure of documents over groups.

    Args:
        memberships: Shape (n, G + 1), the unknown last.
        exposure: ε, shape (n,).
        useful: Shape (n,).
        k: How many documents are read.
        answered: ε over the samples that were answered, shape (n,).
        attributed: ε^a, shape (n,).
    """
    labels = np.asarray(useful, dtype=bool)
    m, n = int(labels.sum()), labels.size
    wanted_useful, wanted_other = target_exposure(n, m, Discount("top_k", k), k)
    nothing = np.zeros(n)
    return GroupExposure(
        pool=memberships.sum(axis=0),
        useful=labels @ memberships,
        exposure=exposure @ memberships,
        target=np.where(labels, wanted_useful, wanted_other) @ memberships,
        useful_exposure=(exposure * labels) @ memberships,
        answered=(nothing if answered is None else answered) @ memberships,
        attributed=(nothing if attributed is None else attributed) @ memberships,
    )


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
        self._best: dict[tuple[str, ...], float] = {}
        for record in records:
            values = [answer.utility or 0.0 for answer in record.answers if is_answer(answer)]
            if not values:
                continue
            query, best = (record.collection, record.generator, record.query), max(values)
            # A deterministic ranking counts among all only; the oracle has no retriever.
            scopes = [("all", ""), ("retriever", record.retriever)]
            for scope in scopes[:1] if record.policy == "deterministic" else scopes:
                key = (*query, *scope)
                self._best[key] = max(best, self._best.get(key, best))

    def greatest(self, record: PolicyRecord, scope: Scope = "all") -> Score:
        """Return u_max for the query and generator of a record.

        Args:
            record: It may be of any policy.
            scope: The answers that count. The oracle has no retriever: with ``retriever`` its u_max
                is the greatest of its own answers.

        Returns:
            Undefined without such an answer.
        """
        query = (record.collection, record.generator, record.query)
        retrievers = ("",) if scope == "all" else ("", record.retriever)
        keys = [(*query, scope, retriever) for retriever in retrievers]
        known = [self._best[key] for key in keys if key in self._best]
        return max(known) if known else Undefined(Reason.NO_ANSWER)
