"""The page tells of groups that nobody lists: a real Chromium and the real service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from tests.servers.chromium import (
    PHONE,
    WIDTH,
    Pages,
    ask_for_audit,
    browser,
    faults,
    pages,
    status_is,
)
from tests.servers.model_server import ModelServer
from tests.servers.page_service import run_command, served, settings_for
from tests.unit.graph.corpora import write_corpus

__all__ = ["browser", "pages"]

SHOPS = 30
THINGS = ("lamp", "chair", "table", "shelf", "mirror", "carpet")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service with offers of thirty shops, in another order for each thing."""
    folder = tmp_path_factory.mktemp("shops")
    offers = folder / "offers"
    offers.mkdir()
    documents = [
        {"id": f"{thing}{shop}", "title": f"{thing} {shop}", "shop": f"shop {shop}"}
        | {"text": f"{thing} " * (SHOPS - rank) + "of wood " * rank}
        for number, thing in enumerate(THINGS)
        for shop in range(SHOPS)
        for rank in [(shop + number * number) % SHOPS]
    ]
    schema = "attributes: {shop: {field: shop, groups: any}}"
    model = ModelServer()
    variables = settings_for(model, folder)
    run_command(variables, "index", "create", "people", write_corpus(offers, documents, schema))
    with served(variables, "--corpus", "people") as address:
        yield address
    model.close()


def test_an_audit_shows_how_exposure_follows_the_target_over_all_groups(
    pages: Pages, service: str
) -> None:
    """The curve and its figures are those of audit.json, as the report has them."""
    page, _ = pages(color_scheme="dark", **PHONE)
    page.goto(f"{service}/#/audits")
    page.get_by_label("Target: the exposure").select_option("uniform:1")
    ask_for_audit(page, "\n".join(THINGS))
    status_is(page)
    with urlopen(f"{service}/v1/runs/{page.url.rpartition('/')[2]}") as response:
        (found,) = json.load(response)["result"]["figures"]["concentration"]
    card = page.get_by_role("region", name="All groups of shop")
    expect(card.get_by_role("heading")).to_have_text(f"All {found['groups']} groups")
    gini = found["gini"]
    low, high = gini["interval"]
    expect(card).to_contain_text(f"Gini index{gini['value']:.2f} ({low:.2f} to {high:.2f})")
    expect(card).to_contain_text(f"Of lists drawn by lot{found['gini_by_lot']:.2f}")
    lacking = f"{found['unseen']}, of which {found['unseen_with_target']} should get some"
    expect(card).to_contain_text(f"without exposure{lacking if found['unseen'] else 'none'}")
    curve = card.get_by_role("img", name="Lorenz curve. Half of the target")
    for name, points in (("engine", found["lorenz"]), ("by-lot", found["lorenz_by_lot"])):
        drawn = (curve.locator(f".{name}").get_attribute("points") or "").split()
        pairs = [tuple(map(float, point.split(","))) for point in drawn]
        wanted = [(100 * due, 100 - 100 * given) for due, given in points]
        assert pairs == [pytest.approx(point, abs=0.01) for point in wanted]
    card.get_by_text("Gaps of all groups").click()
    greatest = found["gap_quantiles"]["1"]
    expect(card.get_by_role("row", name="100%")).to_contain_text(f"{100 * greatest:.3f}")
    assert page.evaluate(WIDTH) <= 360
    assert faults(page) == []
