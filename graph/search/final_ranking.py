"""Makes the result of a run: the best round, re-ranked by query and target, and words about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fairqr.agents.models.replies import Usage
from fairqr.agents.refiners.refiner import Refiner
from fairqr.graph.running import compute, usage_report
from fairqr.graph.search import result as results
from fairqr.graph.search.context import Context
from fairqr.graph.search.explanation import explain
from fairqr.graph.search.pages import Page, next_page, page_of, pages_of
from fairqr.graph.search.pool import Pool, discounted_mean
from fairqr.graph.search.rankers import ModelRanking
from fairqr.graph.search.result import Objective, SearchResult, Shares
from fairqr.graph.search.state import SearchState
from fairqr.graph.search.stopping import kept_of
from fairqr.graph.search.target import by_group
from fairqr.retrieval.engines.engine import (
    Query,
    SearchEngine,
    require,
    searched,
    titles_of,
)
from fairqr.retrieval.fairness.best_ranking import attainable_exposure
from fairqr.retrieval.fairness.claims import say_shared
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.rerankers.base import Candidates, Reranker
from fairqr.retrieval.rerankers.certificate import certify
from fairqr.retrieval.rerankers.fair import relevance_probabilities
from fairqr.retrieval.rerankers.registry import open_reranker

IDS_AT_ONCE = 10_000
"""How many documents one query scores, since servers limit the hits of a search."""

LED_AWAY = 0.5
"""We warn of a refined list with a smaller share of the relevance of the engine's own."""

_NOT_NEARER = "This is the baseline ranking: it is nearer to the target than the model's ranking."


Ranks = Callable[[Pool, Ranking], Awaitable[ModelRanking]]
"""Returns how a model re-ranks a list."""


def queries_about(text: str, ids: Sequence[str]) -> list[Query]:
    """Return the queries that ask about given documents, in lists that servers can return."""
    queries = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        some = tuple(ids[start : start + IDS_AT_ONCE])
        queries.append(Query(text, len(some), only=some))
    return queries


async def final_step(context: Context) -> Reranker | None:
    """Return the re-ranker of the final step; None for the fair step, which rounds take.

    Raises:
        InputError: Its options are wrong, or its weights are missing.
    """
    name = context.strategy.final_step
    if name in ("none", "fair"):
        return None
    # Opening may read weights from a file.
    return await asyncio.to_thread(open_reranker, name, context.options)


async def _best_page(pool: Pool, ranks: Ranks | None) -> Page:
    """Return the first page of the list of the best round, or of the last one.

    The fair step has already run while the rounds were measured. Otherwise the best round is the
    one with the lowest divergence. But the exposure-aware step can bring the lists of many rounds
    to the target, even the list of the original query. Then we use the best refined round that
    reaches it, because its list is based on more evidence. A model re-ranks one list only.
    """
    fair = pool.best_fair
    if ranks is None and fair:
        ranking = Ranking(fair.ids, fair.scores)
        return Page(
            fair.iteration,
            ranking,
            fair,
            left=pool.order(len(pool.rounds) - 1).without(set(fair.ids)),
            step=pool.context.fair_step,
            weight=fair.objective.weight,
            missed=fair.objective.missed,
        )
    strategy = pool.context.strategy
    rounds = [kept_of(pool.rounds, strategy.final_round)]
    if strategy.final_round == "best" and strategy.final_step == "exposure-aware":
        first, *refined = pool.rounds
        rounds = [*sorted(refined, key=lambda round_: round_.distance), first]
    if ranks is not None:
        rounds = rounds[:1]
    pages: list[Page] = []
    for round_ in rounds:
        page = await _first_page(pool, ranks, round_.index)
        pages.append(page)
        if page.measured.distance <= (0, pool.context.threshold):
            break
    return min(pages, key=lambda page: page.measured.distance)


async def _first_page(pool: Pool, ranks: Ranks | None, iteration: int) -> Page:
    """Return the first page of the list of a round, after the ranker and the last step."""
    order = await _order_of_pool(pool, iteration)
    by_model = None
    if ranks is not None:
        by_model = await ranks(pool, order)
        order = by_model.ranking
    step = await final_step(pool.context)
    nothing = Ranking([], [])
    before = Page(iteration, nothing, pool.measured([]), order, step, by_model=by_model)
    return await next_page(pool, before)


async def _order_of_pool(pool: Pool, iteration: int) -> Ranking:
    """Return the documents to re-rank after a round, by their scores in the method's order."""
    ids = pool.ids(iteration)
    if pool.context.strategy.rerank == "original_query":
        scores = await _original_scores(pool, ids)
    else:
        listed = pool.order(iteration)
        scores = dict(zip(listed.ids, listed.scores, strict=True))
    return Ranking.of({id_: scores[id_] for id_ in ids if id_ in scores})


async def _original_scores(pool: Pool, ids: Sequence[str]) -> dict[str, float]:
    """Return the scores of documents by the original query; without those deleted meanwhile."""
    original = pool.state["rankings"][0]
    scores = dict(zip(original["ids"], original["scores"], strict=True))
    missing = [id_ for id_ in ids if id_ not in scores]
    if missing:
        require(pool.engine, "rescore", "The order 'original_query'")
        for hits in await searched(pool.engine, queries_about(pool.state["query"], missing)):
            scores.update(zip(hits.ids, hits.scores, strict=True))
    return scores


@dataclass(frozen=True, slots=True)
class Judged:
    """How good the final list and the baseline are, by all documents found.

    Attributes:
        final, baseline: The objectives of both pages; None if the method has no fair step, or a
            page is empty.
        attainable: By attribute, the exposure nearest to the target that the documents which are
            likely to be relevant could give; None if relevance was not estimated.
    """

    final: Objective | None = None
    baseline: Objective | None = None
    attainable: Shares | None = None


def judge(pool: Pool, page: Page, baseline: Page) -> Judged:
    """Judge a page and that of the baseline, as the fair step does.

    Each is judged by all documents found that earlier pages of its list left.

    Args:
        pool: What the run has found.
        page: A page of the final list.
        baseline: The same page of the baseline ranking.
    """
    if page.weight is None or not page.ranking.ids:
        return Judged()
    context = pool.context
    shown = [*page.ranking.ids, *baseline.ranking.ids]
    candidates = _candidates_left(pool, shown, page.earlier)
    objective = context.fair_step.objective(candidates, page.weight, context.k)
    ranked = _positions(candidates, page.ranking)
    broken = tuple(context.fair_step.broken(candidates, ranked))
    figures = objective.quality(ranked).figures
    of_page = Objective(**figures, weight=page.weight, broken=broken)
    if context.certify:
        certificate = certify(candidates, context.fair_step, page.weight, context.k, ranked)
        of_page = of_page.certified(certificate)
    attainable = None if pool.relevance is None else _attainable(pool, candidates)
    if not baseline.ranking.ids:
        return Judged(of_page, None, attainable)
    if baseline.earlier:
        candidates = _candidates_left(pool, shown, baseline.earlier)
        objective = context.fair_step.objective(candidates, page.weight, context.k)
    quality = objective.quality(_positions(candidates, baseline.ranking))
    return Judged(of_page, Objective(**quality.figures, weight=page.weight), attainable)


async def _front(pool: Pool, page: Page, shown: Sequence[str]) -> list[results.Tradeoff]:
    """Return what the weights of fairness would give that the context asks about."""
    context = pool.context
    if not context.front or page.weight is None or not page.ranking.ids:
        return []
    candidates = _candidates_left(pool, shown, page.earlier)
    step = context.fair_step
    qualities = await compute(partial(step.front, candidates, context.k, context.front))
    return [
        results.Tradeoff(weight=weight, relevance=quality.relevance, fairness=quality.fairness)
        for weight, quality in zip(context.front, qualities, strict=True)
    ]


def _candidates_left(pool: Pool, shown: Sequence[str], earlier: Sequence[str]) -> Candidates:
    """Return all documents found, and those shown, but for those of earlier pages."""
    last = pool.order(len(pool.rounds) - 1)
    # Some orders and pools drop documents of earlier rounds. Scores do not count here.
    ids = dict.fromkeys([*last.ids, *shown])
    for id_ in earlier:
        ids.pop(id_, None)
    return pool.candidates(Ranking(list(ids), [0.0] * len(ids)))


def _positions(candidates: Candidates, ranking: Ranking) -> list[int]:
    position = {id_: number for number, id_ in enumerate(candidates.ranking.ids)}
    return [position[id_] for id_ in ranking.ids]


def _attainable(pool: Pool, candidates: Candidates) -> Shares:
    """Return the exposure nearest to the target that likely relevant documents could give."""
    likely = np.flatnonzero(pool.answerable * relevance_probabilities(candidates) >= LIKELY)
    shares: Shares = {}
    parts = zip(pool.dimensions, candidates.memberships, candidates.targets, strict=True)
    for dimension, members, target in parts:
        nearest = attainable_exposure(members[likely], target, candidates.discount, pool.context.k)
        shares[dimension.name] = by_group(dimension, nearest)
    return shares


async def assemble(
    pool: Pool, first: Page, refiner: Refiner | None, notes: Sequence[str] = ()
) -> SearchResult:
    """Report the page that the context asks for beside that of the baseline ranking.

    Args:
        pool: What the run has found.
        first: The first page of the final list.
        refiner: What may have refined the query.
        notes: More sentences about the refiner, for the explanation.
    """
    state = pool.state
    engine = pool.engine
    context = pool.context
    page = await page_of(pool, first)
    pages = pages_of(first, context.k)
    baseline = await page_of(pool, _baseline_page(pool))
    shown = [*page.ranking.ids, *baseline.ranking.ids]
    titles, missing = await _titles(engine, shown)
    judged = await pool.compute(partial(judge, pool, page, baseline))
    report = page.by_model.report if page.by_model else None
    last = _last_answers(state)
    was_used = last.topic == pool.rounds[-1].topic and last.groups == pool.rounds[-1].refinements
    was_asked = state["stop_reason"] == "model_failed" or last.topic or last.groups
    if not was_asked and not any(round_.topic or round_.refinements for round_ in pool.rounds):
        refiner = None
    lister = _Lister(pool, titles, judged.attainable)
    shared = say_shared(pool.claims)
    final = lister.fields(page, judged.final)
    before = lister.fields(baseline, judged.baseline)
    result = SearchResult(
        query=state["query"],
        corpus=engine.name,
        method=context.method,
        retriever=engine.retriever,
        model=refiner.name if refiner else None,
        prompts=list(refiner.prompts) if refiner else [],
        ranker=report.ranker if report else None,
        reranking=report,
        # If no query came from the last answers, they belong to no round.
        unused_topic=None if was_used else last.topic,
        unused_refinements=[] if was_used else last.groups,
        attributes=lister.attributes,
        target=state["target"],
        target_origin={
            dimension.name: context.effective_target.in_words(dimension.attribute, shared)
            for dimension in pool.dimensions
        },
        iterations=pool.rounds,
        best_iteration=page.iteration,
        stop_reason=state["stop_reason"],
        page=context.page,
        pages=pages,
        **final,
        front=await _front(pool, page, shown),
        unknown=page.measured.unknown,
        attainable=judged.attainable,
        without_model=_without_model(pool, page) if refiner and context.page == 1 else None,
        baseline=before,
        usage=usage_report(page.by_model.usage if page.by_model else Usage(**state["usage"])),
        warnings=[
            *state["warnings"],
            *page.warnings,
            *missing,
            *_missed_target(pool, page),
            *_led_away(page, before["expected_relevance"], final["expected_relevance"]),
            *(judged.final.broken if judged.final else ()),
        ],
    )
    says_notes = pool.context.words_are_evidence and result.ranking
    about_model = notes if says_notes else ()
    return result.model_copy(update={"explanation": explain(result, about_model)})


class _LastAnswers(NamedTuple):
    """What the model answered when it was last asked."""

    topic: results.RefinedTopic | None
    groups: list[results.RefinedGroup]


def _last_answers(state: SearchState) -> _LastAnswers:
    topic = state["refined_topic"]
    return _LastAnswers(
        None if topic is None else results.RefinedTopic(**topic),
        [results.RefinedGroup(**record) for record in state["refinements"]],
    )


async def choose(pool: Pool, ranks: Ranks | None) -> Page:
    """Return the first page of the final list: of the best round, or of the baseline ranking.

    A method that refines returns the baseline ranking if its own ranking would be farther from the
    target, unless it keeps the last round, or if the model failed before its first reply.

    Args:
        pool: What the run has found.
        ranks: Re-ranks the list, if the method names a model for that.
    """
    rounds = pool.rounds
    fair = pool.best_fair
    failed_at_once = pool.state["stop_reason"] == "model_failed" and len(rounds) == 1
    if not pool.baseline.ids or (failed_at_once and fair is None):
        return _baseline_page(pool)
    page = await _best_page(pool, ranks)
    strategy = pool.context.strategy
    is_nearer = page.measured.distance <= rounds[0].distance
    may_be_farther = strategy.final_round == "last" or not strategy.refines
    if fair or is_nearer or may_be_farther:
        return page
    by_model = page.by_model
    baseline = _baseline_page(pool)
    if by_model is None or by_model.report is None:
        return baseline
    reason = [_NOT_NEARER] if by_model.report.lists else []
    return replace(baseline, warnings=[*by_model.warnings, *reason], by_model=by_model)


def _baseline_page(pool: Pool) -> Page:
    """Return the first page of the engine's own ranking."""
    whole = pool.engine_ranking
    return Page(0, pool.baseline, pool.rounds[0], left=whole.without(set(pool.baseline.ids)))


def _missed_target(pool: Pool, page: Page) -> list[str]:
    """Return a warning if the documents found do not suffice for a target of the user's own."""
    if not page.missed:
        return []
    why = "The documents found do not suffice for the target"
    groups = max(np.count_nonzero([*it.values()]) for it in pool.state["target"].values())
    if groups > pool.context.k:
        why = "More groups have a target than there are ranks"
    if pool.context.fair_step.has_limits:
        why = "With these limits, the documents found do not suffice for the target"
    return [f"{why}: a group stays {page.missed} points from its share."]


def _led_away(page: Page, before: float | None, after: float | None) -> list[str]:
    """Return a warning if a refined list has lost most of the relevance of the engine's own."""
    if not page.iteration or not before or after is None or after >= LED_AWAY * before:
        return []
    return [
        "The words that were added led away from the query: by what the query itself says, this "
        f"list has {after / before:.0%} of the relevance of the engine's own."
    ]


class _Lister:
    """Makes what a result says of a list.

    Args:
        pool: What the run has found.
        documents: The documents of all lists, by id.
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
        self._groups = _groups_of(pool, self.attributes, list(titles))

    def fields(self, page: Page, objective: Objective | None) -> dict[str, Any]:
        """Return the fields of a result about a page of a list."""
        ranking = page.ranking
        measured = page.measured
        relevance = self._pool.relevance or {}
        places: list[results.RankedDocument] = []
        for id_, score in zip(ranking.ids, ranking.scores, strict=True):
            if id_ in self._titles:
                place = results.RankedDocument(
                    rank=len(page.earlier) + len(places) + 1,
                    id=id_,
                    title=self._titles[id_],
                    score=score,
                    groups=self._groups[id_],
                    relevance=relevance.get(id_),
                    evidence=self._evidence_of(id_),
                )
                places.append(place)
        estimates = [relevance[id_] for id_ in ranking.ids if id_ in relevance]
        # Other methods have no estimates for documents that only refined queries found.
        is_complete = self._pool.relevance is not None and len(estimates) == len(ranking)
        mean = discounted_mean(estimates, self._pool.context.discount) if is_complete else None
        expected = self._pool.expected_relevance(ranking.ids, page.earlier)
        gaps = None
        if self._attainable is not None:
            gaps = _gaps(self._pool.state["target"], measured.exposure, self._attainable)
        return {
            "ranking": places,
            **measured.model_dump(include={"exposure", "divergence", "divergences"}),
            "relevance": mean,
            "expected_relevance": objective.relevance if objective else expected,
            "objective": objective,
            "gaps": gaps,
        }

    def _evidence_of(self, id_: str) -> dict[str, float]:
        """Return what each kind of query tells of a document, where a model's words count."""
        evidence: dict[str, float] = {}
        if self._pool.has_words_evidence:
            for kind, by_id in self._pool.evidence.items():
                if id_ in by_id:
                    evidence[kind] = self._pool.answerable * by_id[id_]
        return evidence


async def _titles(engine: SearchEngine, ids: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the titles of the documents to show, and sentences about those not read."""
    wanted = list(dict.fromkeys(ids))
    titles = {**await titles_of(engine, wanted)}
    missing = [id_ for id_ in wanted if id_ not in titles]
    if not missing:
        return titles, []
    if "read_by_id" in engine.capabilities:
        return titles, [f"{len(missing)} documents were deleted during the search."]
    # The engine only remembers documents that it has met, so these may still exist.
    titles |= dict.fromkeys(missing, "")
    return titles, [f"The titles of {len(missing)} documents could not be read again."]


def _gaps(target: Shares, exposure: Shares, attainable: Shares) -> results.Gaps:
    """Split each group's lack into what no ranking could give and what this one withholds."""
    missing: Shares = {}
    withheld: Shares = {}
    for name, shares in target.items():
        missing[name] = {}
        withheld[name] = {}
        for group, share in shares.items():
            reached = exposure[name][group]
            possible = attainable[name][group]
            missing[name][group] = max(0.0, share - max(reached, possible))
            withheld[name][group] = max(0.0, min(share, possible) - reached)
    return results.Gaps(unattainable=missing, ranking=withheld)


def _without_model(pool: Pool, final: Page) -> results.WithoutModel | None:
    """Return what the search would have given without asking the model."""
    if not pool.fair_lists:
        return None
    fair = pool.fair_lists[0]
    # The original query may be asked again about documents that it found far down.
    known = set(pool.state["rankings"][0]["ids"]) - pool.looked_up
    return results.WithoutModel(
        divergence=fair.divergence,
        relevance=fair.relevance,
        objective=fair.objective,
        documents=len(set(final.ranking.ids) - known - set(fair.ids)),
    )


def _groups_of(
    pool: Pool, attributes: Sequence[str], ids: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each document and attribute, the groups in which it has a share above 0."""
    groups: dict[str, dict[str, dict[str, float]]] = {id_: {} for id_ in ids}
    for name in attributes:
        of_documents = pool.table.groups_of(pool.engine.schema.attribute(name), ids)
        for id_, shares in zip(ids, of_documents, strict=True):
            groups[id_][name] = shares
    return groups
