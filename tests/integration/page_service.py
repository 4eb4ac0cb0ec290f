"""The real ``fairqr serve`` with a small corpus, and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.integration.model_server import Command, ModelServer
from tests.patience import PATIENCE

_ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|localhost):\d+")


def settings_for(model: ModelServer, folder: Path, more: str = "") -> dict[str, str]:
    """Write a settings file whose model is the server's; return the variables that name it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "fairqr.toml"
    file.write_text(
        f'model = "openai:fake"\n[service]\n{more}\n[service.models."openai:fake"]\n'
        f'base_url = "{model.base_url}"\napi_key = "sk-none"\ntimeout = {PATIENCE}\n'
        "[service.models.feedback]\n"
    )
    return {
        "FAIRQR_CONFIG": str(file),
        "FAIRQR_DATA_DIR": str(folder / "data"),
        "FAIRQR_CACHE_DIR": str(folder / "cache"),
        "OPENAI_API_KEY": "sk-none",
    }


def _environment(variables: dict[str, str]) -> dict[str, str]:
    outside = ("FAIRQR_", "OPENAI_", "LANGCHAIN_", "LANGSMITH_", "OTEL_")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(outside) and not name.upper().endswith("_PROXY")
    }
    return kept | variables


def run_command(variables: dict[str, str], *arguments: str | Path) -> str:
    """Run ``fairqr``, and return what it printed."""
    done = subprocess.run(
        [Command.executable, *map(str, arguments)],
        env=_environment(variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def served(variables: dict[str, str], *arguments: str | Path) -> Iterator[str]:
    """Run ``fairqr serve`` on a free port; yield its address, and see that it ends well."""
    child = subprocess.Popen(
        [Command.executable, "serve", "--port", "0", *map(str, arguments)],
        env=_environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said = bytearray()
    try:
        address = _address(child, said)
        # What it says later must not fill the pipe.
        reader = threading.Thread(target=_read_on, args=(child, said), daemon=True)
        reader.start()
        yield address
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 0, said.decode(errors="replace")
        reader.join(PATIENCE)
        assert b"Traceback" not in said, said.decode(errors="replace")
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _address(child: subprocess.Popen[bytes], said: bytearray) -> str:
    assert child.stdout is not None
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ready, _, _ = select.select([child.stdout], [], [], 0.5)
        piece = os.read(child.stdout.fileno(), 65536) if ready else b""
        said += piece
        found = _ADDRESS.search(said.decode(errors="replace"))
        if found and b"\n" in said[found.end() :]:
            return found[0]
        if ready and not piece:
            break
    raise AssertionError(f"it did not start: {said.decode(errors='replace')}")


def _read_on(child: subprocess.Popen[bytes], said: bytearray) -> None:
    assert child.stdout is not None
    while piece := child.stdout.read1(65536):  # type: ignore[attr-defined]
        said += piece


class Wire:
    """A real TCP proxy in front of a server, on a port of its own, that can be cut and mended.

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

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def close(self) -> None:
        """End."""
        with self._lock:
            self._is_cut = True
            self._listener.close()
            self._break()

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
