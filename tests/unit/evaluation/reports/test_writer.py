"""Reports as files: a page that is whole, and asks nobody for anything."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from fairqr.evaluation.reports import writer
from fairqr.evaluation.reports.plots import draw_lines
from fairqr.evaluation.reports.text import cell, table, value
from fairqr.evaluation.reports.writer import Figure, render, write_report
from tests.unit.evaluation.reports.pages import Page, read

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


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A template of the test's own, beside the real base."""
    folder = tmp_path / "templates"
    folder.mkdir()
    for name in ("base.md.j2", "page.html.j2"):
        (folder / name).write_text((writer.TEMPLATES / name).read_text())
    (folder / "small.md.j2").write_text(TEMPLATE)
    monkeypatch.setattr(writer, "TEMPLATES", folder)
    return "small"


def _plot() -> Figure:
    points = pd.DataFrame({"line": [HOSTILE, "_b"], "x": [1, 2], "y": [1, 2], "label": HOSTILE})
    drawn = draw_lines({HOSTILE: points}, HOSTILE, HOSTILE)
    return Figure("plot", f"A line. {HOSTILE}", drawn)


def _values(text: str = HOSTILE) -> dict[str, object]:
    rows = pd.DataFrame(
        {
            text: [text, "other"],
            "mean": [cell(value(0.5), "[0.1, 0.9]", "n=7", best=True), cell(value(0.25))],
            "words": ["a", "1 b"],
        }
    )
    return {"title": text, "about": text, "text": text, "rows": rows, "number": -3}


def _page(folder: Path) -> Page:
    return read((folder / "report.html").read_text())


def test_files_are_written_and_equal_values_give_equal_ones(tmp_path: Path, template: str) -> None:
    paths = write_report(tmp_path, template, _values(), [_plot()])
    names = ["report.md", "report.html", "figures/plot.svg"]
    assert paths == [tmp_path / name for name in names]
    before = [path.read_bytes() for path in paths]
    assert write_report(tmp_path, template, _values(), [_plot()]) == paths
    assert [path.read_bytes() for path in paths] == before


def test_what_anybody_named_is_text_and_never_markup(tmp_path: Path, template: str) -> None:
    write_report(tmp_path, template, _values(), [_plot()])
    page = _page(tmp_path)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert(1)</script>") >= 6
    tokens = MarkdownIt("commonmark").enable("table").parse((tmp_path / "report.md").read_text())
    assert not [t for t in tokens if t.type in ("html_block", "fence", "code_block")]
    inline = {child.type for token in tokens for child in token.children or ()}
    assert inline <= {
        "text",
        "text_special",
        "image",
        "strong_open",
        "strong_close",
        "em_open",
        "em_close",
    }


def test_the_page_asks_nobody_for_anything(tmp_path: Path, template: str) -> None:
    write_report(tmp_path, template, _values(), [_plot()])
    text = (tmp_path / "report.html").read_text()
    page = _page(tmp_path)
    assert not {"script", "link", "img", "iframe", "object", "form"} & {t for t, _ in page.tags}
    for tag, attributes in page.tags:
        for name, found in attributes.items():
            assert not name.startswith("on"), tag
            if name in ("href", "src", "xlink:href"):
                assert found.startswith("#"), (tag, found)
        assert not re.search(r"url\((?!#)", attributes.get("style", ""))
    assert "@import" not in text
    policy = [m["content"] for m in page.named("meta") if "http-equiv" in m]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_can_be_read_by_all(tmp_path: Path, template: str) -> None:
    write_report(tmp_path, template, _values(), [_plot()])
    page = _page(tmp_path)
    assert page.named("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert [link["href"] for link in page.named("a")] == ["#s1", "#s2"]
    assert {"s1", "s2"} <= set(ids)
    (shape,) = page.named("svg")
    assert shape["role"] == "img"
    assert shape["aria-label"].startswith("A line.")
    assert len(page.named("caption")) == len(page.named("table")) == 1
    assert all(header.get("scope") in ("row", "col") for header in page.named("th"))
    assert [len(row) for row in page.cells] == [3, 3, 3]
    assert table(_values()["rows"]).splitlines()[1] == "| --- | ---: | --- |"  # type: ignore[arg-type]
    assert page.cells[1][1] == "0.5000 (best) [0.1, 0.9] n=7"
    kinds = [attributes.get("class") for attributes in page.named("td")]
    assert kinds == ["number best", None, "number", None]
    for region in page.named("div"):
        assert region["tabindex"] == "0"
        assert "aria-label" in region or region["aria-labelledby"] in ids
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels == [1, 2, 2]
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_what_a_template_misspells_is_an_error(template: str) -> None:
    values = _values("a")
    del values["number"]
    with pytest.raises(Exception, match="'number' is undefined"):
        render(template, values)
