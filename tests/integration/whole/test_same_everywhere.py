"""Every machine decides alike: processors without some instructions, and other kernels of BLAS."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numpy._core import _multiarray_umath as kernels

from tests.servers.local_model import share_vectors
from tests.servers.model_server import Command, clean_environment, command

__all__ = ["clean_environment", "command"]

VARYING = {"seconds", "begun", "ended", "folder", "digest", "sha256", "versions"}
FOUND = [name for name in kernels.__cpu_dispatch__ if kernels.__cpu_features__.get(name)]
"""The instructions that numpy uses here beyond those that it was built for."""
MACHINES = [
    {"NPY_DISABLE_CPU_FEATURES": " ".join(FOUND), "OPENBLAS_CORETYPE": "Nehalem"},
    {"OPENBLAS_CORETYPE": "Haswell"},
]


@functools.cache
def decided(**environment: str) -> Any:
    """What a process of its own decides."""
    command = [sys.executable, "-m", "tests.integration.whole.decided"]
    return json.loads(subprocess.check_output(command, env={**os.environ, **environment}))


def compare(one: Any, other: Any, path: str = "") -> None:
    """Texts, ids and counts are the same; figures are, but for the last digits."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for name in one.keys() - VARYING:
            compare(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other, strict=True)):
            compare(*pair, f"{path}[{number}]")
    elif isinstance(one, float) and isinstance(other, float):
        same = math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
        assert same or (math.isnan(one) and math.isnan(other)), (path, one, other)
    else:
        assert one == other, path


@pytest.mark.promise("objective")
@pytest.mark.parametrize("environment", MACHINES, ids=["old", "other"])
def test_another_machine_gives_the_same_lists_and_figures(environment: dict[str, str]) -> None:
    """Other processors give the same lists and figures."""
    here, there = decided(), decided(**environment)
    assert len(here["steps"]) == 200
    assert any(len(result["iterations"]) > 1 for result in here["searches"])
    compare(here, there)


PART = (
    *("tests/unit/evaluation/reports", "tests/unit/evaluation/test_estimates.py"),
    *("tests/unit/evaluation/probes", "tests/unit/agents/test_statistics.py"),
    "tests/unit/graph/test_golden_results.py",
)
"""The tests of what is compared and printed."""


@pytest.mark.parametrize("environment", MACHINES, ids=["old", "other"])
def test_a_part_of_the_tests_passes_on_another_machine(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PART]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.promise("audit")
@pytest.mark.model
def test_an_audit_of_this_machine_verifies_on_others(
    command: Command, minilm_cache: Path, tmp_path: Path
) -> None:
    """An audit of one processor verifies on others.

    Relevance is estimated, so its figures have all digits; kernels differ in the last ones.
    """
    share_vectors(minilm_cache)
    queries, audit = tmp_path / "queries.txt", tmp_path / "audit"
    queries.write_text("physicist\npainter\nwriter\ncomposer\nchemist\nsinger\npolitician\n")
    asked = (
        *("--corpus", "notables", "--retriever", "bm25", "--queries", queries),
        *("--attribute", "gender", "--depth", "21", "--set", "widen=false"),
    )
    done = command("audit", *asked, "-o", audit)
    assert done.code == 0, done.stderr
    assert json.loads((audit / "audit.json").read_text())["relevance"] == "estimated"
    digest = done.stdout.split("digest: ")[1].strip()
    for machine in MACHINES:
        done = command("audit", "verify", audit, "--digest", digest, **machine)
        assert done.code == 0, (machine, done.stderr)
        assert "has the digest that you gave.\nAll that is checked follows from raw/" in done.stdout
