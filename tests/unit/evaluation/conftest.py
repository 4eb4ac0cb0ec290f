"""Documents that fit on a screen, and jobs that another process could do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.experiments.workers import Tools
from fairqr.retrieval.sources.corpus import Corpus, find_corpus
from tests.unit.evaluation.experiments.small import write_collection


@pytest.fixture(scope="session")
def people() -> Corpus:
    """Eight documents, of which two have no gender."""
    return find_corpus(Path(__file__).with_name("people.jsonl"))


@pytest.fixture(scope="session")
def scan(people: Corpus) -> Groups:
    return scan_corpus(people, [document.id for document in people.documents()])


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Two dozen people, for the test alone."""
    return write_collection(tmp_path / "collection")


@pytest.fixture
def plain_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs, what they take and what they give are pickled, as on Ray."""
    do = Tools.do

    async def pickled(tools: Tools, *job: Any) -> Any:
        return pickle.loads(pickle.dumps(await do(tools, *pickle.loads(pickle.dumps(job)))))

    monkeypatch.setattr(Tools, "do", pickled)
