"""Intervals of all figures hold as often as they say, in cells of ``benchmarks.audit``."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from fairqr.agents import statistics
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.changes import changes_of
from fairqr.evaluation.audit.figures import ESTIMATES, GroupFigures
from fairqr.evaluation.audit.query_figures import QueryFigures
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.table import coded
from fairqr.retrieval.sources.schema import Schema
from tests.unit.evaluation.audit.examples import measured, queries_of
from tests.unit.evaluation.audit.simulated import SHARES, TWO, World, audits, gather, titles, world
from tests.unit.evaluation.audit.test_figures import MIXED, draws

ENOUGH = 300
"""Of fewer intervals, chance alone could put less than 930 of 1,000 right."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PERMUTATIONS", 50)  # tests are checked elsewhere


@functools.cache
def made(groups: int, bias: float, error: float = 0.0) -> World:
    return world(SHARES[groups], bias, seed=2, queries=2_000, error=error)


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("groups", "bias", "error", "relevance", "size", "spread", "checked"),
    [
        pytest.param(0, 1.0, 0.0, "estimated", 50, 1.0, 0, id="a rare group of two"),
        pytest.param(1, 0.0, 0.0, "judged", 6, 0.0, 0, id="five groups, six queries"),
        pytest.param(1, 1.0, 0.0, "estimated", 25, 1.0, 0, id="five groups, a bias"),
        pytest.param(2, 0.0, 0.0, "judged", 12, 1.0, 0, id="two groups, weights"),
        pytest.param(2, 1.0, 0.0, "judged", 100, 0.0, 0, id="two groups, a bias"),
        pytest.param(3, 0.0, 0.0, "estimated", 25, 1.0, 0, id="a quarter"),
        pytest.param(3, 1.0, 0.0, "judged", 6, 0.0, 0, id="a quarter, a bias"),
        pytest.param(4, 1.0, 0.0, "estimated", 12, 1.0, 0, id="halves, a bias"),
        pytest.param(2, 1.0, 0.3, "judged", 50, 0.0, 0, id="wrong labels of two groups"),
        pytest.param(2, 1.0, 0.15, "judged", 12, 0.0, 200, id="200 checked labels"),
        pytest.param(1, 0.0, 0.3, "estimated", 25, 1.0, 500, id="500 checked labels"),
    ],
)
def test_true_values_are_in_930_of_1000_intervals(
    groups: int, bias: float, error: float, relevance: str, size: int, spread: float, checked: int
) -> None:
    """Intervals of all figures hold in 930 of 1,000 audits, also where labels are wrong and a
    stated confusion matrix corrects them.

    The matrix is stated, or counted on so many checked documents.
    """
    simulation = made(groups, bias, error)

    outcome = audits(simulation, relevance, size, spread, seed=3, count=500, checked=checked)

    names = [name for name in ESTIMATES if outcome[name] >= ENOUGH]
    assert {"exposure", "target", "attainable", "ranking_gap", "unattainable"} <= set(names)
    rates = {name: outcome[f"{name} held"] / outcome[name] for name in names}
    assert min(rates.values()) >= 0.93, rates


@pytest.mark.parametrize(("error", "size"), [(0.3, 50), (0.15, 12)], ids=["many", "few"])
def test_without_a_matrix_wrong_labels_are_missed(error: float, size: int) -> None:
    """Of two groups: those of five go both ways and nearly even out."""
    simulation = made(2, 1.0, error)
    attribute = simulation.dimension.attribute.model_copy(update={"confusion": None})
    naive = dataclasses.replace(simulation, dimension=Dimension(attribute, (attribute,)))

    missed = audits(naive, "judged", size, 0.0, seed=3, count=60)

    assert min(missed[f"{name} held"] for name in ("exposure", "target")) < 0.8 * 60


def test_the_true_change_of_a_gap_is_in_930_of_1000_intervals() -> None:
    """The same queries, asked of an engine before and after it puts the first group down."""
    random = np.random.default_rng(4)
    fair, _ = draws(3_000, 0.0, seed=9)
    biased, _ = draws(3_000, 1.0, seed=9)
    pairs = zip(fair, biased, strict=True)
    truth = np.mean([before.exposure[0] - after.exposure[0] for before, after in pairs])
    queries = [(str(number), str(number)) for number in range(25)]
    held = 0

    for _ in range(300):
        before = QueryFigures(TWO)
        after = QueryFigures(TWO)
        for position, row in enumerate(random.integers(0, 3_000, 25).tolist()):
            before.add(1.0, fair[row], str(position))
            after.add(1.0, biased[row], str(position))
        change = next(changes_of(before, after, queries)).change
        held += change.low <= truth <= change.high

    assert held >= 0.93 * 300


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("broad", "others"), [(1.0, "same"), (0.5, "unlikely")], ids=["all broad", "half broad"]
)
def test_an_audit_that_looked_at_too_little_never_acquits(
    monkeypatch: pytest.MonkeyPatch, broad: float, others: str
) -> None:
    """An audit never acquits an engine where there is more than it looked at.

    Judgements find the gap; estimates cannot tell, and say of no gap that it would be found.

    That holds although the other titles have no likely relevant document, so that no attainable
    exposure says what the target shares are.
    """
    monkeypatch.setattr(statistics, "PERMUTATIONS", 200)
    simulation = titles(broad, others, seed=2, queries=200)
    judged, estimated = (
        audits(simulation, name, 40, 0.0, seed=3, count=25) for name in simulation.shown
    )

    assert judged["less"] == judged["detectable"] == estimated["saturated"] == 25
    assert estimated["detectable"] == 0


@pytest.mark.promise("audit")
def test_ratios_have_intervals_about_as_narrow_as_a_bootstrap() -> None:
    """Intervals of ratios are not twice as wide as a bootstrap's.

    The median of 40 audits counts; the bootstrap holds the true value in nine of ten.
    """
    simulation = made(2, 1.0)
    random = np.random.default_rng(4)
    wider = []
    for _ in range(40):
        weights = random.lognormal(size=25)
        rows = random.integers(0, 2_000, 25)
        answers: Any = [simulation.shown["judged"][row] for row in rows]
        gathered = gather(answers, weights, simulation.dimension)
        ratio = gathered.figures(random)[0].exposure_ratio
        drawn = random.integers(0, 25, (10_000, 25))
        exposure, target = (
            (weights[drawn, None] * gathered.array(name)[drawn]).sum(axis=1)
            for name in ("exposure", "target")
        )
        rates = exposure / target
        low, high = np.quantile(rates[:, 0] / rates.max(axis=1), [0.025, 0.975])
        wider.append((ratio.high - ratio.low) / (high - low))

    assert np.nanmedian(wider) < 2


@pytest.mark.promise("audit")
@pytest.mark.parametrize("target", ["relevance:1", MIXED], ids=["relevance", "mixed"])
def test_a_wrong_label_is_wrong_in_all_queries(target: str) -> None:
    """Intervals hold the error of wrong labels also of a document that many queries show.

    Each audit has other labels of the same 60 documents, a fifth of which are wrong.
    """
    random = np.random.default_rng(6)
    counts = Counter[str]()
    is_first = np.arange(60) % 3 == 0
    queries = queries_of(40, alike=True)
    rows = {"a": {"a": 0.8, "b": 0.2}, "b": {"a": 0.2, "b": 0.8}}
    gender = {"field": "f", "groups": ["a", "b"], "population": {"a": 0.35, "b": 0.65}}
    orders = [np.argsort(random.normal(size=60) + is_first) for _ in queries.queries]
    relevant = [tuple((random.random(60) < 0.6).astype(float).tolist()) for _ in orders]

    def figures(labels: Any, **confusion: Any) -> GroupFigures:
        members = np.stack([labels, ~labels], axis=1).astype(float)
        observed = [
            Observation(
                query=query.id,
                status="ok",
                ids=tuple(f"d{row}" for row in order[:30]),
                others=tuple(f"d{row}" for row in order[30:]),
                relevance=judged,
                groups=coded({"gender": members[order]}, {"gender"}),
            )
            for query, order, judged in zip(queries.queries, orders, relevant, strict=True)
        ]
        schema = Schema.model_validate({"attributes": {"gender": gender | confusion}})
        options: dict[str, Any] = {"relevance": "judged", "rerank": 0, "target": target}
        return measured(queries, observed, schema=schema, **options).groups[0]

    truth = figures(is_first)
    linear = "ranking_gap" if target == "relevance:1" else "exposure_gap"
    for _ in range(150):
        group = figures(np.where(random.random(60) < 0.2, ~is_first, is_first), confusion=rows)
        assert group.tested == linear, "what relevant documents could give to others is not linear"
        for name in ("exposure", "target", linear):
            estimate = getattr(group, name)
            counts[name] += estimate.low <= getattr(truth, name).value <= estimate.high
    assert min(counts.values()) >= 0.93 * 150, counts
