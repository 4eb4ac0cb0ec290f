"""Whatever fails, clients get the cluster's reply, soon; and the proxy ends cleanly."""

from __future__ import annotations

import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import kill
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.graph.service.proxy.proxied import (
    QUERY,
    Proxied,
    answer,
    proxied,
    raw_cluster,
    write_settings,
)
from tests.patience import until
from tests.servers.attached_people import TOPICS, Server, people
from tests.servers.elasticsearch_server import SecureServer
from tests.servers.model_server import Main

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("people")]

QUERIES = [{"query": {"match": {"bio": it}}} for it in TOPICS]
LARGE = {**QUERY, "size": 100, "script_fields": {"a": {"script": f"'{'x' * 40_000}'"}}}
KIND = {"content-type": "application/json"}
WITHIN = 1.0


def ids(reply: httpx.Response) -> list[str]:
    return [hit["_id"] for hit in reply.json()["hits"]["hits"]]


class Load:
    """Clients that search until they are stopped, and check each reply.

    Attributes:
        outcomes: How often each was.
        slowest: Seconds.
    """

    def __init__(self, proxy: Proxied, cluster: str) -> None:
        self.outcomes, self.slowest, self._stop = Counter[str](), 0.0, threading.Event()
        self._own = [ids(httpx.post(f"{cluster}/people/_search", json=it)) for it in QUERIES]
        self._fair = [ids(proxy.search(it)) for it in QUERIES]
        self._proxy = proxy

    def ask(self, number: int) -> None:
        number %= len(QUERIES)
        started = time.monotonic()
        reply = self._proxy.search(QUERIES[number])
        self.slowest = max(self.slowest, time.monotonic() - started)
        outcome = reply.headers["fairqr"]
        right = self._fair if outcome.startswith("re-ranked") else self._own
        assert ids(reply) == right[number], outcome
        self.outcomes[outcome] += 1

    def asks(self, offset: int) -> None:
        while not self._stop.is_set():
            self.ask(offset := offset + 1)

    @contextmanager
    def running(self, clients: int = 4) -> Iterator[None]:
        with ThreadPoolExecutor(clients) as pool:
            asking = [pool.submit(self.asks, number) for number in range(clients)]
            try:
                yield
            finally:
                self._stop.set()
            for one in asking:
                one.result()

    def sees(self, outcome: str) -> None:
        before = self.outcomes[outcome]
        until(lambda: self.outcomes[outcome] > before + 3)


def killed(worker: int) -> None:
    kill(worker, signal.SIGKILL)


def frozen(worker: int) -> None:
    kill(worker, signal.SIGSTOP)


def slowed(worker: int) -> None:
    kill(worker, signal.SIGSTOP)
    time.sleep(2)  # less than we take for frozen
    kill(worker, signal.SIGCONT)


def filled(worker: int) -> None:
    used = psutil.Process(worker).memory_info().data // 4
    resource.prlimit(worker, resource.RLIMIT_DATA, (used, used))


FAULTS = {killed: "worker", frozen: "slow", slowed: "slow", filled: "worker"}


@pytest.fixture(scope="module")
def cluster(elasticsearch_url: str) -> Iterator[Server]:
    with people(elasticsearch_url, "people") as server:
        yield server


@pytest.fixture(scope="module")
def faulty(cluster: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """A proxy whose worker one fault after the other happens to."""
    with proxied(tmp_path_factory.mktemp("faulty"), cluster.url, within=WITHIN) as proxy:
        yield proxy
        assert proxy.end() == 0
        assert "Traceback" not in proxy.log


@pytest.mark.parametrize(("fault", "outcome"), FAULTS.items())
def test_faults_of_the_worker_under_load_cost_a_bounded_time(
    faulty: Proxied, cluster: Server, fault: Callable[[int], None], outcome: str
) -> None:
    worker = faulty.ready()
    load = Load(faulty, cluster.url)
    with load.running():
        load.sees("re-ranked; ranks")
        told = load.outcomes[f"passed; {outcome}"]
        fault(worker)
        if fault == filled:  # what is small has room yet
            assert faulty.outcome(body=LARGE).startswith("passed; ")
        until(lambda: load.outcomes[f"passed; {outcome}"] > told + 3)
        load.sees("re-ranked; ranks")
    assert (faulty.ready() == worker) == (fault == slowed)
    assert load.slowest < WITHIN + 4  # of a machine that does other things, too


def test_many_requests_at_once_are_all_right_take_no_memory_and_leave_no_orphan(
    cluster: Server, tmp_path: Path
) -> None:
    """None is lost, none is wrong, memory stays flat; and a killed proxy takes its worker along."""
    with proxied(tmp_path, cluster.url) as proxy, ThreadPoolExecutor(8) as pool:
        both = [psutil.Process(it) for it in (proxy.process.pid, proxy.ready())]
        load = Load(proxy, cluster.url)
        assert len([*pool.map(load.ask, range(100))]) == 100
        before = [it.memory_info().rss for it in both]
        assert len([*pool.map(load.ask, range(500))]) == 500
        assert load.outcomes == {"re-ranked; ranks": 600}
        more = [it.memory_info().rss - was for it, was in zip(both, before, strict=True)]
        assert max(more) < 15 * 2**20, more
        proxy.process.kill()
        worker = both[1]
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_what_throws_passes_and_says_so(tmp_path: Path, cluster: Server) -> None:
    with (
        cluster.index("labels", {}),
        proxied(tmp_path, cluster.url, source={"index": "labels"}) as proxy,
    ):
        proxy.ready()
        deep = b'{"query": ' + b'{"bool": {"must": ' * 20_000
        reply = proxy.client.post("/people/_search", content=deep, headers=KIND)
        assert (reply.status_code, reply.headers["fairqr"]) == (400, "passed; body")
        bare = [{**it, "_source": False} for it in QUERIES[1:3]]
        assert proxy.outcome(body=bare[0]) == "re-ranked; ranks"  # labels are no part of it
        cluster.client.delete("/labels")  # labels come with the hits, so nothing is asked of it
        assert proxy.outcome(body=bare[1]) == "re-ranked; ranks"
        assert proxy.outcome() == "re-ranked; ranks"


def test_the_proxy_ends_cleanly_while_requests_are_under_way(tmp_path: Path) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def wait(_: bytes, send: Any) -> None:
        asked.set()
        goes_on.wait()
        send(answer(b"late"))

    with raw_cluster() as raw, ThreadPoolExecutor() as pool:
        elsewhere = {"url": "http://127.0.0.1:1"}
        with proxied(tmp_path, raw.url, source=elsewhere) as proxy:
            raw.replies = wait
            reply = pool.submit(proxy.client.get, "/x")
            asked.wait()
            proxy.process.send_signal(signal.SIGTERM)

            def refuses() -> bool:
                with socket.socket() as probe:
                    return bool(probe.connect_ex(("127.0.0.1", httpx.URL(proxy.url).port or 0)))

            until(refuses)
            goes_on.set()
            assert reply.result().text == "late"
            assert proxy.process.wait(60) == 0


def test_tls_on_both_sides_with_an_own_ca(
    tmp_path: Path, secure_elasticsearch: SecureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, ca = secure_elasticsearch.ca_certs.parent, str(secure_elasticsearch.ca_certs)
    certificates = {"certificate": str(own / "http.crt"), "key": str(own / "http.key")}
    known = (secure_elasticsearch.username, secure_elasticsearch.password)
    for trusted, status in ({"ca": ca}, 200), ({}, 502):
        folder = tmp_path / str(status)
        url = secure_elasticsearch.url
        with proxied(folder, url, ca, **certificates, **trusted) as proxy:
            assert proxy.url.startswith("https://")
            reply = proxy.client.get("/_security/_authenticate", auth=known)
            assert reply.status_code == status
            unknown = proxy.client.get("/_security/_authenticate", auth=("elastic", "CANARY"))
            assert unknown.status_code == (401 if status == 200 else 502)
            assert "CANARY" not in proxy.log
            assert known[1] not in proxy.log


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": {"source": "none.yaml"}}, "none.yaml"),
        ({"index": {"parameters": {"attributes": ["age"]}}}, "no attribute 'age'"),
        ({"index": {"parameters": {"target": "gender=x:1"}}}, "'x'"),
        ({"index": {"mode": "on"}}, "indexes.people.mode"),
        ({"cluster": "http://a:b@c"}, "contains a password"),
        ({"of_tomorrow": 1}, "of_tomorrow"),
        ({"ca": "people.yaml"}, "certificate"),
        ({"certificate": "none.pem"}, "no such file"),
        ({"key": "people.yaml"}, "without a certificate"),
        ({"host": "192.0.2.1"}, "192.0.2.1"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    tmp_path: Path, quick: Main, changes: dict[str, Any], said: str
) -> None:
    file = write_settings(tmp_path, **{"cluster": "http://127.0.0.1:1", **changes})
    assert said in quick("proxy", file).complaint()


def test_a_port_in_use_and_a_file_that_is_none_are_told(tmp_path: Path, quick: Main) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = write_settings(tmp_path, "http://127.0.0.1:1", port=taken.getsockname()[1])
        assert "in use" in quick("proxy", file).complaint()
    file.write_text("cluster: [")
    assert "proxy.yaml" in quick("proxy", file).complaint()
    assert "none.yaml" in quick("proxy", tmp_path / "none.yaml").complaint()


def test_what_only_the_worker_notices_is_one_sentence_in_the_log(
    tmp_path: Path, elasticsearch_url: str
) -> None:
    with proxied(tmp_path, elasticsearch_url, source={"index": "nowhere"}) as proxy:
        until(lambda: "nowhere" in proxy.log)
        assert "Traceback" not in proxy.log
        assert proxy.end() == 0
        assert "Nothing of 'people' is re-ranked at present." in proxy.log.splitlines()[0]


def test_too_little_memory_is_said_before_any_list_is_lost(tmp_path: Path, cluster: Server) -> None:
    with proxied(tmp_path, cluster.url, memory=200) as proxy:
        until(lambda: "It needs more than 200 MB; raise 'memory'." in proxy.log)
        reply = proxy.search()
        assert (reply.status_code, reply.headers["fairqr"]) == (200, "passed; opening")
        assert len(proxy.log.splitlines()) == 1
        assert proxy.end() == 0
