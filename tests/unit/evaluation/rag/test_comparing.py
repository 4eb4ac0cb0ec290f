"""What policies say together: means over queries, tests between them, curves and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fairqr.base.statistics import holm, paired_randomisation, stream
from fairqr.evaluation.rag.analysis.cells import Cell, Counts
from fairqr.evaluation.rag.analysis.comparing import (
    compare_policies,
    curve_of,
    excess_tests,
    interval_table,
)
from fairqr.evaluation.rag.analysis.frames import by_query, frame_of, mean_of
from fairqr.evaluation.rag.analysis.names import Name
from fairqr.evaluation.rag.records import PolicyRecord
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
    return Cell(record, {name: values.get(name, MISSING) for name in Name}, {}, Counts())


def _frame(*cells: Cell) -> Any:
    return frame_of(cells)[0]


def test_means_are_over_queries_and_seeds_are_averaged_first() -> None:
    cells = _frame(
        _cell("a", {Name.EU: 0.0}),
        _cell("a", {Name.EU: 1.0}, seed=1),
        _cell("b", {Name.EU: 0.0}),
        _cell("c", {Name.EU: Undefined(Reason.NO_ANSWER)}),
    )
    found = mean_of(cells, Name.EU)
    assert (found.mean, found.queries) == (0.25, 2)
    assert np.isnan(found.low), "two queries are too few for an interval"
    assert by_query(cells, Name.EU).to_dict() == {("c", "a"): 0.5, ("c", "b"): 0.0}
    assert np.isnan(mean_of(cells, Name.EAR).mean)


def test_names_stand_in_order() -> None:
    cells = _frame(
        _cell("a", {}, policy="oracle", alpha=None, retriever=""),
        _cell("a", {}, policy="deterministic", alpha=None, retriever="z"),
        _cell("a", {}, alpha=16.0),
        _cell("a", {}, alpha=0.5),
    )
    assert list(cells.policy.cat.categories) == ["α = 0.5", "α = 16", "deterministic", "oracle"]
    assert list(cells.retriever.cat.categories) == ["z", "r", ""]


def _p(values: Any, name: str) -> float:
    found = paired_randomisation(values, stream(0, name))
    assert found is not None
    return found.p


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
    found = compare_policies(cells, Name.EE_D)
    assert found[["one", "other"]].to_numpy().tolist() == [
        ["α = 1", "α = 2"],
        ["α = 1", "α = 4"],
        ["α = 2", "α = 4"],
    ]
    for row in found.itertuples():
        one, other = (values[float(name.removeprefix("α = "))] for name in (row.one, row.other))
        shared = 8 if row.other == "α = 4" else 9
        assert row.queries == shared
        assert row.difference == pytest.approx(np.mean((other - one)[:shared]))
        # Up to 16 queries all assignments are counted, so any stream gives the same.
        assert row.p == pytest.approx(_p((other - one)[:shared], "any"))
    assert found.p_corrected.tolist() == pytest.approx(holm(found.p.tolist()))
    assert found.holds.tolist() == (found.p_corrected <= 0.05).tolist()


def test_five_queries_show_nothing() -> None:
    cells = _frame(
        *(
            _cell(f"q{i}", {Name.EE_D: alpha + i / 100}, alpha=alpha)
            for alpha in (1.0, 2.0)
            for i in range(5)
        )
    )
    (row,) = compare_policies(cells, Name.EE_D).itertuples()
    assert row.difference == 1
    assert not row.holds


def test_concentration_is_tested_over_all_generators_and_policies() -> None:
    cells = _frame(
        *(
            _cell(f"q{i}", {Name.SHARE_EXCESS: excess + i / 100}, generator=name, alpha=alpha)
            for name, excess in (("g", 0.3), ("h", -0.035))
            for alpha in (1.0, 2.0)
            for i in range(8)
        )
    )
    found = excess_tests(cells).set_index(["generator", "policy"])
    assert found.excess["g", "α = 1"] == pytest.approx(0.335)
    assert found.holds.to_dict() == {
        ("g", "α = 1"): True,
        ("g", "α = 2"): True,
        ("h", "α = 1"): False,
        ("h", "α = 2"): False,
    }
    assert found.p_corrected["g", "α = 1"] == pytest.approx(4 * 2 / 2**8)
    rounding = _frame(*(_cell(f"q{i}", {Name.SHARE_EXCESS: 1e-17}) for i in range(9)))
    assert not excess_tests(rounding).holds.any()


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
    found, outside = interval_table(cells, Name.EE_D, Name.EU_MAX)
    (own,) = outside.itertuples()
    assert (own.deterministic, own.queries) == (pytest.approx(0.375), 2)
    assert (own.fixed, own.left_out) == (1, 2)
    assert found.pairs.tolist() == [3, 1, 0, 1, 1]
    assert found.queries.tolist() == [2, 1, 0, 1, 1]
    # The two of the query a are averaged first, for the difference and for the test.
    assert found.difference[0] == pytest.approx((-0.2 + 0.75) / 2)
    assert found.p[0] == pytest.approx(_p([-0.2, 0.75], "any"))
    assert np.isnan(found.difference[2])
    assert np.isnan(found.p_corrected[2])


def test_every_pair_is_in_one_place_and_tests_are_corrected_over_the_table() -> None:
    """The rows of both tables stand in the order of the cells, whatever names sort like."""
    random = np.random.default_rng(2)
    cells = []
    for generator in ("h", "g"):
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
    found, outside = interval_table(_frame(*cells), Name.EE_D, Name.EU_MAX)
    assert outside.generator.tolist() == ["h", "g"]
    assert found.groupby("generator", sort=False).pairs.sum().to_dict() == {"h": 100, "g": 100}
    assert found.generator.tolist() == ["h"] * 5 + ["g"] * 5
    assert found.p_corrected.tolist() == pytest.approx(holm(found.p.tolist()))
