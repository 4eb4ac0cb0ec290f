"""Doing many things, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from fairqr.base.errors import FairqrError

__all__ = ["all_of"]

T = TypeVar("T")


async def all_of(things: Iterable[T], work: Callable[[T], Awaitable[None]], at_once: int) -> None:
    """Do something with each thing, at most so many at a time.

    Raises:
        FairqrError: What stopped one; the others are stopped too.
    """
    slots = asyncio.Semaphore(at_once)

    async def one(thing: T) -> None:
        async with slots:
            await work(thing)

    stopped: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            for thing in things:
                group.create_task(one(thing))
    except* (FairqrError, OSError) as errors:
        stopped += errors.exceptions
    if stopped:
        # What stops one stops them all; the first sentence says it.
        raise stopped[0]
