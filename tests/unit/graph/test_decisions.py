"""When the loop stops, which round is best, whom it helps, and with which queries."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from fairqr.agents.refiner import Refinement
from fairqr.base.errors import InputError, TargetError
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import (
    QueryRecord,
    Reached,
    Round,
    State,
)
from fairqr.graph.search.rounds import (
    EXPECTED_SHARE,
    after_refinement,
    best_of,
    decide_stop,
    expected_gain,
    groups_to_ask_about,
    refined_queries,
    shown,
)


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
        ([0.5, 0.4], {}, None),
        ([0.5, 0.5], {}, "no_improvement"),
        ([0.5, 0.6], {"patience": 2}, None),
        ([0.5, 0.6, 0.55], {"patience": 2}, "no_improvement"),
        ([0.5, 0.6, 0.4], {"patience": 2}, None),
        ([0.5, 0.4, 0.3], {"max_iterations": 2}, "max_iterations"),
        ([0.5], {"max_iterations": 0}, "max_iterations"),
        ([0.005], {"max_iterations": 0}, "converged"),
        ([None, None], {}, "no_improvement"),
        ([None, 0.5], {}, None),
        ([0.5, None], {}, "no_improvement"),
        ([0.0], {"threshold": 0.0}, "converged"),
    ],
)
def test_when_the_papers_loop_stops(
    divergences: list[float | None], settings: dict[str, object], expected: str | None
) -> None:
    context = Context.of(method="fair-qr", **settings)
    assert decide_stop(rounds(*divergences), context) == expected


SHARE = EXPECTED_SHARE[False]


class TestStopOfTheDefaultMethod:
    """By the objective J that the rounds reached, never by their divergence."""

    @pytest.mark.parametrize(
        ("values", "settings", "expected"),
        [
            ([0.4, 0.5], {}, None),
            ([0.4, 0.4], {"ask": "always"}, "no_improvement"),
            ([0.5, 0.4], {"ask": "always"}, "no_improvement"),
            ([0.5, 0.4], {"ask": "always", "patience": 2}, None),
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

    def test_it_asks_only_where_another_round_is_expected_to_add_the_least_gain(self) -> None:
        """V is what J could become; a first round brings a known share of the difference."""
        little, much = reached(0.9, 0.895), reached(0.9, 0.3)
        assert decide_stop(judged(little), Context()) == "little_to_gain"
        assert decide_stop(judged(much), Context()) is None
        assert expected_gain(judged(much), SHARE) == pytest.approx(SHARE * 0.6 / 0.3)
        at_least = expected_gain(judged(much), SHARE)
        for gain, expected in ((at_least, None), (at_least * 1.01, "little_to_gain")):
            context = Context(least_gain=gain)
            assert decide_stop(judged(much), context) == expected
        assert decide_stop(judged(reached(0.9, 0.9)), Context()) == "little_to_gain"
        asked = Context(least_gain=0.05)
        assert decide_stop(judged(much), asked) is None
        by_vectors = decide_stop(judged(much), asked, by_vectors=True)
        assert by_vectors == "little_to_gain", "there, a round brings less"
        nothing_costs = Context(least_gain=0)
        assert decide_stop(judged(reached(0.9, 0.9)), nothing_costs) is None

    def test_what_earlier_rounds_added_says_what_another_will(self) -> None:
        first, left = reached(0.9, 0.3), 0.6
        useful = judged(first, reached(0.9, 0.3 + left / 2))
        share = (SHARE + 1 / 2) / 2
        assert expected_gain(useful, SHARE) == pytest.approx(share * 0.3 / 0.6)
        useless = judged(first, reached(0.9, 0.2))
        assert expected_gain(useless, SHARE) == pytest.approx(SHARE / 2 * 0.7 / 0.2)
        useless = judged(reached(0.9, 0.8), reached(0.9, 0.7))
        assert expected_gain(useless, SHARE) < expected_gain(judged(reached(0.9, 0.7)), SHARE)

    def test_rounds_are_compared_by_relevance_that_is_not_a_share(self) -> None:
        """More relevant documents lower V of the same list, but must not make it look worse."""
        assert best_of(judged(reached(0.9, 0.8), reached(0.6, 0.5, most=2.0))).index == 1
        assert best_of(judged(reached(0.9, 0.8), reached(0.9, 0.8, most=1.0))).index == 0
        labelled = reached(0.9, 0.1)
        assert best_of(judged(reached(0.9, 0.8, undefined=1), labelled)).index == 1

    def test_a_target_of_ones_own_is_reached_before_anything_else_counts(self) -> None:
        """Each round pursues it with the lowest weight that comes as near as any."""
        missed, dear, cheap = (
            reached(0.9, value, weight=weight, missed=points)
            for value, weight, points in ((0.7, 1.0, 9), (0.3, 64.0, 0), (0.2, 4.0, 0))
        )
        assert best_of(judged(missed, dear)).index == 1
        assert best_of(judged(missed, dear, cheap, dear)).index == 2
        nearer = reached(0.5, 0.2, weight=256.0, missed=5)
        assert best_of(judged(missed, nearer)).index == 1


@given(st.lists(st.one_of(st.none(), st.floats(0, 7)), min_size=1, max_size=8))
def test_the_best_round_has_the_lowest_divergence_and_is_the_first_of_its_kind(
    divergences: list[float | None],
) -> None:
    best = best_of(rounds(*divergences)).index
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
        ({"colour": 1}, "'colour'"),
        ({"depth": 5, "k": 10}, "depth is 5, but k is 10"),
        ({"discount": "log3"}, "log3"),
        ({"fairness_weight": -0.1}, "'fairness_weight'"),
        ({"fairness_weight": float("inf")}, "'fairness_weight'"),
        ({"order": "rank"}, "'order'.*'engine' or 'estimated'"),
        ({"budget": {"seconds": 0}}, r"budget\.seconds"),
        ({"target": "uniform:2"}, "sum to 1"),
        ({"target": {"shares": {"gender": {"female": -1, "male": 2}}}}, "target"),
        ({"target": {"parts": {"popularity": 1}}}, "target"),
        ({"target": "relevance:0.5,population:0.5"}, "'relevance' is only available in evalu"),
        ({"rerank": "random"}, "'rerank' is wrong"),
        ({"ranking": {"window": 10}}, "names? a ranker|none does here"),
        ({"method": "listwise", "ranking": {"window": 1}}, "'ranking.window' is wrong"),
        ({"method": "listwise", "ranking": {"window": 5, "step": 5}}, "step is 5"),
        ({"method": "listwise", "ranking": {"windows": 5}}, "'ranking.windows' is wrong"),
        ({"method": "listwise", "ranking": {"by": "bubble"}}, "'ranking.by'"),
        ({"alpha": float("nan")}, "'answer.alpha' is wrong"),
        ({"alpha": 1e6}, "'answer.alpha' is wrong"),
        ({"form": "softmax"}, "'answer.form' is wrong"),
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


def test_a_context_wins_over_its_method_and_survives_copies_checkpoints_and_pickling() -> None:
    """Whether or not its strategy was asked for before."""
    context = Context(method="fair-qr", k=10)
    assert context.strategy.depth == 10
    changed = context.model_copy(update={"method": "plain", "depth": 30, "final_step": "none"})
    assert (changed.strategy.depth, changed.strategy.final_step) == (30, "none")
    assert (changed.strategy.refines, changed.rounds) == (False, 0)
    allowed = [("fairqr.graph.search.context", "Context")]
    serde = JsonPlusSerializer(allowed_msgpack_modules=allowed)
    for back in (
        serde.loads_typed(serde.dumps_typed(context)),
        pickle.loads(pickle.dumps(context)),
        copy.deepcopy(context),
        Context.model_validate(context.model_dump()),
    ):
        assert back == context
        assert back.strategy == context.strategy
        assert back.model_copy(update={"rerank": "none"}).strategy.rerank == "none"


FEMALE, MALE = ("gender", "female"), ("gender", "male")
ALL_WHO_LACK = Context(groups="lacking")


def state(**more: Any) -> State:
    known: dict[str, Any] = {
        "query": "physics",
        "iteration": 0,
        "iterations": [{}],
        "chosen": [FEMALE, MALE],
        "lacking": [FEMALE],
        "keywords": {},
        "topic_words": [],
        **more,
    }
    return cast("State", known)


def asked(update: dict[str, Any], context: Context | None = None, **more: Any) -> list[QueryRecord]:
    """The queries of the round that follows."""
    return refined_queries(cast("State", {**state(**more), **update}), context or Context())


def answer(*keywords: str) -> Refinement:
    return Refinement("ok", keywords)


def test_words_of_the_topic_come_from_all_answers_and_queries_lead_to_who_lacks_exposure() -> None:
    answers = {FEMALE: answer("atom", "woman"), MALE: answer("quantum", "man")}
    update = after_refinement(state(), ALL_WHO_LACK, answers, ["atom", "quantum"])
    queries = asked(update, ALL_WHO_LACK)
    assert [(shown(query), query["group"]) for query in queries] == [
        ("physics atom quantum", None),
        ("physics atom quantum woman", "female"),
    ]
    assert all(query["text"] == "physics" for query in queries)
    assert update["topic_words"] == ["atom", "quantum"]


def test_words_that_a_person_gives_for_another_group_lead_to_that_group() -> None:
    update = after_refinement(state(chosen=[MALE]), Context(), {MALE: answer("man")}, [])
    assert [query["group"] for query in asked(update)] == ["male"]
    changed = update | {"keywords": {"gender": {"male": [], "female": ["woman"]}}}
    assert [(shown(q), q["group"]) for q in asked(changed)] == [("physics woman", "female")]
    both = update | {"keywords": {"gender": {"female": ["woman"], "male": ["man"]}}}
    assert [(shown(q), q["group"]) for q in asked(both)] == [("physics woman man", "male")]


def test_without_evidence_keywords_find_documents_themselves() -> None:
    context = Context(evidence=False, groups="lacking")
    update = after_refinement(state(), context, {FEMALE: answer("woman"), MALE: answer("man")}, [])
    (query,) = asked(update, context)
    assert (query["text"], query["boost"], query["group"]) == ("physics woman", "", "female")


def test_words_for_who_lacks_nothing_are_of_no_help_alone() -> None:
    nothing = Refinement("empty", message="nothing")
    update = after_refinement(state(), ALL_WHO_LACK, {FEMALE: nothing, MALE: answer("man")}, [])
    assert "iteration" not in update
    assert update["stop_reason"] == "no_improvement"
    answers = {FEMALE: nothing, MALE: answer("atom")}
    helped = after_refinement(state(), ALL_WHO_LACK, answers, ["atom"])
    assert [shown(query) for query in asked(helped, ALL_WHO_LACK)] == ["physics atom"]


def test_the_papers_query_grows_by_all_words() -> None:
    before = {"gender": {"female": ["woman"]}}
    update = after_refinement(
        state(chosen=[MALE], lacking=[MALE], keywords=before, iteration=1),
        Context(method="fair-qr"),
        {MALE: answer("man")},
        [],
    )
    (query,) = asked(update, Context(method="fair-qr"), lacking=[MALE])
    assert (query["text"], query["group"]) == ("physics woman man", "male")
