"""Embedded indexes for tests: built in a line, and written to in a line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from fairqr.retrieval.engines.engine import SearchEngine, lexical_of
from fairqr.retrieval.engines.tantivy.engine import IndexManifest, TantivyEngine
from fairqr.retrieval.engines.tantivy.store import build_index, upsert_documents
from fairqr.retrieval.sources.corpus import Corpus, find_corpus
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Schema

GENDER = Schema.model_validate(
    {"attributes": {"gender": {"field": "gender", "groups": ["female", "male"]}}}
)


def built(folder: Path, documents: Iterable[Document], schema: Schema = GENDER) -> TantivyEngine:
    """Build an index in a folder, and open it."""
    manifest = IndexManifest(source="a test", fingerprint="", corpus_schema=schema)
    build_index(folder, manifest, documents, LabelReader(schema, {}))
    return TantivyEngine(folder, folder.name)


def corpus_of(folder: Path, documents: Iterable[Document], name: str = "people.jsonl") -> Corpus:
    """Write a corpus, with the schema ``GENDER``."""
    folder.mkdir(exist_ok=True)
    (folder / "schema.yaml").write_text(
        "attributes:\n  gender: {field: gender, groups: [female, male]}\n"
    )
    (folder / name).write_text(
        "".join(
            json.dumps({"id": d.id, "title": d.title, "text": d.text, **d.fields}) + "\n"
            for d in documents
        )
    )
    return find_corpus(folder / name)


async def upsert(engine: SearchEngine, documents: Iterable[Document]) -> int:
    """Write documents to an embedded index, as another process would."""
    lexical, labels = lexical_of(engine), LabelReader(engine.schema, {})
    assert isinstance(lexical, TantivyEngine)
    return await asyncio.to_thread(upsert_documents, lexical.folder, documents, labels)
