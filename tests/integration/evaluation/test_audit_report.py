"""The report of an audit in a real Chromium: on a phone, on paper, and with hostile names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from fairqr.evaluation.audit.finishing import write_audit
from fairqr.evaluation.audit.report import LAYOUTS, draw_exposure
from tests.servers.chromium import PHONE, WIDTH, Pages, faults
from tests.unit.evaluation.audit.examples import outcome_of

HOSTILE = (
    "<script>window.owned = 1; alert(1)</script><img src=x onerror='window.owned = 1'>",
    "</title></td></table><svg onload=alert(3)><style>*{display:none}</style>",
    "long " + "W" * 10_000,
    "| a | *b* `c` [d](http://evil.example) ![e](//evil.example/x.png)",
    "# heading\u2028\u202egnp.exe\x1b[31m\x00 $\\frac{1}{2}$ & &lt; ]]> --> <!-- ~~x~~",
    "1. www.evil.example https://evil.example",
)
CUT_OFF = """() => [...document.querySelectorAll("main *")]
  .filter((it) => it.checkVisibility() && !it.closest(".scroll, .hidden"))
  .filter((it) => it.getBoundingClientRect().right > innerWidth)
  .map((it) => it.outerHTML.slice(0, 80))"""
"""What ends beyond the window and cannot be scrolled in a box of its own."""
LAPTOP: dict[str, Any] = {"viewport": {"width": 1100, "height": 800}}
PAPER = 718
"""The width between the margins of a sheet of A4, in pixels."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an audit whose queries, documents and titles are hostile."""
    folder = tmp_path_factory.mktemp("audit")
    outcome = outcome_of(
        30,
        texts=[*(f"people {number}" for number in range(24)), *HOSTILE],
        titles={f"{HOSTILE[0]}{number}": HOSTILE[number % 6] for number in range(40)},
        bias=0.3,
        unlabelled=0.1,
        prefix=HOSTILE[0],
    )
    for layout in LAYOUTS:
        write_audit(folder / layout, outcome, layout)
    return folder


@pytest.mark.promise("audit")
@pytest.mark.parametrize("device", [LAPTOP, PHONE, LAPTOP | {"color_scheme": "dark"}])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_cut_off(
    report: Path, pages: Pages, layout: str, device: dict[str, Any]
) -> None:
    """Nothing of a report is cut off at 1,100 px or on a phone, and names are never markup.

    Nor does anything of hostile names run, nor is anything hard to read in the dark.
    """
    page, seen = pages(**device)
    address = (report / layout / "report.html").as_uri()
    page.goto(address)
    assert page.evaluate("window.owned") is None
    assert seen.requests == [address]
    assert not seen.complaints
    assert faults(page) == []
    assert page.locator("script, img, code, a:not([href^='#'])").count() == 0
    assert page.locator("figure svg").count() == 1
    # Whoever links to a part gets there.
    for link in page.locator("nav a").all():
        target = link.get_attribute("href") or ""
        assert page.locator(target).count() == 1
        page.evaluate("(target) => { location.hash = target }", target)
        expect(page.locator(target)).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true })")
    assert page.evaluate(WIDTH) <= page.evaluate("innerWidth")
    assert not page.evaluate(CUT_OFF)
    # The picture does not have to be scrolled, and on a phone the tables of figures neither.
    tables = ", .scroll:has(th.number:nth-child(5))" if device is PHONE else ""
    boxes = page.locator(f"figure .scroll{tables}")
    assert boxes.count() == (7 if tables else 1)
    assert boxes.evaluate_all("(all) => all.every((it) => it.scrollWidth <= it.clientWidth)")


@pytest.mark.parametrize(
    "verdicts", [("saturated", "less", "more"), ("within_relevance_error", "unknown")]
)
def test_the_legend_of_the_picture_ends_inside_it(pages: Pages, verdicts: tuple[Any, ...]) -> None:
    figures = outcome_of(9).figures
    groups = [
        replace(it, verdict=verdicts[n % len(verdicts)]) for n, it in enumerate(figures.groups)
    ]
    drawn = draw_exposure(replace(outcome_of(9), figures=replace(figures, groups=groups)))
    page, _ = pages(**LAPTOP)
    page.set_content(f'<main><div style="width: 33rem">{drawn.svg}</div></main>')
    assert not page.evaluate(CUT_OFF.replace("main *", "svg text").replace("innerWidth", "528"))


def ends_of(page: Page, what: str) -> tuple[float, float]:
    """Return where an element begins, and how high it is."""
    box = page.locator(what).bounding_box()
    assert box is not None
    return box["y"], box["height"]


@pytest.mark.promise("audit")
def test_the_first_screen_says_who_gets_seen(report: Path, pages: Pages) -> None:
    """The first screen of a report has its words, the verdict and threshold, one picture and three
    sentences.
    """
    address = (report / "plain" / "report.html").as_uri()
    laptop, _ = pages(**LAPTOP)
    laptop.goto(address)
    for what in ("blockquote", "blockquote + figure + ul"):
        assert sum(ends_of(laptop, what)) < 800, what
    assert ends_of(laptop, "figure svg")[0] < 0.7 * 800
    folded = laptop.get_by_role("heading", name="What fair re-ranking would cost")
    expect(folded).to_be_visible()
    cost = laptop.get_by_text("exposure after").first
    assert not cost.is_visible()
    folded.click()
    expect(cost).to_be_visible()
    phone, _ = pages(**PHONE)
    phone.goto(address)
    assert ends_of(phone, "blockquote")[0] < 0.8 * PHONE["viewport"]["height"]
    contents = phone.get_by_role("navigation").get_by_role("link").first
    assert not contents.is_visible()
    phone.get_by_text("Contents", exact=True).click()
    assert contents.is_visible()
    # On paper all is open, and nothing is cut off.
    laptop.reload()
    laptop.set_viewport_size({"width": PAPER, "height": 1000})
    laptop.emulate_media(media="print")
    assert laptop.evaluate(WIDTH) == PAPER
    expect(cost).to_be_visible()
