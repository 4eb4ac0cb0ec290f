"""How one says where the work of an experiment is done: ``4``, ``ray`` or ``ray://HOST:PORT``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairqr.base.errors import InputError, one_line

DEFAULT_AT_ONCE = 2
"""How many things are under way at the same time where nothing is said."""

MOST_AT_ONCE = 256

_ADDRESS = re.compile(r"ray(?:://(?:local|[^/\s@?#]+:[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Workers:
    """Who does the work.

    Attributes:
        ray: ``ray``, ``ray://local`` or ``ray://HOST:PORT``; empty for this process.
        at_once: How many searches, questions or lists may be under way at the same time; as many as
            Ray has processors if it is None, which only Ray may have.
    """

    ray: str = ""
    at_once: int | None = DEFAULT_AT_ONCE


def parse_workers(text: str | int | None, concurrency: int | None = None) -> Workers:
    """Read who is to do the work.

    Args:
        text: A number for this process; ``ray`` for the Ray that RAY_ADDRESS names or that runs
            here, or else one that is started for the run; ``ray://local`` for one that is started
            for the run; ``ray://HOST:PORT`` for a cluster, by Ray Client. None for this process.
        concurrency: How many things may be under way at the same time, where it is said.

    Raises:
        InputError: It is none of these, or the number is said twice or out of range.
    """
    if text is None:
        return Workers("", concurrency or DEFAULT_AT_ONCE)
    said = str(text).strip()
    if _ADDRESS.fullmatch(said):
        return Workers(said, concurrency)
    if isinstance(text, bool) or not said.isdecimal() or not 1 <= int(said) <= MOST_AT_ONCE:
        raise InputError(
            f"The workers cannot be '{one_line(said, 60)}'; write a number from 1 to "
            f"{MOST_AT_ONCE}, ray, ray://local or ray://HOST:PORT."
        )
    if concurrency is not None:
        raise InputError(
            "Workers that are a number say how many things are under way at the same time, and so "
            "does --concurrency; leave one of them out."
        )
    return Workers("", int(said))
