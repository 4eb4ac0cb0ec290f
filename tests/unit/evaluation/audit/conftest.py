"""An index that several tests audit."""

from __future__ import annotations

import pytest

from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.documents import Document
from tests.unit.evaluation.audit.examples import WORDS
from tests.unit.retrieval.embedded import built


@pytest.fixture(scope="session")
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
