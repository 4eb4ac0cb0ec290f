"""When the loop stops, which round is best, and whom it helps."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from fairqr.agents.replies import Usage
from fairqr.base.errors import InputError
from fairqr.graph.search.context import Budget, Context, make_context
from fairqr.graph.search.decisions import (
    best_iteration,
    budget_is_spent,
    decide_stop,
    groups_to_ask_about,
)
from fairqr.graph.search.state import IterationRecord

NOTHING = Usage()
SPENT = Usage(3, 9, 100, 20)


def rounds(*divergences: float | None) -> list[IterationRecord]:
    return [
        IterationRecord(
            index=index,
            queries=[],
            refinements=[],
            ids=[],
            exposure={},
            divergences={"gender": divergence},
            divergence=divergence,
        )
        for index, divergence in enumerate(divergences)
    ]


@pytest.mark.parametrize(
    ("divergences", "settings", "expected"),
    [
        ([0.005], {}, "converged"),
        ([0.0051], {}, None),
        ([0.5], {}, None),
        ([0.5, 0.4], {}, None),
        ([0.5, 0.5], {}, "no_improvement"),
        ([0.5, 0.6], {}, "no_improvement"),
        ([0.5, 0.6], {"patience": 2}, None),
        ([0.5, 0.6, 0.55], {"patience": 2}, "no_improvement"),
        ([0.5, 0.6, 0.4], {"patience": 2}, None),
        ([0.5, 0.4, 0.3], {"max_iterations": 2}, "max_iterations"),
        ([0.5], {"max_iterations": 0}, "max_iterations"),
        ([0.005], {"max_iterations": 0}, "converged"),
        ([None], {}, None),
        ([None, None], {}, "no_improvement"),
        ([None, 0.5], {}, None),
        ([0.5, None], {}, "no_improvement"),
        ([0.5, 0.01], {"threshold": 0.0}, None),
        ([0.0], {"threshold": 0.0}, "converged"),
    ],
)
def test_when_the_loop_stops(
    divergences: list[float | None], settings: dict[str, object], expected: str | None
) -> None:
    assert decide_stop(rounds(*divergences), make_context(**settings), NOTHING, 0) == expected


@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        ({}, False),
        ({"model_calls": 3}, True),
        ({"model_calls": 4}, False),
        ({"tokens": 120}, True),
        ({"tokens": 121}, False),
        ({"seconds": 5}, True),
        ({"seconds": 6}, False),
        ({"model_calls": 0}, True),
    ],
)
def test_when_a_budget_is_spent(budget: dict[str, float], spent: bool) -> None:
    assert budget_is_spent(Budget(**budget), SPENT, seconds=5) is spent  # type: ignore[arg-type]
    context = Context(budget=Budget(**budget))  # type: ignore[arg-type]
    assert (decide_stop(rounds(0.5), context, SPENT, 5) == "budget") is spent


@given(st.lists(st.one_of(st.none(), st.floats(0, 7)), min_size=1, max_size=8))
def test_the_best_round_has_the_lowest_divergence_and_is_the_first_of_its_kind(
    divergences: list[float | None],
) -> None:
    best = best_iteration(rounds(*divergences))
    defined = [value for value in divergences if value is not None]
    expected = divergences.index(min(defined)) if defined else 0
    assert best == expected


def test_whom_the_loop_helps() -> None:
    target = {"place": {"a": 0.5, "b": 0.3, "c": 0.2}, "age": {"x": 0.6, "y": 0.4}}
    exposure = {"place": {"a": 0.1, "b": 0.2, "c": 0.7}, "age": {"x": 0.35, "y": 0.65}}
    every = [("place", "a"), ("age", "x"), ("place", "b")]
    assert groups_to_ask_about(target, exposure, "lacking", 9) == every
    assert groups_to_ask_about(target, exposure, "lacking", 2) == every[:2]
    assert groups_to_ask_about(target, exposure, "most", 9) == every[:1]
    assert groups_to_ask_about(target, target, "all", 9) == []
    others = [("place", "c"), ("age", "y")]
    assert sorted(groups_to_ask_about(target, exposure, "all", 9)) == sorted(every + others)
    assert groups_to_ask_about(target, exposure, "all", 3) == every


def test_documents_without_a_label_are_nobody_to_search_for() -> None:
    target = {"age": {"x": 0.2, "unknown": 0.8}}
    assert groups_to_ask_about(target, {"age": {"x": 0.1, "unknown": 0.0}}, "most", 1) == [
        ("age", "x")
    ]


def test_a_small_lack_counts_only_if_there_is_no_other() -> None:
    target = {"age": {"x": 0.5, "y": 0.3, "z": 0.2}}
    large = {"age": {"x": 0.4, "y": 0.295, "z": 0.305}}
    small = {"age": {"x": 0.497, "y": 0.296, "z": 0.207}}
    assert groups_to_ask_about(target, large, "lacking", 9) == [("age", "x")]
    assert groups_to_ask_about(target, small, "lacking", 9) == [("age", "y")]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"k": 0}, "'k'"),
        ({"method": "best"}, "'method'.*'fairqr', 'fair-qr'"),
        ({"pool": "all"}, "'pool'"),
        ({"colour": 1}, "'colour'"),
        ({"depth": 5, "k": 10}, "depth is 5, but k is 10"),
        ({"discount": "log3"}, "log3"),
        ({"smoothing": 1}, "'smoothing'"),
        ({"budget": {"seconds": 0}}, r"budget\.seconds"),
        ({"target": "uniform:2"}, "sum to 1"),
    ],
)
def test_a_wrong_parameter_is_named(values: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        make_context(**values)


def test_what_a_context_says_wins_over_its_method() -> None:
    assert Context(method="fair-qr", k=10).strategy.depth == 10
    assert Context(method="fair-qr", depth=50).strategy.depth == 50
    assert Context(final_step="none").strategy.final_step == "none"
    assert Context(rerank="none").strategy.rerank == "none"


class TestStrategyOfAContext:
    def test_a_copy_with_other_values_has_another_strategy(self) -> None:
        """Whether or not the strategy of the first was asked for before."""
        context = Context(method="fair-qr", k=10)
        assert context.strategy.refines
        changed = context.model_copy(update={"method": "plain", "depth": 30})
        assert changed.strategy == Context(method="plain", k=10, depth=30).strategy
        assert not changed.strategy.refines
        assert changed.rounds == 0
        assert context.strategy == Context(method="fair-qr", k=10).strategy
        assert context.model_copy(deep=True).strategy == context.strategy

    def test_a_context_stays_the_same_data(self) -> None:
        """It equals one whose strategy nobody asked for, and is written like it."""
        asked, fresh = Context(method="mmr"), Context(method="mmr")
        assert asked.strategy.final_step == "mmr"
        assert asked == fresh
        assert fresh == asked
        assert asked != Context(method="fa-ir")
        assert asked.model_dump() == fresh.model_dump()
        assert asked.model_dump_json() == fresh.model_dump_json()
        assert repr(asked) == repr(fresh)

    def test_a_context_survives_a_checkpoint(self) -> None:
        """And pickling, by which it reaches workers."""
        context = Context(method="mmr", rerank="fusion", depth=50)
        before = context.strategy
        serde = JsonPlusSerializer(
            allowed_msgpack_modules=[("fairqr.graph.search.context", "Context")]
        )
        for back in (
            serde.loads_typed(serde.dumps_typed(context)),
            pickle.loads(pickle.dumps(context)),
            copy.copy(context),
            copy.deepcopy(context),
            Context.model_validate(context.model_dump()),
        ):
            assert back == context
            assert back.strategy == before
            assert back.model_copy(update={"rerank": "none"}).strategy.rerank == "none"
