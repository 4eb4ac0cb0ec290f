"""DELTR: its loss and gradient, and what its penalty does to exposure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.deltr import (
    DeltrModel,
    DeltrTraining,
    contrast,
    deltr_loss,
    fit_deltr,
    train_deltr,
)
from fairqr.retrieval.rerankers.examples import (
    FEATURES,
    Example,
    Examples,
    features,
    gather_examples,
)
from fairqr.retrieval.rerankers.learning import padded
from fairqr.retrieval.rerankers.registry import open_reranker

Make = Callable[..., Candidates]
List = tuple[FloatArray, FloatArray, FloatArray]


def biased_lists(seed: int, queries: int = 12, longest: int = 40) -> list[List]:
    """Relevance follows the first feature, in which the protected group is rated too low."""
    random = np.random.default_rng(seed)
    lists = []
    for _ in range(queries):
        n = int(random.integers(10, longest))
        protected = (random.random(n) < 0.4).astype(np.float64)
        merit = random.normal(size=n)
        rated = merit - 1.5 * protected + 0.2 * random.normal(size=n)
        lists.append((np.column_stack([rated, random.normal(size=n), protected]), merit, protected))
    return lists


def written_out_loss(weights: FloatArray, lists: Sequence[List], gamma: float) -> float:
    """The formula of Zehlike & Castillo 2020, a list at a time."""
    losses = []
    for columns, grades, protected in lists:
        scores = columns @ weights
        wanted = np.exp(grades) / np.exp(grades).sum()
        given_ = np.exp(scores) / np.exp(scores).sum()
        loss = -(wanted * np.log(given_)).sum()
        top = 1 / np.log(2)
        if 0 < protected.sum() < len(protected):
            others = (given_ * top)[protected == 0].mean()
            ours = (given_ * top)[protected == 1].mean()
            loss += gamma * max(0.0, others - ours) ** 2
        losses.append(loss)
    return float(np.mean(losses))


@given(
    seed=st.integers(0, 1_000),
    gamma=st.sampled_from([0.0, 1.0, 100.0]),
    weights=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
)
def test_the_loss_is_the_formula_and_the_gradient_its_finite_differences(
    seed: int, gamma: float, weights: list[float]
) -> None:
    lists = biased_lists(seed, queries=4, longest=15)
    # A list without any protected document has no penalty.
    lists.append((lists[0][0], lists[0][1], np.zeros(len(lists[0][1]))))
    columns, grades = (padded([own[place] for own in lists]) for place in (0, 1))
    mask = padded([np.ones(len(own[1])) for own in lists]) > 0
    contrasts = padded([contrast(own[2]) for own in lists])

    def loss_of(at: FloatArray) -> tuple[float, FloatArray]:
        loss, slope = deltr_loss(columns @ at, grades, mask, contrasts, gamma)
        return loss, np.tensordot(slope, columns, axes=2)

    at, step = np.array(weights), 1e-6
    loss, gradient = loss_of(at)
    assert loss == pytest.approx(written_out_loss(at, lists, gamma))
    for moved in np.eye(3) * step:
        numeric = (loss_of(at + moved)[0] - loss_of(at - moved)[0]) / (2 * step)
        # The penalty has a kink in its slope, which a difference smooths.
        expected = pytest.approx(numeric, rel=1e-4, abs=1e-6 * (1 + gamma))
        assert gradient @ moved / step == expected


def test_training_lowers_the_loss_and_repeats_itself() -> None:
    lists = biased_lists(1)
    options = DeltrTraining(gamma=10.0)
    start = np.random.default_rng(options.seed).normal(0.0, 0.01, 3)
    found = fit_deltr(lists, options)
    assert found.loss < written_out_loss(start, lists, 10.0) - 0.1
    again = fit_deltr(lists, options)
    assert again.weights.tolist() == found.weights.tolist()
    # Another start ends at the same place.
    other = fit_deltr(lists, DeltrTraining(gamma=10.0, seed=9))
    assert other.weights == pytest.approx(found.weights, abs=1e-3)


def test_the_penalty_raises_the_exposure_of_the_protected_group() -> None:
    """As published: γ = 0 learns the bias, and the more γ, the less disparity on new lists."""
    fresh = biased_lists(2)

    def share(gamma: float) -> float:
        weights = fit_deltr(biased_lists(1), DeltrTraining(gamma=gamma)).weights
        shares = []
        for columns, _, protected in fresh:
            order = np.argsort(-(columns @ weights))
            both = np.column_stack([protected, 1 - protected])[order]
            shares.append(exposure(both, k=10)[0] - protected.mean())
        return float(np.mean(shares))

    # Merit does not differ between the groups, so their exposure need not.
    shares = [share(gamma) for gamma in (0.0, 10.0, 1000.0)]
    assert shares[0] < shares[1] < shares[2]
    assert shares[0] == pytest.approx(0.0, abs=0.1)
    assert shares[2] > 0.02


def test_without_the_mark_as_a_feature_the_bias_stays_in_the_order() -> None:
    """The penalty needs something to act on: the mark of the group is a feature for that."""
    blind = [(columns[:, :1], grades, protected) for columns, grades, protected in biased_lists(1)]
    weights = fit_deltr(blind, DeltrTraining(gamma=0.0)).weights
    gaps = []
    for columns, _, protected in blind:
        both = np.column_stack([protected, 1 - protected])[np.argsort(-(columns @ weights))]
        gaps.append(exposure(both, k=10)[0] - protected.mean())
    assert np.mean(gaps) < -0.1


@pytest.fixture
async def examples(
    engine: SearchEngine, topics: dict[str, str], qrels: dict[str, dict[str, int]]
) -> Examples:
    dimension = Dimension.named(engine.schema, "gender")

    def even(retrieved: Ranking, table: DocumentTable) -> list[FloatArray]:
        return [np.array([0.5, 0.5])]

    return await gather_examples(engine, topics, qrels, [dimension], even, depth=30)


async def test_examples_hold_features_grades_and_groups(examples: Examples) -> None:
    first = examples.items[0]
    assert [item.topic for item in examples.items] == [f"t{number}" for number in range(6)]
    assert first.features.shape == (30, len(FEATURES))
    assert np.isfinite(first.features).all()
    for id_, grade in zip(first.candidates.ranking.ids, first.grades, strict=True):
        assert grade == (int(id_[-2:]) % 2 == 0)
    column = dict(zip(FEATURES, first.features.T, strict=True))
    assert column["reciprocal_rank"].tolist() == [1 / rank for rank in range(1, 31)]
    assert (column["title_coverage"] == first.grades).all()
    assert column["bm25_min_max"].min() == 0
    assert column["bm25_min_max"].max() == 1
    assert np.exp(column["bm25_log"]) - 1 == pytest.approx(first.candidates.ranking.scores)
    assert examples.only(["t1", "t3"]).items == [examples.items[1], examples.items[3]]


def women_of(ranking: Ranking) -> float:
    """Their share of the exposure; they have the numbers from 20."""
    members = [[int(id_[-2:]) >= 20, int(id_[-2:]) < 20] for id_ in ranking.ids]
    return float(exposure(members)[0])


async def test_a_trained_model_puts_relevant_and_protected_documents_higher(
    engine: SearchEngine, examples: Examples, tmp_path: Path
) -> None:
    """Trained on five topics, used on the sixth."""
    train, test = examples.only({"t0", "t1", "t2", "t3", "t4"}), examples.items[5]
    women = []
    for gamma in (0.0, 1e4):
        model = train_deltr(train, DeltrTraining(gamma=gamma))
        assert model.protected == ("female",)
        assert model.model.features == (*FEATURES, "protected")
        path = tmp_path / f"{gamma}.json"
        model.save(path)
        assert DeltrModel.load(path) == model
        reranker = open_reranker("deltr", {"weights": str(path)}, engine=engine)
        result = await reranker.rerank("optics", test.candidates, 10)
        assert all(int(id_[-2:]) % 2 == 0 for id_ in result.ranking.ids)
        assert result.ranking.scores == sorted(result.ranking.scores, reverse=True)
        women.append(women_of(result.ranking))
    assert women_of(test.candidates.ranking.top(10)) == 0
    assert 0 < women[0] < women[1]


async def test_the_same_examples_give_the_same_file(examples: Examples) -> None:
    one, two = train_deltr(examples), train_deltr(examples)
    assert one == two
    # The mark of the group is not standardised.
    assert (one.model.means[-1], one.model.scales[-1]) == (0, 1)
    assert any(mean != 0 for mean in one.model.means[:-1])
    assert one.trained_on == examples.sha256()
    changed = list(examples.items)
    changed[0] = replace(changed[0], grades=changed[0].grades[::-1].copy())
    assert replace(examples, items=changed).sha256() != one.trained_on


async def test_features_do_without_documents_that_are_gone(engine: SearchEngine) -> None:
    ranking = Ranking(["physics00", "gone"], [2.0, 1.0])
    rows = await features(engine, "physics", ranking)
    assert np.isfinite(rows).all()
    assert rows[1].tolist() == [0.0, 0.0, 0.5, 0.0, 0.0]
    assert (await features(engine, "physics", Ranking([], []))).shape == (0, len(FEATURES))


async def test_what_cannot_be_trained_or_used_is_said(
    engine: SearchEngine, examples: Examples, make_candidates: Make, tmp_path: Path
) -> None:
    nothing = [replace(item, grades=np.zeros_like(item.grades)) for item in examples.items]
    for items in ([], nothing):
        with pytest.raises(InputError, match="nothing to train on"):
            train_deltr(Examples(items))
    with pytest.raises(InputError, match="no group 'nobody' to protect"):
        train_deltr(examples, DeltrTraining(protected="nobody"))
    path = tmp_path / "weights.json"
    train_deltr(examples).save(path)
    reranker = open_reranker("deltr", {"weights": path}, engine=engine)
    other = replace(make_candidates("fm"), dimensions=["age"])
    with pytest.raises(InputError, match="the attribute 'gender', but this search measures age"):
        await reranker.rerank("q", other, 2)
    renamed = replace(make_candidates("fm"), groups=[["w", "m"]])
    with pytest.raises(InputError, match="for the group 'female', which 'gender' does not have"):
        await reranker.rerank("q", renamed, 2)
    assert (await reranker.rerank("q", make_candidates(""), 2)).ranking.ids == []


async def test_one_topic_with_one_document_of_each_kind_is_enough(make_candidates: Make) -> None:
    item = Example("t", make_candidates("mf"), np.array([[1.0], [1.0]]), np.array([0.0, 1.0]))
    model = train_deltr(Examples([item], ("constant",)))
    assert np.isfinite(model.model.weights).all()
