"""What runs in the processes of a Ray; nothing here imports Ray."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from fairqr.agents.models.cache import ReplyCache
from fairqr.base.errors import FairqrError, WorkersError, one_line
from fairqr.evaluation.workers.tools import Job, Tools
from fairqr.prompts.library import PromptLibrary


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of fairqr that stopped a job, as data.

    Attributes:
        kind: Its class.
        message: For people.
        more: Its other attributes.
    """

    kind: type[FairqrError]
    message: str
    more: dict[str, Any]

    @classmethod
    def of(cls, error: FairqrError) -> Failure:
        """Describe an error, and where it was."""
        return cls(type(error), f"On the worker {_here()}: {error}", dict(vars(error)))

    def error(self) -> FairqrError:
        """Return the error; the classes differ in what they are made from."""
        made = self.kind.__new__(self.kind, self.message)
        made.args = (self.message,)
        vars(made).update(self.more)
        return made


class Worker:
    """An actor that does jobs, several at a time in one event loop.

    Args:
        prompts: The prompts of the user who runs the experiment.
        replies: The actor that keeps replies of models.
    """

    def __init__(self, prompts: PromptLibrary, replies: Any) -> None:
        self._tools = Tools(prompts, SharedReplies(replies))

    async def versions(self) -> dict[str, str]:
        """Return the versions that results depend on."""
        return versions_here()

    async def do(self, job: Job[..., Any], arguments: tuple[Any, ...], named: Any) -> Any:
        """Do a job; an error of fairqr is returned as a :class:`Failure`."""
        try:
            return await job(self._tools, *arguments, **named)
        except FairqrError as error:
            return Failure.of(error)
        except OSError as error:
            said = one_line(error.strerror or error)
            return Failure.of(WorkersError(f"{said}; check its paths, its rights and its disk."))


class Replies:
    """An actor that all workers keep replies in, so that none asks what another has asked."""

    def __init__(self) -> None:
        self._replies: dict[str, dict[str, Any]] = {}
        self._new: dict[str, dict[str, Any]] = {}
        self._some = asyncio.Event()
        self._ended = False

    async def load(self, replies: Mapping[str, dict[str, Any]]) -> None:
        """Take replies that were kept before."""
        self._replies.update(replies)

    async def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the replies that are known, by key."""
        return {key: self._replies[key] for key in keys if key in self._replies}

    async def put_many(self, values: Mapping[str, dict[str, Any]]) -> None:
        """Take new replies."""
        self._replies.update(values)
        self._new.update(values)
        self._some.set()

    async def take(self) -> dict[str, dict[str, Any]] | None:
        """Wait for replies that are new since the last time; None once there will be no more."""
        await self._some.wait()
        if not self._new:
            return None
        if not self._ended:
            self._some.clear()
        taken, self._new = self._new, {}
        return taken

    async def end(self) -> None:
        """Take that no worker asks any more."""
        self._ended = True
        self._some.set()


class SharedReplies(ReplyCache):
    """The replies of that actor; one that cannot be reached forgets, and asking goes on.

    Args:
        actor: Its handle.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self._actor = actor

    async def get_many(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the stored replies, by key."""
        try:
            found: dict[str, dict[str, Any]] = await self._actor.get_many.remote(list(keys))
        except Exception:
            return {}
        return found

    async def put_many(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Store several objects."""
        try:
            await self._actor.put_many.remote({key: dict(value) for key, value in values.items()})
        except Exception:
            return


def versions_here() -> dict[str, str]:
    """Return the versions that all workers have to share."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"fairqr": version("fairqr"), "Python": python}


def _here() -> str:
    return f"{socket.gethostname()} (process {os.getpid()})"
