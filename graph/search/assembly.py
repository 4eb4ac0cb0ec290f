"""Assembles the result of a run: a page of its list beside the same page of the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fairqr.agents.models.replies import Usage
from fairqr.agents.refiners.refiner import Refiner
from fairqr.graph.running import usage_report
from fairqr.graph.search.explanation import explain
from fairqr.graph.search.final_ranking import baseline_page
from fairqr.graph.search.page_figures import gaps_of, judge, tradeoffs_of
from fairqr.graph.search.pages import Page, page_of, pages_of
from fairqr.graph.search.pool import Pool, discounted_mean
from fairqr.graph.search.result import (
    Objective,
    RankedDocument,
    RefinedGroup,
    RefinedTopic,
    SearchResult,
    Shares,
    WithoutModel,
)
from fairqr.retrieval.engines.engine import SearchEngine, titles_of
from fairqr.retrieval.fairness.claims import say_shared

LED_AWAY = 0.5
"""We warn of a refined list with a smaller share of the relevance of the engine's own."""


async def assemble(
    pool: Pool, first: Page, refiner: Refiner | None, notes: Sequence[str] = ()
) -> SearchResult:
    """Report the page that the context asks for beside the same page of the baseline.

    Args:
        pool: What the run has found.
        first: The first page of the final list.
        refiner: What may have refined the query.
        notes: More sentences about the refiner, for the explanation.
    """
    context = pool.context
    page = await page_of(pool, first)
    baseline = await page_of(pool, baseline_page(pool))
    shown = [*page.ranking.ids, *baseline.ranking.ids]
    titles = await _read_titles(pool.engine, shown)
    judged = await pool.compute(partial(judge, pool, page, baseline))
    front = await tradeoffs_of(pool, page, shown)

    reporter = _PageReporter(pool, titles.by_id, judged.attainable)
    page_report = reporter.report(page, judged.final)
    baseline_report = reporter.report(baseline, judged.baseline)
    relevance = page_report["expected_relevance"]
    warnings = [
        *pool.state["warnings"],
        *page.warnings,
        *titles.warnings,
        *_warn_of_missed_target(pool, page),
        *_warn_of_lost_relevance(page, baseline_report["expected_relevance"], relevance),
    ]
    if judged.final:
        warnings += judged.final.broken

    result = SearchResult(
        query=pool.state["query"],
        corpus=pool.engine.name,
        method=context.method,
        retriever=pool.engine.retriever,
        **_report_models(pool, page, refiner),
        attributes=reporter.attributes,
        target=pool.state["target"],
        target_origin=_target_origin(pool),
        iterations=pool.rounds,
        best_iteration=page.iteration,
        stop_reason=pool.state["stop_reason"],
        page=context.page,
        pages=pages_of(first, context.k),
        **page_report,
        front=front,
        unknown=page.measured.unknown,
        attainable=judged.attainable,
        baseline=baseline_report,
        warnings=warnings,
    )
    says_notes = context.words_are_evidence and result.ranking
    explanation = explain(result, notes if says_notes else ())
    return result.model_copy(update={"explanation": explanation})


def _target_origin(pool: Pool) -> dict[str, str]:
    """Return how the target of each attribute came about, in words."""
    target = pool.context.effective_target
    shared = say_shared(pool.claims)
    return {
        dimension.name: target.in_words(dimension.attribute, shared)
        for dimension in pool.dimensions
    }


def _report_models(pool: Pool, page: Page, refiner: Refiner | None) -> dict[str, Any]:
    """Return the fields of a result about the models: which were asked, and what they cost."""
    topic = pool.state["refined_topic"]
    last_topic = None if topic is None else RefinedTopic(**topic)
    last_groups = [RefinedGroup(**record) for record in pool.state["refinements"]]

    has_answers = any(round_.topic or round_.refinements for round_ in pool.rounds)
    has_failed = pool.state["stop_reason"] == "model_failed"
    has_last_answers = bool(last_topic or last_groups)
    if not has_answers and not has_failed and not has_last_answers:
        refiner = None

    # If no query came from the last answers, they belong to no round.
    last_round = pool.rounds[-1]
    are_used = last_topic == last_round.topic and last_groups == last_round.refinements
    by_model = page.by_model
    report = by_model.report if by_model else None
    usage = by_model.usage if by_model else Usage(**pool.state["usage"])
    without_model = None
    if refiner and pool.context.page == 1:
        without_model = _without_model(pool, page)
    return {
        "model": refiner.name if refiner else None,
        "prompts": list(refiner.prompts) if refiner else [],
        "ranker": report.ranker if report else None,
        "reranking": report,
        "unused_topic": None if are_used else last_topic,
        "unused_refinements": [] if are_used else last_groups,
        "without_model": without_model,
        "usage": usage_report(usage),
    }


def _without_model(pool: Pool, page: Page) -> WithoutModel | None:
    """Return what the search would have given without asking the model."""
    if not pool.fair_lists:
        return None
    fair = pool.fair_lists[0]
    # The original query may be asked again about documents that it found far down.
    by_query = set(pool.state["rankings"][0]["ids"]) - pool.looked_up
    by_model = set(page.ranking.ids) - by_query - set(fair.ids)
    return WithoutModel(
        divergence=fair.divergence,
        relevance=fair.relevance,
        objective=fair.objective,
        documents=len(by_model),
    )


def _warn_of_missed_target(pool: Pool, page: Page) -> list[str]:
    """Return a warning if the documents found do not suffice for a target of the user's own."""
    if not page.missed:
        return []
    reason = "The documents found do not suffice for the target"
    group_counts = []
    for shares in pool.state["target"].values():
        group_counts.append(np.count_nonzero(list(shares.values())))
    if max(group_counts) > pool.context.k:
        reason = "More groups have a target than there are ranks"
    if pool.context.fair_step.has_limits:
        reason = "With these limits, the documents found do not suffice for the target"
    return [f"{reason}: a group stays {page.missed} points from its share."]


def _warn_of_lost_relevance(page: Page, before: float | None, after: float | None) -> list[str]:
    """Return a warning if a refined list has lost most of the relevance of the engine's own."""
    is_refined = page.iteration > 0
    if not is_refined or not before or after is None:
        return []
    if after >= LED_AWAY * before:
        return []
    return [
        "The words that were added led away from the query: by what the query itself says, this "
        f"list has {after / before:.0%} of the relevance of the engine's own."
    ]


class _Titles(NamedTuple):
    """The titles of the documents to show, by id, and sentences about those that were not read."""

    by_id: dict[str, str]
    warnings: list[str]


async def _read_titles(engine: SearchEngine, ids: Sequence[str]) -> _Titles:
    """Return the titles of documents; those that were deleted have none."""
    distinct = list(dict.fromkeys(ids))
    by_id = {**await titles_of(engine, distinct)}
    missing = [id_ for id_ in distinct if id_ not in by_id]
    if not missing:
        return _Titles(by_id, [])
    if "read_by_id" in engine.capabilities:
        return _Titles(by_id, [f"{len(missing)} documents were deleted during the search."])
    # The engine only remembers documents that it has met, so these may still exist.
    by_id |= dict.fromkeys(missing, "")
    return _Titles(by_id, [f"The titles of {len(missing)} documents could not be read again."])


class _PageReporter:
    """Reports what a result says of a page of a list.

    Args:
        pool: What the run has found.
        titles: The titles of the documents of all pages, by id.
        attainable: What likely relevant documents could give; None if relevance was not estimated.

    Attributes:
        attributes: The measured attributes.
    """

    def __init__(self, pool: Pool, titles: Mapping[str, str], attainable: Shares | None) -> None:
        self._pool = pool
        self._titles = titles
        self._attainable = attainable
        self.attributes = [
            factor.name for dimension in pool.dimensions for factor in dimension.factors
        ]
        self._groups = _groups_by_document(pool, self.attributes, list(titles))

    def report(self, page: Page, objective: Objective | None) -> dict[str, Any]:
        """Return the fields of a result about a page of a list."""
        if objective is None:
            expected = self._pool.expected_relevance(page.ranking.ids, page.earlier)
        else:
            expected = objective.relevance
        gaps = None
        if self._attainable is not None:
            target = self._pool.state["target"]
            gaps = gaps_of(target, page.measured.exposure, self._attainable)
        return {
            "ranking": self._ranked_documents(page),
            **page.measured.model_dump(include={"exposure", "divergence", "divergences"}),
            "relevance": self._mean_relevance(page),
            "expected_relevance": expected,
            "objective": objective,
            "gaps": gaps,
        }

    def _ranked_documents(self, page: Page) -> list[RankedDocument]:
        """Return the documents of a page; deleted ones are left out."""
        relevance = self._pool.relevance or {}
        documents: list[RankedDocument] = []
        for id_, score in zip(page.ranking.ids, page.ranking.scores, strict=True):
            if id_ in self._titles:
                document = RankedDocument(
                    rank=len(page.earlier) + len(documents) + 1,
                    id=id_,
                    title=self._titles[id_],
                    score=score,
                    groups=self._groups[id_],
                    relevance=relevance.get(id_),
                    evidence=self._evidence_of(id_),
                )
                documents.append(document)
        return documents

    def _mean_relevance(self, page: Page) -> float | None:
        """Return the mean probability of relevance of a page, if all its documents have one."""
        relevance = self._pool.relevance
        if relevance is None:
            return None
        estimates = [relevance[id_] for id_ in page.ranking.ids if id_ in relevance]
        # Other methods have no estimates for documents that only refined queries found.
        is_complete = len(estimates) == len(page.ranking)
        return discounted_mean(estimates, self._pool.context.discount) if is_complete else None

    def _evidence_of(self, id_: str) -> dict[str, float]:
        """Return what each kind of query says of a document, where a model's words count."""
        evidence: dict[str, float] = {}
        if self._pool.has_words_evidence:
            for kind, by_id in self._pool.evidence.items():
                if id_ in by_id:
                    evidence[kind] = self._pool.answerable * by_id[id_]
        return evidence


def _groups_by_document(
    pool: Pool, attributes: Sequence[str], ids: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each document and attribute, the groups in which it has a share above 0."""
    groups: dict[str, dict[str, dict[str, float]]] = {id_: {} for id_ in ids}
    for name in attributes:
        attribute = pool.engine.schema.attribute(name)
        for id_, shares in zip(ids, pool.table.groups_of(attribute, ids), strict=True):
            groups[id_][name] = shares
    return groups
