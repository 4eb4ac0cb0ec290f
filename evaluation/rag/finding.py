"""Finding what questions are answered from: by the name of a collection, or by a path.

The collection ``notables`` asks for people whom the documents describe: each topic is a question.
Its pool is made with the judgements: half of it are people who are meant, half are others whose
text merely has the words, since nearly all that BM25 finds first for a topic is relevant, and a
pool of nothing else could not show what retrieval does. The profiles of LaMP mix documents that
help and others too. So retrieval over these pools cannot be compared with search in the corpus. An
answer is right if it names anybody of the corpus who is judged relevant, in the pool or not.

Questions of one's own are a file of JSON Lines. Each line is
``{"id", "question", "query"?, "golds": […], "pool": [{"id", "text", "title"?, …}]}``.
What retrievers are asked is the question where ``query`` is missing. A document has its labels in
the fields that a schema names, as in a corpus. One without title and text is left out and counted,
as in LaMP's profiles, and so is a question that has no other. Beside ``own.jsonl`` may lie

- ``own.schema.yaml`` or ``schema.yaml``, the attributes of the documents;
- ``own.yaml`` with ``title``, ``note`` and ``metric``, all of them optional.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from fairqr.base.errors import CorpusError, InputError, first_problem, one_line
from fairqr.base.files import sha256_of
from fairqr.base.yaml_file import load_yaml
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.lamp.loading import is_lamp, load_lamp
from fairqr.evaluation.lamp.metrics import NamesRelevant, Rouge
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery, RagTask, Utility
from fairqr.retrieval.pools.retrievers import MemoryIndex
from fairqr.retrieval.sources.documents import Document, numbered_lines, parse_document
from fairqr.retrieval.sources.schema import Schema, load_schema, validated

POOL = 25
"""How many documents a question has by default."""

FOUND = 300
"""So many of the first documents that BM25 finds are looked at."""

METRICS: dict[str, Utility] = {
    "rouge-l": Rouge("rougeL"),
    "rouge-1": Rouge("rouge1"),
    "names": NamesRelevant(),
}
"""What answers can be judged by: text like a gold, or a gold's full name in the answer."""

DEFAULT_METRIC = "rouge-l"
NO_SCHEMA = Schema.model_construct(attributes={})
"""One without attributes, which a file of a schema may not be."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def load_notables(limit: int = 1000, pool: int | None = None) -> RagCollection:
    """Make questions of the topics; it takes about a second.

    Args:
        limit: The most topics.
        pool: How many documents each question has, by default :data:`POOL`. Of the first
            :data:`FOUND` that BM25 finds, in its order, we take the first ⌈pool/2⌉ that are
            relevant and the first ⌊pool/2⌋ that are not, or fewer if there are fewer.

    Raises:
        InputError: A number is below 1.
    """
    size = POOL if pool is None else pool
    collection = find_collection("notables")
    documents = list(collection.corpus.documents())
    by_id = {document.id: document for document in documents}
    ids = np.array([document.id for document in documents])
    index = MemoryIndex(_text(document) for document in documents)
    schema = collection.corpus.schema
    left_out: Counter[str] = Counter()
    queries = []
    for topic in collection.topics[:limit]:
        scores = index.scores(topic.title)
        # Ties are broken by id, as in every index of fairqr.
        order = np.lexsort((ids, -scores))[:FOUND]
        relevant = collection.relevant(topic.id)
        found = _mixed([documents[at] for at in order if scores[at] > 0], set(relevant), size)
        golds = [by_id[id_].title for id_ in relevant if id_ in by_id]
        if not found or not golds:
            left_out["no document is found" if golds else "no document is relevant"] += 1
            continue
        queries.append(
            RagQuery(
                topic.id,
                topic.title,
                topic.title,
                tuple(golds),
                tuple(_pool_document(document, schema) for document in found),
            )
        )
    if not queries:
        raise CorpusError("No topic of the collection can be asked; install fairqr again.")
    files = (collection.corpus.path.name, "schema.yaml", "topics.jsonl", "qrels.txt")
    return RagCollection(
        name="notables",
        title="Name one of the people",
        note=(
            "Each pool is made with the judgements: of what BM25 finds for the topic the first "
            f"{size - size // 2} documents that are relevant and the first {size // 2} that are "
            "not, in its order; how good retrieval is in it cannot be compared with search."
        ),
        task=RagTask(
            name="notables",
            about="a person of the kind that is asked for",
            prompt="names",
            utility=NamesRelevant(),
            hypothesis="The text is about {answer}.",
        ),
        queries=tuple(queries),
        fingerprint=_digest(*(sha256_of(collection.folder / name) for name in files)),
        schema=schema,
        left_out=dict(left_out),
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def shares_of(document: Document, schema: Schema) -> Mapping[str, Mapping[str, float]]:
    """Return by attribute the share of each group in a document; none if it is unknown.

    Raises:
        ValueError: A label does not fit the schema.
    """
    return {
        name: {
            group: share
            for group, share in zip(it.universe, document.membership(it), strict=True)
            if share > 0
        }
        for name, it in schema.attributes.items()
    }


def _mixed(found: Sequence[Document], relevant: Set[str], size: int) -> list[Document]:
    """Return the first documents of both kinds, in their order, half as many as asked of each."""
    right = [it.id for it in found if it.id in relevant][: size - size // 2]
    wrong = [it.id for it in found if it.id not in relevant][: size // 2]
    return [it for it in found if it.id in {*right, *wrong}]


def _text(document: Document) -> str:
    # As the index of a corpus has it.
    return f"{document.title}\n{document.text}".strip()


def _pool_document(document: Document, schema: Schema) -> PoolDocument:
    fields = {"title": document.title, "text": document.text}
    return PoolDocument(document.id, fields, _text(document), shares_of(document, schema))


class _About(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = ""
    note: str = ""
    metric: str = DEFAULT_METRIC


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    id: Text
    question: Text
    query: Text | None = None
    golds: tuple[Text, ...] = Field(min_length=1)
    pool: tuple[dict[str, Any], ...] = Field(min_length=1)


def load_jsonl(
    path: Path, *, metric: str | None = None, limit: int = 1000, pool: int | None = None
) -> RagCollection:
    """Read a file of questions; prompt ``answer``.

    Args:
        path: The file; unpacked while it is read where its name ends in ``.gz``.
        metric: One of :data:`METRICS`; defaults to the one in ``own.yaml``, or ``rouge-l``.
        limit: The most lines to read.
        pool: How many usable documents of each pool to take from its front; by default all.

    Raises:
        CorpusError: The file is missing or empty, no question can be asked, or a line is no
            question; the line is named.
        SchemaError: The schema is wrong.
        InputError: There is no such metric, or a number is below 1.
    """
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    about = _read_about(path.with_name(f"{stem}.yaml"))
    chosen = metric or about.metric
    if chosen not in METRICS:
        raise InputError(
            f"There is no metric '{one_line(chosen)}'; choose one of {', '.join(METRICS)}."
        )
    schema_path = _schema_beside(path, stem)
    schema = load_schema(schema_path) if schema_path else None
    queries: dict[str, RagQuery] = {}
    without_text = 0
    for number, line in itertools.islice(numbered_lines(path), limit):
        try:
            query, blank = _query(line, schema, pool)
            if query.id in queries:
                raise ValueError(f"the id '{one_line(query.id)}' appears twice")
        except (ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            what = "it is nested too deeply" if deep else one_line(error)
            raise CorpusError(f"{path}, line {number}: {what}; fix the question.") from None
        queries[query.id] = query
        without_text += blank
    if not queries:
        raise CorpusError(f"{path} is empty; each line is a question with golds and a pool.")
    asked = tuple(query for query in queries.values() if query.pool)
    if not asked:
        raise CorpusError(f"No document in {path} has a title or a text; give each some text.")
    notes = [
        about.note,
        f"Of each pool the first {pool}." if pool is not None else "",
        f"Documents without text, left out: {without_text}." if without_text else "",
    ]
    unasked = len(queries) - len(asked)
    files = [path, *([schema_path] if schema_path else [])]
    return RagCollection(
        name=stem,
        title=about.title or stem,
        note=" ".join(filter(None, notes)),
        task=RagTask(stem, "questions of one's own", "answer", METRICS[chosen]),
        queries=asked,
        fingerprint=_digest(*map(sha256_of, files), chosen),
        schema=schema,
        left_out={"no document of its pool can be used": unasked} if unasked else {},
    )


def _read_about(path: Path) -> _About:
    if not path.is_file():
        return _About()
    return validated(_About, load_yaml(path, "file", CorpusError) or {}, str(path), CorpusError)


def _schema_beside(path: Path, stem: str) -> Path | None:
    beside = (path.with_name(name) for name in (f"{stem}.schema.yaml", "schema.yaml"))
    return next(filter(Path.is_file, beside), None)


def _query(line: bytes, schema: Schema | None, pool: int | None) -> tuple[RagQuery, int]:
    """Read a line, whose pool may turn out to be empty; raises ValueError for what is no question.

    Returns:
        The question, and how many documents without text were left out.
    """
    try:
        data = json.loads(line)
        # Halves of surrogate pairs, which no index and no tokenizer takes.
        json.dumps(data, ensure_ascii=False).encode()
        read = _Line.model_validate(data)
    except ValidationError as error:
        where, reason = first_problem(error)
        raise ValueError(f"{where or 'the line'}: {reason}") from None
    except UnicodeEncodeError:
        raise ValueError("one of its texts has half a surrogate pair") from None
    except json.JSONDecodeError:
        raise ValueError("it is not valid JSON") from None
    checked, documents, blank = schema or NO_SCHEMA, dict[str, PoolDocument](), 0
    for place, fields in enumerate(read.pool, start=1):
        if len(documents) == pool:
            break
        if not any(_has_text(fields.get(name)) for name in ("title", "text")):
            blank += 1
            continue
        try:
            document = _pool_document(parse_document(json.dumps(fields), checked), checked)
            if document.id in documents:
                raise ValueError(f"its id '{one_line(document.id)}' appears twice")
        except ValueError as error:
            raise ValueError(f"document {place} of the pool: {error}") from None
        documents[document.id] = document
    query = read.query or read.question
    made = RagQuery(read.id, read.question, query, read.golds, tuple(documents.values()))
    return made, blank


def _has_text(value: object) -> bool:
    """Return whether a field has something to read, or is wrong, which is said where it is read."""
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


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
        task: For LaMP's files the task, if they do not say it; for a file of your own the
            metric, see :data:`fairqr.evaluation.rag.finding.METRICS`.
        limit: The most questions to read.
        pool: How many documents of each question's pool to take from its front, for small runs.
            For ``notables`` how many to find, half of them relevant; 25 by default.

    Raises:
        CorpusError: There is nothing of that name, or a file is missing or malformed.
        SchemaError: A schema is wrong.
        InputError: There is no such task or metric, or a number is below 1.
    """
    if limit < 1 or (pool is not None and pool < 1):
        raise InputError("The numbers of queries and of documents must be 1 or more.")
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
        "LaMP's questions.json and outputs.json, or a file .jsonl; see "
        "docs/how-to/measure-fair-rag.md."
    )
