"""Reads the hits in a cluster's reply as documents that somebody else retrieved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairqr.graph.integrations.order import Given
from fairqr.graph.service.proxy.label_fields import NO_FIELDS, LabelFields
from fairqr.graph.service.proxy.requests import UnavailableError
from fairqr.retrieval.engines.elasticsearch.hit_reader import reader_of
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.documents import value_at


def have_ids(hits: Sequence[Any]) -> bool:
    """Return whether each hit has its id, without which it cannot be found again."""
    return all("_id" in hit for hit in hits)


def label_fields_of(engine: SearchEngine) -> LabelFields:
    """Return what is to be asked for with each window, so that labels and ids are known."""
    reader = reader_of(engine)
    if reader is None:
        return NO_FIELDS
    request = reader.request
    return LabelFields(tuple(request["docvalue_fields"]), tuple(request["fields"]))


def documents_of(source: Any, engine: SearchEngine, hits: Sequence[Any]) -> list[Given]:
    """Return hits as documents.

    Args:
        source: The source, which says where texts are.
        engine: The source, opened.
        hits: The hits.

    Raises:
        UnavailableError: There are none.
    """
    if not hits:
        raise UnavailableError("empty")
    # A window that was asked for before the index was open came without them.
    have_labels = any("fields" in hit for hit in hits)
    documents: list[Given] = []
    for position, hit in enumerate(hits):
        document = _document_of(source, engine, position, hit, have_labels=have_labels)
        documents.append(document)
    return documents


def _document_of(
    source: Any, engine: SearchEngine, position: int, hit: Any, *, have_labels: bool
) -> Given:
    id_ = _id_of(engine, hit, have_labels=have_labels)
    labels = _labels_in(engine, hit)
    fields = hit.get("_source") or {}
    title_field = getattr(source, "title", None)
    title = value_at(fields, title_field) if title_field else None
    texts = [title]
    for field in getattr(source, "text", ()):
        texts.append(value_at(fields, field))
    return Given(
        place=position,
        id=id_,
        text="\n".join(text for text in texts if isinstance(text, str)),
        title=title if isinstance(title, str) else "",
        label=lambda attribute: labels.get(attribute.name),
    )


def _id_of(engine: SearchEngine, hit: Any, *, have_labels: bool) -> str:
    """Return the id by which labels are looked up; empty if the hits have all labels."""
    reader = reader_of(engine)
    if reader is not None:
        return "" if have_labels else reader.id_of(hit)
    id_: str = hit["_id"]
    return id_


def _labels_in(engine: SearchEngine, hit: Any) -> dict[str, Any]:
    """Return the labels that a hit brings, by attribute."""
    reader = reader_of(engine)
    if reader is not None:
        return {name: values[0] for name, values in reader.values([hit]).items()}
    fields = hit.get("_source") or {}
    labels: dict[str, Any] = {}
    for name, attribute in engine.schema.attributes.items():
        if attribute.field:
            labels[name] = value_at(fields, attribute.field)
    return labels
