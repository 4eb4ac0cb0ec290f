"""Finding a collection by name or path, and importing one under a name.

Imported collections are folders ``<data>/collections/<name>``. A folder that only a loader can read
is imported when it is first named, and again when its files have changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fairqr.base.errors import BuildInProgressError, CorpusError, FairqrError, InputError, one_line
from fairqr.base.settings import data_dir
from fairqr.evaluation.collections import collection as standard
from fairqr.evaluation.collections.importing import LOADERS, recognise, write_collection
from fairqr.retrieval.sources.catalog import NAME
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.documents import ProgressFunction

LAYOUT = 2
"""Raise it when the layout of imports changes, so that folders are imported again."""


def find_collection(
    name: str | Path,
    split: str | None = None,
    *,
    data: Path | None = None,
    progress: ProgressFunction | None = None,
) -> standard.Collection:
    """Find a collection, and read its topics and judgements.

    Args:
        name: ``notables``, the name of an imported one, a folder in the standard layout, or a
            folder with the files of a loader. A name wins over a folder of the same name; write
            ``./name`` for that. A :class:`~pathlib.Path` is always a folder.
        split: The name of the judgements, such as ``train``, where there are several.
        data: The folder of collections; defaults to the user's data folder.
        progress: Called with the number of documents written, if the folder has to be imported.

    Raises:
        CorpusError: There is no such collection, or a file of it is missing or wrong.
        SchemaError: Its schema is wrong.
    """
    text, root = str(name), _root(data)
    if isinstance(name, str) and NAME.fullmatch(name):
        if text in BUILT_IN:
            return standard.load_collection(BUILT_IN[text], text, split)
        if (root / text).is_dir():
            return standard.load_collection(root / text, text, split)
    if not text or not os.path.isdir(text):
        known = ", ".join(listed["name"] for listed in list_collections(data))
        raise CorpusError(
            f"There is no collection '{one_line(text)}'; there are {known}. A collection is a "
            "folder, and 'fairqr dataset import' makes one of files."
        )
    folder = Path(name)
    missing = standard.missing_files(folder)
    if not missing:
        return standard.load_collection(folder, split=split)
    loader = recognise(folder)
    if loader is None:
        raise CorpusError(
            f"The folder {folder} is not a collection: it lacks {', '.join(missing)}, and no "
            "loader knows its files; see docs/how-to/bring-a-collection.md."
        )
    place = folder.resolve()
    stem = re.sub(r"[^a-z0-9_-]+", "-", place.name.lower()).strip("-_")[:80] or "collection"
    target = root / f"{stem}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    state = _fingerprint(place, loader)
    with _lock(target):
        if not (target.is_dir() and standard.read_about(target).fingerprint == state):
            _import(loader, [folder], target, state, progress)
    return standard.load_collection(target, target.name, split)


def import_collection(
    loader: str,
    paths: Sequence[Path],
    name: str,
    *,
    replace: bool = False,
    data: Path | None = None,
    progress: ProgressFunction | None = None,
) -> tuple[Path, list[str]]:
    """Import files as a collection; it is there whole or not at all.

    Args:
        loader: What reads them, one of :data:`fairqr.evaluation.collections.importing.LOADERS`.
        paths: Files or folders.
        name: The new name: lower-case letters, digits, dots, dashes and underscores.
        replace: Whether to replace a collection of that name.
        data: The folder of collections; defaults to the user's data folder.
        progress: Called now and then with the number of documents written.

    Returns:
        The folder, and lines on what it holds and what was left out.

    Raises:
        InputError: There is no such loader, or the name is not valid, belongs to a built-in
            collection, or is taken.
        CorpusError: A file is missing or wrong; nothing was changed.
        BuildInProgressError: Another process imports a collection of that name.
    """
    if loader not in LOADERS:
        known = ", ".join(LOADERS)
        raise InputError(f"There is no loader '{one_line(loader)}'; there are {known}.")
    if not NAME.fullmatch(name) or name in BUILT_IN:
        raise InputError(
            f"'{one_line(name)}' cannot be the name of a collection; use lower-case letters, "
            "digits, dots, dashes and underscores, and not the name of a built-in collection."
        )
    target = _root(data) / name
    try:
        with _lock(target, timeout=0):
            if target.exists() and not replace:
                raise InputError(
                    f"There is a collection '{name}' already; choose another name, or --replace it."
                )
            return target, _import(loader, paths, target, "", progress)
    except Timeout:
        raise BuildInProgressError(
            f"Another process imports the collection '{name}'; wait until it has finished."
        ) from None


def _lock(target: Path, timeout: float = -1) -> FileLock:
    """Return the lock on a collection's folder; the system releases it when the process dies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(target.parent / f".{target.name}.lock", timeout)


def _import(
    loader: str, paths: Sequence[Path], target: Path, state: str, progress: ProgressFunction | None
) -> list[str]:
    """Put a new collection in place of the old one, if any; hold the lock."""
    prefix = f".{target.name}.build-"
    for rest in target.parent.glob(f"{prefix}*"):
        # A killed import left it.
        shutil.rmtree(rest, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as around:
        work = Path(around)
        folder = work / "new"
        folder.mkdir()
        parts = LOADERS[loader](paths, work)
        source = parts.about.source or ", ".join(str(path.resolve()) for path in paths)
        told = {"source": source, "loader": loader, "fingerprint": state}
        parts.about = parts.about.model_copy(update=told)
        lines = write_collection(parts, folder, work, progress)
        for split in standard.splits_of(folder):
            # Only a collection that can be read back is put in place.
            standard.load_collection(folder, target.name, split)
        if target.exists():
            target.rename(work / "old")
        folder.rename(target)
    return lines


def _fingerprint(folder: Path, loader: str) -> str:
    """Return a hash that changes when a file of the folder does: of names, sizes and times.

    The contents are not read: the articles alone are many gigabytes.
    """
    digest = hashlib.sha256(f"{LAYOUT} {loader}".encode())
    for path in sorted(folder.iterdir()):
        if path.is_file():
            status = path.stat()
            digest.update(f"\0{path.name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()


def list_collections(data: Path | None = None) -> list[dict[str, Any]]:
    """Return the built-in and the imported collections, without reading their documents.

    Returns:
        Of each its ``name``; as ``kind`` ``built in``, or the loader that imported it; ``folder``,
        ``title``, ``documents`` (how many, if counted); the ``splits`` of its judgements, if they
        have names; and as ``problem`` why it cannot be read, if so.
    """
    root = _root(data)
    found = sorted(root.iterdir()) if root.is_dir() else []
    imported = {path.name: path for path in found if path.is_dir() and NAME.fullmatch(path.name)}
    listed = []
    for name, folder in {**BUILT_IN, **imported}.items():
        kind, problem, about = "damaged", "", standard.About()
        try:
            about = standard.read_about(folder)
            kind = "built in" if name in BUILT_IN else about.loader or "by hand"
            lacks = standard.missing_files(folder)
            problem = f"it lacks {', '.join(lacks)}" if lacks else ""
        except FairqrError as error:
            problem = str(error)
        fields = {"title": about.title, "documents": about.documents, "problem": problem}
        splits = list(filter(None, standard.splits_of(folder)))
        listed.append({"name": name, "kind": kind, "folder": folder, "splits": splits, **fields})
    return listed


def _root(data: Path | None) -> Path:
    return Path(os.path.abspath(data or data_dir())) / "collections"
