"""The finished example on the empty start: a real Chromium, the real service, and its model."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.servers.chromium import PHONE, WIDTH, Pages, faults, shown, slopes_join, status_is
from tests.servers.service_client import Served, a_key, service_of_a_module

served = service_of_a_module("--require-keys", corpus="notables")
"""A service of the source that comes with fairqr."""


def opened(page: Page, served: Served, key: dict[str, str]) -> None:
    """Open the page, and give it a key."""
    page.goto(served.url)
    dialog = page.get_by_role("dialog", name="Access key")
    expect(dialog).to_be_visible()
    expect(page.locator("#example")).to_be_empty()
    dialog.get_by_role("textbox").fill(key["Authorization"].removeprefix("Bearer "))
    dialog.get_by_role("button", name="Use this key").click()
    expect(page.locator("#corpus option")).to_have_count(1)


def said_cost(result: dict[str, Any]) -> str:
    """What a page says of the relevance of a list without estimates."""
    before = result["baseline"]["expected_relevance"]
    return f"Cost: relevance by rank {before:.2f} → {result['expected_relevance']:.2f}."


def test_the_empty_start_shows_an_example_with_the_figures_of_the_api_until_one_asks(
    pages: Pages, served: Served
) -> None:
    page, _ = pages(color_scheme="dark", **PHONE)
    opened(page, served, served.key)
    example = page.get_by_role("region", name="An example: mathematician")
    expect(example.get_by_role("table", name="After: fairqr")).to_be_visible()
    asked = {"query": "mathematician", "corpus": "notables", "attributes": ["gender"], "k": 10}
    asked["ask"] = "never"
    found = served.client.post("/v1/search", json=asked, headers=served.key).json()
    assert found["ranking"] != found["baseline"]["ranking"]
    for table, result in ("After: fairqr", found), ("Before: baseline ranking", found["baseline"]):
        assert shown(page, table) == [it["id"] for it in result["ranking"]]
    parts = [found["baseline"]["exposure"], found["exposure"], found["target"]]
    wanted = [100 * it["gender"][group] for group in ("female", "male") for it in parts]
    rows = example.get_by_role("table", name="Exposure by gender").inner_text()
    percents = [float(it) for it in re.findall(r"([\d.]+)\s*%", rows)]
    assert percents == pytest.approx(wanted, abs=0.51)
    up = example.locator(".moved:is(.up, .new)").count()
    paid = f"{said_cost(found)} {up} document{'s' if up > 1 else ''} moved up."
    expect(example.locator(".paid")).to_have_text(f"{paid} No model was needed for this ranking.")
    expect(example).to_contain_text("not refined, since no model was to be asked for words.")
    # Lines join the rows also once each has a text, and in windows of other widths.
    expect(example.locator(".line:empty")).to_have_count(0)
    for width, height, seen in (800, 740, ".paid"), (1280, 650, ".paid"), (360, 740, ".big"):
        page.set_viewport_size({"width": width, "height": height})
        expect(example.locator(seen)).to_be_in_viewport(ratio=1)
        slopes_join(page, "Before: baseline ranking", "After: fairqr")
        assert page.evaluate(WIDTH) <= width
        assert faults(page) == []
    # It asks no model, and is not among the runs.
    assert served.model.asked == []
    assert served.client.get("/v1/runs", headers=served.key).json()["runs"] == []

    page.get_by_role("searchbox", name="Query").fill("mathematician laboratory")
    page.get_by_role("button", name="Run", exact=True).click()
    status_is(page)
    expect(page.locator("#example")).to_be_empty()
    expect(page.get_by_role("heading", level=1)).to_have_text("mathematician laboratory")
    expect(page.get_by_role("table", name="After: fairqr")).to_have_count(1)
    # Where the name of a group is long, its chips end with an ellipsis.
    long = "a very long name " * 6
    page.route("**/v1/search", lambda it: it.fulfill(body=it.fetch().text().replace("male", long)))
    page.go_back()
    expect(example.get_by_role("table", name="After: fairqr")).to_be_visible()
    name = example.locator(f".mark[title='gender: {long}'] bdi").first
    assert name.evaluate("(it) => 0 < it.clientHeight && it.clientHeight < it.scrollHeight")
    page.get_by_role("link", name="Audits").click()
    expect(page.get_by_text("There are no audits yet.")).to_be_visible()


def test_where_searching_is_refused_there_is_no_example_and_no_word_of_it(
    pages: Pages, served: Served
) -> None:
    _, reading = a_key(served.variables, "reads", "read")
    page, _ = pages()
    with page.expect_response(lambda response: response.url.endswith("/v1/search")) as refused:
        opened(page, served, reading)
    assert refused.value.status == 403
    assert json.loads(refused.value.request.post_data or "")["ask"] == "never"
    expect(page.get_by_role("heading", name="See who gets seen")).to_be_visible()
    expect(page.locator("#example")).to_be_empty()
    expect(page.get_by_role("alert")).to_have_count(0)
