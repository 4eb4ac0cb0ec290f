"""Finding a collection by name or path, and importing one under a name.

Imported collections are folders ``<data>/collections/<name>``. A folder that only a loader can read
is imported when it is first named, and again when its files have changed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairqr.base.errors import CorpusError, FairqrError, InputError, one_line
from fairqr.base.settings import data_dir
from fairqr.evaluation.collections.building import ImportReport, building, locked
from fairqr.evaluation.collections.collection import (
    Collection,
    is_standard,
    load_collection,
    missing_files,
    read_about,
    splits_of,
)
from fairqr.evaluation.collections.plain import import_jsonl, import_subset, is_subset
from fairqr.evaluation.collections.trec_fair import (
    import_ir_dataset,
    import_trec_fair,
    is_trec_fair,
)
from fairqr.retrieval.sources.catalog import NAME
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.documents import ProgressFunction

LAYOUT = 1
"""Raise it when the layout of imports changes, so that folders are imported again."""


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads files of some layout, and writes them in the standard one.

    Attributes:
        name: How the command calls it.
        run: Writes into an empty folder.
        recognises: Whether a folder has such files; None for one that is only used by name.
    """

    name: str
    run: Callable[[Sequence[Path], Path, ProgressFunction | None], ImportReport]
    recognises: Callable[[Path], bool] | None = None


LOADERS = {
    loader.name: loader
    for loader in (
        Loader(
            "trec-fair-2021",
            functools.partial(import_trec_fair, 2021),
            functools.partial(is_trec_fair, year=2021),
        ),
        Loader(
            "trec-fair-2022",
            functools.partial(import_trec_fair, 2022),
            functools.partial(is_trec_fair, year=2022),
        ),
        Loader("trec2022-subset", import_subset, is_subset),
        Loader("ir-datasets", import_ir_dataset),
        Loader("jsonl", import_jsonl),
    )
}


def find_loader(name: str) -> Loader:
    """Return the loader of that name.

    Raises:
        InputError: There is none.
    """
    try:
        return LOADERS[name]
    except KeyError:
        raise InputError(
            f"There is no loader '{one_line(name)}'; there are {', '.join(LOADERS)}."
        ) from None


def recognise(folder: Path) -> Loader | None:
    """Return the loader that knows the files of a folder, if one does."""
    for loader in LOADERS.values():
        if loader.recognises is not None and loader.recognises(folder):
            return loader
    return None


def find_collection(
    name: str | Path,
    split: str | None = None,
    *,
    data: Path | None = None,
    progress: ProgressFunction | None = None,
) -> Collection:
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
    is_name = isinstance(name, str) and NAME.fullmatch(name)
    if is_name and text in BUILT_IN:
        return load_collection(BUILT_IN[text], text, split)
    if is_name and (root / text).is_dir():
        return load_collection(root / text, text, split)
    folder = Path(name)
    kind = _kind(folder) if text else ""
    if kind != "folder":
        if kind == "file":
            raise CorpusError(
                f"{folder} is a file; a collection is a folder, and 'fairqr dataset import' "
                "makes one of files."
            )
        known = ", ".join(listed.name for listed in list_collections(data))
        raise CorpusError(
            f"There is no collection '{one_line(text)}'; there are {known}, and "
            "'fairqr dataset import' makes one."
        )
    if is_standard(folder):
        return load_collection(folder, split=split)
    loader = recognise(folder)
    if loader is None:
        raise CorpusError(
            f"The folder {folder} is not a collection: it lacks "
            f"{', '.join(missing_files(folder))}, and no loader knows its files; "
            "see docs/how-to/bring-a-collection.md."
        )
    imported = _import_on_the_fly(folder, loader, root, progress)
    return load_collection(imported, imported.name, split)


def import_collection(
    loader: Loader,
    paths: Sequence[Path],
    name: str,
    *,
    replace: bool = False,
    data: Path | None = None,
    progress: ProgressFunction | None = None,
) -> tuple[Path, ImportReport]:
    """Import files as a collection; it is there whole or not at all.

    Args:
        loader: What reads them.
        paths: Files or folders.
        name: The new name: lower-case letters, digits, dots, dashes and underscores.
        replace: Whether to replace a collection of that name.
        data: The folder of collections; defaults to the user's data folder.
        progress: Called now and then with the number of documents written.

    Returns:
        The folder, and a report of its contents.

    Raises:
        InputError: The name is not valid, belongs to a built-in collection, or is taken.
        CorpusError: A file is missing or wrong; nothing was changed.
        BuildInProgressError: Another process imports a collection of that name.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"'{one_line(name)}' cannot be the name of a collection; use lower-case letters, "
            "digits, dots, dashes and underscores."
        )
    if name in BUILT_IN:
        raise InputError(f"'{name}' is the name of a built-in collection; choose another one.")
    target = _root(data) / name
    with locked(target):
        if target.exists() and not replace:
            raise InputError(
                f"There is a collection '{name}' already; choose another name, or --replace it."
            )
        return target, _import(loader, paths, target, "", progress)


def _import(
    loader: Loader,
    paths: Sequence[Path],
    target: Path,
    fingerprint: str,
    progress: ProgressFunction | None,
) -> ImportReport:
    with building(target) as folder:
        report = loader.run(paths, folder, progress)
        about = read_about(folder)
        if not about.source:
            about = about.model_copy(update={"source": ", ".join(str(p.resolve()) for p in paths)})
        about.model_copy(update={"fingerprint": fingerprint}).write(folder)
        for split in splits_of(folder):
            # Only a collection that can be read back is put in place.
            load_collection(folder, target.name, split)
    return report


def _import_on_the_fly(
    folder: Path, loader: Loader, root: Path, progress: ProgressFunction | None
) -> Path:
    """Import a folder unless that is done; wait for another process that is importing it."""
    place = folder.resolve()
    stem = re.sub(r"[^a-z0-9_-]+", "-", place.name.lower()).strip("-_")[:80] or "collection"
    target = root / f"{stem}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    fingerprint = _fingerprint(place, loader)
    with locked(target, wait=True):
        if not (target.is_dir() and read_about(target).fingerprint == fingerprint):
            _import(loader, [folder], target, fingerprint, progress)
    return target


def _fingerprint(folder: Path, loader: Loader) -> str:
    """Return a hash that changes when a file of the folder does: of names, sizes and times.

    The contents are not read: the articles alone are many gigabytes.
    """
    digest = hashlib.sha256(f"{LAYOUT} {loader.name}".encode())
    for path in sorted(folder.iterdir()):
        if path.is_file():
            status = path.stat()
            digest.update(f"\0{path.name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Listed:
    """A collection in a list.

    Attributes:
        name: The name that finds it.
        kind: ``built in``, or the loader that imported it.
        folder: Where it is.
        title: May be empty.
        documents: The number of documents, if counted.
        splits: The names of its judgements, if they have any.
        problem: Why it cannot be read, if so.
    """

    name: str
    kind: str
    folder: Path
    title: str = ""
    documents: int | None = None
    splits: tuple[str, ...] = ()
    problem: str = ""


def list_collections(data: Path | None = None) -> list[Listed]:
    """Return the built-in and the imported collections, without reading their documents."""
    return list(_listed(_root(data)))


def _listed(root: Path) -> Iterator[Listed]:
    folders = [(name, folder) for name, folder in BUILT_IN.items() if is_standard(folder)]
    found = sorted(root.iterdir()) if root.is_dir() else []
    folders += [(p.name, p) for p in found if p.is_dir() and NAME.fullmatch(p.name)]
    for name, folder in folders:
        try:
            about = read_about(folder)
        except FairqrError as error:
            yield Listed(name, "damaged", folder, problem=str(error))
            continue
        lacks = missing_files(folder)
        yield Listed(
            name=name,
            kind="built in" if name in BUILT_IN else about.loader or "by hand",
            folder=folder,
            title=about.title,
            documents=about.documents,
            splits=tuple(split for split in splits_of(folder) if split is not None),
            problem=f"it lacks {', '.join(lacks)}" if lacks else "",
        )


def _kind(path: Path) -> str:
    try:
        return "folder" if path.is_dir() else "file" if path.is_file() else ""
    except OSError:
        # Such as a name that is too long, or a folder without read permission.
        return ""


def _root(data: Path | None) -> Path:
    return Path(os.path.abspath(data or data_dir())) / "collections"
