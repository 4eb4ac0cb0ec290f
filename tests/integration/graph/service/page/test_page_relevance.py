"""The page tells relevance and the two gaps: a real Chromium, the real service and real MiniLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.integration.chromium import FAINT, PHONE, WIDTH, Pages, browser, pages
from tests.integration.local_model import ENCODER, linked
from tests.integration.model_server import ModelServer, says
from tests.integration.page_service import run_command, served, settings_for

__all__ = ["browser", "pages"]

pytestmark = pytest.mark.model

SCHEMA = (
    "attributes:\n"
    "  gender: {field: gender, groups: [female, male], population: {female: 0.5, male: 0.5}}\n"
)
FIELDS = ("physics", "optics", "mechanics", "heat", "light")


def write_scientists(folder: Path) -> None:
    """Write thirty physicists, one of them a woman, and two hundred singers, all women."""
    folder.mkdir(parents=True)
    (folder / "schema.yaml").write_text(SCHEMA)
    documents = [
        {
            "id": f"p{number:03}",
            "title": f"Physicist {number}",
            "text": f"A physicist who studied {FIELDS[number % 5]}, born in {1900 + number}.",
            "gender": "female" if number == 29 else "male",
        }
        for number in range(30)
    ]
    documents += [
        {
            "id": f"s{number:03}",
            "title": f"Singer {number}",
            "text": f"A woman who sang in operas and on the stage from {1700 + number} on.",
            "gender": "female",
        }
        for number in range(200)
    ]
    lines = (json.dumps(document) for document in documents)
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def service(pulled_minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that has MiniLM, and one index with its vectors."""
    folder = tmp_path_factory.mktemp("relevance")
    model = ModelServer()
    model.does(says({"topic": [], "keywords": ["opera", "stage"]}))
    variables = settings_for(model, folder)
    linked(ENCODER, pulled_minilm, Path(variables["FAIRQR_CACHE_DIR"]))
    write_scientists(folder / "scientists")
    run_command(
        variables, "index", "create", "scientists", folder / "scientists", "--vectors", ENCODER
    )
    with served(variables, "--corpus", "scientists") as address:
        yield address
    model.close()


def ask(page: Page, service: str, query: str, retriever: str) -> None:
    """Search for the ten best by the default method, and wait for the end."""
    page.goto(service)
    expect(page.locator("#corpus option")).to_have_count(1)
    if not page.get_by_role("combobox", name="Method").is_visible():
        page.get_by_text("Settings").click()
    page.get_by_role("combobox", name="Method").select_option("fairqr")
    page.get_by_role("combobox", name="Retriever").select_option(retriever)
    expect(page.locator("#retriever-about")).not_to_be_empty()
    page.get_by_role("spinbutton", name="Results").fill("10")
    page.get_by_role("searchbox", name="Query").fill(query)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".run-head .status")).to_have_text("done")


def result_of(page: Page, service: str) -> Any:
    """What the API returns for the run that is shown."""
    with urlopen(f"{service}/v1/runs/{page.url.rpartition('/')[2]}") as response:
        return json.load(response)["result"]


def cells(table: Locator, css: str) -> list[str]:
    return table.locator(f"tbody {css}").all_inner_texts()


def test_relevance_and_both_gaps_are_shown(pages: Pages, service: str) -> None:
    """The sentences are the API's, the dashed box is the supply gap, percentages the estimates."""
    page, watched = pages()
    ask(page, service, "physicist", "hybrid")
    result = result_of(page, service)
    missing = result["gaps"]["supply"]["gender"]["female"]
    assert missing > 0.02
    assert any("too few documents" in sentence for sentence in result["explanation"])
    figures = page.get_by_role("region", name="What came of it")
    expect(figures.locator(".explanation li")).to_have_text(result["explanation"])
    expect(figures.locator(".lacking li")).to_contain_text(
        [f"female: {round(100 * missing)} points for which too few documents were found"]
    )
    expect(figures).to_contain_text("A dashed box")
    what = figures.locator("details", has_text="what is this? Supply gap, Ranking gap")
    what.locator("summary").click()
    expect(what.locator("dd")).to_contain_text(["no ranking could give", "this ranking withholds"])
    box = figures.get_by_role("row", name="female").locator(".missing")
    target = result["target"]["gender"]["female"]
    assert float((box.get_attribute("width") or "").rstrip("%")) == pytest.approx(
        100 * missing, abs=0.01
    )
    assert float((box.get_attribute("x") or "").rstrip("%")) == pytest.approx(
        100 * (target - missing), abs=0.01
    )
    assert (
        figures.get_by_role("row", name=re.compile("^male|M male")).locator(".missing").count() == 0
    )
    for name, ranking in (
        ("Before: plain retrieval", result["baseline"]["ranking"]),
        (f"After: {result['method']}", result["ranking"]),
    ):
        table = page.get_by_role("table", name=name)
        expect(table.get_by_role("columnheader", name="Estimated relevance")).to_have_count(1)
        estimates = [float(text.strip("<>%")) for text in cells(table, ".chance")]
        wanted = [100 * place["relevance"] for place in ranking]
        assert estimates == pytest.approx(wanted, abs=1)
    expect(page.get_by_role("table", name=f"After: {result['method']}")).to_contain_text(
        re.compile("▲|new")
    )
    reached = result["iterations"][0]["objective"]
    expect(page.locator(".rounds > li").first).to_contain_text(
        f"gives relevance {reached['relevance']:.2f} and fairness {reached['fairness']:.2f}"
    )
    assert watched.complaints == []
    assert page.evaluate("window.violations") == []


def test_words_alone_have_no_estimates(pages: Pages, service: str) -> None:
    """No column and no hint stand for missing numbers; what was not checked is told."""
    page, _ = pages()
    ask(page, service, "physicist", "bm25")
    result = result_of(page, service)
    assert result["relevance"] is None
    told = page.locator(".explanation li")
    expect(told).to_have_text(result["explanation"])
    expect(told.nth(1)).to_contain_text("without checking that they are relevant")
    expect(told.last).to_contain_text("Relevance by rank")
    expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
    assert page.get_by_role("columnheader", name="Estimated relevance").count() == 0
    assert page.get_by_text("The percentage is the estimated chance").count() == 0


def test_two_retrievers_are_compared(pages: Pages, service: str) -> None:
    page, _ = pages()
    for retriever in ("bm25", "hybrid"):
        ask(page, service, "physicist compared", retriever)
    page.get_by_role("link", name="Past runs").click()
    runs = page.locator(".runs li", has_text="physicist compared")
    for at in range(2):
        runs.nth(at).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare two").click()
    settings = page.get_by_role("region", name="Settings")
    expect(settings.get_by_role("row", name=re.compile("retriever"))).to_contain_text("hybrid")
    outcome = page.get_by_role("region", name="What came of it")
    after = outcome.get_by_role("row", name=re.compile("estimated relevance after"))
    expect(after).to_contain_text(re.compile(r"0\.\d\d"))
    expect(after).to_contain_text("–")
    expect(outcome.get_by_role("row", name=re.compile("supply gap of female"))).to_contain_text("%")


def test_it_fits_a_phone_and_can_be_read(pages: Pages, service: str) -> None:
    for scheme in ("dark", "light"):
        page, _ = pages(color_scheme=scheme, **PHONE)
        ask(page, service, f"physicist {scheme}", "hybrid")
        expect(page.locator(".chance").first).to_be_visible()
        assert page.evaluate(WIDTH) <= 360
        assert page.evaluate(FAINT) == []
