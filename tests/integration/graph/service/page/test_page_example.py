"""The finished example on the empty start: a real Chromium, the real service, and its model."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.servers.chromium import PHONE, WIDTH, Pages, faults, shown, slopes_join, status_is
from tests.servers.service_client import Served, a_key, service_of_a_module

served = service_of_a_module("--require-keys", corpus="notables")
"""A service of the source that comes with fairqr."""


def open_with_key(page: Page, served: Served, key: dict[str, str]) -> None:
    """Open the page, and give it a key."""
    page.goto(served.url)
    dialog = page.get_by_role("dialog", name="Access key")
    expect(dialog).to_be_visible()
    expect(page.locator("#example")).to_be_empty()
    dialog.get_by_role("textbox").fill(key["Authorization"].removeprefix("Bearer "))
    dialog.get_by_role("button", name="Use this key").click()
    expect(page.locator("#corpus option")).to_have_count(1)


def cost_sentence(result: dict[str, Any]) -> str:
    """Return what a page says of the relevance of a list without estimates."""
    before = result["baseline"]["expected_relevance"]
    return f"Cost: relevance by rank {before:.2f} → {result['expected_relevance']:.2f}."


def search_of_example(served: Served) -> dict[str, Any]:
    """Search by the API as the example does."""
    request = {
        "query": "mathematician",
        "corpus": "notables",
        "attributes": ["gender"],
        "k": 10,
        "ask": "never",
    }
    result: dict[str, Any] = served.client.post(
        "/v1/search", json=request, headers=served.key
    ).json()
    return result


def ids_of(result: dict[str, Any]) -> list[str]:
    return [document["id"] for document in result["ranking"]]


@pytest.fixture
def page(pages: Pages, served: Served) -> Page:
    """The empty start on a phone in the dark, with its example."""
    page, _ = pages(color_scheme="dark", **PHONE)
    open_with_key(page, served, served.key)
    expect(example_on(page).get_by_role("table", name="After: fairqr")).to_be_visible()
    return page


def example_on(page: Page) -> Locator:
    return page.get_by_role("region", name="An example: mathematician")


def test_the_empty_start_shows_an_example(page: Page, served: Served) -> None:
    """Its lists and figures are those of the API."""
    example = example_on(page)
    result = search_of_example(served)
    baseline = result["baseline"]
    assert result["ranking"] != baseline["ranking"]
    assert shown(page, "After: fairqr") == ids_of(result)
    assert shown(page, "Before: baseline ranking") == ids_of(baseline)

    expected = []
    for group in ("female", "male"):
        for shares in (baseline["exposure"], result["exposure"], result["target"]):
            expected.append(100 * shares["gender"][group])
    rows = example.get_by_role("table", name="Exposure by gender").inner_text()
    percents = [float(number) for number in re.findall(r"([\d.]+)\s*%", rows)]
    assert percents == pytest.approx(expected, abs=0.51)

    up = example.locator(".moved:is(.up, .new)").count()
    documents = "1 document" if up == 1 else f"{up} documents"
    paid = f"{cost_sentence(result)} {documents} moved up."
    expect(example.locator(".paid")).to_have_text(f"{paid} No model was needed for this ranking.")
    expect(example).to_contain_text("not refined, since no model was to be asked for words.")


def test_the_example_fits_windows_of_all_widths(page: Page) -> None:
    """Lines join its rows also once each has a text."""
    example = example_on(page)
    expect(example.locator(".line:empty")).to_have_count(0)
    windows = [(800, 740, ".paid"), (1280, 650, ".paid"), (360, 740, ".big")]
    for width, height, part in windows:
        page.set_viewport_size({"width": width, "height": height})
        expect(example.locator(part)).to_be_in_viewport(ratio=1)
        slopes_join(page, "Before: baseline ranking", "After: fairqr")
        assert page.evaluate(WIDTH) <= width
        assert faults(page) == []


def test_the_example_goes_once_one_asks(page: Page, served: Served) -> None:
    """It asked no model, and is not among the runs."""
    assert served.model.asked == []
    assert served.client.get("/v1/runs", headers=served.key).json()["runs"] == []

    page.get_by_role("searchbox", name="Query").fill("mathematician laboratory")
    page.get_by_role("button", name="Run", exact=True).click()
    status_is(page)
    expect(page.locator("#example")).to_be_empty()
    expect(page.get_by_role("heading", level=1)).to_have_text("mathematician laboratory")
    expect(page.get_by_role("table", name="After: fairqr")).to_have_count(1)

    page.go_back()
    expect(example_on(page).get_by_role("table", name="After: fairqr")).to_be_visible()
    page.get_by_role("link", name="Audits").click()
    expect(page.get_by_text("There are no audits yet.")).to_be_visible()


def test_long_names_of_groups_end_with_an_ellipsis(pages: Pages, served: Served) -> None:
    long = "a very long name " * 6

    def lengthen(route: Route) -> None:
        route.fulfill(body=route.fetch().text().replace("male", long))

    page, _ = pages(color_scheme="dark", **PHONE)
    page.route("**/v1/search", lengthen)
    open_with_key(page, served, served.key)
    example = example_on(page)
    expect(example.get_by_role("table", name="After: fairqr")).to_be_visible()
    name = example.locator(f".mark[title='gender: {long}'] bdi").first
    assert name.evaluate("(it) => 0 < it.clientHeight && it.clientHeight < it.scrollHeight")


def test_where_searching_is_refused_there_is_no_example(pages: Pages, served: Served) -> None:
    _, reading = a_key(served.variables, "reads", "read")
    page, _ = pages()
    with page.expect_response(lambda response: response.url.endswith("/v1/search")) as refused:
        open_with_key(page, served, reading)
    assert refused.value.status == 403
    assert json.loads(refused.value.request.post_data or "")["ask"] == "never"
    expect(page.get_by_role("heading", name="See who gets seen")).to_be_visible()
    expect(page.locator("#example")).to_be_empty()
    expect(page.get_by_role("alert")).to_have_count(0)
