"""The licences of what is installed, held against those that the project may be given on with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from tests.checks.lock import Pin

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""Permissive ones, and MPL, which asks only for changes of its own files."""

EXCEPTIONS = {
    "axe-playwright-python": "MIT, which its metadata does not say; axe in it is MPL; for tests",
    "forbiddenfruit": "GPL or MIT, as one likes; needed by `langgraph dev`, for development alone",
    "langgraph-api": "Elastic 2.0: the server of `langgraph dev`, for development alone",
    "langgraph-runtime-inmem": "Elastic 2.0: as langgraph-api",
    "psycopg": "LGPL: used as it comes and exchangeable, only with PostgreSQL",
    "psycopg-binary": "LGPL: as psycopg",
    "psycopg-pool": "LGPL: as psycopg",
}
"""What has another licence, and why it may be used."""

_OLD_NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache2.0": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mit license, apache license, version 2.0": "MIT OR Apache-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
_SAYS_NOTHING = ("dfsg approved", "freely distributable", "osi approved")


def licence_of(found: Distribution) -> str:
    """Return the licence of a distribution as an SPDX expression, as far as it tells."""
    if expression := found.metadata.get("License-Expression"):
        return str(expression)
    classifiers = [
        line.rsplit(" :: ", 1)[1]
        for line in found.metadata.get_all("Classifier", [])
        if line.startswith("License :: ")
    ]
    told = [each for each in classifiers if each.lower() not in _SAYS_NOTHING]
    if not told:
        told = str(found.metadata.get("License") or "").strip().splitlines()[:1]
    return " AND ".join(_OLD_NAMES.get(each.lower(), each) for each in told)


def is_allowed(expression: str) -> bool:
    """Tell whether an SPDX expression can be met with allowed licences alone."""
    while inner := re.search(r"\(([^()]*)\)", expression):
        met = "MIT" if is_allowed(inner[1]) else "none"
        expression = f"{expression[: inner.start()]}{met}{expression[inner.end() :]}"
    return any(
        all(name.strip() in ALLOWED for name in choice.split(" AND "))
        for choice in expression.split(" OR ")
    )


def check_licences(pins: Iterable[Pin]) -> Iterator[str]:
    """Yield what has a licence that is not allowed, and exceptions that are none."""
    names = set()
    for pin in pins:
        names.add(pin.name)
        try:
            licence = licence_of(distribution(pin.name))
        except PackageNotFoundError:
            continue  # for other machines
        if is_allowed(licence) == (pin.name in EXCEPTIONS):
            yield (
                f"{pin.name} needs no exception for its licence {licence}; remove it."
                if pin.name in EXCEPTIONS
                else f"{pin.name} has the licence '{licence[:60]}', which is not on the list."
            )
    yield from (f"{name} is excepted and not locked." for name in EXCEPTIONS if name not in names)
