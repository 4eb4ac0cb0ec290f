"""Reading the pages of reports as XML, in which nothing stays open, crosses or stands twice."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

from markdown_it import MarkdownIt

FETCHING = {"script", "link", "img", "iframe", "object", "form"}
MARKUP = {"html_inline", "html_block", "link_open", "code_inline", "fence", "code_block"}
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@dataclass
class Page:
    """A page."""

    root: Element

    @property
    def tags(self) -> list[tuple[str, dict[str, str]]]:
        """The names and attributes of all elements."""
        return [(element.tag, dict(element.attrib)) for element in self.root.iter()]

    @property
    def text(self) -> str:
        return "".join(self.root.itertext())

    @property
    def cells(self) -> list[list[str]]:
        """The texts of all tables, row by row."""
        return [["".join(cell.itertext()) for cell in row] for row in self.root.iter("tr")]

    def named(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of a name."""
        return [attributes for name, attributes in self.tags if name == tag]


def read(html: str) -> Page:
    """Read a page, after closing what HTML leaves open; styles are left out."""
    plain = re.sub(r"<!doctype html>|<style.*?</style>", "", html, flags=re.DOTALL)
    return Page(fromstring(re.sub(r"<((?:meta|br|hr|img)\b[^>]*?)/?>", r"<\1/>", plain)))


def read_report(folder: Path, strong: int = 0) -> Page:
    """Read the page of a report, which fetches nothing, and where no text became markup.

    So many words are strong.
    """
    html = (folder / "report.html").read_text()
    page = read(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert not {tag for tag, _ in page.tags} & FETCHING
    for tag, attributes in page.tags:
        for name, found in attributes.items():
            assert not name.startswith("on"), tag
            assert found.startswith("#") or not name.endswith(("href", "src")), (tag, found)
        assert not re.search(r"url\((?!#)", attributes.get("style", ""))
    assert "@import" not in html
    policy = [it["content"] for it in page.named("meta") if "http-equiv" in it]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert "nan" not in re.findall(r"\w+", page.text.lower())
    tokens = READER.parse((folder / "report.md").read_text())
    kinds = Counter(it.type for token in tokens for it in (token, *(token.children or [])))
    assert not kinds.keys() & MARKUP
    assert kinds["strong_open"] == strong
    assert kinds["image"] == len([*(folder / "figures").iterdir()]) > 0
    return page
