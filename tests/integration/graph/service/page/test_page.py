"""The page in a real Chromium, against the real ``fairqr serve``: what people do with it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.integration.chromium import (
    FAINT,
    FOCUSED,
    PHONE,
    REPEATED,
    WIDTH,
    Pages,
    ask,
    ask_question,
    names_by_role,
    status_is,
)
from tests.integration.model_server import Answer, Asked, ModelServer, says, stream
from tests.integration.service_client import Served, a_service

ENDS = """() => {
  const { labels, datasets } = Chart.getChart(document.querySelector("#compare-page canvas")).data;
  return [labels, datasets.map(({ data }) => [data[0], data[labels.length - 1] ?? null])];
}"""
"""The labels of the comparison's curves, and where each begins and ends."""

WORDS = (["woman", "laboratory"], ["she", "born"], ["Tokyo", "Asia"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with a_service(tmp_path_factory.mktemp("page")) as found:
        yield found


@pytest.fixture
def service(served: Served) -> str:
    return served.url.rstrip("/")


@pytest.fixture
def model(served: Served) -> ModelServer:
    """What plays the language model; it has new words each time."""
    served.model.does(words_by_round())
    return served.model


def words_by_round() -> Callable[[Asked], Answer]:
    """A model that has new words each time."""
    number = itertools.count()

    def reply(asked: Asked) -> Answer:
        return says({"topic": [], "keywords": WORDS[next(number) % len(WORDS)]})

    return reply


def test_a_run_is_shown_round_by_round_while_it_goes_on_and_then_before_and_after(
    pages: Pages, service: str, model: ModelServer
) -> None:
    gate = threading.Event()
    model.does(says({"topic": [], "keywords": ["woman", "laboratory"]}, gate=gate))
    page, watched = pages()
    page.goto(service)
    ask(page, "physicist")
    cards = page.locator(".rounds > li")
    # The model has not answered yet: the plain retrieval stands there, and the next round waits.
    expect(cards).to_have_count(2)
    expect(cards.nth(0)).to_contain_text("Plain retrieval")
    headings = cards.nth(0).get_by_role("columnheader")
    expect(headings).to_have_text(["gender", "exposure", "target"])
    expect(cards.nth(0).get_by_role("row", name="female")).to_contain_text("%")
    expect(cards.nth(1)).to_contain_text("Asking for words")
    expect(page.get_by_role("status").first).to_contain_text("Asking for words")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    assert page.get_by_role("heading", name="Before and after").count() == 0
    gate.set()
    status_is(page)
    expect(cards.nth(1)).to_contain_text("woman")
    before = page.get_by_role("table", name="Before: plain retrieval")
    expect(before.get_by_role("row")).to_have_count(11)
    rows = page.get_by_role("table", name="After: fair-qr").get_by_role("row")
    expect(rows).to_have_count(11)
    expect(rows.nth(1).get_by_role("cell").nth(1)).to_have_text(re.compile("female|male"))
    cost = page.get_by_role("region", name="Cost")
    expect(cost).to_contain_text(re.compile(r"Model calls\s*[1-9]"))
    made = page.get_by_role("region", name="Made with")
    expect(made).to_contain_text("openai:fake")
    expect(made).to_contain_text(re.compile(r"refine v4\s*[0-9a-f]{12}"))
    was, became = page.locator(".big .was"), page.locator(".big b")
    assert float(became.inner_text().lstrip("<")) <= float(was.inner_text())
    # The curve has the same figures as a table.
    page.get_by_text("As a table").click()
    returned = page.get_by_role("row", name=re.compile("returned"))
    expect(returned).to_contain_text(became.inner_text())
    assert watched.hosts == {service.removeprefix("http://")}
    assert watched.failures == []
    assert watched.complaints == []
    assert page.evaluate("window.violations") == []


def test_the_target_is_set_by_sliders_that_sum_to_one_hundred(
    pages: Pages, service: str, model: ModelServer
) -> None:
    page, _ = pages()
    page.goto(service)
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
    with page.expect_request(lambda request: request.method == "POST") as posted:
        ask(page, "physicist")
    asked = json.loads(posted.value.post_data or "")["request"]
    assert asked["attributes"] == ["continent"]
    assert asked["target"]["shares"]["continent"]["Asia"] == 0.6
    status_is(page)
    expect(page.locator(".figures")).to_contain_text("60%")


def test_two_runs_of_the_past_are_compared(pages: Pages, service: str, model: ModelServer) -> None:
    page, _ = pages()
    page.goto(service)
    ask(page, "physicist man")
    status_is(page)
    ask(page, "physicist man", "plain")
    expect(page.get_by_role("table", name="After: plain")).to_be_visible()
    page.get_by_role("link", name="Past runs").click()
    runs = page.locator(".runs li", has_text="physicist man")
    expect(runs).to_have_count(2)
    runs.nth(0).get_by_role("checkbox").check()
    runs.nth(1).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare two").click()
    settings = page.get_by_role("region", name="Settings")
    expect(settings.get_by_role("row", name=re.compile("method"))).to_contain_text("plain")
    expect(settings.get_by_role("row", name=re.compile("method"))).to_contain_text("fair-qr")
    assert settings.get_by_role("row", name=re.compile("corpus")).count() == 0
    outcome = page.get_by_role("region", name="What came of it")
    expect(outcome.get_by_role("row", name=re.compile("divergence after"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("A: as asked .* B: as asked"))).to_be_visible()
    expect(page.get_by_role("table", name="B")).to_be_visible()
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
    pages: Pages, service: str, model: ModelServer
) -> None:
    gate = threading.Event()
    written = stream(["A physicist. ", "She is a woman with a laboratory."], gate=gate)
    model.does(dataclasses.replace(written, gate_after=written.body.index(b"She is")))
    page, watched = pages()
    page.goto(service)
    ask_question(page, "Which physicist?", samples=1)
    expect(page.locator(".writing")).to_have_text("A physicist. ")
    gate.set()
    status_is(page)
    answers = page.get_by_role("region", name="Answers")
    expect(answers).to_contain_text("A physicist. She is a woman with a laboratory.")
    sources = answers.locator(".sources").first.get_by_role("listitem")
    expect(sources).to_have_count(5)
    expect(sources.first).to_contain_text(re.compile("used|not judged"))
    chances = page.get_by_role("region", name="Chances of the documents")
    expect(chances.get_by_role("row").nth(1)).to_contain_text("%")
    groups = page.get_by_role("region", name="Groups over the samples")
    expect(groups.get_by_role("row", name="female")).to_contain_text("%")
    expect(groups).to_contain_text(re.compile(r"Answered\s*1 of 1"))
    assert watched.complaints == []


def test_all_is_done_by_the_keyboard(pages: Pages, service: str, model: ModelServer) -> None:
    page, _ = pages()
    page.goto(service)
    expect(page.locator("#corpus option")).to_have_count(1)

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


def test_it_fits_a_phone_in_the_dark_and_all_can_be_read(
    pages: Pages, service: str, model: ModelServer
) -> None:
    for scheme in ("dark", "light"):
        page, _ = pages(color_scheme=scheme, **PHONE)
        page.goto(service)
        expect(page.locator("#corpus option")).to_have_count(1)
        assert page.evaluate(WIDTH) <= 360
        page.get_by_text("Settings").click()
        page.get_by_role("radio", name="Own").check()
        assert page.evaluate(WIDTH) <= 360
        assert page.evaluate(FAINT) == []
        ask(page, f"physicist {scheme}")
        status_is(page)
        assert page.evaluate(WIDTH) <= 360
        assert page.evaluate(FAINT) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 200) is (scheme == "dark")
        page.goto(f"{service}/#/runs")
        expect(page.locator(".runs li").first).to_be_visible()
        assert page.evaluate(WIDTH) <= 360


def test_all_that_can_be_used_has_a_name(pages: Pages, service: str, model: ModelServer) -> None:
    page, _ = pages()
    page.goto(service)
    page.get_by_role("radio", name="Own").check()
    ask(page, "physicist names")
    status_is(page)
    expect(page.get_by_role("table").first).to_be_visible()
    found = names_by_role(page)
    used = {"button", "checkbox", "combobox", "link", "radio", "searchbox", "slider", "table"}
    assert used <= set(found)
    assert [role for role, names in found.items() if not all(names)] == []
    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.evaluate(REPEATED) == []
