"""Attaching an index of an Elasticsearch or OpenSearch server."""

from __future__ import annotations

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.encoders.encoder import Encoder
from fairqr.retrieval.engines.elasticsearch.checking import check
from fairqr.retrieval.engines.elasticsearch.connection import Connection
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.groups import existing, grouped
from fairqr.retrieval.engines.elasticsearch.hybrid import FieldHybridEngine
from fairqr.retrieval.engines.elasticsearch.mapping import read_index
from fairqr.retrieval.engines.elasticsearch.server import Server
from fairqr.retrieval.engines.elasticsearch.vectors import VectorSearch, encoder_for
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.retriever_parameters import Hybrid
from fairqr.retrieval.sources.source import ElasticsearchSource, OpenSearchSource

__all__ = ["ElasticsearchEngine", "check", "open_elasticsearch", "open_hybrid"]

SAMPLED = 100
SAMPLED_LABELS = 1000


async def open_elasticsearch(
    source: ElasticsearchSource,
    labels: LabelReader,
    *,
    retriever: str | Encoder = "bm25",
) -> ElasticsearchEngine:
    """Attach an index after reading its mapping and a sample of its labels.

    Args:
        source: The description.
        labels: Reads the labels.
        retriever: ``bm25``; ``dense``, which searches the source's vector field; or an encoder for
            that field.

    Raises:
        SourceError: The source does not fit the index.
        IndexNotFoundError: There is no such index.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
        UnsupportedError: The OpenSearch client is needed and not installed.
    """
    of_server, of_vectors = _of_product(source)
    server = of_server(Connection.of(source))
    try:
        engine = ElasticsearchEngine(source, server, labels, await read_index(server, source.index))
        if retriever != "bm25":
            field = source.vectors.field if source.vectors else ""
            mapped = engine.mapping.find(field)
            encoder = encoder_for(source, mapped, retriever)
            if mapped is not None:
                engine.vectors = of_vectors(source, mapped, encoder)
        await _refuse_empty_labels(engine)
    except BaseException:
        await server.aclose()
        raise
    return engine


async def open_hybrid(
    lexical: SearchEngine, encoder: Encoder, options: Hybrid
) -> FieldHybridEngine | None:
    """Return hybrid retrieval over the vector field that an engine's source names.

    Args:
        lexical: The engine; closed if this fails.
        encoder: The encoder that made the vectors.
        options: The parameters.

    Returns:
        The engine, or None if the field or the server lacks what it needs.

    Raises:
        ModelError: The encoder failed, or its vectors do not fit the field.
        FairqrError: The index cannot be searched.
    """
    if not isinstance(lexical, ElasticsearchEngine) or lexical.source.vectors is None:
        return None
    mapped = lexical.mapping.find(lexical.source.vectors.field)
    if mapped is None or mapped.settings.get("index") is False:
        return None
    try:
        field = _of_product(lexical.source)[1](lexical.source, mapped, encoder)
        if not field.gives_cosines:
            return None
        return await FieldHybridEngine.open(lexical, field, encoder, options)
    except BaseException:
        await lexical.aclose()
        raise


def _of_product(source: ElasticsearchSource) -> tuple[type[Server], type[VectorSearch]]:
    if isinstance(source, OpenSearchSource):
        from fairqr.retrieval.engines.elasticsearch.opensearch import (
            OpenSearchServer,
            OpenSearchVectors,
        )

        return OpenSearchServer, OpenSearchVectors
    return Server, VectorSearch


async def _refuse_empty_labels(engine: ElasticsearchEngine) -> None:
    """Refuse a field without labels, or without any label that belongs to a group.

    Raises:
        SourceError: There is such a field.
    """
    everything = engine.filtered({"match_all": {}})
    size = min(SAMPLED, engine.mapping.window)
    body = {"size": size, "track_total_hits": False, **engine.reader.request}
    (sample,) = await engine.msearch([{"query": everything, **body}])
    hits = sample["hits"]["hits"]
    ids = engine.reader.ids(hits, engine.source.index)
    values = engine.reader.values(hits)
    memberships = engine.labels.memberships(ids, values)
    # The sample may come from a special part of the index, so look for missing labels in all of it.
    suspects = [
        label
        for label in engine.reader.labels
        if hits and not memberships[label.attribute.name][:, : len(label.attribute.groups)].any()
    ]
    body["size"] = body["terminate_after"] = min(SAMPLED_LABELS, engine.mapping.window)
    answers = await engine.msearch(
        [
            {"query": engine.filtered(query), **body}
            for label in suspects
            for query in (existing(label), grouped(label) or {"match_none": {}})
        ]
    )
    for label, there, taken in zip(suspects, answers[::2], answers[1::2], strict=True):
        found = [*there["hits"]["hits"], *taken["hits"]["hits"]]
        report = engine.labels.field_report(
            label.attribute.name, [label.label(hit.get("fields", {})) for hit in found]
        )
        if report.labelled:
            continue
        here = f"The field '{label.name}' of the attribute '{report.name}'"
        if report.values:
            shown = ", ".join(one_line(one.value, 30) for one in report.values[:10])
            raise SourceError(
                f"{here} contains {shown}, none of which is in a group; list under 'groups' which "
                "values belong to which group."
            )
        if found:
            raise SourceError(
                f"{here} has values that the server does not return; check whether _source "
                "excludes the field."
            )
        raise SourceError(
            f"{here} is empty in all documents; correct the field, or the filter of the source."
        )
