"""Labels in a file of millions of ids: what it costs to build and to read them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import Row, median
from workspace import Workspace

from fairqr.retrieval.sources.labels import LabelStore, open_label_store
from fairqr.retrieval.sources.schema import Attribute

MAX_MEGABYTES = 1000.0
MAX_MILLISECONDS = 2.0
HITS = 500
GROUPS = ("africa", "asia", "europe", "oceania")


def label_rows(workspace: Workspace) -> Iterator[Row]:
    """Build the labels of ten million ids in a process of its own, and read them in another."""
    count = 1_000_000 if workspace.quick else 10_000_000
    path = write_labels(workspace.folder / "labels.csv", count)
    built = workspace.child("build_labels", str(path))
    read = workspace.child("read_labels", str(path), str(count))
    target = f"≤ {MAX_MEGABYTES:g} MB"
    for what, report in (("building", built), ("reading", read)):
        peak = report["megabytes"]
        yield Row(
            "labels",
            f"peak of {what} the labels of {count:,} ids, with mapped files",
            peak,
            "MB",
            "what that imports",
            report["start_megabytes"],
            target,
            None if workspace.quick else peak <= MAX_MEGABYTES,
        )
    yield Row("labels", f"time to build the labels of {count:,} ids", built["seconds"], "s")
    yield Row("labels", "time to open them again", read["open_milliseconds"], "ms")
    yield Row(
        "labels",
        f"the groups of {HITS} ids, p50",
        read["milliseconds"],
        "ms",
        "one by one",
        read["single_milliseconds"],
        f"≤ {MAX_MILLISECONDS:g} ms",
        read["milliseconds"] <= MAX_MILLISECONDS,
    )
    path.unlink()


def write_labels(path: Path, count: int) -> Path:
    """Write a file of so many ids in no order, of which some have no group."""
    chosen = (*GROUPS, "")
    step = 7_919  # Prime to the count, so that each number comes once.
    with path.open("w", encoding="utf-8") as stream:
        stream.write("id,group\n")
        for row in range(count):
            number = row * step % count
            stream.write(f"document-{number},{chosen[number % len(chosen)]}\n")
    return path


def build_labels(path: str) -> None:
    """Build the labels of a file."""
    _open(path)


def read_labels(path: str, count: str) -> dict[str, float]:
    """Read the groups of many documents, and return how long that takes."""
    start = time.perf_counter()
    labels = _open(path)
    opened = time.perf_counter() - start
    numbers = random.Random(1)
    taken: list[float] = []
    single: list[float] = []
    for _ in range(400):
        ids = [f"document-{numbers.randrange(int(count))}" for _ in range(HITS)]
        start = time.perf_counter()
        labels.memberships(ids)
        taken.append((time.perf_counter() - start) * 1000)
        start = time.perf_counter()
        for id_ in ids:
            labels.memberships([id_])
        single.append((time.perf_counter() - start) * 1000)
    return {
        "open_milliseconds": opened * 1000,
        "milliseconds": median(taken),
        "single_milliseconds": median(single),
    }


def _open(path: str) -> LabelStore:
    attribute = Attribute(name="origin", labels=Path(path).name)
    return open_label_store(Path(path), attribute, Path(path).parent / "kept")
