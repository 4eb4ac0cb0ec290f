"""The house: one import name, a wheel of just that, and locked requirements within bounds."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.checks.lock import check_bounds, check_lines, pins_of

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"
LAYERS = ("base", "agents", "graph", "prompts", "retrieval", "evaluation")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of what git tracks, so that nothing stale gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(ROOT / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """A subpackage that pyproject.toml does not list would be left out silently."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {info.filename: info.compress_size for info in archive.infolist()}
    tops = {name.split("/")[0] for name in sizes}
    assert tops == {"fairqr", f"fairqr-{wheel.name.split('-')[1]}.dist-info"}
    listed = subprocess.run(
        ["git", "ls-files", *LAYERS, "src"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in listed.stdout.splitlines():
        assert f"fairqr/{name.removeprefix('src/fairqr/')}" in sizes
    del sizes["fairqr/retrieval/corpora/notables/documents.jsonl.gz"]
    assert max(sizes.values()) < 1e5, "weights are pulled, not shipped"
    assert wheel.stat().st_size < 3.25 * 2**20


def test_no_layer_is_importable_by_its_bare_name() -> None:
    """A bare ``agents`` would collide with the one that other distributions install."""
    code = (
        "import sys, fairqr.api, fairqr.graph.studio, fairqr.cli.main\n"
        f"assert not set({LAYERS}) & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


@pytest.mark.promise("command")
def test_every_requirement_is_locked_by_hash() -> None:
    """The lock pins every requirement with hashes, and names no place to get it from."""
    text = (ROOT / "requirements.lock").read_text()
    assert list(check_lines(text)) == []
    assert list(check_bounds(pins_of(text), ROOT / "pyproject.toml")) == []
    # Which build of torch fits depends on the machine, so the Makefile names its version.
    assert re.search(r"^TORCH \?= 2\.\d+\.\d+$", MAKEFILE.read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for line in itertools.chain(project["dependencies"], *extras):
        assert "<" in line or Requirement(line).name in ("xllamacpp", "pip", "setuptools"), line


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements-demo.lock", ["local"]),
        ("deploy/requirements.lock", ["service", "otel", "mcp"]),
    ],
)
def test_a_smaller_lock_has_the_same_versions(lock: str, extras: list[str]) -> None:
    text = (ROOT / lock).read_text()
    assert list(check_lines(text)) == []
    pins = pins_of(text)
    whole = {(pin.name, pin.version) for pin in pins_of((ROOT / "requirements.lock").read_text())}
    assert {(pin.name, pin.version) for pin in pins} <= whole
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    needed = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]
    names = {pin.name for pin in pins}
    assert {canonicalize_name(Requirement(line).name) for line in needed} <= names
    assert not names & {"ray", "playwright", "mypy", "pytest", "torch", "pandas"}
