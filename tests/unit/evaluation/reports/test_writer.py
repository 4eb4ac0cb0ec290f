"""Reports as files: a page that is whole, and asks nobody for anything."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from fairqr.evaluation.reports import writer
from fairqr.evaluation.reports.plots import draw_lines
from fairqr.evaluation.reports.text import cell, table, value
from fairqr.evaluation.reports.writer import Figure, write_report
from tests.unit.evaluation.reports.pages import Page, read_report

HOSTILE = '<script>alert(1)</script> <img src="//evil.example/x.png"> | `x` *y* $\\frac{ & &lt; ]]>'
TEMPLATE = """{% extends "base.md.j2" %}
{% block results %}
## First

{{ text }}

- {{ text }}

{% call figure("plot") %}What it shows.{% endcall %}

{% call figure("not drawn") %}What it would show.{% endcall %}

The caption.

{{ table(rows) }}
{% endblock %}
{% block setup %}
## Second

- {{ number }}
{% endblock %}
"""
ROWS = pd.DataFrame(
    {
        HOSTILE: [HOSTILE, "other"],
        "mean": [cell(value(0.5), "[0.1, 0.9]", "n=7", best=True), cell(value(0.25))],
        "words": ["a", "1 b"],
    }
)
VALUES = {**dict.fromkeys(("title", "about", "text"), HOSTILE), "rows": ROWS, "number": -3}
FILES = ["report.md", "report.html", "figures/plot.svg"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of a template of the test's own, beside the real base."""
    templates = tmp_path / "templates"
    templates.mkdir()
    for name in ("base.md.j2", "page.html.j2"):
        (templates / name).write_text((writer.TEMPLATES / name).read_text())
    (templates / "small.md.j2").write_text(TEMPLATE)
    monkeypatch.setattr(writer, "TEMPLATES", templates)
    assert _write(tmp_path) == [tmp_path / name for name in FILES]
    return tmp_path


def _write(folder: Path) -> list[Path]:
    points = pd.DataFrame({"line": [HOSTILE, "_b"], "x": [1, 2], "y": [1, 2], "label": HOSTILE})
    drawn = draw_lines({HOSTILE: points}, HOSTILE, HOSTILE)
    return write_report(folder, "small", VALUES, [Figure("plot", f"A line. {HOSTILE}", drawn)])


@pytest.fixture
def page(folder: Path) -> Page:
    """What anybody named is text in it, and it asks nobody for anything."""
    return read_report(folder, strong=1)


def test_files_are_written_and_equal_values_give_equal_ones(folder: Path) -> None:
    before = [(folder / name).read_bytes() for name in FILES]
    assert [path.read_bytes() for path in _write(folder)] == before
    with pytest.raises(Exception, match="'number' is undefined"):
        writer.render("small", {name: it for name, it in VALUES.items() if name != "number"})


def test_the_page_can_be_read_by_all(page: Page) -> None:
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert page.named("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert [link["href"] for link in page.named("a")] == ["#s1", "#s2"]
    assert {"s1", "s2"} <= set(ids)
    (shape,) = page.named("svg")
    assert shape["role"] == "img"
    assert shape["aria-label"].startswith("A line.")
    assert len(page.named("caption")) == len(page.named("table")) == 1
    assert all(header.get("scope") in ("row", "col") for header in page.named("th"))
    assert [len(row) for row in page.cells] == [3, 3, 3]
    assert table(ROWS).splitlines()[1] == "| --- | ---: | --- |"
    assert page.cells[1][1] == "0.5000 (best) [0.1, 0.9] n=7"
    kinds = [attributes.get("class") for attributes in page.named("td")]
    assert kinds == ["number best", None, "number", None]
    for region in page.named("div"):
        assert region["tabindex"] == "0"
        assert "aria-label" in region or region["aria-labelledby"] in ids
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels == [1, 2, 2]
