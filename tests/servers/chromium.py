"""A real headless Chromium, and pages that tell of all that should not happen in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.patience import PATIENCE, until

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

expect.set_options(timeout=PATIENCE * 1000)

_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""

PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "has_touch": True,
    "is_mobile": True,
}
"""The window of a small phone."""

WIDTH = "document.documentElement.scrollWidth"
"""How wide a page is, in pixels; more than its window where it has to be scrolled sideways."""

FOCUSED = """() => {
  const it = document.activeElement;
  if (it === document.body) return { name: null };
  const seen = [it, it.nextElementSibling].filter(Boolean).some((each) =>
    getComputedStyle(each).outlineStyle !== "none");
  return { name: (it.labels?.[0] ?? it).textContent.trim(), outline: seen };
}"""
"""What has the focus, None at the end of the page, and whether that is seen."""


_SLOPES = """() => {
  const boxes = [...document.querySelectorAll(".sides table")].map((table) =>
    new Map([...table.querySelectorAll("[data-line]")].map((line) =>
      [line.dataset.line, line.closest("tr").getBoundingClientRect()])));
  return [...document.querySelectorAll(".slopes path")].map((path) => {
    const [from, to] = boxes.map((rows) => rows.get(path.dataset.document));
    const [start, end] = [0, path.getTotalLength()].map((length) =>
      path.getPointAtLength(length).matrixTransform(path.getScreenCTM()));
    const within = (row, { y }) => row.top < y && y < row.bottom;
    const joins = within(from, start) && Math.abs(start.x - from.right) < 1
      && within(to, end) && Math.abs(end.x - to.left) < 1;
    return [path.dataset.document, joins];
  });
}"""
"""The document of each line between two lists, and whether the line joins its two rows."""


def executable() -> str:
    """Return the path of Chromium: that of ``FAIRQR_TEST_CHROMIUM``, else the one on the path.

    Debian packages one without windows for itself, which needs half the processor time.
    """
    given = os.environ.get("FAIRQR_TEST_CHROMIUM")
    names = [given] if given else ["chromium-headless-shell", "chromium"]
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(
            f"There is no {' or '.join(names)}; install Debian's package chromium-headless-shell, "
            "or name a Chromium by FAIRQR_TEST_CHROMIUM."
        )
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for all tests of a module; each opens pages of its own."""
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Watched:
    """What happened in a page besides what is seen, most of which may not; see :class:`Pages`.

    Attributes:
        requests: The addresses of all requests.
        failures: Answers of 400 and more, as ``404 address``.
        complaints: Errors on the console, exceptions, and dialogs, which nothing of ours opens.
    """

    requests: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> set[str]:
        """The hosts of all requests."""
        return {urlsplit(url).netloc for url in self.requests if url.startswith("http")}


class Pages:
    """Opens pages, each in a context of its own, and watches them from their beginning.

    In none may be an error but that of an answer, a broken policy, a dialog, or a second host.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._opened: list[tuple[Page, Watched]] = []

    def __call__(self, **how: Any) -> tuple[Page, Watched]:
        """Open a page.

        Args:
            how: Of the context, where it is not that of a laptop.
        """
        laptop = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        context = self._browser.new_context(**{**laptop, **how})
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script(_VIOLATIONS)
        page, watched = context.new_page(), Watched()
        _watch(page, watched)
        self._opened.append((page, watched))
        return page, watched

    def close(self) -> None:
        """Close all, and see that nothing happened that may not."""
        found = []
        for page, watched in self._opened:
            answers = "Failed to load resource"
            found += [it for it in watched.complaints if answers not in it]
            found += page.evaluate("window.violations") + sorted(watched.hosts)[1:]
            page.context.close()
        assert found == []


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    """What opens the pages of a test."""
    pages = Pages(browser)
    yield pages
    pages.close()


def _watch(page: Page, watched: Watched) -> None:
    def answered(response: Any) -> None:
        if response.status >= 400:
            watched.failures.append(f"{response.status} {response.url}")

    def said(message: Any) -> None:
        if message.type == "error":
            watched.complaints.append(message.text)

    def asked(dialog: Any) -> None:
        watched.complaints.append(dialog.message)
        dialog.dismiss()

    page.on("request", lambda request: watched.requests.append(request.url))
    page.on("response", answered)
    page.on("console", said)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("dialog", asked)


def open_settings(page: Page) -> None:
    """Open the settings, which are closed at first on a phone."""
    expect(page.locator("#corpus option")).to_have_count(1)
    if not page.locator("#corpus").is_visible():
        page.get_by_text("Settings").click()


def ask(page: Page, query: str, method: str = "fair-qr", results: int = 10) -> None:
    """Ask for a search, and run it; the paper's loop asks the model in any case."""
    open_settings(page)
    page.get_by_role("combobox", name="Method").select_option(method)
    page.get_by_role("spinbutton", name="Results").fill(str(results))
    page.get_by_role("searchbox", name="Query").fill(query)
    page.get_by_role("button", name="Run", exact=True).click()


def ask_question(page: Page, question: str, samples: int | None = None) -> None:
    """Ask for an answer, and run it."""
    expect(page.locator("#corpus option")).to_have_count(1)
    page.get_by_role("radio", name="Answer").check()
    page.get_by_role("searchbox", name="Question").fill(question)
    if samples is not None:
        page.get_by_role("spinbutton", name="Sampled rankings").fill(str(samples))
    page.get_by_role("button", name="Run", exact=True).click()


def ask_for_audit(page: Page, queries: str) -> None:
    """Ask for an audit of these queries, and run it."""
    expect(page.get_by_role("combobox", name="Source")).to_have_value("people")
    page.get_by_role("textbox", name="Queries").fill(queries)
    page.get_by_role("button", name="Audit", exact=True).click()


def status_is(page: Page, status: str = "done") -> None:
    """See that what was asked for comes to this."""
    expect(page.locator(".run-head .status")).to_have_text(status)


def shown(page: Page, table: str) -> list[str]:
    """Return the ids of the documents in a table."""
    lines = page.get_by_role("table", name=table).locator("[data-line]")
    expect(lines.first).to_be_attached()
    found: list[str] = lines.evaluate_all("all => all.map((it) => it.dataset.line)")
    return found


def slopes_join(page: Page, before: str, after: str) -> None:
    """See that a line joins the rows of each document that stands in both tables, and no others."""
    both = {*shown(page, before)}.intersection(shown(page, after))
    assert both
    until(lambda: sorted(page.evaluate(_SLOPES)) == [[id_, True] for id_ in sorted(both)])
    risen = page.get_by_role("table", name=after).locator(".moved.up")
    expect(page.locator(".slopes .up")).to_have_count(risen.count())


def faults(page: Page) -> list[str]:
    """Return what axe finds serious or critical in a page as it stands, by rule and place.

    Such as texts that are hard to read, and what can be used but has no name.
    """
    return [
        f"{found['id']}: {' '.join(node['target'])}"
        for found in Axe().run(page).response["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]
