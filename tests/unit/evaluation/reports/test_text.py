"""Text and numbers of reports: whatever anybody named is shown as it stands."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from fairqr.evaluation.reports import text
from fairqr.evaluation.reports.text import Markdown
from tests.unit.evaluation.reports.pages import READER

SIGNS = st.sampled_from([*"\\`*_[]()<>|~$#!&;:/.+-=1a \t\n\"'{}\u202e\x00", "www.", "://"])


@given(st.lists(SIGNS, min_size=1, max_size=30).map("".join))
@example("1.")
def test_markdown_shows_any_text_as_it_stands(given_text: str) -> None:
    """As a heading, a paragraph, an item of a list, and a cell."""
    if not text.plain(given_text).strip():
        return
    one = text.escaped(given_text)
    page = f"# {one}\n\n{one}\n\n- {one}\n\nc\n\n| h |\n| --- |\n| {one} |"
    inline = [token for token in READER.parse(page) if token.type == "inline"]
    said = ["".join(child.content for child in token.children or ()) for token in inline]
    assert [said[0], said[1], said[2], said[5]] == [text.plain(given_text).strip()] * 4
    kinds = {child.type for token in inline for child in token.children or ()}
    assert kinds <= {"text", "text_special"}


def test_numbers_are_written_as_the_field_does() -> None:
    """A difference has a sign unless it is nothing; what is missing is a dash."""
    assert text.shown(text.shown("a*b")) == r"a\*b"
    assert text.shown(Markdown("**a**")) == "**a**"
    written = {number: text.difference(number) for number in (0.0, -0.00001, 0.0123, -0.5, None)}
    assert [*written.values()] == ["0.0000", "0.0000", "+0.0123", "−0.5000", "–"]
    assert [text.value(-0.25), text.value(math.nan)] == ["−0.2500", "–"]
    assert text.percent(-0.0349, signed=True) == "−3.5%"
    assert [text.percent(0.5), text.percent(None)] == ["50.0%", "–"]
    assert text.span([0.1, -0.2]) == r"\[0.100, −0.200\]"
    assert text.span([math.nan, 1.0]) == text.span(None) == ""
    assert [text.p_value(it) for it in (0.00001, 0.0312, None)] == [r"\< 0.0001", "0.0312", "none"]
    assert text.p_value(0.0312, name="p") == "p = 0.0312"
    assert text.amounts([1.25, 1.0, 1.85]) == "1.25 / 1.00 / 1.85"
    assert text.amounts([1250.0, 2.0]) == "1,250 / 2"
    assert text.amounts([]) == "–"
    assert text.counted(1, "topic") == "1 topic"
    assert text.counted(1200, "search", "searches") == "1,200 searches"
