"""The parts of the service that the routes use, its readiness and its metrics among them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import prometheus_client
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
    values,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import Request

from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.execution.audits import Auditor
from fairqr.graph.service.execution.executor import Executor
from fairqr.graph.service.http.access import require_a_key
from fairqr.graph.service.http.shared_metrics import are_shared
from fairqr.graph.service.records import LIVE, Kind, Run, Status
from fairqr.graph.service.runs.manager import Runs
from fairqr.graph.service.slots import Slots
from fairqr.graph.service.store import Store
from fairqr.retrieval.sources.documents import ProgressFunction

CHECKED_FOR = 2.0
"""Seconds for which we reuse the answer of a check."""

CHECKED_WITHIN = 5.0
"""Seconds that a check may take."""

Check = Callable[[], Awaitable[object]]
"""Raises an error if something cannot be reached."""


class Readiness:
    """Checks whether the service can reach what it needs.

    Args:
        sources: Returns the checks of the sources: ``index`` passes if one of them does, and
            ``sources`` if all do.
        checks: Other checks, by name.
    """

    def __init__(self, sources: Callable[[], Sequence[Check]], checks: dict[str, Check]) -> None:
        self._sources = sources
        self._checks = checks
        self._lock = asyncio.Lock()
        self._valid_until = 0.0
        self._outcomes: dict[str, bool] = {}

    async def look(self) -> dict[str, bool]:
        """Return for each name whether its check passes."""
        async with self._lock:
            if time.monotonic() >= self._valid_until:
                self._outcomes = await self._check_all()
                self._valid_until = time.monotonic() + CHECKED_FOR
            return self._outcomes

    async def _check_all(self) -> dict[str, bool]:
        # At the same time, so that a server that is out of reach holds up no other check.
        sources, other_outcomes = await asyncio.gather(
            asyncio.gather(*map(_passes, self._sources())),
            asyncio.gather(*map(_passes, self._checks.values())),
        )
        outcomes = {"index": any(sources), "sources": all(sources)}
        outcomes.update(zip(self._checks, other_outcomes, strict=True))
        return outcomes


async def _passes(check: Check) -> bool:
    try:
        async with asyncio.timeout(CHECKED_WITHIN):
            await check()
    except Exception:  # any failure means that it cannot be reached
        return False
    return True


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_NATS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH")
_LIVE = partial(Gauge, multiprocess_mode="livesum")
_TIMES = partial(Histogram, buckets=_SECONDS)
_DIVERGENCES = partial(Histogram, buckets=_NATS)

READERS = 8
"""How many requests for documents ask sources at a time."""

# The kind of each metric, its labels, and what it says.
_METRICS: dict[str, tuple[Any, str, str]] = {
    "http_requests": (Counter, "method route status", "Requests answered, by route and status."),
    "http_request_seconds": (_TIMES, "method route", "Time to answer; of a stream, to its end."),
    "http_problems": (Counter, "type", "Problem documents sent, by the last part of their type."),
    "runs_finished": (Counter, "kind status", "Runs that ended here, by how they ended."),
    "run_seconds": (_TIMES, "kind", "Time from accepting a run to its end."),
    "model_calls": (Counter, "", "Requests to language models."),
    "cached_calls": (Counter, "", "Questions to language models answered by the cache."),
    "tokens": (Counter, "kind", "Tokens of language models, read and written."),
    "divergence_nats": (_DIVERGENCES, "when", "Divergence before and after, from the target."),
    "ephemeral_runs": (_LIVE, "status", "Live ephemeral runs of the processes at this address."),
}


class Metrics:
    """The metrics of this process, or of all workers of a command; durable runs are the database's.

    See :mod:`fairqr.graph.service.http.shared_metrics`.
    """

    def __init__(self) -> None:
        # For each metric, the client would add a second one: the time when it began.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        if are_shared():  # the client may have been imported before there was a folder
            values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]

        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        for name, (kind, labels, about) in _METRICS.items():
            metric = kind(f"fairqr_{name}", about, labels.split(), registry=self._registry)
            self._metrics[name] = metric

    def answered(
        self, method: str, route: str, status: int, seconds: float, problem: str | None
    ) -> None:
        """Count an answered request.

        Args:
            method: The HTTP method.
            route: The template of its path.
            status: The HTTP status.
            seconds: How long it took.
            problem: The last part of the type of the problem document that was sent, if any.
        """
        method = method if method in _METHODS else "other"
        self._metrics["http_requests"].labels(method, route, str(status)).inc()
        self._metrics["http_request_seconds"].labels(method, route).observe(seconds)
        if problem:
            self._metrics["http_problems"].labels(problem).inc()

    def finished(self, run: Run) -> None:
        """Count a run that ended."""
        self._metrics["runs_finished"].labels(run.kind, run.status).inc()
        if run.finished is not None:
            seconds = max(0.0, run.finished - run.created)
            self._metrics["run_seconds"].labels(run.kind).observe(seconds)

        result = run.result or {}
        probe = result.get("probe") or {}
        for usage in (result.get("usage"), probe.get("usage")):
            if usage:
                self._count_usage(usage)

        baseline = result.get("baseline") or {}
        self._observe_divergence("before", baseline.get("divergence"))
        self._observe_divergence("after", result.get("divergence"))

    def _count_usage(self, usage: Mapping[str, int]) -> None:
        self._metrics["model_calls"].inc(usage["model_calls"])
        self._metrics["cached_calls"].inc(usage["cached_calls"])
        for kind in ("prompt", "completion"):
            self._metrics["tokens"].labels(kind).inc(usage[f"{kind}_tokens"])

    def _observe_divergence(self, when: str, divergence: float | None) -> None:
        if divergence is not None:
            self._metrics["divergence_nats"].labels(when).observe(divergence)

    def text(self, durable: DurableCounts | None, waiting: int, running: int) -> bytes:
        """Return all metrics in Prometheus' format.

        Args:
            durable: The counts of durable runs; None if the database cannot be reached.
            waiting: The number of ephemeral runs that wait for a slot.
            running: The number of ephemeral runs under way.
        """
        self._metrics["ephemeral_runs"].labels("queued").set(waiting)
        self._metrics["ephemeral_runs"].labels("running").set(running)

        registry = self._registry
        if are_shared():
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        database_registry = CollectorRegistry()
        if durable is not None:
            database_registry.register(durable)
        return generate_latest(registry) + generate_latest(database_registry)


@dataclass(frozen=True, eq=False)
class DurableCounts(Collector):
    """The numbers of durable runs in the database, whichever process did them.

    Attributes:
        live: The numbers of live runs.
        ended: How many ever ended, by kind and status.
    """

    live: Mapping[Status, int]
    ended: Mapping[tuple[Kind, Status], int]

    def collect(self) -> Iterator[Metric]:
        """Yield both as metrics."""
        runs = GaugeMetricFamily(
            "fairqr_runs", "Live durable runs in the database, of all workers.", labels=["status"]
        )
        for status in LIVE:
            runs.add_metric([status], self.live.get(status, 0))
        yield runs

        finished = CounterMetricFamily(
            "fairqr_durable_runs_finished",
            "Durable runs that ended, in any process, by how they ended.",
            labels=["kind", "status"],
        )
        for (kind, status), number in self.ended.items():
            finished.add_metric([kind, status], number)
        yield finished


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The parts of a running service.

    Attributes:
        encoding: The only slot for encoding the texts of a list, which takes all processors.
        reading: Slots for requests for documents, which ask sources that others search.
        bundling: The only slot for packing the files of an audit.
    """

    settings: ServiceSettings
    store: Store
    executor: Executor
    runs: Runs
    metrics: Metrics
    readiness: Readiness
    evidence: ListEvidence = field(default_factory=ListEvidence)
    encoding: Slots = field(default_factory=lambda: Slots(1, share=1.0))
    reading: Slots = field(default_factory=lambda: Slots(READERS, share=0.75))
    bundling: Slots = field(default_factory=lambda: Slots(1, share=1.0))

    @classmethod
    @asynccontextmanager
    async def started(
        cls,
        settings: ServiceSettings,
        model: str | None = None,
        progress: Callable[[str], ProgressFunction] | None = None,
        auditor: Auditor | None = None,
        *,
        listens: bool = False,
    ) -> AsyncIterator[Self]:
        """Start all parts in order, and stop them in the end.

        Args:
            settings: The settings of the service.
            model: The default model; defaults to the configured one.
            progress: Reports what is being indexed.
            auditor: Runs audits; without it, the service offers none.
            listens: Whether clients will reach this process, and may need keys.

        Raises:
            FairqrError: Something is missing or cannot be reached; the message says what to do.
        """
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(Store.opened(settings.database))
            if listens:
                await require_a_key(settings, store)

            executor = Executor(settings, model=model, auditor=auditor)
            stack.push_async_callback(executor.close)
            await executor.start(progress)

            execute_stored = executor.execute_stored if settings.work else None
            metrics = Metrics()
            runs = Runs(store, execute_stored, settings, metrics.finished)
            await runs.start()
            stack.push_async_callback(runs.drain, 0)

            def source_checks() -> list[Check]:
                names = executor.configured_corpora()
                return [partial(executor.check_source, name) for name in names]

            other_checks: dict[str, Check] = {
                "model": executor.models.check_default,
                "store": store.check,
            }
            readiness = Readiness(source_checks, other_checks)
            yield cls(settings, store, executor, runs, metrics, readiness)


def parts_of(request: Request) -> ServiceParts:
    """Return the parts of the service that answers a request."""
    return cast(ServiceParts, request.app.state.parts)
