"""What a lock of requirements has to be: pinned, hashed, from nowhere special, and installed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

UNLOCKED = frozenset({"torch"})
"""Which of its builds fits depends on the machine, so the Makefile names its version."""

_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A line of the lock.

    Attributes:
        name: Normalised.
        version: The one that is pinned.
        marker: Where it is installed; None for everywhere.
    """

    name: str
    version: Version
    marker: Marker | None

    @property
    def is_for_here(self) -> bool:
        """Whether it belongs into this environment."""
        return self.marker is None or self.marker.evaluate()


def _entries(text: str) -> Iterator[str]:
    """Yield each requirement with its hashes as one line, without comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    for line in joined.splitlines():
        entry = re.sub(r"(^|\s)#.*", "", line).strip()
        if entry:
            yield entry


def check_lines(text: str) -> Iterator[str]:
    """Yield what is wrong with the lines of a lock."""
    for entry in _entries(text):
        name, hashes = _split(entry)
        if "://" in entry or entry.startswith("-"):
            yield f"The lock says where to get things from: {entry[:60]}"
        elif not hashes:
            yield f"{name} has no hash."
        elif any(not _HASH.fullmatch(each) for each in hashes):
            yield f"{name} has a hash that is no sha256."
        elif _pin(name) is None:
            yield f"{name} is not pinned to one version."


def pins_of(text: str) -> list[Pin]:
    """Return what a lock pins; lines that pin nothing are left to :func:`check_lines`."""
    found = (_pin(_split(entry)[0]) for entry in _entries(text))
    return [pin for pin in found if pin is not None]


def _split(entry: str) -> tuple[str, list[str]]:
    requirement, _, rest = entry.partition(" --hash=")
    return requirement.strip(), [f"--hash={each.strip()}" for each in rest.split("--hash=") if rest]


def _pin(requirement: str) -> Pin | None:
    try:
        read = Requirement(requirement)
    except InvalidRequirement:
        return None
    pinned = list(read.specifier)
    if read.url or len(pinned) != 1 or pinned[0].operator != "==" or "*" in pinned[0].version:
        return None
    return Pin(canonicalize_name(read.name), Version(pinned[0].version), read.marker)


def check_bounds(pins: Iterable[Pin], project: Path) -> Iterator[str]:
    """Yield what a project requires and the lock does not have, or not as it is required."""
    locked: dict[str, list[Version]] = {}
    for pin in pins:
        locked.setdefault(pin.name, []).append(pin.version)
    about = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = about.get("optional-dependencies", {}).values()
    for line in sorted({*about["dependencies"], *(line for extra in extras for line in extra)}):
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name in UNLOCKED:
            continue
        if name not in locked:
            yield f"{name} is required and not in the lock; run 'make lock'."
        for found in locked.get(name, []):
            if not wanted.specifier.contains(found, prereleases=True):
                yield f"{name} {found} is locked, and {wanted.specifier} is required."


def check_installed(pins: Iterable[Pin]) -> Iterator[str]:
    """Yield what is installed here otherwise than the lock says."""
    for pin in pins:
        if not pin.is_for_here:
            continue
        try:
            found = version(pin.name)
        except PackageNotFoundError:
            yield f"{pin.name} {pin.version} is locked and not installed."
            continue
        if Version(found) != pin.version:
            yield f"{pin.name} {pin.version} is locked, and {found} is installed."
