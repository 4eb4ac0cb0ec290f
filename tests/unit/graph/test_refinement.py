"""From keywords to queries."""

from __future__ import annotations

from typing import Any, cast

from fairqr.agents.refiner import Refinement
from fairqr.graph.search.context import Context
from fairqr.graph.search.refinement import (
    after_refinement,
    refined_queries,
    shown,
)
from fairqr.graph.search.result import QueryRecord, State

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
