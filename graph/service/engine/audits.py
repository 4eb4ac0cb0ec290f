"""Audits of registered sources: their results, and running one step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fairqr.base.errors import RunTimeoutError
from fairqr.graph.documented import Documented
from fairqr.graph.service.engine.requests import AuditRequest
from fairqr.graph.service.records import RunSummary
from fairqr.graph.stream import Step
from fairqr.retrieval.engines.engine import SearchEngine

PARTS = 100
"""The most progress reports of one stage of an audit."""


class AuditResult(Documented):
    """Who gets seen in what a source answers.

    Attributes:
        findings: The findings, in sentences.
        digest: The SHA-256 of the audit's manifest; ``fairqr audit verify --digest`` takes it.
        figures: The content of ``audit.json``.
    """

    findings: list[str]
    digest: str
    figures: dict[str, Any]


class AuditRun(RunSummary):
    """An audit as a run."""

    request: AuditRequest
    result: AuditResult | None = None
    problem: dict[str, Any] | None = None


Tell = Callable[[str, int, int], None]
"""Receives the stage of an audit, how many of its steps are done, and of how many."""


class Auditor(Protocol):
    """Runs audits. The service receives one, since it cannot import evaluation."""

    async def check(self, options: Mapping[str, Any]) -> None:
        """Check the options of an audit.

        Raises:
            FairqrError: A value is wrong.
        """
        ...

    async def __call__(
        self, engine: SearchEngine, asked: AuditRequest, folder: Path | None, tell: Tell
    ) -> AuditResult:
        """Audit an engine.

        Args:
            engine: The engine.
            asked: The queries, and what to measure.
            folder: Where all files go, and where an earlier attempt may have left its progress;
                optional.
            tell: Receives the progress.

        Raises:
            FairqrError: The audit cannot be done.
        """
        ...


async def audited(
    auditor: Auditor,
    engine: SearchEngine,
    asked: AuditRequest,
    folder: Path | None = None,
    seconds: float | None = None,
) -> AsyncGenerator[Step, None]:
    """Run an audit; yield steps ``progress`` and, at the end, a step ``audit`` with the result.

    Args:
        auditor: Runs the audit.
        engine: The engine.
        asked: The checked request.
        folder: Where all files go; optional.
        seconds: The time limit; optional.

    Raises:
        FairqrError: The audit cannot be done, or takes too long.
    """
    steps: asyncio.Queue[Step | None] = asyncio.Queue()
    last: dict[str, int] = {}

    def tell(stage: str, done: int, of: int) -> None:
        if done < of and stage in last and (done - last[stage]) * PARTS < of:
            return
        last[stage] = done
        told = {"stage": stage, "done": done, "of": of}
        steps.put_nowait(Step("progress", {"progress": told}))

    async def result() -> AuditResult:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await auditor(engine, asked, folder, tell)
        except TimeoutError:
            if not limit.expired():
                raise
            raise RunTimeoutError(
                f"The audit took longer than {seconds:g} seconds; give fewer queries, or raise "
                "'seconds'."
            ) from None
        finally:
            steps.put_nowait(None)

    auditing = asyncio.create_task(result())
    try:
        while (step := await steps.get()) is not None:
            yield step
        yield Step("audit", {"audit": (await auditing).model_dump(mode="json")})
    finally:
        auditing.cancel()
        await asyncio.wait({auditing})
