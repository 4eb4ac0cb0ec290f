"""The loop over a small index, with a refiner whose answers are known."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from fairqr import FairSearch, build_search_graph
from fairqr.agents.models.replies import Status
from fairqr.agents.refiner import Refinement, RefinementRequest
from fairqr.base.errors import InputError, ModelUnavailableError, QueryError, UnknownAttributeError
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import WatchedEngine, hits_of, ranked, remove
from tests.unit.graph.corpora import (
    GENDERS_AND_PLACES,
    AlteredEngine,
    KnownRefiner,
    indexed,
    write_corpus,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty men and twenty women in science; women's texts say 'scholar', and come late."""
    documents = [
        {"id": f"m{i:02}", "title": f"Man {i}", "text": "science " * 3 + "filler " * i, "g": "male"}
        | {"p": "north" if i % 4 else "south"}
        for i in range(40)
    ]
    documents += [
        {"id": f"w{i:02}", "title": f"Woman {i}", "text": "science scholar " + "filler " * (i + 20)}
        | {"g": "female", "p": "north"}
        for i in range(20)
    ]
    documents += [{"id": f"x{i}", "text": "scholar other"} for i in range(5)]
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, GENDERS_AND_PLACES)


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


async def test_the_exposure_reported_is_that_of_the_ranking_returned(engine: SearchEngine) -> None:
    for method in ({}, {"ask": "always"}, {"method": "fair-qr"}, {"method": "plain"}):
        result = await searched(engine, **method)
        shown = [d.id for d in result.ranking]
        found = await hits_of(engine, "", len(shown), only=shown)
        rows = [found.ids.index(id_) for id_ in shown]
        members = found.memberships["gender"][rows]
        assert list(result.exposure["gender"].values()) == pytest.approx(exposure(members))
        assert [d.rank for d in result.ranking] == list(range(1, 11))


async def test_the_papers_loop_reranks_the_last_querys_documents_by_the_original_query(
    engine: SearchEngine,
) -> None:
    """With the pool 'union', its re-ranking takes back all that was gained: the trap."""
    result = await searched(engine, target="gender=female:0.9,male:0.1", method="fair-qr")
    last = await ranked(engine, "science scholar", 10)
    assert result.iterations[1].queries == ["science scholar"]
    assert [d.id for d in result.ranking] == (
        await ranked(engine, "science", 10, only=last.ids)
    ).ids
    assert [d.id for d in result.ranking] != last.ids
    trapped = await searched(engine, target="population:1", method="fair-qr", pool="union")
    assert trapped.ranking == trapped.baseline.ranking


@pytest.mark.parametrize("pool", ["last", "union"])
@pytest.mark.parametrize("rerank", ["relevance", "original_query", "fusion", "none"])
async def test_no_strategy_ends_less_fair_than_it_began_and_the_fair_step_follows_every_order(
    engine: SearchEngine, pool: str, rerank: str
) -> None:
    """Also where the last round no longer has the plain list, or that of the best round."""
    answers = {"female": ["scholar", "other"], "male": ["filler"]}
    strategy = {"pool": pool, "rerank": rerank}
    more = {"evidence": False, "depth": 10, "groups": "all", "ask": "always", "patience": 9}
    result = await searched(engine, answers, **strategy, **more)
    assert len(result.iterations) > 1
    assert len({d.id for d in result.ranking}) == 10
    assert result.objective.fairness >= result.baseline.objective.fairness
    assert 0 < result.baseline.objective.relevance <= 1
    without = await searched(engine, attribute=None, **strategy, final_step="none")
    assert without.divergence <= without.baseline.divergence
    assert len({d.id for d in without.ranking}) == 10


async def test_the_exposure_aware_step_takes_the_first_list_that_it_brings_to_the_target(
    tmp_path: Path,
) -> None:
    """Refined ones first. Here theirs is nearer to the target, but has too few men to be mended."""
    women = [{"text": "science science " + "filler " * i, "g": "female"} for i in range(1, 7)]
    rare = [{"text": "science rare " + "filler " * (i + 20), "g": "female"} for i in range(9)]
    men = [{"text": "science science science", "g": "male"} for _ in range(4)]
    rare.insert(1, {"text": "science rare " + "filler " * 20, "g": "male"})
    documents = [{"id": f"d{i:02}", "title": ""} | it for i, it in enumerate(men + women + rare)]
    engine = await indexed(tmp_path, documents)
    asked: dict[str, Any] = {
        **{"method": "fair-qr", "final_step": "exposure-aware", "pool": "last", "depth": 10},
        **{"k": 4, "max_iterations": 1, "evidence": False, "target": "population:1"},
    }
    found = await searched(engine, {"female": ["rare"]}, **asked, threshold=0.1)
    loose = await searched(engine, {"female": ["rare"]}, **asked, threshold=0.9)
    await engine.aclose()
    plain, refined = found.iterations
    assert refined.divergence < plain.divergence
    assert (found.best_iteration, loose.best_iteration) == (0, 1)
    assert found.divergence < 0.1 < loose.divergence < 0.9


async def test_groups_are_asked_about_at_once_and_queries_lead_to_those_that_lack_exposure(
    engine: SearchEngine,
) -> None:
    refiner = KnownRefiner({"female": ["scholar"], "south": ["filler"]})
    result = await searched(engine, refiner, attribute=None, groups="all", **POPULATION)
    assert refiner.most_at_once == 4
    asked = [r.group for r in result.iterations[1].refinements]
    assert set(asked) == {"female", "male", "north", "south"}
    assert result.divergence == pytest.approx(sum(result.divergences.values()) / 2)
    for groups, expected in (("all", {"female", "male"}), ("lacking", {"female"})):
        refiner = KnownRefiner(FEMALE)
        found = await searched(engine, refiner, groups=groups, max_iterations=1, **POPULATION)
        assert {request.group for request in refiner.asked} == expected
        assert found.iterations[1].queries == ["science scholar"]


@pytest.mark.parametrize("status", ["empty", "timeout", "parse_error", "unavailable"])
async def test_without_any_usable_answer_the_list_that_needs_no_model_is_returned(
    engine: SearchEngine, status: Status
) -> None:
    """By the paper's loop, which has no such list, it is the plain retrieval."""
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


@pytest.mark.parametrize("answers", [{"any": ["unheard-of"]}, {}])
async def test_keywords_of_no_help_end_the_loop_with_a_word_and_the_reranking_that_needs_none(
    engine: SearchEngine, answers: dict[str, Sequence[str] | Refinement]
) -> None:
    result = await searched(engine, KnownRefiner(answers), ask="always")
    assert result.stop_reason == "no_improvement"
    assert len(result.warnings) == 1
    assert result.divergence < result.baseline.divergence
    won = await searched(engine, {"female": ["scholar"]}, patience=9, **POPULATION)
    assert (won.stop_reason, len(won.iterations)) == ("no_improvement", 2)
    assert won.divergence < 0.01
    assert won.baseline.exposure == {"gender": {"female": 0.0, "male": 1.0}}
    assert won.exposure["gender"]["female"] == pytest.approx(0.5, abs=0.07)
    assert won.model == "known"


async def test_no_model_is_needed_to_rerank_alone(engine: SearchEngine) -> None:
    result = await searched(engine, max_iterations=0, ask="always")
    assert result.stop_reason == "max_iterations"
    assert result.model is None
    assert result.divergence < result.baseline.divergence
    graph = build_search_graph(engine)
    with pytest.raises(ModelUnavailableError, match="ask to never"):
        await graph.ainvoke({"query": "science"}, context=Context(ask="always"))


async def test_a_list_without_any_label_has_no_divergence_and_says_so(engine: SearchEngine) -> None:
    options = {"k": 3, "target": "population:1", "max_iterations": 0}
    result = await searched(engine, query="other", **options)
    assert result.baseline.divergence is None
    assert result.unknown == {"gender": 1.0}
    assert "100%" in result.warnings[0]
    assert json.loads(result.model_dump_json())["divergences"] == {"gender": None}


@pytest.mark.parametrize(
    ("query", "context", "kind"),
    [
        *((query, {}, QueryError) for query in ("", "  \n", "x" * 5001)),
        ("science", {"attribute": "age"}, UnknownAttributeError),
        ("science", {"target": "age=x:1"}, InputError),
        ("science", {"target": "gender=woman:1"}, InputError),
    ],
)
async def test_what_cannot_be_searched_is_refused(
    engine: SearchEngine, query: str, context: dict[str, object], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await searched(engine, query=query, **context)


async def test_a_graph_refuses_a_wrong_context_and_no_query_in_a_sentence(
    engine: SearchEngine,
) -> None:
    graph: Any = build_search_graph(engine)
    for given, context, sentence in (
        ({"query": "physicist"}, {"kk": 5}, r"^There is no parameter 'kk'; did you mean 'k'\?$"),
        ({"query": "physicist"}, {"target": "magic:1"}, "^The target has no part 'magic'.*$"),
        ({"query": None}, {}, "query is empty"),
    ):
        with pytest.raises(InputError, match=sentence):
            await graph.ainvoke(given, context=context)


async def test_a_state_holds_no_text_and_a_second_search_on_a_thread_knows_nothing_of_the_first(
    engine: SearchEngine,
) -> None:
    """Without a context it measures all attributes. Nothing of numpy is in the state."""
    refiner, saver = KnownRefiner(FEMALE), InMemorySaver()
    graph: Any = build_search_graph(engine, refiner, checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}}

    async def run(query: str) -> dict[str, object]:
        state = await graph.ainvoke({"query": query}, config=config)
        return {**state["result"], "usage": None}

    first = await run("science")
    assert first["attributes"] == ["gender", "place"]
    state = (await graph.aget_state(config)).values
    del state["result"]
    assert not re.search("filler filler|Woman", json.dumps(state))
    assert await run("scholar") != first
    assert await run("science") == first


async def test_feedback_works_for_a_product_of_attributes_and_for_a_name(
    engine: SearchEngine,
) -> None:
    """And an index of one group only is no failure of a model."""
    search = FairSearch(engine, "feedback")
    product = {"attribute": ["gender", "place"], "intersect": True, "fairness_weight": 0.1}
    both = await search.search("science", **product, target="uniform:1", k=10, ask="always")
    assert both.model == "feedback"
    assert len(both.iterations) > 1
    nobody = await search.search("other", attribute="gender", k=3, **POPULATION)
    assert nobody.stop_reason == "no_improvement"


async def test_documents_deleted_during_a_search_are_left_out_of_the_result(
    corpus: Path, tmp_path: Path
) -> None:
    engine = await Catalog(tmp_path).resolve(str(corpus))

    async def delete(request: RefinementRequest) -> list[str]:
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
    assert [d.rank for d in result.ranking] == list(range(1, 11))
    assert [d.rank for d in result.baseline.ranking] == list(range(1, 11))
    untitled = [d for d in result.ranking if not d.title]
    assert untitled
    assert all(d.groups["gender"] for d in untitled)
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


async def test_the_same_search_gives_the_same_result(engine: SearchEngine) -> None:
    one, other = [(await searched(engine)).model_dump(exclude={"usage"}) for _ in range(2)]
    assert one == other


def test_the_synchronous_search_works_inside_a_running_loop(engine: SearchEngine) -> None:
    """As in a notebook; and one object serves several threads."""
    with FairSearch.open(engine, KnownRefiner(FEMALE)) as search:

        async def cell() -> object:
            return search.search("science", attribute="gender", k=10).ranking[0].id

        assert asyncio.run(cell()) == asyncio.run(cell())


async def test_a_query_refined_toward_a_group_speaks_for_that_group_alone(
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


async def test_methods_that_do_not_refine_ask_no_model_and_rank_as_they_do(
    engine: SearchEngine,
) -> None:
    refiner = KnownRefiner(FEMALE)
    papers = await searched(engine, refiner, method="fair-qr", threshold=99)
    assert (papers.stop_reason, papers.model) == ("converged", None)
    plain = await searched(engine, refiner, method="plain")
    assert (plain.stop_reason, plain.model) == ("not_refining", None)
    assert plain.ranking == plain.baseline.ranking
    for method in ("mmr", "xquad", "pm2", "fa-ir"):
        result = await searched(engine, refiner, method=method)
        assert (result.method, result.retriever) == (method, "bm25")
        assert {d.id for d in result.baseline.ranking} == {d.id for d in plain.ranking}
        assert len(result.ranking) == 10
    assert any(d.id.startswith("w") for d in result.ranking)
    assert refiner.asked == []
    for options, refused in (
        ({"method": "deltr"}, "weights"),
        ({"method": "mmr", "options": {"lambda": 1}}, "no option 'lambda'"),
        ({"method": "plain", "options": {"trade_off": 1}}, "has no options"),
    ):
        with pytest.raises(InputError, match=refused):
            await searched(engine, refiner, **options)


async def test_a_target_without_a_population_is_what_the_query_retrieves_and_says_so(
    tmp_path: Path,
) -> None:
    documents = [
        {"id": str(n), "text": "science", "g": "female" if n % 4 else "male"} for n in range(8)
    ]
    schema = "attributes: {gender: {field: g, groups: [female, male]}}"
    engine = await indexed(tmp_path, documents, schema)
    result = await FairSearch(engine).search("science", k=4, max_iterations=0)
    await engine.aclose()
    assert result.target["gender"] == pytest.approx({"female": 0.75, "male": 0.25})
    (warning,) = result.warnings
    assert "No population is stated for 'gender'" in warning
