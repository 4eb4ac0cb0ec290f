"""The measures of evaluation, beside plain loops over documents, groups and items."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from measuring import Row, in_turns, median
from through_files import exposure_through_files
from workspace import Workspace

from fairqr.evaluation.expected_exposure import expected_exposure
from fairqr.evaluation.fairness import awrf
from fairqr.evaluation.relevance import ndcg
from fairqr.retrieval.fairness.exposure import Discount, exposure, group_exposure

RANKED, GROUPS, QUERIES = 1_000, 8, 50
SAMPLES, SHOWN = 100, 5
SEQUENCE = 20
TREC = Discount("trec")


def metric_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure AWRF, nDCG, EE-L by group and expected exposure by item."""
    yield from _rankings(workspace)
    yield from _sequences(workspace)
    for items in (100, 10_000 if workspace.quick else 100_000):
        yield from _items(workspace, items)


def _rankings(workspace: Workspace) -> Iterator[Row]:
    random = np.random.default_rng(3)
    members = random.dirichlet(np.ones(GROUPS), (QUERIES, RANKED))
    targets = random.dirichlet(np.ones(GROUPS), QUERIES)
    gains = (random.random((QUERIES, RANKED)) < 0.1).astype(float)
    ideal = -np.sort(-gains, axis=-1)
    documents = [dict(enumerate(row.tolist())) for row in members[0]]
    target = dict(enumerate(targets[0].tolist()))
    relevant = {place for place, gain in enumerate(gains[0]) if gain}

    close(awrf(exposure(members[0], TREC), targets[0]), loop_awrf(documents, target))
    close(ndcg(gains[0], ideal[0], TREC), loop_ndcg(range(RANKED), relevant))
    taken = _microseconds(
        workspace,
        {
            "awrf": (lambda: awrf(exposure(members[0], TREC), targets[0]), 50),
            "awrf batched": (lambda: awrf(exposure(members, TREC), targets), 2),
            "awrf loops": (lambda: loop_awrf(documents, target), 1),
            "ndcg": (lambda: ndcg(gains[0], ideal[0], TREC), 200),
            "ndcg batched": (lambda: ndcg(gains, ideal, TREC), 10),
            "ndcg loops": (lambda: loop_ndcg(range(RANKED), relevant), 5),
        },
    )
    what = f"top {RANKED:,}, {GROUPS} groups"
    loops = taken["awrf loops"]
    yield _row(f"AWRF, {what}, one query", taken["awrf"], loops, 15)
    yield _row(
        f"AWRF, {what}, a query of {QUERIES} at once", taken["awrf batched"] / QUERIES, loops, 30
    )
    loops = taken["ndcg loops"]
    yield _row(f"nDCG, top {RANKED:,}, one query", taken["ndcg"], loops, 8)
    yield _row(
        f"nDCG, top {RANKED:,}, a query of {QUERIES} at once",
        taken["ndcg batched"] / QUERIES,
        loops,
    )


def _sequences(workspace: Workspace) -> Iterator[Row]:
    random = np.random.default_rng(4)
    members = random.dirichlet(np.ones(GROUPS), (SAMPLES, SEQUENCE))
    target = random.dirichlet(np.ones(GROUPS)) * TREC.weights(SEQUENCE).sum()
    rankings = [[dict(enumerate(row)) for row in ranking] for ranking in members.tolist()]
    wanted = dict(enumerate(target.tolist()))

    def ours() -> float:
        delta = group_exposure(members, TREC).mean(axis=0) - target
        return float(delta @ delta)

    close(ours(), loop_loss(rankings, wanted))
    taken = _microseconds(
        workspace, {"ours": (ours, 20), "loops": (lambda: loop_loss(rankings, wanted), 1)}
    )
    what = f"EE-L by group, {SAMPLES} rankings of {SEQUENCE}, {GROUPS} groups"
    yield _row(what, taken["ours"], taken["loops"], 60)


def _items(workspace: Workspace, items: int) -> Iterator[Row]:
    random = np.random.default_rng(5)
    samples = np.array([random.choice(items, SHOWN, replace=False) for _ in range(SAMPLES)])
    useful = random.random(items) < 0.3
    listed, labels = samples.tolist(), useful.tolist()
    user = Discount("top_k", SHOWN)

    found = expected_exposure(samples, useful, user)
    folder = workspace.folder
    for peer in (loop_items(listed, labels), exposure_through_files(folder, listed, labels)):
        close((found.disparity, found.relevance, found.loss), peer)
    taken = _microseconds(
        workspace,
        {
            "ours": (lambda: expected_exposure(samples, useful, user), 20),
            "loops": (lambda: loop_items(listed, labels), 1),
            "files": (lambda: exposure_through_files(folder, listed, labels), 1),
        },
        rounds=20 if items <= 1_000 else 5,
    )
    what = f"EE-D, EE-R and EE-L, {items:,} items, {SAMPLES} samples, k = {SHOWN}"
    times = 10 if items <= 1_000 else 150
    yield _row(what, taken["ours"], taken["loops"], times)
    yield _row(what, taken["ours"], taken["files"], times, "JSON files, dictionaries")


def _row(
    what: str, ours: float, theirs: float, times: int | None = None, peer: str = "plain loops"
) -> Row:
    target = "" if times is None else f"≤ 1/{times}"
    reached = None if times is None else ours * times <= theirs
    return Row("metrics", what, ours, "µs", peer, theirs, target, reached)


def _microseconds(
    workspace: Workspace,
    calls: Mapping[str, tuple[Callable[[], object], int]],
    rounds: int = 20,
) -> dict[str, float]:
    """Return the median time of each call; those that are short are repeated and divided."""

    def repeated(call: Callable[[], object], times: int) -> Callable[[int], object]:
        def work(_: int) -> None:
            for _ in range(times):
                call()

        return work

    timed = {name: repeated(call, times) for name, (call, times) in calls.items()}
    taken = in_turns(timed, workspace.rounds(rounds), 2)
    return {name: median(taken[name]) * 1000 / times for name, (_, times) in calls.items()}


def close(found: object, expected: object) -> None:
    """Stop where two ways to measure disagree: then their times say nothing."""
    if not np.allclose(np.asarray(found), np.asarray(expected)):
        raise AssertionError(f"{found} is not {expected}")


def weight(rank: int) -> float:
    """Return the track's discount of a rank."""
    return 1 / math.log2(max(rank, 2))


def loop_awrf(documents: Sequence[Mapping[int, float]], target: Mapping[int, float]) -> float:
    """Return AWRF, adding up document by document and group by group."""
    gained = dict.fromkeys(target, 0.0)
    for rank, document in enumerate(documents, start=1):
        seen = weight(rank)
        for group, share in document.items():
            gained[group] += seen * share
    total = sum(gained.values())
    divergence = 0.0
    for group, wanted in target.items():
        share = gained[group] / total
        middle = (share + wanted) / 2
        for part in (share, wanted):
            if part > 0:
                divergence += part * math.log(part / middle) / 2
    return 1 - divergence


def loop_ndcg(ranking: Sequence[int], relevant: set[int]) -> float:
    """Return nDCG, rank by rank."""
    found = sum(weight(rank) for rank, id_ in enumerate(ranking, start=1) if id_ in relevant)
    best = sum(weight(rank) for rank in range(1, min(len(ranking), len(relevant)) + 1))
    return found / best


def loop_loss(
    rankings: Sequence[Sequence[Mapping[int, float]]], target: Mapping[int, float]
) -> float:
    """Return EE-L by group, ranking by ranking."""
    gained = dict.fromkeys(target, 0.0)
    for ranking in rankings:
        for rank, document in enumerate(ranking, start=1):
            seen = weight(rank) / len(rankings)
            for group, share in document.items():
                gained[group] += seen * share
    return sum((gained[group] - wanted) ** 2 for group, wanted in target.items())


def loop_items(
    samples: Sequence[Sequence[int]], useful: Sequence[bool]
) -> tuple[float, float, float]:
    """Return EE-D, EE-R and EE-L of the machine user, from the exposure of all items by sample."""
    n, m, k = len(useful), sum(useful), len(samples[0])
    system = [0.0] * n
    for sample in samples:
        seen = [0.0] * n
        for item in sample:
            seen[item] = 1.0
        for item in range(n):
            system[item] += seen[item] / len(samples)
    high, low = (1.0, (k - m) / (n - m)) if m <= k else (k / m, 0.0)
    target = [high if label else low for label in useful]
    disparity = sum(gained * gained for gained in system)
    relevance = sum(gained * wanted for gained, wanted in zip(system, target, strict=True))
    loss = sum((gained - wanted) ** 2 for gained, wanted in zip(system, target, strict=True))
    return disparity, relevance, loss
