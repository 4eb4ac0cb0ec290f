"""Reading HTML as strictly as a validator of its structure would."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
INSIDE = {"tr": {"thead", "tbody"}, "td": {"tr"}, "th": {"tr"}, "li": {"ul"}, "caption": {"table"}}


class Page(HTMLParser):
    """A page, and what is wrong with it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.wrong: list[str] = []
        self.text = ""
        self.cells: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if len(dict(attrs)) < len(attrs):
            self.wrong.append(f"{tag} has an attribute twice")
        if tag in INSIDE and (not self.open or self.open[-1] not in INSIDE[tag]):
            self.wrong.append(f"{tag} stands in {self.open[-1:]}")
        if tag == "tr":
            self.cells.append([])
        elif tag in ("td", "th"):
            self.cells[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if "svg" not in self.open and tag not in VOID:
            self.wrong.append(f"{tag} cannot end itself")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.cells[-1][-1] += data

    def named(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of a name."""
        return [attributes for name, attributes in self.tags if name == tag]


def read(text: str) -> Page:
    """Read a page, and check that all that is opened is closed."""
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open, page.open
    assert not page.wrong, page.wrong
    return page
