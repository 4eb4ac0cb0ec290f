"""Audits that the service does for its clients."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fairqr.base.errors import OtherRunError
from fairqr.evaluation.experiments.progress import StageWatcher

if TYPE_CHECKING:
    from fairqr.graph.service.execution.audits import AuditResult, ReportProgress
    from fairqr.graph.service.execution.requests import AuditRequest
    from fairqr.retrieval.engines.engine import SearchEngine

EVALUATION = ("jinja2", "markdown_it", "matplotlib", "pandas")
"""The libraries of the extra ``evaluation`` that audits need."""

PAUSE = 0.5
"""Seconds between two checks whether another worker has released a folder."""


class ServiceAuditor:
    """See :class:`fairqr.graph.service.execution.audits.Auditor`."""

    @classmethod
    def if_installed(cls) -> Self | None:
        """Return an auditor, or None without the extra ``evaluation``."""
        is_installed = all(find_spec(name) is not None for name in EVALUATION)
        return cls() if is_installed else None

    async def check(self, options: Mapping[str, Any]) -> None:
        """Check the options of an audit."""
        (await _auditing()).audit_spec(options)

    async def __call__(
        self,
        engine: SearchEngine,
        audit_request: AuditRequest,
        folder: Path | None,
        report: ReportProgress,
    ) -> AuditResult:
        """Audit an engine."""
        from filelock import AsyncFileLock

        from fairqr.evaluation.experiments.folder import LOCK
        from fairqr.graph.service.execution.audits import AuditResult

        auditing = await _auditing()
        queries = [query.model_dump() for query in audit_request.queries]
        has_weights = any(query.weight != 1 for query in audit_request.queries)

        async def attempt() -> AuditResult:
            audit = await auditing.audit(
                engine,
                queries,
                weight="weight" if has_weights else None,
                clicks=audit_request.clicks,
                folder=folder,
                withhold_place=True,
                watcher=_Watcher(report),
                **audit_request.options,
            )
            file = audit.folder / "audit.json"
            figures = json.loads(await asyncio.to_thread(file.read_text, "utf-8"))
            return AuditResult(findings=audit.findings, digest=audit.digest, figures=figures)

        if folder is None:
            return await attempt()
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
    # Its libraries take long to import, and few services do audits.
    return await asyncio.to_thread(import_module, "fairqr.auditing")


class _Watcher(StageWatcher):
    """Reports how many steps of a stage are done."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._stage = ""
        self._done = 0
        self._total = 0

    def stage(self, what: str, total: int, done: int) -> None:
        """Start a stage."""
        self._stage = what
        self._done = done
        self._total = total
        if done:
            self._report(what, done, total)

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        self._done += steps
        self._report(self._stage, self._done, self._total)
