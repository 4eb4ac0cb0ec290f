"""A model's words are evidence of relevance beside that of the original query."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr import Budget, Context, FairSearch, build_search_graph
from fairqr.agents.models.replies import Usage
from fairqr.agents.refiners.refiner import LeftOut, Refinement
from fairqr.graph.search.result import SearchResult
from fairqr.graph.step import Step
from fairqr.graph.stream import run_graph
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.relevance import UNLIKELY, EvidenceWeights, combined
from tests.unit.engines import WatchedEngine, ranked
from tests.unit.graph.corpora import KnownRefiner, KnownTopicRefiner, indexed
from tests.unit.retrieval.vector_encoders import CountingEncoder

QUERY = "science physics atom"
CONTEXT = Context(
    attributes=("gender",),
    k=10,
    ask="always",
    max_iterations=1,
    word_weights=EvidenceWeights(topic=1, group=1),
)
GROUPS = {"female": ["opera"], "male": ["atom"]}


def people() -> list[dict[str, str]]:
    """Thirty men and three women in science, and sixty women in music."""
    kinds = (
        ("m{:02}", "Man {}", "science physics atom f{}", "male", 30),
        ("w{:02}", "Woman {}", "science physics atom laboratory g{}", "female", 3),
        ("s{:02}", "Singer {}", "opera voice h{} stage", "female", 60),
    )
    return [
        {"id": id_.format(i), "title": title.format(i), "text": text.format(i), "g": gender}
        for id_, title, text, gender, count in kinds
        for i in range(count)
    ]


@pytest.fixture
async def lexical(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    engine = await indexed(tmp_path, people())
    yield engine
    await engine.aclose()


@pytest.fixture
async def hybrid(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    """An index with vectors, whose estimates are probabilities of relevance."""
    words = await indexed(tmp_path, people())
    assert isinstance(words, TantivyEngine)
    engine = await HybridEngine.open(words, CountingEncoder(dimensions=64))
    yield engine
    await engine.aclose()


async def searched(
    engine: SearchEngine, refiner: Any, query: str = QUERY, **changes: Any
) -> SearchResult:
    context = CONTEXT.model_copy(update=changes)
    return await FairSearch(engine, refiner).search(query, context)


async def steps_of(engine: SearchEngine, refiner: Any, **changes: Any) -> list[Step]:
    context = CONTEXT.model_copy(update=changes)
    events = run_graph(build_search_graph(engine, refiner), QUERY, context)
    return [event async for event in events if isinstance(event, Step)]


def ids_of(result: Any) -> list[str]:
    return [place.id for place in result.ranking]


@pytest.mark.promise("graph")
async def test_each_kind_of_words_is_a_query_of_its_own(
    lexical: SearchEngine,
) -> None:
    """Each kind of a model's words is evidence of its own; the topic is asked about once.

    All of a round's queries run in one round trip.
    """
    topic = Refinement(
        "ok", topic=("laboratory",), queries=("who split atoms",), passage="She split atoms."
    )
    refiner = KnownTopicRefiner(topic, {"female": ["opera", "voice"], "male": ["stage"]})
    weights = EvidenceWeights(topic=1, queries=1, passage=1, group=1)
    watched = WatchedEngine(lexical)
    result = await searched(watched, refiner, word_weights=weights, max_iterations=2, patience=9)
    assert len(refiner.topics) == 1
    assert [request.group for request in refiner.asked] == ["female", "male"] * 2
    first, second = (round_.queries for round_ in result.iterations[1:])
    assert first == [
        f"{QUERY} laboratory",
        f"{QUERY} who split atoms",
        f"{QUERY} She split atoms.",
        f"{QUERY} laboratory opera",
        f"{QUERY} laboratory stage",
    ]
    assert second == [f"{QUERY} laboratory opera voice"]
    rounds = [[query.text for query in queries] for queries in watched.searches]
    assert first in rounds
    assert second in rounds
    assert result.iterations[1].topic is not None
    assert result.iterations[1].topic.words == ["laboratory"]
    assert result.iterations[2].topic is None


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    ("calls", "topics", "groups"),
    [(1, 1, []), (2, 1, ["female"]), (3, 1, ["female", "male"])],
)
async def test_the_question_about_the_topic_counts_in_the_budget(
    lexical: SearchEngine, calls: int, topics: int, groups: list[str]
) -> None:
    """The question about the topic counts in the budget of calls and tokens.

    And no question may be asked again that the budget has no room for.
    """
    topic = Refinement("ok", topic=("laboratory",), usage=Usage(model_calls=1))
    refiner = KnownTopicRefiner(topic, GROUPS)
    result = await searched(lexical, refiner, budget=Budget(model_calls=calls))
    assert (len(refiner.topics), [request.group for request in refiner.asked]) == (topics, groups)
    assert result.usage.model_calls == calls
    assert not any(request.may_ask_again for request in [*refiner.topics, *refiner.asked])


async def check_words_without_weight(engine: SearchEngine) -> None:
    """Compare a search by words of the weight 0 with one without a model."""
    result = await searched(engine, KnownRefiner(GROUPS), word_weights=EvidenceWeights())

    alone = await searched(engine, None, ask="never")
    assert (result.ranking, result.objective) == (alone.ranking, alone.objective)
    assert [round_.queries for round_ in result.iterations] == [[QUERY]]
    assert all(place.evidence == {} for place in result.ranking)
    weighted = await searched(engine, KnownRefiner(GROUPS))
    assert any(place.evidence for place in weighted.ranking)


@pytest.mark.promise("graph")
async def test_words_of_the_weight_0_change_nothing(hybrid: SearchEngine) -> None:
    """A model's words of the weight 0 change nothing."""
    await check_words_without_weight(hybrid)


async def test_words_of_the_weight_0_change_no_ranks(lexical: SearchEngine) -> None:
    """Nor where relevance is estimated by ranks."""
    await check_words_without_weight(lexical)


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    "words", [{"female": ["opera"]}, GROUPS], ids=["for one group", "for all groups"]
)
async def test_evidence_is_combined_in_log_odds_and_shown(
    hybrid: SearchEngine, words: dict[str, list[str]]
) -> None:
    """A model's words are evidence beside the query's, and each kind counts by its weight.

    Without a query of its group, a document has no evidence of that kind.

    With a query of each group, a document that none of them finds is unlikely.
    """
    result = await searched(hybrid, KnownRefiner(words), word_weights=EvidenceWeights(group=2))

    found_by_group = 0
    absent = UNLIKELY if words == GROUPS else np.nan
    for place in [*result.ranking, *result.baseline.ranking]:
        evidence = [place.evidence["query"], place.evidence.get("group", absent)]
        columns = [np.array([probability]) for probability in evidence]
        # Evidence and relevance both have the factor that is the query's; it is nearly 1 here.
        assert place.relevance == pytest.approx(float(combined(columns, [1, 2])[0]), rel=1e-4)
        found_by_group += "group" in place.evidence
    assert found_by_group > 0


@pytest.mark.promise("graph")
async def test_names_bring_only_documents_that_hold_one_whole(lexical: SearchEngine) -> None:
    """Names bring only documents that hold one of them whole.

    The words of a name find all singers; 'Singer 1' is not 'Singer 11'.
    """
    names = Refinement("ok", names=("Singer 1", "Singes 2"))
    refiner = KnownRefiner({"female": names})
    (retrieved,) = [
        step.update
        for step in await steps_of(lexical, refiner)
        if step.name == "retrieve" and step.update["iteration"] == 1
    ]
    (ranking,) = retrieved["rankings"]
    assert ranking["query"]["text"] == "Singer 1 Singes 2"
    assert len((await ranked(lexical, "Singer 1 Singes 2", 100)).ids) >= 60
    assert ranking["ids"] == ["s01"]
    (named,) = [lookup for lookup in retrieved["lookups"] if lookup["kind"] == "named"]
    assert list(named["relevance"]) == ["s01"]


@pytest.mark.promise("graph")
async def test_earlier_lists_are_valued_by_the_newest_evidence(
    hybrid: SearchEngine,
) -> None:
    """Lists of earlier rounds are valued again by the newest evidence.

    So that the objectives of all rounds compare lists by the same probabilities.
    """
    refiner = KnownRefiner({"female": ["laboratory"], "male": ["f7"]})
    steps = await steps_of(hybrid, refiner)
    (first,) = [
        step.update["iterations"][0]
        for step in steps
        if step.name == "measure" and step.update["iteration"] == 0
    ]
    result = SearchResult.model_validate(steps[-1].update["result"])
    valued = [round_.objective for round_ in result.iterations]
    assert valued[0] is not None
    assert valued[1] is not None
    assert valued[0].relevance != pytest.approx(first["objective"]["relevance"])
    assert result.without_model is not None
    assert result.without_model.objective == valued[0]
    best = max(range(2), key=lambda index: valued[index].value)
    assert result.best_iteration == best


@pytest.mark.promise("graph")
@pytest.mark.parametrize("can_rescore", [True, False])
async def test_the_engines_order_is_kept_within_groups(
    lexical: SearchEngine, can_rescore: bool
) -> None:
    """An engine's order is kept within groups unless `order=estimated`.

    And the result says by what evidence a document moved up.
    """
    engine = WatchedEngine(lexical, without=[] if can_rescore else ["rescore"])
    refiner = KnownRefiner({"female": ["laboratory"], "male": ["f29"]})
    plain = (await ranked(lexical, QUERY, 500)).ids
    plain_men = [id_ for id_ in plain if id_.startswith("m")]
    assert plain_men[-1] == "m29"
    kept = await searched(engine, refiner)
    assert kept.iterations[1].queries == [f"{QUERY} laboratory", f"{QUERY} f29"]
    men = [id_ for id_ in ids_of(kept) if id_.startswith("m")]
    assert men == plain_men[: len(men)]
    moved = await searched(engine, refiner, order="estimated")
    (last,) = [place for place in moved.ranking if place.id == "m29"]
    assert last.evidence["group"] > last.evidence["query"]


async def test_a_question_about_the_topic_counts_as_asking(
    lexical: SearchEngine,
) -> None:
    topic = Refinement("ok", topic=("laboratory",), usage=Usage(model_calls=1))
    refiner = KnownTopicRefiner(topic, GROUPS)
    result = await searched(lexical, refiner, budget=Budget(model_calls=1))
    assert result.model == refiner.name
    assert result.without_model is not None


async def test_what_no_query_is_made_of_is_left_out_with_the_reason(lexical: SearchEngine) -> None:
    topic = Refinement("ok", topic=("laboratory",), queries=("who split atoms",), passage="She did")
    group = Refinement("ok", keywords=("opera",), phrases=("opera voice",), passage="She sang")
    refiner = KnownTopicRefiner(topic, {"female": group, "male": group})
    result = await searched(lexical, refiner)
    (round_,) = result.iterations[1:]
    assert round_.topic is not None
    assert (round_.topic.queries, round_.topic.passage) == ([], "")
    reasons = {part.text: part.reason for part in round_.topic.left_out}
    assert "do not count here" in reasons["who split atoms"]
    assert "do not count here" in reasons["She did"]
    female = round_.refinements[0]
    assert (female.keywords, female.passage) == ([], "")
    assert {part.text for part in female.left_out} == {"opera", "She sang"}
    assert not any("who split" in query or "She" in query for query in round_.queries)


async def test_a_topic_answer_without_a_round_is_reported(
    lexical: SearchEngine,
) -> None:
    topic = Refinement("repeated", left_out=(LeftOut("science", "repeats the query"),))
    nothing = Refinement("empty", message="Nothing.")
    refiner = KnownTopicRefiner(topic, {"female": nothing, "male": nothing})
    result = await searched(lexical, refiner)
    assert len(result.iterations) == 1
    assert result.unused_topic is not None
    assert [part.text for part in result.unused_topic.left_out] == ["science"]


async def test_names_that_no_document_holds_are_told(lexical: SearchEngine) -> None:
    names = Refinement("ok", names=("Woman 1", "Nobody Atall"))
    refiner = KnownRefiner({"female": names, "male": names})
    result = await searched(lexical, refiner)
    female = result.iterations[1].refinements[0]
    assert female.names == ["Woman 1"]
    reasons = [(part.text, part.reason) for part in female.left_out]
    assert reasons == [("Nobody Atall", "is in no document that was found")]
    assert set(result.iterations[1].queries) == {"Woman 1 Nobody Atall"}


async def test_whether_anything_can_be_answered_is_told_by_all_queries(
    hybrid: SearchEngine,
) -> None:
    """A query in words that the index does not know may be one that its topic explains."""
    topic = Refinement("ok", topic=("science", "physics", "atom"))
    refiner = KnownTopicRefiner(topic, {"female": ["laboratory"], "male": ["atom"]})
    alone = await searched(hybrid, None, "kernfysica", ask="never")
    explained = await searched(hybrid, refiner, "kernfysica")
    best = max(place.relevance or 0 for place in explained.ranking)
    assert best > max((place.relevance or 0 for place in alone.ranking), default=0)
