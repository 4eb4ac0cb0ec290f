"""The kinds of measures: what each is called, what it takes, and how it is computed.

Measures of relevance are those of trec_eval. A query without a relevant document has no value
(trec_eval says 0, and counts it in the mean), a query that the run lacks counts as 0 (as with
``trec_eval -c``). P@k alone has a value, 0, without a relevant document: it divides by nothing that
could be 0.

Expected exposure is measured by item (see :mod:`fairqr.evaluation.expected_exposure`; one ranking
is a sample of one) or, with ``attribute=…``, by group, as in task 2 of TREC Fair 2022: ε_g is
summed within a ranking over the relevant documents and averaged over the rankings; the target is
ε* × Σ_{r≤k} d(r); nothing is normalised, and each measure is the sum over the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from fairqr.base.errors import UnknownAttributeError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.estimates import divided
from fairqr.evaluation.expected_exposure import What
from fairqr.evaluation.scores import Reason, Score
from fairqr.retrieval.fairness import divergence, exposure
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import LOG2, TREC, Discount, FloatArray, normalise

QRELS = "qrels"
GROUPS = "groups"
TARGET = "target"
"""What a measure can need besides a run."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "unknown": ("group", "exclude"),
    "gains": ("graded", "binary"),
    "unit": ("nats", "bits"),
    "normalization": ("bounds", "none"),
    "convention": ("trec2022",),
    "estimator": ("plain", "unbiased"),
}
"""The values of parameters that are words."""

TREC_2022 = {"discount": TREC, "gains": "binary", "unit": "nats", "unknown": "group"}
"""What the convention of a track sets, beside its target, of what a measure takes."""


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of measure.

    Attributes:
        name: The first word of its text.
        example: Its usual text.
        needs: What it needs besides a run.
        best: The best or fair value in words.
        range: The values it can have, and their unit.
        takes: Its parameters with their defaults.
        compute: Returns the value of each ranking, shape (R,): infinite for a divergence that is,
            NaN if a group is empty. With ``by_query``, returns the score of one query.
        summary: A description in one line.
        higher_is_better: None if neither end is better.
        aliases: Other names that are read.
        needs_cutoff: Whether it needs a cut-off.
        needs_relevant: Whether it has no value for queries without relevant documents.
        by_query: Whether it is over all rankings of a query together.
    """

    name: str
    example: str
    needs: frozenset[str]
    takes: Mapping[str, Any]
    compute: Callable[..., Any]
    summary: str
    best: str = "1 is best"
    range: str = "0 to 1"
    higher_is_better: bool | None = True
    aliases: tuple[str, ...] = ()
    needs_cutoff: bool = False
    needs_relevant: bool = False
    by_query: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """What a measure sees of the queries of a batch.

    Attributes:
        batch: The queries.
        k: The cut-off; optional.
        values: The value of each parameter.
    """

    batch: Batch
    k: int | None
    values: Mapping[str, Any]

    def __getitem__(self, parameter: str) -> Any:
        return self.values[parameter]

    @cached_property
    def relevant(self) -> FloatArray:
        """1 where the document at that rank is relevant, else 0, shape (R, n)."""
        return (self.batch.grades(self.k) > 0).astype(np.float64)

    @property
    def ranks(self) -> FloatArray:
        """The ranks of these documents, from 1."""
        return np.arange(1, self.relevant.shape[1] + 1)

    @cached_property
    def dimension(self) -> Dimension:
        """The groups."""
        return self.batch.groups.dimension(self["attribute"], self["unknown"])

    @property
    def members(self) -> FloatArray:
        """The memberships of the document at each rank, shape (R, n, G)."""
        return self.batch.memberships(self.dimension, self.k)

    @property
    def exposures(self) -> FloatArray:
        """The share of each group in the exposure, shape (R, G)."""
        return exposure.exposure(self.members, self["discount"])

    @cached_property
    def targets(self) -> tuple[FloatArray, dict[int, Reason]]:
        """ε* of each query, shape (Q, G), and by position why a query has none."""
        return self.batch.targets(self.dimension, self.values.get("convention"))

    @property
    def wanted(self) -> FloatArray:
        """ε* of each ranking, shape (R, G)."""
        return self.targets[0][self.batch.owner]


BY_GROUP = " by group"
KINDS: dict[str, Kind] = {}
"""All kinds by name, in the order in which users see them; some measure items, or else groups."""

Compute = Callable[..., Any]


def kind(
    example: str, needs: str, takes: Mapping[str, Any] | None = None, **options: Any
) -> Callable[[Compute], Compute]:
    """Make a kind of a function; the first line of its docstring is the summary."""

    def add(compute: Compute) -> Compute:
        name = example.partition("@")[0].partition("(")[0]
        parameters: dict[str, Any] = {}
        if GROUPS in needs:
            parameters = {"attribute": None, "unknown": None}
        parameters |= dict(takes or {})
        summary = (compute.__doc__ or "").partition("\n")[0].rstrip(".")
        key = name + BY_GROUP if name in KINDS else name
        needed = frozenset(needs.split())
        KINDS[key] = Kind(name, example, needed, parameters, compute, summary, **options)
        return compute

    return add


def find(name: str, given: Mapping[str, Any]) -> Kind:
    """Return the kind of a measure with these parameters; an attribute makes it one of groups."""
    by_group = KINDS.get(name + BY_GROUP) if given.get("attribute") else None
    return by_group or KINDS.get(name, PRODUCT)


def position(dimension: Dimension, group: str) -> int:
    """Return the position of a group.

    Raises:
        UnknownAttributeError: The attribute lacks the group.
    """
    if group not in dimension.groups:
        raise UnknownAttributeError(
            f"{dimension.name} has no group '{group}'; it has {', '.join(dimension.groups)}."
        )
    return dimension.groups.index(group)


def ndcg(
    gains: ArrayLike, ideal: ArrayLike, discount: Discount = LOG2, k: int | None = None
) -> FloatArray:
    """Return nDCG = DCG of each ranking / DCG of the best one (Järvelin & Kekäläinen 2002).

    Args:
        gains: Shape (…, n): the gain of the document at each rank.
        ideal: Shape (…, m): the gains of all judged documents, highest first.
        discount: ``log2`` is usual; TREC Fair takes ``trec``.
        k: The cut-off.

    Returns:
        Shape (…), in [0, 1]; 0 where no document is relevant.
    """
    ranked = np.asarray(gains, dtype=np.float64)[..., :k]
    best = np.asarray(ideal, dtype=np.float64)[..., :k]
    n = ranked.shape[-1]
    m = best.shape[-1]
    weights = discount.weights(max(n, m))
    return divided(ranked @ weights[:n], best @ weights[:m], otherwise=0.0)


def precision(relevant: ArrayLike, k: int) -> FloatArray:
    """Return P@k of rankings, shape (…, n): 1 where a document is relevant, else 0."""
    return np.asarray(np.asarray(relevant, dtype=np.float64)[..., :k].sum(axis=-1) / k)


@kind(
    "nDCG@20",
    QRELS,
    takes={"discount": LOG2, "gains": "graded", "convention": None},
    needs_relevant=True,
)
def _ndcg(view: View) -> FloatArray:
    """Discounted cumulative gain, divided by the best possible.

    The gains are ``graded``, a document's gain is its grade, as in trec_eval; or ``binary``, as in
    FAIR-QR.
    """
    gains = view.batch.grades(view.k)
    ideal = view.batch.ideal_grades(view.k)[view.batch.owner]
    if view["gains"] == "binary":
        return ndcg(gains > 0, ideal > 0, view["discount"], view.k)
    return ndcg(gains, ideal, view["discount"], view.k)


@kind("P@10", QRELS, aliases=("Precision",), needs_cutoff=True)
def _precision(view: View) -> FloatArray:
    """How many of the first k documents are relevant, divided by k."""
    return precision(view.relevant, cast("int", view.k))


def _of_relevant(view: View, amounts: FloatArray) -> FloatArray:
    """Return the amount of each ranking, divided by how many documents are relevant."""
    totals: Any = view.batch.relevant_counts[view.batch.owner]
    return divided(amounts, totals, otherwise=0.0)


@kind("R@100", QRELS, aliases=("Recall",), needs_cutoff=True, needs_relevant=True)
def _recall(view: View) -> FloatArray:
    """How many of the relevant documents stand in the first k ranks."""
    return _of_relevant(view, view.relevant.sum(axis=1))


@kind("AP", QRELS, aliases=("MAP",), needs_relevant=True)
def _average_precision(view: View) -> FloatArray:
    """Average precision; its mean over the queries is MAP."""
    precisions = view.relevant * view.relevant.cumsum(axis=1) / view.ranks
    return _of_relevant(view, precisions.sum(axis=1))


@kind("RR", QRELS, aliases=("MRR",), needs_relevant=True)
def _reciprocal_rank(view: View) -> FloatArray:
    """1/rank of the first relevant document; its mean over the queries is MRR."""
    return np.asarray((view.relevant / view.ranks).max(axis=1, initial=0.0))


@kind(
    "AWRF@20(attribute=gender)",
    f"{GROUPS} {TARGET}",
    best="1 is fair",
    range="0.307 to 1; 0 to 1 with unit=bits",
    takes={"discount": LOG2, "unit": "nats", "convention": None},
)
def _awrf(view: View) -> FloatArray:
    """1 − JS(exposure, target): attention-weighted rank fairness.

    Sapiezynski et al. 2019; with the Jensen–Shannon divergence in TREC Fair 2022.
    """
    return np.asarray(1 - divergence.jensen_shannon(view.wanted, view.exposures, unit=view["unit"]))


@kind(
    "KL@20(attribute=gender)",
    f"{GROUPS} {TARGET}",
    best="0 is fair",
    range="0 to about ln(groups/smoothing), nats",
    takes={"discount": LOG2, "smoothing": divergence.DEFAULT_SMOOTHING},
    higher_is_better=False,
)
def _kl(view: View) -> FloatArray:
    """Kullback–Leibler divergence of target and exposure, smoothed (FAIR-QR, Chen & Fang 2025).

    Without smoothing it can be infinite; the query then has no value.
    """
    return divergence.kullback_leibler(view.wanted, view.exposures, smoothing=view["smoothing"])


@kind(
    "NDKL(attribute=gender)",
    f"{GROUPS} {TARGET}",
    best="0 is fair",
    range="0 upwards, nats",
    takes={"smoothing": 0.0},
    higher_is_better=False,
)
def _ndkl(view: View) -> FloatArray:
    """Discounted mean over the prefixes of KL(shares of the groups‖target) (Geyik et al. 2019).

    (1/Z) Σ_i KL(D_i‖ε*)/log2(i+1), definition 3.2. Prefixes in which no group is known yet are left
    out of both sums.
    """
    counts = np.cumsum(view.members, axis=1)
    wanted = view.wanted[:, None]
    depth = counts.shape[1]
    is_prefix = np.arange(depth) < view.batch.lengths[:, None]  # rankings are padded
    known = is_prefix & (counts.sum(axis=-1) > 0)
    divergences = divergence.kullback_leibler(
        wanted, normalise(counts), smoothing=view["smoothing"], direction="exposure_target"
    )
    weights = LOG2.weights(depth) * known
    summed = (weights * np.where(known, divergences, 0.0)).sum(axis=-1)
    return divided(summed, weights.sum(axis=-1), otherwise=0.0)


@kind(
    "Exposure@20(attribute=gender,group=female)",
    GROUPS,
    best="the group's target is fair",
    range="0 to 1, a share",
    takes={"group": None, "discount": LOG2},
    higher_is_better=None,
)
def _exposure(view: View) -> FloatArray:
    """The share of exposure that a group gets."""
    return view.exposures[:, position(view.dimension, view["group"])]


def _expected(what: What, name: str, best: str, higher_is_better: bool, summary: str) -> None:
    """Add a measure of expected exposure, by item and by group."""

    def of_items(view: View, query: int) -> Score:
        expected = view.batch.expected_exposure(query, view["discount"], view.k)
        unbiased = view.values.get("estimator") == "unbiased"
        return expected.score(what, view["normalization"], unbiased=unbiased)

    def of_groups(view: View, query: int) -> Score:
        targets, undefined = view.targets
        if query in undefined:
            return undefined[query]
        rows = view.batch.of_query(query)
        members = view.members[rows] * view.relevant[rows, :, None]
        system = exposure.group_exposure(members, view["discount"]).mean(axis=0)
        target = targets[query] * view["discount"].weights(cast("int", view.k)).sum()
        if what == "loss":
            return float((system - target) @ (system - target))
        return float(system @ (system if what == "disparity" else target))

    of_items.__doc__ = f"{summary}, by item."
    of_groups.__doc__ = f"{summary}, by group."
    common: dict[str, Any] = {
        "best": best,
        "higher_is_better": higher_is_better,
        "by_query": True,
    }
    takes: dict[str, Any] = {"discount": LOG2, "normalization": "bounds"}
    if what != "relevance":
        takes["estimator"] = "plain"
    kind(f"{name}@20", QRELS, takes=takes, **common)(of_items)
    kind(
        f"{name}@20(attribute=gender)",
        f"{QRELS} {GROUPS} {TARGET}",
        takes={"discount": LOG2, "convention": None},
        range="from 0, in squared units of the discount",
        needs_cutoff=True,
        **common,
    )(of_groups)


_SPREAD = "Disparity of expected exposure, Σ ε²: how unevenly it is spread"
_AGREES = "Agreement of expected exposure with the target, Σ ε·ε*"
_DISTANCE = "Distance of expected exposure from the target, Σ (ε − ε*)²"
_expected("disparity", "EE-D", "0 is even", False, _SPREAD)
_expected("relevance", "EE-R", "the high end is best", True, _AGREES)
_expected("loss", "EE-L", "0 is fair", False, _DISTANCE)

PRODUCT = Kind(
    "×",
    "nDCG@20×AWRF@20(attribute=gender)",
    needs=frozenset(),
    best="the high end is best",
    range="0 to 1 where its factors are",
    takes={},
    compute=lambda: None,
    summary="The product of measures, query by query, such as nDCG@20×AWRF@20",
)
