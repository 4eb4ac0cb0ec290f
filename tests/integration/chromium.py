"""A real headless Chromium, and pages that tell of all that should not happen in them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

__all__ = ["Watched", "browser", "opened"]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SECONDS = 15
"""How long anything on a page may take."""

_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


def executable() -> str:
    """Return the path of Chromium: that of ``FAIRQR_TEST_CHROMIUM``, else the one on the path."""
    given = os.environ.get("FAIRQR_TEST_CHROMIUM")
    found = shutil.which(given or "chromium")
    if found is None:
        pytest.fail(
            f"There is no Chromium at {given or 'chromium'}; install Debian's package chromium, or "
            "name one by FAIRQR_TEST_CHROMIUM."
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
    """What happened in a page besides what is seen.

    Attributes:
        requests: The addresses of all requests.
        failures: Answers of 400 and more, as ``404 address``.
        complaints: Errors on the console, and exceptions.
        dialogs: What was said in dialogs, which nothing of ours opens.
    """

    requests: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> set[str]:
        """The hosts of all requests."""
        return {urlsplit(url).netloc for url in self.requests if not url.startswith("data:")}


def opened(context: BrowserContext) -> tuple[Page, Watched]:
    """Open a page of a context, and watch it from its beginning."""
    context.set_default_timeout(SECONDS * 1000)
    context.add_init_script(_VIOLATIONS)
    page, watched = context.new_page(), Watched()

    def answered(response: Any) -> None:
        if response.status >= 400:
            watched.failures.append(f"{response.status} {response.url}")

    def said(message: Any) -> None:
        if message.type == "error":
            watched.complaints.append(message.text)

    def asked(dialog: Any) -> None:
        watched.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("request", lambda request: watched.requests.append(request.url))
    page.on("response", answered)
    page.on("console", said)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("dialog", asked)
    return page, watched
