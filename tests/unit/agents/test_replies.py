"""Finding the JSON object in whatever a model sends."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.models.reading import read_object

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3)
    ),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=4)
prose = st.text().map(lambda text: text.replace("{", "("))


@given(before=prose, value=json_objects, after=st.text(), indent=st.sampled_from([None, 2]))
def test_an_object_is_found_in_any_prose(
    before: str, value: dict[str, Any], after: str, indent: int | None
) -> None:
    """Whatever stands around it, the first whole object is returned as it is."""
    assert read_object(before + json.dumps(value, indent=indent) + after) == value


@given(st.text())
def test_any_text_gives_an_object_or_a_value_error(text: str) -> None:
    """No text of a model raises anything else."""
    with contextlib.suppress(ValueError):
        assert isinstance(read_object(text), dict)


@pytest.mark.parametrize(
    "text",
    [
        "no object",
        '{"keywords": ["a", "b"',
        '["a"]',
    ],
)
def test_what_is_no_whole_object_is_refused(text: str) -> None:
    """Prose, half an object and other JSON are refused in one sentence."""
    with pytest.raises(ValueError, match="no whole JSON object"):
        read_object(text)


@pytest.mark.parametrize(
    "text",
    [
        '[{"a":' * 100_000,
        '{"keywords":' * 100_000,
        *('{"a":' * 9_000, "{'a': [" * 6_000 + "}", '{"a" "b" ' * 5_000 + "}", "[" * 49_000 + "]"),
        "{" * 5_000_000,
        '{"a":[' * 900 + "0," * 2_000_000,
        '{"a":"' * 1_000_000,
        '{"a":[' + '{"b":1},' * 500_000,
    ],
    ids=[
        *("nested", "nested objects", "mistakes", "quotes", "no colons", "brackets", "braces"),
        *("deep and long", "open texts", "half a list"),
    ],
)
def test_a_hostile_reply_costs_little(text: str) -> None:
    """Replies that are made to be searched for ever are given up on in no time."""
    start = time.process_time()
    with contextlib.suppress(ValueError):
        read_object(text)

    assert time.process_time() - start < 2
