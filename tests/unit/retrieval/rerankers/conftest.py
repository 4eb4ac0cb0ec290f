"""A small corpus in which one group is shown too little, and its candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import LOG2, Discount
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.sources.documents import Document
from tests.unit.retrieval.embedded import built

PATTERNS = {"f": (1.0, 0.0), "m": (0.0, 1.0), "b": (0.5, 0.5), "?": (0.0, 0.0)}

Make = Callable[..., Candidates]


def _candidates(
    labels: str,
    target: float = 0.5,
    scores: Sequence[float] | None = None,
    discount: Discount = LOG2,
) -> Candidates:
    ids = [f"d{number:03}" for number in range(len(labels))]
    values = list(scores or range(len(labels), 0, -1))
    return Candidates(
        ranking=Ranking(ids, [float(value) for value in values]),
        memberships=[np.array([PATTERNS[label] for label in labels]).reshape(-1, 2)],
        targets=[np.array([target, 1 - target])],
        dimensions=["gender"],
        groups=[["female", "male"]],
        discount=discount,
    )


@pytest.fixture
def make_candidates() -> Make:
    """Candidates of two groups, from a string of f(emale), m(ale), b(oth) and ?(unknown)."""
    return _candidates


SUBJECTS = ("physics", "chemistry", "biology", "botany", "geology", "optics")


@pytest.fixture
def engine(tmp_path: Path) -> SearchEngine:
    """For each of six subjects 20 men, then 10 women whose texts are longer and score less.

    Half of either are relevant, those with an even number; their titles name the subject.
    """
    return built(
        tmp_path / "v1",
        [
            Document(
                f"{subject}{number:02}",
                "a person" if number % 2 else f"{subject} scholar",
                f"{subject} " + "word " * (5 + number if number < 20 else 40),
                {"gender": "male" if number < 20 else "female"},
            )
            for subject in SUBJECTS
            for number in range(30)
        ],
    )
