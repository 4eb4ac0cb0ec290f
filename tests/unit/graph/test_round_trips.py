"""How often a search asks its engine, and what it does without what an engine cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch
from fairqr.agents.refiner import RefinementRequest
from fairqr.base.errors import InputError, UnsupportedError
from fairqr.retrieval.engines.engine import Capability, SearchEngine
from tests.unit.engines import WatchedEngine
from tests.unit.graph.corpora import GENDERS_AND_PLACES, AlteredEngine, KnownRefiner, write_corpus

NOTHING: tuple[Capability, ...] = ("rescore", "document_frequencies", "corpus_shares")
BOTH = ("gender", "place")


WORDS = {"female": ("scholar", "garden"), "south": ("harbour", "boat"), "male": ("filler",)}


async def words(request: RefinementRequest) -> list[str]:
    return [word for group, own in WORDS.items() if group in request.group for word in own]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty men of the north; women say 'scholar' or 'garden', those of the south 'harbour'."""
    people = []
    for number in range(90):
        woman, south = number >= 60, number % 9 == 8
        said = ["science"] * (1 if woman else 3)
        said += [("scholar", "garden")[number % 2]] * woman + ["harbour", "boat"] * south
        text = " ".join([*said, *["filler"] * number])
        group = {"g": "female" if woman else "male", "p": "south" if south else "north"}
        people.append({"id": f"d{number:02}", "title": "Somebody", "text": text, **group})
    return write_corpus(tmp_path_factory.mktemp("corpus"), people, GENDERS_AND_PLACES)


ASKED: dict[str, Any] = {"target": "population:1", "k": 10, "patience": 2}


@pytest.mark.parametrize(
    "context",
    [
        {"attribute": "gender"},
        {"attribute": BOTH},
        {"attribute": BOTH, "intersect": True, "fairness_weight": 0.1},
        {"attribute": BOTH, "evidence": False},
        {"attribute": BOTH, "groups": "lacking", "rerank": "original_query"},
        {"attribute": "gender", "method": "fair-qr"},
        {"attribute": "gender", "method": "fair-qr", "pool": "union", "depth": 50},
    ],
    ids=str,
)
async def test_a_round_costs_two_round_trips_at_most_and_the_result_one_for_texts(
    engine: SearchEngine, context: dict[str, Any]
) -> None:
    watched = WatchedEngine(engine)
    result = await FairSearch(watched, KnownRefiner(words)).search(
        "science", **{"ask": "always", **ASKED, **context}
    )
    assert len(result.iterations) >= 2
    # A round whose keywords come to nothing ends before it searches, and is not measured.
    begun = len(result.iterations) + bool(result.unused_refinements)
    assert watched.round_trips <= 2 * begun
    assert len(watched.reads) == 1


@pytest.mark.parametrize("method", ["plain", "fa-ir"])
async def test_a_method_that_does_not_refine_searches_once(
    engine: SearchEngine, method: str
) -> None:
    watched = WatchedEngine(engine)
    await FairSearch(watched, KnownRefiner(words)).search(
        "science", attribute="gender", method=method
    )
    assert (watched.round_trips, len(watched.reads)) == (1, 1)


async def test_an_engine_that_only_searches_is_searched_fairly(engine: SearchEngine) -> None:
    """Keywords are held against the texts that were found, and it is asked nothing it cannot do."""
    watched = WatchedEngine(engine, without=NOTHING)
    result = await FairSearch(watched, KnownRefiner(words)).search(
        "science", attribute="gender", **ASKED, ask="always"
    )
    assert any("scholar" in query for query in result.iterations[1].queries)
    assert result.divergence < result.baseline.divergence
    assert watched.counts == 0


@pytest.mark.parametrize(
    ("context", "model", "sentence"),
    [
        ({"rerank": "original_query"}, None, "'original_query' needs an engine that can score"),
        ({"method": "fair-qr"}, None, "'original_query' needs an engine that can score"),
        ({"target": "corpus:1"}, None, "cannot have the part 'corpus'"),
        ({}, "feedback", "'feedback' needs an engine that can count the documents that match"),
    ],
)
async def test_what_an_engine_cannot_do_is_refused_in_one_sentence(
    engine: SearchEngine, context: dict[str, Any], model: str | None, sentence: str
) -> None:
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
    asked: Any = {"attribute": "gender", "k": 10, "max_iterations": 1, "ask": "always"}
    result = await FairSearch(partial, KnownRefiner(words)).search("science", **asked)
    assert result.warnings.count("1 of 5 shards failed.") == 1
