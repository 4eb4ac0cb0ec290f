"""A small corpus in which one group is shown too little, and its candidates."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import LOG2, Discount
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import find_corpus

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
async def engine(tmp_path: Path) -> AsyncIterator[SearchEngine]:
    """For each of six subjects 20 men, then 10 women whose texts are longer and score less.

    Half of either are relevant, those with an even number; their titles name the subject.
    """
    (tmp_path / "schema.yaml").write_text(
        "attributes:\n  gender: {field: g, groups: [female, male], "
        "population: {female: 0.5, male: 0.5}}\n"
    )
    lines = []
    for subject in SUBJECTS:
        for number in range(30):
            is_woman = number >= 20
            title = f"{subject} scholar" if number % 2 == 0 else "a person"
            text = f"{subject} " + "word " * (40 if is_woman else 5 + number)
            group = "female" if is_woman else "male"
            entry = {"id": f"{subject}{number:02}", "title": title, "text": text, "g": group}
            lines.append(json.dumps(entry))
    path = tmp_path / "people.jsonl"
    path.write_text("\n".join(lines) + "\n")
    opened = await Catalog(tmp_path / "data").create("people", find_corpus(path))
    yield opened
    await opened.aclose()


@pytest.fixture
def topics() -> dict[str, str]:
    """The query of each topic."""
    return {f"t{number}": subject for number, subject in enumerate(SUBJECTS)}


@pytest.fixture
def qrels(topics: dict[str, str]) -> dict[str, dict[str, int]]:
    """Even numbers are relevant; of the others only the first few are judged."""
    return {
        topic: {
            f"{subject}{number:02}": int(number % 2 == 0)
            for number in range(30)
            if number % 2 == 0 or number < 10
        }
        for topic, subject in topics.items()
    }
