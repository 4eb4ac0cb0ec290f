"""Docstrings describe the fields of models."""

from __future__ import annotations

from pydantic import Field

from fairqr.graph.documented import Documented


class Base(Documented):
    """A base.

    Attributes:
        own: Its own ``field``; see :func:`fairqr.graph.documented.documented`.
        other: Of the base.
    """

    own: int = Field(1, ge=0)
    other: str | None = None


class Derived(Base):
    """A derived model, on
    two lines.

    Attributes:
        other, more: Of both,
            on two lines.
    """

    other: str = ""
    more: Base = Base()


def test_fields_are_described_by_docstrings_those_of_bases_too() -> None:
    own = "Its own `field`; see `documented`."
    both = "Of both, on two lines."
    told = {name: field.description for name, field in Derived.model_fields.items()}
    assert told == {"own": own, "other": both, "more": both}
    assert Base.model_fields["other"].description == "Of the base."
    schema = Derived.model_json_schema()
    assert {name: each["description"] for name, each in schema["properties"].items()} == told
    assert schema["description"] == "A derived model, on\ntwo lines."
    assert schema["$defs"]["Base"]["description"] == "A base."
    assert schema["$defs"]["Base"]["properties"]["own"]["description"] == own
