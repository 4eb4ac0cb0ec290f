"""The loop over a small index, with a refiner whose answers are known, and how often it asks."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch, build_search_graph
from fairqr.agents.models.replies import Status
from fairqr.agents.refiners.refiner import GroupRequest, Refinement
from fairqr.base.errors import InputError, ModelUnavailableError, UnsupportedError
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.engines.engine import Capability, SearchEngine
from fairqr.retrieval.fairness.exposure import Discount, exposure
from fairqr.retrieval.fairness.relevance import UNLIKELY, probability_by_rank
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import WatchedEngine, hits_of, ranked, remove
from tests.unit.graph.corpora import AlteredEngine, KnownRefiner, indexed

FEMALE = {"female": ["scholar"], "male": ["filler"]}
POPULATION = {"target": "population:1", "ask": "always"}


async def searched(
    engine: SearchEngine,
    model: KnownRefiner | dict[str, Any] | None = None,
    query: str = "science",
    **options: Any,
) -> SearchResult:
    """Search for ten by gender, with a refiner whose answers are known."""
    refiner = model if isinstance(model, KnownRefiner) else KnownRefiner(model or FEMALE)
    return await FairSearch(engine, refiner).search(
        query, **{"attribute": "gender", "k": 10, **options}
    )


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    "options",
    [{}, {"ask": "always"}, {"method": "fair-qr"}, {"method": "baseline"}],
    ids=["default", "with a model", "fair-qr", "baseline"],
)
async def test_the_exposure_reported_is_that_of_the_ranking_returned(
    engine: SearchEngine, options: dict[str, Any]
) -> None:
    """The exposure in a result is that of the ranking in it."""
    result = await searched(engine, **options)

    ids = [place.id for place in result.ranking]
    hits = await hits_of(engine, "", len(ids), only=ids)
    rows = [hits.ids.index(id_) for id_ in ids]
    members = hits.memberships["gender"][rows]
    assert list(result.exposure["gender"].values()) == pytest.approx(exposure(members))
    assert [place.rank for place in result.ranking] == list(range(1, 11))


@pytest.mark.promise("graph")
async def test_the_papers_loop_reranks_the_last_querys_documents(
    engine: SearchEngine,
) -> None:
    """`fair-qr` is our reading of FAIR-QR: it re-ranks the documents of the last query by the
    original query.
    """
    result = await searched(engine, target="gender=female:0.9,male:0.1", method="fair-qr")

    assert result.iterations[1].queries == ["science scholar"]
    last = await ranked(engine, "science scholar", 10)
    reranked = await ranked(engine, "science", 10, only=last.ids)
    ids = [place.id for place in result.ranking]
    assert ids == reranked.ids
    assert ids != last.ids


async def test_the_papers_loop_gains_nothing_from_the_union(engine: SearchEngine) -> None:
    """With the pool 'union', its re-ranking takes back all that was gained: the trap."""
    trapped = await searched(engine, target="population:1", method="fair-qr", pool="union")

    assert trapped.ranking == trapped.baseline.ranking


AWAY = {"female": ["scholar"]}
"""Words that find women alone."""


async def test_the_last_round_can_be_the_result(engine: SearchEngine) -> None:
    options = {"target": "population:1", "method": "fair-qr", "max_iterations": 1}
    last = await searched(engine, AWAY, final_round="last", **options, rerank="none")

    assert last.best_iteration == 1
    assert [place.id for place in last.ranking] == last.iterations[1].ids


async def test_the_last_round_can_be_kept_though_it_is_worse(engine: SearchEngine) -> None:
    """As in the paper, which has no guard by the plain list."""
    worse = {"target": "gender=female:0.01,male:0.99", "method": "fair-qr", "max_iterations": 1}

    guarded = await searched(engine, AWAY, **worse)
    assert (guarded.best_iteration, guarded.ranking) == (0, guarded.baseline.ranking)

    unguarded = await searched(engine, AWAY, final_round="last", **worse)
    assert unguarded.best_iteration == 1
    assert unguarded.divergence > unguarded.baseline.divergence


@pytest.mark.promise("graph")
async def test_a_list_says_its_share_of_expected_relevance(
    engine: SearchEngine,
) -> None:
    """Every list says what it has of the expected relevance.

    What only a model's words find counts as unlikely.
    """
    result = await searched(engine, method="fair-qr", target="population:1")

    science = await ranked(engine, "science", 500)
    by_rank = probability_by_rank(len(science.ids)).tolist()
    probabilities = dict(zip(science.ids, by_rank, strict=True))
    listed = [probabilities.get(place.id, UNLIKELY) for place in result.ranking]
    best = sorted(probabilities.values(), reverse=True)[:10]
    weights = Discount().weights(10)
    assert result.relevance is None
    assert result.expected_relevance == pytest.approx(weights @ listed / (weights @ best))
    assert result.baseline.expected_relevance == pytest.approx(1)


@pytest.mark.parametrize("method", ["baseline", "greedy", "fairqr"])
async def test_each_method_has_a_share_of_expected_relevance(
    engine: SearchEngine, method: str
) -> None:
    result = await searched(engine, method=method)

    assert 0 < result.expected_relevance <= 1


async def test_an_empty_list_has_no_expected_relevance(engine: SearchEngine) -> None:
    result = await searched(engine, query="zzzz", method="fair-qr")

    assert result.expected_relevance is None


@pytest.mark.promise("graph")
async def test_words_that_lead_away_from_the_query_are_told(engine: SearchEngine) -> None:
    """A search reports words that lead away from the query.

    These find what the query itself finds last, or not at all.
    """
    options = {"target": "gender=female:1", "method": "fair-qr", "final_round": "last"}
    result = await searched(engine, FEMALE, query="science", rerank="none", k=5, **options)

    (warning,) = [text for text in result.warnings if "led away from the query" in text]
    share = result.expected_relevance / result.baseline.expected_relevance
    assert share < 0.5
    assert f"{share:.0%} of the relevance" in warning


async def test_words_near_the_query_are_no_warning(engine: SearchEngine) -> None:
    result = await searched(engine, FEMALE, method="fair-qr", max_iterations=0)

    assert not any("led away" in warning for warning in result.warnings)


@pytest.mark.parametrize("pool", ["last", "union"])
@pytest.mark.parametrize("rerank", ["relevance", "original_query", "fusion", "none"])
async def test_no_strategy_ends_less_fair_than_it_began(
    engine: SearchEngine, pool: str, rerank: str
) -> None:
    """Also where the last round no longer has the baseline list, or that of the best round."""
    answers = {"female": ["scholar", "other"], "male": ["filler"]}
    loop = {"depth": 10, "groups": "all", "ask": "always", "patience": 9}
    result = await searched(engine, answers, pool=pool, rerank=rerank, **loop)

    assert len(result.iterations) > 1
    assert len({place.id for place in result.ranking}) == 10
    assert result.objective.fairness >= result.baseline.objective.fairness
    assert 0 < result.baseline.objective.relevance <= 1


@pytest.mark.parametrize("pool", ["last", "union"])
@pytest.mark.parametrize("rerank", ["relevance", "original_query", "fusion", "none"])
async def test_no_strategy_without_a_fair_step_ends_further_off(
    engine: SearchEngine, pool: str, rerank: str
) -> None:
    result = await searched(engine, attribute=None, pool=pool, rerank=rerank, final_step="none")

    assert result.divergence <= result.baseline.divergence
    assert len({place.id for place in result.ranking}) == 10


async def test_groups_are_asked_about_at_once(engine: SearchEngine) -> None:
    refiner = KnownRefiner({"female": ["scholar"], "south": ["filler"]})
    result = await searched(engine, refiner, attribute=None, groups="all", **POPULATION)

    assert refiner.most_at_once == 4
    groups = [refinement.group for refinement in result.iterations[1].refinements]
    assert set(groups) == {"female", "male", "north", "south"}
    assert result.divergence == pytest.approx(sum(result.divergences.values()) / 2)


@pytest.mark.parametrize(
    ("groups", "expected"), [("all", ["female", "male"]), ("lacking", ["female"])]
)
async def test_each_group_that_is_asked_about_has_a_query(
    engine: SearchEngine, groups: str, expected: list[str]
) -> None:
    """Those that lack exposure, or all, since words of a group also show what is relevant."""
    refiner = KnownRefiner(FEMALE)
    result = await searched(engine, refiner, groups=groups, max_iterations=1, **POPULATION)

    queries = {"female": "science scholar", "male": "science filler"}
    assert [request.group for request in refiner.asked] == expected
    assert result.iterations[1].queries == [queries[group] for group in expected]


@pytest.mark.promise("graph")
@pytest.mark.parametrize("status", ["empty", "timeout", "parse_error", "unavailable"])
async def test_unusable_answers_leave_the_list_without_a_model(
    engine: SearchEngine, status: Status
) -> None:
    """Where no answer of the model is usable, the list that needs no model is returned."""
    failing = {"any": Refinement(status, message="late")}
    result = await searched(engine, failing, ask="always", groups="all")

    alone = await searched(engine, ask="never")
    assert (result.ranking, result.objective) == (alone.ranking, alone.objective)
    assert alone.ranking != alone.baseline.ranking
    assert (result.stop_reason, len(result.iterations)) == ("model_failed", 1)
    assert result.warnings
    unused = [(refinement.group, refinement.status) for refinement in result.unused_refinements]
    assert unused == [("female", status), ("male", status)]


@pytest.mark.parametrize("status", ["empty", "timeout", "parse_error", "unavailable"])
async def test_unusable_answers_leave_the_papers_loop_its_baseline(
    engine: SearchEngine, status: Status
) -> None:
    failing = {"any": Refinement(status, message="late")}
    result = await searched(engine, failing, method="fair-qr")

    assert result.ranking == result.baseline.ranking
    assert (result.stop_reason, len(result.iterations)) == ("model_failed", 1)
    assert result.warnings


async def test_usable_answers_stand_in_their_round(engine: SearchEngine) -> None:
    result = await searched(engine, max_iterations=1, ask="always")

    assert result.unused_refinements == []
    assert result.iterations[1].refinements[0].keywords == ["scholar"]


@pytest.mark.promise("graph")
async def test_words_without_anything_new_end_the_loop(
    engine: SearchEngine,
) -> None:
    """Words without anything new end the loop, and the list that needs no model is returned with a
    sentence that says so.
    """
    result = await searched(engine, KnownRefiner({}), ask="always")
    assert result.stop_reason == "no_new_words"
    assert [iteration.queries for iteration in result.iterations] == [["science"]]
    assert result.warnings == ["No new word."]
    alone = await searched(engine, ask="never")
    assert (result.ranking, result.objective) == (alone.ranking, alone.objective)


async def test_new_words_bring_a_group_to_its_target(engine: SearchEngine) -> None:
    result = await searched(engine, {"female": ["scholar"]}, patience=9, **POPULATION)

    assert (result.stop_reason, len(result.iterations)) == ("no_new_words", 2)
    assert result.divergence < 0.01
    assert result.baseline.exposure == {"gender": {"female": 0.0, "male": 1.0}}
    assert result.exposure["gender"]["female"] == pytest.approx(0.5, abs=0.07)
    assert result.model == "known"


async def test_no_model_is_needed_to_rerank_alone(engine: SearchEngine) -> None:
    result = await searched(engine, max_iterations=0, ask="always")

    assert result.stop_reason == "max_iterations"
    assert result.model is None


async def test_a_search_that_always_asks_needs_a_model(engine: SearchEngine) -> None:
    graph = build_search_graph(engine)

    with pytest.raises(ModelUnavailableError, match="ask to never"):
        await graph.ainvoke({"query": "science"}, context=Context(ask="always"))


async def test_a_list_without_any_label_has_no_divergence_and_says_so(engine: SearchEngine) -> None:
    result = await searched(engine, query="other", k=3, target="population:1", max_iterations=0)
    assert result.baseline.divergence is None
    assert result.unknown == {"gender": 1.0}
    assert "100%" in result.warnings[0]
    assert json.loads(result.model_dump_json())["divergences"] == {"gender": None}


@pytest.mark.parametrize(
    ("query", "context", "sentence"),
    [
        ("science", {"kk": 5}, "did you mean 'k'"),
        ("science", {"target": "gender=woman:1"}, "the group 'woman'"),
        (None, {}, "query is empty"),
        ("x" * 5001, {}, "5,?000"),
    ],
    ids=["parameter", "group", "no query", "long query"],
)
async def test_a_graph_refuses_wrong_input(
    engine: SearchEngine, query: str | None, context: dict[str, Any], sentence: str
) -> None:
    graph: Any = build_search_graph(engine)

    with pytest.raises(InputError, match=sentence):
        await graph.ainvoke({"query": query}, context=context)


async def test_feedback_works_for_products_of_attributes(engine: SearchEngine) -> None:
    product = {"attribute": ["gender", "place"], "intersect": True, "fairness_weight": 0.1}
    search = FairSearch(engine, "feedback")
    result = await search.search("science", **product, target="uniform:1", k=10, ask="always")

    assert result.model == "feedback"
    assert len(result.iterations) > 1


async def test_hits_of_no_group_are_no_failure_of_feedback(engine: SearchEngine) -> None:
    search = FairSearch(engine, "feedback")
    result = await search.search("other", attribute="gender", k=3, **POPULATION)

    assert result.stop_reason == "no_new_words"


async def test_documents_deleted_during_a_search_are_left_out(corpus: Path, tmp_path: Path) -> None:
    engine = await Catalog(tmp_path).resolve(str(corpus))

    async def delete(request: GroupRequest) -> list[str]:
        if request.group == "female":
            await remove(engine, ["m00", "m03"])
        return FEMALE[request.group]

    result = await searched(engine, KnownRefiner(delete), ask="always")
    await engine.aclose()
    shown = [d.id for d in [*result.ranking, *result.baseline.ranking]]
    assert "m00" not in shown
    assert [d.rank for d in result.baseline.ranking] == list(range(1, 9))
    assert "2 documents were deleted" in result.warnings[-1]


async def test_what_an_engine_cannot_read_again_stays_in_the_result(engine: SearchEngine) -> None:
    """One that only remembers what it has met, as after a restart, says nothing of deletion."""

    class Forgetful(WatchedEngine):
        async def documents(self, ids: Sequence[str]) -> list[Document]:
            return (await super().documents(ids))[3:]

    forgetful = Forgetful(engine, without=["read_by_id"])
    result = await searched(forgetful)
    for ranking in (result.ranking, result.baseline.ranking):
        assert [d.rank for d in ranking] == list(range(1, 11))
    assert any(not d.title and d.groups["gender"] for d in result.ranking)
    assert "The titles of 3 documents could not be read again." in result.warnings


async def test_scores_that_cannot_be_weights_only_say_the_order(engine: SearchEngine) -> None:
    """Such as logarithms: the target is then by 1/rank, and the result says so."""

    negative = AlteredEngine(
        engine, lambda hits: {"scores": [score - 100 for score in hits.scores]}
    )
    result = await searched(negative, target="retrieved:1", max_iterations=0)

    weights = {"w": 0.0, "m": 0.0, "u": 0.0}
    for rank, id_ in enumerate((await hits_of(engine, "science", 500)).ids, start=1):
        weights[id_[0]] = weights.get(id_[0], 0.0) + 1 / rank
    share = weights["w"] / (weights["w"] + weights["m"])
    assert result.target["gender"]["female"] == pytest.approx(share)
    assert any("cannot be used as weights" in warning for warning in result.warnings)


async def test_scores_that_can_be_weights_are_no_warning(engine: SearchEngine) -> None:
    result = await searched(engine, target="retrieved:1", max_iterations=0)

    assert not any("cannot be used as weights" in warning for warning in result.warnings)


@pytest.mark.promise("command")
def test_the_synchronous_search_works_inside_a_running_loop(engine: SearchEngine) -> None:
    """The façade works without `async` inside a running event loop, as in a notebook.

    One object serves several threads.
    """
    with FairSearch.open(engine, KnownRefiner(FEMALE)) as search:

        async def cell() -> object:
            return search.search("science", attribute="gender", k=10).ranking[0].id

        assert asyncio.run(cell()) == asyncio.run(cell())


async def test_a_refined_query_speaks_for_its_group_alone(
    engine: SearchEngine,
) -> None:
    """Its ranking lifts women, and leaves the men and the unlabelled in the order they had."""
    once = {"k": 20, "max_iterations": 1, "rerank": "fusion"}
    result = await searched(engine, {"female": ["scholar"]}, **once, **POPULATION)

    science = (await ranked(engine, "science", 200)).ids
    first, second = (round_.ids for round_ in result.iterations)
    assert first == science[:20]
    men = [id_ for id_ in second if id_.startswith("m")]
    assert men == [id_ for id_ in science if id_ in men]
    women_before = [id_ for id_ in first if id_.startswith("w")]
    women_after = [id_ for id_ in second if id_.startswith("w")]
    assert len(women_after) > len(women_before)


@pytest.mark.promise("graph")
@pytest.mark.parametrize("method", ["baseline", "mmr", "xquad", "pm2", "fa-ir"])
async def test_methods_that_do_not_refine_ask_no_model(engine: SearchEngine, method: str) -> None:
    """Baselines search once and ask no model."""
    refiner = KnownRefiner(FEMALE)
    watched = WatchedEngine(engine)
    result = await searched(watched, refiner, method=method)

    assert refiner.asked == []
    assert watched.round_trips == 1
    assert len(watched.reads) == 1 or method == "mmr"  # which compares texts
    assert (result.method, result.retriever) == (method, "bm25")
    assert (result.stop_reason, result.model) == ("not_refining", None)
    baseline = await searched(engine, method="baseline")
    baseline_ids = {place.id for place in baseline.ranking}
    assert {place.id for place in result.baseline.ranking} == baseline_ids
    assert len(result.ranking) == 10


async def test_a_converged_loop_asks_no_model(engine: SearchEngine) -> None:
    refiner = KnownRefiner(FEMALE)
    result = await searched(engine, refiner, method="fair-qr", threshold=99)

    assert (result.stop_reason, result.model) == ("converged", None)
    assert refiner.asked == []


async def test_the_baseline_method_gives_the_baseline_ranking(engine: SearchEngine) -> None:
    result = await searched(engine, method="baseline")

    assert result.ranking == result.baseline.ranking


async def test_fa_ir_brings_women_into_the_list(engine: SearchEngine) -> None:
    result = await searched(engine, method="fa-ir")

    assert any(place.id.startswith("w") for place in result.ranking)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "deltr"}, "weights"),
        ({"method": "mmr", "options": {"lambda": 1}}, "no option 'lambda'"),
        ({"method": "baseline", "options": {"trade_off": 1}}, "has no options"),
    ],
    ids=["weights", "unknown option", "no options"],
)
async def test_wrong_options_of_a_method_are_refused(
    engine: SearchEngine, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        await searched(engine, **options)


async def test_without_a_population_the_target_is_what_is_retrieved(
    tmp_path: Path,
) -> None:
    """Each attribute is told of alone: another one has a population here."""
    documents = [
        {
            "id": str(number),
            "text": "science",
            "g": "m" if number % 4 == 0 else "f",
            "p": "s" if number % 2 else "n",
        }
        for number in range(8)
    ]
    gender = "gender: {field: g, groups: {female: [f], male: [m]}}"
    place = "place: {field: p, groups: [n, s], population: {n: 0.5, s: 0.5}}"
    schema = f"attributes: {{{gender}, {place}}}"
    engine = await indexed(tmp_path, documents, schema)
    result = await FairSearch(engine).search("science", k=4, max_iterations=0)
    await engine.aclose()
    assert result.target["gender"] == pytest.approx({"female": 0.75, "male": 0.25})
    (warning,) = result.warnings
    assert "No population is stated for 'gender'" in warning
    assert re.match("The target: gender: .*; place: ", result.explanation[0])


# --- round trips ------------------------------------------------------------------------------

NOTHING: tuple[Capability, ...] = ("rescore", "document_frequencies", "corpus_shares")
BOTH = ("gender", "place")


async def words(request: GroupRequest) -> list[str]:
    return ["scholar", "filler"] if "female" in request.group else ["filler"]


LOOP: dict[str, Any] = {**POPULATION, "patience": 2}


@pytest.mark.promise("graph")
@pytest.mark.parametrize(
    "context",
    [
        {},
        {"attribute": BOTH},
        {"attribute": BOTH, "intersect": True, "fairness_weight": 0.1},
        {"attribute": BOTH, "rerank": "fusion"},
        {"attribute": BOTH, "groups": "lacking", "rerank": "original_query"},
        {"method": "fair-qr"},
    ],
    ids=str,
)
async def test_a_round_costs_at_most_two_round_trips(
    engine: SearchEngine, context: dict[str, Any]
) -> None:
    """A round costs an engine at most two round trips, and the result one more for its texts."""
    watched = WatchedEngine(engine)
    result = await searched(watched, KnownRefiner(words), **LOOP, **context)
    assert len(result.iterations) >= 2
    # A round whose keywords come to nothing ends before it searches, and is not measured.
    begun = len(result.iterations) + bool(result.unused_refinements)
    assert watched.round_trips <= 2 * begun
    assert len(watched.reads) == 1


@pytest.mark.promise("engines")
async def test_an_engine_that_only_searches_is_searched_fairly(engine: SearchEngine) -> None:
    """The default method needs nothing but hits, so an engine that can only search is searched
    fairly.

    It is asked nothing that it cannot do.
    """
    watched = WatchedEngine(engine, without=NOTHING)
    result = await searched(watched, KnownRefiner(words), **LOOP)
    assert any("scholar" in query for query in result.iterations[1].queries)
    assert result.divergence < result.baseline.divergence
    assert watched.counts == 0


@pytest.mark.promise("engines")
@pytest.mark.parametrize(
    ("context", "model", "sentence"),
    [
        ({"method": "fair-qr"}, None, "'original_query' needs an engine that can score"),
        ({"target": "corpus:1"}, None, "cannot have the part 'corpus'"),
        ({}, "feedback", "'feedback' needs an engine that can count the documents that match"),
    ],
    ids=["scores", "corpus", "counts"],
)
async def test_what_an_engine_cannot_do_is_refused_in_one_sentence(
    engine: SearchEngine, context: dict[str, Any], model: str | None, sentence: str
) -> None:
    """What an engine lacks is refused in one sentence before the engine is asked."""
    watched = WatchedEngine(engine, without=NOTHING)
    search = FairSearch(watched, model or KnownRefiner(words))
    options = {"attribute": "gender", "ask": "always", **context}

    with pytest.raises(InputError, match=sentence) as caught:
        await search.search("science", **options)

    assert "\n" not in str(caught.value)
    if isinstance(caught.value, UnsupportedError):
        assert watched.round_trips == 0


async def test_warnings_of_an_engine_reach_the_result_once(engine: SearchEngine) -> None:
    """Such as that a part of an index did not answer."""

    partial = AlteredEngine(engine, lambda hits: {"warnings": ("1 of 5 shards failed.",)})
    result = await searched(partial, max_iterations=1, ask="always")
    assert result.warnings.count("1 of 5 shards failed.") == 1
