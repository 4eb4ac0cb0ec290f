"""Expected exposure over several rankings of a query: by item, and by group.

By item (no attribute): see :mod:`fairqr.evaluation.expected_exposure`. One ranking is a sample of
one. By group (``attribute=…``): task 2 of TREC Fair 2022. ε_g is summed within a ranking over the
relevant documents and averaged over the rankings; the target is ε* × Σ_{r≤k} d(r); nothing is
normalised, and each measure is the sum over the groups.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.expected_exposure import ExpectedExposure, group_expected_exposure
from fairqr.evaluation.measures.base import Convention, Measure, Need, QueryMeasure
from fairqr.evaluation.measures.groups import GroupMeasure, TakesConvention
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.fairness.exposure import LOG2, TREC, Discount, FloatArray

FAIR_RAG = "fair-rag"
BY_ITEM = ("normalization", "items", "estimator")
BY_GROUP = ("documents", "unknown", "convention")
ESTIMATORS = ("plain", "unbiased")


@dataclass(frozen=True, kw_only=True)
class _ExpectedExposure(TakesConvention, GroupMeasure, QueryMeasure):
    """What EE-D, EE-R and EE-L have in common.

    Attributes:
        attribute: Measures by group if one is named, by item otherwise.
        discount: The weight of each rank, 0 beyond k. Defaults to ``log2``, and with
            ``normalization=fair-rag`` to the machine user of RAG, ``top_k(k)``.
        normalization: By item. ``bounds``, the default: (value − least)/(greatest − least) of what
            rankings of the query's items can reach. ``none``. ``fair-rag``: the numbers of
            "Towards Fair RAG" (Kim & Diaz 2024): both lower bounds are 0, and EE-R sums over the
            useful items alone, so that it stays below 1 where fewer than k are useful.
        items: By item. ``pool``, the default: the documents that are judged for the query, or
            ranked for it by this run. ``corpus``: all.
        documents: By group. ``relevant``, the default, or ``all``, whose exposure counts.
        convention: By group. ``trec2022`` takes that track's discount, 1/log2(max(r,2)), the
            unknown as a group, and its target.
    """

    choices: ClassVar = {
        **GroupMeasure.choices,
        "normalization": ("bounds", "none", FAIR_RAG),
        "items": ("pool", "corpus"),
        "documents": ("relevant", "all"),
        "convention": ("trec2022",),
    }
    set_by_convention = ("discount",)

    discount: Discount | None = None
    normalization: str | None = None
    items: str | None = None
    documents: str | None = None
    convention: Convention | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in BY_ITEM if self.attribute else BY_GROUP:
            if getattr(self, name, None) is not None:
                which = "item" if self.attribute else "group"
                raise InputError(
                    f"{self.name} takes {name} by {which} only; "
                    f"{'leave it or the attribute out' if self.attribute else 'add an attribute'}."
                )
        if self.attribute and self.k is None:
            raise InputError(
                f"{self.name} by group needs a cut-off, to whose ranks the target is scaled; "
                f"write {self.name}@20(attribute={self.attribute})."
            )
        if self.normalization == FAIR_RAG:
            self._check_fair_rag()

    def _check_fair_rag(self) -> None:
        if self.k is None:
            raise InputError(
                f"{self.name}(normalization=fair-rag) needs the number of documents that the "
                f"machine user reads; write {self.name}@5(normalization=fair-rag)."
            )
        if self.discount not in (None, Discount("top_k", self.k)):
            raise InputError(
                f"{self.name}@{self.k}(normalization=fair-rag) has the discount top_k({self.k}); "
                "leave the discount out."
            )

    @property
    def needs(self) -> frozenset[Need]:
        """By item judgements, and a corpus for ``items=corpus``; by group groups and a target."""
        if not self.attribute:
            of_corpus = {Need.GROUPS} if self.items == "corpus" else set()
            unbiased = getattr(self, "estimator", None) == "unbiased"
            return frozenset({Need.QRELS} | of_corpus | ({Need.SAMPLES} if unbiased else set()))
        needs = {Need.GROUPS, Need.TARGET}
        return frozenset(needs if self.documents == "all" else needs | {Need.QRELS})

    @property
    def takes_attribute(self) -> bool:
        """No: without an attribute it measures items."""
        return False

    @property
    def weighting(self) -> Discount:
        """The discount in use."""
        if self.discount is not None:
            return self.discount
        if self.convention:
            return TREC
        return Discount("top_k", self.k) if self.normalization == FAIR_RAG else LOG2

    def check(self, groups: Groups | None) -> None:
        """Raise if groups are missing, or lack the attribute."""
        if self.attribute:
            super().check(groups)
        else:
            Measure.check(self, groups)

    def of_query(self, batch: Batch, query: int) -> Score:
        """Return the value of one query, or the reason why it has none."""
        return self._by_group(batch, query) if self.attribute else self._by_item(batch, query)

    def _by_item(self, batch: Batch, query: int) -> Score:
        found = batch.expected_exposure(query, self.weighting, self.k, self.items or "pool")
        normalization = self.normalization or "bounds"
        value = self.of_items(found, fair_rag=normalization == FAIR_RAG)
        if normalization == "none":
            return Undefined(Reason.ONE_RANKING) if value is None else value
        return found.normalised(
            value,
            self.bounds(found),
            by_use=self.uses_labels,
            from_zero=normalization == FAIR_RAG,
        )

    def _by_group(self, batch: Batch, query: int) -> Score:
        dimension = self.dimension(batch.groups)
        targets, undefined = batch.targets(dimension, self.own_target)
        if query in undefined:
            return undefined[query]
        own = batch.of_query(query)
        rows = slice(own.start, own.stop)
        members = batch.memberships(dimension, self.k)[rows]
        if self.documents != "all":
            members = members * batch.relevance(self.k)[rows, :, None]
        wanted = targets[query] * self.weighting.weights(self.depth).sum()
        return self.of_groups(group_expected_exposure(members, self.weighting), wanted)

    uses_labels: ClassVar[bool] = True
    """Whether the value by item depends on which items are useful."""

    @abstractmethod
    def of_items(self, found: ExpectedExposure, *, fair_rag: bool) -> float | None:
        """Return the value by item, not normalised; None if it needs more than one ranking."""

    @abstractmethod
    def bounds(self, found: ExpectedExposure) -> tuple[float, float]:
        """Return what can be reached by item."""

    @abstractmethod
    def of_groups(self, system: FloatArray, target: FloatArray) -> float:
        """Return the value by group for exposures and targets of shape (G,)."""


@dataclass(frozen=True, kw_only=True)
class EED(_ExpectedExposure):
    """EE-D, the disparity Σ ε²: how unevenly expected exposure is spread.

    By item and normalised 0 where all items get the same (uniformly random order) and 1 for one
    fixed ranking; the low end is fair to the items, whatever their relevance. By group Σ_g ε_g², in
    squared units of the discount.

    Attributes:
        estimator: By item. ``plain``: of the rankings given, biased upwards where they are few.
            ``unbiased``: right on average over samples of N ≥ 2 independent rankings, but one value
            can be below 0.
    """

    name = "EE-D"
    higher_is_better = False
    best = "0 is even"
    range = "0 to 1 by item; by group from 0, in squared units of the discount"
    summary = "disparity of expected exposure, by item or by group"
    example = "EE-D@5(normalization=fair-rag)"
    uses_labels = False
    choices: ClassVar = {**_ExpectedExposure.choices, "estimator": ESTIMATORS}

    estimator: str | None = None

    def of_items(self, found: ExpectedExposure, *, fair_rag: bool) -> float | None:
        """Return EE-D."""
        unbiased = self.estimator == "unbiased"
        return found.unbiased_disparity if unbiased else found.disparity

    def bounds(self, found: ExpectedExposure) -> tuple[float, float]:
        """Return S²/n and Σ d²."""
        return found.bounds.disparity

    def of_groups(self, system: FloatArray, target: FloatArray) -> float:
        """Return Σ_g ε_g²."""
        return float(system @ system)


@dataclass(frozen=True, kw_only=True)
class EER(_ExpectedExposure):
    """EE-R, the relevance Σ ε·ε*: how well expected exposure goes where the target has it.

    By item and normalised 0 where the useful items always come last, and 1 where they always come
    first. By group Σ_g ε_g·ε*_g, in squared units of the discount.
    """

    name = "EE-R"
    best = "the high end is best"
    range = "0 to 1 by item; by group from 0, in squared units of the discount"
    summary = "agreement of expected exposure with the target, by item or by group"
    example = "EE-R@20"

    def of_items(self, found: ExpectedExposure, *, fair_rag: bool) -> float | None:
        """Return EE-R; over the useful items alone with ``fair-rag``."""
        return found.useful_relevance if fair_rag else found.relevance

    def bounds(self, found: ExpectedExposure) -> tuple[float, float]:
        """Return the EE-R of the worst and of the best order."""
        return found.bounds.relevance

    def of_groups(self, system: FloatArray, target: FloatArray) -> float:
        """Return Σ_g ε_g·ε*_g."""
        return float(system @ target)


@dataclass(frozen=True, kw_only=True)
class EEL(_ExpectedExposure):
    """EE-L, the loss Σ (ε − ε*)²: how far expected exposure is from the target; 0 is fair.

    By item and normalised 1 for the fixed ranking with the useful items last. By group
    Σ_g (ε_g − ε*_g)², in squared units of the discount.

    Attributes:
        estimator: By item; ``unbiased`` takes the unbiased EE-D, and can be below 0.
    """

    name = "EE-L"
    higher_is_better = False
    best = "0 is fair"
    range = "0 to 1 by item; by group from 0, in squared units of the discount"
    summary = "distance of expected exposure from the target, by item or by group"
    example = "EE-L@20(attribute=gender)"
    choices: ClassVar = {**_ExpectedExposure.choices, "estimator": ESTIMATORS}

    estimator: str | None = None

    def _check_fair_rag(self) -> None:
        raise InputError(
            "'Towards Fair RAG' normalises EE-D and EE-R only; "
            "choose the normalization bounds or none for EE-L."
        )

    def of_items(self, found: ExpectedExposure, *, fair_rag: bool) -> float | None:
        """Return EE-L."""
        return found.unbiased_loss if self.estimator == "unbiased" else found.loss

    def bounds(self, found: ExpectedExposure) -> tuple[float, float]:
        """Return 0 and the loss of the worst order."""
        return found.bounds.loss

    def of_groups(self, system: FloatArray, target: FloatArray) -> float:
        """Return Σ_g (ε_g − ε*_g)²."""
        return float((system - target) @ (system - target))
