"""Audits of registered sources: the request, its checks, and running one step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, ConfigDict, FailFast, Field

from fairqr.base.errors import NotAllowedError, QueryError, RunTimeoutError, one_line
from fairqr.graph.documented import Documented
from fairqr.graph.service.configuration import Caps
from fairqr.graph.service.engine.bounds import check_bound, check_text
from fairqr.graph.service.engine.requests import Seed, TargetOfRequest, Texts
from fairqr.graph.service.records import RunSummary
from fairqr.graph.stream import Step
from fairqr.retrieval.encoders.opening import RetrieverName
from fairqr.retrieval.engines.engine import SearchEngine

NAMED = 80
"""Characters of the first query in the name of an audit."""

PARTS = 100
"""The most progress reports of one stage of an audit."""


def _with_weight(value: object) -> object:
    return {"query": value} if isinstance(value, str) else value


class AuditedQuery(Documented):
    """A query of an audit.

    Attributes:
        weight: How often it was asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    weight: float = Field(1.0, ge=0, le=1e9, allow_inf_nan=False)


_Query = Annotated[
    AuditedQuery, BeforeValidator(_with_weight, json_schema_input_type=AuditedQuery | str)
]


class AuditRequest(Documented):
    """An audit of a source by a list of queries.

    Attributes:
        corpus: What to audit, as ``GET /v1/indexes`` lists it; defaults to the first.
        retriever: How documents are found; as in a search.
        queries: What people search for. A text counts once; an object may give its weight.
        attributes: The attributes to measure; by default all attributes of the source.
        intersections: Also measure the combinations of every two attributes.
        k: How many results count as shown.
        depth: How many results to ask for. Those after ``k`` count as candidates that were not
            shown.
        target: The exposure that each group should get: a mixture of ``relevance``, ``population``,
            ``uniform`` and ``corpus``, or shares of one attribute. Defaults to ``relevance:1``.
        seed: Fixes all random choices.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "example": {
                "queries": ["physicist", {"query": "composer", "weight": 12}],
                "attributes": ["gender"],
                "k": 10,
            }
        },
    )

    corpus: str | None = None
    retriever: RetrieverName = Field("auto", examples=["bm25"])
    queries: Annotated[list[_Query], FailFast()] = Field(min_length=1)
    attributes: Texts = Field([])
    intersections: bool = True
    k: int = Field(10, ge=1, le=10_000)
    depth: int = Field(100, ge=2, le=10_000)
    target: TargetOfRequest = Field(None, examples=["relevance:0.5,population:0.5"])
    seed: Seed = 0

    @property
    def name(self) -> str:
        """The name of the audit, for lists of runs."""
        first, more = one_line(self.queries[0].query, NAMED), len(self.queries) - 1
        return f"{first} and {more:,} more" if more else first

    @property
    def options(self) -> dict[str, Any]:
        """What to measure, as an :class:`Auditor` takes it."""
        options: dict[str, Any] = {
            "attributes": tuple(self.attributes),
            "intersections": self.intersections,
            "k": self.k,
            "depth": self.depth,
            "seed": self.seed,
        }
        return options if self.target is None else {**options, "target": self.target}


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
        self,
        engine: SearchEngine,
        queries: Sequence[AuditedQuery],
        options: Mapping[str, Any],
        *,
        folder: Path | None,
        resumed: bool,
        tell: Tell,
    ) -> AuditResult:
        """Audit an engine.

        Args:
            engine: The engine.
            queries: The queries to ask.
            options: What to measure.
            folder: Where all files go; optional.
            resumed: Whether an earlier attempt may have left its progress there.
            tell: Receives the progress.

        Raises:
            FairqrError: The audit cannot be done.
        """
        ...


def check_audit(asked: AuditRequest, corpus: str, caps: Caps) -> AuditRequest:
    """Check a request for an audit, and fill in its source and depth.

    Args:
        asked: The request.
        corpus: The name of the source.
        caps: The caps of the service.

    Raises:
        CapError: The request exceeds a cap.
        QueryError: A query is empty.
    """
    check_bound("queries", len(asked.queries), "audit_queries", caps.audit_queries)
    for it in asked.queries:
        check_text(it.query, caps)
        if not it.query.strip():
            raise QueryError("A query of the audit is empty; leave it out.")
    check_bound("k", asked.k, "k", caps.k)
    depth = asked.depth
    if "depth" in asked.model_fields_set:
        check_bound("depth", depth, "depth", caps.depth)
    else:
        depth = max(min(depth, caps.depth), asked.k + 1)
    return asked.model_copy(update={"corpus": corpus, "depth": depth})


def not_offered() -> NotAllowedError:
    """Return the error of a service without audits."""
    return NotAllowedError(
        "Audits are not offered here; whoever runs the service can install the extra 'evaluation'."
    )


async def audited(
    auditor: Auditor | None,
    engine: SearchEngine,
    queries: Sequence[AuditedQuery],
    options: Mapping[str, Any],
    *,
    folder: Path | None = None,
    resumed: bool = False,
    seconds: float | None = None,
) -> AsyncGenerator[Step, None]:
    """Run an audit; yield steps ``progress`` and, at the end, a step ``audit`` with the result.

    Args:
        auditor: Runs the audit.
        engine: The engine.
        queries: The queries to ask.
        options: What to measure.
        folder: Where all files go; optional.
        resumed: Whether an earlier attempt may have left its progress there.
        seconds: The time limit; optional.

    Raises:
        FairqrError: The audit cannot be done, or takes too long.
    """
    if auditor is None:
        raise not_offered()
    steps: asyncio.Queue[Step | None] = asyncio.Queue()
    last: dict[str, int] = {}

    def tell(stage: str, done: int, of: int) -> None:
        if done < of and stage in last and (done - last[stage]) * PARTS < of:
            return
        last[stage] = done
        progress = {"stage": stage, "done": done, "of": of}
        steps.put_nowait(Step("progress", {"progress": progress}))

    auditing = asyncio.ensure_future(
        auditor(engine, queries, options, folder=folder, resumed=resumed, tell=tell)
    )
    auditing.add_done_callback(lambda _: steps.put_nowait(None))
    end = None if seconds is None else asyncio.get_running_loop().time() + seconds
    try:
        while True:
            async with asyncio.timeout_at(end):
                step = await steps.get()
            if step is None:
                break
            yield step
    except TimeoutError:
        raise RunTimeoutError(
            f"The audit took longer than {seconds:g} seconds; give fewer queries, or raise "
            "'seconds'."
        ) from None
    finally:
        auditing.cancel()
        await asyncio.wait({auditing})
    yield Step("audit", {"audit": auditing.result().model_dump(mode="json")})
