"""Reading LaMP's files as questions, each with the profile as its pool."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairqr.base.errors import CorpusError, InputError
from fairqr.base.files import sha256_of
from fairqr.evaluation.lamp.files import Entry, Outputs, find_files, read_entries, read_outputs
from fairqr.evaluation.lamp.tasks import LampTask, lamp_task
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery

NO_GROUPS: Mapping[str, Mapping[str, float]] = {}
LEFT_OUT = WITHOUT_TEXT, TWICE, ALIKE, ANSWER = (
    "without text",
    "whose id stood already",
    "that are equal to an earlier one",
    "that are the question and its gold",
)
"""Which documents are left out, in the order of a collection's note."""


def load_lamp(
    path: Path, *, task: str | None = None, limit: int = 1000, pool: int | None = None
) -> RagCollection:
    """Read a set of LaMP, or one of its shape.

    We leave out and count questions that cannot be asked: those with the id of an earlier one,
    without an output, with an output that is not a label or rating of the task, with nothing to
    search for in the input, or without a usable document. We also leave out documents without text,
    documents with the id or the fields of an earlier one in the profile, and documents that are the
    question with its answer; the collection's note says how many. A duplicate would share the
    exposure of its twin. A document with the answer would let every retriever find the gold; LaMP
    has none, but sets of its shape do.

    Args:
        path: A folder, or a file of questions; see :func:`fairqr.evaluation.lamp.files.find_files`.
        task: Such as ``LaMP-5``; defaults to the task that the file of outputs names.
        limit: How many entries are read from the front of the file; no more of it is held, or
            parsed.
        pool: How many documents are taken from the front of a profile; defaults to all.

    Raises:
        CorpusError: A file is missing or malformed, or no question can be asked.
        InputError: The task is unknown or not the file's, or a number is below 1.
    """
    questions, outputs = find_files(path)
    left_out: Counter[str] = Counter()
    entries: dict[str, Entry] = {}
    for entry in itertools.islice(read_entries(questions), limit):
        left_out["its id appears twice"] += entry.id in entries
        entries.setdefault(entry.id, entry)
    if not entries:
        raise CorpusError(f"{questions} has no question; each entry is an id, input and profile.")
    golds = read_outputs(outputs, entries.keys())
    kind, name = _task_of(task, golds, outputs)
    reader = _Reader(kind, pool)
    queries: list[RagQuery] = []
    for entry in entries.values():
        made = reader.query(entry, golds.golds.get(entry.id))
        if isinstance(made, RagQuery):
            queries.append(made)
        else:
            left_out[made] += 1
    left_out = +left_out
    reader.check_fields(questions)
    if not queries:
        reasons = "; ".join(f"{count} of them: {why}" for why, count in left_out.items())
        raise CorpusError(
            f"{questions} has no question of {kind.name} that can be asked ({reasons}); check that "
            "it is this task, or name another."
        )
    digest = hashlib.sha256()
    for part in (sha256_of(questions), sha256_of(outputs), kind.name):
        digest.update(part.encode())
    return RagCollection(
        name=name,
        title=f"{name}: {kind.about}",
        note=" ".join([*_of_that_shape(name, kind), *reader.notes()]),
        task=kind.rag_task(name),
        queries=tuple(queries),
        fingerprint=digest.hexdigest(),
        schema=None,
        left_out=dict(left_out),
    )


def _task_of(task: str | None, outputs: Outputs, path: Path) -> tuple[LampTask, str]:
    """Return how a set is read and what it is called."""
    if task is None:
        if not outputs.task:
            raise InputError(f"{path} does not say which task it is; name one, such as LaMP-5.")
        return lamp_task(outputs.task)
    asked, name = lamp_task(task)
    if not outputs.task:
        return asked, name
    try:
        found, name = lamp_task(outputs.task)
    except InputError:
        # A set with a name of its own.
        return asked, outputs.task
    if found != asked:
        raise InputError(f"{path} is {name}, not {asked.name}; leave the task out.")
    return found, name


def _of_that_shape(name: str, kind: LampTask) -> list[str]:
    return [] if name == kind.name else [f"A set in the shape of {kind.name}, which it is not."]


class _Reader:
    """Makes questions of entries, and counts the documents that are left out."""

    def __init__(self, task: LampTask, pool: int | None) -> None:
        self._task = task
        self._pool = pool
        self._left_out = Counter(dict.fromkeys(LEFT_OUT, 0))
        self._seen: set[str] = set()

    def query(self, entry: Entry, gold: str | None) -> RagQuery | str:
        """Return the question of an entry, or why there is none."""
        if gold is None:
            return "it has no output"
        if not self._task.is_gold(gold):
            return "its output is no answer to this task"
        question = _encodable(entry.input).strip()
        query = self._task.query(question)
        if not query:
            return f"its input has nothing after '{self._task.marker}'"
        if not entry.profile:
            return "it has no profile"
        gold = _encodable(gold).strip()
        documents = self._documents(entry.profile, {_flat(query), _flat(gold)})
        if not documents:
            return "no document of its profile can be used"
        return RagQuery(entry.id, question, query, (gold,), tuple(documents))

    def _documents(self, profile: list[dict[str, Any]], answer: set[str]) -> list[PoolDocument]:
        """Return the usable documents of a profile.

        Args:
            profile: As it stands in the file.
            answer: What the question is about, and its gold: a document whose fields are these two
                is the answer itself.
        """
        found: dict[str, PoolDocument] = {}
        contents: set[tuple[str, ...]] = set()
        for place, data in enumerate(profile):
            self._seen.update(data)
            fields = {name: _text(data.get(name)) for name in self._task.fields}
            text = "\n".join(fields[name] for name in self._task.text if fields[name])
            # A document without an id has its place as one; LaMP's all have one.
            id_ = _text(data.get("id")) or f"#{place}"
            if not text:
                self._left_out[WITHOUT_TEXT] += 1
            elif id_ in found:
                self._left_out[TWICE] += 1
            elif len(answer) > 1 and answer <= set(map(_flat, fields.values())):
                self._left_out[ANSWER] += 1
            elif (content := tuple(fields.values())) in contents:
                self._left_out[ALIKE] += 1
            else:
                contents.add(content)
                found[id_] = PoolDocument(id_, fields, text, NO_GROUPS)
            if len(found) == self._pool:
                break
        return list(found.values())

    def check_fields(self, path: Path) -> None:
        """Refuse a file whose documents all lack a field: it is another task's."""
        for name in self._task.fields:
            if self._seen and name not in self._seen:
                raise CorpusError(
                    f"No document in {path} has the field '{name}' of {self._task.name}; name the "
                    "task that the file is of."
                )

    def notes(self) -> list[str]:
        """Return what a reader should know of the documents."""
        notes = []
        if self._pool is not None:
            notes.append(f"Of each profile the first {self._pool} documents.")
        for what, count in self._left_out.items():
            if count:
                notes.append(f"Documents {what}, left out: {count}.")
        return notes


def _text(value: object) -> str:
    """Return a field as text; empty where it is missing, a list or an object."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return _encodable(str(value)).strip()


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can carry and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
