"""The re-rankers without training: the registry, the fair steps, xQuAD, PM-2 and MMR."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

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
    found = await ranked(engine, "physics chemistry", 40)
    labels = ["f" if int(id_[-2:]) >= 20 else "m?b"[int(id_[-2:]) % 3] for id_ in found.ids]
    for size, k in itertools.product((0, 1, 2, 40), (1, 2, 20, 50)):
        base = make_candidates("".join(labels[:size]))
        candidates = Candidates(
            found.top(size), base.memberships, base.targets, base.dimensions, base.groups
        )
        result = await reranker.rerank(engine, "physics chemistry", candidates, k)
        ids, scores = result.ranking.ids, result.ranking.scores
        assert len(ids) == len(scores) == min(k, size)
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(found.ids[:size])
        assert np.isfinite(scores).all()
        pairs = list(zip(ids, scores, strict=True))
        assert all(
            a[1] > b[1] or (a[1] == b[1] and a[0] < b[0]) for a, b in itertools.pairwise(pairs)
        )
        assert await reranker.rerank(engine, "physics chemistry", candidates, k) == result


def test_wrong_names_and_options_are_said_in_a_sentence() -> None:
    for name, options, message in (
        ("magic", {}, "'magic'; choose fair, exposure-aware, mmr, xquad, pm2, fa-ir, deltr, dlf."),
        ("mmr", {"lambda": 1}, "mmr has no option 'lambda'; it has trade_off"),
        ("mmr", {"trade_off": "1.5"}, "option 'trade_off' of mmr is wrong: .*less than or equal"),
        ("fa-ir", {"proportion": "1"}, "option 'proportion' of fa-ir is wrong: .*less than 1"),
        ("exposure-aware", {"k": 3}, "exposure-aware has no option 'k'; it has none"),
        ("deltr", {}, "'weights' of deltr is wrong: Field required.* that 'fairqr train' wrote"),
        ("dlf", {"weights": "/nowhere/x.json"}, "weights of dlf .No such file.*'fairqr train dlf'"),
        ("deltr", {"weights": "/"}, "/ does not contain weights of deltr"),
    ):
        with pytest.raises(InputError, match=message):
            open_reranker(name, options)


def test_damaged_weights_are_refused(weights: dict[str, Path]) -> None:
    path = weights["deltr"]
    data = json.loads(path.read_text())
    for damage in ({"format": 9}, {"name": "dlf"}, {"model": data["model"] | {"weights": [1.0]}}):
        path.write_text(json.dumps(data | damage))
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
    ranking = Ranking([f"d{place}" for place in range(n)], relevance.tolist())
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
        own = [position for position in range(len(labels)) if labels[position] == label]
        placed = [position for position in order if labels[position] == label]
        assert placed == own[: len(placed)]
    assert all(order[rank] == rank for rank in range(len(order)) if labels[rank] == "?")


@settings(max_examples=60)
@given(share=st.floats(0.1, 0.9))
def test_it_comes_near_the_best_of_all_orders(share: float) -> None:
    """Over all ways to place 8 documents of two groups, with enough of both to choose from."""
    members, target = members_of("m" * 8 + "f" * 8), np.array([share, 1 - share])
    order = exposure_aware(members, target, 8)
    found = jensen_shannon(target, exposure(members[order]))
    every = np.array([members_of("".join(it)) for it in itertools.product("fm", repeat=8)])
    assert found <= jensen_shannon(target, exposure(every)).min() + 0.004


Method = Callable[[float], Diversifier]
METHODS: dict[str, Method] = {
    "xquad": lambda share: Xquad(diversity=share),
    "pm2": lambda share: Pm2(focus=share),
}


def xquad_value(given: Aspects, place: int, above: list[int], share: float) -> float:
    """By the formula, a group at a time."""
    own, rows, relevance = given.memberships[place], given.memberships, given.relevance
    uncovered = [math.prod(1 - relevance[s] * rows[s][g] for s in above) for g in range(len(own))]
    groups = zip(given.weights, own, uncovered, strict=True)
    served = sum(weight * relevance[place] * part * open_ for weight, part, open_ in groups)
    return float((1 - share) * relevance[place] + share * served)


def pm2_value(given: Aspects, place: int, above: list[int], share: float) -> float:
    """By the formula; no group has the same quotient as another."""
    rows, left = given.memberships, [p for p in range(len(given.relevance)) if p not in above]
    seats = [sum(rows[s][g] for s in above) for g in range(len(given.weights))]
    quotients = [w / (2 * taken + 1) for w, taken in zip(given.weights, seats, strict=True)]
    next_seat = max(
        (g for g in range(len(seats)) if any(rows[p][g] * given.relevance[p] for p in left)),
        key=quotients.__getitem__,
    )
    factors = [q * (share if g == next_seat else 1 - share) for g, q in enumerate(quotients)]
    return float(given.relevance[place] * (factors @ rows[place]))


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
    given = Aspects(np.append(draw.random(8), 0.5), members, draw.dirichlet(np.ones(3)))
    order = METHODS[name](share).order(given, 8).tolist()
    for rank, chosen in enumerate(order):
        left = [place for place in range(9) if place not in order[:rank]]
        values = {place: value(given, place, order[:rank], share) for place in left}
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
    unlabelled = make_candidates("????")
    same = await open_reranker(name).rerank(engine, "q", unlabelled, 3)
    assert same.ranking.ids == unlabelled.ranking.ids[:3]


def cosines(texts: list[str]) -> list[list[float]]:
    """TF-IDF cosines by the formula, a pair at a time."""
    counts = [Counter(terms_of(text)) for text in texts]
    df = Counter(term for count in counts for term in count)
    idf = {term: math.log((1 + len(texts)) / (1 + count)) for term, count in df.items()}
    vectors = [{t: (1 + math.log(tf)) * idf[t] for t, tf in count.items()} for count in counts]

    def cosine(a: dict[str, float], b: dict[str, float]) -> float:
        norms = math.hypot(*a.values()) * math.hypot(*b.values())
        return sum(a[t] * b[t] for t in a.keys() & b.keys()) / norms if norms else 0.0

    return [[cosine(a, b) for b in vectors] for a in vectors]


def greedy(
    relevance: list[float], similar: list[list[float]], trade_off: float, k: int
) -> list[int]:
    chosen: list[int] = []
    for _ in relevance[:k]:
        near = [max([0.0, *(row[j] for j in chosen)]) for row in similar]
        left = [i for i in range(len(relevance)) if i not in chosen]
        chosen.append(max(left, key=lambda i: trade_off * relevance[i] - (1 - trade_off) * near[i]))
    return chosen


async def test_it_is_the_brute_force_over_texts_of_an_index(
    engine: SearchEngine, make_candidates: Make
) -> None:
    found = await ranked(engine, "botany optics", 25)
    candidates = replace(make_candidates("m" * len(found)), ranking=found)
    by_id = sorted(zip(found.ids, found.scores, strict=True))
    texts = [f"{d.title} {d.text}" for d in await engine.documents([id_ for id_, _ in by_id])]
    expected = greedy(min_max([s for _, s in by_id]).tolist(), cosines(texts), 0.6, 10)
    result = await Mmr(trade_off=0.6).rerank(engine, "q", candidates, 10)
    assert result.ranking.ids == [by_id[position][0] for position in expected]
