"""All documents that a search has found so far, and how likely they are relevant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from fairqr.base.errors import InputError
from fairqr.graph.search.context import Context
from fairqr.graph.search.records import hits_of
from fairqr.graph.search.state import EvidenceKind, LookupRecord, RankingRecord, SearchState
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.claims import Claims
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.fairness.relevance import (
    NAMED_WEIGHT,
    POOL,
    UNLIKELY,
    combined,
    probability_by_rank,
)
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.sources.schema import UNKNOWN


class FoundDocuments:
    """All documents that a search has found so far.

    Args:
        engine: The engine that is searched.
        context: What the run is asked to do.
        state: The state of the run.
    """

    def __init__(self, engine: SearchEngine, context: Context, state: SearchState) -> None:
        self.engine = engine
        self.context = context
        self.state = state

    @cached_property
    def dimensions(self) -> list[Dimension]:
        """The attributes, or their product, that exposure is measured over.

        Open attributes have the groups of what the original query found.

        Raises:
            InputError: The run was resumed with another context.
        """
        attributes = self.context.attributes
        intersect = self.context.intersect
        dimensions = dimensions_of(self.engine.schema, attributes, intersect=intersect)
        names = [dimension.name for dimension in dimensions]
        first_names = list(self.state.get("target") or names)
        if names != first_names:
            raise InputError(
                f"The run was started with the attributes {', '.join(first_names)}; resume it "
                "with the same context."
            )

        if not any(dimension.is_open for dimension in dimensions):
            return dimensions
        original = self.state["rankings"][0]["ids"]
        return [self.table.with_found_groups(dimension, original) for dimension in dimensions]

    @cached_property
    def table(self) -> DocumentTable:
        """The groups of all documents that were retrieved."""
        table = DocumentTable()
        for record in self.state["rankings"]:
            hits = hits_of(record)
            table.add(hits.ids, hits.memberships)
        return table

    @property
    def claims(self) -> Claims | None:
        """Which documents that the original query found say the same; None if not compared."""
        claims = self.state["rankings"][0]["claims"]
        return None if claims is None else np.array(claims, dtype=np.intp)

    @cached_property
    def estimates_relevance(self) -> bool:
        """Whether the engine estimates how likely documents are relevant."""
        return self.state["rankings"][0]["relevance"] is not None

    @cached_property
    def answerable(self) -> float:
        """The probability that there are relevant documents at all, by all queries.

        They are combined as the evidence of documents is. Queries of names say nothing about it.
        """
        by_kind: dict[EvidenceKind, float] = {}
        for record in self.state["rankings"]:
            query = record["query"]
            if not query["names"]:
                highest = by_kind.get(query["kind"], 0.0)
                by_kind[query["kind"]] = max(highest, record["answerable"])
        if len(by_kind) == 1:
            return by_kind["query"]
        evidence = [np.array([probability]) for probability in by_kind.values()]
        weights = [self._weight_of(kind) for kind in by_kind]
        return float(combined(evidence, weights)[0])

    @cached_property
    def evidence(self) -> dict[EvidenceKind, dict[str, float]]:
        """The probability that documents are relevant, by the kind of query and then by id.

        It takes for granted that there are relevant documents. If the engine does not estimate
        relevance, the ranks of each ranking do. Of several queries of a kind, as of groups, the
        highest probability counts.
        """
        evidence: dict[EvidenceKind, dict[str, float]] = {"query": {}}
        for record in self.state["rankings"]:
            query = record["query"]
            by_id = evidence.setdefault(query["kind"], {})
            probabilities = self._probabilities(record)
            repeated = probabilities.keys() & by_id.keys()
            highest = {id_: max(probabilities[id_], by_id[id_]) for id_ in repeated}
            by_id |= probabilities | highest
        for lookup in self.state.get("lookups", []):
            evidence.setdefault(lookup["kind"], {}).update(lookup["relevance"])
        return evidence

    def _probabilities(self, record: RankingRecord) -> dict[str, float]:
        """Return how likely the documents of a ranking are relevant, by its query alone."""
        if record["relevance"] is not None:
            return dict(zip(record["ids"], record["relevance"], strict=True))
        probabilities = probability_by_rank(len(record["ids"]))
        return dict(zip(record["ids"], probabilities.tolist(), strict=True))

    @cached_property
    def relevance(self) -> dict[str, float] | None:
        """The probability that each document is relevant, by id; None if it is not estimated."""
        if not self.estimates_relevance:
            return None
        return {id_: self.answerable * value for id_, value in self.relative_relevance.items()}

    @cached_property
    def relative_relevance(self) -> dict[str, float]:
        """How likely documents are relevant by all evidence, given that anything is, by id.

        All lists are made by it: a factor that all documents share would change no list.

        The evidence of the queries is combined in log-odds; see
        :func:`fairqr.retrieval.fairness.relevance.combined`. A document that a query did not find
        counts as unlikely. But if only some groups have queries, that would count against documents
        of the other groups: then these queries only count for documents that they found.
        """
        ids = self.table.ids
        columns = []
        weights = []
        for kind, by_id in self.evidence.items():
            absent = UNLIKELY
            if kind in ("group", "named") and not self._has_queries_of_all_groups:
                absent = np.nan  # counts neither for nor against the document
            columns.append(np.array([by_id.get(id_, absent) for id_ in ids]))
            weights.append(self._weight_of(kind))
        return dict(zip(ids, combined(columns, weights).tolist(), strict=True))

    def _weight_of(self, kind: EvidenceKind) -> float:
        """Return how much a kind of evidence counts."""
        weights = self.state["weights"]
        if kind == "query":
            return 1.0
        if kind == "named":
            return NAMED_WEIGHT * weights["group"]
        return weights[kind]

    @cached_property
    def _has_queries_of_all_groups(self) -> bool:
        """Whether the model's words of each group were searched with."""
        searched = {
            (record["query"]["attribute"], record["query"]["group"])
            for record in self.state["rankings"]
        }
        for dimension in self.dimensions:
            for group in dimension.groups:
                if group != UNKNOWN and (dimension.name, group) not in searched:
                    return False
        return True

    @cached_property
    def has_words_evidence(self) -> bool:
        """Whether the model's words count as evidence of relevance."""
        return any(self._weight_of(kind) > 0 for kind in self.evidence if kind != "query")

    def mean_relative_relevance(self, ids: Sequence[str]) -> float:
        """Return the mean probability of relevance over a list, weighted by the discount.

        If the engine does not estimate it, ranks stand for it.
        """
        probabilities = [self.relative_relevance[id_] for id_ in ids]
        return discounted_mean(probabilities, self.context.discount)

    def expected_relevance(self, ids: Sequence[str], earlier: Sequence[str] = ()) -> float | None:
        """Return the relevance of a page as a share of the best page's, in [0, 1].

        The best page has the most relevant documents found. Only the original query counts: its
        estimates, or else the ranks that it gave. A document that it did not find counts as
        unlikely, whatever a model's words say for it. None for an empty page.

        Args:
            ids: The documents of the page.
            earlier: The documents of earlier pages, which it could not have.
        """
        if not ids:
            return None
        by_query = self.evidence["query"]
        earlier_ids = set(earlier)
        remaining = [id_ for id_ in self.table.ids if id_ not in earlier_ids]
        probabilities = [by_query.get(id_, UNLIKELY) for id_ in remaining]
        best_page = np.sort(probabilities)[::-1][: self.context.k]
        page = np.array([by_query.get(id_, UNLIKELY) for id_ in ids])

        weights = self.context.discount.weights(max(len(best_page), len(page)))
        highest = float(weights[: len(best_page)] @ best_page)
        if not highest:
            return 1.0
        return min(1.0, float(weights[: len(page)] @ page) / highest)

    @cached_property
    def rescored(self) -> dict[str, float]:
        """The scores, by the original query, of documents that refined queries found."""
        scores: dict[str, float] = {}
        for lookup in self._lookups_of("query"):
            scores |= lookup["scores"]
        return scores

    @property
    def looked_up(self) -> set[str]:
        """What the original query was asked about, since other queries found it."""
        ids: set[str] = set()
        for lookup in self._lookups_of("query"):
            ids.update(lookup["scores"], lookup["relevance"])
        return ids

    def _lookups_of(self, kind: EvidenceKind) -> list[LookupRecord]:
        """Return what queries of a kind said about documents that other queries found."""
        return [lookup for lookup in self.state.get("lookups", []) if lookup["kind"] == kind]

    def not_asked(self, kind: EvidenceKind) -> list[str]:
        """Return the documents that no query of this kind has found or was asked about."""
        answered: set[str] = set()
        for record in self.state["rankings"]:
            if record["query"]["kind"] == kind:
                answered.update(record["ids"])
        for lookup in self._lookups_of(kind):
            answered.update(lookup["scores"], lookup["relevance"])
        return [id_ for id_ in self.table.ids if id_ not in answered]

    def found_far_down(self, kind: EvidenceKind, iteration: int) -> list[str]:
        """Return what a query found far down, and another one of the round near the top.

        An engine without stored vectors only compares the first documents of a ranking with the
        query, so it may estimate these better when asked about them directly.
        """
        far_down: set[str] = set()
        near_top: dict[str, None] = {}
        for record in self.state["rankings"]:
            if record["query"]["kind"] == kind:
                far_down.update(record["ids"][POOL:])
            elif record["iteration"] == iteration:
                near_top |= dict.fromkeys(record["ids"][:POOL])
        for lookup in self._lookups_of(kind):
            far_down.difference_update(lookup["relevance"])
        return [id_ for id_ in near_top if id_ in far_down]


def discounted_mean(values: Sequence[float] | FloatArray, discount: Discount) -> float:
    """Return the mean of the values of all ranks, weighted by the discount; 0 for an empty list."""
    if not len(values):
        return 0.0
    weights = discount.weights(len(values))
    return float(weights @ np.array(values)) / float(weights.sum())
