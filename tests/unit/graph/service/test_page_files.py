"""The files of the page: what they may not have, and that what they name and propose is there."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path

import pytest

from fairqr import FairSearch
from tests.servers.model_server import clean_environment

FOLDER = resources.files("fairqr.graph.service.page")
FILES = {entry.name: entry for entry in FOLDER.iterdir() if entry.is_file()}
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))
CHART = "87364cc2b2a76a6684929e7d6b80b18a897794db38400caff1fcf1791c6925d2"


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_never_becomes_markup_or_code(name: str) -> None:
    text = FILES[name].read_text()
    unsafe = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc|"
        r"createContextualFragment|\beval\b|new Function|javascript:"
    )
    assert re.findall(unsafe, text) == []


def test_nothing_is_written_inline_and_nothing_comes_from_elsewhere() -> None:
    page = FILES["index.html"].read_text()
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page) == []
    for name, file in FILES.items():
        if name.endswith((".html", ".css", ".js", ".svg")):
            found = re.findall(r"https?://[^\s\"')]+", file.read_text())
            assert [url for url in found if url != "http://www.w3.org/2000/svg"] == [], name


def test_every_term_that_the_page_explains_is_in_the_glossary() -> None:
    terms = set(re.findall(r"(?m)^## (.+)$", FILES["glossary.md"].read_text()))
    used = set(re.findall(r'data-terms="([^"]+)"', FILES["index.html"].read_text()))
    for name in SCRIPTS:
        beside = r"\b(?:headed|explained)\([^;]*?[)\w],\s*((?:\"[^\"]+\",? ?)+)\)"
        used |= set(re.findall(beside, FILES[name].read_text()))
    named = {term.strip(' "') for each in used for term in each.split(",")}
    assert len(named) > 15
    assert named - terms == set()


def test_the_chart_library_is_the_one_that_was_published() -> None:
    vendor = FOLDER.joinpath("vendor")
    assert hashlib.sha256(vendor.joinpath("chart.umd.min.js").read_bytes()).hexdigest() == CHART
    assert CHART in vendor.joinpath("README.md").read_text()
    assert "MIT License" in vendor.joinpath("chart-LICENSE.md").read_text()


__all__ = ["clean_environment"]


def test_what_the_page_proposes_is_found(clean_environment: Path) -> None:
    """Each word of an example that says what it is about is in documents of notables."""
    examples = re.search(r"EXAMPLES = \{(.*?)\};", FILES["example.js"].read_text(), re.DOTALL)
    assert examples
    queries = re.findall(r'"(.+?)"', examples[1])
    assert len(queries) > 3
    with FairSearch.open("notables") as search:
        for word in {word for query in queries for word in re.findall(r"\b[a-z]{5,}\b", query)}:
            found = search.search(word, attribute="gender", method="baseline", k=10)
            assert found.ranking, word
