"""The pictures of the docs are of the page as it is: each is taken again and held beside it.

``FAIRQR_PICTURES=1`` puts the new ones in the place of the old.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from tests.integration.chromium import PHONE, Pages, ask, ask_question, status_is
from tests.integration.local_model import ENCODER, MODEL, linked
from tests.integration.page_service import running
from tests.patience import until

DOCS = Path(__file__).parents[5] / "docs"
FAR = 0.045
"""The mean difference of two pictures, of all that there could be, from which they show different
things. Pages of different kinds are .05 to .07 apart; other words of a model, times and dates less.
"""


def search(page: Page) -> None:
    ask(page, "mathematician", "fairqr")


def answer(page: Page) -> None:
    ask_question(page, "Who worked on prime numbers?", samples=2)


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
    ("names", "asks", "how", "address"),
    [
        (["page-search", "page-dark"], search, {}, ENCODER),
        (["page-phone-dark"], search, PHONE, ENCODER),
        (["page-answer"], answer, {}, MODEL),
        (["page-audit"], audit, {}, MODEL),
    ],
    indirect=["address"],
)
def test_a_picture_shows_the_page_as_it_is(
    pages: Pages,
    address: str,
    names: list[str],
    asks: Callable[[Page], None],
    how: dict[str, object],
) -> None:
    page, _ = pages(**how)
    page.goto(address)
    asks(page)
    status_is(page)

    def difference(path: Path) -> float:
        """Take the picture, since the page may still move."""
        page.evaluate("document.querySelector('.run-head').scrollIntoView()")
        taken = page.screenshot()
        if os.environ.get("FAIRQR_PICTURES"):
            path.write_bytes(taken)
        new, old = (Image.open(it).convert("L") for it in (io.BytesIO(taken), path))
        assert new.size == old.size
        one, other = (np.asarray(it.resize((64, 128)), dtype=float) / 255 for it in (new, old))
        return float(np.abs(one - other).mean())

    for name in names:
        page.emulate_media(color_scheme="dark" if name.endswith("dark") else "light")
        until(lambda path=DOCS / f"{name}.png": difference(path) < FAR)
