"""Durable runs and audits take turns by key, in a SQLite file as in PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.graph.service.waiting_endpoint import WaitingEndpoint
from tests.patience import until
from tests.servers.page_service import Process, running, settings_for
from tests.servers.service_client import a_key

SHARE = 3
"""How many of four slots one key may have."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A service with two keys, whose source waits."""

    endpoint: WaitingEndpoint
    variables: dict[str, str]
    keys: dict[str, dict[str, str]]

    def audit(self, process: Process, key: str, query: str) -> str:
        """Begin an audit of one query; return its path."""
        asked = {"corpus": "elsewhere", "queries": [query], "target": "uniform:1"}
        answer = process.client.post("/v1/audits", json=asked, headers=self.keys[key])
        assert answer.status_code == 202, answer.text
        place: str = answer.headers["location"]
        return place

    def search(self, process: Process, key: str, query: str) -> str:
        """Begin a search in the background; return its path."""
        asked = {"corpus": "elsewhere", "query": query, "method": "baseline", "model": "feedback"}
        asked["target"] = "uniform:1"
        return process.client.in_background(asked, headers=self.keys[key])


@pytest.fixture(params=["sqlite", "postgresql"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with contextlib.closing(WaitingEndpoint(tmp_path, "slow")) as endpoint:
        lines = f'sources = ["{endpoint.file}"]\ncorpora = ["elsewhere"]\nconcurrency = 4\n'
        lines += "require_keys = true\nlease = 1\n"
        if request.param == "postgresql":
            lines += f'database = "{request.getfixturevalue("postgres_url")}"\n'
        variables = settings_for(endpoint.server, tmp_path, lines) | {"FAIRQR_MODEL": "feedback"}
        if request.param == "postgresql":
            variables["FAIRQR_SERVICE_DATABASE"] = request.getfixturevalue("postgres_url")
        keys = {name: a_key(variables, name)[1] for name in ("one", "other")}
        yield Scene(endpoint, variables, keys)


def longest_wait(queries: list[str], key: str) -> int:
    """Return the most audits of others in a row that come before one of a key."""
    last = max(place for place, query in enumerate(queries) if query.startswith(key))
    waits = "".join("x" if query.startswith(key) else "." for query in queries[:last])
    return max(map(len, waits.split("x")))


def test_no_audit_waits_for_all_of_another_key(scene: Scene) -> None:
    """Nor does one after a restart, where all that waited are handed out again."""
    queries = scene.endpoint.queries
    with running(scene.variables) as process:
        scene.audit(process, "one", "slow")
        until(lambda: "slow" in queries)
        for number in range(4):
            scene.audit(process, "one", f"one {number}")
        for number in range(3):
            scene.audit(process, "other", f"other {number}")
        process.kill()
    queries.clear()
    scene.endpoint.gate.set()
    with running(scene.variables):
        until(lambda: len({*queries}) == 8)
    order = [query for query in dict.fromkeys(queries) if query != "slow"]
    assert longest_wait(order, "other") <= 2, order
    assert longest_wait(order, "one") <= 2, order


def test_who_asks_for_one_audit_after_the_other_does_not_always_come_first(scene: Scene) -> None:
    queries = scene.endpoint.queries
    with running(scene.variables) as process:
        scene.audit(process, "one", "slow")
        until(lambda: "slow" in queries)
        for number in range(3):
            last = scene.audit(process, "one", f"one {number}")
        first = scene.audit(process, "other", "other 0")
        scene.endpoint.gate.set()
        # There is always one of the other key that waits.
        for number in range(1, 15):
            following = scene.audit(process, "other", f"other {number}")
            process.client.ended(first, headers=scene.keys["other"])
            first = following
        process.client.ended(last, headers=scene.keys["one"])
    assert longest_wait(queries, "one") <= 3, queries


def test_slow_kept_runs_of_a_key_leave_places_for_another_key(scene: Scene) -> None:
    with running(scene.variables) as process:
        for number in range(8):
            scene.search(process, "one", f"slow {number}")
        until(lambda: len(scene.endpoint.queries) == SHARE)
        found = process.client.ended(
            scene.search(process, "other", "other"), headers=scene.keys["other"]
        )
        assert found["status"] == "done", found
        # An audit waits for none of the slots that its key has taken.
        scene.audit(process, "one", "one's audit")
        audit = scene.audit(process, "other", "other's audit")
        assert process.client.ended(audit, headers=scene.keys["other"])["status"] == "done"
        assert "one's audit" in scene.endpoint.queries
        assert sum(query.startswith("slow") for query in scene.endpoint.queries) == SHARE
