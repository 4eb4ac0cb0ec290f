"""What jobs work with: a worker's open indexes and models, each opened once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from fairqr.agents.models.cache import ReplyCache
from fairqr.prompts.library import PromptLibrary

T = TypeVar("T")
P = ParamSpec("P")


class Startable(Protocol):
    """What has to be started before it is used."""

    async def start(self) -> None:
        """Make ready."""
        ...


S = TypeVar("S", bound=Startable)


@dataclass(slots=True)
class Tools:
    """The open things of one worker, by what they are for.

    Attributes:
        prompts: The prompts of the user who runs the experiment.
        replies: Where replies of models are kept.
    """

    prompts: PromptLibrary
    replies: ReplyCache
    _kept: dict[str, tuple[object, Any]] = field(default_factory=dict, init=False)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict, init=False)

    async def keep(self, place: str, name: object, opened: Callable[[], Awaitable[T]]) -> T:
        """Return the thing that is open at a place, after opening it if necessary.

        Args:
            place: It has room for one thing. Another one there is closed first, since large
                models do not fit side by side. What jobs use at the same time needs a place of its
                own.
            name: The name of the thing; anything that can be compared.
            opened: Opens it.
        """
        async with self._locks.setdefault(place, asyncio.Lock()):
            if place not in self._kept or self._kept[place][0] != name:
                await self._close(place)
                self._kept[place] = (name, await opened())
            return cast("T", self._kept[place][1])

    async def started(self, place: str, name: object, opened: Callable[[], S]) -> S:
        """Return the thing that is open at a place as :meth:`keep` does; it is also started."""

        async def start() -> S:
            made = opened()
            await made.start()
            return made

        return await self.keep(place, name, start)

    async def aclose(self) -> None:
        """Close everything that can be closed."""
        for place in [*self._kept]:
            await self._close(place)

    async def _close(self, place: str) -> None:
        _, opened = self._kept.pop(place, (None, None))
        if hasattr(opened, "aclose"):
            await opened.aclose()


Job = Callable[Concatenate[Tools, P], Awaitable[T]]
"""A function of a module of fairqr; what it takes and gives is plain data."""


class Pool(Protocol):
    """Workers that do jobs."""

    @property
    def tools(self) -> Tools:
        """What is open in this process."""
        ...

    @property
    def at_once(self) -> int:
        """How many jobs may be under way at the same time."""
        ...

    async def do(self, job: Job[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Have a job done by one of the workers.

        Raises:
            FairqrError: The job raised it.
            WorkersError: The workers cannot be reached any more, or died with this job again and
                again.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalPool:
    """Does jobs in this process.

    Attributes:
        tools: What they work with.
        at_once: How many jobs may be under way at the same time.
    """

    tools: Tools
    at_once: int = 4

    @classmethod
    def of(cls, prompts: PromptLibrary, replies: Path, at_once: int = 4) -> LocalPool:
        """Return a pool that asks with these prompts, and keeps replies in this file."""
        return cls(Tools(prompts, ReplyCache(replies)), at_once)

    async def do(self, job: Job[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Do a job."""
        return await job(self.tools, *arguments, **named)
