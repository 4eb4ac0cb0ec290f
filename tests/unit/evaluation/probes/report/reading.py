"""Reading reports back: their tables from Markdown, and what a reader of Markdown makes of them."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from markdown_it import MarkdownIt

from tests.unit.evaluation.reports.pages import read

__all__ = ["HOSTILE", "check_page", "check_plain", "row_of", "section", "table"]

HOSTILE = "<script>alert(1)</script> | `x` *y* $\\frac{ & &lt; ]]> [a](http://evil.example)"
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def table(text: str, *words: str) -> list[list[str]]:
    """Return the header and the rows of the one table whose caption has all of the words."""
    found = []
    blocks = text.split("\n\n")
    for caption, block in itertools.pairwise(blocks):
        if block.startswith("| ") and all(word in caption for word in words):
            lines = [
                [cell.strip() for cell in line.strip()[2:-2].split(" | ")]
                for line in block.strip().splitlines()
            ]
            found.append([lines[0], *lines[2:]])
    assert len(found) == 1, f"{len(found)} tables with {words}"
    return [[_plain(cell) for cell in row] for row in found[0]]


def _plain(cell: str) -> str:
    return re.sub(r"\\(.)", r"\1", cell).replace("−", "-")


def row_of(rows: list[list[str]], *beginning: str) -> dict[str, str]:
    """Return the one row that begins with these cells, by the names of its columns."""
    (found,) = [row for row in rows[1:] if tuple(row[: len(beginning)]) == beginning]
    return dict(zip(rows[0], found, strict=True))


def section(text: str, title: str) -> str:
    """Return what stands under a heading."""
    return _plain(text.split(f"\n## {title}\n")[1].split("\n## ")[0])


def check_page(folder: Path) -> str:
    """Check that the page is whole and fetches nothing; return its text."""
    html = (folder / "report.html").read_text()
    page = read(html)
    assert page.wrong == []
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert not re.search(r'(src|href)="(?!#)', html)
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe"}
    words = re.findall(r"\w+", page.text.lower())
    assert "nan" not in words
    assert "none" not in [cell.strip().lower() for row in page.cells for cell in row[:1]]
    for path in (folder / "figures").glob("*.svg"):
        ET.fromstring(path.read_text())
    return page.text


def check_plain(folder: Path) -> int:
    """Check that nothing in the Markdown is markup of a user's; return the number of images."""
    kinds: Counter[str] = Counter()
    for token in READER.parse((folder / "report.md").read_text()):
        kinds.update(child.type for child in token.children or [])
        kinds[token.type] += 1
    assert not kinds["html_inline"]
    assert not kinds["html_block"]
    assert not kinds["link_open"]
    assert not kinds["em_open"]
    assert not kinds["code_inline"]
    return kinds["image"]
