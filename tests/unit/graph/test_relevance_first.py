"""The default method: two kinds of gaps, and a model asked only where it helps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch
from fairqr.agents.refiner import Refinement, RefinementRequest
from fairqr.agents.replies import Usage
from fairqr.base.errors import InputError
from fairqr.graph.search.context import make_context
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.engines.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.hybrid import HybridEngine
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.retriever_parameters import Hybrid
from fairqr.retrieval.target import DEFAULT_TARGET
from tests.unit.retrieval.vector_encoders import CountingEncoder

EVEN = "gender=female:0.5,male:0.5"
SCHEMA = (
    "attributes:\n"
    "  gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}\n"
)


def written(folder: Path, women: int) -> str:
    """Thirty men and some women in science, the women a little less; 600 women in music."""
    (folder / "schema.yaml").write_text(SCHEMA)
    documents = [
        {"id": f"m{i:02}", "title": f"Man {i}", "text": "science physics atom", "g": "male"}
        for i in range(30)
    ]
    documents += [
        {
            "id": f"w{i:02}",
            "title": f"Woman {i}",
            "text": f"science physics atom g{i}",
            "g": "female",
        }
        for i in range(women)
    ]
    documents += [
        {
            "id": f"s{i:03}",
            "title": f"Singer {i}",
            "text": f"opera voice h{i % 40} stage",
            "g": "female",
        }
        for i in range(600)
    ]
    path = folder / "people.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(path)


@pytest.fixture(params=[25, 1], ids=["enough", "scarce"])
def women(request: pytest.FixtureRequest) -> int:
    """How many women in science there are."""
    return int(request.param)


@pytest.fixture
async def hybrid(tmp_path: Path, women: int) -> AsyncIterator[SearchEngine]:
    path = written(tmp_path, women)
    indexed = await Catalog(tmp_path / "data").resolve(path)
    assert isinstance(indexed, TantivyEngine)
    engine = await HybridEngine.open(indexed, CountingEncoder(dimensions=64))
    yield engine
    await engine.aclose()


@pytest.fixture
async def lexical(tmp_path: Path, women: int) -> AsyncIterator[SearchEngine]:
    engine = await Catalog(tmp_path / "data").resolve(written(tmp_path, women))
    yield engine
    await engine.aclose()


class Asked:
    """Proposes a word, 'opera' finds the women of music; or fails."""

    name = "asked"
    prompt = None

    def __init__(self, word: str = "opera", *, fails: bool = False) -> None:
        self.groups: list[str] = []
        self.started = 0
        self.word = word
        self.fails = fails

    async def start(self) -> None:
        self.started += 1

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        self.groups.append(request.group)
        if self.fails:
            return Refinement("unavailable", message="The model is away.")
        if self.word in request.keywords:
            return Refinement("repeated", message="No new word.")
        return Refinement("ok", (self.word,), usage=Usage(model_calls=1))


async def search(engine: SearchEngine, refiner: Any = None, **context: Any) -> Any:
    options = {"attribute": "gender", "k": 10, "method": "fairqr"} | context
    return await FairSearch(engine, refiner or Asked()).search("science physics atom", **options)


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_what_was_found_suffices_and_nobody_is_asked(hybrid: SearchEngine) -> None:
    refiner = Asked()
    result = await search(hybrid, refiner)
    assert refiner.groups == []
    assert result.stop_reason == "reached"
    assert result.model is None
    assert result.without_model is None
    assert result.divergence <= 0.005 < result.baseline.divergence
    assert {place.id[0] for place in result.ranking} == {"m", "w"}
    assert result.baseline.gaps.ranking["gender"]["female"] > 0.2
    assert result.baseline.gaps.supply["gender"]["female"] < 0.05
    assert result.gaps.ranking["gender"]["female"] < 0.05


@pytest.mark.parametrize("women", [1], indirect=True)
async def test_what_is_not_there_is_not_replaced_by_what_is_not_relevant(
    hybrid: SearchEngine,
) -> None:
    refiner = Asked()
    result = await search(hybrid, refiner)
    assert result.stop_reason == "nothing_to_find"
    assert refiner.groups == []
    assert "w00" in [place.id for place in result.ranking]
    assert not any(place.id.startswith("s") for place in result.ranking)
    assert all(place.relevance >= 0.5 for place in result.ranking)
    lacks = result.target["gender"]["female"] - result.exposure["gender"]["female"]
    assert result.gaps.supply["gender"]["female"] == pytest.approx(lacks, abs=0.02)
    (sentence,) = [it for it in result.explanation if it.startswith("female: ")]
    assert sentence.endswith("too few documents were found that are likely to be relevant.")
    assert result.supply["gender"]["female"] < result.target["gender"]["female"] - 0.05


@pytest.mark.parametrize("women", [1], indirect=True)
async def test_a_target_of_ones_own_is_tried_in_full(hybrid: SearchEngine) -> None:
    """At a price in relevance, which the result shows; and a floor of one's own still holds."""
    result = await search(hybrid, ask="never", target=EVEN)
    assert result.divergence <= 0.005
    assert any(place.id.startswith("s") for place in result.ranking)
    assert result.relevance < result.baseline.relevance - 0.1
    assert result.min_relevance == 0.0
    held = await search(hybrid, ask="never", target=EVEN, min_relevance=0.5)
    assert held.min_relevance == 0.5
    assert not any(place.id.startswith("s") for place in held.ranking)
    as_by_default = await search(hybrid, ask="never", target=str(DEFAULT_TARGET))
    assert as_by_default.min_relevance == 0.0
    assert any(place.id.startswith("s") for place in as_by_default.ranking)


async def test_without_estimates_nothing_is_said_to_be_withheld(lexical: SearchEngine) -> None:
    """What is found by words need not be relevant, so it is no supply."""
    result = await search(lexical, ask="never")
    assert (result.supply, result.gaps, result.baseline.gaps) == (None, None, None)
    (sentence,) = result.explanation
    assert sentence.startswith("Relevance was not estimated")


async def test_gaps_add_up_to_what_a_group_lacks(hybrid: SearchEngine) -> None:
    result = await search(hybrid, ask="never")
    for ranked in (result, result.baseline):
        for group, wanted in result.target["gender"].items():
            supply, ranking = (
                part["gender"][group] for part in (ranked.gaps.supply, ranked.gaps.ranking)
            )
            lacks = max(0.0, wanted - ranked.exposure["gender"][group])
            assert supply + ranking == pytest.approx(lacks)
            assert min(supply, ranking) >= 0


async def test_the_ranking_is_never_farther_from_the_target_than_the_plain_one(
    hybrid: SearchEngine, lexical: SearchEngine
) -> None:
    for engine in (hybrid, lexical):
        for least in (0.0, 0.5, 0.9):
            result = await search(engine, ask="never", min_relevance=least)
            assert result.divergence <= result.baseline.divergence
            assert result.stop_reason == "not_refining"


@pytest.mark.parametrize("women", [1], indirect=True)
async def test_without_estimates_the_model_is_asked_where_the_target_is_not_reached(
    lexical: SearchEngine,
) -> None:
    refiner = Asked()
    result = await search(lexical, refiner, evidence=False, target=EVEN)
    assert set(refiner.groups) == {"female"}
    assert result.model == "asked"
    assert result.relevance is None
    assert all(place.relevance is None for place in result.ranking)
    assert result.without_model.divergence > result.divergence
    assert result.without_model.documents == sum(p.id.startswith("s") for p in result.ranking) > 0


@pytest.mark.parametrize("women", [1], indirect=True)
async def test_where_words_may_have_missed_documents_the_model_is_asked(
    lexical: SearchEngine,
) -> None:
    """What it finds is judged by the original query, and singers are not relevant to it."""
    refiner = Asked()
    engine = await EncodedPoolEngine.open(lexical, CountingEncoder(dimensions=64))
    result = await search(engine, refiner, evidence=False, threshold=0.0001)
    assert set(refiner.groups) == {"female"}
    assert result.retriever == "hybrid-pool:words"
    assert not any(place.id.startswith("s") for place in result.ranking)
    assert result.without_model.documents == 0


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_what_stands_below_the_pool_is_looked_at_once_a_refined_query_finds_it(
    lexical: SearchEngine,
) -> None:
    """All women stand below the ten documents that are encoded, though they are relevant."""
    encoder, few = CountingEncoder(dimensions=64), Hybrid(pool=10)
    engine = await EncodedPoolEngine.open(lexical, encoder, options=few)
    (found,) = await engine.search([Query("science physics atom", 500)])
    assert {id_[0] for id_ in found.ids[:10]} == {"m"}
    alone = await search(engine, ask="never")
    assert {place.id[0] for place in alone.ranking} == {"m"}
    result = await search(engine, Asked("g3"), evidence=False)
    women = [place.relevance for place in result.ranking if place.id[0] == "w"]
    assert len(women) >= 3
    assert min(women) > 0.5
    assert result.without_model.divergence == pytest.approx(alone.divergence)
    assert result.without_model.documents == len(women)
    assert f"brought {len(women)} documents into this ranking" in " ".join(result.explanation)


async def test_always_asks_and_never_does_not(hybrid: SearchEngine) -> None:
    always, never = Asked(), Asked()
    result = await search(hybrid, always, ask="always")
    assert always.groups
    assert result.without_model is not None
    await search(hybrid, never, ask="never")
    assert never.started == 0


async def test_what_the_model_finds_must_be_relevant_to_the_original_query(
    hybrid: SearchEngine,
) -> None:
    asked = await search(hybrid, ask="always", evidence=False)
    alone = await search(hybrid, ask="never")
    assert [place.id for place in asked.ranking] == [place.id for place in alone.ranking]
    assert asked.without_model.documents == 0


@pytest.mark.parametrize("women", [1], indirect=True)
async def test_a_model_that_fails_costs_nothing(lexical: SearchEngine) -> None:
    failed = await search(lexical, Asked(fails=True), target=EVEN)
    alone = await search(lexical, ask="never", target=EVEN)
    assert failed.stop_reason == "model_failed"
    assert failed.warnings == ["The model is away."]
    assert [place.id for place in failed.ranking] == [place.id for place in alone.ranking]


async def test_no_model_is_needed_where_none_is_asked(hybrid: SearchEngine) -> None:
    result = await FairSearch(hybrid).search(
        "science physics atom", attribute="gender", ask="never"
    )
    assert result.usage.model_calls == 0


def test_the_least_relevance_by_default() -> None:
    assert make_context().least_relevance == 0.5
    assert make_context(target="population:1").least_relevance == 0
    assert make_context(target=str(DEFAULT_TARGET)).least_relevance == 0
    assert make_context(target="population:1", min_relevance=0.3).least_relevance == 0.3
    for wrong in (-0.1, 1.1):
        with pytest.raises(InputError, match="min_relevance"):
            make_context(min_relevance=wrong)


async def test_searches_at_once_do_not_disturb_each_other(hybrid: SearchEngine) -> None:
    one = await search(hybrid, ask="never")
    many = await asyncio.gather(*(search(hybrid, ask="never") for _ in range(5)))
    for other in many:
        assert other.model_dump(exclude={"usage"}) == one.model_dump(exclude={"usage"})
