"""Labels by document id in files that are mapped into memory, so that millions cost little.

A file of labels is read once. For each file and attribute name one folder is kept: the sorted
64-bit hashes of the ids, for each the number of its row of memberships, the distinct rows, and what
the check says of the file. The ids themselves are not kept. In a file of ten million, an id that it
lacks is mistaken for one that it has with a probability of 1 in 10¹².
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
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Attribute

__all__ = ["LabelStore", "digests", "open_label_store", "with_groups"]

FORMAT = 2


class _StoppedError(Exception):
    """Nobody waits for the labels any more."""


@dataclass(frozen=True)
class LabelStore:
    """The memberships of the documents that a file of labels names.

    Attributes:
        attribute: With its groups, also those that only the file names.
        report: What the check says of the file.
        hashes: The sorted hashes of the ids.
        codes: The row of each of them.
        rows: The distinct memberships; the last is that of a document that the file lacks.
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
        """Return whether the file names one of these documents, with whatever label."""
        return bool(self.names(ids).any())

    def names(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return for each document whether the file names it, with whatever label."""
        return self._places(ids)[1]

    def _places(self, ids: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Return where each document stands if the file names it, and whether it does."""
        # In order they are found in two thirds of the time, since neighbours share pages.
        wanted, inverse = np.unique(digests(ids)[:, 0], return_inverse=True)
        places = np.searchsorted(self.hashes, wanted)
        places[places == len(self.hashes)] = 0
        return places[inverse], (self.hashes[places] == wanted)[inverse]


def digests(ids: Iterable[str]) -> NDArray[np.uint64]:
    """Return two hashes of each id, shape (n, 2).

    The first is the one that is kept; the second tells ids apart that have the same first.
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
    """Open the labels of a file; they are built when the file or the attribute is new.

    Args:
        path: The file.
        attribute: Its attribute.
        store: The folder of all labels.
        progress: Told how many rows have been read.
        stop: Stops the build when set.

    Raises:
        SourceError: The file cannot be read, or its labels do not fit the attribute.
    """
    import filelock

    stop = stop or threading.Event()
    state = _state(path)
    place = _hash(path.absolute(), attribute.name)
    # A population changes nothing in what is kept.
    built_from = attribute.model_dump_json(exclude={"population"})
    folder = store / f"{place}-{_hash(FORMAT, state, built_from)}"
    store.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(store / f"{place}.lock").acquire(cancel_check=stop.is_set):
        try:
            return _opened(folder, path, attribute)
        except SourceError:
            raise
        except (OSError, ValueError, KeyError):
            pass  # It is not there yet, or a disk lost a part of it.
        # Left by another version of the file or the attribute, or by a build that was killed.
        for old in store.glob(f"{place}-*"):
            shutil.rmtree(old, ignore_errors=True)
        beside = folder.with_name(f"{folder.name}-{secrets.token_hex(8)}")
        beside.mkdir()
        try:
            _build(path, attribute, beside, progress, stop)
            if _state(path) != state:
                raise SourceError(f"The labels {path} changed while they were read; try again.")
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        return _opened(folder, path, attribute)


def _state(path: Path) -> tuple[int, int]:
    """Return what changes when a file does."""
    try:
        status = path.stat()
    except OSError as error:
        raise SourceError(f"The labels {path} cannot be read: {error.strerror}.") from None
    return status.st_size, status.st_mtime_ns


def _hash(*parts: object) -> str:
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def with_groups(path: Path, attribute: Attribute, groups: Sequence[str]) -> Attribute:
    """Return an attribute with the groups that its file of labels names.

    Raises:
        SourceError: They do not fit the rest of the attribute.
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
    """Write what is kept of a file of labels, and make sure that it is on disk."""
    from fairqr.retrieval.label_building import built_labels

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
