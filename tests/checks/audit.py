"""``python -m tests.checks.audit``: what the project depends on, checked as far as can be here.

Always: the lock is pinned and hashed and agrees with pyproject.toml, what is installed fits
together, and all licences are on a list. Where a service of advisories answers: known
vulnerabilities.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.checks.advisories import advice_on
from tests.checks.licences import check_licences
from tests.checks.lock import check_bounds, check_lines, pins_of

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything, and print what is wrong.

    Returns:
        1 where something is wrong, else 0.
    """
    parser = argparse.ArgumentParser(prog="audit", description=__doc__)
    parser.add_argument("--lock", type=Path, default=ROOT / "requirements.lock")
    parser.add_argument("--project", type=Path, default=ROOT / "pyproject.toml")
    parser.add_argument("--osv-url", help="Of a service that speaks OSV's protocol.")
    options = parser.parse_args(arguments)
    text = options.lock.read_text(encoding="utf-8")
    pins = pins_of(text)
    wrong = [
        *check_lines(text),
        *check_bounds(pins, options.project),
        *_pip_check(),
        *check_licences(pins),
    ]
    asked = {(p.name, str(p.version)) for p in pins} | _torch()
    vulnerable, unknown = advice_on(asked, options.osv_url)
    wrong += vulnerable
    for sentence in wrong:
        print(f"audit: {sentence}")
    if len(unknown) == len(asked):
        print("audit: not compared with known vulnerabilities: no advisory service can be reached.")
    elif unknown:
        print(f"audit: no advisory service knows {', '.join(unknown)}.")
    if not wrong:
        print(
            f"audit: {len(pins)} locked versions are pinned and hashed, their licences are "
            f"allowed, and {len(asked) - len(unknown)} were compared with advisories."
        )
    return 1 if wrong else 0


def _torch() -> set[tuple[str, str]]:
    """Return what is installed beside the lock."""
    found = re.search(r"^TORCH \?= (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return {("torch", found[1])} if found else set()


def _pip_check() -> list[str]:
    run = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    return run.stdout.splitlines() if run.returncode else []


if __name__ == "__main__":
    sys.exit(main())
