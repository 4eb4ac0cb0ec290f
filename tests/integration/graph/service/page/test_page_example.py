"""The finished example on the empty start: a real Chromium, the real service, and its model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.integration.chromium import PHONE, WIDTH, Pages, faults, status_is
from tests.integration.model_server import ModelServer
from tests.integration.page_service import Process, running, settings_for
from tests.integration.service_client import a_key, answers_all


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    model = ModelServer()
    model.does(answers_all)
    yield model
    model.close()


@pytest.fixture(scope="module")
def variables(model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return settings_for(model, tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def key(variables: dict[str, str]) -> dict[str, str]:
    """The header of a key that may search."""
    return a_key(variables, "runs", "run")[1]


@pytest.fixture(scope="module")
def process(variables: dict[str, str], key: dict[str, str]) -> Iterator[Process]:
    """A service of the source that comes with fairqr."""
    with running(variables, "--corpus", "notables", "--require-keys") as process:
        yield process


def opened(page: Page, process: Process, key: dict[str, str]) -> None:
    """Open the page, and give it a key."""
    page.goto(process.address)
    dialog = page.get_by_role("dialog", name="Access key")
    expect(dialog).to_be_visible()
    expect(page.locator("#example")).to_be_empty()
    dialog.get_by_role("textbox").fill(key["Authorization"].removeprefix("Bearer "))
    dialog.get_by_role("button", name="Use this key").click()
    expect(page.locator("#corpus option")).to_have_count(1)


def ids(page: Page, table: str) -> Any:
    """The documents of a ranking in their order."""
    lines = page.get_by_role("table", name=table).locator("[data-line]")
    return lines.evaluate_all("all => all.map((it) => it.dataset.line)")


def test_the_empty_start_shows_an_example_with_the_figures_of_the_api_until_one_asks(
    pages: Pages, process: Process, key: dict[str, str], model: ModelServer
) -> None:
    page, watched = pages()
    opened(page, process, key)
    example = page.get_by_role("region", name="An example: mathematician")
    expect(example.get_by_role("table", name="After: fairqr")).to_be_visible()
    asked = {
        "query": "mathematician",
        "corpus": "notables",
        "attributes": ["gender"],
        "k": 10,
        "ask": "never",
    }
    found = process.client.post("/v1/search", json=asked, headers=key).json()
    assert found["ranking"] != found["baseline"]["ranking"]
    assert ids(page, "After: fairqr") == [it["id"] for it in found["ranking"]]
    assert ids(page, "Before: plain retrieval") == [it["id"] for it in found["baseline"]["ranking"]]
    shown = [found["baseline"]["exposure"], found["exposure"], found["target"]]
    for group in ("female", "male"):
        row = example.get_by_role("table", name="Exposure by gender").get_by_role(
            "row", name=re.compile(rf"^{group}")
        )
        percents = re.findall(r"([\d.]+)\s*%", row.inner_text())
        assert [float(it) for it in percents] == pytest.approx(
            [100 * shares["gender"][group] for shares in shown], abs=0.51
        )
    # It asks no model, and is not among the runs.
    assert model.asked == []
    assert process.client.get("/v1/runs", headers=key).json()["runs"] == []

    page.get_by_role("searchbox", name="Query").fill("mathematician laboratory")
    page.get_by_role("button", name="Run", exact=True).click()
    status_is(page)
    expect(page.locator("#example")).to_be_empty()
    expect(page.get_by_role("heading", level=1)).to_have_text("mathematician laboratory")
    expect(page.get_by_role("table", name="After: fairqr")).to_have_count(1)
    page.go_back()
    expect(example.get_by_role("table", name="After: fairqr")).to_be_visible()
    assert [it for it in watched.complaints if "401" not in it] == []
    assert page.evaluate("window.violations") == []


def test_where_searching_is_refused_there_is_no_example_and_no_word_of_it(
    pages: Pages, process: Process, variables: dict[str, str]
) -> None:
    _, reading = a_key(variables, "reads", "read")
    page, _ = pages()
    with page.expect_response(lambda response: response.url.endswith("/v1/search")) as refused:
        opened(page, process, reading)
    assert refused.value.status == 403
    assert json.loads(refused.value.request.post_data or "")["ask"] == "never"
    expect(page.get_by_role("heading", name="See who gets seen")).to_be_visible()
    expect(page.locator("#example")).to_be_empty()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_the_example_fits_a_phone_in_both_schemes(
    pages: Pages, process: Process, key: dict[str, str]
) -> None:
    for scheme in ("dark", "light"):
        page, _ = pages(color_scheme=scheme, **PHONE)
        opened(page, process, key)
        expect(page.get_by_role("table", name="After: fairqr")).to_be_visible()
        assert page.evaluate(WIDTH) <= 360
        assert faults(page) == []
