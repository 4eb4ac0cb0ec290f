"""What a lock of requirements has to be: pinned, hashed, and from nowhere special.

``make`` installs it with ``--require-hashes``, so what is installed is what it says.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

UNLOCKED = frozenset({"torch"})
"""Which of its builds fits depends on the machine, so the Makefile names its version."""

_PINNED = re.compile(r"([\w.-]+)(?:\[[\w.,-]+\])?==([^\s;*]+)(?: ; [^@#]+?)?")
_HASHES = re.compile(r"(?: --hash=sha256:[0-9a-f]{64})+")


class Pin(NamedTuple):
    """A line of the lock: a normalised name, and the version that is pinned."""

    name: str
    version: Version


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield each requirement and its hashes, without comments."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        requirement, *hashes = re.sub(r"(^|\s)#.*", "", line).strip().split(" --hash=")
        if requirement:
            yield requirement.strip(), "".join(f" --hash={it.strip()}" for it in hashes)


def check_lines(text: str) -> Iterator[str]:
    """Yield what is wrong with the lines of a lock."""
    for requirement, hashes in _entries(text):
        if not (_PINNED.fullmatch(requirement) and _HASHES.fullmatch(hashes)):
            yield f"{requirement[:60]} is not pinned to one version with hashes of sha256."


def pins_of(text: str) -> list[Pin]:
    """Return what a lock pins; lines that pin nothing are left to :func:`check_lines`."""
    found = (_PINNED.fullmatch(requirement) for requirement, _ in _entries(text))
    return [Pin(canonicalize_name(it[1]), Version(it[2])) for it in found if it]


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
