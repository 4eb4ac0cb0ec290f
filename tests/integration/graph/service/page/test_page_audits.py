"""Audits and probes on the page, in a real Chromium against the real service."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.integration.chromium import (
    FAINT,
    PHONE,
    REPEATED,
    WIDTH,
    Pages,
    ask,
    names_by_role,
    status_is,
)
from tests.integration.service_client import Served, a_service

LOG = 'query,count\nphysicist,12\n"person, laboratory",3\nworkshop,1\n'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with a_service(tmp_path_factory.mktemp("audits")) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that wants a key."""
    with a_service(tmp_path_factory.mktemp("guarded"), "--require-keys") as found:
        yield found


def begin(page: Page, queries: str) -> None:
    """Ask for an audit of these queries."""
    expect(page.get_by_role("combobox", name="Source")).to_have_value("people")
    page.get_by_role("textbox", name="Queries").fill(queries)
    page.get_by_role("button", name="Audit", exact=True).click()


def test_an_audit_is_begun_followed_and_read(pages: Pages, service: Served, tmp_path: Path) -> None:
    page, watched = pages(accept_downloads=True)
    page.goto(service.url)
    page.get_by_role("link", name="Audits").click()
    expect(page.get_by_text("There are no audits yet.")).to_be_visible()
    expect(page.get_by_role("combobox", name="Source")).to_have_value("people")
    expect(page.locator("#audit-source-about")).to_contain_text("tantivy · 60 documents · gender")
    page.get_by_role("checkbox", name="continent").uncheck()
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    page.get_by_label("Or take them from a file").set_input_files(log)
    expect(page.get_by_text("3 queries")).to_be_visible()
    with page.expect_request(lambda request: request.method == "POST") as posted:
        page.get_by_role("button", name="Audit", exact=True).click()
    asked = json.loads(posted.value.post_data or "")
    assert asked["queries"][1] == {"query": "person, laboratory", "weight": 3}
    assert asked["attributes"] == ["gender"]

    status_is(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("physicist and 2 more")
    findings = page.get_by_role("region", name="Findings")
    expect(findings).to_contain_text("gender:")
    exposure = page.get_by_role("region", name="Exposure by gender")
    expect(exposure.get_by_role("row", name="female").first).to_contain_text("%")
    expect(page.locator(".ask")).to_be_hidden()
    # Its report stands in a frame that may do nothing, and all files can be had.
    frame = page.frame_locator("iframe.report")
    expect(frame.get_by_role("heading", level=1)).to_contain_text("Who gets seen")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download all files").click()
    saved.value.save_as(tmp_path / "audit.zip")
    with zipfile.ZipFile(tmp_path / "audit.zip") as archive:
        assert {Path(name).name for name in archive.namelist()} >= {"audit.json", "report.html"}
    assert page.evaluate(REPEATED) == []
    assert watched.complaints == []
    assert watched.failures == []
    assert watched.hosts == {service.url.removeprefix("http://")}
    assert page.evaluate("window.violations") == []

    # What was asked can be changed, and the audit is among those of the past.
    page.get_by_role("button", name="Change and run again").click()
    expect(page.get_by_role("textbox", name="Queries")).to_have_value(re.compile('"physicist",12'))
    expect(page.get_by_role("checkbox", name="continent")).not_to_be_checked()
    page.get_by_role("link", name="physicist and 2 more").click()
    expect(findings).to_be_visible()


def test_what_is_wrong_with_an_audit_is_said(pages: Pages, service: Served) -> None:
    page, _ = pages()
    page.goto(f"{service.url}/#/audits")
    begin(page, "x" * 2001)
    expect(page.get_by_role("alert")).to_contain_text("allows at most 2,000")


def test_with_a_key_the_report_is_downloaded(pages: Pages, guarded: Served, tmp_path: Path) -> None:
    key = guarded.key["Authorization"].removeprefix("Bearer ")
    page, watched = pages(accept_downloads=True)
    page.goto(f"{guarded.url}/#/audits")
    page.get_by_role("textbox", name="Key").fill(key)
    page.get_by_role("button", name="Use this key").click()
    begin(page, "physicist\nworkshop")
    status_is(page)
    for name in ("Download the report", "Download all files"):
        with page.expect_download() as saved:
            page.get_by_role("button", name=name).click()
        saved.value.save_as(tmp_path / saved.value.suggested_filename)
    (report,) = tmp_path.glob("*.html")
    assert "Who gets seen" in report.read_text()
    assert page.locator("iframe").count() == 0
    assert not any(key in address for address in watched.requests)
    assert page.evaluate("window.violations") == []


def test_audits_fit_a_phone_in_both_schemes_and_all_has_a_name(
    pages: Pages, service: Served
) -> None:
    for scheme in ("dark", "light"):
        page, _ = pages(color_scheme=scheme, **PHONE)
        page.goto(f"{service.url}/#/audits")
        begin(page, "physicist\nworkshop\nlaboratory")
        status_is(page)
        for closed in page.locator("details:not([open]) summary").all():
            if closed.is_visible():
                closed.click()
        assert page.evaluate(WIDTH) <= 360
        assert page.evaluate(FAINT) == []
        page.goto(f"{service.url}/#/audits")
        expect(page.locator(".runs li").first).to_be_visible()
        assert page.evaluate(WIDTH) <= 360
        assert page.evaluate(FAINT) == []
        named = names_by_role(page)
        assert {"button", "checkbox", "combobox", "link", "textbox"} <= set(named)
        assert [role for role, names in named.items() if not all(names)] == []


def test_a_probe_is_asked_for_by_its_form(pages: Pages, service: Served) -> None:
    page, watched = pages()
    page.goto(service.url)
    expect(page.locator("#corpus option")).to_have_count(1)
    page.get_by_role("radio", name="Probe").check()
    expect(page.get_by_role("radio", name="Own")).to_be_hidden()
    page.get_by_role("combobox", name="Attribute").select_option("gender")
    page.get_by_role("combobox", name="Protected group").select_option("female")
    page.get_by_role("combobox", name="What the model is asked").select_option("pairwise")
    page.get_by_role("spinbutton", name="Pairs").fill("2")
    page.get_by_role("spinbutton", name="Results").fill("40")
    page.get_by_role("searchbox", name="Query").fill("physicist")
    with page.expect_request(lambda request: request.method == "POST") as posted:
        page.get_by_role("button", name="Run", exact=True).click()
    asked = json.loads(posted.value.post_data or "")["request"]
    chosen = {"attribute": "gender", "protected": "female", "kinds": ["pairwise"], "pairs": 2}
    assert asked.items() >= chosen.items()
    status_is(page)
    expect(page.get_by_role("region", name="Probe")).to_contain_text("Protected wins")
    page.get_by_role("button", name="Change and run again").click()
    expect(page.get_by_role("combobox", name="What the model is asked")).to_have_value("pairwise")
    assert watched.complaints == []


def test_each_document_has_a_line_of_its_text(pages: Pages, service: Served) -> None:
    page, watched = pages()
    page.goto(service.url)
    ask(page, "physicist", "plain")
    status_is(page)
    lines = page.get_by_role("table", name="After: plain").locator(".line")
    expect(lines).to_have_count(10)
    for at in range(10):
        expect(lines.nth(at)).to_contain_text("physicist")
        assert len(lines.nth(at).inner_text()) <= 160
    # Who gets seen stands first, then the numbers.
    came = page.get_by_role("region", name="What came of it").inner_text()
    assert came.index("Who gets seen") < came.index("Divergence from the target")
    asked = [it for it in watched.requests if "/v1/documents?" in it]
    assert len(asked) == 1
    assert watched.failures == []
