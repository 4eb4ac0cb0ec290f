"""Puts a corpus into a real Elasticsearch with the client's bulk helper, as the docs show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from elasticsearch import Elasticsearch, helpers

from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.source import ElasticsearchSource

TEXT = {"type": "text", "analyzer": "english"}


def fill(
    stack: ExitStack,
    url: str,
    name: str,
    corpus: Corpus,
    rows: Mapping[str, Sequence[float]] | None = None,
    **described: Any,
) -> ElasticsearchSource:
    """Make an index of a corpus, and return the source that describes it.

    Args:
        stack: Deletes the index when it ends.
        url: The server.
        name: The name of the index and of the source; an index of that name is replaced.
        corpus: Its labels are keywords, one or several a document.
        rows: The vector of each document, by its id; kept in the field ``vector``.
        described: More parts of the source.
    """
    labels = {one.field: {"type": "keyword"} for one in corpus.schema.attributes.values()}
    properties: dict[str, Any] = {
        "title": {**TEXT, "copy_to": "body"},
        "text": {**TEXT, "copy_to": "body"},
        "body": TEXT,
        **labels,
    }
    if rows:
        dims = len(next(iter(rows.values())))
        properties["vector"] = {
            "type": "dense_vector",
            "dims": dims,
            "index": True,
            "similarity": "cosine",
        }

    def action(document: Any) -> dict[str, Any]:
        kept = {field: document.fields[field] for field in labels if field in document.fields}
        if rows:
            kept["vector"] = rows[document.id]
        source = {"title": document.title, "text": document.text, **kept}
        return {"_id": document.id, "_source": source}

    client = stack.enter_context(Elasticsearch(url))
    client.options(ignore_status=404).indices.delete(index=name)
    client.indices.create(index=name, mappings={"dynamic": "strict", "properties": properties})
    stack.callback(client.options(ignore_status=404).indices.delete, index=name)
    helpers.bulk(client, map(action, corpus.documents()), index=name, refresh=True)
    return ElasticsearchSource(
        name=name,
        url=url,
        index=name,
        title="title",
        text=("text",),
        query={"fields": ("body",)},
        attributes=corpus.schema.attributes,
        **described,
    )


def write_source(source: ElasticsearchSource, folder: Path) -> Path:
    """Write the file that describes a source, and return its path."""
    described = {"name": source.name, "engine": source.engine}
    described |= source.model_dump(mode="json", exclude_defaults=True)
    for attribute in described["attributes"].values():
        attribute.pop("name")
    path = folder / f"{source.name}.source.yaml"
    path.write_text(yaml.safe_dump(described, allow_unicode=True))
    return path
