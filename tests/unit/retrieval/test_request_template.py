"""A source's own request: what fills it stays a value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairqr.retrieval.engines.request_template import check_template, fill_template

TEMPLATE: dict[str, Any] = {
    "query": {
        "bool": {"should": [{"match": {"bio": "{{query}}"}}, {"term": {"tag": "{{query}}"}}]}
    },
    "knn": {"k": "{{size}}"},
    "note": "{ {query} }",
}


@pytest.mark.parametrize(
    "text", ["physics", '"}},"x":{', "{{query}}", "{{size}}", "}}", "\\", "", "a\nb", "½"]
)
def test_a_query_changes_nothing_but_its_values(text: str) -> None:
    filled = json.loads(json.dumps(fill_template(TEMPLATE, text, 7)))
    should = filled["query"]["bool"]["should"]
    assert should == [{"match": {"bio": text}}, {"term": {"tag": text}}]
    assert filled["knn"] == {"k": 7}
    assert set(filled) == set(TEMPLATE)
    assert filled["note"] == "{ {query} }"


def test_a_template_without_a_place_for_the_query_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the value"):
        check_template({"query": {"match_all": {}}})
    check_template(TEMPLATE)


@pytest.mark.parametrize(
    "template",
    [
        {"q": "{{query}}", "x": "title:{{query}}"},
        {"q": "{{query}}", "x": ["{{query}} "]},
        {"q": "{{query}}", "x": "{{size}}0"},
        {"q": "{{query}}", "{{query}}": 1},
    ],
)
def test_a_placeholder_inside_a_longer_text_is_refused(template: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="make it a value of its own"):
        check_template(template)
