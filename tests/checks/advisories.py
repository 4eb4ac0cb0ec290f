"""Known vulnerabilities of pinned packages, as far as a service that knows them can be asked."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SECONDS = 5
"""For one request to the service."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What came of asking.

    Attributes:
        vulnerable: A sentence for each known vulnerability.
        unknown: The packages that nothing was said about.
        asked: How many packages were asked about.
    """

    vulnerable: tuple[str, ...]
    unknown: tuple[str, ...]
    asked: int

    @property
    def is_none(self) -> bool:
        """Whether no service answered."""
        return len(self.unknown) == self.asked


def advice_on(pins: Iterable[tuple[str, str]], osv_url: str | None = None) -> Advice:
    """Ask about packages.

    Args:
        pins: Names and versions.
        osv_url: A service that speaks OSV's protocol; defaults to PyPI, and to the public OSV
            if that does not answer.
    """
    wanted = sorted(set(pins))
    if osv_url is not None:
        return _ask(wanted, "--vulnerability-service", "osv", "--osv-url", osv_url)
    advice = _ask(wanted, "--vulnerability-service", "pypi")
    return _ask(wanted, "--vulnerability-service", "osv") if advice.is_none else advice


def _ask(pins: list[tuple[str, str]], *service: str) -> Advice:
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in pins))
        run = subprocess.run(
            [
                *(Path(sys.executable).with_name("pip-audit"), "--requirement", requirements),
                *("--disable-pip", "--no-deps", "--format", "json", "--desc", "off"),
                *("--progress-spinner", "off", "--timeout", str(SECONDS)),
                *("--cache-dir", folder, *service),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        told = json.loads(run.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        told = []
    vulnerable = [
        f"{each['name']} {each['version']} has the known vulnerability {flaw['id']}; "
        + (f"mended in {', '.join(flaw['fix_versions'])}." if flaw["fix_versions"] else "unmended.")
        for each in told
        for flaw in each.get("vulns", ())
    ]
    known = {each["name"] for each in told if "vulns" in each}
    unknown = tuple(name for name, _ in pins if name not in known)
    return Advice(tuple(vulnerable), unknown, len(pins))
