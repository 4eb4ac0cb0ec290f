"""The default method: the ranking of the highest objective, and a model asked only where it helps.

The objective is expected relevance × fairness; see :mod:`fairqr.retrieval.fairness.objective`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr import FairSearch
from fairqr.agents.refiners.refiner import Refinement
from fairqr.base.errors import InputError, SourceError
from fairqr.graph.search import found_documents
from fairqr.retrieval.engines.engine import Hits, SearchEngine
from fairqr.retrieval.engines.hybrid import encoded_pool
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.target import DEFAULT_TARGET
from tests.unit.engines import hits_of
from tests.unit.graph.corpora import AlteredEngine, KnownRefiner, indexed
from tests.unit.retrieval.vector_encoders import CountingEncoder

EVEN = "gender=female:0.5,male:0.5"


def people(women: int) -> list[dict[str, str]]:
    """Thirty men and some women in science, the women a little less; 600 women in music."""
    kinds = (
        ("m{:02}", "Man", "science physics atom", "male", 30),
        ("w{:02}", "Woman", "science physics atom g{}", "female", women),
        ("s{:03}", "Singer", "opera voice h{} stage", "female", 600),
    )
    return [
        {"id": id_.format(i), "title": f"{title} {i}", "text": text.format(i % 40), "g": gender}
        for id_, title, text, gender, count in kinds
        for i in range(count)
    ]


@pytest.fixture(params=[25, 1], ids=["enough", "scarce"])
def women(request: pytest.FixtureRequest) -> int:
    """How many women in science there are."""
    return int(request.param)


@pytest.fixture
async def hybrid(tmp_path: Path, women: int) -> AsyncIterator[SearchEngine]:
    words = await indexed(tmp_path, people(women))
    assert isinstance(words, TantivyEngine)
    engine = await HybridEngine.open(words, CountingEncoder(dimensions=64))
    yield engine
    await engine.aclose()


@pytest.fixture
async def lexical(tmp_path: Path, women: int) -> AsyncIterator[SearchEngine]:
    engine = await indexed(tmp_path, people(women))
    yield engine
    await engine.aclose()


def asked(word: str = "opera") -> KnownRefiner:
    """A refiner with one word; 'opera' finds the women of music."""
    return KnownRefiner([word])


def groups_of(refiner: KnownRefiner) -> set[str]:
    return {request.group for request in refiner.asked}


async def search(engine: SearchEngine, refiner: Any = None, **context: Any) -> Any:
    options = {"attribute": "gender", "k": 10, "method": "fairqr"} | context
    return await FairSearch(engine, refiner or asked()).search("science physics atom", **options)


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_little_is_to_gain_and_nobody_is_asked(hybrid: SearchEngine) -> None:
    refiner = asked()
    result = await search(hybrid, refiner)
    assert refiner.asked == []
    assert result.stop_reason == "little_to_gain"
    assert (result.model, result.without_model) == (None, None)
    assert result.objective.fairness > 0.99 > 0.8 > result.baseline.objective.fairness
    assert 0.95 < result.objective.relevance < result.baseline.objective.relevance
    assert {place.id[0] for place in result.ranking} == {"m", "w"}
    assert result.baseline.gaps.ranking["gender"]["female"] > 0.2
    assert result.baseline.gaps.unattainable["gender"]["female"] < 0.05
    assert result.gaps.ranking["gender"]["female"] < 0.1
    points = round(100 * result.baseline.gaps.ranking["gender"]["female"])
    assert f"{points} points were withheld by the ranking" in " ".join(result.explanation)


@pytest.mark.parametrize("options", [{}, {"spread": (2, 5)}, {"equal_chance": True}])
async def test_the_front_has_what_searches_with_these_weights_give(
    hybrid: SearchEngine, options: dict[str, Any]
) -> None:
    """It changes no list; more fairness never has more relevance."""
    weights = (0, 0.25, 1, 4, 64)
    options = {"ask": "never", "target": EVEN, **options}
    plain = await search(hybrid, **options)
    result = await search(hybrid, **options, front=weights)
    assert result.ranking == plain.ranking
    assert plain.front == []
    for weight, point in zip(weights, result.front, strict=True):
        alone = await search(hybrid, **options, fairness_weight=weight)
        assert point.weight == weight
        assert point.relevance == pytest.approx(alone.objective.relevance)
        assert point.fairness == pytest.approx(alone.objective.fairness)
    relevances = [point.relevance for point in result.front]
    assert relevances == sorted(relevances, reverse=True)
    with pytest.raises(InputError, match="nothing reads front"):
        await search(hybrid, method="baseline", front=(1,))


@pytest.mark.parametrize("women", [1], indirect=True)
async def test_what_is_not_there_is_not_replaced_by_what_is_not_relevant(
    hybrid: SearchEngine,
) -> None:
    refiner = asked()
    result = await search(hybrid, refiner)
    assert refiner.asked == []
    assert "w00" in [place.id for place in result.ranking]
    assert not any(place.id.startswith("s") for place in result.ranking)
    assert all(place.relevance >= 0.5 for place in result.ranking)
    lacks = result.target["gender"]["female"] - result.exposure["gender"]["female"]
    assert result.gaps.unattainable["gender"]["female"] == pytest.approx(lacks, abs=0.02)
    assert "too few documents were found that are likely" in " ".join(result.explanation)
    assert result.attainable["gender"]["female"] < result.target["gender"]["female"] - 0.05


def is_near(result: Any) -> bool:
    """Return whether each group of gender is within a point of its target."""
    wanted, got = result.target["gender"], result.exposure["gender"]
    return all(abs(got[group] - share) <= 0.01 for group, share in wanted.items())


async def test_a_target_of_ones_own_is_pursued_and_the_result_says_what_was_paid(
    hybrid: SearchEngine, women: int
) -> None:
    """Unless the weight of fairness is given: then it is a direction."""
    by_default = await search(hybrid, ask="never")
    directed = await search(hybrid, ask="never", target=EVEN, fairness_weight=1)
    for other in (by_default, directed):
        assert not is_near(other)
        assert not any(place.id.startswith("s") for place in other.ranking)
    assert directed.target["gender"]["female"] == 0.5
    assert directed.objective.weight == 1
    result = await search(hybrid, ask="never", target=EVEN)
    assert is_near(result)
    assert result.objective.weight in (4, 16, 64, 256)
    assert f"The weight of fairness was {result.objective.weight:g}." in result.explanation
    paid = result.baseline.objective.relevance - result.objective.relevance
    assert f"Expected relevance: {result.objective.relevance:.2f}" in " ".join(result.explanation)
    scarce = women == 1
    assert any(place.id.startswith("s") for place in result.ranking) == scarce
    assert paid > 0.25 if scarce else 0 < paid < 0.1
    assert result.relevance < result.baseline.relevance
    written = await search(hybrid, ask="never", target=str(DEFAULT_TARGET))
    assert is_near(written)
    assert written.objective.relevance < by_default.objective.relevance


async def test_gaps_add_up_to_what_a_group_lacks(hybrid: SearchEngine) -> None:
    result = await search(hybrid, ask="never")
    for ranked in (result, result.baseline):
        for group, wanted in result.target["gender"].items():
            gaps = [
                part["gender"][group] for part in (ranked.gaps.unattainable, ranked.gaps.ranking)
            ]
            assert sum(gaps) == pytest.approx(max(0, wanted - ranked.exposure["gender"][group]))
            assert min(gaps) >= 0


async def test_a_target_that_no_list_comes_near_is_told(hybrid: SearchEngine) -> None:
    """Of five ranks, none or one shows women 97 %."""
    result = await search(hybrid, ask="never", target="gender=female:0.97,male:0.03", k=5)
    assert not is_near(result)
    assert any("do not suffice for the target" in sentence for sentence in result.warnings)


async def test_the_higher_the_weight_of_fairness_the_fairer_and_the_less_relevant(
    hybrid: SearchEngine, lexical: SearchEngine
) -> None:
    for engine in (hybrid, lexical):
        found = [
            await search(engine, ask="never", fairness_weight=weight)
            for weight in (0, 0.1, 0.5, 1, 4, 1000)
        ]
        by_relevance = found[0]
        assert by_relevance.objective.relevance == pytest.approx(1)
        assert [p.id for p in by_relevance.ranking] == [p.id for p in by_relevance.baseline.ranking]
        for less, more in itertools.pairwise(found):
            assert more.objective.fairness >= less.objective.fairness - 1e-9
            assert more.objective.relevance <= less.objective.relevance + 1e-9
        for result in found:
            got, baseline = result.objective, result.baseline.objective
            assert got.value >= baseline.value
            assert got.fairness >= baseline.fairness
            assert got.value == pytest.approx(got.relevance * got.fairness**got.weight)
            # No other weight gives a better list by this one.
            for other in found:
                there = other.objective
                assert got.value >= there.relevance * there.fairness**got.weight - 1e-3
        assert found[-1].objective.fairness > found[0].objective.fairness + 0.1
        default = await search(engine, ask="never")
        assert default.ranking == found[3].ranking


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_limits_and_spread_are_obeyed_and_the_result_says_what_is_left_out(
    hybrid: SearchEngine,
) -> None:
    """No group has more than 60 % of the exposure, though the target says so."""
    asked_for = {"target": "gender=female:0.9,male:0.1", "k": 10, "ask": "never"}
    free = await search(hybrid, **asked_for)
    assert free.exposure["gender"]["female"] > 0.7
    assert (free.objective.leaves_out, free.objective.broken) == ((), ())
    options = {"spread": [5], "fairness": "worst"}
    capped = await search(hybrid, **asked_for, **options, at_most=0.6)
    assert capped.exposure["gender"]["female"] <= 0.6
    assert capped.objective.leaves_out == ("spread", "at_most")
    assert capped.objective.broken == ()
    assert capped.objective.bounded <= capped.objective.bound
    equal = await search(hybrid, **asked_for, equal_chance=True)
    assert equal.objective.leaves_out == ("equal_chance",)
    assert equal.objective.broken == ()
    assert equal.objective.value < free.objective.value
    impossible = await search(hybrid, **asked_for, at_most=0.3)
    assert impossible.objective.broken[0] in impossible.warnings
    assert "more than at_most; no list gives each" in impossible.objective.broken[0]


async def test_without_estimates_nothing_is_said_to_be_withheld(lexical: SearchEngine) -> None:
    """What is found by words need not be relevant, so it makes nothing attainable."""
    result = await search(lexical, ask="never")
    assert (result.attainable, result.gaps, result.baseline.gaps) == (None, None, None)
    assert result.relevance is None
    _, unchecked, by_rank, priced = result.explanation
    assert unchecked.startswith("We moved documents up without checking that they are relevant")
    lists = (result.objective, result.baseline.objective)
    figures = [*(it.relevance for it in lists), *(it.fairness for it in lists)]
    assert re.findall(r"\d\.\d\d", by_rank) == [f"{figure:.2f}" for figure in figures]
    cost = max(result.objective.price["gender"].values())
    assert priced == f"One more point for female would cost {cost:.3f} of relevance."
    assert (await search(lexical, method="fair-qr")).explanation[1:] == []


@pytest.mark.parametrize("women", [0], indirect=True)
@pytest.mark.parametrize(
    "context", [{"target": EVEN}, {"fairness_weight": 4, "least_gain": 0.001}], ids=str
)
async def test_much_is_to_gain_and_the_model_is_asked(
    lexical: SearchEngine, context: dict[str, Any]
) -> None:
    refiner = asked()
    result = await search(lexical, refiner, **context)
    assert groups_of(refiner) == {"female", "male"}
    assert result.model == "known"
    assert result.best_iteration > 0
    assert result.relevance is None
    assert all(place.relevance is None for place in result.ranking)
    assert result.without_model.objective.fairness < result.objective.fairness - 0.1
    assert result.without_model.divergence > result.divergence
    documents = result.without_model.documents
    assert documents == sum(place.id.startswith("s") for place in result.ranking) > 0
    assert (
        f"{documents} of these documents were found only by the model's queries"
        in result.explanation[-1]
    )
    gained = result.objective.fairness - result.without_model.objective.fairness
    assert f"fairness by {gained:+.3f}" in result.explanation[-1]
    assert is_near(result) or "target" not in context
    unasked = asked()
    enough = await search(lexical, unasked, **{**context, "least_gain": 1})
    assert (enough.stop_reason, unasked.asked) == ("little_to_gain", [])
    uncertified = enough.objective.model_copy(
        update={"bound": None, "price": None, "bounded": None}
    )
    assert uncertified == result.without_model.objective


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_what_stands_below_the_pool_is_looked_at_once_a_refined_query_finds_it(
    lexical: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All women stand below the documents that are encoded, though they are relevant."""
    monkeypatch.setattr(encoded_pool, "POOL", 30)
    monkeypatch.setattr(found_documents, "POOL", 30)
    encoder = CountingEncoder(dimensions=64)
    engine = await EncodedPoolEngine.open(lexical, encoder, keeps_order=False)
    alone = await search(engine, ask="never")
    unseen = [place.relevance for place in alone.ranking if place.id[0] == "w"]
    assert max(unseen, default=0) < 0.1
    of_women = Refinement("ok", keywords=tuple(f"g{i}" for i in range(25)))
    result = await search(engine, KnownRefiner({"female": of_women}), ask="always")
    women = [place.relevance for place in result.ranking if place.id[0] == "w"]
    assert len(women) > len(unseen)
    assert min(women) > 0.5
    assert result.objective.relevance > alone.objective.relevance
    assert result.objective.fairness > alone.objective.fairness
    assert result.without_model.divergence == pytest.approx(alone.divergence)
    by_query = [place.evidence["query"] for place in result.ranking if place.id[0] == "w"]
    assert min(by_query) > 0.5, "the original query was asked about them again"
    brought = {place.id for place in result.ranking if place.id[0] == "w"}
    brought -= {place.id for place in alone.ranking}
    assert result.without_model.documents == len(brought) > 0


async def test_what_the_model_finds_must_be_relevant_to_the_original_query(
    hybrid: SearchEngine,
) -> None:
    """Hundreds of singers are likely by the words of their group alone."""
    always, never = asked(), asked()
    result = await search(hybrid, always, ask="always")
    alone = await search(hybrid, never, ask="never")
    (queries,) = [round_.queries for round_ in result.iterations[1:]]
    for query in queries:
        assert any(id_.startswith("s") for id_ in (await hits_of(hybrid, query, 200)).ids)
    assert not any(place.id.startswith("s") for place in result.ranking)
    assert result.without_model.documents == 0
    assert always.asked
    assert never.started == alone.usage.model_calls == 0


@pytest.mark.parametrize("women", [1], indirect=True)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda hits: {"ids": [hits.ids[0], *hits.ids[:-1]]}, "a document twice"),
        (lambda hits: {"scores": [math.inf, *hits.scores[1:]]}, "a score that is not a finite"),
        (lambda hits: {"relevance": np.full(len(hits), np.nan)}, "a probability outside"),
    ],
)
async def test_hits_that_nothing_can_be_computed_from_are_one_sentence(
    lexical: SearchEngine, fault: Callable[[Hits], dict[str, Any]], said: str
) -> None:
    with pytest.raises(SourceError, match=f"returned {said}.*; correct the engine."):
        await search(AlteredEngine(lexical, fault), ask="never")


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_the_order_within_a_group_is_the_engines_or_on_request_that_of_the_estimates(
    lexical: SearchEngine,
) -> None:
    """In the engine's, what is probably not relevant comes last; here it stands far up."""
    plain = (await hits_of(lexical, "science physics atom", 500)).ids
    doubtful = [plain[0], plain[3], next(id_ for id_ in plain if id_[0] == "w")]
    probabilities = {id_: 0.6 + 0.005 * place for place, id_ in enumerate(plain)}
    probabilities |= dict.fromkeys(doubtful, 0.45)
    engine = AlteredEngine(
        lexical,
        lambda hits: {"relevance": np.array([probabilities.get(it, 0.6) for it in hits.ids])},
    )
    engine.capabilities |= {"relevance"}
    orders = {
        "engine": [id_ for id_ in plain if id_ not in doubtful],
        "estimated": sorted(plain, key=lambda id_: -probabilities[id_]),
    }
    values = []
    for order, expected in orders.items():
        result = await search(engine, ask="never", k=20, order=order)
        assert [place.id for place in result.baseline.ranking] == plain[:20]
        for group in ("m", "w"):
            shown = [place.id for place in result.ranking if place.id[0] == group]
            assert len(shown) >= 3
            assert shown == [id_ for id_ in expected if id_[0] == group][: len(shown)]
        values.append(result.objective.value)
    assert values[1] > values[0]


@pytest.mark.parametrize("query", ["zebra", "the"])
async def test_a_query_without_hits_has_an_empty_result(lexical: SearchEngine, query: str) -> None:
    """No model is asked, nothing is divided by nothing, and every method says the same."""
    refiner = asked()
    for method in ("fairqr", "fair-qr", "baseline", "greedy"):
        more: Any = {"method": method, "ask": "always", "target": EVEN}
        result = await FairSearch(lexical, refiner).search(query, attribute="gender", **more)
        assert result.stop_reason == "no_hits"
        assert (result.ranking, result.baseline.ranking) == ([], [])
        assert result.target == {"gender": {"female": 0.0, "male": 0.0}}
        assert result.exposure == result.target
        assert (result.divergence, result.objective, result.explanation) == (None, None, [])
        assert result.model is None
        assert result.warnings[-1].endswith("matches the query; try other words.")
        assert json.loads(result.model_dump_json())["stop_reason"] == "no_hits"
    assert refiner.asked == []


async def test_searches_at_once_do_not_disturb_each_other(hybrid: SearchEngine) -> None:
    one = await search(hybrid, ask="never")
    many = await asyncio.gather(*(search(hybrid, ask="never") for _ in range(5)))
    for other in many:
        assert other.model_dump(exclude={"usage"}) == one.model_dump(exclude={"usage"})
