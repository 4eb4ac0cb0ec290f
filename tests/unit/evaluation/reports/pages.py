"""Reading the pages of reports as XML, in which nothing stays open, crosses or stands twice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree.ElementTree import Element, fromstring


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
