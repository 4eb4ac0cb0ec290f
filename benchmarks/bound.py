"""How near rankings come to the bound of J: ``python -m benchmarks.bound -o FOLDER``.

Random pools of several kinds and sizes are ranked by the fair step and, up to 50 ranks, by other
re-rankers. It prints J of a ranking, divided by the bound that no ranking exceeds: the median and
the least over the pools; and what the fair step and a certificate take. ``measures.csv`` in the
folder has the same figures.

``lp-policy`` is a distribution over rankings, in which groups get the exposure of their target in
expectation. Its J is that of the expected exposures, divided by the bound of mixtures of rankings.
It is solved up to 20 ranks, where all documents have labels. ``det-const-sort`` ranks documents of
one group each.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.objective import Positions
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.relaxation import relax
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.certificate import certify
from fairqr.retrieval.rerankers.fair import FairStep, relevance_probabilities
from fairqr.retrieval.rerankers.registry import open_reranker
from tests.unit.retrieval.rerankers.peers import det_const_sort, lp_policy, value_of

DOCUMENTS = {10: 200, 20: 200, 50: 500, 100: 500, 200: 1_000, 1_000: 10_000}
"""How many documents there are, by the number of ranks."""

GROUPS = (2, 6, 20)
LABELLED = 0.8
"""The share of documents with a label, if some are missing."""

FRACTIONAL = 0.3
"""The share of documents that belong to several groups, if some do."""

STEP = FairStep(order="estimated")
PEERS = ("exposure-aware", "xquad", "pm2", "fa-ir")
"""The re-rankers that need neither texts nor training."""
MOST_RANKS_OF_PEERS = 50
MOST_RANKS_OF_POLICY = 20
"""The programme of lp-policy has a variable for each document at each rank."""

NEARLY = {"tolerance": 1e-5, "most_steps": 2_000}
"""Bring the bound nearer to the optimum than a certificate's."""

COLUMNS = ["pools", "ranks", "system", "measure", "value"]


class Kind(NamedTuple):
    """What documents belong to.

    Attributes:
        groups: How many groups each attribute has.
        is_fractional: Whether some documents belong to several groups.
        is_labelled: Whether all documents have labels.
    """

    name: str
    groups: tuple[int, ...]
    is_fractional: bool = False
    is_labelled: bool = True


def kinds() -> list[Kind]:
    """Return the kinds of pools."""
    whole = [Kind(f"{count} groups", (count,)) for count in GROUPS]
    return [
        *whole,
        Kind("2 and 6 groups", (2, 6)),
        Kind("6 groups, fractional", (6,), is_fractional=True),
        Kind("6 groups, labels missing", (6,), is_labelled=False),
    ]


def pool(draw: np.random.Generator, kind: Kind, ranks: int) -> Candidates:
    """Return a random pool: Beta(1,3) relevance, and groups and targets by Dirichlet."""
    count = DOCUMENTS[ranks]
    memberships = []
    targets = []
    for groups in kind.groups:
        shares = draw.dirichlet(np.ones(groups))
        members = np.eye(groups)[draw.choice(groups, count, p=shares)]
        if kind.is_fractional:
            is_mixed = draw.random((count, 1)) < FRACTIONAL
            members = np.where(is_mixed, draw.dirichlet(np.ones(groups), count), members)
        if not kind.is_labelled:
            members = members * (draw.random((count, 1)) < LABELLED)
        memberships.append(members)
        targets.append(draw.dirichlet(np.ones(groups)))
    # Re-rankers assume that candidates, and their scores, are in the order of relevance.
    relevance = np.sort(draw.beta(1, 3, count))[::-1]
    return Candidates(
        ranking=Ranking([str(position) for position in range(count)], relevance.tolist()),
        memberships=memberships,
        targets=targets,
        dimensions=[str(number) for number in range(len(kind.groups))],
        groups=[_group_names(size) for size in kind.groups],
        relevance=relevance,
    )


def _group_names(count: int) -> list[str]:
    return [f"group {number}" for number in range(count)]


def ranked_by(name: str, candidates: Candidates, ranks: int) -> Positions | None:
    """Return the ranking of a re-ranker; None if it takes no such candidates."""
    # These re-rankers read nothing from an engine.
    no_engine: Any = None
    work = open_reranker(name).rerank(no_engine, "", candidates, ranks)
    try:
        ids = asyncio.run(work).ranking.ids
    except InputError:
        return None
    return np.array([int(id_) for id_ in ids], dtype=np.intp)


def sorted_by_constraints(kind: Kind, candidates: Candidates, ranks: int) -> Positions | None:
    """Return the ranking of DetConstSort; None if documents do not have one group each."""
    if len(kind.groups) > 1 or kind.is_fractional or not kind.is_labelled:
        return None
    (members,) = candidates.memberships
    (target,) = candidates.targets
    relevance = relevance_probabilities(candidates)
    return det_const_sort(relevance, members.argmax(axis=1), target, ranks)


def measure(kind: Kind, ranks: int, pools: int) -> Iterator[tuple[str, str, float]]:
    """Yield the figures of pools of a kind: the system, the name of the figure, and its value.

    Args:
        kind: What documents belong to.
        ranks: How many documents a ranking has.
        pools: How many pools to draw.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for seed in range(pools):
        candidates = pool(np.random.default_rng(seed), kind, ranks)
        start = time.perf_counter()
        fair = STEP.take(candidates, ranks).positions
        ranked = time.perf_counter()
        certify(candidates, STEP, 1.0, ranks, fair.tolist())
        certified = time.perf_counter()
        seconds["certificate"].append(certified - ranked)
        seconds["fair"].append(ranked - start)

        objective = STEP.objective(candidates, 1.0, ranks)
        for name, ranking in _rankings(kind, candidates, ranks, fair).items():
            if ranking is not None:
                relaxed = relax(objective, ranking, **NEARLY)
                ratios[name].append(objective.quality(ranking).value / relaxed.bound)
        if ranks <= MOST_RANKS_OF_POLICY and kind.is_labelled:
            policy = lp_policy(candidates, ranks)
            bound = relax(objective, fair, **NEARLY).bound_of_mixtures
            ratios["lp-policy"].append(value_of(objective, policy) / bound)

    for name, values in ratios.items():
        yield name, "median", median(values)
        yield name, "least", min(values)
    for name, values in seconds.items():
        yield name, "ms", 1000 * median(values)


def _rankings(
    kind: Kind, candidates: Candidates, ranks: int, fair: Positions
) -> dict[str, Positions | None]:
    """Return the rankings to compare, by the system."""
    rankings: dict[str, Positions | None] = {"fair": fair, "relevance": np.arange(ranks)}
    if ranks <= MOST_RANKS_OF_PEERS:
        for name in PEERS:
            rankings[name] = ranked_by(name, candidates, ranks)
        rankings["det-const-sort"] = sorted_by_constraints(kind, candidates, ranks)
    return rankings


def _print_table(figures: pd.DataFrame) -> None:
    """Print a row for each kind of pools, number of ranks and system."""
    wide = figures.pivot_table("value", COLUMNS[:3], "measure", sort=False).reset_index()
    shown = Table("pools", "ranks", "system", "median of J / bound", "least", "ms")
    for row in wide.itertuples():
        cells = (_cell(row.median, 4), _cell(row.least, 4), _cell(row.ms, 1))
        shown.add_row(row.pools, row.ranks, row.system, *cells)
    Console().print(shown)


def _cell(value: float, digits: int) -> str:
    return "" if np.isnan(value) else f"{value:.{digits}f}"


def main() -> None:
    """Print the table, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, default=20, help="how many of each kind")
    parser.add_argument("--ranks", type=int, nargs="*", default=[10, 20, 50, 100, 200])
    parser.add_argument("-o", "--output", type=Path, help="where measures.csv goes")
    arguments = parser.parse_args()
    cells = [*itertools.product(kinds(), arguments.ranks)]
    rows: list[tuple[str, str, str, str, float]] = []
    for kind, ranks in track(cells, console=Console(stderr=True)):
        for system, figure, value in measure(kind, ranks, arguments.pools):
            rows.append((kind.name, str(ranks), system, figure, value))
    figures = pd.DataFrame(rows, columns=COLUMNS)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        figures.to_csv(arguments.output / "measures.csv", index=False)
    _print_table(figures)


if __name__ == "__main__":
    main()
