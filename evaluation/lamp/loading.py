"""Reading LaMP's files as questions, each with the profile as its pool.

A file of questions is a list of entries, ``[{id, input, profile}]``; it may be large, and is read
one entry at a time. Its outputs are ``{"task": …, "golds": [{id, output}]}``.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from fairqr.base.errors import CorpusError, InputError, first_problem, one_line
from fairqr.base.extras import library
from fairqr.base.files import sha256_of
from fairqr.evaluation.lamp import metrics
from fairqr.evaluation.lamp.tasks import LampTask, lamp_task
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery
from fairqr.retrieval.sources.documents import open_text

QUESTIONS = re.compile("questions|inputs")
"""``inputs`` is what the authors of Fair RAG call them beside their labels."""

OUTPUTS = "outputs"
ENDINGS = (".json", ".json.gz")
RatingLabels = Literal["accuracy", "error"]
"""By what a document of LaMP-3 is useful: the accuracy of the rating, or 4 − |error|."""
T = TypeVar("T")


class KeptDocuments(NamedTuple):
    """Which documents of a profile stay that we leave out by default.

    Attributes:
        duplicates: Documents that are equal to an earlier one.
        answers: Documents that are the question with its answer.
    """

    duplicates: bool = False
    answers: bool = False


NOTHING_KEPT = KeptDocuments()


class Entry(BaseModel, frozen=True, coerce_numbers_to_str=True):
    """An entry of a file of questions.

    Attributes:
        input: What is asked, with the text that it is about.
        profile: The documents as in the file; optional.
    """

    id: str
    input: str
    profile: list[dict[str, Any]] | None = None


class _Gold(BaseModel, coerce_numbers_to_str=True):
    id: str
    output: str


def find_files(path: Path) -> tuple[Path, Path]:
    """Find a file of questions and the outputs that belong to it.

    Args:
        path: A folder with ``questions.json`` or one file such as ``dev_questions.json``, also
            packed as ``.gz``; or the file of questions itself, where a folder has several. With
            several, ``questions.json`` and then ``dev_questions.json`` come first, since the
            experiments of Fair RAG are made on the development split.

    Raises:
        CorpusError: A file is missing, or there are several and none of them comes first.
    """
    files = sorted(path.glob("*.json*")) if path.is_dir() else [path]
    by_stem = {_stem(file): file for file in files if file.is_file() and is_lamp(file)}
    if len(by_stem) == 1:
        (questions,) = by_stem.values()
    elif "questions" in by_stem:
        questions = by_stem["questions"]
    elif "dev_questions" in by_stem:
        questions = by_stem["dev_questions"]
    else:
        names = ", ".join(file.name for file in by_stem.values()) or "no file of LaMP's questions"
        raise CorpusError(
            f"{path} has {names}; name a folder with questions.json and outputs.json, or one file "
            "of questions, such as dev_questions.json."
        )
    stem = QUESTIONS.sub(OUTPUTS, _stem(questions))
    for ending in ENDINGS:
        outputs = questions.with_name(stem + ending)
        if outputs.is_file():
            return questions, outputs
    raise CorpusError(
        f"{questions} has no outputs beside it; put {stem}.json there, which has the golds."
    )


def is_lamp(path: Path) -> bool:
    """Return whether a path looks like LaMP's files: a folder with questions, or questions."""
    if path.is_dir():
        return any(map(is_lamp, path.glob("*.json*")))
    return path.name.endswith(ENDINGS) and QUESTIONS.search(path.name) is not None


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def read_items(path: Path, prefix: str, kind: type[T]) -> Iterator[T]:
    """Yield the values at a place in a JSON file, one at a time.

    Args:
        path: The file; unpacked while it is read if its name ends in ``.gz``.
        prefix: The place as ijson has it: ``item`` for the entries of a list.
        kind: What each value has to be.

    Raises:
        CorpusError: The file cannot be read, is not JSON, or a value is of another kind.
        InputError: ijson is not installed.
    """
    ijson = library("ijson", "Reading LaMP's files", "lamp")
    reader = TypeAdapter(kind)
    number = 0
    with open_text(path) as file:
        try:
            for value in ijson.items(file, prefix, use_float=True):
                number += 1
                yield reader.validate_python(value)
        except (ijson.JSONError, ValidationError) as error:
            problem = str(error).partition("\n")[0]
            if isinstance(error, ValidationError):
                problem = ": ".join(filter(None, first_problem(error)))
            raise CorpusError(
                f"{path} cannot be read as LaMP's JSON: {prefix} {number}: "
                f"{one_line(problem)}; fix it."
            ) from None


def load_lamp(
    path: Path,
    *,
    task: str | None = None,
    limit: int = 1000,
    pool: int | None = None,
    kept: KeptDocuments = NOTHING_KEPT,
    rating_labels: RatingLabels = "accuracy",
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
        path: A folder, or a file of questions; see :func:`find_files`.
        task: Such as ``LaMP-5``; defaults to the task that the file of outputs names.
        limit: How many entries are read from the front of the file; no more of it is held, or
            parsed.
        pool: How many documents are taken from the front of a profile; defaults to all.
        kept: Which documents stay that we leave out by default.
        rating_labels: By what documents of LaMP-3 are useful: ``accuracy``, as the code of "Towards
            Fair RAG" has it, or ``error``, which is 4 − |error|, as its text has it. Answers are
            judged by the latter either way.

    Raises:
        CorpusError: A file is missing or malformed, or no question can be asked.
        InputError: The task is unknown, or neither named nor in the file.
    """
    questions, outputs = find_files(path)
    left_out: Counter[str] = Counter()
    entries = _read_entries(questions, limit, left_out)
    golds = _read_golds(outputs, entries)
    task_in_file = next(read_items(outputs, "task", str | None), None)  # type: ignore[arg-type]
    kind, name = lamp_task(task or task_in_file or "")
    if task and task_in_file:
        name = task_in_file
        with contextlib.suppress(InputError):  # a set may have a name of its own
            name = lamp_task(task_in_file)[1]
    dropped: Counter[str] = Counter()
    queries = []
    for entry in entries.values():
        query = _query(kind, entry, golds.get(entry.id), pool, dropped, kept)
        if isinstance(query, RagQuery):
            queries.append(query)
        else:
            left_out[query] += 1
    left_out = +left_out
    if not queries:
        reasons = "; ".join(f"{count} of them: {reason}" for reason, count in left_out.items())
        raise CorpusError(
            f"{questions} has no question of {kind.name} that can be asked ({reasons}); check that "
            "it is this task, or name another."
        )
    notes = []
    if name != kind.name:
        notes.append(f"A set in the shape of {kind.name}, which it is not.")
    if pool is not None:
        notes.append(f"Of each profile the first {pool} documents.")
    notes += [f"Documents {reason}, left out: {count}." for reason, count in dropped.items()]
    label_utility = None
    if kind.judged == "rating":
        label_utility = metrics.RATING_ACCURACY if rating_labels == "accuracy" else kind.utility
        notes.append(
            f"Documents are useful by {label_utility.name}; answers are judged by "
            f"{kind.utility.name}."
        )
    hashes = "".join([sha256_of(questions), sha256_of(outputs), kind.name])
    return RagCollection(
        name=name,
        title=f"{name}: {kind.about}",
        note=" ".join(notes),
        prompt=f"lamp{kind.number}",
        utility=kind.utility,
        label_utility=label_utility,
        queries=tuple(queries),
        fingerprint=hashlib.sha256(hashes.encode()).hexdigest(),
        left_out=dict(left_out),
    )


def _read_entries(questions: Path, limit: int, left_out: Counter[str]) -> dict[str, Entry]:
    """Return the first entries of a file by their ids, and count the ids that come again."""
    entries: dict[str, Entry] = {}
    for entry in itertools.islice(read_items(questions, "item", Entry), limit):
        left_out["its id appears twice"] += entry.id in entries
        entries.setdefault(entry.id, entry)
    return entries


def _read_golds(outputs: Path, entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the outputs of entries by their ids; of an id that comes again the first."""
    golds: dict[str, str] = {}
    for gold in read_items(outputs, "golds.item", _Gold):
        if gold.id in entries:
            golds.setdefault(gold.id, gold.output)
    return golds


def _query(
    task: LampTask,
    entry: Entry,
    gold: str | None,
    pool: int | None,
    dropped: Counter[str],
    kept: KeptDocuments,
) -> RagQuery | str:
    """Return the question of an entry, or why there is none; count the documents left out."""
    if gold is None:
        return "it has no output"
    if not task.is_gold(gold):
        return "its output is no answer to this task"
    question = _text(entry.input)
    query = task.query(question)
    if not query:
        return f"its input has nothing after '{task.marker}'"
    if not entry.profile:
        return "it has no profile"
    profile = _Profile(query, gold, kept)
    for position, data in enumerate(entry.profile):
        document = _document(task, position, data)
        reason = profile.add(document)
        if reason:
            dropped[reason] += 1
        if len(profile.documents) == pool:
            break
    if not profile.documents:
        return "no document of its profile can be used"
    documents = tuple(profile.documents.values())
    return RagQuery(entry.id, question, query, (_text(gold),), documents)


class _Profile:
    """Gathers the documents of a profile that can be used.

    Args:
        query: The question.
        gold: Its answer.
        kept: Which documents stay that we leave out by default.

    Attributes:
        documents: By their ids.
    """

    def __init__(self, query: str, gold: str, kept: KeptDocuments) -> None:
        self.documents: dict[str, PoolDocument] = {}
        self._contents: set[tuple[str, ...]] = set()
        self._kept = kept
        # A document whose fields are the question and its gold is the answer itself.
        self._answer = {_flat(query), _flat(gold)}

    def add(self, document: PoolDocument) -> str:
        """Take in a document; return why it is left out, or nothing."""
        content = tuple(document.fields.values())
        has_answer = len(self._answer) > 1 and self._answer <= set(map(_flat, content))
        if not document.text:
            return "without text"
        if document.id in self.documents:
            return "whose id stood already"
        if has_answer and not self._kept.answers:
            return "that are the question and its gold"
        if content in self._contents and not self._kept.duplicates:
            return "that are equal to an earlier one"
        self._contents.add(content)
        self.documents[document.id] = document
        return ""


def _document(task: LampTask, position: int, data: dict[str, Any]) -> PoolDocument:
    fields = {name: _text(data.get(name)) for name in task.fields}
    text = "\n".join(fields[name] for name in task.text if fields[name])
    # A document without an id has its position as one; LaMP's all have one.
    return PoolDocument(_text(data.get("id")) or f"#{position}", fields, text, {})


def _text(value: object) -> str:
    """Return a field as text; empty where it is missing, a list or an object.

    Halves of surrogate pairs, which JSON can carry and no tokenizer takes, are replaced.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value).encode("utf-8", "replace").decode().strip()


def _flat(text: str) -> str:
    return " ".join(_text(text).casefold().split())
