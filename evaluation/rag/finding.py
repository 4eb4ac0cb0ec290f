"""Finding what questions are answered from: by the name of a collection, or by a path."""

from __future__ import annotations

from pathlib import Path

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.evaluation.lamp.files import is_lamp
from fairqr.evaluation.lamp.loading import load_lamp
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.jsonl import load_jsonl
from fairqr.evaluation.rag.notables import load_notables

__all__ = ["find_rag_collection"]


def find_rag_collection(
    name: str | Path, *, task: str | None = None, limit: int = 1000, pool: int | None = None
) -> RagCollection:
    """Find a collection and read its questions.

    Its ``fingerprint`` is a hash of the files and the task. Neither ``limit`` nor ``pool`` is part
    of it, so that labels made for a large run serve a smaller one.

    Args:
        name: ``notables``, fairqr's own; a folder or a file of LaMP's, or of its shape; or a file
            ``.jsonl`` or ``.jsonl.gz`` of one's own. A path that is named like the built-in
            collection is written ``./notables``.
        task: For LaMP's files the task, where they do not say it; for a file of one's own the
            metric, see :data:`fairqr.evaluation.rag.jsonl.METRICS`.
        limit: How many questions are read from the front.
        pool: How many documents of each question's pool are taken from its front, for small runs;
            for ``notables`` how many there are, half of them relevant, 25 where None.

    Raises:
        CorpusError: There is nothing of that name, or a file is missing or malformed.
        SchemaError: A schema is wrong.
        InputError: There is no such task or metric, or a number is below 1.
    """
    if name == "notables":
        if task is not None:
            raise InputError("The collection notables has one task; leave the task out.")
        return load_notables(limit, pool)
    path = Path(name)
    try:
        if is_lamp(path):
            return load_lamp(path, task=task, limit=limit, pool=pool)
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            return load_jsonl(path, metric=task, limit=limit, pool=pool)
    except OSError as error:
        # A file that may not be opened, or a name that is too long for one.
        raise CorpusError(f"{one_line(path)} cannot be read: {error.strerror or error}.") from None
    raise CorpusError(
        f"There is no collection of questions '{one_line(name)}'; name notables, a folder with "
        "LaMP's questions.json and outputs.json, or a file .jsonl (docs/lamp.md)."
    )
