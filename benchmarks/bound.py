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
"""How many documents there are for so many ranks."""
GROUPS = (2, 6, 20)
LABELLED = 0.8
"""The share of documents with a label where some are missing."""
FRACTIONAL = 0.3
"""The share of documents that belong to several groups where some do."""
STEP = FairStep(order="estimated")
PEERS = ("exposure-aware", "xquad", "pm2", "fa-ir")
"""The re-rankers that need neither texts nor training."""
MOST_RANKS_OF_PEERS = 50
MOST_RANKS_OF_POLICY = 20
"""The programme has a variable for each document at each rank."""
NEARLY = {"tolerance": 1e-5, "most_steps": 2_000}
"""The bound that rankings are compared with is nearer to the optimum than that of a certificate."""
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
    # Re-rankers take the order of the candidates, and their scores, for that of relevance.
    relevance = np.sort(draw.beta(1, 3, count))[::-1]
    return Candidates(
        ranking=Ranking([str(place) for place in range(count)], relevance.tolist()),
        memberships=memberships,
        targets=targets,
        dimensions=[str(place) for place in range(len(kind.groups))],
        groups=[[f"group {group}" for group in range(size)] for size in kind.groups],
        relevance=relevance,
    )


def ranked_by(name: str, candidates: Candidates, ranks: int) -> Positions | None:
    """Return the ranking of a re-ranker; None if it takes no such candidates."""
    nowhere: Any = None  # these read nothing from an engine
    work = open_reranker(name).rerank(nowhere, "", candidates, ranks)
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
    """Yield the figures of so many pools of a kind: of a system, its name, and the value."""
    ratios: dict[str, list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for seed in range(pools):
        candidates = pool(np.random.default_rng(seed), kind, ranks)
        started = time.perf_counter()
        fair = STEP.take(candidates, ranks).positions
        is_ranked = time.perf_counter()
        certify(candidates, STEP, 1.0, ranks, fair.tolist())
        seconds["certificate"].append(time.perf_counter() - is_ranked)
        seconds["fair"].append(is_ranked - started)
        rankings: dict[str, Positions | None] = {"fair": fair, "relevance": np.arange(ranks)}
        if ranks <= MOST_RANKS_OF_PEERS:
            rankings |= {name: ranked_by(name, candidates, ranks) for name in PEERS}
            rankings["det-const-sort"] = sorted_by_constraints(kind, candidates, ranks)
        objective = STEP.objective(candidates, 1.0, ranks)
        for name, ranking in rankings.items():
            if ranking is not None:
                relaxed = relax(objective, ranking, **NEARLY)
                ratios[name].append(objective.quality(ranking).value / relaxed.bound)
        if ranks <= MOST_RANKS_OF_POLICY and kind.is_labelled:
            policy = lp_policy(candidates, ranks)
            of_mixtures = relax(objective, fair, **NEARLY).bound_of_mixtures
            ratios["lp-policy"].append(value_of(objective, policy) / of_mixtures)
    for name, values in ratios.items():
        yield name, "median", median(values)
        yield name, "least", min(values)
    for name, values in seconds.items():
        yield name, "ms", 1000 * median(values)


def main() -> None:
    """Print the table, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, default=20, help="how many of each kind")
    parser.add_argument("--ranks", type=int, nargs="*", default=[10, 20, 50, 100, 200])
    parser.add_argument("-o", "--output", type=Path, help="where measures.csv goes")
    given = parser.parse_args()
    cells = [(kind, ranks) for kind in kinds() for ranks in given.ranks]
    rows: list[tuple[str, str, str, str, float]] = []
    for kind, ranks in track(cells, console=Console(stderr=True)):
        for system, figure, value in measure(kind, ranks, given.pools):
            rows.append((kind.name, str(ranks), system, figure, value))
    found = pd.DataFrame(rows, columns=COLUMNS)
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        found.to_csv(given.output / "measures.csv", index=False)
    wide = found.pivot_table("value", COLUMNS[:3], "measure", sort=False).reset_index()
    shown = Table("pools", "ranks", "system", "median of J / bound", "least", "ms")
    for row in wide.itertuples():
        figures = [row.median, row.least, row.ms]
        texts = ["" if value != value else f"{value:.4f}" for value in figures[:2]]
        texts.append("" if row.ms != row.ms else f"{row.ms:.1f}")
        shown.add_row(row.pools, row.ranks, row.system, *texts)
    Console().print(shown)


if __name__ == "__main__":
    main()
