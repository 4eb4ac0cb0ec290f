"""Where the work of an experiment is done: in this process, or by Ray on this or other machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import re
import secrets
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from fairqr.agents.models.cache import ReplyCache
from fairqr.base.errors import FairqrError, InputError, WorkersError, one_line
from fairqr.base.extras import library
from fairqr.prompts.library import PromptLibrary

DEFAULT_AT_ONCE = 2
"""How many things are under way at the same time where nothing is said."""

MOST_AT_ONCE = 256

LOCAL = "ray://local"
CONNECT_SECONDS = 5.0
OBJECT_STORE_BYTES = 256 * 2**20
RETRIES = 2
"""How often a job is repeated after its process died."""

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


class Startable(Protocol):
    """What has to be started before it is used."""

    async def start(self) -> None:
        """Make ready."""
        ...


S = TypeVar("S", bound=Startable)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(slots=True)
class Tools:
    """The open indexes and models of one process, each opened once.

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


@dataclass(frozen=True, slots=True)
class Pool:
    """Does jobs, in this process or on Ray.

    Attributes:
        tools: What is open in this process.
        at_once: How many jobs may be under way at the same time.
        remote: Begins a job on Ray; None for this process.
    """

    tools: Tools
    at_once: int = DEFAULT_AT_ONCE
    remote: Callable[..., Any] | None = None

    @classmethod
    def here(cls, prompts: PromptLibrary, replies: Path, at_once: int = DEFAULT_AT_ONCE) -> Self:
        """Return one that asks with these prompts in this process, and keeps replies in a file."""
        return cls(Tools(prompts, ReplyCache(replies)), at_once)

    async def do(self, job: Job[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Do a job, and keep what models replied in it.

        Raises:
            FairqrError: The job raised it.
            WorkersError: The workers cannot be reached any more, or died with this job again and
                again.
        """
        if self.remote is None:
            return await job(self.tools, *arguments, **named)
        done, replies = await _result(self.remote(job, arguments, named))
        if replies:
            await self.tools.replies.put_many(replies)
        if isinstance(done, Failure):
            raise done.error()
        return cast("T", done)


@contextlib.asynccontextmanager
async def opened_pool(
    workers: Workers, prompts: PromptLibrary, replies: Path
) -> AsyncIterator[Pool]:
    """Connect to a Ray, if that does the work, and let go of it in the end.

    Args:
        workers: Ray or this process.
        prompts: The prompts, which we send to the workers.
        replies: The file that keeps replies of models. Workers start with its replies, and it gets
            theirs.

    Raises:
        InputError: Ray is not installed.
        WorkersError: The Ray cannot be reached.
    """
    here = Pool.here(prompts, replies, workers.at_once or DEFAULT_AT_ONCE)
    if not workers.ray:
        yield here
        return
    kept: dict[str, dict[str, Any]] = {}
    if await asyncio.to_thread(replies.exists):  # to look into it would make it
        async for batch in here.tools.replies.batches(1000):
            kept |= batch
    with connected(workers.ray):
        import ray

        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        processors = max(1.0, free.get("CPU", 1.0))
        most = workers.at_once or min(int(processors), MOST_AT_ONCE)
        # What is there is shared, so that as many as asked for find room.
        room = {"num_cpus": processors, "num_gpus": free.get("GPU", 0.0)}
        work = ray.remote(_work).options(
            max_retries=RETRIES,
            scheduling_strategy="SPREAD",
            **{name: min(1.0, number / most) for name, number in room.items()},
        )
        told = (secrets.token_hex(16), versions_here(), [ray.put((prompts, kept))])
        yield Pool(here.tools, most, lambda *asked: work.remote(*told, *asked))


async def _result(reference: Any) -> Any:
    """Wait for a job on Ray; it ends if nobody waits any more.

    Raises:
        WorkersError: Its process died, or Ray has gone.
    """
    import ray

    try:
        # Ray's threads end where a future of theirs is cancelled.
        return await asyncio.shield(asyncio.wrap_future(reference.future()))
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # where Ray has gone, the job has too
            ray.cancel(reference, force=True)
        raise
    except ray.exceptions.RayTaskError:
        raise  # an error in the code of a job, with its traceback
    except ray.exceptions.RayError as error:
        raise WorkersError(
            f"The workers failed ({reason_of(error)}); see Ray's logs for why, and run again: "
            "the results so far are kept."
        ) from None
    except ConnectionError as error:
        raise WorkersError(
            f"The connection to the workers was lost ({reason_of(error)}); run again: the "
            "results so far are kept."
        ) from None


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a Ray, or start one, and let go of it in the end.

    Args:
        address: ``ray``, ``ray://local`` or ``ray://HOST:PORT``.

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
    joined: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "ray":
        address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        with warnings.catch_warnings(action="ignore"):
            if address.startswith("ray://") and address != LOCAL:
                _check_listens(address)
            if address == "auto":
                with contextlib.suppress(ConnectionError):
                    ray.init("auto", **joined)
            if not ray.is_initialized():
                is_own = address in (LOCAL, "auto")
                ray.init("local" if is_own else address, **joined, **(own if is_own else {}))
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


def _check_listens(address: str) -> None:
    """Fail at once where nothing listens; Ray tries for half a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OverflowError:
        raise ConnectionError("there is no such port") from None


def reason_of(error: BaseException) -> str:
    """Return what went wrong, in part of a sentence."""
    said = str(getattr(error, "strerror", None) or error).strip() or type(error).__name__
    # A traceback of the server's ends with what matters.
    lines = said.splitlines()
    return one_line(lines[-1 if "Traceback" in said else 0], 200).rstrip(".")


# --- what runs in the processes of a Ray ----------------------------------------------------------


class _NewReplies(ReplyCache):
    """Replies in memory, of which the new ones are told to the process of the user."""

    def __init__(self) -> None:
        super().__init__()
        self._new: dict[str, Mapping[str, Any]] = {}

    async def put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects."""
        await super().put_many(values)
        self._new |= values

    def taken(self) -> dict[str, Mapping[str, Any]]:
        """Return those that are new since the last time."""
        taken, self._new = self._new, {}
        return taken


_here: dict[str, tuple[asyncio.Runner, Tools]] = {}
"""What is open in this process for a run, by its id, and the event loop that it belongs to."""


def _work(
    run: str, versions: Mapping[str, str], told: list[Any], job: Any, given: Any, named: Any
) -> tuple[Any, dict[str, Mapping[str, Any]]]:
    """Do a job in a process of Ray; return its result or its failure, and new replies."""
    here = versions_here()
    try:
        for name in [name for name, it in versions.items() if here[name] != it]:
            raise WorkersError(
                f"There is {name} {here[name]}, and where you run it {versions[name]}; results "
                "would differ, so install the same on both sides."
            )
        if run not in _here:
            import ray

            prompts, known = ray.get(told[0])
            replies = _NewReplies()
            _here[run] = asyncio.Runner(), Tools(prompts, replies)
            _here[run][0].run(replies.put_many(known))
            replies.taken()
        runner, tools = _here[run]
        done: Any = runner.run(job(tools, *given, **named))
    except FairqrError as error:
        done = Failure.of(error)
    except OSError as error:
        said = one_line(error.strerror or error)
        done = Failure.of(WorkersError(f"{said}; check its paths, its rights and its disk."))
    return done, cast("_NewReplies", _here[run][1].replies).taken() if run in _here else {}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of fairqr that stopped a job, as data; its classes differ in what makes them."""

    kind: type[FairqrError]
    message: str
    more: dict[str, Any]

    @classmethod
    def of(cls, error: FairqrError) -> Failure:
        """Describe an error, and where it was."""
        where = f"{socket.gethostname()} (process {os.getpid()})"
        return cls(type(error), f"On the worker {where}: {error}", dict(vars(error)))

    def error(self) -> FairqrError:
        """Return the error."""
        made = self.kind.__new__(self.kind, self.message)
        vars(made).update(self.more)
        return made


def versions_here() -> dict[str, str]:
    """Return the versions that all workers have to share."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"fairqr": version("fairqr"), "Python": python}
