"""What policies say together: tests between α, slope and area, five intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fairqr.base.statistics import corrected_by_holm, holm
from fairqr.evaluation.rag.analysis.cells import Cell, Counts
from fairqr.evaluation.rag.analysis.curves import (
    compare_policies,
    curve_of,
    interval_rows,
)
from fairqr.evaluation.rag.analysis.frame import Frame, policy_name
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.records import PolicyRecord
from fairqr.evaluation.scores import Reason, Score, Undefined


def _cell(query: str, values: Mapping[Name, Score], **changes: Any) -> Cell:
    facts: dict[str, Any] = {
        "collection": "c", "generator": "g", "retriever": "r", "policy": "plackett-luce",
        "alpha": 1.0, "seed": 0, "query": query, "k": 2,
    }  # fmt: skip
    missing = dict.fromkeys(Name, Undefined(Reason.MISSING))
    return Cell(PolicyRecord(**(facts | changes)), {**missing, **values}, {}, Counts())


def test_means_are_over_queries_and_seeds_are_averaged_first() -> None:
    frame = Frame(
        [
            _cell("a", {Name.EE_D: 0.2}),
            _cell("a", {Name.EE_D: 0.4}, seed=1),
            _cell("b", {Name.EE_D: 0.9}),
            _cell("b", {Name.EE_D: Undefined(Reason.NO_ROOM)}, seed=1),
            _cell("c", {Name.EE_D: Undefined(Reason.NO_ROOM)}),
        ]
    )
    mean = frame.mean(Name.EE_D)
    assert mean.value == pytest.approx((0.3 + 0.9) / 2)
    assert mean.count == 2
    assert frame.undefined(Name.EE_D) == {Reason.NO_ROOM: 2}
    assert Frame([]).mean(Name.EE_D).value is None


def test_policies_stand_in_order() -> None:
    frame = Frame(
        [
            _cell("a", {}, policy="oracle", alpha=None, retriever=""),
            _cell("a", {}, policy="deterministic", alpha=None),
            _cell("a", {}, alpha=8.0),
            _cell("a", {}, alpha=0.0),
        ]
    )
    names = [policy_name(policy) for policy in frame.policies]
    assert names == ["α = 0", "α = 8", "deterministic", "oracle"]
    assert frame.retrievers == ["r"]


def test_policies_are_compared_by_the_paired_t_test_with_holm() -> None:
    random = np.random.default_rng(0)
    values = {alpha: random.random(9) + alpha / 10 for alpha in (1.0, 2.0, 4.0)}
    frame = Frame(
        [
            _cell(f"q{i}", {Name.EE_D: float(value)}, alpha=alpha)
            for alpha, row in values.items()
            for i, value in enumerate(row)
            if (alpha, i) != (4.0, 8)
        ]
    )
    found = compare_policies(frame, Name.EE_D)
    assert [(test.one[1], test.other[1]) for test in found] == [(1, 2), (1, 4), (2, 4)]
    expected = []
    for test in found:
        one, other = (values[policy[1] or 0.0] for policy in (test.one, test.other))
        shared = 8 if 4.0 in (test.one[1], test.other[1]) else 9
        assert test.count == shared
        assert test.difference == pytest.approx(float(np.mean((other - one)[:shared])))
        expected.append(float(stats.ttest_rel(other[:shared], one[:shared]).pvalue))
    assert [test.p for test in found] == pytest.approx(expected)
    corrected = corrected_by_holm([None, *(test.p for test in found)])
    assert corrected == [None, *map(pytest.approx, holm(expected))]


@settings(max_examples=50, deadline=None)
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
    found = curve_of(scaled)
    assert found is not None
    x, y = zip(*sorted(scaled), strict=True)
    assert found.slope == pytest.approx(stats.linregress(x, y).slope, abs=1e-9)
    assert found.area == pytest.approx(integrate.trapezoid(y, x))
    assert (found.low, found.high, found.points) == (x[0], x[-1], len(points))
    assert found.height is not None
    assert min(y) - 1e-9 <= found.height <= max(y) + 1e-9


def test_points_above_each_other_are_averaged_and_alone_give_neither() -> None:
    found = curve_of([(0.0, 0.0), (0.5, 0.2), (0.5, 0.6), (1.0, 1.0)])
    assert found is not None
    assert found.area == pytest.approx(0.5 * 0.2 + 0.5 * 0.7)
    upright = curve_of([(0.5, 0.2), (0.5, 0.6)])
    assert upright is not None
    assert (upright.slope, upright.area, upright.height) == (None, None, None)
    assert curve_of([]) is None


def _pair(query: str, alpha: float, x: Score, y: Score, seed: int = 0) -> Cell:
    return _cell(query, {Name.EE_D: x, Name.EU_MAX: y}, alpha=alpha, seed=seed)


def _fixed(query: str, y: Score) -> Cell:
    values = {Name.EE_D: 1.0, Name.EU_MAX: y}
    return _cell(query, values, policy="deterministic", alpha=None)


def test_the_intervals_take_their_lower_end_in_and_the_baseline_stands_outside() -> None:
    frame = Frame(
        [
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
            _cell("a", {Name.EE_D: 0.1, Name.EU_MAX: 1.0}, policy="oracle", alpha=None,
                  retriever=""),
        ]
    )  # fmt: skip
    (row,) = interval_rows(frame, Name.EE_D, Name.EU_MAX)
    assert row.deterministic == pytest.approx(0.375)
    assert row.queries == 2
    assert [cell.pairs for cell in row.cells] == [3, 1, 0, 1, 1]
    assert [cell.queries for cell in row.cells] == [2, 1, 0, 1, 1]
    assert row.fixed == 1
    assert row.left_out == 2
    first = row.cells[0]
    # The two of the query a are averaged first, for the difference and for the test.
    assert first.difference == pytest.approx((-0.2 + 0.75) / 2)
    assert first.p == pytest.approx(float(stats.ttest_1samp([-0.2, 0.75], 0).pvalue))
    assert row.cells[2].difference is None


def test_every_pair_is_in_one_place_and_tests_are_corrected_over_the_table() -> None:
    random = np.random.default_rng(2)
    cells = []
    for generator in ("g", "h"):
        for i in range(20):
            cells.append(
                _cell(f"q{i}", {Name.EE_D: 1.0, Name.EU_MAX: float(random.random())},
                      policy="deterministic", alpha=None, generator=generator)
            )  # fmt: skip
            cells += [
                _cell(f"q{i}", {Name.EE_D: float(x), Name.EU_MAX: float(random.random())},
                      alpha=float(a), generator=generator)
                for a, x in enumerate(random.random(5))
            ]  # fmt: skip
    rows = interval_rows(Frame(cells), Name.EE_D, Name.EU_MAX)
    assert [row.generator for row in rows] == ["g", "h"]
    assert all(sum(cell.pairs for cell in row.cells) == 100 for row in rows)
    plain = [cell.p for row in rows for cell in row.cells]
    assert len(plain) == 10
    assert [cell.corrected for row in rows for cell in row.cells] == pytest.approx(
        holm([p for p in plain if p is not None])
    )
