"""Text and numbers of reports: whatever anybody named is shown as it stands."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from fairqr.evaluation.reports.text import (
    Markdown,
    amounts,
    counted,
    difference,
    escaped,
    p_value,
    percent,
    plain,
    shown,
    span,
    value,
)

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SIGNS = st.sampled_from([*"\\`*_[]()<>|~$#!&;:/.+-=1a \t\n\"'{}\u202e\x00", "www.", "://"])


@given(st.lists(SIGNS, min_size=1, max_size=30).map("".join))
def test_markdown_shows_any_text_as_it_stands(text: str) -> None:
    """As a heading, a paragraph, an item of a list, and a cell."""
    if not plain(text).strip():
        return
    one = escaped(text)
    inline = [
        token
        for token in READER.parse(f"# {one}\n\n{one}\n\n- {one}\n\nc\n\n| h |\n| --- |\n| {one} |")
        if token.type == "inline"
    ]
    said = ["".join(child.content for child in token.children or ()) for token in inline]
    assert [said[0], said[1], said[2], said[5]] == [plain(text).strip()] * 4
    kinds = {child.type for token in inline for child in token.children or ()}
    assert kinds <= {"text", "text_special"}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0000"),
        (-0.00001, "0.0000"),
        (0.0123, "+0.0123"),
        (-0.5, "−0.5000"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_differences_have_a_sign_unless_they_are_nothing(number: float | None, text: str) -> None:
    assert difference(number) == text


def test_numbers_are_written_as_the_field_does() -> None:
    assert shown(shown("a*b")) == r"a\*b"
    assert shown(Markdown("**a**")) == "**a**"
    assert value(-0.25) == "−0.2500"
    assert value(math.nan) == "–"
    assert percent(0.0349, signed=True) == "+3.5%"
    assert percent(-0.0349, signed=True) == "−3.5%"
    assert percent(0.5) == "50.0%"
    assert percent(None) == "–"
    assert span([0.1, -0.2]) == r"\[0.100, −0.200\]"
    assert span([math.nan, 1.0]) == ""
    assert span(None) == ""
    assert p_value(0.00001) == r"\< 0.0001"
    assert p_value(0.0312, name="p") == "p = 0.0312"
    assert p_value(None) == "none"
    assert amounts([1.25, 1.0, 1.85]) == "1.25 / 1.00 / 1.85"
    assert amounts([1250.0, 2.0]) == "1,250 / 2"
    assert amounts([]) == "–"
    assert counted(1, "topic") == "1 topic"
    assert counted(1200, "search", "searches") == "1,200 searches"
