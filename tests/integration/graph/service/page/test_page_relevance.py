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

from fairqr.graph.search.explanation import say_near_best
from fairqr.graph.search.result import Objective
from tests.servers.chromium import PHONE, WIDTH, Pages, ask, faults, open_settings, status_is
from tests.servers.local_model import ENCODER, linked
from tests.servers.model_server import ModelServer, says
from tests.servers.page_service import run_command, served, settings_for
from tests.unit.graph.corpora import write_corpus

pytestmark = pytest.mark.model


def write_scientists(folder: Path) -> Path:
    """Write thirty physicists, one of them a woman, and two hundred singers, all women."""
    fields = ("physics", "optics", "mechanics", "heat", "light")
    documents = [
        {
            "id": f"p{number:03}",
            "title": f"Physicist {number}",
            "text": f"A physicist who studied {fields[number % 5]}, born in {1900 + number}.",
            "g": "female" if number == 29 else "male",
        }
        for number in range(30)
    ]
    for number in range(200):
        text = f"A woman who sang in operas and on the stage from {1700 + number} on."
        singer = {"id": f"s{number:03}", "title": f"Singer {number}", "text": text, "g": "female"}
        documents.append(singer)
    folder.mkdir(parents=True)
    return write_corpus(folder, documents)


@pytest.fixture(scope="module")
def service(pulled_minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service that has MiniLM, and one index with its vectors."""
    folder = tmp_path_factory.mktemp("relevance")
    model = ModelServer()
    model.does(says({"topic": [], "keywords": ["opera", "stage"]}))
    variables = settings_for(model, folder)
    linked(ENCODER, pulled_minilm, Path(variables["FAIRQR_CACHE_DIR"]))
    people = write_scientists(folder / "scientists")
    run_command(variables, "index", "create", "scientists", people, "--vectors", ENCODER)
    with served(variables, "--corpus", "scientists") as address:
        yield address
    model.close()


def searched(page: Page, service: str, query: str, retriever: str) -> None:
    """Search by the default method, and wait for the end."""
    page.goto(service)
    open_settings(page)
    page.get_by_role("combobox", name="Retriever").select_option(retriever)
    expect(page.locator("#retriever-about")).not_to_be_empty()
    ask(page, query, "fairqr")
    status_is(page)


def result_of(page: Page, service: str) -> Any:
    """What the API returns for the run that is shown."""
    with urlopen(f"{service}/v1/runs/{page.url.rpartition('/')[2]}") as response:
        return json.load(response)["result"]


def counts_are_those_of(result: Any, figures: Locator) -> None:
    """Beside a group's share of exposure stands how many documents have it, before and after."""
    lists = [result["baseline"]["ranking"], result["ranking"]]
    counts = [sum(place["groups"]["gender"].get("female", 0) > 0 for place in it) for it in lists]
    counted = f"{counts[0]} → {counts[1]} document"
    expect(figures.get_by_role("row", name="female")).to_contain_text(counted)
    expect(figures.locator(".big")).to_contain_text(f"in {counts[1]} document")


def test_relevance_and_both_gaps_are_shown(pages: Pages, service: str) -> None:
    """Sentences are the API's, the dashed box what is unattainable, percentages the estimates."""
    page, _ = pages(color_scheme="dark", **PHONE)
    searched(page, service, "physicist", "hybrid")
    assert page.evaluate(WIDTH) <= 360
    assert faults(page) == []
    result = result_of(page, service)
    missing = result["gaps"]["unattainable"]["gender"]["female"]
    assert missing > 0.02
    assert any("too few documents" in sentence for sentence in result["explanation"])
    figures = page.get_by_role("region", name="What came of it")
    expect(figures.locator(".explanation li")).to_have_text(result["explanation"])
    expect(figures.locator(".lacking li")).to_contain_text(
        [f"female: {round(100 * missing)} points for which too few documents were found"]
    )
    expect(figures).to_contain_text("A dashed box")
    before, after = (it["objective"]["relevance"] for it in (result["baseline"], result))
    near = say_near_best(Objective(**result["objective"]))
    near = f"{near} " if near else ""
    paid = f"Cost: expected relevance {before:.2f} → {after:.2f}. {near}1 document moved up. "
    expect(figures.locator(".paid")).to_have_text(f"{paid}No model was asked for this ranking.")
    what = figures.locator("details", has_text="What is this? Unattainable exposure, Ranking gap")
    what.locator("summary").click()
    expect(what.locator("dd")).to_contain_text(["no ranking could give", "this ranking withholds"])
    box = figures.get_by_role("row", name="female").locator(".missing")
    target = result["target"]["gender"]["female"]
    drawn = [float((box.get_attribute(name) or "").rstrip("%")) for name in ("width", "x")]
    assert drawn == pytest.approx([100 * missing, 100 * (target - missing)], abs=0.01)
    counts_are_those_of(result, figures)
    male = figures.get_by_role("row", name=re.compile("^male|M male"))
    assert male.locator(".missing").count() == 0
    sides = {"Before: baseline ranking": result["baseline"], f"After: {result['method']}": result}
    for name, side in sides.items():
        table = page.get_by_role("table", name=name)
        expect(table.get_by_role("columnheader", name="Estimated relevance")).to_have_count(1)
        probabilities = table.locator("tbody .probability").all_inner_texts()
        estimates = [float(text.strip("<>%")) for text in probabilities]
        wanted = [100 * place["relevance"] for place in side["ranking"]]
        assert estimates == pytest.approx(wanted, abs=1)
    expect(table).to_contain_text(re.compile("▲|new"))
    reached = result["iterations"][0]["objective"]
    expect(page.locator(".rounds > li").first).to_contain_text(
        f"gives relevance {reached['relevance']:.2f} and fairness {reached['fairness']:.2f}"
    )


def test_words_alone_have_no_estimates(pages: Pages, service: str) -> None:
    """No column and no hint stand for missing numbers; what was not checked is told."""
    page, _ = pages()
    searched(page, service, "physicist", "bm25")
    result = result_of(page, service)
    assert result["relevance"] is None
    told = page.locator(".explanation li")
    expect(told).to_have_text(result["explanation"])
    expect(told.nth(1)).to_contain_text("without checking that they are relevant")
    expect(told.filter(has_text="Relevance by rank")).to_have_count(1)
    expect(page.get_by_role("heading", name="Before and after")).to_be_visible()
    assert page.get_by_role("columnheader", name="Estimated relevance").count() == 0
    before = result["baseline"]["expected_relevance"]
    paid = f"Cost: relevance by rank {before:.2f} → {result['expected_relevance']:.2f}."
    expect(page.locator(".paid")).to_contain_text(paid)
    assert page.get_by_text("The percentage is the estimated probability").count() == 0


@pytest.mark.parametrize(("after", "style"), [(0.27, "better"), (0.6, "null")])
def test_more_than_the_target_is_not_painted_as_better(
    pages: Pages, service: str, after: float, style: str
) -> None:
    """The page's own code draws a result whose exposure is changed."""
    page, _ = pages()
    searched(page, service, "physicist", "bm25")
    result = result_of(page, service)
    (name,) = result["target"]
    result["target"][name] = {"female": 0.27, "male": 0.73}
    result["baseline"]["exposure"][name] = {"female": 0.0, "male": 1.0}
    result["exposure"][name] = {"female": after, "male": 1 - after}
    drawn = page.evaluate(
        """async (result) => {
            const { figures } = await import("/page/outcome.js");
            const { allMarks } = await import("/page/groups.js");
            const big = figures(result, allMarks(result.target)).querySelector(".big");
            return [String(big.querySelector("b").getAttribute("class")), big.textContent];
        }""",
        result,
    )
    assert drawn[0] == style
    assert ("33 points too much" in drawn[1]) == (style == "null")
