"""What policies say together: means over queries, tests between them, curves and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fairqr.agents.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.evaluation.rag.comparing import (
    curve_of,
    differences_of,
    intervals_of,
)
from fairqr.evaluation.rag.measures import Cell, Name
from fairqr.evaluation.rag.measuring import frame_of, means_of
from fairqr.evaluation.rag.store import PolicyRecord
from fairqr.evaluation.scores import Reason, Score, Undefined

MISSING = Undefined(Reason.MISSING)


def _cell(query: str, values: Mapping[Name, Score], **changes: Any) -> Cell:
    facts: dict[str, Any] = {
        "collection": "c",
        "generator": "g",
        "retriever": "r",
        "policy": "plackett-luce",
        "alpha": 1.0,
        "seed": 0,
        "k": 1,
    }
    record = PolicyRecord(query=query, **facts | changes)
    return Cell(record, {name: values.get(name, MISSING) for name in Name}, {}, {})


def _frame(*cells: Cell) -> Any:
    return frame_of(cells)[0]


def test_means_are_over_queries_and_seeds_are_averaged_first() -> None:
    values = _frame(
        _cell("a", {Name.EU: 0.0}),
        _cell("a", {Name.EU: 1.0}, seed=1),
        _cell("b", {Name.EU: 0.0}),
        _cell("c", {Name.EU: Undefined(Reason.NO_ANSWER)}),
    )
    worth, rate = means_of(values, ["retriever"], [Name.EU, Name.EAR]).itertuples()
    assert (worth.retriever, worth.measure, worth.mean, worth.queries) == ("r", "EU", 0.25, 2)
    assert np.isnan(worth.low), "two queries are too few for an interval"
    assert np.isnan(rate.mean)
    assert rate.queries == 0


def test_intervals_of_means_are_students() -> None:
    drawn = np.random.default_rng(0).random(9)
    values = _frame(*(_cell(f"q{i}", {Name.EU: float(x)}) for i, x in enumerate(drawn)))
    (own,) = means_of(values, ["retriever"], [Name.EU]).itertuples()
    expected = stats.t.interval(0.95, 8, drawn.mean(), stats.sem(drawn))
    assert (own.low, own.high) == pytest.approx(expected)


def test_names_stand_in_order() -> None:
    cells = _frame(
        _cell("a", {}, policy="oracle", alpha=None, retriever=""),
        _cell("a", {}, policy="deterministic", alpha=None, retriever="z"),
        _cell("a", {}, alpha=16.0),
        _cell("a", {}, alpha=0.5),
    )
    assert list(cells.policy.cat.categories) == ["α = 0.5", "α = 16", "deterministic", "oracle"]
    assert list(cells.retriever.cat.categories) == ["z", "r", ""]


def _p(values: Any) -> float:
    found = paired_randomisation(values, stream(0, "any"))
    assert found is not None
    return found


def test_policies_are_compared_by_randomisation_with_holm() -> None:
    random = np.random.default_rng(0)
    values = {alpha: random.random(9) + alpha / 10 for alpha in (1.0, 2.0, 4.0)}
    cells = _frame(
        *(
            _cell(f"q{i}", {Name.EE_D: float(value)}, alpha=alpha)
            for alpha, row in values.items()
            for i, value in enumerate(row)
            if (alpha, i) != (4.0, 8)
        )
    )
    found = differences_of(cells)
    assert found[["one", "other"]].to_numpy().tolist() == [
        ["α = 1", "α = 2"],
        ["α = 1", "α = 4"],
        ["α = 2", "α = 4"],
    ]
    alone = []
    for row in found.itertuples():
        one, other = (values[float(name.removeprefix("α = "))] for name in (row.one, row.other))
        shared = 8 if row.other == "α = 4" else 9
        assert row.queries == shared
        assert row.difference == pytest.approx(np.mean((other - one)[:shared]))
        # Up to 16 queries all assignments are counted, so any stream gives the same.
        alone.append(_p((other - one)[:shared]))
    assert found.p.tolist() == pytest.approx(corrected_by_holm(alone))
    assert found.holds.tolist() == (found.p <= 0.05).tolist()
    assert set(found.tests) == {3}


@pytest.mark.parametrize(
    ("queries", "alphas", "too_few"),
    [(5, 2, True), (6, 2, False), (7, 3, False), (7, 4, True), (8, 4, False)],
)
def test_too_few_queries_for_the_family_are_said_to_be(
    queries: int, alphas: int, too_few: bool
) -> None:
    """As different as can be: a difference holds if, and only if, one could."""
    values = _frame(
        *(
            _cell(f"q{i}", {Name.EE_D: alpha + i / 100}, alpha=float(alpha))
            for alpha in range(alphas)
            for i in range(queries)
        )
    )
    found = differences_of(values)
    assert set(found.too_few) == {too_few}
    assert set(found.holds) == {not too_few}


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20)),
        min_size=2,
        max_size=6,
        unique_by=lambda point: point[0],
    )
)
def test_slope_and_area_are_those_of_scipy(points: list[tuple[int, int]]) -> None:
    scaled = [(x / 20, y / 20) for x, y in points]
    found = curve_of(*zip(*scaled, strict=True))
    x, y = zip(*sorted(scaled), strict=True)
    assert found["slope"] == pytest.approx(stats.linregress(x, y).slope, abs=1e-9)
    assert found["area"] == pytest.approx(integrate.trapezoid(y, x))
    assert (found["low"], found["high"], found["points"]) == (x[0], x[-1], len(points))
    assert min(y) - 1e-9 <= found["height"] <= max(y) + 1e-9


def test_points_above_each_other_are_averaged_and_alone_give_neither() -> None:
    found = curve_of([0.0, 0.5, 0.5, 1.0], [0.0, 0.2, 0.6, 1.0])
    assert found["area"] == pytest.approx(0.5 * 0.2 + 0.5 * 0.7)
    upright = curve_of([0.5, 0.5], [0.2, 0.6])
    assert all(np.isnan(upright[name]) for name in ("slope", "area", "height"))
    assert (upright["low"], upright["points"]) == (0.5, 2)
    assert curve_of([], [])["points"] == 0


def _pair(query: str, alpha: float, x: Score, y: Score, seed: int = 0) -> Cell:
    return _cell(query, {Name.EE_D: x, Name.EU_MAX: y}, alpha=alpha, seed=seed)


def _fixed(query: str, y: Score) -> Cell:
    values = {Name.EE_D: 1.0, Name.EU_MAX: y}
    return _cell(query, values, policy="deterministic", alpha=None)


def test_the_intervals_take_their_lower_end_in_and_the_baseline_stands_outside() -> None:
    cells = _frame(
        _fixed("a", 0.5),
        _fixed("b", 0.25),
        _fixed("no", Undefined(Reason.NO_UTILITY)),
        _pair("a", 0.0, -1e-17, 0.4),
        _pair("a", 1.0, 0.1, 0.2),
        _pair("b", 1.0, 0.19, 1.0),
        _pair("a", 2.0, 0.2, 0.9),
        _pair("b", 2.0, 0.6, 0.25),
        _pair("a", 4.0, 0.999, 0.5),
        _pair("a", 8.0, 1.0, 0.1),
        _pair("b", 8.0, Undefined(Reason.NO_ROOM), 0.1),
        _pair("no", 1.0, 0.3, 0.1),
        _cell("a", {Name.EE_D: 0.1, Name.EU_MAX: 1.0}, policy="oracle", alpha=None, retriever=""),
    )
    found = intervals_of(cells, Name.EE_D, Name.EU_MAX)
    assert found.deterministic.tolist() == pytest.approx([0.375] * 5)
    assert found.deterministic_queries.tolist() == [2] * 5
    assert found.fixed.tolist() == [1] * 5
    assert found.left_out.tolist() == [2] * 5
    assert found.pairs.tolist() == [3, 1, 0, 1, 1]
    assert found.queries.tolist() == [2, 1, 0, 1, 1]
    # The two of the query a are averaged first, for the difference and for the test.
    assert found.difference[0] == pytest.approx((-0.2 + 0.75) / 2)
    alone = [_p(sample) for sample in ([-0.2, 0.75], [0.4], [0.0], [0.0])]
    assert found.p.dropna().tolist() == pytest.approx(corrected_by_holm(alone))
    assert np.isnan(found.difference[2])
    assert np.isnan(found.p[2])


def test_every_pair_is_in_one_place_and_tests_are_corrected_over_the_table() -> None:
    """The rows stand in the order of the cells, whatever names sort like."""
    random = np.random.default_rng(2)
    cells = []
    for generator in ("h", "g"):
        for i in range(20):
            cells.append(
                _cell(
                    f"q{i}",
                    {Name.EE_D: 1.0, Name.EU_MAX: float(random.random())},
                    policy="deterministic",
                    alpha=None,
                    generator=generator,
                )
            )
            cells += [
                _cell(
                    f"q{i}",
                    {Name.EE_D: float(x), Name.EU_MAX: float(random.random())},
                    alpha=float(a),
                    generator=generator,
                )
                for a, x in enumerate(random.random(5))
            ]
    found = intervals_of(_frame(*cells), Name.EE_D, Name.EU_MAX)
    by_generator = found.groupby("generator", observed=True).pairs.sum()
    assert by_generator.to_dict() == {"h": 100, "g": 100}
    assert found.generator.tolist() == ["h"] * 5 + ["g"] * 5
    assert found.generator.cat.categories.tolist() == ["h", "g"]
    assert set(found.tests) == {10}
