"""FA*IR's table and a step of DELTR, beside the same done plainly; xQuAD and PM-2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from measuring import Row, in_turns, median
from scipy.stats import binom
from workspace import Workspace

from fairqr.retrieval.rerankers.diversification import Aspects, Pm2, Xquad
from fairqr.retrieval.rerankers.fa_ir import failure_probability, fair_table
from fairqr.retrieval.rerankers.learning import TOP_WEIGHT, contrast, deltr_loss

K, PROPORTION, ALPHA = 100, 0.5, 0.1
PROPORTIONS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
BISECTIONS = 25
DOCUMENTS, FEATURES = 100, 6
GAMMA = 1000.0
POOL, SHOWN, GROUPS = 1_000, 20, 8
MAX_MILLISECONDS = 5.0


def baseline_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure FA*IR's adjusted table, DELTR's loss with its gradient, and xQuAD and PM-2."""
    taken = in_turns(
        {
            # Tables are kept, so that each round asks for another one.
            "ours": lambda number: fair_table(K, (PROPORTION,), ALPHA - 1e-9 * (number + 9)),
            "bisection": lambda _: bisected_table(K, PROPORTION, ALPHA),
        },
        workspace.rounds(5),
    )
    ours, theirs = median(taken["ours"]), median(taken["bisection"])
    yield Row(
        "baselines",
        f"FA*IR, adjusted table, k = {K}, p = {PROPORTION:g}",
        ours,
        "ms",
        "bisection of α, a table each",
        theirs,
    )
    worst = max(failure_probability(fair_table(K, (p,), ALPHA)[:, 0], p) for p in PROPORTIONS)
    yield Row(
        "baselines",
        f"FA*IR, largest failure probability for {len(PROPORTIONS)} values of p",
        worst,
        "",
        "α",
        ALPHA,
        "≤ α",
        worst <= ALPHA,
    )
    yield _deltr(workspace)
    yield from _diversified(workspace)


def _deltr(workspace: Workspace) -> Row:
    random = np.random.default_rng(5)
    features = random.normal(size=(DOCUMENTS, FEATURES))
    grades = (random.random(DOCUMENTS) < 0.2).astype(float)
    protected = (random.random(DOCUMENTS) < 0.3).astype(float)
    weights = random.normal(size=FEATURES)
    mask, contrasts = np.ones((1, DOCUMENTS), dtype=bool), contrast(protected)[None]
    lists = features.tolist(), grades.tolist(), protected.tolist()

    def step() -> tuple[float, list[float]]:
        loss, slope = deltr_loss((features @ weights)[None], grades[None], mask, contrasts, GAMMA)
        return loss, (slope[0] @ features).tolist()

    loss, gradient = step()
    plain = plain_deltr(weights.tolist(), *lists)
    if not np.allclose([loss, *gradient], [plain[0], *plain[1]]):
        raise AssertionError(f"the two ways differ: {loss} and {plain[0]}")
    taken = in_turns(
        {
            "ours": lambda _: [step() for _ in range(20)],
            "plain": lambda _: plain_deltr(weights.tolist(), *lists),
        },
        workspace.rounds(20),
    )
    return Row(
        "baselines",
        f"DELTR, one step, {DOCUMENTS} documents × {FEATURES} features",
        median(taken["ours"]) * 1000 / 20,
        "µs",
        "plain loops",
        median(taken["plain"]) * 1000,
    )


def _diversified(workspace: Workspace) -> Iterator[Row]:
    random = np.random.default_rng(6)
    relevance = np.sort(random.random(POOL))[::-1]
    memberships = random.dirichlet(np.ones(GROUPS), POOL)
    aspects = Aspects(relevance, memberships, np.full(GROUPS, 1 / GROUPS))
    taken = in_turns(
        {
            "xQuAD": lambda _: Xquad().order(aspects, SHOWN),
            "PM-2": lambda _: Pm2().order(aspects, SHOWN),
        },
        workspace.rounds(20),
    )
    for name, milliseconds in taken.items():
        ours = median(milliseconds)
        yield Row(
            "baselines",
            f"{name}, first {SHOWN} of {POOL:,}, {GROUPS} groups, no two memberships equal",
            ours,
            "ms",
            target=f"≤ {MAX_MILLISECONDS:g} ms",
            reached=ours <= MAX_MILLISECONDS,
        )


def bisected_table(k: int, proportion: float, alpha: float) -> list[int]:
    """Return FA*IR's adjusted table as it is often computed: by trying values of α."""
    low, high = 0.0, alpha
    table: list[int] = []
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        table = [int(binom.ppf(middle, size, proportion)) for size in range(1, k + 1)]
        if plain_failure(table, proportion) > alpha:
            high = middle
        else:
            low = middle
    return table


def plain_failure(table: Sequence[int], proportion: float) -> float:
    """Return the probability that a fair ranking breaks the table, count by count."""
    alive = {0: 1.0}
    for minimum in table:
        after: dict[int, float] = {}
        for count, probability in alive.items():
            after[count] = after.get(count, 0.0) + probability * (1 - proportion)
            after[count + 1] = after.get(count + 1, 0.0) + probability * proportion
        alive = {count: p for count, p in after.items() if count >= minimum}
    return 1 - sum(alive.values())


def plain_deltr(
    weights: Sequence[float],
    features: Sequence[Sequence[float]],
    grades: Sequence[float],
    protected: Sequence[float],
) -> tuple[float, list[float]]:
    """Return the loss of DELTR and its gradient, document by document."""
    scores = [sum(w * x for w, x in zip(weights, row, strict=True)) for row in features]
    given, wanted = softmax(scores), softmax(grades)
    ours = sum(protected)
    others = len(protected) - ours
    contrast = [TOP_WEIGHT * (-1 / ours if mark else 1 / others) for mark in protected]
    disparity = sum(c * p for c, p in zip(contrast, given, strict=True))
    excess = max(0.0, disparity)
    loss = -sum(y * math.log(p) for y, p in zip(wanted, given, strict=True)) + GAMMA * excess**2
    gradient = [0.0] * len(weights)
    for row, p, y, c in zip(features, given, wanted, contrast, strict=True):
        slope = p - y + 2 * GAMMA * excess * p * (c - disparity)
        for place, value in enumerate(row):
            gradient[place] += slope * value
    return loss, gradient


def softmax(values: Sequence[float]) -> list[float]:
    """Return the softmax."""
    exponentials = [math.exp(value - max(values)) for value in values]
    total = sum(exponentials)
    return [value / total for value in exponentials]
