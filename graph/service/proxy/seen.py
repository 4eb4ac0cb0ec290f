"""What a proxy has shown: figures for Prometheus, and a log that audits read."""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

from filelock import FileLock, Timeout
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, start_http_server

from fairqr.base.errors import ConfigError
from fairqr.graph.integrations.logged import heading
from fairqr.graph.service.proxy.ordering import Record
from fairqr.graph.service.proxy.pages import PassingPage
from fairqr.graph.service.proxy.requests import COUNTED, ProxiedSearch
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.retrieval.rerankers.base import OTHERS

LOG = "log.jsonl"
OLDER = "log.older.jsonl"
"""The files of a log. When the newer one has half of all bytes, it becomes the older one."""

ENDING = 30.0
"""Seconds to wait for a proxy that is ending: first it answers what it has accepted."""

WAITING = 1_000
"""How many records may wait for the disk; others are lost."""

log = logging.getLogger(__name__)


class Seen:
    """Counts searches and records what was shown.

    Args:
        settings: Where the log is, how large it may be, and where Prometheus asks.

    Raises:
        ConfigError: The log cannot be written, or the port cannot be used.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self.registry = CollectorRegistry()
        common: Any = {"namespace": "fairqr_proxy", "registry": self.registry}
        self._searches = Counter(
            "searches",
            "Searches, by what became of them: re-ranked, shadow, or why they passed.",
            ["index", "outcome"],
            **common,
        )
        self._unseen = Counter(
            "unseen",
            "Searches, of those, whose list is in no figure of exposure, by the reason.",
            ["index", "reason"],
            **common,
        )
        self._seconds = Histogram(
            "added_seconds", "Seconds that re-ranking added to searches.", ["index"], **common
        )
        self._exposure = Summary(
            "exposure",
            "The exposure of a group in a first page: as its client saw it (shown), in the order "
            "of the engine, in the fair one, and the target. The first k ranks count, or as many "
            "as the page has; lists of which none has a label are left out. Compare sums of engine "
            "and fair by their counts: not every list of the engine has a fair one.",
            ["index", "attribute", "group", "list"],
            **common,
        )
        self._lost = Counter("log_lost", "Records that the log lacks.", ["reason"], **common)
        self._logs_words = settings.log_words
        self._log = None
        if settings.log:
            self._log = Log(settings.folder / settings.log, settings.log_bytes, self._lost)
        if settings.metrics_port:
            try:
                start_http_server(settings.metrics_port, settings.host, self.registry)
            except OSError as error:
                raise ConfigError(f"metrics_port: {error.strerror}; choose another.") from None

    def add_shown(self, search: ProxiedSearch | PassingPage, outcome: str, record: Record) -> None:
        """Record a search whose list is known.

        Args:
            search: The search.
            outcome: What became of it: re-ranked, shadow, or why it passed.
            record: What is said of its list.
        """
        self._searches.labels(search.index, _counted(outcome)).inc()
        if "seconds" in record:
            self._seconds.labels(search.index).observe(record["seconds"])
        for name, shares in record["exposure"].items():
            for attribute, groups in shares.items():
                has_many_groups = OTHERS in groups  # which would be thousands of series
                has_labels = any(groups.values())
                if has_many_groups or not has_labels:
                    continue
                for group, share in groups.items():
                    self._exposure.labels(search.index, attribute, group, name).observe(share)
        self._log_search(search, outcome, record)

    def add_unseen(self, search: ProxiedSearch | PassingPage, outcome: str, reason: str) -> None:
        """Record a search whose list is in no figure.

        Args:
            search: The search.
            outcome: What became of it: re-ranked, shadow, or why it passed.
            reason: Why its list is not known, or does not count.
        """
        self._searches.labels(search.index, _counted(outcome)).inc()
        self._unseen.labels(search.index, reason).inc()
        self._log_search(search, outcome, {"unseen": reason})

    def _log_search(
        self, search: ProxiedSearch | PassingPage, outcome: str, record: Mapping[str, Any]
    ) -> None:
        if self._log is None:
            return
        head = heading(
            search.index,
            search.key,
            search.size,
            is_fair=search.fair,
            outcome=_counted(outcome),
            share=search.share,
            search=search.id,
        )
        words = {"words": search.words} if self._logs_words else {}
        self._log.add({**head, **words, **record})


def _counted(outcome: str) -> str:
    """Return what an outcome counts as: clients choose the words of some."""
    return outcome if outcome in COUNTED else "other"


class Log:
    """A log of bounded size, in a folder that no other proxy uses.

    Records are written by a thread: a disk that is slow or full holds up no search.

    Args:
        folder: Where the files go. Nobody but the owner may read them.
        most: The most bytes of both files.
        lost: Counts what is not written.

    Raises:
        ConfigError: The folder cannot be written, or another proxy uses it.
    """

    def __init__(self, folder: Path, most: int, lost: Counter) -> None:
        self._file = folder / LOG
        self._older = folder / OLDER
        self._largest_file = most // 2
        self._lost = lost
        self._room = Semaphore(WAITING)
        self._writer = ThreadPoolExecutor(1)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FileLock(folder / ".lock", mode=0o600)
            self._take_lock(folder)
        except OSError as error:
            why = "another proxy uses it" if isinstance(error, Timeout) else error.strerror
            raise ConfigError(f"The log {folder} cannot be used: {why}.") from None

    def _take_lock(self, folder: Path) -> None:
        """Wait for the proxy that uses the log, since it may be ending."""
        try:
            self._lock.acquire(0)
        except Timeout:
            log.warning("The log %s is in use; waiting %g s for that to end.", folder, ENDING)
            self._lock.acquire(ENDING)

    def add(self, record: Mapping[str, Any]) -> None:
        """Have a record written, if there is room."""
        if self._room.acquire(blocking=False):
            self._writer.submit(self._write, record)
        else:
            self._lost.labels("slow").inc()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            line = json.dumps(record).encode()
            size = self._file.stat().st_size if self._file.exists() else 0
            if len(line) > self._largest_file:
                raise OSError(errno.EFBIG, "a record is larger than the log")
            if size + len(line) > self._largest_file:
                self._file.replace(self._older)
                size = 0
            if size:
                # The line before may be half there, of a proxy that was killed or had no room.
                line = b"\n" + line
            with open(self._file, "ab", opener=functools.partial(os.open, mode=0o600)) as file:
                file.write(line)
        except OSError as error:
            self._lost.labels(errno.errorcode.get(error.errno or 0, "error")).inc()
        finally:
            self._room.release()
