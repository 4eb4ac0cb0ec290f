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
        (0, 1.0, 0.0, "estimated", 50, 1.0, 0),
        (1, 0.0, 0.0, "judged", 6, 0.0, 0),
        (1, 1.0, 0.0, "estimated", 25, 1.0, 0),
        (2, 0.0, 0.0, "judged", 12, 1.0, 0),
        (2, 1.0, 0.0, "judged", 100, 0.0, 0),
        (3, 0.0, 0.0, "estimated", 25, 1.0, 0),
        (3, 1.0, 0.0, "judged", 6, 0.0, 0),
        (4, 1.0, 0.0, "estimated", 12, 1.0, 0),
        (2, 1.0, 0.3, "judged", 50, 0.0, 0),
        (2, 1.0, 0.15, "judged", 12, 0.0, 200),
        (1, 0.0, 0.3, "estimated", 25, 1.0, 500),
    ],
)
def test_true_values_are_in_930_of_1000_intervals(
    groups: int, bias: float, error: float, relevance: str, size: int, spread: float, checked: int
) -> None:
    """Intervals of all figures hold in 930 of 1,000 audits, also where labels are wrong and a
    stated confusion matrix corrects them.

    Where labels are wrong, with the confusion matrix, or with one of so many checked documents.

    Without it, a share of two is missed.
    """
    it = made(groups, bias, error)
    outcome = audits(it, relevance, size, spread, seed=3, count=500, checked=checked)
    given = [name for name in ESTIMATES if outcome[name] >= ENOUGH]
    assert {
        "exposure",
        "target",
        "attainable",
        "ranking_gap",
        "unattainable",
    } <= set(given)
    rates = {name: outcome[f"{name} held"] / outcome[name] for name in given}
    assert min(rates.values()) >= 0.93, rates
    if not error or len(SHARES[groups]) > 2:
        return  # Wrong labels of five groups go both ways and nearly even out.
    attribute = it.dimension.attribute.model_copy(update={"confusion": None})
    naive = dataclasses.replace(it, dimension=Dimension(attribute, (attribute,)))
    missed = audits(naive, relevance, size, spread, seed=3, count=60)
    assert min(missed[f"{name} held"] for name in ("exposure", "target")) < 0.8 * 60


def test_the_true_change_of_a_gap_is_in_930_of_1000_intervals() -> None:
    """The same queries, asked of an engine before and after it puts the first group down."""
    random, held, queries = np.random.default_rng(4), 0, [(str(it), str(it)) for it in range(25)]
    every = [draws(3_000, bias, seed=9)[0] for bias in (0.0, 1.0)]
    truth = np.mean([one.exposure[0] - two.exposure[0] for one, two in zip(*every, strict=True)])
    for _ in range(300):
        rows, sides = random.integers(0, 3_000, 25), [QueryFigures(TWO), QueryFigures(TWO)]
        for side, answers in zip(sides, every, strict=True):
            for place, row in enumerate(rows.tolist()):
                side.add(1.0, answers[row], str(place))
        change = next(changes_of(sides[0], sides[1], queries)).change
        held += change.low <= truth <= change.high
    assert held >= 0.93 * 300


@pytest.mark.promise("audit")
@pytest.mark.parametrize(("broad", "others"), [(1.0, "same"), (0.5, "unlikely")])
def test_an_audit_that_looked_at_too_little_never_acquits(
    monkeypatch: pytest.MonkeyPatch, broad: float, others: str
) -> None:
    """An audit never acquits an engine where there is more than it looked at.

    Judgements find the gap; estimates cannot tell, and say of no gap that it would be found.

    That holds although the other titles have no likely relevant document, so that no attainable
    exposure says what the target shares are.
    """
    monkeypatch.setattr(statistics, "PERMUTATIONS", 200)
    it = titles(broad, others, seed=2, queries=200)
    judged, estimated = (audits(it, name, 40, 0.0, seed=3, count=25) for name in it.shown)
    assert judged["less"] == judged["detectable"] == estimated["saturated"] == 25
    assert estimated["detectable"] == 0


@pytest.mark.promise("audit")
def test_ratios_have_intervals_about_as_narrow_as_a_bootstrap() -> None:
    """Intervals of ratios are not twice as wide as a bootstrap's.

    By the median of 40 audits, where the bootstrap holds the true value in nine of ten.
    """
    it, random, wider = made(2, 1.0), np.random.default_rng(4), []
    for _ in range(40):
        weights, places = random.lognormal(size=25), random.integers(0, 2_000, 25)
        answers: Any = [it.shown["judged"][place] for place in places]
        gathered = gather(answers, weights, it.dimension)
        found = gathered.figures(random)[0].exposure_ratio
        drawn = random.integers(0, 25, (10_000, 25))
        exposure, target = (
            (weights[drawn, None] * gathered.array(name)[drawn]).sum(axis=1)
            for name in ("exposure", "target")
        )
        rates = exposure / target
        low, high = np.quantile(rates[:, 0] / rates.max(axis=1), [0.025, 0.975])
        wider.append((found.high - found.low) / (high - low))
    assert np.nanmedian(wider) < 2


@pytest.mark.promise("audit")
@pytest.mark.parametrize("target", ["relevance:1", MIXED])
def test_a_wrong_label_is_wrong_in_all_queries(target: str) -> None:
    """Intervals hold the error of wrong labels also of a document that many queries show.

    Each audit has other labels of the same 60 documents, a fifth of which are wrong.
    """
    random, held = np.random.default_rng(6), Counter[str]()
    own, queries = np.arange(60) % 3 == 0, queries_of(40, alike=True)
    rows = {"a": {"a": 0.8, "b": 0.2}, "b": {"a": 0.2, "b": 0.8}}
    gender = {"field": "f", "groups": ["a", "b"], "population": {"a": 0.35, "b": 0.65}}
    orders = [np.argsort(random.normal(size=60) + own) for _ in queries.queries]
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
        how = {"relevance": "judged", "rerank": 0, "target": target}
        return measured(queries, observed, schema=schema, **how).groups[0]

    truth, linear = figures(own), "ranking_gap" if target == "relevance:1" else "exposure_gap"
    for _ in range(150):
        it = figures(np.where(random.random(60) < 0.2, ~own, own), confusion=rows)
        assert it.tested == linear, "what relevant documents could give to others is not linear"
        for name in ("exposure", "target", linear):
            found = getattr(it, name)
            held[name] += found.low <= getattr(truth, name).value <= found.high
    assert min(held.values()) >= 0.93 * 150, held
