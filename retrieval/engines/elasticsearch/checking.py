"""The check of an attached Elasticsearch or OpenSearch index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from fairqr.base.errors import FairqrError
from fairqr.retrieval.engines.elasticsearch.counts import is_countable, value_reports
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.groups import grouped
from fairqr.retrieval.engines.engine import Capability, Query
from fairqr.retrieval.engines.report import (
    AttributeReport,
    SourceReport,
    remarks_on_labels,
    sample_hits,
)
from fairqr.retrieval.texts.words import words_without_digits

SAMPLED = 1000
SAMPLED_TEXTS = 20
SHORTEST_WORD = 5
WRITING = ("create", "delete", "delete_index", "index", "manage", "write")


async def check(engine: ElasticsearchEngine) -> SourceReport:
    """Report what an attached index contains, and try one search.

    The server counts labels over all documents. Labels that it cannot count, such as those in
    files, are counted over a sample.

    Raises:
        FairqrError: The index cannot be searched as the source describes it.
    """
    source = engine.source
    documents = await engine.count()
    ids = await _sampled_ids(engine)
    query = _frequent_word(await _texts(engine, ids[:SAMPLED_TEXTS])) if ids else ""
    hits = (await engine.search([Query(query, 5)]))[0] if query else None
    sample = sample_hits(engine.schema, hits, await engine.documents(hits.ids)) if hits else []
    attributes = await _attributes(engine, ids)
    remarks = [*_on_mapping(engine), *remarks_on_labels(attributes), *await _on_privileges(engine)]
    if not documents:
        remarks.append("The index has no documents; correct the index, or the filter.")
    elif not query:
        remarks.append("We tried no sample query, because the documents have no texts to read.")
    elif not sample:
        remarks.append(f"The sample query '{query}' finds nothing; check the searched fields.")
    return SourceReport(
        name=source.name,
        engine=source.engine,
        location=f"{engine.server.url}/{source.index}",
        version=await engine.server.version(),
        documents=documents,
        fields=dict(_fields(engine)),
        attributes=attributes,
        capabilities=sorted(_abilities(engine)),
        sample_query=query,
        sample=sample,
        remarks=[*(hits.warnings if hits else ()), *remarks],
    )


def _abilities(engine: ElasticsearchEngine) -> frozenset[Capability]:
    """Return what the source can do with any retriever."""
    by_vectors: frozenset[Capability] = frozenset({"vectors"} if engine.source.vectors else ())
    return engine.capabilities | by_vectors


async def _sampled_ids(engine: ElasticsearchEngine) -> list[str]:
    size = min(SAMPLED, engine.mapping.window)
    everything = engine.filtered({"match_all": {}})
    (answer,) = await engine.msearch([{"query": everything, "size": size, **engine.reader.request}])
    return engine.reader.ids(answer["hits"]["hits"], engine.source.index)


async def _texts(engine: ElasticsearchEngine, ids: list[str]) -> list[str]:
    return [f"{found.title} {found.text}" for found in await engine.documents(ids)]


def _frequent_word(texts: list[str]) -> str:
    """Return the word that most texts contain, among words long enough to mean something."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = words_without_digits(text.lower())
        counts.update({word for word in words if len(word) >= SHORTEST_WORD} or set(words))
    return min(counts, key=lambda word: (-counts[word], word), default="")


async def _attributes(engine: ElasticsearchEngine, ids: list[str]) -> list[AttributeReport]:
    countable = [one for one in engine.reader.labels if is_countable(one) and grouped(one)]
    counted = {one.name: one for one in await value_reports(engine, countable)}
    if not ids or len(counted) == len(engine.schema.attributes):
        return [*counted.values()]
    body = {"query": engine.reader.among(ids), "size": len(ids), **engine.reader.request}
    (answer,) = await engine.msearch([body])
    values = engine.reader.values(answer["hits"]["hits"])
    return [counted.get(one.name, one) for one in engine.labels.reports(values, ids)]


def _fields(engine: ElasticsearchEngine) -> Iterator[tuple[str, str]]:
    """Yield each field named in the source, with its type."""
    source = engine.source
    searched = [] if source.body else [name.partition("^")[0] for name in source.searched_fields]
    labels = [label.name for label in engine.reader.labels]
    vectors = [source.vectors.field] if source.vectors else []
    shown = filter(None, [source.title, *source.text, source.link])
    for name in dict.fromkeys([source.id, *shown, *searched, *labels, *vectors]):
        found = engine.mapping.find(name)
        if name == "_id":
            yield name, "the server's own"
        elif "*" in name:
            yield name, f"{len(engine.mapping.matching(name))} fields"
        else:
            yield name, found.type if found else "missing"


def _on_mapping(engine: ElasticsearchEngine) -> Iterator[str]:
    for name, _ in _fields(engine):
        found = engine.mapping.find(name)
        if found and found.other_types:
            types = ", ".join(sorted({found.type, *found.other_types}))
            yield f"The field '{name}' has different types in different indices: {types}."
    if not engine.mapping.has_source:
        yield "The index keeps no _source, so the texts of documents cannot be read."
    elif not (engine.source.title or engine.source.text):
        yield "The source names neither title nor text, so documents come without their texts."


async def _on_privileges(engine: ElasticsearchEngine) -> list[str]:
    """Warn if the account may write; some servers do not reveal that."""
    if not engine.server.connection.credentials.request_headers():
        return []
    indices: list[dict[str, Any]] = [
        {"names": list(engine.mapping.indices), "privileges": list(WRITING)}
    ]
    try:
        answer = await engine.server.request(
            "POST", "/_security/user/_has_privileges", body={"index": indices}
        )
        held = {
            privilege
            for found in answer["index"].values()
            for privilege, allowed in found.items()
            if allowed
        }
    except (FairqrError, KeyError, AttributeError, TypeError):
        return []
    if not held:
        return []
    return [
        f"The account may write to the index ({', '.join(sorted(held))}); it need not, "
        "'read' and 'view_index_metadata' are enough."
    ]
