"""Where the work of an experiment is done: in this process, or by Ray on this or other machines."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from fairqr.agents.models.cache import ReplyCache
from fairqr.base.errors import InputError, WorkersError, one_line
from fairqr.base.extras import library
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.prompts.library import PromptLibrary

AT_ONCE = 2
"""How many jobs are under way at the same time where nothing is said."""

LOCAL = "ray://local"
RETRIES = 2
"""How often a job is repeated after its process died."""

_ADDRESS = re.compile(r"ray://(local|[^/\s@?#]+:[0-9]{1,5})")

T = TypeVar("T")


@dataclass
class Tools:
    """The open indexes and models of one process, each opened once.

    A job is a function of such tools and of plain data. On Ray it is done by a worker's tools.

    Attributes:
        prompts: The prompts of the user who runs the experiment.
        replies: Where replies of models are kept.
        at_once: How many jobs may be under way at the same time.
        work: :func:`_work` as a remote function of Ray; None for this process.
    """

    prompts: PromptLibrary
    replies: ReplyCache = field(default_factory=ReplyCache)
    at_once: int = AT_ONCE
    work: Any = None
    _kept: dict[str, tuple[object, Any]] = field(default_factory=dict, init=False)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict, init=False)

    async def do(self, job: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Do a job, which takes the tools before its arguments.

        Raises:
            FairqrError: The job raised it.
            WorkersError: The workers cannot be reached any more, or died with this job again and
                again.
        """
        if self.work is None:
            return await job(self, *arguments)
        from ray.exceptions import RayError, RayTaskError

        try:
            reference = self.work.remote(self.prompts, self.at_once, job, arguments)
            result = asyncio.wrap_future(reference.future())
            # Ray's threads end where a future of theirs is cancelled.
            return cast("T", await asyncio.shield(result))
        except RayTaskError as error:
            raise error.cause from None
        except (RayError, ConnectionError) as error:
            raise WorkersError(
                f"The workers failed ({_reason(error)}); see Ray's logs, and run again to go on."
            ) from None

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
            thing: Any = opened()
            await thing.start()
            return cast("T", thing)

        return await self.keep(place, name, start)

    async def aclose(self) -> None:
        """Close everything that can be closed."""
        for place in [*self._kept]:
            await self._close(place)

    async def _close(self, place: str) -> None:
        _, opened = self._kept.pop(place, (None, None))
        if hasattr(opened, "aclose"):
            await opened.aclose()


async def make_ready(
    tools: Tools, opened: Callable[..., Awaitable[object]], *arguments: Any
) -> None:
    """Open what later jobs use, as a job of its own: it stays with the tools that opened it."""
    await opened(tools, *arguments)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an experiment runs; none of it changes the results.

    Attributes:
        folder: Where everything goes.
        watcher: Receives the progress.
        prompts: Where prompts come from; we send them to workers.
        workers: ``ray://local`` for a Ray that is started for the run, ``ray://HOST:PORT`` for a
            cluster, by Ray Client; None for this process.
        at_once: How many jobs may be under way at the same time; on Ray as many as it has
            processors by default.
        labels: What knows already which documents are useful, for Fair RAG.
        agree: Takes the most questions and tokens that a run may cost, and raises an error if the
            user has to agree first.
    """

    folder: Path
    watcher: StageWatcher = field(default_factory=StageWatcher)
    prompts: PromptLibrary = field(default_factory=PromptLibrary)
    workers: str | None = None
    at_once: int | None = None
    labels: Sequence[Path] = ()
    agree: Callable[[int, int], None] = lambda calls, tokens: None

    @asynccontextmanager
    async def tools(self, replies: Path) -> AsyncIterator[Tools]:
        """Return what does the jobs, and close it in the end.

        Args:
            replies: The file that keeps replies of models; workers keep theirs in memory.

        Raises:
            InputError: The workers are none of these, or Ray is not installed.
            WorkersError: The Ray cannot be reached, or has other versions.
        """
        opened = Tools(self.prompts, ReplyCache(replies), self.at_once or AT_ONCE)
        async with aclosing(opened) as tools:
            if self.workers is None:
                yield tools
                return
            ray = _connect(self.workers)
            try:
                resources = ray.available_resources()
                processors = max(1.0, resources.get("CPU", 1.0))
                tools.at_once = self.at_once or int(processors)
                # What is there is shared, so that as many as asked for find room. A worker goes on
                # after a job, so that what it has opened stays open.
                tools.work = ray.remote(
                    max_calls=0,
                    max_retries=RETRIES,
                    scheduling_strategy="SPREAD",
                    num_cpus=min(1.0, processors / tools.at_once),
                    num_gpus=min(1.0, resources.get("GPU", 0.0) / tools.at_once),
                )(_work)
                if await tools.do(_version) != version("fairqr"):
                    raise WorkersError("The workers have another fairqr; install yours there.")
                yield tools
            finally:
                ray.shutdown()


_open: list[tuple[asyncio.Runner, Tools]] = []
"""What a worker of Ray keeps from its first job on; it works for one run."""


def _work(prompts: PromptLibrary, at_once: int, job: Callable[..., Any], arguments: Any) -> Any:
    """Do a job on a worker of Ray."""
    if not _open:
        _open.append((asyncio.Runner(), Tools(prompts, at_once=at_once)))
    ((runner, tools),) = _open
    return runner.run(job(tools, *arguments))


async def _version(_: Tools) -> str:
    return version("fairqr")


def _connect(address: str) -> Any:
    """Connect to a Ray, or start one, and return its module.

    Raises:
        InputError: The address is not one of Ray, or Ray is not installed.
        WorkersError: It cannot be reached, or has other versions.
    """
    if not _ADDRESS.fullmatch(address):
        raise InputError(f"Workers are ray://local or ray://HOST:PORT, not '{one_line(address)}'.")
    # Ray reads these when it is imported. It must send no usage reports, and one that we start
    # listens on all addresses of the machine: its token is known to this run alone.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"address": address}
    if address == LOCAL:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        options = {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": 256 * 2**20,
        }
    ray = library("ray", "Work on Ray", "ray")
    try:
        with warnings.catch_warnings(action="ignore"):
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise WorkersError(
            f"There is no connection to the workers at {address} ({_reason(error)}); start Ray "
            "there with the same versions of Ray and Python and the same RAY_AUTH_TOKEN as here."
        ) from None
    return ray


def _reason(error: BaseException) -> str:
    """Return what went wrong, in part of a sentence."""
    message = str(error).strip() or type(error).__name__
    lines = message.splitlines()
    # A traceback of the server's ends with what matters.
    line = lines[-1] if "Traceback" in message else lines[0]
    return one_line(line, 200).rstrip(".")
