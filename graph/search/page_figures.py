"""How good a page is beside the baseline's, and what other weights of fairness would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairqr.graph.running import compute
from fairqr.graph.search.pages import Page
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.result import Gaps, Objective, Shares, Tradeoff
from fairqr.graph.search.target import by_group
from fairqr.retrieval.fairness.best_ranking import attainable_exposure
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.certificate import certify
from fairqr.retrieval.rerankers.fair import relevance_probabilities


@dataclass(frozen=True, slots=True)
class PageFigures:
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


def judge(pool: Pool, page: Page, baseline: Page) -> PageFigures:
    """Judge a page and the baseline's, as the fair step does.

    Each is judged by all documents found that earlier pages of its list left.

    Args:
        pool: What the run has found.
        page: A page of the final list.
        baseline: The same page of the baseline ranking.
    """
    weight = page.weight
    if weight is None or not page.ranking.ids:
        return PageFigures()
    context = pool.context
    shown = [*page.ranking.ids, *baseline.ranking.ids]

    candidates = _remaining_candidates(pool, shown, page.earlier)
    objective = context.fair_step.objective(candidates, weight, context.k)
    positions = _positions(candidates, page.ranking)
    broken = tuple(context.fair_step.broken(candidates, positions))
    figures = objective.quality(positions).figures
    of_page = Objective(**figures, weight=weight, broken=broken)
    if context.certify:
        certificate = certify(candidates, context.fair_step, weight, context.k, positions)
        of_page = of_page.certified(certificate)
    attainable = None
    if pool.relevance is not None:
        attainable = _attainable_shares(pool, candidates)

    if not baseline.ranking.ids:
        return PageFigures(of_page, None, attainable)
    if baseline.earlier:
        candidates = _remaining_candidates(pool, shown, baseline.earlier)
        objective = context.fair_step.objective(candidates, weight, context.k)
    quality = objective.quality(_positions(candidates, baseline.ranking))
    return PageFigures(of_page, Objective(**quality.figures, weight=weight), attainable)


async def tradeoffs_of(pool: Pool, page: Page, shown: Sequence[str]) -> list[Tradeoff]:
    """Return what the weights of fairness would give that the context asks about.

    Args:
        pool: What the run has found.
        page: The page.
        shown: The documents of this page and of the baseline's.
    """
    context = pool.context
    if not context.front or page.weight is None or not page.ranking.ids:
        return []
    candidates = _remaining_candidates(pool, shown, page.earlier)
    front = partial(context.fair_step.front, candidates, context.k, context.front)
    qualities = await compute(front)
    tradeoffs = []
    for weight, quality in zip(context.front, qualities, strict=True):
        tradeoff = Tradeoff(weight=weight, relevance=quality.relevance, fairness=quality.fairness)
        tradeoffs.append(tradeoff)
    return tradeoffs


def _remaining_candidates(pool: Pool, shown: Sequence[str], earlier: Sequence[str]) -> Candidates:
    """Return all documents found or shown, without the documents of earlier pages."""
    last_order = pool.order(len(pool.rounds) - 1)
    # Some orders and pools drop documents of earlier rounds. Scores do not count here.
    ids = dict.fromkeys([*last_order.ids, *shown])
    for id_ in earlier:
        ids.pop(id_, None)
    return pool.candidates(Ranking(list(ids), [0.0] * len(ids)))


def _positions(candidates: Candidates, ranking: Ranking) -> list[int]:
    """Return the positions of the documents of a ranking among the candidates."""
    positions = {id_: position for position, id_ in enumerate(candidates.ranking.ids)}
    return [positions[id_] for id_ in ranking.ids]


def _attainable_shares(pool: Pool, candidates: Candidates) -> Shares:
    """Return the exposure nearest to the target that likely relevant documents could give."""
    probabilities = pool.answerable * relevance_probabilities(candidates)
    likely = np.flatnonzero(probabilities >= LIKELY)
    shares: Shares = {}
    attributes = zip(pool.dimensions, candidates.memberships, candidates.targets, strict=True)
    for dimension, members, target in attributes:
        nearest = attainable_exposure(members[likely], target, candidates.discount, pool.context.k)
        shares[dimension.name] = by_group(dimension, nearest)
    return shares


def gaps_of(target: Shares, exposure: Shares, attainable: Shares) -> Gaps:
    """Split each group's lack into what no ranking could give and what this one withholds."""
    unattainable: Shares = {}
    withheld: Shares = {}
    for name, shares in target.items():
        unattainable[name] = {}
        withheld[name] = {}
        for group, share in shares.items():
            reached = exposure[name][group]
            possible = attainable[name][group]
            unattainable[name][group] = max(0.0, share - max(reached, possible))
            withheld[name][group] = max(0.0, min(share, possible) - reached)
    return Gaps(unattainable=unattainable, ranking=withheld)
