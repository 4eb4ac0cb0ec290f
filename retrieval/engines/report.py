"""What the check of a source finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Capability, Hits
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Attribute, Schema

__all__ = [
    "AttributeReport",
    "SampleHit",
    "SourceReport",
    "ValueCount",
    "count_groups",
    "remarks_on_labels",
    "sample_hits",
]

SAMPLE_SIZE = 5


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class ValueCount(_Frozen):
    """One value of a field.

    Attributes:
        value: As the field holds it.
        documents: How many documents hold it, among those that were looked at.
        group: The group that takes it; None if no group does.
    """

    value: str
    documents: int
    group: str | None


class AttributeReport(_Frozen):
    """What is known of the labels of one attribute.

    Attributes:
        name: Of the attribute.
        origin: The field or the file that the labels come from.
        documents: How many documents were looked at.
        labelled: How many of them have a label that a group takes.
        values: The values of the field, most frequent first.
        more_values: Whether there are more values than those.
    """

    name: str
    origin: str
    documents: int
    labelled: int
    values: list[ValueCount]
    more_values: bool = False

    @property
    def without_group(self) -> list[ValueCount]:
        """The values that no group takes."""
        return [value for value in self.values if value.group is None]


class SampleHit(_Frozen):
    """One hit of the sample query."""

    id: str
    title: str
    score: float
    groups: dict[str, dict[str, float]]


class SourceReport(_Frozen):
    """What the check of a source finds.

    Attributes:
        name: Of the source.
        engine: Of the source.
        location: Where it is, without credentials.
        version: Of the server; None if the role may not see it, or there is no server.
        documents: How many there are; None if the engine does not say.
        fields: Each field that the source names, with its type, or ``missing``.
        attributes: What is known of the labels.
        capabilities: What the engine can do beyond searching.
        sample_query: A query that was tried.
        sample: What it found.
        remarks: Whole sentences: warnings, and what is not needed.
    """

    name: str
    engine: str
    location: str
    version: str | None = None
    documents: int | None = None
    fields: dict[str, str] = {}
    attributes: list[AttributeReport] = []
    capabilities: list[Capability] = []
    sample_query: str = ""
    sample: list[SampleHit] = []
    remarks: list[str] = []


def count_groups(attribute: Attribute, memberships: FloatArray) -> AttributeReport:
    """Count the documents of each group, where a file gives the labels.

    Args:
        attribute: With its groups.
        memberships: Of the documents that were looked at, shape (n, G).
    """
    counts = (memberships > 0).sum(axis=0)
    groups = sorted(zip(attribute.universe, counts.tolist(), strict=True), key=lambda g: -g[1])
    known = memberships[:, : len(attribute.groups)]
    return AttributeReport(
        name=attribute.name,
        origin=attribute.labels or attribute.field,
        documents=len(memberships),
        labelled=int((known.sum(axis=1) > 0).sum()),
        values=[ValueCount(value=name, documents=n, group=name) for name, n in groups if n],
    )


def remarks_on_labels(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    """Yield a remark on each attribute whose labels no group takes."""
    for attribute in attributes:
        if attribute.documents and not attribute.labelled:
            yield (
                f"{attribute.name}: no document that was looked at has a group, so no exposure can "
                f"be measured; correct '{attribute.origin}', or the groups."
            )
            continue
        missing = attribute.without_group
        if missing:
            documents = sum(value.documents for value in missing)
            where = "1 document" if documents == 1 else f"{documents:,} documents"
            count = "it counts" if len(missing) == 1 else "they count"
            yield (
                f"{attribute.name}: no group takes {len(missing):,} of its values, in {where}; "
                f"{count} as unknown."
            )


def sample_hits(schema: Schema, hits: Hits, documents: Sequence[Document]) -> list[SampleHit]:
    """Return the first hits of a sample query, for people."""
    titles = {document.id: document.title for document in documents}
    return [
        SampleHit(
            id=id_,
            title=titles.get(id_, ""),
            score=score,
            groups={
                name: {
                    group: share
                    for group, share in zip(
                        schema.attribute(name).universe, array[row].tolist(), strict=True
                    )
                    if share
                }
                for name, array in hits.memberships.items()
            },
        )
        for row, (id_, score) in enumerate(zip(hits.ids, hits.scores, strict=True))
    ][:SAMPLE_SIZE]
