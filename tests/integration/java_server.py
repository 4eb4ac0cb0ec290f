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
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.patience import PATIENCE

NOBODY = 65534
JAVA_OPTIONS = "-Xms512m -Xmx512m -XX:TieredStopAtLevel=1"
"""Without Java's second compiler, which takes 40 % of the processor time until a server answers,
and pays off only after longer than these servers live."""
STOP_SECONDS = 60


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


def run_program(*command: str, env: dict[str, str] | None = None, stdin: str | None = None) -> None:
    """Run a program to its end; fail with what it said."""
    done = subprocess.run(
        command, env=env, input=stdin, capture_output=True, text=True, timeout=280, check=False
    )
    if done.returncode:
        pytest.fail(f"{command[0]} failed with {done.returncode}: {done.stderr[-2000:]}")


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


def as_nobody() -> list[str]:
    """Return the start of a command that runs its rest without root's rights."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


@contextmanager
def running(
    program: Path, place: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, and end it."""
    # Its rest ends when pytest ends, even by SIGKILL.
    to_the_end = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    pid_file = place / "data" / "server.pid"
    with (place / "output.log").open("wb") as output:
        process = subprocess.Popen(
            [*as_nobody(), *to_the_end, str(program), "-p", str(pid_file)],
            env={"PATH": os.environ["PATH"], **environment},
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


def wait_for(
    url: str,
    process: subprocess.Popen[bytes],
    place: Path,
    *handlers: urllib.request.BaseHandler,
) -> None:
    """Return once a server has elected itself and answers; fail with the end of its log."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError):  # urllib's errors are OSErrors
            opener.open(f"{url}/_cluster/health?wait_for_status=yellow&timeout=5s", timeout=10)
            return
        time.sleep(0.1)
    what = "did not answer in time" if process.poll() is None else "ended at once"
    tail = (place / "output.log").read_text(errors="replace")[-3000:]
    pytest.fail(f"The server {what}; the end of its log:\n{tail}")


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


def _download(package: Package, folder: Path) -> Path:
    run_program(
        "npm",
        "install",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(folder),
        f"{package.name}@{package.version}",
    )
    parts = sorted(folder.glob(f"node_modules/{package.name}-[1-5]/target/*.tar.gz.a?"))
    tarball, digest = folder / "server.tar.gz", hashlib.new(package.algorithm)
    with tarball.open("wb") as whole:
        for part in parts:
            with part.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
                    whole.write(block)
    if digest.hexdigest() != package.digest:
        pytest.fail(
            f"{package.name}@{package.version} is not the official {package.server}: wrong "
            f"{package.algorithm}."
        )
    return tarball
