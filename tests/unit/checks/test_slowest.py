"""The suite prints which files took long, with workers as without."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Test file number n takes n seconds to set up, 2n in the test, and 4n to tear down.
CONFTEST = """
import pytest
from tests.slowest import pytest_terminal_summary

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    seconds = {"setup": 1, "call": 2, "teardown": 4}[report.when]
    report.duration = seconds * int(item.path.stem.removeprefix("test_"))
    return report

@pytest.fixture
def broken():
    assert False

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.path.stem))
"""
PASSING = "def test_a(): pass\n"
OUTCOMES = {
    30: "def test_a(): assert False\n",  # 7 seconds each
    31: "import pytest\ndef test_a(): pytest.skip()\n",
    32: "def test_a(broken): pass\n",  # without the call
    33: PASSING + "class TestB:\n    def test_a(self): pass\n",
}
SECONDS = {30: 210, 31: 217, 32: 160, 33: 462, **{n: 7 * n for n in range(1, 21)}}


@pytest.mark.parametrize("workers", [[], ["--numprocesses", "3", "--dist", "loadgroup"]])
def test_the_twenty_slowest_files_and_the_total_are_printed(
    tmp_path: Path, workers: list[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in SECONDS:
        (tmp_path / f"test_{number}.py").write_text(OUTCOMES.get(number, PASSING))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", *workers],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 22 passed, 1 skipped, 1 error" in run.stdout, run.stdout + run.stderr
    assert "the slowest 20 of 24 files" in run.stdout
    printed = re.findall(r"^ *([\d.]+) s  (.+)$", run.stdout, re.MULTILINE)
    slowest = sorted(SECONDS, key=SECONDS.__getitem__, reverse=True)[:20]
    expected = [(f"{SECONDS[n]}.0", f"test_{n}.py") for n in slowest]
    assert printed == [*expected, (f"{sum(SECONDS.values())}.0", "all files")]
