"""What a run has done so far, kept elsewhere, so that another process can resume it.

A resumed run starts from the beginning. A step that had ended returns its earlier update, and a
question that a model had answered is not asked again. We recognise steps by their name and their
input state, and questions by their text. Their order does not count, since parallel steps may
change it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langgraph.types import Overwrite

from fairqr.agents.models.cache import surroundings
from fairqr.agents.models.replies import Reply, Usage

_FINAL = ("ok", "parse_error", "refused", "invalid_request", "unsupported")
"""Asking again would not change these statuses. After others, such as a timeout, we ask again."""


class RunJournal:
    """The journal of one run; see :class:`fairqr.agents.models.cache.Journal`.

    Args:
        keep: Keeps the reply to a question, given its key and a record of plain data.
        steps: The updates of the steps that have ended, by key.
        replies: The records that ``keep`` was given, by key.

    Attributes:
        version: Of the index. Steps of an earlier attempt over another version run again.
    """

    def __init__(
        self,
        keep: Callable[[str, dict[str, Any]], Awaitable[None]],
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        replies: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.version = ""
        self._keep = keep
        self._steps = dict(steps or {})
        self._replies = dict(replies or {})
        self._asked: Counter[str] = Counter()
        self._keys: dict[str, str] = {}

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt has finished a step or got a reply."""
        return bool(self._steps or self._replies)

    def begin(self, name: str, state: object, task: str) -> dict[str, Any] | None:
        """Return the update of a step from an earlier attempt, or None if it has to run.

        Args:
            name: The name of the node.
            state: The state that the node gets, as plain data.
            task: LangGraph's id of this execution.
        """
        given = json.dumps(state, sort_keys=True, separators=(",", ":"))
        key = f"{name}:{hashlib.sha256((self.version + given).encode()).hexdigest()[:32]}"
        self._keys[task] = key
        kept = self._steps.get(key)
        return None if kept is None else dict(kept)

    def key_of(self, task: str) -> str:
        """Return the key of a step that has begun; it is the same in each attempt."""
        return self._keys[task]

    async def once(
        self,
        key: str,
        check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        ask: Callable[[], Awaitable[Reply]],
    ) -> Reply:
        """Return the kept reply to a question, or ask it and keep the reply."""
        short = hashlib.sha256(key.encode()).hexdigest()[:32]
        id_ = f"{short}:{self._asked[short]}"  # if a question is asked twice, keep both replies
        self._asked[short] += 1
        if (kept := self._replies.get(id_)) is not None:
            try:
                return _reply_of(kept, check)
            except (KeyError, TypeError, ValueError):
                pass  # another version of fairqr wrote it
        reply = await ask()
        if reply.status in _FINAL:
            await self._keep(id_, {**dataclasses.asdict(reply), "value": dict(reply.value)})
        return reply


def run_journal() -> RunJournal | None:
    """Return the journal of the current run, or None if it has none."""
    journal = surroundings().journal
    return journal if isinstance(journal, RunJournal) else None


def kept_update(update: Mapping[str, Any], overwrites: list[str]) -> dict[str, Any]:
    """Return the update of a step from its kept form.

    Args:
        update: The update as plain data.
        overwrites: The keys with values that replace those of the state and are not added to them.
    """
    return {key: Overwrite(value) if key in overwrites else value for key, value in update.items()}


def _reply_of(
    record: Mapping[str, Any], check: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Reply:
    if record["status"] not in _FINAL:
        raise ValueError("no such status")
    value = check(record["value"]) if record["status"] == "ok" else {}
    return Reply(record["status"], value, record["message"], Usage(**record["usage"]))
