"""Runs audits as the service offers them: what does them, and how their progress is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, Field

from fairqr.graph.service.execution.requests import AuditRequest
from fairqr.graph.step import Step
from fairqr.graph.stream import yield_queued
from fairqr.retrieval.engines.engine import SearchEngine

PARTS = 100
"""The most progress reports of one stage of an audit."""


class AuditResult(BaseModel):
    """Who gets seen in what a source answers."""

    findings: list[str] = Field(description="The findings, in sentences.")
    digest: str = Field(
        description="The SHA-256 of the audit's manifest; `fairqr audit verify --digest` takes it."
    )
    figures: dict[str, Any] = Field(description="The content of `audit.json`.")


ReportProgress = Callable[[str, int, int], None]
"""Receives the stage of an audit, how many of its steps are done, and of how many."""


class Auditor(Protocol):
    """Runs audits. The service receives one, since it cannot import evaluation."""

    async def check(self, options: Mapping[str, Any]) -> None:
        """Check the options of an audit.

        Raises:
            FairqrError: A value is wrong.
        """

    async def __call__(
        self,
        engine: SearchEngine,
        audit_request: AuditRequest,
        folder: Path | None,
        report: ReportProgress,
    ) -> AuditResult:
        """Audit an engine.

        Args:
            engine: The engine.
            audit_request: The queries, and what to measure.
            folder: Where all files go, and where an earlier attempt may have left its progress;
                optional.
            report: Receives the progress.

        Raises:
            FairqrError: The audit cannot be done.
        """


def run_audit(
    auditor: Auditor, engine: SearchEngine, audit_request: AuditRequest, folder: Path | None = None
) -> AsyncGenerator[Step, None]:
    """Run an audit; yields steps ``progress`` and, at the end, a step ``audit`` with the result.

    Args:
        auditor: Runs the audit.
        engine: The engine.
        audit_request: The checked request.
        folder: Where all files go; optional.

    Raises:
        FairqrError: The audit cannot be done.
    """
    steps: asyncio.Queue[Step | None] = asyncio.Queue()
    reported: dict[str, int] = {}  # how many steps each stage had at its last report

    def report(stage: str, finished: int, total: int) -> None:
        since_last = finished - reported.get(stage, -total)
        is_due = since_last * PARTS >= total
        if finished == total or is_due:
            reported[stage] = finished
            progress = {"stage": stage, "done": finished, "of": total}
            steps.put_nowait(Step("progress", {"progress": progress}))

    async def audit() -> None:
        result = await auditor(engine, audit_request, folder, report)
        steps.put_nowait(Step("audit", {"audit": result.model_dump(mode="json")}))

    return yield_queued(audit, steps)
