"""DLF: the loss over distributions, its gradient, and what the blend does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import FloatArray, exposure, normalise
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.dlf import (
    DlfModel,
    DlfTraining,
    distribution_loss,
    target_feature,
    train_dlf,
)
from fairqr.retrieval.rerankers.examples import Example, Examples, features
from fairqr.retrieval.rerankers.registry import open_reranker
from tests.unit.engines import ranked

Make = Callable[..., Candidates]


@dataclass(frozen=True)
class Batch:
    """Padded lists: features (Q, N, F), and by attribute memberships and targets."""

    features: FloatArray
    mask: NDArray[np.bool_]
    memberships: list[FloatArray]
    targets: list[FloatArray]


def random_batch(seed: int) -> Batch:
    """Three padded lists over two attributes; one list has no label of the second attribute."""
    random = np.random.default_rng(seed)
    mask = np.arange(7) < np.array([[7], [4], [5]])
    members = [random.dirichlet(np.ones(size), (3, 7)) * mask[..., None] for size in (2, 4)]
    members[0] *= random.random((3, 7, 1))
    members[1][2] = 0.0
    targets = [random.dirichlet(np.ones(size), 3) for size in (2, 4)]
    return Batch(random.normal(size=(3, 7, 3)) * mask[..., None], mask, members, targets)


def written_out_loss(weights: FloatArray, batch: Batch) -> float:
    """The mean over the attributes of the mean KL over the lists that have a label of it."""
    means = []
    for members, target in zip(batch.memberships, batch.targets, strict=True):
        values = []
        for row in range(len(target)):
            held = batch.mask[row]
            scores = batch.features[row][held] @ weights
            given_ = np.exp(scores) / np.exp(scores).sum()
            exposed = given_ @ members[row][held]
            if exposed.sum() > 0:
                values.append(kullback_leibler(target[row], normalise(exposed)))
        means.append(np.mean(values))
    return float(np.mean(means))


@given(seed=st.integers(0, 1_000), weights=st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_the_loss_is_the_formula_and_the_gradient_its_finite_differences(
    seed: int, weights: list[float]
) -> None:
    at, batch, step = np.array(weights), random_batch(seed), 1e-6

    def loss_of(weights: FloatArray) -> tuple[float, FloatArray]:
        scores = batch.features @ weights
        loss, slope = distribution_loss(scores, batch.mask, batch.memberships, batch.targets)
        return loss, np.tensordot(slope, batch.features, axes=2)

    loss, gradient = loss_of(at)
    assert loss == pytest.approx(written_out_loss(at, batch))
    for moved in np.eye(3) * step:
        numeric = (loss_of(at + moved)[0] - loss_of(at - moved)[0]) / (2 * step)
        assert gradient @ moved / step == pytest.approx(numeric, rel=1e-4, abs=1e-6)


@given(labels=st.text("fm", min_size=2, max_size=30), share=st.floats(0.05, 0.95))
def test_the_target_feature_gives_the_target_where_documents_have_one_group(
    labels: str, share: float
) -> None:
    if len(set(labels)) < 2:
        labels = "fm"
    members = np.array([[label == "f", label == "m"] for label in labels], dtype=np.float64)
    target = np.array([share, 1 - share])
    scores = target_feature(members, target)
    given_ = np.exp(scores) / np.exp(scores).sum()
    assert given_ @ members == pytest.approx(target, abs=2e-3)
    assert target_feature(np.zeros((3, 2)), target).tolist() == [0.0] * 3


def biased_examples(make: Make, seed: int, topics: int = 15) -> Examples:
    """Relevance follows the first feature, which rates the protected group too low."""
    random = np.random.default_rng(seed)
    items = []
    for topic in range(topics):
        n = 40
        labels = "".join(random.choice(["f", "m"], n, p=[0.35, 0.65]))
        merit = random.normal(size=n)
        rated = merit - 1.5 * np.array([label == "f" for label in labels])
        order = np.argsort(-rated)
        candidates = make("".join(labels[position] for position in order), target=0.5)
        columns = np.column_stack([rated, random.normal(size=n)])[order]
        items.append(
            Example(f"t{topic:02}", candidates, columns, (merit > 0.5).astype(np.float64)[order])
        )
    return Examples(items, ("rated", "noise"))


def shares(examples: Examples, model: DlfModel, alpha: float) -> tuple[float, float]:
    """The women's mean exposure and the relevant documents' mean share in the first 10."""
    women, relevant = [], []
    for item in examples.items:
        members = item.candidates.memberships[0]
        told = target_feature(members, item.candidates.targets[0])[:, None]
        order = np.argsort(-model.scores(item.features, told, alpha))[:10]
        women.append(exposure(members[order])[0])
        relevant.append(item.grades[order].mean())
    return float(np.mean(women)), float(np.mean(relevant))


def test_alpha_trades_relevance_for_exposure_near_the_target(make_candidates: Make) -> None:
    """Trained on some topics, tried on others; no label of fairness is used."""
    model = train_dlf(biased_examples(make_candidates, 1))
    fresh = biased_examples(make_candidates, 2)
    women, relevant = zip(
        *(shares(fresh, model, alpha) for alpha in (1.0, 0.6, 0.3, 0.0)), strict=True
    )
    assert women[0] < 0.1
    assert women[0] < women[1] < women[2] < women[3]
    assert women[2] == pytest.approx(0.5, abs=0.2)
    # The groups have equal merit, so near the target relevance is no lower than where it was.
    assert relevant[2] >= relevant[0] - 0.02
    assert relevant[2] > relevant[3]


def test_the_fairness_model_learns_from_the_target_alone(make_candidates: Make) -> None:
    examples = biased_examples(make_candidates, 3)
    model = train_dlf(examples)
    assert model.fairness.features == ("rated", "noise", "target(gender)")
    assert model.fairness.weights[-1] == pytest.approx(1.0, abs=0.1)
    assert (model.fairness.means[-1], model.fairness.scales[-1]) == (0, 1)
    assert model.fairness_loss < 0.02
    relabelled = [replace(item, grades=item.grades[::-1].copy()) for item in examples.items]
    other = train_dlf(replace(examples, items=relabelled))
    assert other.fairness == model.fairness
    assert other.relevance != model.relevance
    assert other.trained_on != model.trained_on


def test_training_lowers_both_losses_and_repeats_itself(make_candidates: Make) -> None:
    examples = biased_examples(make_candidates, 4)
    short, long = (train_dlf(examples, DlfTraining(iterations=n)) for n in (1, 100))
    assert long.relevance_loss < short.relevance_loss
    assert long.fairness_loss < short.fairness_loss
    assert train_dlf(examples, DlfTraining(iterations=100)) == long


async def test_it_is_saved_loaded_and_used_over_an_index(
    engine: SearchEngine, make_candidates: Make, tmp_path: Path, topics: dict[str, str]
) -> None:
    items = []
    for topic, query in topics.items():
        found = await ranked(engine, query, 30)
        labels = "".join("f" if int(id_[-2:]) >= 20 else "m" for id_ in found.ids)
        grades = np.array([float(int(id_[-2:]) % 2 == 0) for id_ in found.ids])
        candidates = replace(make_candidates(labels), ranking=found)
        items.append(Example(topic, candidates, await features(engine, query, found), grades))
    model = train_dlf(Examples(items[:5]))
    path = tmp_path / "weights.json"
    model.save(path)
    assert DlfModel.load(path) == model
    women = []
    for alpha in (1.0, 0.6):
        reranker = open_reranker("dlf", {"weights": path, "alpha": str(alpha)}, engine=engine)
        ranking = (await reranker.rerank("optics", items[5].candidates, 10)).ranking
        assert ranking.scores == sorted(ranking.scores, reverse=True)
        women.append(sum(int(id_[-2:]) >= 20 for id_ in ranking.ids))
    assert women[1] > women[0]
    assert (await reranker.rerank("q", make_candidates(""), 5)).ranking == Ranking([], [])
    with pytest.raises(InputError, match="the attribute 'gender', but this search measures age"):
        await reranker.rerank("q", replace(make_candidates("fm"), dimensions=["age"]), 2)


def test_several_attributes_are_learned_for_at_once(make_candidates: Make) -> None:
    random = np.random.default_rng(5)
    items = []
    for item in biased_examples(make_candidates, 5).items:
        origin = np.eye(3)[random.choice(3, len(item.grades), p=[0.7, 0.2, 0.1])]
        both = Candidates(
            item.candidates.ranking,
            [*item.candidates.memberships, origin],
            [*item.candidates.targets, np.full(3, 1 / 3)],
            ["gender", "origin"],
            [["female", "male"], ["a", "b", "c"]],
        )
        items.append(replace(item, candidates=both))
    model = train_dlf(Examples(items, ("rated", "noise")))
    assert model.dimensions == {"gender": ("female", "male"), "origin": ("a", "b", "c")}
    assert model.fairness.weights[-2:] == pytest.approx([1.0, 1.0], abs=0.3)
    before, after = np.zeros(2), np.zeros(2)
    for item in items:
        pairs = list(zip(item.candidates.memberships, item.candidates.targets, strict=True))
        told = np.column_stack([target_feature(members, target) for members, target in pairs])
        scores = model.scores(item.features, told, 0.0)
        given_ = np.exp(scores) / np.exp(scores).sum()
        for attribute, (members, target) in enumerate(pairs):
            before[attribute] += kullback_leibler(target, normalise(members.sum(axis=0)))
            after[attribute] += kullback_leibler(target, given_ @ members)
    assert np.all(after < before / 2)


def test_lists_without_labels_do_no_harm(make_candidates: Make) -> None:
    nobody = Example("t", make_candidates("????"), np.ones((4, 1)), np.array([1.0, 0.0, 0.0, 0.0]))
    model = train_dlf(Examples([nobody], ("constant",)))
    assert model.fairness_loss == 0
    assert np.isfinite(model.scores(np.ones((4, 1)), np.zeros((4, 1)), 0.5)).all()
