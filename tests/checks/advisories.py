"""Known vulnerabilities of pinned packages, as far as a service that knows them can be asked."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

SECONDS = 5
"""For one request to the service."""


def advice_on(
    pins: Iterable[tuple[str, str]], osv_url: str | None = None
) -> tuple[list[str], list[str]]:
    """Ask about packages.

    Args:
        pins: Names and versions.
        osv_url: A service that speaks OSV's protocol; defaults to PyPI, and to the public OSV
            if that does not answer.

    Returns:
        A sentence for each known vulnerability, and the packages that nothing was said about,
        which are all where no service answers.
    """
    wanted = sorted(set(pins))
    if osv_url is not None:
        return _ask(wanted, "osv", "--osv-url", osv_url)
    vulnerable, unknown = _ask(wanted, "pypi")
    return _ask(wanted, "osv") if len(unknown) == len(wanted) else (vulnerable, unknown)


def _ask(pins: list[tuple[str, str]], *service: str) -> tuple[list[str], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in pins))
        run = subprocess.run(
            [
                *(Path(sys.executable).with_name("pip-audit"), "--requirement", requirements),
                *("--disable-pip", "--no-deps", "--format", "json", "--desc", "off"),
                *("--progress-spinner", "off", "--timeout", str(SECONDS)),
                *("--cache-dir", folder, "--vulnerability-service", *service),
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
        + (
            f"fixed in {', '.join(flaw['fix_versions'])}."
            if flaw["fix_versions"]
            else "without a fix."
        )
        for each in told
        for flaw in each.get("vulns", ())
    ]
    known = {each["name"] for each in told if "vulns" in each}
    return vulnerable, [name for name, _ in pins if name not in known]
