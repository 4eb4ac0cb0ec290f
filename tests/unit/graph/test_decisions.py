"""When the loop stops, which round is best, whom it helps, and what it cannot be asked."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fairqr.agents.refiners.refiner import Refinement
from fairqr.base.errors import InputError, TargetError
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import Reached, Round
from fairqr.graph.search.stopping import (
    best_of,
    decide_stop,
    expected_gain,
    groups_to_ask_about,
)
from fairqr.graph.search.words import Answers, after_refinement, refined_queries
from fairqr.retrieval.fairness.divergence import Lack


def rounds(*divergences: float | None, objectives: Sequence[Reached | None] = ()) -> list[Round]:
    """Rounds, by default of a method without the fair step."""
    return [
        Round(
            index=index,
            queries=[],
            refinements=[],
            exposure={},
            divergences={"gender": divergence},
            divergence=divergence,
            unknown={},
            objective=objective,
        )
        for index, (divergence, objective) in enumerate(
            zip(divergences, objectives or [None] * len(divergences), strict=True)
        )
    ]


def reached(relevance: float, value: float, **other: float) -> Reached:
    """What the fair step reached: V, and J at a weight of 1."""
    usual = {"weight": 1.0, "undefined": 0, "missed": 0, "most": 1.0}
    fairness = value / relevance
    return Reached(relevance=relevance, fairness=fairness, value=value, **usual | other)


def judged(*objectives: Reached) -> list[Round]:
    """Rounds of the default method, with ever larger divergences, which must not count."""
    return rounds(*(0.1 * index for index in range(len(objectives))), objectives=objectives)


@pytest.mark.parametrize(
    ("divergences", "settings", "expected"),
    [
        ([0.005], {}, "converged"),
        ([0.0051], {}, None),
        ([0.5, 0.5], {}, "no_improvement"),
        ([0.5, 0.6], {"patience": 2}, None),
        ([0.5, 0.6, 0.55], {"patience": 2}, "no_improvement"),
        ([0.5, 0.4, 0.3], {"max_iterations": 2}, "max_iterations"),
        ([None, None], {}, "no_improvement"),
        ([None, 0.5], {}, None),
        ([0.0], {"threshold": 0.0}, "converged"),
    ],
)
def test_when_the_papers_loop_stops(
    divergences: list[float | None], settings: dict[str, object], expected: str | None
) -> None:
    context = Context.of(method="fair-qr", **settings)
    assert decide_stop(rounds(*divergences), context) == expected


class TestStopOfTheDefaultMethod:
    """By the objective J that the rounds reached, never by their divergence."""

    @pytest.mark.parametrize(
        ("values", "settings", "expected"),
        [
            ([0.4, 0.5], {"ask": "always"}, None),
            ([0.5, 0.4], {"ask": "always"}, "no_improvement"),
            ([0.5, 0.4, 0.45], {"ask": "always", "patience": 2}, "no_improvement"),
            ([0.5, 0.4, 0.6], {"ask": "always", "patience": 2}, None),
            ([0.4, 0.5, 0.6], {"ask": "always", "max_iterations": 2}, "max_iterations"),
            ([0.4], {"ask": "never"}, "not_refining"),
            ([0.8], {"ask": "always", "least_gain": 9}, None),
        ],
    )
    def test_by_the_rounds_so_far(
        self, values: list[float], settings: dict[str, object], expected: str | None
    ) -> None:
        context = Context.of(**settings)
        found = judged(*(reached(0.9, value) for value in values))
        assert decide_stop(found, context) == expected

    @pytest.mark.parametrize(
        ("share", "relevance", "fairness", "gain"),
        [
            (0.2, 0.9, 0.8, 0.2 * 0.28),
            (0.2, 0.5, 1.0, 0.1),
            (0.2, 1.0, 1.0, 0.0),
            (0.0, 0.1, 0.1, 0.0),
        ],
    )
    def test_a_model_promises_a_share_of_what_lacks(
        self, share: float, relevance: float, fairness: float, gain: float
    ) -> None:
        assert expected_gain(share, relevance, fairness) == pytest.approx(gain)

    def test_it_asks_only_a_model_that_promises_the_least_gain(self) -> None:
        first = judged(reached(0.9, 0.3))
        assert decide_stop(first, Context(), promised=0.01) is None
        assert decide_stop(first, Context(), promised=0.0099) == "little_to_gain"
        assert decide_stop(first, Context(least_gain=0.1), promised=0.05) == "little_to_gain"

    def test_a_model_that_helps_nowhere_is_never_asked(self) -> None:
        context = Context(least_gain=0)
        assert decide_stop(judged(reached(0.9, 0.3)), context) == "little_to_gain"

    def test_what_a_second_round_brings_was_not_measured(self) -> None:
        both = judged(reached(0.9, 0.3), reached(0.9, 0.6))
        assert decide_stop(both, Context(), promised=0.5) == "little_to_gain"
        assert decide_stop(both, Context(ask="always")) is None

    def test_rounds_are_compared_by_relevance_that_is_not_a_share(self) -> None:
        """More relevant documents lower V of the same list, but must not make it look worse."""
        assert best_of(judged(reached(0.9, 0.8), reached(0.6, 0.5, most=2.0))).index == 1
        assert best_of(judged(reached(0.9, 0.8), reached(0.9, 0.8, most=1.0))).index == 0
        labelled = reached(0.9, 0.1)
        assert best_of(judged(reached(0.9, 0.8, undefined=1), labelled)).index == 1

    def test_a_stated_target_is_reached_before_all_else(self) -> None:
        """Each round pursues it with the lowest weight that comes as near as any."""
        missed = reached(0.9, 0.7, weight=1.0, missed=9)
        dear = reached(0.9, 0.3, weight=64.0, missed=0)
        cheap = reached(0.9, 0.2, weight=4.0, missed=0)
        nearer = reached(0.5, 0.2, weight=256.0, missed=5)

        assert best_of(judged(missed, dear)).index == 1
        assert best_of(judged(missed, dear, cheap, dear)).index == 2
        assert best_of(judged(missed, nearer)).index == 1


def test_the_loop_helps_groups_that_lack_exposure() -> None:
    target = {"place": {"a": 0.5, "b": 0.3, "c": 0.2}, "age": {"x": 0.6, "y": 0.4}}
    exposure = {"place": {"a": 0.1, "b": 0.2, "c": 0.7}, "age": {"x": 0.35, "y": 0.65}}
    lacking = [("place", "a"), ("age", "x"), ("place", "b")]
    others = [("place", "c"), ("age", "y")]

    assert groups_to_ask_about(target, exposure, "lacking", 9) == lacking
    assert groups_to_ask_about(target, exposure, "lacking", 2) == lacking[:2]
    assert groups_to_ask_about(target, exposure, "most", 9) == lacking[:1]
    assert groups_to_ask_about(target, target, "all", 9) == []
    assert sorted(groups_to_ask_about(target, exposure, "all", 9)) == sorted(lacking + others)
    assert groups_to_ask_about(target, exposure, "all", 3) == lacking


@pytest.mark.parametrize(
    ("target", "exposure", "helped"),
    [
        # Documents without a label are nobody to search for.
        ({"x": 0.2, "unknown": 0.8}, {"x": 0.1, "unknown": 0.0}, "x"),
        # A small lack counts only if there is no other.
        ({"x": 0.5, "y": 0.3, "z": 0.2}, {"x": 0.4, "y": 0.295, "z": 0.305}, "x"),
        ({"x": 0.5, "y": 0.3, "z": 0.2}, {"x": 0.497, "y": 0.296, "z": 0.207}, "y"),
    ],
    ids=["unknown", "small lack", "small lacks alone"],
)
def test_one_group_of_several_is_helped(
    target: dict[str, float], exposure: dict[str, float], helped: str
) -> None:
    groups = groups_to_ask_about({"age": target}, {"age": exposure}, "lacking", 9)

    assert groups == [("age", helped)]


@pytest.mark.parametrize(
    ("by", "helped"),
    [("difference", "large"), ("ratio", "small"), ("divergence", "middle")],
)
def test_by_what_a_group_lacks_most_is_a_choice(by: Lack, helped: str) -> None:
    target = {"place": {"large": 0.66, "middle": 0.3, "small": 0.04, "rest": 0.0}}
    exposure = {"place": {"large": 0.4, "middle": 0.06, "small": 0.001, "rest": 0.539}}
    assert groups_to_ask_about(target, exposure, "most", 9, by) == [("place", helped)]
    assert groups_to_ask_about(target, target, "most", 9, by) == []
    assert groups_to_ask_about(target, exposure, "most", 0, by) == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"method": "best"}, "'method'.*'fairqr', 'fair-qr'"),
        ({"depth": 5, "k": 10}, "depth is 5, but k is 10"),
        ({"fairness_weight": float("inf")}, "'fairness_weight'"),
        ({"target": "uniform:2"}, "sum to 1"),
        ({"target": {"shares": {"gender": {"female": -1, "male": 2}}}}, "target"),
        ({"target": "relevance:0.5,population:0.5"}, "'relevance' is only available in evalu"),
        ({"ranking": {"window": 10}}, "names? a ranker|none does here"),
        ({"method": "listwise", "ranking": {"window": 1}}, "'ranking.window' is wrong"),
        ({"method": "listwise", "ranking": {"window": 5, "step": 5}}, "step is 5"),
        ({"method": "listwise", "ranking": {"windows": 5}}, "'ranking.windows' is wrong"),
        ({"method": "fairqr", "rerank": "listwise"}, "which listwise does not make"),
        ({"method": "fair-qr", "ask": "auto"}, "set ask to always or never"),
        (
            {"method": "fairqr", "final_round": "last"},
            "nothing reads final_round",
        ),
        ({"method": "fair-qr", "final_round": "first"}, "'final_round'"),
        ({"alpha": float("nan")}, "'answer.alpha' is wrong"),
    ],
)
def test_a_wrong_parameter_is_named(values: dict[str, Any], named: str) -> None:
    """In a sentence, and the same in a search and in an answer, which has some of its own."""
    makers: list[Callable[..., object]] = [AnswerContext.of]
    if "answer." not in named:
        makers.append(Context.of)
    for make in makers:
        with pytest.raises(InputError, match=named) as caught:
            make(**values)
        assert "\n" not in str(caught.value)
        # Programs know the error of a target that is a text by its class.
        assert isinstance(caught.value, TargetError) or not isinstance(values.get("target"), str)


def test_a_context_wins_over_its_method() -> None:
    """Whether or not its strategy was asked for before."""
    context = Context(method="fair-qr", k=10)
    assert context.strategy.depth == 10
    changed = context.model_copy(update={"method": "baseline", "depth": 30, "final_step": "none"})
    assert (changed.strategy.depth, changed.strategy.final_step) == (30, "none")
    assert (changed.strategy.refines, changed.rounds) == (False, 0)


@pytest.mark.parametrize(
    "copied",
    [
        lambda context: pickle.loads(pickle.dumps(context)),
        lambda context: Context.model_validate(context.model_dump()),
    ],
    ids=["pickle", "values"],
)
def test_a_copied_context_has_the_same_strategy(copied: Callable[[Context], Context]) -> None:
    context = Context(method="fair-qr", k=10)
    assert context.strategy.depth == 10
    copy = copied(context)

    assert (copy, copy.strategy) == (context, context.strategy)
    assert copy.model_copy(update={"rerank": "none"}).strategy.rerank == "none"


@pytest.mark.promise("graph")
def test_the_papers_query_grows_by_all_words() -> None:
    """In `fair-qr`, our reading of FAIR-QR, the query grows by all words."""
    male = ("gender", "male")
    context = Context(method="fair-qr")
    woman = {"keywords": ["woman"], "phrases": [], "names": [], "passage": ""}
    state: Any = {
        "query": "physics",
        "iterations": [{}],
        "topic": None,
        "words": {"gender": {"female": woman}},
    }
    answers = Answers(None, {male: Refinement("ok", keywords=("man",))})
    update: Any = after_refinement(state, context, answers)
    (query,) = refined_queries({**state, **update}, context)
    assert (query["text"], query["group"]) == ("physics woman man", "male")
