"""Where the work of an experiment is done: in this process, or by Ray on this or other machines."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from fairqr.agents.models.cache import ReplyCache
from fairqr.base.errors import InputError, WorkersError, one_line
from fairqr.base.extras import library
from fairqr.prompts.library import PromptLibrary

DEFAULT_AT_ONCE = 2
"""How many things are under way at the same time where nothing is said."""

MOST_AT_ONCE = 256

LOCAL = "ray://local"
OBJECT_STORE_BYTES = 256 * 2**20
RETRIES = 2
"""How often a job is repeated after its process died."""

_ADDRESS = re.compile(r"ray(?:://(?:local|[^/\s@?#]+:[0-9]{1,5}))?")

T = TypeVar("T")
P = ParamSpec("P")


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


def parse_workers(text: object, concurrency: int | None = None) -> Workers:
    """Read who is to do the work.

    Args:
        text: A number for this process; ``ray`` for the Ray that RAY_ADDRESS names or that runs
            here, or else one that is started for the run; ``ray://local`` for one that is started
            for the run; ``ray://HOST:PORT`` for a cluster, by Ray Client. None for this process.
        concurrency: How many things may be under way at the same time; it outranks a number.

    Raises:
        InputError: It is none of these, or the number is out of range.
    """
    if text is None:
        return Workers("", concurrency or DEFAULT_AT_ONCE)
    said = str(text).strip()
    if _ADDRESS.fullmatch(said):
        return Workers(said, concurrency)
    if not said.isdecimal() or not 1 <= int(said) <= MOST_AT_ONCE:
        raise InputError(
            f"The workers cannot be '{one_line(said, 60)}'; write a number from 1 to "
            f"{MOST_AT_ONCE}, ray, ray://local or ray://HOST:PORT."
        )
    return Workers("", concurrency or int(said))


@dataclass
class Tools:
    """The open indexes and models of one process, each opened once.

    Attributes:
        prompts: The prompts of the user who runs the experiment.
        replies: Where replies of models are kept.
    """

    prompts: PromptLibrary
    replies: ReplyCache = field(default_factory=ReplyCache)
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

    async def started(self, place: str, name: object, opened: Callable[[], T]) -> T:
        """Return the thing that is open at a place as :meth:`keep` does; it is also started."""

        async def start() -> T:
            made: Any = opened()
            await made.start()
            return cast("T", made)

        return await self.keep(place, name, start)

    async def aclose(self) -> None:
        """Close everything that can be closed."""
        for place in [*self._kept]:
            await self._close(place)

    async def _close(self, place: str) -> None:
        _, opened = self._kept.pop(place, (None, None))
        if hasattr(opened, "aclose"):
            await opened.aclose()

    async def do(self, job: Any, *arguments: Any) -> Any:
        """Do a job with these tools, where they are."""
        return await job(self, *arguments)


Job = Callable[Concatenate[Tools, P], Awaitable[T]]
"""A function of a module of fairqr; what it takes and gives is plain data."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Does jobs, in this process or on Ray.

    Attributes:
        tools: What is open in this process.
        at_once: How many jobs may be under way at the same time.
        free: The processes on Ray that wait for a job, as actors; None for this process.
    """

    tools: Tools
    at_once: int = DEFAULT_AT_ONCE
    free: asyncio.Queue[Any] | None = None

    @classmethod
    def here(cls, prompts: PromptLibrary, replies: Path, at_once: int = DEFAULT_AT_ONCE) -> Pool:
        """Return one that asks with these prompts in this process, and keeps replies in a file."""
        return cls(Tools(prompts, ReplyCache(replies)), at_once)

    async def do(self, job: Job[P, T], *arguments: P.args, **_: P.kwargs) -> T:
        """Do a job.

        Raises:
            FairqrError: The job raised it.
            WorkersError: The workers cannot be reached any more, or died with this job again and
                again.
        """
        if self.free is None:
            return cast("T", await self.tools.do(job, *arguments))
        actor = await self.free.get()
        try:
            return cast("T", await _result(actor.do.remote(job, *arguments)))
        finally:
            self.free.put_nowait(actor)


@asynccontextmanager
async def opened_pool(
    workers: Workers, prompts: PromptLibrary, replies: Path
) -> AsyncIterator[Pool]:
    """Connect to a Ray, if that does the work, and let go of it in the end.

    Args:
        workers: Ray or this process.
        prompts: The prompts, which we send to the workers.
        replies: The file that keeps replies of models; workers on Ray keep theirs in memory.

    Raises:
        InputError: Ray is not installed.
        WorkersError: The Ray cannot be reached, or has other versions.
    """
    pool = Pool.here(prompts, replies, workers.at_once or DEFAULT_AT_ONCE)
    if not workers.ray:
        yield pool
        return
    ray = _connect(workers.ray)
    try:
        room = ray.available_resources()
        processors = max(1.0, room.get("CPU", 1.0))
        most = workers.at_once or min(int(processors), MOST_AT_ONCE)
        # What is there is shared, so that as many as asked for find room.
        actor = ray.remote(Tools).options(
            max_restarts=-1,
            max_task_retries=RETRIES,
            scheduling_strategy="SPREAD",
            num_cpus=min(1.0, processors / most),
            num_gpus=min(1.0, room.get("GPU", 0.0) / most),
        )
        free = asyncio.Queue[Any]()
        for _ in range(most):
            free.put_nowait(actor.remote(prompts))
        shared = Pool(pool.tools, most, free)
        if (there := await shared.do(_version)) != version("fairqr"):
            raise WorkersError(
                f"There is fairqr {there}, and where you run it {version('fairqr')}; results "
                "would differ, so install the same on both sides."
            )
        yield shared
    finally:
        ray.shutdown()


async def _version(_: Tools) -> str:
    return version("fairqr")


async def _result(reference: Any) -> Any:
    """Wait for a job on Ray.

    Raises:
        WorkersError: Its process died, or Ray has gone.
    """
    from ray.exceptions import RayError, RayTaskError

    try:
        # Ray's threads end where a future of theirs is cancelled.
        return await asyncio.shield(asyncio.wrap_future(reference.future()))
    except RayTaskError as error:
        raise error.cause from None
    except (RayError, ConnectionError) as error:
        raise WorkersError(
            f"The workers failed ({_reason(error)}); see Ray's logs for why, and run again: "
            "the results so far are kept."
        ) from None


def _connect(address: str) -> Any:
    """Connect to a Ray, or start one, and return its module.

    Raises:
        InputError: Ray is not installed.
        WorkersError: It cannot be reached, or has other versions.
    """
    # Ray reads these when it is imported. It must send no usage reports, and one that we start
    # listens on all addresses of the machine: its token is known to this run alone.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL and not os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray = library("ray", "Work on Ray", "ray")
    own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    to = {"ray": {}, LOCAL: {"address": "local", **own}}.get(address, {"address": address})
    try:
        with warnings.catch_warnings(action="ignore"):
            ray.init(**to, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise WorkersError(
            f"There is no connection to the workers at {address} ({_reason(error)}); start Ray "
            "there with 'ray start --head --ray-client-server-port PORT', with the same versions "
            "of Ray and Python and the same RAY_AUTH_TOKEN as here."
        ) from None
    return ray


def _reason(error: BaseException) -> str:
    """Return what went wrong, in part of a sentence."""
    said = str(error).strip() or type(error).__name__
    # A traceback of the server's ends with what matters.
    return one_line(said.splitlines()[-1 if "Traceback" in said else 0], 200).rstrip(".")
