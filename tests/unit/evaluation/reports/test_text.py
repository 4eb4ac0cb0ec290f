"""Text and numbers of reports: whatever anybody named is shown as it stands."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from fairqr.evaluation.reports import text
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


def test_what_no_recorded_report_has() -> None:
    """A rounded zero has no sign, and thousands are set apart."""
    assert [text.difference(it) for it in (0.0, -0.00001)] == ["0.0000"] * 2
    assert text.amounts([1250.0, 2.0]) == "1,250 / 2"
    assert text.counted(1200, "search", "searches") == "1,200 searches"
