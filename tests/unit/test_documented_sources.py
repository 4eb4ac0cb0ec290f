"""The page on sources names all fields with their defaults, and its examples are sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.source import (
    ElasticsearchSource,
    HttpSource,
    RunSource,
    Source,
    TantivySource,
)

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
EXAMPLES = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "engine:" in text]


def documented(heading: str) -> dict[str, str]:
    """Return the default of each field that the tables under a heading name."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*?) \| .+ \|$", section, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return {name: default.strip() for name, default in rows}


@pytest.mark.parametrize(
    ("heading", "kind", "elsewhere"),
    [
        ("Fields of every source", Source, {"folder"}),
        ("Elasticsearch and OpenSearch", ElasticsearchSource, {*Source.model_fields}),
        ("HTTP", HttpSource, {*Source.model_fields}),
        ("Runs", RunSource, {*Source.model_fields}),
        ("Tantivy", TantivySource, {*Source.model_fields}),
        # The key of an attribute is its name, and the groups hold the values.
        ("Labels", Attribute, {"name", "values"}),
    ],
)
def test_every_field_is_documented_with_its_default(
    heading: str, kind: type[BaseModel], elsewhere: set[str]
) -> None:
    fields = {n: field for n, field in kind.model_fields.items() if n not in elsewhere}
    found = documented(heading)
    assert set(found) == set(fields)
    for name, field in fields.items():
        value = None if field.is_required() else field.default
        if value in (None, (), ""):
            continue
        told = str(value).lower() if isinstance(value, bool) else str(value).removesuffix(".0")
        assert found[name] == f"`{told}`", name


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_are_sources(example: str) -> None:
    source = Source.model_validate(yaml.safe_load(example))
    assert type(source) is Source.kinds[source.engine]


def test_there_is_an_example_of_each_kind_but_opensearch() -> None:
    engines = {yaml.safe_load(example)["engine"] for example in EXAMPLES}
    assert engines == set(Source.kinds) - {"opensearch"}
