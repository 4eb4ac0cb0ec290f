"""Small corpora of people in science, and an engine over the corpus of a test's module."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.catalog import Catalog

GENDERS = (
    "attributes: {gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}}"
)

GENDERS_AND_PLACES = (
    "attributes:\n"
    "  gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}\n"
    "  place: {field: p, groups: [north, south], population: {north: 0.5, south: 0.5}}\n"
)


def write_corpus(
    folder: Path, documents: Iterable[Mapping[str, Any]], schema: str = GENDERS
) -> Path:
    """Write a corpus with a schema beside it; return the file of its documents."""
    (folder / "schema.yaml").write_text(schema)
    path = folder / "people.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


async def indexed(
    folder: Path, documents: Iterable[Mapping[str, Any]], schema: str = GENDERS
) -> SearchEngine:
    """Index a corpus of a test's own."""
    path = write_corpus(folder, documents, schema)
    return await Catalog(folder / "data").resolve(str(path))


@pytest.fixture
async def engine(corpus: Path) -> AsyncIterator[SearchEngine]:
    """Built by the first test of a module, and opened by the others."""
    engine = await Catalog(corpus.parent / "data").resolve(str(corpus))
    yield engine
    await engine.aclose()
