"""DELTR and DLF: their losses and gradients, and what training does to exposure and relevance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import FloatArray, exposure, normalise
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.rerankers import deltr, dlf, learning
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.deltr import DeltrTraining, train_deltr
from fairqr.retrieval.rerankers.dlf import train_dlf
from fairqr.retrieval.rerankers.learning import FEATURES, TopicExample, TrainingOptions
from fairqr.retrieval.rerankers.registry import open_reranker

Make = Callable[..., Candidates]
Loss = Callable[[FloatArray], tuple[float, FloatArray]]
WEIGHTS = st.lists(st.floats(-2, 2), min_size=3, max_size=3).map(np.array)
MASK = np.arange(7) < np.array([[7], [4], [5]])


def softmax(values: FloatArray) -> FloatArray:
    return np.asarray(np.exp(values) / np.exp(values).sum())


def check(loss: Loss, columns: FloatArray, at: FloatArray, expected: float, kink: float) -> None:
    """The loss is the expected one, and its gradient that of finite differences."""
    found, slope = loss(columns @ at)
    assert found == pytest.approx(expected)
    for moved in np.eye(3) * 1e-6:
        numeric = (loss(columns @ (at + moved))[0] - loss(columns @ (at - moved))[0]) / 2e-6
        gradient = np.tensordot(slope, columns, axes=2) @ moved / 1e-6
        # A penalty has a kink in its slope, which a difference smooths.
        assert gradient == pytest.approx(numeric, rel=1e-4, abs=kink)


@given(seed=st.integers(0, 1_000), gamma=st.sampled_from([0.0, 1.0, 100.0]), at=WEIGHTS)
def test_deltrs_loss_is_the_formula(seed: int, gamma: float, at: FloatArray) -> None:
    """Of Zehlike & Castillo 2020, a list at a time; one list has no protected document."""
    random = np.random.default_rng(seed)
    columns, grades = random.normal(size=(3, 7, 3)), random.normal(size=(3, 7)) * MASK
    protected = (random.random((3, 7)) < 0.4) * [[1.0], [1.0], [0.0]]
    expected, contrasts = 0.0, np.zeros((3, 7))
    for row, held in enumerate(MASK):
        drawn, mark = softmax(columns[row][held] @ at), protected[row][held]
        contrasts[row][held] = deltr.contrast(mark)
        expected -= (softmax(grades[row][held]) * np.log(drawn)).sum() / 3
        if 0 < mark.sum() < len(mark):
            apart = drawn[mark == 0].mean() - drawn[mark == 1].mean()
            expected += gamma * max(0.0, apart / np.log(2)) ** 2 / 3

    def loss(scores: FloatArray) -> tuple[float, FloatArray]:
        return deltr.deltr_loss(scores, grades, MASK, contrasts, gamma)

    check(loss, columns, at, expected, 1e-6 * (1 + gamma))


@given(seed=st.integers(0, 1_000), at=WEIGHTS)
def test_dlfs_loss_is_the_formula(seed: int, at: FloatArray) -> None:
    """The mean over attributes of the mean KL over the lists that have a label of it."""
    random = np.random.default_rng(seed)
    columns = random.normal(size=(3, 7, 3))
    members = [random.dirichlet(np.ones(size), (3, 7)) * MASK[..., None] for size in (2, 4)]
    members[0] *= random.random((3, 7, 1))
    members[1][2] = 0.0
    targets = [random.dirichlet(np.ones(size), 3) for size in (2, 4)]
    means = []
    for own, target in zip(members, targets, strict=True):
        shown = [softmax(columns[row][MASK[row]] @ at) @ own[row][MASK[row]] for row in range(3)]
        pairs = zip(target, shown, strict=True)
        means.append(np.mean([kullback_leibler(t, normalise(s)) for t, s in pairs if s.sum()]))

    def loss(scores: FloatArray) -> tuple[float, FloatArray]:
        return dlf.distribution_loss(scores, MASK, members, targets)

    check(loss, columns, at, float(np.mean(means)), 1e-6)


SUBJECTS = ("physics", "chemistry", "biology", "botany", "geology", "optics")


@pytest.fixture
async def examples(engine: SearchEngine) -> list[TopicExample]:
    """Documents of each subject, of which those with even numbers are relevant."""

    def even(retrieved: Ranking, table: DocumentTable) -> list[FloatArray]:
        return [np.array([0.5, 0.5])]

    judged = {it: {f"{it}{number:02}": 1 - number % 2 for number in range(30)} for it in SUBJECTS}
    topics = dict(zip(SUBJECTS, SUBJECTS, strict=True))
    dimensions = [Dimension.named(engine.schema, "gender")]
    return await learning.gather_examples(engine, topics, judged, dimensions, even, depth=30)


async def test_examples_hold_features_grades_and_groups(
    engine: SearchEngine, examples: list[TopicExample]
) -> None:
    assert [item.topic for item in examples] == sorted(SUBJECTS)
    first = examples[0]
    assert first.features.shape == (30, len(FEATURES))
    assert np.isfinite(first.features).all()
    assert first.grades.tolist() == [int(id_[-2:]) % 2 == 0 for id_ in first.candidates.ranking.ids]
    column = dict(zip(FEATURES, first.features.T, strict=True))
    assert column["reciprocal_rank"].tolist() == [1 / rank for rank in range(1, 31)]
    assert (column["title_coverage"] == first.grades).all()
    assert (column["bm25_min_max"].min(), column["bm25_min_max"].max()) == (0, 1)
    assert np.exp(column["bm25_log"]) - 1 == pytest.approx(first.candidates.ranking.scores)
    gone = await learning.features(engine, "physics", Ranking(["physics00", "gone"], [2.0, 1.0]))
    assert gone[1].tolist() == [0.0, 0.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("name", ["deltr", "dlf"])
async def test_training_lifts_relevant_and_protected_documents(
    name: str,
    engine: SearchEngine,
    examples: list[TopicExample],
    make_candidates: Make,
    tmp_path: Path,
) -> None:
    """Trained on five topics, used on another; what it was not trained for is refused.

    The same training gives the same weights, and those of fairness come from the target alone.
    """
    path, women = tmp_path / "weights.json", []
    for gamma, alpha in ((0.0, 1.0), (1e4, 0.6)):
        if name == "dlf":
            model = train_dlf(examples[:5], TrainingOptions())
            turned = [replace(it, grades=it.grades[::-1].copy()) for it in examples[:5]]
            assert train_dlf(turned, TrainingOptions()).fairness == model.fairness
        else:
            model = train_deltr(examples[:5], DeltrTraining(gamma=gamma))
            assert train_deltr(examples[:5], DeltrTraining(gamma=gamma)) == model
        model.save(path)
        options = {"weights": str(path)} | ({"alpha": str(alpha)} if name == "dlf" else {})
        reranker = open_reranker(name, options)
        found = (
            await reranker.rerank(engine, examples[5].topic, examples[5].candidates, 10)
        ).ranking
        assert found.scores == sorted(found.scores, reverse=True)
        assert name == "dlf" or all(int(id_[-2:]) % 2 == 0 for id_ in found.ids)
        members = [[int(id_[-2:]) >= 20, int(id_[-2:]) < 20] for id_ in found.ids]
        women.append(float(exposure(members)[0]))
    assert women[0] < women[1]
    assert (await reranker.rerank(engine, "q", make_candidates(""), 5)).ranking == Ranking([], [])
    pair = make_candidates("fm")
    for other in (replace(pair, dimensions=["age"]), replace(pair, groups=[["w", "m"]])):
        with pytest.raises(InputError, match=r"trained for gender=female.*train on this corpus"):
            await reranker.rerank(engine, "q", other, 2)


def test_what_nothing_can_be_learned_from_is_refused(examples: list[TopicExample]) -> None:
    for items in ([], [replace(item, grades=np.zeros_like(item.grades)) for item in examples]):
        with pytest.raises(InputError, match="nothing to train on"):
            train_deltr(items, DeltrTraining())
    with pytest.raises(InputError, match="no group 'nobody' to protect"):
        train_deltr(examples, DeltrTraining(protected="nobody"))
