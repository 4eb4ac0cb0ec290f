"""What the check of a source finds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fairqr.retrieval.engines.engine import Capability

__all__ = ["AttributeReport", "SampleHit", "SourceReport", "ValueCount"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class ValueCount(_Frozen):
    """One value of a field.

    Attributes:
        value: As the field holds it.
        documents: How many documents hold it, among those that were looked at.
        group: The group that takes it; None where no group does.
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
        version: Of the server; None where the role may not see it, or there is no server.
        documents: How many there are; None where the engine does not say.
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
