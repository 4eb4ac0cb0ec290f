"""The page in a real Chromium, against the real ``fairqr serve``: what people do with it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from tests.patience import PATIENCE
from tests.servers.chromium import (
    FOCUSED,
    PHONE,
    WIDTH,
    Pages,
    ask,
    ask_for_audit,
    ask_question,
    faults,
    open_settings,
    shown,
    slopes_join,
    status_is,
)
from tests.servers.model_server import Answer, Asked, ModelServer, says, stream
from tests.servers.service_client import Served, answers_all, service_of_a_module

ENDS = """() => {
  const { labels, datasets } = Chart.getChart(document.querySelector("#compare-page canvas")).data;
  return [labels, datasets.map(({ data }) => [data[0], data[labels.length - 1] ?? null])];
}"""
"""The labels of the comparison's curves, and where each begins and ends."""

MARKED = """(rows) => rows.map((row) => [...row.querySelectorAll(".mark")]
  .filter((it) => it.checkVisibility() && it.scrollWidth <= it.clientWidth && it.clientHeight < 24)
  .map((it) => it.innerText))"""
"""What each row shows of its groups in full, each on one line."""

LOG = 'query,count\nphysicist,12\n"person, laboratory",3\nworkshop,1\n'
WORDS = (["woman", "laboratory"], ["she", "born"], ["Tokyo", "Asia"])


served = service_of_a_module()


@pytest.fixture
def service(served: Served) -> str:
    return served.url.rstrip("/")


@pytest.fixture
def page(pages: Pages, service: str) -> Iterator[Page]:
    """The page at its start; nothing that it asks for is refused."""
    allowed = ["clipboard-read", "clipboard-write"]
    page, watched = pages(accept_downloads=True, permissions=allowed)
    page.goto(service)
    expect(page.locator("#corpus option")).to_have_count(1)
    yield page
    assert watched.failures == []


@pytest.fixture(autouse=True)
def model(served: Served) -> ModelServer:
    """What plays the language model; it has new words each time."""
    number = itertools.count()

    def reply(asked: Asked) -> Answer:
        if not asked.wants_schema:
            return answers_all(asked)
        return says({"topic": [], "keywords": WORDS[next(number) % len(WORDS)]})

    served.model.does(reply)
    return served.model


OPENING = r"^female (\d+)% → (\d+)% in \d+ documents? target (\d+)%$"
"""The figures in large, of the group that lacked most: before, after and its target."""


def test_a_run_is_shown_round_by_round_while_it_goes_on_and_then_before_and_after(
    page: Page, model: ModelServer
) -> None:
    gate = threading.Event()
    model.does(says({"topic": [], "keywords": ["woman", "laboratory"]}, gate=gate))
    page.get_by_role("radio", name="Own").check()
    page.get_by_role("slider", name="Share of female").fill("100")
    ask(page, "physicist")
    cards = page.locator(".rounds > li")
    # The model has not answered yet: the baseline ranking stands there, and the next round waits.
    expect(cards).to_have_count(2)
    expect(cards.nth(0)).to_contain_text("Baseline ranking")
    headings = cards.nth(0).get_by_role("columnheader")
    expect(headings).to_have_text(["gender", "exposure", "target"])
    expect(cards.nth(0).get_by_role("row", name="female")).to_contain_text("%")
    expect(cards.nth(1)).to_contain_text("Asking for words")
    told = page.get_by_role("status").filter(has_text="Asking for words")
    expect(told).to_have_count(1)
    lit = page.get_by_role("img", name="Now: ask for words")
    expect(lit.locator(".now")).to_have_text("ask for words")
    expect(lit.locator(".worked")).to_have_text(["search", "measure"])
    expect(lit).to_contain_text("round 1")
    assert faults(page) == []
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    assert page.get_by_role("heading", name="Before and after").count() == 0
    gate.set()
    status_is(page)
    expect(lit).to_have_count(0)
    expect(cards.nth(1)).to_contain_text("woman")
    before = page.get_by_role("table", name="Before: baseline ranking")
    expect(before.get_by_role("row")).to_have_count(11)
    rows = page.get_by_role("table", name="After: fair-qr").get_by_role("row")
    expect(rows).to_have_count(11)
    expect(rows.nth(1).get_by_role("cell").nth(1)).to_have_text(re.compile("female|male"))
    cost = page.get_by_role("region", name="Cost")
    expect(cost).to_contain_text(re.compile(r"Model calls\s*[1-9]"))
    made = page.get_by_role("region", name="Made with")
    expect(made).to_contain_text("openai:fake")
    expect(made).to_contain_text(re.compile(r"refine v4\s*[0-9a-f]{12}"))
    # First, in large, who lacked most: how it was and is seen, and its target.
    large = page.locator(".big").inner_text()
    ((was, became, target),) = re.findall(OPENING, large)
    assert int(was) <= int(became) <= int(target) + 5
    expect(page.locator(".paid")).to_contain_text("Refined by openai:fake.")
    expect(page.locator(".figures")).to_contain_text("; the list is then re-ranked by the original")


def test_it_is_said_that_a_model_with_a_server_is_sent_the_query(page: Page) -> None:
    hint = page.get_by_text("Queries are sent to the server of this model.")
    expect(page.locator("#model")).to_have_value("openai:fake")
    expect(hint).to_be_visible()
    page.locator("#model").select_option("feedback")
    expect(hint).to_be_hidden()


def sent(page: Page, act: Callable[[], None]) -> Any:
    """Return the body of the request that something leads to."""
    with page.expect_request(lambda request: request.method == "POST") as posted:
        act()
    return json.loads(posted.value.post_data or "")


def test_the_target_is_set_by_sliders_that_sum_to_one_hundred(page: Page) -> None:
    page.get_by_role("checkbox", name="gender").uncheck()
    page.get_by_role("checkbox", name="continent").check()
    page.get_by_role("radio", name="Own").check()
    sliders = page.get_by_role("slider")
    expect(sliders).to_have_count(3)
    for share in (70, 13, 100, 0, 41):
        sliders.nth(share % 3).fill(str(share))
        values = [int(sliders.nth(at).input_value()) for at in range(3)]
        assert sum(values) == 100
        assert values[share % 3] == share
    sliders.nth(0).fill("60")
    asked = sent(page, lambda: ask(page, "physicist"))["request"]
    assert asked["attributes"] == ["continent"]
    assert asked["target"]["shares"]["continent"]["Asia"] == 0.6
    status_is(page)
    expect(page.locator(".figures")).to_contain_text("60%")
    # Of one document, no group is below a target that is wholly its own.
    page.get_by_role("slider", name="Share of Europe").fill("100")
    ask(page, "physicist", "baseline", results=1)
    expect(page.locator(".big")).to_contain_text("no group is a point or more below its target.")


def test_two_runs_of_the_past_are_compared(page: Page) -> None:
    ask(page, "physicist man")
    status_is(page)
    # The model's words only found women, so that the baseline ranking was kept.
    expect(page.locator(".paid")).to_contain_text("openai:fake was asked in vain.")
    ask(page, "physicist man", "baseline")
    expect(page.get_by_role("table", name="After: baseline")).to_be_visible()
    page.get_by_role("link", name="Past runs").click()
    runs = page.locator(".runs li", has_text="physicist man")
    expect(runs).to_have_count(2)
    runs.nth(0).get_by_role("checkbox").check()
    runs.nth(1).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare two").click()
    settings = page.get_by_role("region", name="Settings")
    expect(settings.get_by_role("row", name=re.compile("method"))).to_contain_text("baseline")
    expect(settings.get_by_role("row", name=re.compile("method"))).to_contain_text("fair-qr")
    assert settings.get_by_role("row", name=re.compile("corpus")).count() == 0
    outcome = page.get_by_role("region", name="What came of it")
    expect(outcome.get_by_role("row", name=re.compile("divergence after"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("A: as asked .* B: as asked"))).to_be_visible()
    expect(page.get_by_role("table", name="B")).to_be_visible()
    slopes_join(page, "A", "B")
    # Each curve ends above "returned", also that of the run without rounds.
    labels, ends = page.evaluate(ENDS)
    assert labels[-1] == "returned"
    assert len(labels) > 2
    assert [None in end for end in ends] == [False, False]
    # The address alone leads here again, and its links to the runs.
    page.reload()
    settings.get_by_role("link").first.click()
    status_is(page)
    page.get_by_role("button", name="Change and run again").click()
    expect(page.get_by_role("searchbox", name="Query")).to_have_value("physicist man")


def test_an_answer_is_read_while_it_is_written_and_shows_its_sources_with_who_was_used(
    page: Page, model: ModelServer
) -> None:
    gate = threading.Event()
    written = stream(["A physicist. ", "She is a woman with a laboratory."], gate=gate)
    model.does(dataclasses.replace(written, gate_after=written.body.index(b"She is")))
    ask_question(page, "Which physicist?", samples=1)
    expect(page.locator(".writing")).to_have_text("A physicist. ")
    gate.set()
    status_is(page)
    answers = page.get_by_role("region", name="Answers")
    expect(answers).to_contain_text("A physicist. She is a woman with a laboratory.")
    sources = answers.locator(".sources").first.get_by_role("listitem")
    expect(sources).to_have_count(5)
    expect(sources.first).to_contain_text(re.compile("used|not judged"))
    exposures = page.get_by_role("region", name="Exposure of the documents")
    expect(exposures.get_by_role("row").nth(1)).to_contain_text("%")
    counts = page.get_by_role("region", name="Over all samples")
    expect(counts).to_contain_text(re.compile(r"Answered\s*1 of 1"))
    # First, in large, who was read and used too little.
    count = r"\((\d+) documents?\)"
    opening = rf"female \d+% of what was read {count}, (\d+% of what was used {count}, )?target"
    told = re.match(rf"{opening} \d+%\s+1 sample, 1", page.locator(".at-answer").inner_text())
    assert told
    # Beside it stands how many documents of the group had that exposure.
    of_women = page.get_by_role("region", name="Who was read").get_by_role("row", name="female")
    number = exposures.locator("tr:not(.never)", has_text="female").count()
    assert int(told[1]) == number
    expect(of_women.locator(".carried")).to_contain_text(re.compile(rf"^{number} documents? read"))


def test_all_is_done_by_the_keyboard(page: Page, service: str) -> None:
    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if focused["name"] is None:
                continue  # past the end of the page
            assert focused["outline"], f"the focus on {focused} is not seen"
            if focused["name"] == name:
                return
        raise AssertionError(f"the keyboard never came to {name}")

    # The cursor stands in the search box.
    page.keyboard.type("physicist keys")
    tab_to("Run")
    page.keyboard.press("Enter")
    status_is(page)
    # Who follows by ear is at the run's heading, after all that was asked.
    assert page.evaluate("document.activeElement.tagName") == "H1"
    page.reload()
    status_is(page)
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    tab_to("Skip to the results")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(f"{service}/#/")
    tab_to("Past runs")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Past runs")).to_be_visible()
    tab_to("physicist keys")
    page.keyboard.press("Enter")
    status_is(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("physicist keys")


def test_an_audit_is_begun_followed_and_read(page: Page, tmp_path: Path) -> None:
    page.get_by_role("link", name="Audits").click()
    expect(page.get_by_role("combobox", name="Source")).to_have_value("people")
    expect(page.locator("#audit-source-about")).to_contain_text("tantivy · 60 documents · gender")
    page.get_by_role("checkbox", name="continent").uncheck()
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    page.get_by_label("Or take them from a file").set_input_files(log)
    expect(page.get_by_text("3 queries")).to_be_visible()
    asked = sent(page, page.get_by_role("button", name="Audit", exact=True).click)
    assert asked["queries"][1] == {"query": "person, laboratory", "weight": 3}
    assert asked["attributes"] == ["gender"]

    status_is(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("physicist and 2 more")
    findings = page.get_by_role("region", name="Findings")
    expect(findings).to_contain_text("gender:")
    expect(findings.locator(".big")).to_have_css("margin-bottom", "8px")
    exposure = page.get_by_role("region", name="Exposure by gender")
    expect(exposure.get_by_role("row", name="female").first).to_contain_text("%")
    expect(page.locator(".ask")).to_be_hidden()
    # Its report stands in a frame that may do nothing, and all files can be had.
    frame = page.frame_locator("iframe.report")
    expect(frame.get_by_role("heading", level=1)).to_contain_text("Who gets seen")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download all files").click()
    saved.value.save_as(tmp_path / "audit.zip")
    with zipfile.ZipFile(tmp_path / "audit.zip") as archive:
        assert {Path(name).name for name in archive.namelist()} >= {"audit.json", "report.html"}
    assert faults(page) == []

    # What was asked can be changed, and the audit is among those of the past.
    page.get_by_role("button", name="Change and run again").click()
    expect(page.get_by_role("textbox", name="Queries")).to_have_value(re.compile('"physicist",12'))
    expect(page.get_by_role("checkbox", name="continent")).not_to_be_checked()
    page.get_by_role("link", name="physicist and 2 more").first.click()
    expect(findings).to_be_visible()


def test_a_probe_is_asked_for_by_its_form(page: Page) -> None:
    page.get_by_role("radio", name="Probe").check()
    expect(page.get_by_role("radio", name="Own")).to_be_hidden()
    page.get_by_role("combobox", name="Attribute").select_option("gender")
    page.get_by_role("combobox", name="Protected group").select_option("female")
    page.get_by_role("combobox", name="What the model is asked").select_option("pairwise")
    page.get_by_role("spinbutton", name="Pairs").fill("2")
    page.get_by_role("spinbutton", name="Results").fill("40")
    page.get_by_role("searchbox", name="Query").fill("physicist")
    asked = sent(page, page.get_by_role("button", name="Run", exact=True).click)["request"]
    chosen = {"attribute": "gender", "protected": "female", "kinds": ["pairwise"], "pairs": 2}
    assert asked.items() >= chosen.items()
    status_is(page)
    expect(page.get_by_role("region", name="Probe")).to_contain_text("Protected wins")
    page.get_by_role("button", name="Change and run again").click()
    expect(page.get_by_role("combobox", name="What the model is asked")).to_have_value("pairwise")


def test_a_run_is_copied_as_a_command_as_a_program_and_as_a_link(
    page: Page, pages: Pages, served: Served
) -> None:
    ask(page, 'physicist\'s "woman"', "greedy", results=7)
    status_is(page)

    def copied(way: str) -> str:
        page.get_by_role("button", name=f"Copy as {way}").click()
        expect(page.get_by_text(f"Copied as {way}.")).to_be_visible()
        text: str = page.evaluate("navigator.clipboard.readText()")
        return text

    def printed(*command: str) -> list[str]:
        done = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        return [it["id"] for it in json.loads(done.stdout)["ranking"]]

    ids = shown(page, "After: greedy")
    assert len(ids) == 7
    assert printed("sh", "-c", copied("curl")) == ids
    assert printed(sys.executable, "-c", copied("Python")) == ids

    link, before = copied("a link"), served.newest()["id"]
    other, _ = pages()
    other.goto(link)
    expect(other.get_by_role("alert")).to_contain_text("nothing was asked yet")
    assert served.newest()["id"] == before, "whoever made the link does not ask"
    other.get_by_role("button", name="Run", exact=True).click()
    status_is(other)
    assert served.newest()["id"] != before
    assert shown(other, "After: greedy") == ids


def test_the_weight_of_fairness_re_ranks_at_once_and_asks_no_model(
    page: Page, served: Served, model: ModelServer
) -> None:
    searches: list[dict[str, Any]] = []

    def add(request: Request) -> None:
        if request.url.endswith("/v1/search"):
            searches.append(json.loads(request.post_data or ""))

    page.on("request", add)
    ask(page, "physicist", "fairqr")
    status_is(page)
    drawing = page.get_by_role("img", name=re.compile("Relevance against fairness"))
    expect(drawing.locator("circle:not(.now)")).to_have_count(41)
    headline = page.locator(".headline")
    own = headline.text_content() or ""
    note = "Documents that only the model's queries found"
    expect(page.get_by_role("region", name="Weight of fairness")).not_to_contain_text(note)
    before = len(model.asked)
    slider = page.get_by_role("slider", name="Weight of fairness")
    page.clock.install(time=0)
    page.clock.pause_at(1)  # or a busy machine pauses between two moves
    with page.expect_response(lambda response: response.url.endswith("/v1/search")) as answered:
        for weight in ("3", "2", "1", "0"):  # only where it stays is asked for
            slider.fill(weight)
            page.clock.run_for(100)
        page.clock.resume()
    expect(page.get_by_text("Re-ranked without asking a model")).to_be_visible()
    asked = json.loads(answered.value.request.post_data or "")
    assert asked["fairness_weight"] == 0
    found = served.client.post("/v1/search", json=asked).json()
    assert shown(page, "After: fairqr") == [it["id"] for it in found["ranking"]]
    got = found["objective"]
    expect(page.get_by_role("region", name="Weight of fairness")).to_contain_text(
        f"Relevance {got['relevance']:.2f}, fairness {got['fairness']:.2f}."
    )
    slopes_join(page, "Before: baseline ranking", "After: fairqr")
    expect(headline).to_contain_text("No model was needed for this ranking.")
    of_front, of_slider = searches
    assert (len(of_front["front"]), of_slider["fairness_weight"]) == (41, 0)
    found = served.client.post("/v1/search", json=of_front).json()["front"]
    assert found[0]["relevance"] == pytest.approx(got["relevance"])
    assert found[0]["fairness"] == pytest.approx(got["fairness"])
    assert len(model.asked) == before
    page.get_by_role("button", name="Back to the run").click()
    expect(headline).to_have_text(own)


def test_the_first_results_are_fair_at_a_click(page: Page, served: Served) -> None:
    ask(page, "physicist", "fairqr")
    status_is(page)
    first = page.get_by_role("checkbox", name="Fair in the first 5 and 10, too")

    def asks_for_a_list(request: Request) -> bool:
        body = json.loads(request.post_data or "{}")
        return bool(body.get("spread")) and not body.get("front")

    with page.expect_request(asks_for_a_list) as sent_request:
        first.check()
    expect(page.get_by_text("Re-ranked without asking a model")).to_be_visible()
    asked = json.loads(sent_request.value.post_data or "")
    assert asked["spread"] == [5, 10]
    found = served.client.post("/v1/search", json=asked).json()
    assert found["objective"]["leaves_out"] == ["spread"]
    assert shown(page, "After: fairqr") == [it["id"] for it in found["ranking"]]
    page.get_by_role("button", name="Back to the run").click()
    expect(first).not_to_be_checked()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_it_fits_a_phone_in_the_dark_and_all_can_be_read(
    pages: Pages, service: str, scheme: str
) -> None:
    """And all that can be used has a name."""
    page, _ = pages(color_scheme=scheme, **PHONE)

    def fits() -> None:
        assert page.evaluate(WIDTH) <= 360
        assert faults(page) == []

    page.goto(service)
    expect(page.locator("#corpus option")).to_have_count(1)
    assert page.evaluate(WIDTH) <= 360
    open_settings(page)
    page.get_by_role("radio", name="Own").check()
    fits()
    ask(page, f"physicist {scheme}")
    status_is(page)
    fits()
    assert page.get_by_role("main").count() == page.get_by_role("heading", level=1).count() == 1
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) is (scheme == "dark")
    page.goto(f"{service}/#/runs")
    expect(page.locator(".runs li").first).to_be_visible()
    assert page.evaluate(WIDTH) <= 360

    page.goto(f"{service}/#/audits")
    ask_for_audit(page, "physicist\nworkshop\nlaboratory")
    status_is(page)
    page.evaluate("for (const it of document.querySelectorAll('details')) it.open = true")
    fits()
    page.goto(f"{service}/#/audits")
    expect(page.locator(".runs li").first).to_be_visible()
    expect(page.get_by_role("checkbox").first).to_be_visible()
    fits()


def test_what_cannot_be_asked_for_is_said_in_a_sentence(pages: Pages, service: str) -> None:
    page, _ = pages()
    page.goto(f"{service}/#/ask/search/%7B%22query%22%3A%22x%22%2C%22corpus%22%3A%22none%22%7D")
    expect(page.get_by_role("alert")).to_contain_text("no index 'none'")
    expect(page.get_by_role("heading", name="See who gets seen")).to_be_visible()
    ask(page, "qzxvw", "fairqr")
    status_is(page)
    expect(page.locator(".at-figures")).to_have_text("No document matches the query.")
    expect(page.locator(".run :is(table, .warning, .weight):visible")).to_have_count(0)
    page.goto(f"{service}/#/audits")
    ask_for_audit(page, "x" * 2001)
    expect(page.get_by_role("alert")).to_contain_text("allows at most 2,000")


@pytest.mark.parametrize("how", [{}, PHONE], ids=["laptop", "phone"])
def test_each_document_shows_its_groups_and_a_line_and_opens_in_a_drawer(
    pages: Pages, service: str, served: Served, how: dict[str, Any]
) -> None:
    page, watched = pages(**how)
    page.goto(service)
    open_settings(page)
    page.get_by_role("checkbox", name="continent").check()
    ask(page, "physicist", "baseline")
    status_is(page)
    rows = page.get_by_role("table", name="After: baseline").locator("tbody tr")
    expect(rows).to_have_count(10)
    marked = rows.evaluate_all(MARKED)
    ranking = served.client.get(f"/v1/runs/{page.url.rpartition('/')[2]}").json()["result"]
    assert marked == [
        [max(shares, key=shares.__getitem__) for shares in it["groups"].values()]
        for it in ranking["ranking"]
    ]
    names = page.locator(".bars tbody bdi")
    assert max(names.evaluate_all("all => all.map((it) => it.clientHeight)")) < 30
    expect(page.locator(".line:empty")).to_have_count(0)
    lines = rows.locator(".line").all_inner_texts()
    assert all("physicist" in line and len(line) <= 160 for line in lines)
    assert len([it for it in watched.requests if "/v1/documents?" in it]) == 1
    # Who gets seen stands first, then the numbers.
    came = page.get_by_role("region", name="What came of it").inner_text()
    assert came.index("Who gets seen") < came.index("KL from the target")

    title = rows.first.get_by_role("button")
    title.press("Enter")
    drawer = page.get_by_role("dialog", name=title.inner_text())
    expect(drawer).to_contain_text("physicist")
    expect(drawer.locator("dt", has_text="gender")).to_be_visible()
    assert page.evaluate(WIDTH) <= page.viewport_size["width"]  # type: ignore[index]
    assert faults(page) == []
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    expect(title).to_be_focused()
    # The line of the row with the focus stands out, also after the pointer left and rows grew.
    title.hover()
    page.mouse.move(0, 0)
    page.set_viewport_size({"width": 700, "height": 740})
    slopes_join(page, "Before: baseline ranking", "After: baseline")
    first = page.locator(".slopes .strong[data-document]")
    expect(first).to_have_attribute("data-document", ranking["ranking"][0]["id"])
    assert watched.failures == []
