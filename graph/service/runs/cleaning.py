"""Removing files of runs: old traces, and audits that nobody can ask for any more."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from pathlib import Path

from fairqr.graph.service.configuration import ServiceSettings
from fairqr.graph.service.records import LIVE, is_id
from fairqr.graph.service.store import Store


async def clean(store: Store, settings: ServiceSettings) -> None:
    """Remove old files on this machine.

    We remove a trace if it is older than ``retention``. We remove the folder of an audit if its run
    failed or was cancelled, or if the database does not know the run and the folder is that old:
    a service with another database may share the folder.

    Args:
        store: The store of runs.
        settings: The settings of the service.

    Raises:
        StoreUnavailableError: The database cannot be used.
    """
    before = time.time() - settings.retention
    if (traces := settings.traces) is not None:
        await asyncio.to_thread(_remove_traces, traces, before)
    audits = await asyncio.to_thread(_ages, settings.audits_folder)
    statuses = await store.statuses(audits) if audits else {}
    for id_, written in audits.items():
        if written < before if id_ not in statuses else statuses[id_] not in ("done", *LIVE):
            folder = settings.audits_folder / id_
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _remove_traces(traces: Path, before: float) -> None:
    for file in traces.glob("*.jsonl"):
        if is_id(file.stem):  # users may keep other files here
            with contextlib.suppress(OSError):  # another worker removed it, or we may not
                if file.stat().st_mtime < before:
                    file.unlink()


def _ages(folder: Path) -> dict[str, float]:
    """Return when each audit in a folder was last written to."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if is_id(entry.name):
                found[entry.name] = entry.stat().st_mtime
    return found
