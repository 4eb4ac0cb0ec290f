"""What ``filter_path`` leaves of a reply; on servers, see tests/integration."""

from __future__ import annotations

import json
import time

import pytest

from fairqr.graph.service.proxy.filters import filtered

HITS = '[{"_id": "a", "n": 1.10}, {"_id": "b", "n": 1E400}]'
REPLY = f'{{ "took" : 1,  "hits": {{"hits": {HITS}, "x": {{}}}} }}'


@pytest.mark.parametrize(
    ("filter_path", "remainder"),
    [
        ("", REPLY),
        ("hits.hits.n", '{ "hits": {"hits": [{"n": 1.10}, {"n": 1E400}]} }'),
        ("**.n,took", '{ "took" : 1,  "hits": {"hits": [{"n": 1.10}, {"n": 1E400}]} }'),
        ("-hits", '{ "took" : 1 }'),
        ("hits,-hits.h*.n,-hits.x", '{ "hits": {"hits": [{"_id": "a"}, {"_id": "b"}]} }'),
        ("of_tomorrow", "{}"),
    ],
    ids=["all", "field", "any depth", "without", "with and without", "unknown"],
)
def test_what_is_left_stays_as_it_is_written(filter_path: str, remainder: str) -> None:
    assert filtered(REPLY, filter_path) == remainder


def test_a_filter_that_is_made_to_be_slow_is_not() -> None:
    deep = '{"a": ' * 60 + "1" + "}" * 60
    reply = json.dumps({"a" * 10_000: 1})[:-1] + f', "b": {deep}}}'
    started = time.monotonic()

    assert filtered(reply, "*a" * 5_000 + "b") == "{}"
    assert filtered(reply, ".".join(["**"] * 60) + ".of_tomorrow") == "{}"
    assert time.monotonic() - started < 5
