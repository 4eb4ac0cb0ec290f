"""The image of the service is built from `deploy/Dockerfile`, started, and asked for a search.

No registry is asked: the base image is made of Debian's packages, under the name that the file has.
It takes root, `mmdebstrap` and `buildah`, which `make test` installs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from filelock import FileLock

from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.java_server import cache_folder

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
BASE = "docker.io/library/"
SUITE = "trixie"  # its Python is the one that the image names
PACKAGES = "python3-venv,python-is-python3,ca-certificates"
TOOLS = ("mmdebstrap", "buildah")
WEEK = 7 * 24 * 60 * 60


def missing() -> str:
    """Say what this machine lacks; empty if it can build an image."""
    if os.geteuid() != 0:
        return "an image is built as root"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"install {' and '.join(lacking)}" if lacking else ""


pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "it can"),
    pytest.mark.timeout(1200),  # making the image takes minutes
]


class Images:
    """Images and containers in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: object) -> list[str]:
        """Return a command of buildah on these images."""
        places = ["--root", self.folder / "root", "--runroot", self.folder / "run"]
        return [*map(str, ["buildah", "--storage-driver", "overlay", *places, *arguments])]

    def run(self, *arguments: object) -> str:
        """Run a command of buildah, and return what it prints."""
        return _output(self.command(*arguments))

    def inside(self, container: str, *command: str, **variables: str) -> list[str]:
        """Return what runs a command in a container, on the network of this machine."""
        given = [part for name in variables for part in ("--env", f"{name}={variables[name]}")]
        return self.command("run", "--isolation", "chroot", *given, container, "--", *command)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    folder = tmp_path_factory.mktemp("images")
    made = Images(folder)
    try:
        _make_base(made)
        how = "--isolation chroot --pull-never --format docker"
        certificates = ("--volume", "/etc/ssl/certs:/etc/ssl/certs:ro")
        built = ("--file", DOCKERFILE, "--tag", "fairqr", ROOT)
        made.run("build-using-dockerfile", *how.split(), *certificates, *built)
        made.run("from", "--pull-never", "--name", "service", "localhost/fairqr")
        yield made
    finally:
        subprocess.run(made.command("rm", "--all"), capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)  # gigabytes


def _make_base(images: Images) -> None:
    (named,) = {*re.findall(r"^FROM (python:\S+)", DOCKERFILE.read_text(), re.MULTILINE)}
    archive = _packages()
    images.run("from", "--name", "base", "scratch")
    images.run("add", "base", archive, "/")
    images.run("config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "base")
    images.run("commit", "--rm", "base", f"{BASE}{named}")
    base = images.run("from", "--pull-never", f"{BASE}{named}").strip()
    version = _output(images.inside(base, "python", "--version"))
    assert version.startswith(f"Python {named.partition(':')[2].partition('-')[0]}."), version
    images.run("rm", "--all")


def _packages() -> Path:
    """Return the archive of the packages, which is fetched once a week."""
    archive = cache_folder() / f"{SUITE}-{PACKAGES}.tar"
    with FileLock(f"{archive}.lock"):
        if not archive.exists() or time.time() - archive.stat().st_mtime > WEEK:
            made = archive.with_suffix(".new.tar")
            include = f"--include={PACKAGES}"
            _output(["mmdebstrap", "--variant=minbase", include, SUITE, str(made)])
            made.rename(archive)
    return archive


@pytest.mark.promise("service")
def test_the_image_searches_as_a_user_without_rights(images: Images, tmp_path: Path) -> None:
    """The image is built and searches as a user without rights."""
    made = json.loads(images.run("inspect", "--type", "image", "localhost/fairqr"))
    made = made["Docker"]["config"]
    assert (made["Entrypoint"], made["Cmd"]) == (["fairqr"], ["serve"])
    assert made["StopSignal"] == "SIGTERM"
    assert _output(images.inside("service", "id", "-un")).strip() == "fairqr"
    assert "fairqr" in _output(images.inside("service", *made["Entrypoint"], "--version"))
    port = free_port()
    address = {"FAIRQR_SERVICE_HOST": "127.0.0.1", "FAIRQR_SERVICE_PORT": str(port)}
    models = {"FAIRQR_MODEL": "feedback", "FAIRQR_SERVICE_MODELS": "feedback"}
    command = images.inside("service", *made["Entrypoint"], *made["Cmd"], **address, **models)
    log = tmp_path / "log"
    with log.open("wb") as output, httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"

            def ready() -> bool:
                assert child.poll() is None, log.read_text()
                with contextlib.suppress(httpx.TransportError):
                    return client.get(f"{url}/healthz").status_code == 200
                return False

            until(ready)
            asked = {"query": "mathematician", "attributes": ["gender"], "k": 10}
            answer = client.post(f"{url}/v1/search", json=asked).raise_for_status().json()
            assert len(answer["ranking"]) == 10
            assert answer["divergence"] < answer["baseline"]["divergence"]
            # What the engine of containers asks, on the port that is set.
            kind, *check = made["Healthcheck"]["Test"]
            assert kind == "CMD"
            inside = images.inside("service", *check, **address)
            assert subprocess.run(inside, check=False).returncode == 0
        finally:
            child.terminate()
            child.wait(timeout=PATIENCE)


@pytest.mark.promise("service")
def test_the_image_holds_no_tools_to_install_more(images: Images) -> None:
    """The image holds no tools to install more.

    Whoever breaks in finds no pip in its environment; buildah may lose what is said of that.
    """
    look = "from importlib.util import find_spec; exit(7 if find_spec('pip') is None else 8)"
    tried = images.inside("service", "python", "-c", look)
    assert subprocess.run(tried, timeout=PATIENCE, check=False).returncode == 7


def _output(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout
