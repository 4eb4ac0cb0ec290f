"""Jobs on a Ray: one actor for each processor that is free, and one that keeps replies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import socket
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from fairqr.agents.models.cache import ReplyCache
from fairqr.base.errors import WorkersError, one_line
from fairqr.base.extras import library
from fairqr.evaluation.workers.choice import DEFAULT_AT_ONCE, MOST_AT_ONCE, Workers
from fairqr.evaluation.workers.tools import Job, LocalPool, P, Pool, Tools
from fairqr.evaluation.workers.worker import Failure, Replies, Worker, versions_here
from fairqr.prompts.library import PromptLibrary

T = TypeVar("T")

RETRIES = 2
"""How often a job is repeated after its worker died."""

SAVING_SECONDS = 10.0
LOAD_AT_ONCE = 1000

FOUND = "ray"
LOCAL = "ray://local"
CONNECT_SECONDS = 5.0
OBJECT_STORE_BYTES = 256 * 2**20


@dataclass(slots=True)
class _Actor:
    """A worker, and how many jobs it has."""

    handle: Any
    jobs: int = 0


class RayPool:
    """Workers of a Ray; see :func:`opened_pool`.

    Attributes:
        tools: What is open in this process.
        at_once: How many jobs may be under way at the same time.
    """

    def __init__(self, actors: list[_Actor], tools: Tools, at_once: int) -> None:
        self.tools = tools
        self.at_once = at_once
        self._actors = actors

    async def do(self, job: Job[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Have a job done by the worker that has the fewest.

        Raises:
            FairqrError: The job raised it.
            WorkersError: The workers cannot be reached any more, or died with this job again and
                again.
        """
        actor = min(self._actors, key=lambda each: each.jobs)
        actor.jobs += 1
        try:
            done = await _result(actor.handle.do.remote(job, arguments, named))
        finally:
            actor.jobs -= 1
        if isinstance(done, Failure):
            raise done.error()
        return cast("T", done)


@contextlib.asynccontextmanager
async def opened_pool(
    workers: Workers, prompts: PromptLibrary, replies: Path
) -> AsyncIterator[Pool]:
    """Connect to a Ray, start workers there, and end them.

    Args:
        workers: Ray or this process; for the latter we connect to nothing.
        prompts: The prompts, which we send to the workers.
        replies: The file that keeps replies of models. Workers start with its replies, and it gets
            theirs.

    Raises:
        InputError: Ray is not installed.
        WorkersError: The Ray cannot be reached, or has other versions.
    """
    if not workers.ray:
        yield LocalPool.of(prompts, replies, workers.at_once or DEFAULT_AT_ONCE)
        return
    with connected(workers.ray):
        kept = ReplyCache(replies)
        shared = _remote(Replies, max_restarts=-1, max_task_retries=-1, num_cpus=0).remote()
        actors, most = _actors(workers, prompts, shared)
        try:
            await _check(actors)
            await _load(shared, kept)
            async with _saving(shared, kept):
                yield RayPool(actors, Tools(prompts, kept), most)
        finally:
            _end([shared, *(actor.handle for actor in actors)])


def _remote(kind: type, **options: Any) -> Any:
    import ray

    return ray.remote(kind).options(**options)


def _actors(workers: Workers, prompts: PromptLibrary, replies: Any) -> tuple[list[_Actor], int]:
    """Ask for workers, no more than there are processors and things to do at once.

    Graphics cards are shared among them, as many to a card as there have to be.
    """
    import ray

    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    processors = max(1, int(free.get("CPU", 1)))
    most = workers.at_once or min(processors, MOST_AT_ONCE)
    number = min(processors, most)
    cards = int(free.get("GPU", 0))
    share = {"num_gpus": 1 / math.ceil(number / cards)} if cards else {}
    made = _remote(
        Worker,
        num_cpus=1,
        max_concurrency=math.ceil(most / number),
        max_restarts=-1,
        max_task_retries=RETRIES,
        scheduling_strategy="SPREAD",
        **share,
    )
    return [_Actor(made.remote(prompts, replies)) for _ in range(number)], most


async def _check(actors: list[_Actor]) -> None:
    """Wait for the workers, and check that they are of this version of fairqr.

    Raises:
        WorkersError: They are not, or cannot be started.
    """
    here = versions_here()
    for there in await asyncio.gather(*(_result(it.handle.versions.remote()) for it in actors)):
        for name, version in here.items():
            if there[name] != version:
                raise WorkersError(
                    f"The workers have {name} {there[name]}, and here is {version}; results would "
                    "differ, so install the same on both sides."
                )


async def _load(shared: Any, kept: ReplyCache) -> None:
    """Tell the workers what models have been asked before."""
    async for replies in kept.batches(LOAD_AT_ONCE):
        await _result(shared.load.remote(replies))


@contextlib.asynccontextmanager
async def _saving(shared: Any, kept: ReplyCache) -> AsyncIterator[None]:
    """Write down what models reply, as it comes."""

    async def save() -> None:
        # If Ray has gone, the job that waits for it says so.
        with contextlib.suppress(WorkersError):
            while (replies := await _result(shared.take.remote())) is not None:
                await kept.put_many(replies)

    saving = asyncio.create_task(save())
    try:
        yield
    finally:
        with contextlib.suppress(WorkersError):
            await _result(shared.end.remote())
        await asyncio.wait([saving], timeout=SAVING_SECONDS)
        saving.cancel()


async def _result(reference: Any) -> Any:
    """Wait for the result of a worker.

    Raises:
        WorkersError: It died, or Ray has gone.
    """
    from ray import exceptions

    try:
        # Ray's threads end where a future of theirs is cancelled.
        return await asyncio.shield(asyncio.wrap_future(reference.future()))
    except exceptions.RayTaskError:
        raise  # an error in the code of a job, with its traceback
    except exceptions.RayError as error:
        raise WorkersError(
            f"The workers failed ({_first_line(error)}); see Ray's logs for why, and run again: "
            "the results so far are kept."
        ) from None
    except ConnectionError as error:
        raise WorkersError(
            f"The connection to the workers was lost ({reason_of(error)}); run again: the "
            "results so far are kept."
        ) from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return one_line(lines[0], 200).rstrip(".")


def _end(handles: list[Any]) -> None:
    """End actors, and what they are doing."""
    import ray

    for handle in handles:
        # Where Ray has gone, they have too.
        with contextlib.suppress(Exception):
            ray.kill(handle)


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a Ray, or start one, and let go of it in the end.

    Args:
        address: ``ray``, ``ray://local`` or ``ray://HOST:PORT``.

    Raises:
        InputError: Ray is not installed.
        WorkersError: It cannot be reached, or has other versions.
    """
    _prepare(address)
    ray = library("ray", "Work on Ray", "ray")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        with warnings.catch_warnings(action="ignore"):
            if address == LOCAL:
                ray.init("local", **options, **own)
            elif address == FOUND and (named := os.environ.get("RAY_ADDRESS")):
                address = named
                ray.init(named, **options)
            elif address == FOUND:
                try:
                    ray.init("auto", **options)
                except ConnectionError:
                    ray.init("local", **options, **own)
            else:
                _check_listens(address)
                _join(address, options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise WorkersError(
            f"There is no connection to the workers at {address} ({reason_of(error)}); start Ray "
            "there with 'ray start --head --ray-client-server-port PORT', with the same versions "
            "of Ray and Python and the same RAY_AUTH_TOKEN as here."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _prepare(address: str) -> None:
    """Set what Ray reads from the environment when it is imported, unless the user has."""
    # Ray must send no usage reports.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "ray" in sys.modules or os.environ.get("RAY_AUTH_MODE"):
        return
    has_token = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if address == LOCAL and not has_token:
        # It listens on all addresses of the machine; the token is known to this run alone.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        has_token = True
    if has_token:
        os.environ["RAY_AUTH_MODE"] = "token"


def _join(address: str, options: dict[str, Any]) -> None:
    """Connect to a cluster that listens.

    It is tried twice, since the process that a cluster starts for each client may fail under load.
    """
    import ray

    try:
        ray.init(address, **options)
    except ConnectionError:
        ray.shutdown()
        ray.init(address, **options)


def reason_of(error: BaseException) -> str:
    """Return what went wrong, in part of a sentence."""
    said = str(getattr(error, "strerror", None) or error).strip()
    # A traceback of the server's ends with what matters.
    said = said.splitlines()[-1] if "Traceback" in said else said
    return one_line(said, 200).rstrip(".")


def _check_listens(address: str) -> None:
    """Fail at once where nothing listens; Ray tries for half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OverflowError:
        raise ConnectionError("there is no such port") from None
