"""The report of a source's check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from fairqr.base.errors import SourceError, one_line
from fairqr.retrieval.engines.engine import NOT_TOLD, Capability, Hits, SearchEngine

SAMPLE_SIZE = 5
"""How many hits of the sample query a report shows."""

ENOUGH = 10
"""If none of this many documents has a label in a group, the source names the wrong field."""


class ValueCount(BaseModel, frozen=True):
    """One value of a field.

    Attributes:
        value: The value in the field.
        documents: How many of the checked documents have it.
        group: The group it belongs to, or None.
    """

    value: str
    documents: int
    group: str | None


class AttributeReport(BaseModel, frozen=True):
    """What we know of the labels of one attribute.

    Attributes:
        name: The attribute's name.
        origin: The field or the file that the labels come from.
        documents: How many documents were checked.
        labelled: How many of them have a label in a group.
        values: The values of the field, most frequent first; at most 1,000.
    """

    name: str
    origin: str
    documents: int
    labelled: int
    values: list[ValueCount]

    @property
    def without_group(self) -> list[ValueCount]:
        """The values that belong to no group."""
        return [value for value in self.values if value.group is None]


class SampleHit(BaseModel, frozen=True):
    """One hit of the sample query."""

    id: str
    title: str
    score: float
    groups: dict[str, dict[str, float]]


class SourceReport(BaseModel, frozen=True):
    """The report of a source's check.

    Attributes:
        name: The source's name.
        engine: The source's engine.
        location: Where it is, without credentials.
        version: The server's version; None if the account may not see it, or without a server.
        documents: The number of documents, or None if the engine does not say.
        attributes: What we know of the labels.
        capabilities: What the engine can do beyond searching.
        sample_query: The query that we tried.
        sample: What it found.
        remarks: Whole sentences: warnings, and hints on what is not needed.
    """

    name: str
    engine: str
    location: str
    version: str | None = None
    documents: int | None = None
    attributes: list[AttributeReport] = []
    capabilities: list[Capability] = []
    sample_query: str = ""
    sample: list[SampleHit] = []
    remarks: list[str] = []


def remarks_on_labels(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    """Yield a remark on each attribute with labels that belong to no group.

    Raises:
        SourceError: Many documents were checked, and no label belongs to a group.
    """
    for attribute in attributes:
        missing = attribute.without_group
        if attribute.documents and not attribute.labelled:
            remark = _remark_on_no_label(attribute)
            if attribute.documents >= ENOUGH:
                raise SourceError(remark)
            yield remark
        elif missing:
            documents = sum(value.documents for value in missing)
            yield (
                f"Values of {attribute.name} that belong to no group and count as unknown: "
                f"{len(missing):,}; documents that have them: {documents:,}."
            )


def _remark_on_no_label(attribute: AttributeReport) -> str:
    """Return a remark on an attribute whose groups have no document."""
    values = ", ".join(one_line(value.value, 30) for value in attribute.without_group[:10])
    problem = "has no label of the checked documents"
    if values:
        problem = f"contains {values}, none of which is in a group"
    return (
        f"'{attribute.origin}' of the attribute '{attribute.name}' {problem}; correct the "
        "field or the file, or list under 'groups' which values belong to which group."
    )


async def report_on(
    engine: SearchEngine,
    attributes: list[AttributeReport],
    sample_query: str,
    hits: Hits,
    remarks: Sequence[str] = (),
) -> SourceReport:
    """Return the report on an engine and on the first hits of a sample query."""
    info = await engine.info()
    has_version = info.server not in ("", NOT_TOLD)
    title_of = {document.id: document.title for document in await engine.documents(hits.ids)}
    sample = []
    for row, id_ in enumerate(hits.ids[:SAMPLE_SIZE]):
        title = title_of.get(id_, "")
        groups = hits.groups(row, engine.schema)
        sample.append(SampleHit(id=id_, title=title, score=hits.scores[row], groups=groups))
    return SourceReport(
        name=info.name,
        engine=info.engine,
        location=info.location,
        version=info.server.split()[-1] if has_version else None,
        documents=info.documents,
        attributes=attributes,
        capabilities=sorted(engine.capabilities),
        sample_query=sample_query,
        sample=sample,
        remarks=[*remarks, *remarks_on_labels(attributes)],
    )
