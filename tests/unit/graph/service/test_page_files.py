"""The files of the page: what they may not have, and that what they name and propose is there."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path

import pytest

from fairqr import FairSearch
from tests.servers.model_server import clean_environment

__all__ = ["clean_environment"]

FOLDER = resources.files("fairqr.graph.service.page")
FILES = {entry.name: entry for entry in FOLDER.iterdir() if entry.is_file()}
SCRIPTS = sorted(name for name in FILES if name.endswith(".js"))
TEXTS = sorted(name for name in FILES if name.endswith((".html", ".css", ".js", ".svg")))
CHART = "87364cc2b2a76a6684929e7d6b80b18a897794db38400caff1fcf1791c6925d2"


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_never_becomes_markup_or_code(name: str) -> None:
    text = FILES[name].read_text()
    unsafe = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc|"
        r"createContextualFragment|\beval\b|new Function|javascript:"
    )

    assert re.findall(unsafe, text) == []


@pytest.mark.promise("service")
def test_the_page_has_no_inline_scripts_or_styles() -> None:
    """The page has no script or style but its own files, so that its policy lets no other script
    run.
    """
    page = FILES["index.html"].read_text()
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", page) == []


@pytest.mark.promise("service")
@pytest.mark.parametrize("name", TEXTS)
def test_a_file_of_the_page_names_no_other_host(name: str) -> None:
    """No file of the page names another host, so the page asks none."""
    urls = re.findall(r"https?://[^\s\"')]+", FILES[name].read_text())
    assert {*urls} <= {"http://www.w3.org/2000/svg"}


def terms_explained_by(script: str) -> set[str]:
    """Return the terms that a script of the page explains beside a heading."""
    call = r"\b(?:headed|explained)\([^;]*?[)\w],\s*((?:\"[^\"]+\",? ?)+)\)"
    return {*re.findall(call, FILES[script].read_text())}


def test_every_term_that_the_page_explains_is_in_the_glossary() -> None:
    glossary = set(re.findall(r"(?m)^## (.+)$", FILES["glossary.md"].read_text()))
    lists = set(re.findall(r'data-terms="([^"]+)"', FILES["index.html"].read_text()))
    for script in SCRIPTS:
        lists |= terms_explained_by(script)
    terms = {term.strip(' "') for terms in lists for term in terms.split(",")}

    assert len(terms) > 15
    assert terms <= glossary


def test_the_chart_library_is_the_one_that_was_published() -> None:
    vendor = FOLDER.joinpath("vendor")
    assert hashlib.sha256(vendor.joinpath("chart.umd.min.js").read_bytes()).hexdigest() == CHART
    assert CHART in vendor.joinpath("README.md").read_text()
    assert "MIT License" in vendor.joinpath("chart-LICENSE.md").read_text()


def test_what_the_page_proposes_is_found(clean_environment: Path) -> None:
    """Each word of an example that says what it is about is in documents of notables."""
    examples = re.search(r"EXAMPLES = \{(.*?)\};", FILES["example.js"].read_text(), re.DOTALL)
    assert examples

    queries = re.findall(r'"(.+?)"', examples[1])
    assert len(queries) > 3

    with FairSearch.open("notables") as search:
        for word in sorted({*re.findall(r"\b[a-z]{5,}\b", " ".join(queries))}):
            result = search.search(word, attribute="gender", method="baseline", k=10)
            assert result.ranking, word
