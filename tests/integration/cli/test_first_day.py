"""What goes wrong on a first day: each is one sentence with a next step, and exit code 2."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.usefixtures("clean_environment")

SEARCH = (
    "search",
    "physicist",
    "--corpus",
    "notables",
    "--retriever",
    "bm25",
    "--method",
    "baseline",
)
DROP_CAPABILITY, MAY_WRITE_ANYWHERE, MAY_READ_ANYWHERE = 24, 1, 2


def fails(*arguments: str, before: Callable[[], object] | None = None, **variables: str) -> str:
    """Run the command, which has to fail, and return the one sentence that it says."""
    done = subprocess.run(
        [sys.executable, "-m", "fairqr", *arguments],
        capture_output=True,
        text=True,
        preexec_fn=before,
        env=os.environ | variables,
        timeout=PATIENCE,
    )
    assert done.returncode == 2, done
    # Where an index is made first, it says every ten seconds how far it is.
    said = [it for it in done.stderr.splitlines() if not it.startswith("preparing ")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("fairqr: ")
    return f"{said[0]}\n"


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))


def without_rights_of_root() -> None:
    """Root may write anywhere, which these tests take away from the child."""
    for capability in (MAY_WRITE_ANYWHERE, MAY_READ_ANYWHERE):
        ctypes.CDLL(None).prctl(DROP_CAPABILITY, capability, 0, 0, 0)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    return folder


def test_a_proxy_that_fails() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets it
        proxy = f"http://127.0.0.1:{held.getsockname()[1]}"
        said = fails(
            "demo",
            HTTPS_PROXY=proxy,
            HTTP_PROXY=proxy,
            https_proxy=proxy,
            PIP_INDEX_URL="https://index.invalid/simple",
            PIP_NO_INDEX="0",
            PIP_RETRIES="1",
            PIP_CONFIG_FILE=os.devnull,
            PIP_FIND_LINKS="",
        )
    assert "check the network, pip's index and proxy" in said
    assert f"port={proxy.rpartition(':')[2]}" in said
    assert "Connection refused" in said


def test_a_disk_that_is_full_while_an_index_is_built(tmp_path: Path) -> None:
    said = fails(*SEARCH, before=small_files)
    assert "make room" in said
    assert "FAIRQR_DATA_DIR" in said
    assert str(tmp_path / "data") in said


@pytest.mark.promise("command")
def test_a_folder_without_rights(closed: Path) -> None:
    """A folder that must not be written ends with one sentence and exit code 2."""
    said = fails(*SEARCH, before=without_rights_of_root, FAIRQR_DATA_DIR=str(closed))
    assert f"{closed}" in said
    assert said.endswith("Permission denied; change its rights, or name another place.\n")


def test_a_cache_without_rights(closed: Path) -> None:
    said = fails("models", "pull", before=without_rights_of_root, FAIRQR_CACHE_DIR=str(closed))
    assert "(Permission denied): make room or make it writable, or name another" in said
    assert "FAIRQR_CACHE_DIR" in said
