"""What a proxy has shown: figures for Prometheus, and a log that audits read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from fairqr.graph.service.proxy.requests import Search
from fairqr.graph.service.proxy.settings import ProxySettings

Arm = Literal["fair", "engine"]
"""Whether the fair list was shown, or the engine's own."""

Figure = TypeVar("Figure", Counter, Gauge, Histogram)

LOG = "log.jsonl"
RECENT = 0.01
"""The weight of a new search in the means that Prometheus reads: about the last hundred count."""


class Seen:
    """Counts searches and records what was shown.

    The log keeps ids, labels and the hash of each query, its words only if that is set. When it is
    full, its older half goes.

    Args:
        settings: Where the log is, how large it may be, and where Prometheus asks.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self.settings, self.registry = settings, CollectorRegistry()
        what = "Searches, by what became of them: re-ranked, or why they passed."
        self._searches = self._of(Counter, "searches", what, "index", "outcome")
        what = "Seconds that re-ranking added."
        self._seconds = self._of(Histogram, "added_seconds", what, "index")
        groups = ("index", "attribute", "group", "list")
        self._exposure = self._of(Gauge, "exposure", "Mean exposure of late.", *groups)
        self._gain = self._of(Gauge, "objective", "Mean objective J of late.", "index", "list")
        self._means: dict[tuple[str, ...], float] = {}
        self._file = settings.folder / settings.log / LOG if settings.log else None
        if self._file:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if settings.metrics_port:
            start_http_server(settings.metrics_port, settings.host, self.registry)

    def count(self, index: str, outcome: str, seconds: float | None = None) -> None:
        """Count a search; ``seconds`` is what re-ranking added."""
        self._searches.labels(index, outcome).inc()
        if seconds is not None:
            self._seconds.labels(index).observe(seconds)

    def shown(self, search: Search, told: Mapping[str, Any], arm: Arm) -> None:
        """Record a search whose hits were looked at by the worker."""
        for name, shares in (
            ("engine", told["shown"]),
            ("fair", told["exposure"]),
            ("target", told["target"]),
        ):
            for attribute, groups in shares.items():
                for group, share in groups.items():
                    key = (search.index, attribute, group, name)
                    self._exposure.labels(*key).set(self._mean(key, share))
        for name, (value, *_) in (("engine", told["before"]), ("fair", told["after"])):
            self._gain.labels(search.index, name).set(self._mean((search.index, name), value))
        if self._file is None:
            return
        line = {"time": round(time.time(), 3), "index": search.index, "query": search.plan.key}
        line |= {"words": search.plan.words} if self.settings.log_words else {}
        line |= {"arm": arm, "start": search.plan.start, "size": search.plan.size}
        line |= {name: told[name] for name in ("ids", "order", "groups", "before", "after")}
        _appended(self._file, json.dumps(line) + "\n", self.settings.log_bytes)

    def _of(self, kind: type[Figure], name: str, what: str, *labels: str) -> Figure:
        return kind(name, what, labels, namespace="fairqr_proxy", registry=self.registry)

    def _mean(self, key: tuple[str, ...], value: float) -> float:
        before = self._means.get(key, value)
        self._means[key] = before + RECENT * (value - before)
        return self._means[key]


def _appended(file: Path, line: str, most: int) -> None:
    """Add a line to a file, whose older half goes when it is full."""
    if file.exists() and file.stat().st_size + len(line) > most:
        lines = file.read_bytes().splitlines(keepends=True)
        shorter = file.with_suffix(".new")
        shorter.write_bytes(b"".join(lines[len(lines) // 2 :]))
        shorter.replace(file)
    with file.open("a", encoding="utf-8") as log:
        log.write(line)
