"""The pictures of the docs are of the page as it is: each is taken again and held beside it.

``FAIRQR_PICTURES=1`` puts the new ones in the place of the old.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Page, Route

from tests.patience import until
from tests.servers.chromium import PHONE, Pages, ask, ask_question, status_is
from tests.servers.local_model import ENCODER, MODEL, linked
from tests.servers.page_service import running

DOCS = Path(__file__).parents[5] / "docs"
SAME = """() => {
  const edge = (name, side) => document.querySelector(name)?.getBoundingClientRect()[side];
  return [0, edge(".run-head", "bottom"), innerWidth, edge(".answers", "top") ?? innerHeight];
}"""
"""The part of a picture that is always the same: below the date, and above a model's words."""
EXACT = 32, 0.06
"""The width of a picture's blocks in pixels, and how much the mean brightness of one may differ.
Without the figures in large, bars or lists it is .14 and more.
"""
MILD = 64, 0.1
"""The same where shares depend on a model's words, which moves a block by up to .09."""


def search(page: Page) -> None:
    ask(page, "mathematician", "fairqr")


def answer(page: Page) -> None:
    """Ask with a seed, so that the same documents are read each time."""

    def seed(route: Route) -> None:
        run = route.request.post_data_json
        route.continue_(post_data={**run, "request": {**run["request"], "seed": 4}})

    page.route("**/v1/runs", seed)
    ask_question(page, "Which composer was born in Vienna?", samples=2)


def audit(page: Page) -> None:
    page.get_by_role("link", name="Audits").click()
    page.get_by_label("Target").select_option("The share of the population")
    queries = (DOCS / "queries.txt").read_text(encoding="utf-8")
    page.get_by_role("textbox", name="Queries").fill(queries)
    page.get_by_role("button", name="Audit", exact=True).click()


@pytest.fixture(scope="module")
def address(
    request: pytest.FixtureRequest,
    pulled_weights: Path,
    pulled_minilm: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A service with the embedded model, and with that which estimates relevance if asked for."""
    folder = tmp_path_factory.mktemp("pictures")
    linked(MODEL, pulled_weights, folder / "cache")
    if request.param == ENCODER:
        linked(ENCODER, pulled_minilm, folder / "cache")
    (folder / "fairqr.toml").touch()
    names = {"CONFIG": "fairqr.toml", "DATA_DIR": "data", "CACHE_DIR": "cache"}
    variables = {f"FAIRQR_{name}": str(folder / file) for name, file in names.items()}
    with running(variables) as process:
        yield process.address


@pytest.mark.parametrize(
    ("names", "asks", "how", "far", "address"),
    [
        (["page-search", "page-dark"], search, {}, EXACT, ENCODER),
        (["page-phone-dark"], search, PHONE, EXACT, ENCODER),
        (["page-answer"], answer, {}, MILD, MODEL),
        (["page-audit"], audit, {}, EXACT, MODEL),
    ],
    indirect=["address"],
)
def test_a_picture_shows_the_page_as_it_is(
    pages: Pages,
    address: str,
    names: list[str],
    asks: Callable[[Page], None],
    how: dict[str, object],
    far: tuple[int, float],
    tmp_path: Path,
) -> None:
    page, _ = pages(**how)
    page.goto(address)
    asks(page)
    status_is(page)

    def difference(path: Path) -> float:
        """Take the picture, since the page may still move."""
        page.evaluate("document.querySelector('.run-head').scrollIntoView()")
        taken = path if os.environ.get("FAIRQR_PICTURES") else tmp_path / path.name
        page.screenshot(path=taken)
        same = page.evaluate(SAME)
        both = (Image.open(it).convert("L") for it in (taken, path))
        new, old = (it.crop(same).reduce(far[0]) for it in both)
        return float(ImageChops.difference(new, old).getextrema()[1]) / 255

    for name in names:
        page.emulate_media(color_scheme="dark" if name.endswith("dark") else "light")
        until(lambda path=DOCS / f"{name}.png": difference(path) < far[1])
