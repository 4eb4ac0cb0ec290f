"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from fairqr.graph.service.problems import Refusal
from fairqr.graph.service.records import LIVE, Run, Status
from fairqr.graph.service.runs.doing import Observer

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_NATS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH")


class Metrics(Observer):
    """The metrics of this process; queued runs are counted in the database."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, of when it began
        self.registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"fairqr_{name}", about, labels, registry=self.registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"fairqr_{name}", about, labels, registry=self.registry)

        def histogram(
            name: str, about: str, *labels: str, buckets: Sequence[float] = _SECONDS
        ) -> Histogram:
            named = f"fairqr_{name}"
            return Histogram(named, about, labels, registry=self.registry, buckets=buckets)

        request = ("method", "route")
        about = "Requests answered, by route and status."
        self._requests = counter("http_requests", about, *request, "status")
        about = "Time to answer a request; of a stream, to its end."
        self._seconds = histogram("http_request_seconds", about, *request)
        about = "Problem documents sent, by the last part of their type."
        self._problems = counter("http_problems", about, "type")
        self._accepted = counter("runs_accepted", "Runs accepted.", "kind")
        about = "Runs started, or resumed after a worker stopped."
        self._begun = counter("runs_begun", about, "kind")
        about = "Runs that ended, by how they ended."
        self._finished = counter("runs_finished", about, "kind", "status")
        about = "Time from accepting a run to its end."
        self._run_seconds = histogram("run_seconds", about, "kind")
        self._refused = counter("runs_refused", "Runs refused, by reason.", "reason")
        self._calls = counter("model_calls", "Requests to language models.")
        about = "Questions to language models answered by the cache."
        self._cached = counter("cached_calls", about)
        self._tokens = counter("tokens", "Tokens of language models, read and written.", "kind")
        about = (
            "Divergence from the target: of the plain retrieval (before) and of the result (after)."
        )
        self._divergence = histogram("divergence_nats", about, "when", buckets=_NATS)
        about = "Live durable runs in the database, of all workers."
        self._live = gauge("runs", about, "status")
        self._ephemeral = gauge("ephemeral_runs", "Live ephemeral runs of this process.", "status")

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request.

        Args:
            method: The HTTP method.
            route: The template of its path.
            status: The HTTP status.
            seconds: How long it took.
        """
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def accepted(self, run: Run) -> None:
        """Count an accepted run."""
        self._accepted.labels(run.kind).inc()

    def begun(self, run: Run) -> None:
        """Count a run that was started or resumed."""
        self._begun.labels(run.kind).inc()

    def finished(self, run: Run) -> None:
        """Count a run that ended."""
        self._finished.labels(run.kind, run.status).inc()
        if run.finished is not None:
            self._run_seconds.labels(run.kind).observe(max(0.0, run.finished - run.created))
        if run.result is not None:
            self._result(run.result)

    def refused(self, why: Refusal) -> None:
        """Count a refused run."""
        self._refused.labels(why).inc()

    def problem(self, kind: str) -> None:
        """Count a problem document.

        Args:
            kind: The last part of its type.
        """
        self._problems.labels(kind).inc()

    def text(self, counts: Mapping[Status, int] | None, waiting: int, running: int) -> bytes:
        """Return all metrics in Prometheus' format.

        Args:
            counts: The numbers of live runs in the database; None if it cannot be reached.
            waiting: The number of ephemeral runs that wait for a slot.
            running: The number of ephemeral runs under way.
        """
        self._ephemeral.labels("queued").set(waiting)
        self._ephemeral.labels("running").set(running)
        for status in LIVE:
            if counts is None:
                self._live.remove_by_labels({"status": status})
            else:
                self._live.labels(status).set(counts.get(status, 0))
        return generate_latest(self.registry)

    def _result(self, result: Mapping[str, Any]) -> None:
        usages = [result.get("usage"), (result.get("probe") or {}).get("usage")]
        for usage in filter(None, usages):
            self._calls.inc(usage["model_calls"])
            self._cached.inc(usage["cached_calls"])
            self._tokens.labels("prompt").inc(usage["prompt_tokens"])
            self._tokens.labels("completion").inc(usage["completion_tokens"])
        before, after = (result.get("baseline") or {}).get("divergence"), result.get("divergence")
        for when, value in (("before", before), ("after", after)):
            if value is not None:
                self._divergence.labels(when).observe(value)
