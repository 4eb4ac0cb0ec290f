"""The re-rankers without training: the registry, the fair steps, xQuAD, PM-2 and MMR."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.divergence import jensen_shannon
from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates, by_rank, min_max
from fairqr.retrieval.rerankers.deltr import DeltrTraining, train_deltr
from fairqr.retrieval.rerankers.diversification import (
    Aspects,
    Diversifier,
    Mmr,
    Pm2,
    Xquad,
)
from fairqr.retrieval.rerankers.dlf import train_dlf
from fairqr.retrieval.rerankers.fair import ExposureAwareStep, FairStep
from fairqr.retrieval.rerankers.learning import FEATURES, TopicExample, TrainingOptions
from fairqr.retrieval.rerankers.protection import group_of_each
from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS, TRAINED, open_reranker
from fairqr.retrieval.texts.words import terms_of
from tests.unit.engines import ranked

Make = Callable[..., Candidates]


@pytest.fixture
def weights(make_candidates: Make, tmp_path: Path) -> dict[str, Path]:
    """Files of weights of both trained re-rankers."""
    columns = np.random.default_rng(1).random((6, len(FEATURES)))
    item = TopicExample("t", make_candidates("mmfmff"), columns, np.array([1.0, 0, 1, 0, 1, 0]))
    paths = {name: tmp_path / f"{name}.json" for name in ("deltr", "dlf")}
    train_deltr([item], DeltrTraining()).save(paths["deltr"])
    train_dlf([item], TrainingOptions()).save(paths["dlf"])
    return paths


@pytest.mark.parametrize("name", RERANKERS)
async def test_each_keeps_the_interfaces_promises(
    name: str, engine: SearchEngine, make_candidates: Make, weights: dict[str, Path]
) -> None:
    """At most k of the candidates, each once, with scores that never increase; twice the same."""
    assert (name in TRAINED) == (name in weights)
    assert "(" in ABOUT[name]

    options = {"weights": weights[name]} if name in weights else {}
    reranker = open_reranker(name, options)
    whole = await ranked(engine, "physics chemistry", 40)
    numbers = [int(id_[-2:]) for id_ in whole.ids]
    labels = ["f" if number >= 20 else "m?b"[number % 3] for number in numbers]
    for size, k in itertools.product((0, 1, 2, 40), (1, 2, 20, 50)):
        base = make_candidates("".join(labels[:size]))
        candidates = replace(base, ranking=whole.top(size))
        result = await reranker.rerank(engine, "physics chemistry", candidates, k)
        ids = result.ranking.ids
        scores = result.ranking.scores
        assert len(ids) == len(scores) == min(k, size)
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(whole.ids[:size])
        assert np.isfinite(scores).all()
        pairs = list(zip(ids, scores, strict=True))
        assert pairs == sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
        assert await reranker.rerank(engine, "physics chemistry", candidates, k) == result


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("magic", {}, "'magic'; choose fair, exposure-aware, mmr, xquad, pm2, fa-ir, deltr, dlf."),
        ("mmr", {"lambda": 1}, "mmr has no option 'lambda'; it has trade_off"),
        ("mmr", {"trade_off": "1.5"}, "option 'trade_off' of mmr is wrong: .*less than or equal"),
        ("fa-ir", {"proportion": "1"}, "option 'proportion' of fa-ir is wrong: .*less than 1"),
        ("exposure-aware", {"k": 3}, "exposure-aware has no option 'k'; it has none"),
        ("deltr", {}, "'weights' of deltr is wrong: Field required.* that 'fairqr train' wrote"),
        ("dlf", {"weights": "/nowhere/x.json"}, "weights of dlf .No such file.*'fairqr train dlf'"),
        ("deltr", {"weights": "/"}, "/ does not contain weights of deltr"),
    ],
    ids=[
        "name",
        "unknown option",
        "range",
        "proportion",
        "no options",
        "no weights",
        "missing file",
        "folder",
    ],
)
def test_wrong_names_and_options_are_said_in_a_sentence(
    name: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        open_reranker(name, options)


@pytest.mark.parametrize(
    "damage",
    [{"format": 9}, {"name": "dlf"}, {"model": {"weights": [1.0]}}],
    ids=["format", "name", "length"],
)
def test_damaged_weights_are_refused(weights: dict[str, Path], damage: dict[str, Any]) -> None:
    path = weights["deltr"]
    content = json.loads(path.read_text())
    if "model" in damage:
        damage = {"model": content["model"] | damage["model"]}
    path.write_text(json.dumps(content | damage))

    with pytest.raises(InputError, match=r"'fairqr train deltr'"):
        open_reranker("deltr", {"weights": path})


def test_a_document_belongs_to_the_group_of_its_largest_share() -> None:
    """Mostly unknown ones belong to none; half unknown ones to a group."""
    rows = [[1, 0], [0.5, 0.5], [0.4, 0.6], [0, 0], [0.2, 0.1], [0.5, 0.0], [0.3, 0.3]]
    assert group_of_each(np.array(rows, dtype=float)).tolist() == [0, 0, 1, -1, -1, 0, -1]


HALF = np.full(2, 0.5)
PATTERNS = {"f": (1.0, 0.0), "m": (0.0, 1.0), "b": (0.5, 0.5), "?": (0.0, 0.0)}


def candidates(
    draw: np.random.Generator, shares: Sequence[float], n: int = 200, likely: int = 120
) -> Candidates:
    """Documents of two attributes, the first with these shares of its first group; some likely."""
    members = [np.eye(2)[(draw.random(n) > share).astype(int)] for share in shares]
    relevance = np.sort(np.where(np.arange(n) < likely, draw.uniform(0.6, 1, n), 0.02))[::-1]
    ranking = Ranking([f"d{number}" for number in range(n)], relevance.tolist())
    targets = [HALF, *(np.array([0.9, 0.1]) for _ in shares[1:])]
    names = ["gender", "continent"][: len(shares)]
    return Candidates(
        ranking, members, targets, names, [("a", "b")] * len(shares), relevance=relevance
    )


@pytest.mark.promise("objective")
def test_only_the_pursued_attribute_reaches_its_target() -> None:
    """A target is pursued for its attribute alone, until each group is within a point of it.

    The default target of another attribute neither keeps it away, nor costs any relevance.
    """
    draw = np.random.default_rng(4)
    for _ in range(25):
        pool = candidates(draw, (0.3, 0.1))
        for k in (10, 20):
            step = FairStep(pursue=("gender",))
            fair = step.take(pool, k)
            reached = exposure(pool.memberships[0][fair.positions])
            assert fair.missed == 0
            assert np.abs(reached - HALF).max() <= 0.01 + 1e-9
            objective = step.objective(pool, fair.weight, k)
            assert objective.quality(fair.positions).relevance > 0.8


@pytest.mark.promise("objective")
def test_what_cannot_be_reached_is_not_paid_for() -> None:
    """What cannot be reached is not paid for.

    Without a single document of a group the list is that of the default weight, or near it.
    """
    draw = np.random.default_rng(5)
    pool = candidates(draw, (0.0,))
    plain = FairStep().take(pool, 20)
    step = FairStep(pursue=("*",)).take(pool, 20)

    assert step.missed == 50
    assert step.weight == 1
    assert step.positions.tolist() == plain.positions.tolist()


def members_of(labels: str) -> np.ndarray:
    """f, m, b(oth) and ?(unknown) as memberships."""
    return np.array([PATTERNS[label] for label in labels])


def exposure_aware(members: np.ndarray, target: np.ndarray, length: int) -> list[int]:
    ranking = by_rank([f"d{number:03}" for number in range(len(members))])
    candidates = Candidates(ranking, [members], [target], ["gender"], [["female", "male"]])
    return ExposureAwareStep().positions(candidates, length).tolist()


@given(
    labels=st.text("fmb?", min_size=1, max_size=30),
    share=st.floats(0, 1),
    length=st.integers(1, 35),
)
def test_patterns_keep_their_order_and_unlabelled_ones_stay(
    labels: str, share: float, length: int
) -> None:
    target = np.array([share, 1 - share])
    order = exposure_aware(members_of(labels), target, length)
    assert len(order) == len(set(order)) == min(length, len(labels))

    for label in "fmb":
        with_label = [position for position in range(len(labels)) if labels[position] == label]
        placed = [position for position in order if labels[position] == label]
        assert placed == with_label[: len(placed)]

    assert all(order[rank] == rank for rank in range(len(order)) if labels[rank] == "?")


@settings(max_examples=60)
@given(share=st.floats(0.1, 0.9))
def test_the_exposure_aware_step_comes_near_the_best_order(share: float) -> None:
    """Over all ways to place 8 documents of two groups, with enough of both to choose from."""
    members = members_of("m" * 8 + "f" * 8)
    target = np.array([share, 1 - share])
    order = exposure_aware(members, target, 8)

    reached = jensen_shannon(target, exposure(members[order]))
    sequences = ["".join(labels) for labels in itertools.product("fm", repeat=8)]
    possible = np.array([members_of(labels) for labels in sequences])
    assert reached <= jensen_shannon(target, exposure(possible)).min() + 0.004


Method = Callable[[float], Diversifier]
METHODS: dict[str, Method] = {
    "xquad": lambda share: Xquad(diversity=share),
    "pm2": lambda share: Pm2(focus=share),
}


def xquad_value(aspects: Aspects, document: int, above: list[int], share: float) -> float:
    """By the formula, a group at a time."""
    relevance = aspects.relevance
    members = aspects.memberships
    served = 0.0
    for group, weight in enumerate(aspects.weights):
        uncovered = math.prod(1 - relevance[other] * members[other][group] for other in above)
        served += weight * relevance[document] * members[document][group] * uncovered
    return float((1 - share) * relevance[document] + share * served)


def pm2_value(aspects: Aspects, document: int, above: list[int], share: float) -> float:
    """By the formula; no group has the same quotient as another."""
    relevance = aspects.relevance
    members = aspects.memberships
    remaining = [other for other in range(len(relevance)) if other not in above]
    quotients = []
    open_groups = []
    for group, weight in enumerate(aspects.weights):
        seats = sum(members[other][group] for other in above)
        quotients.append(weight / (2 * seats + 1))
        if any(members[other][group] * relevance[other] for other in remaining):
            open_groups.append(group)
    next_seat = max(open_groups, key=quotients.__getitem__)
    factors = np.array(quotients) * (1 - share)
    factors[next_seat] = quotients[next_seat] * share
    return float(relevance[document] * (factors @ members[document]))


@pytest.mark.promise("labels")
@pytest.mark.parametrize(("name", "value"), [("xquad", xquad_value), ("pm2", pm2_value)])
@given(seed=st.integers(0, 10_000), share=st.floats(0, 1))
def test_each_rank_has_the_largest_value_by_the_formula(
    name: str, value: Callable[[Aspects, int, list[int], float], float], seed: int, share: float
) -> None:
    """PM-2 and xQuAD are their definitions: each rank goes to a document with the largest value by
    the formula.

    Over documents of several groups, which are partly unknown.
    """
    draw = np.random.default_rng(seed)
    members = draw.dirichlet(np.ones(4), 9)[:, :3]
    aspects = Aspects(np.append(draw.random(8), 0.5), members, draw.dirichlet(np.ones(3)))
    order = METHODS[name](share).order(aspects, 8).tolist()

    for rank, chosen in enumerate(order):
        above = order[:rank]
        remaining = [document for document in range(9) if document not in above]
        values = {document: value(aspects, document, above, share) for document in remaining}
        assert values[chosen] >= max(values.values()) - 1e-9


def test_scores_are_normalised_and_attributes_stand_side_by_side(make_candidates: Make) -> None:
    """A man from Africa leads; then a woman and Europe are both wanting."""
    candidates = make_candidates("mmmfff", 0.5, [90, 50, 48, 46, 20, 10])
    africa = np.array([[1.0, 0.0], [0, 1], [0, 1], [0, 1], [0, 1], [1, 0]])
    both = replace(
        candidates,
        memberships=[candidates.memberships[0], africa],
        targets=[np.array([0.5, 0.5]), np.array([0.25, 0.75])],
        dimensions=["gender", "continent"],
        groups=[["female", "male"], ["Africa", "Europe"]],
    )
    aspects = Aspects.of(both)

    assert aspects.relevance.tolist() == min_max([90, 50, 48, 46, 20, 10]).tolist()
    assert aspects.weights.tolist() == [0.25, 0.25, 0.125, 0.375]
    assert aspects.memberships.shape == (6, 4)
    assert [method(0.5).order(aspects, 4)[1] for method in METHODS.values()] == [3, 3]


@pytest.mark.promise("labels")
@pytest.mark.parametrize("name", METHODS)
async def test_documents_without_a_label_keep_their_places(
    name: str, engine: SearchEngine, make_candidates: Make
) -> None:
    """PM-2 and xQuAD leave documents without a label where they are."""
    candidates = make_candidates("?mm?mffm", 0.9, [20, 19, 18, 17, 16, 15, 14, 1])
    result = await open_reranker(name).rerank(engine, "q", candidates, 5)
    assert [result.ranking.ids[rank] for rank in (0, 3)] == ["d000", "d003"]
    assert set(result.ranking.ids) & {"d005", "d006"}


@pytest.mark.parametrize("name", METHODS)
async def test_a_list_without_labels_stays_as_it_is(
    name: str, engine: SearchEngine, make_candidates: Make
) -> None:
    candidates = make_candidates("????")
    result = await open_reranker(name).rerank(engine, "q", candidates, 3)

    assert result.ranking.ids == candidates.ranking.ids[:3]


def tf_idf_vectors(texts: list[str]) -> list[dict[str, float]]:
    """The TF-IDF vector of each text, by the formula."""
    counts = [Counter(terms_of(text)) for text in texts]
    frequencies = Counter[str]()
    for count in counts:
        frequencies.update(count.keys())
    vectors = []
    for count in counts:
        vector = {}
        for term, number in count.items():
            idf = math.log((1 + len(texts)) / (1 + frequencies[term]))
            vector[term] = (1 + math.log(number)) * idf
        vectors.append(vector)
    return vectors


def cosine(first: dict[str, float], second: dict[str, float]) -> float:
    """The cosine of two vectors, 0 where one has the length 0."""
    norms = math.hypot(*first.values()) * math.hypot(*second.values())
    if not norms:
        return 0.0
    shared = first.keys() & second.keys()
    return sum(first[term] * second[term] for term in shared) / norms


def greedy(
    relevance: list[float], vectors: list[dict[str, float]], trade_off: float, k: int
) -> list[int]:
    """The order of MMR by its definition: each rank goes to the best document that remains."""
    chosen: list[int] = []
    for _ in relevance[:k]:
        values = {}
        for document, vector in enumerate(vectors):
            if document not in chosen:
                nearest = max([0.0, *(cosine(vector, vectors[other]) for other in chosen)])
                value = trade_off * relevance[document] - (1 - trade_off) * nearest
                values[document] = value
        chosen.append(max(values, key=values.__getitem__))
    return chosen


async def test_mmr_is_the_brute_force_over_texts_of_an_index(
    engine: SearchEngine, make_candidates: Make
) -> None:
    ranking = await ranked(engine, "botany optics", 25)
    candidates = replace(make_candidates("m" * len(ranking)), ranking=ranking)
    result = await Mmr(trade_off=0.6).rerank(engine, "q", candidates, 10)

    scores = dict(sorted(zip(ranking.ids, ranking.scores, strict=True)))
    ids = list(scores)
    documents = await engine.documents(ids)
    vectors = tf_idf_vectors([f"{document.title} {document.text}" for document in documents])
    expected = greedy(min_max(list(scores.values())).tolist(), vectors, 0.6, 10)
    assert result.ranking.ids == [ids[position] for position in expected]
