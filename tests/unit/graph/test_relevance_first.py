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
from fairqr.graph.search import pool
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


def singing_refiner() -> KnownRefiner:
    """A refiner with the word "opera", which finds the women of music."""
    return KnownRefiner(["opera"])


def groups_of(refiner: KnownRefiner) -> set[str]:
    return {request.group for request in refiner.asked}


async def search(engine: SearchEngine, refiner: Any = None, **context: Any) -> Any:
    options = {"attribute": "gender", "k": 10, "method": "fairqr"} | context
    return await FairSearch(engine, refiner or singing_refiner()).search(
        "science physics atom", **options
    )


@pytest.mark.promise("objective")
@pytest.mark.parametrize("women", [25], indirect=True)
async def test_little_is_to_gain_and_nobody_is_asked(hybrid: SearchEngine) -> None:
    """A model is not asked where that is expected to gain too little, or where the documents found
    suffice.
    """
    refiner = singing_refiner()
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


@pytest.mark.parametrize(
    "options",
    [{}, {"spread": (2, 5)}, {"equal_chance": True}],
    ids=["default", "spread", "equal chance"],
)
async def test_the_front_has_what_searches_with_these_weights_give(
    hybrid: SearchEngine, options: dict[str, Any]
) -> None:
    """It changes no list; more fairness never has more relevance."""
    weights = (0, 0.25, 1, 4, 64)
    options = {"ask": "never", "target": EVEN, **options}
    without = await search(hybrid, **options)
    result = await search(hybrid, **options, front=weights)

    assert result.ranking == without.ranking
    assert without.front == []
    for weight, point in zip(weights, result.front, strict=True):
        alone = await search(hybrid, **options, fairness_weight=weight)
        assert point.weight == weight
        assert point.relevance == pytest.approx(alone.objective.relevance)
        assert point.fairness == pytest.approx(alone.objective.fairness)
    relevances = [point.relevance for point in result.front]
    assert relevances == sorted(relevances, reverse=True)


async def test_a_method_without_an_objective_has_no_front(hybrid: SearchEngine) -> None:
    with pytest.raises(InputError, match="nothing reads front"):
        await search(hybrid, method="baseline", front=(1,))


@pytest.mark.parametrize("women", [1], indirect=True)
async def test_irrelevant_documents_do_not_replace_missing_ones(
    hybrid: SearchEngine,
) -> None:
    refiner = singing_refiner()
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
    exposure = result.exposure["gender"]
    targets = result.target["gender"].items()
    return all(abs(exposure[group] - share) <= 0.01 for group, share in targets)


def has_singers(result: Any) -> bool:
    """Return whether a woman of music is in the list."""
    return any(place.id.startswith("s") for place in result.ranking)


@pytest.mark.promise("objective")
async def test_a_stated_target_is_pursued_at_a_stated_price(
    hybrid: SearchEngine, women: int
) -> None:
    """A target that a user states is pursued until each group is within a point of it, and the
    result says what was paid.
    """
    result = await search(hybrid, ask="never", target=EVEN)

    assert is_near(result)
    assert result.objective.weight in (4, 16, 64, 256)
    assert f"The weight of fairness was {result.objective.weight:g}." in result.explanation
    assert f"Expected relevance: {result.objective.relevance:.2f}" in " ".join(result.explanation)
    assert result.relevance < result.baseline.relevance
    paid = result.baseline.objective.relevance - result.objective.relevance
    if women == 1:
        assert has_singers(result)
        assert paid > 0.25
    else:
        assert not has_singers(result)
        assert 0 < paid < 0.1


async def test_a_target_with_a_weight_is_a_direction(hybrid: SearchEngine) -> None:
    result = await search(hybrid, ask="never", target=EVEN, fairness_weight=1)

    assert not is_near(result)
    assert not has_singers(result)
    assert result.target["gender"]["female"] == 0.5
    assert result.objective.weight == 1


async def test_the_default_target_is_pursued_only_when_stated(hybrid: SearchEngine) -> None:
    by_default = await search(hybrid, ask="never")
    stated = await search(hybrid, ask="never", target=str(DEFAULT_TARGET))

    assert not is_near(by_default)
    assert not has_singers(by_default)
    assert is_near(stated)
    assert stated.objective.relevance < by_default.objective.relevance


@pytest.mark.promise("graph")
async def test_gaps_add_up_to_what_a_group_lacks(hybrid: SearchEngine) -> None:
    """Both gaps in a result are those of the ranking in it, and add up to what a group lacks."""
    result = await search(hybrid, ask="never")
    for ranked in (result, result.baseline):
        for group, share in result.target["gender"].items():
            unattainable = ranked.gaps.unattainable["gender"][group]
            by_ranking = ranked.gaps.ranking["gender"][group]
            lack = max(0, share - ranked.exposure["gender"][group])
            assert unattainable + by_ranking == pytest.approx(lack)
            assert min(unattainable, by_ranking) >= 0


@pytest.mark.promise("objective")
async def test_a_target_that_no_list_comes_near_is_told(hybrid: SearchEngine) -> None:
    """Where no list comes near a target, the result says by how much it was missed.

    Of five ranks, none or one shows women 97 %.
    """
    result = await search(hybrid, ask="never", target="gender=female:0.97,male:0.03", k=5)
    assert not is_near(result)
    assert any("do not suffice for the target" in sentence for sentence in result.warnings)


@pytest.mark.promise("objective")
async def test_more_weight_on_fairness_is_fairer_and_less_relevant(hybrid: SearchEngine) -> None:
    """J is never below that of the baseline list, whatever the weight of fairness."""
    await check_weights(hybrid)


async def test_more_weight_has_the_same_effect_without_estimates(lexical: SearchEngine) -> None:
    await check_weights(lexical)


async def check_weights(engine: SearchEngine) -> None:
    """Compare the lists of growing weights of fairness with each other and with the baseline."""
    results = [
        await search(engine, ask="never", fairness_weight=weight)
        for weight in (0, 0.1, 0.5, 1, 4, 1000)
    ]

    by_relevance = results[0]
    assert by_relevance.objective.relevance == pytest.approx(1)
    baseline_ids = [place.id for place in by_relevance.baseline.ranking]
    assert [place.id for place in by_relevance.ranking] == baseline_ids
    for less, more in itertools.pairwise(results):
        assert more.objective.fairness >= less.objective.fairness - 1e-9
        assert more.objective.relevance <= less.objective.relevance + 1e-9
    for result in results:
        reached = result.objective
        baseline = result.baseline.objective
        assert reached.value >= baseline.value
        assert reached.fairness >= baseline.fairness
        assert reached.value == pytest.approx(reached.relevance * reached.fairness**reached.weight)
        # No other weight gives a better list by this one.
        for other in results:
            value = other.objective.relevance * other.objective.fairness**reached.weight
            assert reached.value >= value - 1e-3
    assert results[-1].objective.fairness > results[0].objective.fairness + 0.1
    default = await search(engine, ask="never")
    assert default.ranking == results[3].ranking


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_limits_and_spread_are_obeyed(
    hybrid: SearchEngine,
) -> None:
    """No group has more than 60 % of the exposure, though the target says so."""
    options = {"target": "gender=female:0.9,male:0.1", "k": 10, "ask": "never"}

    free = await search(hybrid, **options)
    assert free.exposure["gender"]["female"] > 0.7
    assert (free.objective.leaves_out, free.objective.broken) == ((), ())

    capped = await search(hybrid, **options, spread=[5], fairness="worst", at_most=0.6)
    assert capped.exposure["gender"]["female"] <= 0.6
    assert capped.objective.leaves_out == ("spread", "at_most")
    assert capped.objective.broken == ()
    assert capped.objective.bounded <= capped.objective.bound

    equal = await search(hybrid, **options, equal_chance=True)
    assert equal.objective.leaves_out == ("equal_chance",)
    assert equal.objective.broken == ()
    assert equal.objective.value < free.objective.value


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_a_limit_that_no_list_obeys_is_a_warning(hybrid: SearchEngine) -> None:
    target = "gender=female:0.9,male:0.1"
    result = await search(hybrid, target=target, k=10, ask="never", at_most=0.3)

    assert result.objective.broken[0] in result.warnings
    assert "more than at_most; no list gives each" in result.objective.broken[0]


@pytest.mark.promise("objective")
async def test_without_estimates_nothing_is_said_to_be_withheld(lexical: SearchEngine) -> None:
    """Where nothing tells relevance, a sentence says that documents were moved without checking.

    What is found by words need not be relevant, so it makes nothing attainable.
    """
    result = await search(lexical, ask="never")
    assert (result.attainable, result.gaps, result.baseline.gaps) == (None, None, None)
    assert result.relevance is None
    _, unchecked, by_rank, priced = result.explanation
    assert unchecked.startswith("We moved documents up without checking that they are relevant")
    lists = (result.objective, result.baseline.objective)
    relevances = [f"{reached.relevance:.2f}" for reached in lists]
    fairnesses = [f"{reached.fairness:.2f}" for reached in lists]
    assert re.findall(r"\d\.\d\d", by_rank) == relevances + fairnesses
    cost = max(result.objective.price["gender"].values())
    assert priced == f"One more point for female would cost {cost:.3f} of relevance."
    assert (await search(lexical, method="fair-qr")).explanation[1:] == []


@pytest.mark.promise("objective")
@pytest.mark.parametrize("women", [0], indirect=True)
@pytest.mark.parametrize(
    "context", [{"target": EVEN}, {"fairness_weight": 4, "least_gain": 0.001}], ids=str
)
async def test_much_is_to_gain_and_the_model_is_asked(
    lexical: SearchEngine, context: dict[str, Any]
) -> None:
    """A model is asked where that is expected to gain enough."""
    refiner = singing_refiner()
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

    # Whoever wants to gain more gets the list without the model.
    refiner = singing_refiner()
    enough = await search(lexical, refiner, **{**context, "least_gain": 1})
    assert (enough.stop_reason, refiner.asked) == ("little_to_gain", [])
    uncertified = enough.objective.model_copy(
        update={"bound": None, "price": None, "bounded": None}
    )
    assert uncertified == result.without_model.objective


@pytest.mark.parametrize("women", [25], indirect=True)
async def test_a_refined_query_brings_documents_below_the_pool(
    lexical: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All women stand below the documents that are encoded, though they are relevant."""
    monkeypatch.setattr(encoded_pool, "POOL", 30)
    monkeypatch.setattr(pool, "POOL", 30)
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


@pytest.mark.promise("graph")
async def test_found_documents_must_fit_the_original_query(
    hybrid: SearchEngine,
) -> None:
    """What a model's queries find is judged by the original query.

    Hundreds of singers are likely by the words of their group alone.
    """
    refiner = singing_refiner()
    result = await search(hybrid, refiner, ask="always")

    assert refiner.asked
    (queries,) = [round_.queries for round_ in result.iterations[1:]]
    for query in queries:
        hits = await hits_of(hybrid, query, 200)
        assert any(id_.startswith("s") for id_ in hits.ids)
    assert not has_singers(result)
    assert result.without_model.documents == 0


async def test_a_search_that_never_asks_starts_no_model(hybrid: SearchEngine) -> None:
    refiner = singing_refiner()
    result = await search(hybrid, refiner, ask="never")

    assert refiner.started == result.usage.model_calls == 0


@pytest.mark.parametrize("women", [1], indirect=True)
@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (lambda hits: {"ids": [hits.ids[0], *hits.ids[:-1]]}, "a document twice"),
        (lambda hits: {"scores": [math.inf, *hits.scores[1:]]}, "a score that is not a finite"),
        (lambda hits: {"relevance": np.full(len(hits), np.nan)}, "a probability outside"),
    ],
    ids=["id", "score", "relevance"],
)
async def test_hits_that_cannot_be_computed_with_are_one_sentence(
    lexical: SearchEngine, fault: Callable[[Hits], dict[str, Any]], complaint: str
) -> None:
    with pytest.raises(SourceError, match=f"returned {complaint}.*; correct the engine."):
        await search(AlteredEngine(lexical, fault), ask="never")


@pytest.mark.promise("objective")
@pytest.mark.parametrize("women", [25], indirect=True)
async def test_the_order_within_a_group_is_the_engines(
    lexical: SearchEngine,
) -> None:
    """In front of an engine that is not ours, documents of a group stay in its order.

    On request it is that of the estimates. In the engine's, what is probably not relevant comes
    last; here it stands far up.
    """
    baseline = (await hits_of(lexical, "science physics atom", 500)).ids
    first_woman = next(id_ for id_ in baseline if id_[0] == "w")
    doubtful = [baseline[0], baseline[3], first_woman]
    probabilities = {id_: 0.6 + 0.005 * position for position, id_ in enumerate(baseline)}
    probabilities |= dict.fromkeys(doubtful, 0.45)
    engine = AlteredEngine(
        lexical,
        lambda hits: {"relevance": np.array([probabilities.get(id_, 0.6) for id_ in hits.ids])},
    )
    engine.capabilities |= {"relevance"}

    orders = {
        "engine": [id_ for id_ in baseline if id_ not in doubtful],
        "estimated": sorted(baseline, key=lambda id_: -probabilities[id_]),
    }
    values = []
    for order, expected in orders.items():
        result = await search(engine, ask="never", k=20, order=order)
        assert [place.id for place in result.baseline.ranking] == baseline[:20]
        for group in ("m", "w"):
            listed = [place.id for place in result.ranking if place.id[0] == group]
            assert len(listed) >= 3
            assert listed == [id_ for id_ in expected if id_[0] == group][: len(listed)]
        values.append(result.objective.value)
    assert values[1] > values[0]


@pytest.mark.promise("objective")
@pytest.mark.parametrize("query", ["zebra", "the"])
async def test_a_query_without_hits_has_an_empty_result(lexical: SearchEngine, query: str) -> None:
    """A query without hits has an empty result, which is no error.

    No model is asked, nothing is divided by nothing, and every method says the same.
    """
    refiner = singing_refiner()
    options: Any = {"attribute": "gender", "ask": "always", "target": EVEN}
    for method in ("fairqr", "fair-qr", "baseline", "greedy"):
        result = await FairSearch(lexical, refiner).search(query, method=method, **options)
        assert result.stop_reason == "no_hits"
        assert (result.ranking, result.baseline.ranking) == ([], [])
        assert result.target == {"gender": {"female": 0.0, "male": 0.0}}
        assert result.exposure == result.target
        assert (result.divergence, result.objective, result.explanation) == (None, None, [])
        assert result.model is None
        assert result.warnings[-1].endswith("matches the query; try other words.")
        assert json.loads(result.model_dump_json())["stop_reason"] == "no_hits"
    assert refiner.asked == []


@pytest.mark.promise("graph")
async def test_searches_at_once_do_not_disturb_each_other(hybrid: SearchEngine) -> None:
    """The same search gives the same result, also beside others."""
    alone = await search(hybrid, ask="never")
    together = await asyncio.gather(*(search(hybrid, ask="never") for _ in range(5)))

    for result in together:
        assert result.model_dump(exclude={"usage"}) == alone.model_dump(exclude={"usage"})
