"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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
        count = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._requests = count(
            "fairqr_http_requests",
            "Requests answered, by route and status.",
            ["method", "route", "status"],
        )
        self._seconds = histogram(
            "fairqr_http_request_seconds",
            "Time to answer a request; of a stream, to its end.",
            ["method", "route"],
            buckets=_SECONDS,
        )
        self._accepted = count("fairqr_runs_accepted", "Runs accepted.", ["kind"])
        self._begun = count(
            "fairqr_runs_begun",
            "Runs started, or resumed after a worker stopped.",
            ["kind"],
        )
        self._finished = count(
            "fairqr_runs_finished", "Runs that ended, by how they ended.", ["kind", "status"]
        )
        self._run_seconds = histogram(
            "fairqr_run_seconds",
            "Time from accepting a run to its end.",
            ["kind"],
            buckets=_SECONDS,
        )
        self._refused = count("fairqr_runs_refused", "Runs refused, by reason.", ["reason"])
        self._problems = count(
            "fairqr_http_problems",
            "Problem documents sent, by the last part of their type.",
            ["type"],
        )
        self._calls = count("fairqr_model_calls", "Requests to language models.")
        self._cached = count(
            "fairqr_cached_calls", "Questions to language models answered by the cache."
        )
        self._tokens = count(
            "fairqr_tokens", "Tokens of language models, read and written.", ["kind"]
        )
        self._divergence = histogram(
            "fairqr_divergence_nats",
            "Divergence from the target: of the plain retrieval (before) and of the result "
            "(after).",
            ["when"],
            buckets=_NATS,
        )
        self._live = gauge(
            "fairqr_runs",
            "Live durable runs in the database, of all workers.",
            ["status"],
        )
        self._ephemeral = gauge(
            "fairqr_ephemeral_runs",
            "Live ephemeral runs of this process.",
            ["status"],
        )

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
