"""A source file says where documents are and which groups they have, and is checked whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairqr import FairSearch, open_engine
from fairqr.base.errors import SourceError
from fairqr.retrieval.sources.source import load_source

GENDER = {"gender": {"field": "sex", "groups": {"female": ["F", "f"], "male": ["M"]}}}
PEOPLE: dict[str, Any] = {
    "name": "people",
    "engine": "elasticsearch",
    "url": "http://127.0.0.1:9200",
    "index": "hr-people-v3",
    "title": "headline",
    "text": ["bio", "skills"],
    "attributes": GENDER,
}
ENDPOINT: dict[str, Any] = {"name": "people", "engine": "http", "hits": "items", "id": "id"}
ENDPOINT |= {"url": "http://127.0.0.1/search?q={{query}}", "attributes": GENDER}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"engine": "solr"}, "engine must be one of"),
        ({"url": "localhost"}, "is not an address"),
        ({"cloud_id": "abc"}, "url or cloud_id"),
        ({"body": {"query": {"match": {"bio": "x"}}}}, "{{query}}"),
        ({"body": {"q": ["{{query}}", "title:{{query}}"]}}, "{{query}} inside 'title:{{query}}'"),
        ({"body": {"q": "{{query}}", "{{query}}": 1}}, "{{query}} inside '{{query}}:'"),
        ({"body": {"query": "{{query}}", "from": 10}}, "body has 'from'"),
        ({"body": {"q": "{{query}}"}, "query": {"fields": ["bio"]}}, "query or body"),
        ({"title": None, "text": []}, "name the fields to search"),
        ({"attributes": {}}, "attributes"),
        (ENDPOINT | {"url": "people.example/search?q={{query}}"}, "is not an address such as"),
        (ENDPOINT | {"url": "http://{{query}}/search"}, "is not an address such as https://"),
        (ENDPOINT | {"url": "http://me:secret@127.0.0.1/{{query}}"}, "address contains a password"),
        (ENDPOINT | {"url": "http://127.0.0.1/search"}, 'body needs the value "{{query}}"'),
        (ENDPOINT | {"body": {"size": "{{size}} hits"}}, "{{size}} inside '{{size}} hits'"),
        (ENDPOINT | {"body": {"size": "{{size}}"}, "method": "GET"}, "a GET request has no body"),
    ],
    ids=[
        "engine",
        "url",
        "cloud_id",
        "no query",
        "query inside a text",
        "query as a key",
        "from",
        "query and body",
        "no fields",
        "no attributes",
        "endpoint without scheme",
        "endpoint of the query",
        "password",
        "endpoint without query",
        "size inside a text",
        "body of GET",
    ],
)
def test_what_is_wrong_in_a_source_is_named(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    path = tmp_path / "people.source.yaml"
    source = change if "hits" in change else {**PEOPLE, **change}
    present = {key: value for key, value in source.items() if value is not None}
    path.write_text(yaml.safe_dump(present))

    with pytest.raises(SourceError) as caught:
        load_source(path)
    message = str(caught.value)
    assert complaint in message
    assert str(path) in message
    assert "secret" not in message
    assert "\n" not in message


WRONG_INDEX = "^The source is wrong at index[^\n]*$"


async def test_an_engine_is_not_opened_over_a_wrong_source() -> None:
    with pytest.raises(SourceError, match=WRONG_INDEX):
        await open_engine({**PEOPLE, "index": ""})


async def test_a_facade_is_not_opened_over_a_wrong_source() -> None:
    with pytest.raises(SourceError, match=WRONG_INDEX), FairSearch.open({**PEOPLE, "index": ""}):
        raise AssertionError
