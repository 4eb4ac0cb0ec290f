"""The audits of the service and of agents: the same function as ``fairqr.audit``."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from filelock import AsyncFileLock

from fairqr.base.errors import OtherRunError
from fairqr.evaluation.experiments.progress import QuietWatcher
from fairqr.graph.service.engine.engine import AuditResult, Tell
from fairqr.graph.service.engine.requests import AuditRequest
from fairqr.retrieval.engines.engine import SearchEngine

EVALUATION = ("jinja2", "markdown_it", "matplotlib", "pandas")
"""The libraries of the extra ``evaluation`` that audits need."""

PAUSE = 0.5
"""Seconds between two checks whether another worker has released a folder."""


class ServiceAuditor:
    """See :class:`fairqr.graph.service.engine.engine.Auditor`."""

    @classmethod
    def if_installed(cls) -> Self | None:
        """Return an auditor, or None without the extra ``evaluation``."""
        return None if any(find_spec(name) is None for name in EVALUATION) else cls()

    async def check(self, options: Mapping[str, Any]) -> None:
        """Check the options of an audit."""
        (await _auditing()).audit_spec(options)

    async def __call__(
        self, engine: SearchEngine, asked: AuditRequest, folder: Path | None, tell: Tell
    ) -> AuditResult:
        """Audit an engine."""
        auditing = await _auditing()

        async def attempt() -> AuditResult:
            found = await auditing.audit(
                engine,
                [it.model_dump() for it in asked.queries],
                weight="weight" if any(it.weight != 1 for it in asked.queries) else None,
                folder=folder,
                withhold_place=True,
                watcher=_Watcher(tell),
                **asked.options,
            )
            text = await asyncio.to_thread((found.folder / "audit.json").read_text, "utf-8")
            return AuditResult(
                findings=found.findings, digest=found.digest, figures=json.loads(text)
            )

        if folder is None:
            return await attempt()
        from fairqr.evaluation.experiments.folder import LOCK

        await asyncio.to_thread(folder.mkdir, 0o700, parents=True, exist_ok=True)
        # A worker that lost this audit, such as a frozen one, has to release its folder first.
        async with AsyncFileLock(folder / LOCK, poll_interval=PAUSE):
            pass
        try:
            return await attempt()
        except OtherRunError:
            # The index was rebuilt since an earlier attempt.
            await asyncio.to_thread(shutil.rmtree, folder)
            return await attempt()


async def _auditing() -> Any:
    # Its libraries take long to import, and few services are asked for an audit.
    return await asyncio.to_thread(import_module, "fairqr.auditing")


class _Watcher(QuietWatcher):
    """Reports how many steps of a stage are done."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._stage, self._done, self._of = "", 0, 0

    def stage(self, what: str, total: int, done: int) -> None:
        """Start a stage."""
        self._stage, self._done, self._of = what, done, total
        if done:
            self._tell(what, done, total)

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        self._done += steps
        self._tell(self._stage, self._done, self._of)
