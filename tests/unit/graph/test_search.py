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
async def test_the_exposure_reported_is_that_of_the_ranking_returned(engine: SearchEngine) -> None:
    """The exposure in a result is that of the ranking in it."""
    for method in ({}, {"ask": "always"}, {"method": "fair-qr"}, {"method": "baseline"}):
        result = await searched(engine, **method)
        shown = [d.id for d in result.ranking]
        found = await hits_of(engine, "", len(shown), only=shown)
        rows = [found.ids.index(id_) for id_ in shown]
        members = found.memberships["gender"][rows]
        assert list(result.exposure["gender"].values()) == pytest.approx(exposure(members))
        assert [d.rank for d in result.ranking] == list(range(1, 11))


@pytest.mark.promise("graph")
async def test_the_papers_loop_reranks_the_last_querys_documents(
    engine: SearchEngine,
) -> None:
    """`fair-qr` is our reading of FAIR-QR: it re-ranks the documents of the last query by the
    original query.

    With the pool 'union', its re-ranking takes back all that was gained: the trap.
    """
    result = await searched(engine, target="gender=female:0.9,male:0.1", method="fair-qr")
    last = await ranked(engine, "science scholar", 10)
    assert result.iterations[1].queries == ["science scholar"]
    assert [d.id for d in result.ranking] == (
        await ranked(engine, "science", 10, only=last.ids)
    ).ids
    assert [d.id for d in result.ranking] != last.ids
    trapped = await searched(engine, target="population:1", method="fair-qr", pool="union")
    assert trapped.ranking == trapped.baseline.ranking


async def test_the_last_round_can_be_kept_though_it_is_worse(
    engine: SearchEngine,
) -> None:
    """As in the paper, which has no guard by the plain list."""
    # Half of the exposure is due to men, but these words find women alone.
    options = {"target": "population:1", "method": "fair-qr", "max_iterations": 1}
    away = {"female": ["scholar"]}
    last = await searched(engine, away, final_round="last", **options, rerank="none")
    assert last.best_iteration == 1
    assert [place.id for place in last.ranking] == last.iterations[1].ids
    worse = {"target": "gender=female:0.01,male:0.99", "method": "fair-qr", "max_iterations": 1}
    guarded = await searched(engine, away, **worse)
    assert (guarded.best_iteration, guarded.ranking) == (0, guarded.baseline.ranking)
    unguarded = await searched(engine, away, final_round="last", **worse)
    assert unguarded.best_iteration == 1
    assert unguarded.divergence > unguarded.baseline.divergence


@pytest.mark.promise("graph")
async def test_a_list_says_its_share_of_expected_relevance(
    engine: SearchEngine,
) -> None:
    """Every list says what it has of the expected relevance.

    Whatever the method. What only a model's words find counts as unlikely.
    """
    result = await searched(engine, method="fair-qr", target="population:1")
    found = await ranked(engine, "science", 500)
    likely = dict(zip(found.ids, probability_by_rank(len(found.ids)).tolist(), strict=True))
    weights = Discount().weights(10)
    shown = [likely.get(place.id, UNLIKELY) for place in result.ranking]
    best = sorted(likely.values(), reverse=True)[:10]
    assert result.relevance is None
    assert result.expected_relevance == pytest.approx(weights @ shown / (weights @ best))
    assert result.baseline.expected_relevance == pytest.approx(1)
    for method in ("baseline", "greedy", "fairqr"):
        assert 0 < (await searched(engine, method=method)).expected_relevance <= 1
    nothing = await searched(engine, query="zzzz", method="fair-qr")
    assert nothing.expected_relevance is None


@pytest.mark.promise("graph")
async def test_words_that_lead_away_from_the_query_are_told(engine: SearchEngine) -> None:
    """A search reports words that lead away from the query.

    These find what the query itself finds last, or not at all.
    """
    away = {"female": ["scholar"], "male": ["filler"]}
    options = {"target": "gender=female:1", "method": "fair-qr", "final_round": "last"}
    led_away = await searched(engine, away, query="science", rerank="none", k=5, **options)
    (warning,) = [it for it in led_away.warnings if "led away from the query" in it]
    share = led_away.expected_relevance / led_away.baseline.expected_relevance
    assert share < 0.5
    assert f"{share:.0%} of the relevance" in warning
    near = await searched(engine, away, method="fair-qr", max_iterations=0)
    assert not any("led away" in it for it in near.warnings)


@pytest.mark.parametrize("pool", ["last", "union"])
@pytest.mark.parametrize("rerank", ["relevance", "original_query", "fusion", "none"])
async def test_no_strategy_ends_less_fair_than_it_began(
    engine: SearchEngine, pool: str, rerank: str
) -> None:
    """Also where the last round no longer has the baseline list, or that of the best round."""
    answers = {"female": ["scholar", "other"], "male": ["filler"]}
    strategy = {"pool": pool, "rerank": rerank}
    more = {"depth": 10, "groups": "all", "ask": "always", "patience": 9}
    result = await searched(engine, answers, **strategy, **more)
    assert len(result.iterations) > 1
    assert len({d.id for d in result.ranking}) == 10
    assert result.objective.fairness >= result.baseline.objective.fairness
    assert 0 < result.baseline.objective.relevance <= 1
    without = await searched(engine, attribute=None, **strategy, final_step="none")
    assert without.divergence <= without.baseline.divergence
    assert len({d.id for d in without.ranking}) == 10


async def test_groups_are_asked_about_at_once_and_each_has_a_query(engine: SearchEngine) -> None:
    """Those that lack exposure, or all, since words of a group also show what is relevant."""
    refiner = KnownRefiner({"female": ["scholar"], "south": ["filler"]})
    result = await searched(engine, refiner, attribute=None, groups="all", **POPULATION)
    assert refiner.most_at_once == 4
    asked = [r.group for r in result.iterations[1].refinements]
    assert set(asked) == {"female", "male", "north", "south"}
    assert result.divergence == pytest.approx(sum(result.divergences.values()) / 2)
    queries = {"female": "science scholar", "male": "science filler"}
    for groups, expected in (("all", ["female", "male"]), ("lacking", ["female"])):
        refiner = KnownRefiner(FEMALE)
        found = await searched(engine, refiner, groups=groups, max_iterations=1, **POPULATION)
        assert [request.group for request in refiner.asked] == expected
        assert found.iterations[1].queries == [queries[group] for group in expected]


@pytest.mark.promise("graph")
@pytest.mark.parametrize("status", ["empty", "timeout", "parse_error", "unavailable"])
async def test_unusable_answers_leave_the_list_without_a_model(
    engine: SearchEngine, status: Status
) -> None:
    """Where no answer of the model is usable, the list that needs no model is returned.

    By the paper's loop, which has no such list, it is the baseline ranking.
    """
    failing = {"any": Refinement(status, message="late")}
    result = await searched(engine, failing, ask="always", groups="all")
    alone = await searched(engine, ask="never")
    assert (result.ranking, result.objective) == (alone.ranking, alone.objective)
    assert alone.ranking != alone.baseline.ranking
    papers = await searched(engine, failing, method="fair-qr")
    assert papers.ranking == papers.baseline.ranking
    for found in (result, papers):
        assert (found.stop_reason, len(found.iterations)) == ("model_failed", 1)
        assert found.warnings
    vain = [(r.group, r.status) for r in result.unused_refinements]
    assert vain == [("female", status), ("male", status)]
    useful = await searched(engine, max_iterations=1, ask="always")
    assert useful.unused_refinements == []
    assert useful.iterations[1].refinements[0].keywords == ["scholar"]


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
    won = await searched(engine, {"female": ["scholar"]}, patience=9, **POPULATION)
    assert (won.stop_reason, len(won.iterations)) == ("no_new_words", 2)
    assert won.divergence < 0.01
    assert won.baseline.exposure == {"gender": {"female": 0.0, "male": 1.0}}
    assert won.exposure["gender"]["female"] == pytest.approx(0.5, abs=0.07)
    assert won.model == "known"


async def test_no_model_is_needed_to_rerank_alone(engine: SearchEngine) -> None:
    result = await searched(engine, max_iterations=0, ask="always")
    assert result.stop_reason == "max_iterations"
    assert result.model is None
    graph = build_search_graph(engine)
    with pytest.raises(ModelUnavailableError, match="ask to never"):
        await graph.ainvoke({"query": "science"}, context=Context(ask="always"))


async def test_a_list_without_any_label_has_no_divergence_and_says_so(engine: SearchEngine) -> None:
    result = await searched(engine, query="other", k=3, target="population:1", max_iterations=0)
    assert result.baseline.divergence is None
    assert result.unknown == {"gender": 1.0}
    assert "100%" in result.warnings[0]
    assert json.loads(result.model_dump_json())["divergences"] == {"gender": None}


async def test_a_graph_refuses_a_wrong_context_and_no_query(engine: SearchEngine) -> None:
    graph: Any = build_search_graph(engine)
    for query, context, sentence in (
        ("science", {"kk": 5}, "did you mean 'k'"),
        ("science", {"target": "gender=woman:1"}, "the group 'woman'"),
        (None, {}, "query is empty"),
        ("x" * 5001, {}, "5,?000"),
    ):
        with pytest.raises(InputError, match=sentence):
            await graph.ainvoke({"query": query}, context=context)


async def test_feedback_works_for_products_of_attributes(
    engine: SearchEngine,
) -> None:
    """And an index of one group only is no failure of a model."""
    search = FairSearch(engine, "feedback")
    product = {"attribute": ["gender", "place"], "intersect": True, "fairness_weight": 0.1}
    both = await search.search("science", **product, target="uniform:1", k=10, ask="always")
    assert both.model == "feedback"
    assert len(both.iterations) > 1
    nobody = await search.search("other", attribute="gender", k=3, **POPULATION)
    assert nobody.stop_reason == "no_new_words"


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

    negative = AlteredEngine(engine, lambda hits: {"scores": [it - 100 for it in hits.scores]})
    options = {"target": "retrieved:1", "max_iterations": 0}
    result = await searched(negative, **options)
    ids = (await hits_of(engine, "science", 500)).ids
    ranks = [(id_[0], 1 / rank) for rank, id_ in enumerate(ids, start=1)]
    women, total = (sum(w for kind, w in ranks if kind in kinds) for kinds in ("w", "wm"))
    assert result.target["gender"]["female"] == pytest.approx(women / total)
    assert any("cannot be used as weights" in warning for warning in result.warnings)
    plain = await searched(engine, **options)
    assert not any("cannot be used as weights" in warning for warning in plain.warnings)


@pytest.mark.promise("command")
def test_the_synchronous_search_works_inside_a_running_loop(engine: SearchEngine) -> None:
    """The façade works without `async` inside a running event loop, as in a notebook.

    As in a notebook; and one object serves several threads.
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
    plain = (await ranked(engine, "science", 200)).ids
    first, second = (round_.ids for round_ in result.iterations)
    assert first == plain[:20]
    men = [id_ for id_ in second if id_.startswith("m")]
    assert men == [id_ for id_ in plain if id_ in men]
    assert sum(id_.startswith("w") for id_ in second) > sum(id_.startswith("w") for id_ in first)


@pytest.mark.promise("graph")
async def test_methods_that_do_not_refine_ask_no_model(
    engine: SearchEngine,
) -> None:
    """Baselines search once and ask no model.

    By one search.
    """
    refiner = KnownRefiner(FEMALE)
    papers = await searched(engine, refiner, method="fair-qr", threshold=99)
    assert (papers.stop_reason, papers.model) == ("converged", None)
    baseline = await searched(engine, refiner, method="baseline")
    assert (baseline.stop_reason, baseline.model) == ("not_refining", None)
    assert baseline.ranking == baseline.baseline.ranking
    for method in ("baseline", "mmr", "xquad", "pm2", "fa-ir"):
        watched = WatchedEngine(engine)
        result = await searched(watched, refiner, method=method)
        assert watched.round_trips == 1
        assert len(watched.reads) == 1 or method == "mmr"  # which compares texts
        assert (result.method, result.retriever) == (method, "bm25")
        assert {d.id for d in result.baseline.ranking} == {d.id for d in baseline.ranking}
        assert len(result.ranking) == 10
    assert any(d.id.startswith("w") for d in result.ranking)
    assert refiner.asked == []
    for options, refused in (
        ({"method": "deltr"}, "weights"),
        ({"method": "mmr", "options": {"lambda": 1}}, "no option 'lambda'"),
        ({"method": "baseline", "options": {"trade_off": 1}}, "has no options"),
    ):
        with pytest.raises(InputError, match=refused):
            await searched(engine, refiner, **options)


async def test_without_a_population_the_target_is_what_is_retrieved(
    tmp_path: Path,
) -> None:
    """Each attribute is told of alone: another one has a population here."""
    documents = [
        {"id": str(n), "text": "science", "g": "fm"[n % 4 == 0], "p": "ns"[n % 2]} for n in range(8)
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


ASKED: dict[str, Any] = {**POPULATION, "patience": 2}


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
    result = await searched(watched, KnownRefiner(words), **ASKED, **context)
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
    result = await searched(watched, KnownRefiner(words), **ASKED)
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
)
async def test_what_an_engine_cannot_do_is_refused_in_one_sentence(
    engine: SearchEngine, context: dict[str, Any], model: str | None, sentence: str
) -> None:
    """What an engine lacks is refused in one sentence before the engine is asked."""
    watched = WatchedEngine(engine, without=NOTHING)
    asked = {"attribute": "gender", "ask": "always", **context}
    with pytest.raises(InputError, match=sentence) as caught:
        await FairSearch(watched, model or KnownRefiner(words)).search("science", **asked)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, UnsupportedError):
        assert watched.round_trips == 0


async def test_warnings_of_an_engine_reach_the_result_once(engine: SearchEngine) -> None:
    """Such as that a part of an index did not answer."""

    partial = AlteredEngine(engine, lambda hits: {"warnings": ("1 of 5 shards failed.",)})
    result = await searched(partial, max_iterations=1, ask="always")
    assert result.warnings.count("1 of 5 shards failed.") == 1
