"""What the table of J against the bound compares with: published re-rankers do what they say."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairqr.retrieval.fairness.exposure import LOG2
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import FairStep
from tests.unit.retrieval.rerankers.peers import det_const_sort, lp_policy, value_of

ROOT = Path(__file__).parents[4]


def test_det_const_sort_by_hand() -> None:
    """b is due at ranks 2 and 4; its second document is more relevant than a's second one."""
    relevance = np.array([0.9, 0.5, 0.4, 0.6, 0.55])
    groups = np.array([0, 0, 0, 1, 1])
    found = det_const_sort(relevance, groups, np.array([0.5, 0.5]), 4)
    assert found.tolist() == [0, 3, 4, 1]


def test_det_const_sort_gives_each_prefix_its_minimum() -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        target = draw.dirichlet(np.ones(4))
        groups = draw.integers(4, size=60)
        ranked = det_const_sort(draw.random(60), groups, target, 20)
        assert len(set(ranked.tolist())) == 20
        sizes = np.bincount(groups, minlength=4)
        for length in range(1, 21):
            counts = np.bincount(groups[ranked[:length]], minlength=4)
            assert (counts >= np.minimum(np.floor(length * target), sizes)).all()


def of_two_groups(relevance: list[float], groups: list[int]) -> Candidates:
    ids = [str(place) for place in range(len(groups))]
    return Candidates(
        ranking=Ranking(ids, relevance),
        memberships=[np.eye(2)[groups]],
        targets=[np.array([0.5, 0.5])],
        dimensions=["side"],
        groups=[["left", "right"]],
        relevance=np.array(relevance),
    )


def test_a_policy_by_hand() -> None:
    """Two documents, of which each has to have half of the exposure."""
    first, second = LOG2.weights(2)
    found = lp_policy(of_two_groups([1.0, 0.0], [0, 1]), 2)
    assert found == pytest.approx([(first + second) / 2] * 2)


def test_no_mixture_that_reaches_the_target_is_more_relevant() -> None:
    draw = np.random.default_rng(1)
    groups = [0, 0, 0, 1, 1, 1]
    every = [list(it) for it in itertools.permutations(range(6), 3)]
    for _ in range(10):
        relevance = np.sort(draw.random(6))[::-1]
        found = lp_policy(of_two_groups(relevance.tolist(), groups), 3)
        left = found[:3].sum()
        assert left == pytest.approx(found.sum() / 2)
        # Any mixture of two rankings on both sides of the target that reaches it.
        shares = []
        gains = []
        for ranked in every:
            exposures = np.zeros(6)
            exposures[ranked] = LOG2.weights(3)
            shares.append(exposures[:3].sum() - exposures.sum() / 2)
            gains.append(exposures @ relevance)
        best = max(
            (high * one - low * other) / (high - low)
            for low, one in zip(shares, gains, strict=True)
            for high, other in zip(shares, gains, strict=True)
            if low < 0 < high
        )
        assert found @ relevance == pytest.approx(best)


def test_a_policy_comes_as_near_as_it_can() -> None:
    """The group with one document can at most stand first."""
    found = lp_policy(of_two_groups([0.9, 0.8, 0.7, 0.1], [0, 0, 0, 1]), 3)
    assert found == pytest.approx([*LOG2.weights(3)[1:], 0, 1])


def test_j_of_the_exposures_of_a_ranking_is_its_j() -> None:
    """Also where documents belong to both groups, or lack labels."""
    candidates = of_two_groups([0.9, 0.8, 0.7, 0.6, 0.1], [0, 0, 1, 0, 1])
    candidates.memberships[0][1:3] = [[0.2, 0.8], [0, 0]]
    objective = FairStep().objective(candidates, 1.0, 3)
    for ranked in itertools.permutations(range(5), 3):
        exposures = np.zeros(5)
        exposures[[*ranked]] = LOG2.weights(3)
        value = objective.quality(np.array(ranked)).value
        assert value_of(objective, exposures) == pytest.approx(value)


def test_nothing_in_the_table_is_above_the_bound(tmp_path: Path) -> None:
    """And each system is there for the documents that it takes."""
    command = [sys.executable, "-m", "benchmarks.bound", "--pools", "1", "--ranks", "10"]
    subprocess.run([*command, "-o", tmp_path], check=True, cwd=ROOT, capture_output=True)
    found = pd.read_csv(tmp_path / "measures.csv").pivot_table(
        "value", ["pools", "system"], "measure"
    )
    assert found.least.max() <= 1 + 1e-9
    kinds = {
        system: set(rows.index.get_level_values(0)) for system, rows in found.groupby("system")
    }
    assert kinds["fair"] - kinds["lp-policy"] == {"6 groups, labels missing"}
    assert kinds["det-const-sort"] == {"2 groups", "6 groups", "20 groups"}
