"""Small collections that are written out, to build probe collections of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairqr.evaluation.collections.collection import Collection, load_collection
from fairqr.retrieval.fairness.protected import ProtectedGroup
from fairqr.retrieval.sources.schema import Schema

SCHEMA = """attributes:
  gender:
    field: gender
    groups: [female, male, other]
"""


def write_collection(
    folder: Path,
    documents: Sequence[tuple[str, object]],
    qrels: Mapping[str, Mapping[str, int]],
    titles: Mapping[str, str] | None = None,
) -> Collection:
    """Write documents (id and gender) with judgements by topic, and read them as a collection."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.yaml").write_text(SCHEMA)
    lines = [
        json.dumps({"id": id_, "title": f"Title {id_}", "text": f"Text of {id_}.", "gender": label})
        for id_, label in documents
    ]
    (folder / "documents.jsonl").write_text("".join(f"{line}\n" for line in lines))
    topics = [
        json.dumps({"id": topic, "title": (titles or {}).get(topic, f"query {topic}")})
        for topic in qrels
    ]
    (folder / "topics.jsonl").write_text("".join(f"{line}\n" for line in topics))
    (folder / "qrels.txt").write_text(
        "".join(f"{t} 0 {id_} {grade}\n" for t, of in qrels.items() for id_, grade in of.items())
    )
    return load_collection(folder)


def sides_of(schema: Schema, text: str = "female", attribute: str = "gender") -> ProtectedGroup:
    """Read sides of a schema."""
    return ProtectedGroup.parse(schema.attribute(attribute), text)


def people(folder: Path, each: int = 6) -> Collection:
    """Three topics with as many women as men, each person relevant for one of them."""
    documents = [
        (f"{topic}{gender[0]}{number}", gender)
        for topic in "abc"
        for gender in ("female", "male")
        for number in range(each)
    ]
    qrels = {t: {id_: 1 for id_, _ in documents if id_[0] == t} for t in "abc"}
    return write_collection(folder, documents, qrels)
