"""Audits in the background: real sources, real files, and workers that are killed."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.graph.service.waiting_endpoint import WaitingEndpoint
from tests.patience import until
from tests.servers.page_service import ServiceClient, run_command, running, settings_for
from tests.servers.service_client import Served, a_key, service_of_a_module

QUERIES = ["physicist", "workshop", "laboratory", {"query": "person", "weight": 3}]
REQUEST = {"corpus": "people", "queries": QUERIES, "attributes": ["gender"], "retriever": "bm25"}


service = service_of_a_module("--require-keys")


def over(client: ServiceClient, id_: str) -> dict[str, Any]:
    """Wait until an audit is over, and return it."""
    return client.ended(f"/v1/runs/{id_}")


def deleted_files(pid: int) -> set[str]:
    """Return the files without a name that a process has open."""
    names = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if (name := os.readlink(descriptor)).endswith(" (deleted)"):
                names.add(name)
    return names


def leave_early(client: ServiceClient, path: str) -> None:
    """Read the first byte of an answer, and no more."""
    with client.stream("GET", path) as answer:
        next(answer.iter_raw(1))


@pytest.fixture(scope="module")
def audit(service: Served) -> dict[str, Any]:
    """An audit that ran in the background, with its events."""
    service.client.headers.update(service.key)
    accepted = service.client.post("/v1/audits", json=REQUEST)
    assert accepted.status_code == 202, accepted.text
    id_ = accepted.json()["id"]
    assert accepted.headers["location"] == f"/v1/runs/{id_}"
    assert accepted.json()["query"] == "physicist and 3 more"
    events = service.client.events(f"/v1/runs/{id_}")
    return {**over(service.client, id_), "events": events}


def test_an_audit_in_the_background_tells_its_progress(audit: dict[str, Any]) -> None:
    steps = [data for name, data in audit["events"] if name == "step"]
    progress = [step["progress"] for step in steps if step["step"] == "progress"]
    assert steps[-1] == {"step": "audit"}, "the result comes once"
    assert [(step["done"], step["of"]) for step in progress] == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_an_audit_in_the_background_ends_with_its_figures(audit: dict[str, Any]) -> None:
    assert (audit["status"], audit["kind"]) == ("done", "audit"), audit

    result = audit["result"]
    assert result["findings"]
    assert result["figures"]["queries"]["answered"] == 4
    assert result["figures"]["queries"]["weight"] == 6
    assert audit["events"][-1][1]["result"] == result


def test_the_report_of_an_audit_runs_no_script(service: Served, audit: dict[str, Any]) -> None:
    report = service.client.get(f"/v1/audits/{audit['id']}/report.html")
    assert report.headers["content-type"].startswith("text/html")
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert "Who gets seen" in report.text


@pytest.mark.promise("service")
def test_an_audit_in_the_background_leaves_evidence(
    service: Served, audit: dict[str, Any], tmp_path: Path
) -> None:
    """An audit in the background leaves evidence that verifies and does not say where
    the index is.
    """
    id_ = audit["id"]
    bundle = service.client.get(f"/v1/audits/{id_}/bundle.zip")
    assert bundle.headers["content-disposition"].endswith(f'"audit-{id_}.zip"')

    zipfile.ZipFile(io.BytesIO(bundle.content)).extractall(tmp_path)
    folder = tmp_path / f"audit-{id_}"
    assert (folder / "audit.json").exists()
    assert not (folder / ".lock").exists()

    digest = audit["result"]["digest"]
    run_command(service.variables, "audit", "verify", folder, "--digest", digest)
    for file in folder.rglob("*.*"):
        assert str(service.folder).encode() not in file.read_bytes(), file


def test_a_bundle_that_is_given_up_leaves_no_file_open(
    service: Served, audit: dict[str, Any]
) -> None:
    before = deleted_files(service.process.child.pid)
    leave_early(service.client, f"/v1/audits/{audit['id']}/bundle.zip")
    until(lambda: deleted_files(service.process.child.pid) == before)


def test_the_audits_of_a_key_are_listed(service: Served, audit: dict[str, Any]) -> None:
    listed = service.client.get("/v1/runs?kind=audit").json()["runs"]
    assert audit["id"] in [run["id"] for run in listed]


@pytest.mark.parametrize("file", ["report.html", "bundle.zip"])
def test_to_another_key_an_audit_is_none(service: Served, audit: dict[str, Any], file: str) -> None:
    _, theirs = a_key(service.variables, "theirs", "admin")
    assert service.client.get("/v1/runs?kind=audit", headers=theirs).json() == {"runs": []}

    path = f"/v1/audits/{audit['id']}/{file}"
    assert service.client.get(path, headers=theirs).status_code == 404


@pytest.mark.parametrize("file", ["report.html", "bundle.zip"])
def test_a_run_of_another_kind_is_no_audit(service: Served, file: str) -> None:
    service.client.headers.update(service.key)
    search = service.client.in_background({"query": "physicist", "model": "feedback"})
    assert service.client.get(f"{search.replace('runs', 'audits')}/{file}").status_code == 404


def made_clicks() -> list[dict[str, Any]]:
    """Searches and clicks; each list is turned around, and the first rank is clicked twice."""
    rows: list[dict[str, Any]] = []
    for number in range(240):
        ids = ["a", "b"] if number // 40 % 2 else ["b", "a"]
        search = {"query_id": f"{number}", "user_query": f"q{number % 40}"}
        is_second = number // 80 % 3 == 0
        clicked = {"object": {"object_id": ids[1 if is_second else 0]}}
        rows.append({**search, "query_response_hit_ids": ids})
        rows.append({**search, "action_name": "click", "event_attributes": clicked})
    return rows


def audit_with_clicks(service: Served, clicks: list[dict[str, Any]]) -> dict[str, Any]:
    service.client.headers.update(service.key)
    accepted = service.client.post("/v1/audits", json={**REQUEST, "clicks": clicks})
    return over(service.client, accepted.json()["id"])


@pytest.mark.promise("service")
def test_clicks_of_users_give_the_discount_of_an_audit(service: Served) -> None:
    """Clicks that come over HTTP give the discount of an audit.

    The first rank is clicked twice as often as the second.
    """
    result = audit_with_clicks(service, made_clicks())["result"]
    figures = result["figures"]
    sentence = "Attention by rank is not log2"

    assert figures["clicks"]["examination"]["values"] == [1, pytest.approx(0.5)]
    assert figures["spec"]["discount"] == "weights(1, 0.5)"
    assert any(finding.startswith(sentence) for finding in result["findings"])


def test_too_few_clicks_are_no_discount(service: Served) -> None:
    problem = audit_with_clicks(service, made_clicks()[:2])["problem"]
    assert "do not say how likely ranks are looked at" in problem["detail"]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[WaitingEndpoint]:
    with contextlib.closing(WaitingEndpoint(tmp_path, "query 3")) as waiting:
        yield waiting


def settings_of(endpoint: WaitingEndpoint, folder: Path, lines: str = "") -> dict[str, str]:
    settings = f'sources = ["{endpoint.file}"]\ncorpora = ["elsewhere"]\n{lines}'
    return settings_for(endpoint.server, folder, settings) | {"FAIRQR_MODEL": "feedback"}


MANY = {
    "corpus": "elsewhere",
    "queries": [f"query {number}" for number in range(8)],
    "target": "uniform:1",
}


def begin_audit(client: ServiceClient, folder: Path) -> tuple[str, Path]:
    """Begin an audit; return its id and folder once all have been answered but the one that waits.

    Four are asked at a time.
    """
    id_ = client.post("/v1/audits", json=MANY).json()["id"]
    audit = folder / "data/service/audits" / id_
    answers = audit / "raw/observations.jsonl"
    until(lambda: answers.exists() and len(answers.read_text().splitlines()) == 7)
    return id_, audit


@pytest.mark.promise("service")
def test_an_audit_goes_on_after_kill_9_and_asks_nothing_again(
    endpoint: WaitingEndpoint, tmp_path: Path
) -> None:
    """An audit in the background goes on after kill -9 and asks nothing again."""
    variables = settings_of(endpoint, tmp_path)
    with running(variables) as process:
        id_, _ = begin_audit(process.client, tmp_path)
        process.kill()
    before = len(endpoint.queries)
    endpoint.gate.set()
    with running(variables) as process:
        audit = over(process.client, id_)

    assert (audit["status"], audit["attempts"]) == ("done", 2), audit
    assert audit["result"]["figures"]["queries"]["answered"] == 8
    assert endpoint.queries[before:] == ["query 3"]


def test_an_audit_without_its_files_begins_again(endpoint: WaitingEndpoint, tmp_path: Path) -> None:
    """As on a machine that does not share the folder."""
    variables = settings_of(endpoint, tmp_path)
    with running(variables) as process:
        id_, folder = begin_audit(process.client, tmp_path)
        process.kill()
    shutil.rmtree(folder)
    before = len(endpoint.queries)
    endpoint.gate.set()
    with running(variables) as process:
        audit = over(process.client, id_)

    assert (audit["status"], audit["attempts"]) == ("done", 2), audit
    assert audit["result"]["figures"]["queries"]["answered"] == 8
    assert {*endpoint.queries[before:]} == {*MANY["queries"]}


def test_one_audit_at_a_time_and_searches_beside_it(
    endpoint: WaitingEndpoint, tmp_path: Path
) -> None:
    with running(settings_of(endpoint, tmp_path)) as process:
        client = process.client
        first = client.post("/v1/audits", json=MANY).json()["id"]
        until(lambda: "query 3" in endpoint.queries)
        request = {**MANY, "queries": ["another query"]}
        second = client.post("/v1/audits", json=request).json()["id"]
        search = {
            "query": "physicist",
            "corpus": "elsewhere",
            "target": "uniform:1",
            "method": "baseline",
        }

        assert client.post("/v1/search", json=search).status_code == 200
        assert client.get(f"/v1/runs/{second}").json()["status"] == "queued"
        assert client.get(f"/v1/audits/{first}/report.html").status_code == 422

        # Cancelling the first lets the second begin, and its files go.
        assert client.delete(f"/v1/runs/{first}").status_code == 204
        assert over(client, first)["status"] == "cancelled"
        assert over(client, second)["status"] == "done"

        folder = tmp_path / "data/service/audits" / second
        assert (folder / "report.html").exists()
        assert client.delete(f"/v1/runs/{second}").status_code == 204
        assert not folder.exists()
        assert client.get(f"/v1/runs/{second}").status_code == 404


@pytest.mark.promise("service")
def test_files_go_when_their_run_does(endpoint: WaitingEndpoint, tmp_path: Path) -> None:
    """The files of an audit go with its run, and other files in their folder stay."""
    endpoint.gate.set()
    audits = tmp_path / "audits"
    (audits / "mine").mkdir(parents=True)
    variables = settings_of(endpoint, tmp_path, 'audits = "audits"')
    with running(variables) as process:
        id_ = process.client.post("/v1/audits", json=MANY).json()["id"]
        assert over(process.client, id_)["status"] == "done"
        assert (audits / id_ / "audit.json").exists()
    with running(variables | {"FAIRQR_SERVICE_RETENTION": "1"}) as process:
        until(lambda: process.client.get(f"/v1/runs/{id_}").status_code == 404)
        until(lambda: not (audits / id_).exists())

    assert (audits / "mine").exists()
