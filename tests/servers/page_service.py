"""The real ``fairqr serve`` with a small corpus, and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.forked import ForkedCommand
from tests.servers.model_server import ModelServer, environment

MODEL_KEY = "sk-CANARY-of-the-model-0123456789"
_ADDRESS = re.compile(r"fairqr listens on (http://\S+)\n")


def settings_for(model: ModelServer, folder: Path, more: str = "") -> dict[str, str]:
    """Write a settings file whose model is the server's; return the variables that name it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "fairqr.toml"
    file.write_text(
        f'model = "openai:fake"\n[service]\n{more}\n[service.models."openai:fake"]\n'
        f'base_url = "{model.base_url}"\napi_key = "{MODEL_KEY}"\ntimeout = {PATIENCE}\n'
        "[service.models.feedback]\n"
    )
    return {
        "FAIRQR_CONFIG": str(file),
        "FAIRQR_DATA_DIR": str(folder / "data"),
        "FAIRQR_CACHE_DIR": str(folder / "cache"),
        "OPENAI_API_KEY": "sk-none",
    }


def run_command(variables: dict[str, str], *arguments: str | Path) -> str:
    """Run ``fairqr``, and return what it printed."""
    with tempfile.NamedTemporaryFile() as errors:
        given = [*map(str, arguments)]
        child = ForkedCommand(given, environment(variables), Path(errors.name))
        with child.stdout as printed:
            said = printed.read().decode()
        assert child.wait(PATIENCE) == 0, errors.read().decode()
    return said


class ServiceClient(httpx.Client):
    """Speaks to a service."""

    def in_background(self, request: dict[str, Any], kind: str = "search", **how: Any) -> str:
        """Begin a run in the background, and return its path."""
        answer = self.post("/v1/runs", json={"kind": kind, "request": request}, **how)
        assert answer.status_code == 202, answer.text
        place: str = answer.headers["location"]
        return place

    def ended(self, place: str, **how: Any) -> dict[str, Any]:
        """Wait until a run, or an audit, has ended, and return it."""

        def found() -> dict[str, Any] | None:
            response = self.get(place, **how)
            if response.status_code == 503:  # a machine under load may say so for a while
                return None
            run: dict[str, Any] = response.raise_for_status().json()
            return run if run["finished"] else None

        run: dict[str, Any] = until(found)
        return run

    def events(self, place: str, **how: Any) -> list[tuple[str, dict[str, Any]]]:
        """Follow a run to its end; return the names and data of its events, all in order."""
        with self.stream("GET", f"{place}/events", **how) as response:
            events = [event for event in events_of(response) if event[0]]
        assert [number for number, _, _ in events] == [*range(1, len(events) + 1)]
        return [(name, data) for _, name, data in events]


def events_of(response: httpx.Response) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the number, the name and the data of each event; a comment is ``(0, "", {})``."""
    event: dict[str, str] = {}
    for line in response.iter_lines():
        kind, _, value = line.partition(": ")
        if line.startswith(":"):
            yield 0, "", {}
        elif line:
            event[kind] = value
        elif event:
            yield int(event.get("id", 0)), event["event"], json.loads(event["data"])
            event = {}


@dataclass(frozen=True, slots=True)
class Process:
    """A running ``fairqr serve``.

    Attributes:
        address: Where it listens.
        client: Speaks to it.
        said: All that it has printed.
    """

    child: ForkedCommand
    address: str
    client: ServiceClient
    said: bytearray
    reader: threading.Thread

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.child.send_signal(number)

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self.child.kill()
        self.child.wait()

    def ends(self) -> None:
        """See that it ends well, as it was told to."""
        assert self.child.wait(PATIENCE) == 0, self.said.decode(errors="replace")
        self.reader.join(PATIENCE)
        assert b"Traceback" not in self.said, self.said.decode(errors="replace")


@contextlib.contextmanager
def running(variables: dict[str, str], *arguments: str | Path) -> Iterator[Process]:
    """Run ``fairqr serve`` on a free port; kill it at the end, unless it has ended."""
    told = ["serve", "--port", "0", *map(str, arguments)]
    child = ForkedCommand(told, environment(variables))
    said = bytearray()
    # What it says later must not fill the pipe.
    reader = threading.Thread(target=_read_on, args=(child, said), daemon=True)
    reader.start()
    try:
        until(lambda: not reader.is_alive() or _ADDRESS.search(said.decode(errors="replace")))
        found = _ADDRESS.search(said.decode(errors="replace"))
        assert found, f"it did not start: {said.decode(errors='replace')}"
        address = found[1]
        with ServiceClient(base_url=address, timeout=PATIENCE, trust_env=False) as client:
            yield Process(child, address, client, said, reader)
    finally:
        child.kill()
        child.wait()
        reader.join(PATIENCE)


@contextlib.contextmanager
def served(variables: dict[str, str], *arguments: str | Path) -> Iterator[str]:
    """Run ``fairqr serve``; yield its address, and see that it ends well."""
    with running(variables, *arguments) as process:
        yield process.address
        process.send(signal.SIGTERM)
        process.ends()


def _read_on(child: ForkedCommand, said: bytearray) -> None:
    with child.stdout as printed:
        while piece := printed.read1(65536):
            said += piece


@contextlib.contextmanager
def started(folder: Path, command: list[Any], path: str, **variables: str) -> Iterator[str]:
    """Run a server of somebody else's on a free port, in the root of the project.

    Args:
        folder: For its data and its log.
        command: Its host and port follow.
        path: What it answers once it is ready.
        variables: More than those that name the folder.
    """
    port, log = free_port(), folder / "log"
    its = {"FAIRQR_DATA_DIR": str(folder / "data"), "FAIRQR_CACHE_DIR": str(folder / "cache")}
    with log.open("wb") as output:
        child = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=Path(__file__).parents[2],
            env=environment({"FAIRQR_MODEL": "feedback", **its, **variables}),
            stdout=output,
            stderr=output,
            start_new_session=True,  # one may leave a child of its own behind
        )
    address = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert child.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{address}{path}", timeout=5).is_success
        return False

    try:
        until(ready)
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        child.wait(PATIENCE)


class Wire:
    """A real TCP proxy in front of a server, on a port of its own, that can be cut and repaired.

    ``sent`` holds all bytes that went to the server, and ``received`` all that came from it.
    """

    def __init__(self, address: str) -> None:
        self._port = int(address.rsplit(":", 1)[1])
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._is_cut = False
        self.sent, self.received = bytearray(), bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        with self._lock:
            self._is_cut = True
            self._break()

    def repair(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def close(self) -> None:
        """End."""
        self._listener.close()
        self.cut()

    def _break(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._port))
                self._ends |= {near, far}
            for source, sink, kept in ((near, far, self.sent), (far, near, self.received)):
                threading.Thread(target=self._carry, args=(source, sink, kept), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                kept += piece
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
