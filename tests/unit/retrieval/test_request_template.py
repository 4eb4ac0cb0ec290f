"""A source's own request: what fills it stays a value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairqr.retrieval.engines.request_template import check_template, fill_template

SHOULD = [{"match": {"bio": "{{query}}"}}, {"term": {"tag": "{{query}}"}}]
TEMPLATE: dict[str, Any] = {"should": SHOULD, "knn": {"k": "{{size}}"}, "note": "{ {query} }"}


@pytest.mark.parametrize(
    "text", ["physics", '"}},"x":{', "{{query}}", "{{size}}", "}}", "\\", "", "a\nb", "½"]
)
def test_a_query_changes_nothing_but_its_values(text: str) -> None:
    should = [{"match": {"bio": text}}, {"term": {"tag": text}}]
    filled = json.loads(json.dumps(fill_template(TEMPLATE, text, 7)))
    assert filled == {"should": should, "knn": {"k": 7}, "note": "{ {query} }"}


@pytest.mark.parametrize(
    "more",
    [{"x": "title:{{query}}"}, {"x": ["{{query}} "]}, {"x": "{{size}}0"}, {"{{query}}": 1}],
)
def test_a_template_needs_the_query_as_a_value_of_its_own(more: dict[str, Any]) -> None:
    check_template(TEMPLATE)
    with pytest.raises(ValueError, match="needs the value"):
        check_template({"query": {"match_all": {}}})
    with pytest.raises(ValueError, match="make it a value of its own"):
        check_template({**TEMPLATE, **more})
