"""What tests of audits share: an engine that demotes women, and estimates that need no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.evaluation.audit import running
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.documents import Document
from tests.unit.evaluation.audit.examples import WORDS, Breaking, ByRank
from tests.unit.retrieval.embedded import built


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> TantivyEngine:
    """For each word, ten documents of women behind ten of men; nobody writes to it."""
    documents = [
        Document(
            f"{word}-{n:02}",
            f"Title of {word} {n:02}",
            " ".join(["body", *[word] * (2 + (n < 10))]),
            {"gender": "male" if n < 10 else "female"},
        )
        for word in WORDS
        for n in range(20)
    ]
    return built(tmp_path_factory.mktemp("people") / "v1", documents)


@pytest.fixture
def engine(people: TantivyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """Without MiniLM, so that there are no estimates."""
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    return Breaking(people)


@pytest.fixture
def by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates that need no model."""

    async def opened(*_: object) -> tuple[ByRank, str]:
        return ByRank(), ""

    monkeypatch.setattr(running, "open_texts", opened)
