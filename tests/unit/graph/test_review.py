"""A person looks at the model's words before they are searched with."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from fairqr import Context, FairSearch, build_search_graph
from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from tests.unit.graph.corpora import KnownRefiner

QUERY: Any = {"query": "science"}
THREAD: Any = {"configurable": {"thread_id": "1"}}
CONTEXT = Context(ask="always", attributes=("gender",), k=5, max_iterations=1, review=True)


def reviewing(engine: SearchEngine) -> Any:
    """A graph that asks a person."""
    refiner = KnownRefiner(["laboratory"])
    return build_search_graph(engine, refiner, context=CONTEXT, checkpointer=InMemorySaver())


async def test_the_person_sees_the_words_and_may_let_them_stand(engine: SearchEngine) -> None:
    graph = reviewing(engine)
    waiting = await graph.ainvoke(QUERY, THREAD)
    (question,) = waiting["__interrupt__"]
    assert question.value["words"]["gender"]["female"]["keywords"] == ["laboratory"]
    assert (await graph.aget_state(THREAD)).next == ("review",)
    found = await graph.ainvoke(Command(resume=True), THREAD)
    queries = found["result"]["iterations"][1]["queries"]
    assert set(queries) == {"science laboratory"}


async def test_the_persons_words_are_searched_with_and_listed(engine: SearchEngine) -> None:
    graph = reviewing(engine)
    await graph.ainvoke(QUERY, THREAD)
    answer = {"topic": ["filler"], "words": {"gender": {"female": ["workshop"]}}}
    found = await graph.ainvoke(Command(resume=answer), THREAD)
    round_ = found["result"]["iterations"][1]
    assert "science filler workshop" in round_["queries"]
    assert not any("laboratory" in query for query in round_["queries"])
    keywords = {it["group"]: it["keywords"] for it in round_["refinements"]}
    assert keywords["female"] == ["workshop"]
    assert all(words == [] for group, words in keywords.items() if group != "female")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("chemist", "must be an object, not str"),
        ({"words": {"gender": {"female": "chemist"}}}, "words.gender.female: it must be a list"),
        ({"words": {"gender": {"femal": ["chemist"]}}}, "no group 'femal' of gender; use female"),
        ({"words": {"colour": {"red": ["chemist"]}}}, "no attribute 'colour' in this search"),
        ({"topic": "chemist"}, "at topic: it must be a list"),
        ({"word": {}}, "at word"),
    ],
)
async def test_a_wrong_answer_is_asked_again_with_a_sentence(
    engine: SearchEngine, answer: Any, sentence: str
) -> None:
    graph = reviewing(engine)
    await graph.ainvoke(QUERY, THREAD)
    again = await graph.ainvoke(Command(resume=answer), THREAD)
    (question,) = again["__interrupt__"]
    assert sentence in question.value["error"]
    found = await graph.ainvoke(Command(resume=True), THREAD)
    assert found["result"]["ranking"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"gender": {"female": "chemist"}}, "it must be a list of texts"),
        ({"gender": {"women": ["chemist"]}}, "no group 'women'"),
    ],
)
async def test_words_that_are_changed_in_the_state_are_checked(
    engine: SearchEngine, words: Any, sentence: str
) -> None:
    context = CONTEXT.model_copy(update={"review": False})
    built = build_search_graph(engine, KnownRefiner(["laboratory"]), context=context)
    graph = built.builder.compile(checkpointer=InMemorySaver(), interrupt_after=["refine"])
    await graph.ainvoke(QUERY, THREAD)
    await graph.aupdate_state(THREAD, {"words": words, "topic": None})
    with pytest.raises(InputError, match=sentence):
        await graph.ainvoke(None, THREAD)


@pytest.mark.parametrize("chosen", ["female", ["female"], None, [5], [("gender",)]])
async def test_groups_that_are_chosen_in_a_wrong_form_are_refused(
    engine: SearchEngine, chosen: Any
) -> None:
    graph = interrupted_before_refine(engine)
    await graph.ainvoke(QUERY, THREAD)
    await graph.aupdate_state(THREAD, {"chosen": chosen})
    with pytest.raises(InputError, match="must be a list of pairs of an attribute and a group"):
        await graph.ainvoke(None, THREAD)


async def test_groups_that_a_person_chooses_are_asked_about(engine: SearchEngine) -> None:
    graph = interrupted_before_refine(engine)
    await graph.ainvoke(QUERY, THREAD)
    await graph.aupdate_state(THREAD, {"chosen": [("gender", "martian")]})
    with pytest.raises(InputError, match="no group 'martian' of gender"):
        await graph.ainvoke(None, THREAD)
    await graph.aupdate_state(THREAD, {"chosen": [("gender", "male")]}, as_node="choose_group")
    found = await graph.ainvoke(None, THREAD)
    (refined,) = found["result"]["iterations"][1]["refinements"]
    assert refined["group"] == "male"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"topic": "chemist"}, "at topic: it must be a list"),
        ({"topic": {"words": "chemist", "queries": [], "passage": ""}}, "at topic.words"),
        ({"words": {"gender": {"women": ["chemist"]}}}, "no group 'women' of gender"),
    ],
    ids=["topic", "words of the topic", "group"],
)
async def test_a_persons_words_are_read_as_a_models_answer(
    engine: SearchEngine, wrong: dict[str, Any], sentence: str
) -> None:
    """They can be corrected after an error."""
    graph = interrupted_before_refine(engine)
    await graph.ainvoke(QUERY, THREAD)
    await graph.aupdate_state(THREAD, {"topic": None, "words": {}, **wrong})
    with pytest.raises(InputError, match=sentence):
        await graph.ainvoke(None, THREAD)

    words = {"topic": ["filler"], "words": {"gender": {"female": ["workshop"]}}}
    await graph.aupdate_state(THREAD, words)
    final = await graph.ainvoke(None, THREAD)
    queries = final["result"]["iterations"][1]["queries"]
    assert "science filler workshop laboratory" in queries


async def test_words_of_a_person_that_no_query_has_are_told(engine: SearchEngine) -> None:
    graph = reviewing(engine)
    await graph.ainvoke(QUERY, THREAD)
    female = {"keywords": ["workshop"], "phrases": ["a long day"], "passage": "She was here."}
    answer = {"topic": {"queries": ["who knows"]}, "words": {"gender": {"female": female}}}
    found = await graph.ainvoke(Command(resume=answer), THREAD)
    round_ = found["result"]["iterations"][1]
    (refined,) = [it for it in round_["refinements"] if it["group"] == "female"]
    assert (refined["keywords"], refined["phrases"]) == ([], ["a long day"])
    left_out = [*round_["topic"]["left_out"], *refined["left_out"]]
    assert [it["text"] for it in left_out] == ["who knows", "workshop", "She was here."]
    assert all("no query of this round" in it["reason"] for it in left_out)


def interrupted_before_refine(engine: SearchEngine) -> Any:
    """A graph that a person can change before the model is asked."""
    context = CONTEXT.model_copy(update={"review": False})
    built = build_search_graph(engine, KnownRefiner(["laboratory"]), context=context)
    return built.builder.compile(checkpointer=InMemorySaver(), interrupt_before=["refine"])


@pytest.mark.parametrize("words", [None, {"gender": {"female": ["", " "]}}], ids=["none", "blank"])
async def test_words_that_are_none_or_blank_are_no_words(engine: SearchEngine, words: Any) -> None:
    context = CONTEXT.model_copy(update={"review": False})
    built = build_search_graph(engine, KnownRefiner(["laboratory"]), context=context)
    graph = built.builder.compile(checkpointer=InMemorySaver(), interrupt_after=["refine"])
    await graph.ainvoke(QUERY, THREAD)
    await graph.aupdate_state(THREAD, {"words": words, "topic": None})
    final = await graph.ainvoke(None, THREAD)

    refinements = final["result"]["iterations"][1]["refinements"]
    assert all(refinement["keywords"] == [] for refinement in refinements)


async def test_a_search_that_cannot_ask_a_person_says_so(engine: SearchEngine) -> None:
    with pytest.raises(InputError, match="was interrupted"):
        await FairSearch(engine, KnownRefiner(["laboratory"])).search("science", CONTEXT)
