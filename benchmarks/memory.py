"""The peak of memory of a search, and of indexing corpora of different sizes."""

from __future__ import annotations

from collections.abc import Iterator

from measuring import Row
from workspace import Workspace

from fairqr.retrieval.engines.tantivy.store import WRITER_BYTES

BUFFER_MEGABYTES = WRITER_BYTES / (1 << 20)
MAX_GROWTH = 1.5


def memory_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure each in a process of its own, on documents that are read from disk.

    A process's own memory is what counts, without pages of mapped files, which the system takes
    back when it needs them. The smallest corpus does not fill the buffer of the index writer; from
    there on indexing should need no more, whatever the size.
    """
    count = workspace.documents
    name = workspace.name(count)
    workspace.build(count)
    workspace.bare()
    bare = workspace.child("bare_search", str(workspace.bare_folder))
    plain, fair = workspace.child("search", name), workspace.child("fair_search", name)
    yield Row(
        "memory",
        f"peak of searching {count:,} documents, own",
        plain["own_megabytes"],
        "MB",
        "tantivy, stored ids",
        bare["own_megabytes"],
    )
    yield Row(
        "memory",
        f"peak of fair searches in {count:,} documents, own",
        fair["own_megabytes"],
        "MB",
        "what they import",
        fair["start_megabytes"],
    )
    small, middle, large = (workspace.build(n) for n in (count // 10, count, 3 * count))
    more = middle["own_megabytes"] - small["own_megabytes"]
    yield Row(
        "memory",
        f"peak of indexing {count:,} documents, own",
        middle["own_megabytes"],
        "MB",
        f"indexing {count // 10:,}",
        small["own_megabytes"],
        f"≤ {BUFFER_MEGABYTES:g} MB more",
        more <= BUFFER_MEGABYTES,
    )
    yield Row(
        "memory",
        f"peak of indexing {3 * count:,} documents, own",
        large["own_megabytes"],
        "MB",
        f"indexing {count:,}",
        middle["own_megabytes"],
        f"≤ {MAX_GROWTH}×",
        # A tenth of the documents does not fill the buffer either.
        None if workspace.quick else large["own_megabytes"] <= MAX_GROWTH * middle["own_megabytes"],
    )
    yield Row(
        "memory",
        f"peak of indexing {3 * count:,} documents, with mapped files",
        large["megabytes"],
        "MB",
        f"indexing {count:,}",
        middle["megabytes"],
    )
    yield Row(
        "memory",
        f"time to index {3 * count:,} documents",
        large["seconds"],
        "s",
        f"indexing {count:,}",
        middle["seconds"],
    )
