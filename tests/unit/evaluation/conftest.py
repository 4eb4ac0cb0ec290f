"""Documents that fit on a screen, and jobs that another process could do."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.experiments.workers import Tools
from fairqr.retrieval.sources.corpus import Corpus, find_corpus
from tests.unit.evaluation.collections.official import lines

SCHEMA = """attributes:
  gender: {field: gender, groups: [female, male], population: {female: 0.5, male: 0.5}}
  place:
    {field: place, groups: [north, south], population: {north: 0.25, south: 0.75}, unknown: group}
"""
LABELS = {
    "f1": ("female", "north"),
    "f2": ("female", "south"),
    "f3": ("female", None),
    "m1": ("male", "north"),
    "m2": ("male", "south"),
    "m3": ("male", {"north": 1, "south": 3}),
    "u1": (None, None),
    "u2": (None, "south"),
}


@pytest.fixture(scope="session")
def people(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Eight documents, of which two have no gender."""
    folder = tmp_path_factory.mktemp("people")
    (folder / "people.schema.yaml").write_text(SCHEMA)
    people = (
        {"id": id_, "title": id_, "gender": gender, "place": place}
        for id_, (gender, place) in LABELS.items()
    )
    return find_corpus(lines(folder / "people.jsonl", people))


@pytest.fixture(scope="session")
def scan(people: Corpus) -> Groups:
    return scan_corpus(people, set(LABELS))


@pytest.fixture
def plain_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs, what they take and what they give are pickled, as on Ray."""
    do = Tools.do

    async def pickled(tools: Tools, *job: Any) -> Any:
        return pickle.loads(pickle.dumps(await do(tools, *pickle.loads(pickle.dumps(job)))))

    monkeypatch.setattr(Tools, "do", pickled)
