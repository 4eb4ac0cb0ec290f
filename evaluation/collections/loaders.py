"""The loaders of collections, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.building import ImportReport
from fairqr.evaluation.collections.from_ir_datasets import import_ir_dataset
from fairqr.evaluation.collections.plain import import_jsonl, import_subset, is_subset
from fairqr.evaluation.collections.trec_fair import import_trec_fair, is_trec_fair
from fairqr.retrieval.documents import Progress

__all__ = ["LOADERS", "Loader", "find_loader", "recognise"]


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads files of some layout, and writes them in the standard one.

    Attributes:
        name: How the command calls it.
        summary: What it reads, in a few words.
        recognises: Whether a folder has such files; None for one that is only used by name.
        run: Writes into an empty folder.
    """

    name: str
    summary: str
    recognises: Callable[[Path], bool] | None
    run: Callable[[Sequence[Path], Path, Progress | None], ImportReport]


LOADERS = {
    loader.name: loader
    for loader in (
        Loader(
            "trec-fair-2021",
            "the official files of TREC Fair 2021",
            functools.partial(is_trec_fair, year=2021),
            functools.partial(import_trec_fair, 2021),
        ),
        Loader(
            "trec-fair-2022",
            "the official files of TREC Fair 2022",
            functools.partial(is_trec_fair, year=2022),
            functools.partial(import_trec_fair, 2022),
        ),
        Loader(
            "trec2022-subset",
            "the folder with biographies of TREC Fair 2022, joined with Pantheon",
            is_subset,
            import_subset,
        ),
        Loader(
            "ir-datasets",
            "trec-fair/2021 or trec-fair/2022, which ir_datasets fetches",
            None,
            import_ir_dataset,
        ),
        Loader("jsonl", "your documents, schema, topics and qrels", None, import_jsonl),
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
