"""Labels by document id, in memory-mapped files, so that millions of them cost little memory.

A label file is read once. For each file and attribute we keep one folder: the sorted 64-bit hashes
of the ids, the number of each id's row of memberships, the distinct rows, and the check's report.
The ids themselves are not kept. With ten million ids in the file, the chance that an id not in the
file is mistaken for one of them is 1 in 10¹².
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fairqr.base.errors import SourceError, first_problem
from fairqr.base.files import write_beside
from fairqr.retrieval.engines.report import AttributeReport
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import Attribute

FORMAT = 2


class _StoppedError(Exception):
    """Nobody is waiting for the labels any more."""


@dataclass(frozen=True)
class LabelStore:
    """The memberships of the documents in a label file.

    Attributes:
        attribute: The attribute, including groups that only the file names.
        report: The check's report on the file.
        hashes: The sorted hashes of the ids.
        codes: The row number of each id.
        rows: The distinct memberships; the last row is for documents that the file lacks.
    """

    attribute: Attribute
    report: AttributeReport
    hashes: NDArray[np.uint64]
    codes: NDArray[np.unsignedinteger[Any]]
    rows: FloatArray

    def memberships(self, ids: Sequence[str]) -> FloatArray:
        """Return the share of each group in these documents, shape (len(ids), G)."""
        places, held = self._places(ids)
        found: FloatArray = self.rows[np.where(held, self.codes[places], len(self.rows) - 1)]
        return found

    def names_any(self, ids: Sequence[str]) -> bool:
        """Return whether the file has at least one of these documents, with any label."""
        return bool(self.names(ids).any())

    def names(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return for each document whether the file has it, with any label."""
        return self._places(ids)[1]

    def _places(self, ids: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return the position of each document, and whether the file has it."""
        # Sorted lookups take two thirds of the time, since neighbours share pages.
        wanted, inverse = np.unique(digests(ids)[:, 0], return_inverse=True)
        places = np.searchsorted(self.hashes, wanted)
        places[places == len(self.hashes)] = 0
        return places[inverse], (self.hashes[places] == wanted)[inverse]


def digests(ids: Iterable[str]) -> NDArray[np.uint64]:
    """Return two hashes of each id, shape (n, 2).

    The first is the one we keep; the second tells apart ids whose first hashes are equal.
    """
    held = b"".join(
        [blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=16).digest() for id_ in ids]
    )
    return np.frombuffer(held, "<u8").reshape(-1, 2)


def open_label_store(
    path: Path,
    attribute: Attribute,
    store: Path,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> LabelStore:
    """Open the labels of a file, building them first if the file or the attribute is new.

    Args:
        path: The file.
        attribute: Its attribute.
        store: The folder that keeps all labels.
        progress: Called with the number of rows read.
        stop: Stops the build when set.

    Raises:
        SourceError: The file cannot be read, or its labels do not fit the attribute.
    """
    import filelock

    stop = stop or threading.Event()
    state = _state(path)
    place = _hash(path.absolute(), attribute.name)
    # The population does not affect what we keep.
    built_from = attribute.model_dump_json(exclude={"population"})
    folder = store / f"{place}-{_hash(FORMAT, state, built_from)}"
    store.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(store / f"{place}.lock").acquire(cancel_check=stop.is_set):
        try:
            return _opened(folder, path, attribute)
        except SourceError:
            raise
        except (OSError, ValueError, KeyError):
            pass  # It does not exist yet, or part of it was lost.
        # This folder is from another version of the file or attribute, or from a killed build.
        for old in store.glob(f"{place}-*"):
            shutil.rmtree(old, ignore_errors=True)
        beside = folder.with_name(f"{folder.name}-{secrets.token_hex(8)}")
        beside.mkdir()
        try:
            _build(path, attribute, beside, progress, stop)
            if _state(path) != state:
                raise SourceError(f"The labels {path} changed while we read them; try again.")
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        return _opened(folder, path, attribute)


def _state(path: Path) -> tuple[int, int]:
    """Return something that changes when the file changes."""
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"The labels {path} cannot be read: {error.strerror}.") from None
    return status.st_size, status.st_mtime_ns


def _hash(*parts: object) -> str:
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def with_groups(path: Path, attribute: Attribute, groups: Sequence[str]) -> Attribute:
    """Return an attribute with the groups that its label file names.

    Raises:
        SourceError: The groups do not fit the rest of the attribute.
    """
    try:
        return Attribute.model_validate({**attribute.model_dump(), "groups": groups})
    except ValidationError as error:
        raise SourceError(
            f"The labels {path} do not fit the attribute {attribute.name}: "
            f"{first_problem(error)[1]}."
        ) from None


def _opened(folder: Path, path: Path, attribute: Attribute) -> LabelStore:
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    return LabelStore(
        attribute if attribute.groups else with_groups(path, attribute, about["groups"]),
        AttributeReport.model_validate(about["report"]),
        *(np.asarray(np.load(folder / f"{name}.npy", "r")) for name in ("hashes", "codes", "rows")),
    )


def _build(
    path: Path,
    attribute: Attribute,
    folder: Path,
    progress: Callable[[int], None] | None,
    stop: threading.Event,
) -> None:
    """Build the store of a label file, and make sure it is on disk."""
    from fairqr.retrieval.sources.label_building import built_labels

    def tell(count: int) -> None:
        if stop.is_set():
            raise _StoppedError
        if progress:
            progress(count)

    labels = built_labels(path, attribute, tell)
    about = {
        "groups": labels.attribute.groups,
        "report": labels.report.model_dump(mode="json"),
    }
    for name in ("hashes", "codes", "rows"):
        with (folder / f"{name}.npy").open("wb") as stream:
            np.save(stream, getattr(labels, name))
            stream.flush()
            os.fsync(stream.fileno())
    write_beside(folder / "about.json", json.dumps(about))
