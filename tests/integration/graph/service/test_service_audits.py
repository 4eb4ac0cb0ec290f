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
ASKED = {"corpus": "people", "queries": QUERIES, "attributes": ["gender"], "retriever": "bm25"}


service = service_of_a_module("--require-keys")


def over(client: ServiceClient, id_: str) -> dict[str, Any]:
    """Wait until an audit is over, and return it."""
    return client.ended(f"/v1/runs/{id_}")


def deleted_files(pid: int) -> set[str]:
    """Return the files without a name that a process has open."""
    found = set()
    for number in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if (file := os.readlink(number)).endswith(" (deleted)"):
                found.add(file)
    return found


def leave_early(client: ServiceClient, path: str) -> None:
    """Read the first byte of an answer, and no more."""
    with client.stream("GET", path) as answer:
        next(answer.iter_raw(1))


def test_an_audit_runs_in_the_background_and_leaves_evidence(
    service: Served, tmp_path: Path
) -> None:
    service.client.headers.update(service.key)
    started = service.client.post("/v1/audits", json=ASKED)
    assert started.status_code == 202, started.text
    id_ = started.json()["id"]
    assert started.headers["location"] == f"/v1/runs/{id_}"
    assert started.json()["query"] == "physicist and 3 more"
    events = service.client.events(f"/v1/runs/{id_}")
    steps = [data for name, data in events if name == "step"]
    told = [it["progress"] for it in steps if it["step"] == "progress"]
    assert steps[-1] == {"step": "audit"}, "the result comes once"
    assert [(it["done"], it["of"]) for it in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]

    audit = over(service.client, id_)
    assert (audit["status"], audit["kind"]) == ("done", "audit"), audit
    result = audit["result"]
    assert result["findings"]
    assert result["figures"]["queries"]["answered"] == 4
    assert result["figures"]["queries"]["weight"] == 6
    assert events[-1][1]["result"] == result

    report = service.client.get(f"/v1/audits/{id_}/report.html")
    assert report.headers["content-type"].startswith("text/html")
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert "Who gets seen" in report.text
    held = deleted_files(service.process.child.pid)
    bundle = service.client.get(f"/v1/audits/{id_}/bundle.zip")
    assert bundle.headers["content-disposition"].endswith(f'"audit-{id_}.zip"')
    zipfile.ZipFile(io.BytesIO(bundle.content)).extractall(tmp_path)
    place = tmp_path / f"audit-{id_}"
    assert (place / "audit.json").exists()
    assert not (place / ".lock").exists()
    run_command(service.variables, "audit", "verify", place, "--digest", result["digest"])
    # Neither says where the index is.
    for file in place.rglob("*.*"):
        assert str(service.folder).encode() not in file.read_bytes(), file

    leave_early(service.client, f"/v1/audits/{id_}/bundle.zip")
    until(lambda: deleted_files(service.process.child.pid) == held)

    (listed,) = service.client.get("/v1/runs?kind=audit").json()["runs"]
    assert listed["id"] == id_
    # To another key it is as if there were none, and a run of another kind is no audit.
    _, theirs = a_key(service.variables, "theirs", "admin")
    assert service.client.get("/v1/runs?kind=audit", headers=theirs).json() == {"runs": []}
    search = service.client.in_background({"query": "physicist", "model": "feedback"})
    for end in ("report.html", "bundle.zip"):
        assert service.client.get(f"/v1/audits/{id_}/{end}", headers=theirs).status_code == 404
        assert service.client.get(f"{search.replace('runs', 'audits')}/{end}").status_code == 404


def test_clicks_of_users_give_the_discount_of_an_audit(service: Served) -> None:
    """Each list is turned around; the first rank is clicked twice as often as the second."""
    service.client.headers.update(service.key)
    rows: list[dict[str, Any]] = []
    for number in range(240):
        ids = ["a", "b"] if number // 40 % 2 else ["b", "a"]
        search = {"query_id": f"{number}", "user_query": f"q{number % 40}"}
        rows.append({**search, "query_response_hit_ids": ids})
        clicked = {"object": {"object_id": ids[number // 80 % 3 == 0]}}
        rows.append({**search, "action_name": "click", "event_attributes": clicked})
    started = service.client.post("/v1/audits", json={**ASKED, "clicks": rows})
    audit = over(service.client, started.json()["id"])
    figures = audit["result"]["figures"]
    assert figures["clicks"]["examination"]["values"] == [1, pytest.approx(0.5)]
    assert figures["spec"]["discount"] == "weights(1, 0.5)"
    assert any(it.startswith("Attention by rank is not log2") for it in audit["result"]["findings"])
    nothing = service.client.post("/v1/audits", json={**ASKED, "clicks": rows[:2]})
    problem = over(service.client, nothing.json()["id"])["problem"]
    assert "do not say how likely ranks are looked at" in problem["detail"]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[WaitingEndpoint]:
    with contextlib.closing(WaitingEndpoint(tmp_path, "query 3")) as found:
        yield found


def settings_of(endpoint: WaitingEndpoint, folder: Path, more: str = "") -> dict[str, str]:
    lines = f'sources = ["{endpoint.file}"]\ncorpora = ["elsewhere"]\n{more}'
    return settings_for(endpoint.server, folder, lines) | {"FAIRQR_MODEL": "feedback"}


MANY = {"corpus": "elsewhere", "queries": [f"query {n}" for n in range(8)], "target": "uniform:1"}


def started(client: ServiceClient, folder: Path) -> tuple[str, Path]:
    """Begin an audit; return its id and folder once all have been answered but the one that waits.

    Four are asked at a time.
    """
    id_ = client.post("/v1/audits", json=MANY).json()["id"]
    place = folder / "data/service/audits" / id_
    kept = place / "raw/observations.jsonl"
    until(lambda: kept.exists() and len(kept.read_text().splitlines()) == 7)
    return id_, place


@pytest.mark.parametrize("its_files", ["are there", "are not"])
def test_an_audit_goes_on_after_kill_9_and_asks_nothing_again(
    endpoint: WaitingEndpoint, tmp_path: Path, its_files: str
) -> None:
    """It begins again where its files are not, as on a machine that does not share the folder."""
    variables = settings_of(endpoint, tmp_path)
    with running(variables) as process:
        id_, place = started(process.client, tmp_path)
        process.kill()
    if its_files == "are not":
        shutil.rmtree(place)
    before = len(endpoint.queries)
    endpoint.gate.set()
    with running(variables) as process:
        audit = over(process.client, id_)
    assert (audit["status"], audit["attempts"]) == ("done", 2), audit
    assert audit["result"]["figures"]["queries"]["answered"] == 8
    again = endpoint.queries[before:]
    assert {*again} == ({"query 3"} if its_files == "are there" else {*MANY["queries"]})
    assert its_files == "are not" or len(again) == 1


def test_one_audit_at_a_time_and_searches_beside_it(
    endpoint: WaitingEndpoint, tmp_path: Path
) -> None:
    with running(settings_of(endpoint, tmp_path)) as process:
        client = process.client
        first = client.post("/v1/audits", json=MANY).json()["id"]
        until(lambda: "query 3" in endpoint.queries)
        asked = {**MANY, "queries": ["another query"]}
        second = client.post("/v1/audits", json=asked).json()["id"]
        search = {"query": "physicist", "corpus": "elsewhere", "target": "uniform:1"}
        search["method"] = "baseline"
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


def test_files_go_when_their_run_does(endpoint: WaitingEndpoint, tmp_path: Path) -> None:
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
