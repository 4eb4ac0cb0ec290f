"""Finding a collection by name or path, and importing one under a name.

Imported collections are folders ``<data>/collections/<name>``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from fairqr.base.errors import CorpusError, FairqrError, InputError, one_line
from fairqr.base.settings import data_dir
from fairqr.evaluation.collections import collection as standard
from fairqr.evaluation.collections.importing import LOADERS, write_collection
from fairqr.retrieval.sources.catalog import NAME
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.documents import ProgressFunction


def find_collection(name: str | Path, split: str | None = None) -> standard.Collection:
    """Find a collection, and read its topics and judgements.

    Args:
        name: ``notables``, the name of an imported one, or a folder in the standard layout. A name
            wins over a folder of the same name; write ``./name`` for that. A
            :class:`~pathlib.Path` is always a folder.
        split: The name of the judgements, such as ``train``, where there are several.

    Raises:
        CorpusError: There is no such collection, or a file of it is missing or wrong.
        SchemaError: Its schema is wrong.
    """
    text = str(name)
    if isinstance(name, str) and NAME.fullmatch(name):
        folder = BUILT_IN.get(text, _root() / text)
        if folder.is_dir():
            return standard.load_collection(folder, text, split)
    if not text or not os.path.isdir(text):
        names = ", ".join(collection["name"] for collection in list_collections())
        raise CorpusError(
            f"There is no collection '{one_line(text)}'; there are {names}. A collection is a "
            "folder, and 'fairqr dataset import' makes one of files."
        )
    return standard.load_collection(Path(name), split=split)


def import_collection(
    loader: str,
    paths: Sequence[Path],
    name: str,
    *,
    replace: bool = False,
    progress: ProgressFunction | None = None,
) -> tuple[Path, list[str]]:
    """Import files as a collection; it is there whole or not at all.

    Args:
        loader: What reads them, one of :data:`fairqr.evaluation.collections.importing.LOADERS`.
        paths: Files or folders.
        name: The new name: lower-case letters, digits, dots, dashes and underscores.
        replace: Whether to replace a collection of that name.
        progress: Called now and then with the number of documents read.

    Returns:
        The folder, and lines on what it holds and what was left out.

    Raises:
        InputError: There is no such loader, or the name is not valid, belongs to a built-in
            collection, or is taken.
        CorpusError: A file is missing or wrong; nothing was changed.
    """
    if loader not in LOADERS:
        names = ", ".join(LOADERS)
        raise InputError(f"There is no loader '{one_line(loader)}'; there are {names}.")
    if not NAME.fullmatch(name) or name in BUILT_IN:
        raise InputError(
            f"'{one_line(name)}' cannot be the name of a collection; use lower-case letters, "
            "digits, dots, dashes and underscores, and not the name of a built-in collection."
        )
    target = _root() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{name}.lock"):
        if target.exists() and not replace:
            raise InputError(
                f"There is a collection '{name}' already; choose another name, or --replace it."
            )
        prefix = f".{name}.build-"
        for unfinished in target.parent.glob(f"{prefix}*"):
            # A killed import left it.
            shutil.rmtree(unfinished, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as directory:
            work = Path(directory)
            folder = work / "new"
            folder.mkdir()
            parts = LOADERS[loader](paths, work)
            source = parts.about.source or ", ".join(str(path.resolve()) for path in paths)
            parts.about = parts.about.model_copy(update={"source": source, "loader": loader})
            lines = write_collection(parts, folder, work, progress)
            for split in standard.splits_of(folder):
                # Only a collection that can be read back is put in place.
                standard.load_collection(folder, name, split)
            if target.exists():
                target.rename(work / "old")
            folder.rename(target)
    return target, lines


def list_collections() -> list[dict[str, Any]]:
    """Return the built-in and the imported collections, without reading their documents.

    Returns:
        Of each its ``name``; as ``kind`` ``built in``, or the loader that imported it; ``folder``,
        ``title``, ``documents`` (how many, if counted); the ``splits`` of its judgements, if they
        have names; and as ``problem`` why it cannot be read, if so.
    """
    root = _root()
    folders = dict(BUILT_IN)
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.is_dir() and NAME.fullmatch(path.name):
            folders[path.name] = path
    collections = []
    for name, folder in folders.items():
        about = standard.About()
        missing = ", ".join(standard.missing_files(folder))
        problem = f"it lacks {missing}" if missing else ""
        try:
            about = standard.read_about(folder)
        except FairqrError as error:
            problem = str(error)
        row = {
            "name": name,
            "kind": "built in" if name in BUILT_IN else about.loader or "by hand",
            "folder": folder,
            "splits": list(filter(None, standard.splits_of(folder))),
            "title": about.title,
            "documents": about.documents,
            "problem": problem,
        }
        collections.append(row)
    return collections


def _root() -> Path:
    return Path(os.path.abspath(data_dir())) / "collections"
