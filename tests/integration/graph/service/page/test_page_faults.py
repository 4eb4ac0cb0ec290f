"""The page in a real Chromium when things go wrong: models, wires, texts and keys."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.patience import until
from tests.servers.chromium import Pages, Watched, ask, ask_for_audit, ask_question, status_is
from tests.servers.model_server import failure, says
from tests.servers.page_service import Wire
from tests.servers.service_client import Served, service_of_a_module

MARKUP = "<script>window.owned = 1; alert(1)</script><img src=x onerror='window.owned = 1'>"
TITLES = (
    MARKUP,
    "</title></td></table><svg onload=alert(3)><style>*{display:none}</style>",
    "\u202egnp.exe\u202d \u2067left\u2066 <a href='javascript:alert(4)'>link</a>",
    "long " + "W" * 10_000,
)


def hostile(document: dict[str, Any]) -> dict[str, Any]:
    title = TITLES[int(document["id"][1:]) % len(TITLES)]
    return {**document, "title": title, "text": f"{document['text']} {MARKUP}"}


served = service_of_a_module("--require-keys", change=hostile)
"""A service whose documents are hostile, and that wants a key."""


@pytest.fixture
def service(served: Served) -> str:
    return served.url.rstrip("/")


@pytest.fixture
def key(served: Served) -> str:
    return served.key["Authorization"].removeprefix("Bearer ")


@pytest.fixture
def opened(pages: Pages, key: str) -> tuple[Page, Watched]:
    """A page whose tab has been given the key."""
    page, watched = pages()
    page.add_init_script(f"sessionStorage.setItem('fairqr-key', {json.dumps(key)})")
    return page, watched


def test_a_model_that_fails_is_told_of_and_the_baseline_ranking_stays(
    opened: tuple[Page, Watched], service: str, served: Served
) -> None:
    served.model.does(failure(401, "Incorrect API key provided."))
    page, _ = opened
    page.goto(service)
    ask(page, "physicist failing")
    status_is(page, "done")
    warning = page.get_by_role("region", name="Warnings")
    expect(warning).to_be_visible()
    expect(page.locator(".rounds")).to_contain_text("no words: denied")
    expect(page.locator(".figures")).to_contain_text("the model failed")
    expect(page.locator(".paid")).to_contain_text("openai:fake did not answer; a warning says why.")
    before = page.get_by_role("table", name="Before: baseline ranking")
    expect(before.get_by_role("row")).to_have_count(11)
    # Without its model there is no answer, and the page says why.
    ask_question(page, "Which physicist?")
    status_is(page, "failed")
    problem = page.locator(".run .problem[role=alert]")
    # Many samples fail for one reason, which is told once.
    expect(problem).to_have_count(1)
    expect(problem).to_contain_text("Type: model")
    # A run that comes to nothing has a problem of a type, and a sentence that says what to do.
    ask_question(page, "zzz")
    status_is(page, "failed")
    expect(problem).to_contain_text("try other words")
    expect(problem).to_contain_text("Type: query")
    # What cannot be asked for at all is said beside the form.
    page.get_by_role("spinbutton", name="Documents to sample from").fill("10000")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#form-problem")).to_contain_text("k")


def test_a_lost_connection_is_told_of_and_the_run_goes_on_where_it_was(
    opened: tuple[Page, Watched], service: str, served: Served, request: pytest.FixtureRequest
) -> None:
    gate = threading.Event()
    served.model.does(says({"topic": [], "keywords": ["woman", "laboratory"]}, gate=gate))
    wire = Wire(service)
    request.addfinalizer(wire.close)
    page, _ = opened
    page.goto(wire.address)
    ask(page, "physicist lost")
    cards = page.locator(".rounds > li")
    expect(cards).to_have_count(2)
    wire.cut()
    expect(page.get_by_text("The connection was lost.")).to_be_visible()
    served.model.wait_for(1)
    gate.set()
    wire.repair()
    expect(page.get_by_text("Connected again")).to_be_visible()
    status_is(page, "done")
    expect(cards.nth(1)).to_contain_text("woman")
    numbers = cards.evaluate_all("all => all.map((it) => Number(it.dataset.round))")
    assert numbers == sorted(set(numbers))
    # What had been told was not told again, and nothing was left out.
    told = [int(number) for number in re.findall(rb"(?m)^id: (\d+)$", bytes(wire.received))]
    assert told == list(range(1, len(told) + 1))
    assert re.search(rb"(?i)last-event-id: [1-9]", bytes(wire.sent))


def test_hostile_documents_and_replies_are_shown_as_text_and_nothing_of_them_runs(
    opened: tuple[Page, Watched], service: str, served: Served
) -> None:
    served.model.does(
        says({"reason": f"since {MARKUP}", "topic": [], "keywords": [MARKUP, "woman"], "drop": []})
    )
    page, watched = opened
    page.goto(service)
    expect(page.locator("#corpus option")).to_have_count(1)
    page.get_by_role("combobox", name="Prompt").select_option("v3")
    query = "physicist <i>\"'&amp;</i>"
    ask(page, query, results=40)
    status_is(page, "done")
    # Of a model's words the tags are defused before they come here; the rest is text all the same.
    expect(page.locator(".rounds blockquote").first).to_contain_text("script›window.owned = 1")
    expect(page.get_by_role("heading", level=1)).to_have_text(query)
    ranking = page.get_by_role("table", name="Before: baseline ranking")
    for title in TITLES[:3]:
        expect(ranking.get_by_text(title, exact=True).first).to_be_visible()
    expect(ranking.get_by_text(re.compile("^long W+…$")).first).to_be_visible()
    # A text that turns its direction turns nothing beside it.
    assert ranking.get_by_text(TITLES[2], exact=True).first.evaluate("it => it.tagName") == "BDI"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.goto(f"{service}/#/runs")
    expect(page.locator(".runs li").first).to_contain_text(query)

    served.model.does(says(f"It was {MARKUP} https://elsewhere.example/x.png"))
    page.goto(f"{service}/#/")
    page.get_by_role("radio", name="Answer").check()
    page.get_by_role("combobox", name="Who judges").select_option("nobody")
    ask_question(page, "Which physicist?")
    status_is(page, "done")
    expect(page.locator(".at-answer .headline")).to_contain_text("Nobody judged")
    expect(page.locator("blockquote.answer").first).to_contain_text(MARKUP)

    assert page.evaluate("window.owned") is None
    assert page.locator("#run :is(img, script, style, iframe, a, form)").count() == 0
    assert watched.failures == []


def test_a_policy_that_is_broken_would_be_seen(opened: tuple[Page, Watched], service: str) -> None:
    """The proof that the test above can fail: what breaks the policy is stopped, and is told of."""
    page, watched = opened
    page.goto(service)
    images = "<img src=x onerror='window.owned = 1'><img src=http://localhost:9/>"
    page.evaluate("(images) => { document.body.innerHTML += images }", images)
    until(lambda: page.evaluate("window.violations.length") >= 2)
    assert page.evaluate("window.owned") is None
    assert len(watched.complaints) >= 2
    page.evaluate("window.violations = []")
    for seen in (watched.complaints, watched.requests):
        seen.clear()


def test_the_key_is_asked_for_and_kept_out_of_the_address(
    pages: Pages, service: str, served: Served, key: str
) -> None:
    served.model.does(says({"topic": [], "keywords": ["woman"]}))
    page, _ = pages()
    page.goto(service)
    dialog = page.get_by_role("dialog", name="Access key")
    expect(dialog).to_be_visible()
    page.get_by_label("Key", exact=True).fill("fqr_000000000000_wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("Give another key.")
    page.get_by_label("Key", exact=True).fill(key)
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    ask(page, "physicist key")
    status_is(page, "done")
    assert key not in page.url
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    # Another tab has no key of its own.
    other = page.context.new_page()
    other.goto(service)
    expect(other.get_by_role("dialog", name="Access key")).to_be_visible()


def test_a_run_is_cancelled_and_one_that_is_not_there_is_said(
    opened: tuple[Page, Watched], service: str, served: Served, request: pytest.FixtureRequest
) -> None:
    gate = threading.Event()
    request.addfinalizer(gate.set)
    served.model.does(says({"topic": [], "keywords": ["woman"]}, gate=gate))
    page, _ = opened
    page.goto(service)
    ask(page, "physicist cancelled")
    # The baseline ranking is there and the model is being waited for.
    expect(page.locator("[data-round='0']")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    status_is(page, "cancelled")
    expect(page.locator("[data-round='0']")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    page.goto(f"{service}/#/run/{'0' * 32}")
    expect(page.locator(".run .problem[role=alert]")).to_contain_text("Type: run-not-found")
    page.goto(f"{service}/#/runs")
    run = page.locator(".runs li", has_text="physicist cancelled")
    run.get_by_role("button").click()
    run.get_by_role("button", name="Really remove").click()
    expect(run).to_have_count(0)
    page.reload()
    expect(page.locator(".runs li, .hint[role=status]:not(:empty)").first).to_be_visible()
    expect(run).to_have_count(0)


def test_with_a_key_the_report_is_downloaded(
    pages: Pages, service: str, key: str, tmp_path: Path
) -> None:
    page, watched = pages(accept_downloads=True)
    page.goto(f"{service}/#/audits")
    page.get_by_role("textbox", name="Key").fill(key)
    page.get_by_role("button", name="Use this key").click()
    ask_for_audit(page, "physicist\nworkshop")
    status_is(page)
    for name in ("Download the report", "Download all files"):
        with page.expect_download() as saved:
            page.get_by_role("button", name=name).click()
        saved.value.save_as(tmp_path / saved.value.suggested_filename)
    (report,) = tmp_path.glob("*.html")
    assert "Who gets seen" in report.read_text()
    assert page.locator("iframe").count() == 0
    assert not any(key in address for address in watched.requests)
