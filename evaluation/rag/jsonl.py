"""Questions of anyone's own, from a file of JSON Lines.

Each line is ``{"id", "question", "query"?, "golds": […], "pool": [{"id", "text", "title"?, …}]}``.
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
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from fairqr.base.errors import CorpusError, InputError, first_problem, one_line
from fairqr.evaluation.lamp.metrics import NamesRelevant, Rouge
from fairqr.evaluation.rag.collection import (
    PoolDocument,
    RagCollection,
    RagQuery,
    RagTask,
    Utility,
)
from fairqr.evaluation.rag.notables import shares_of
from fairqr.retrieval.documents import numbered_lines, parse_document
from fairqr.retrieval.files import sha256_of
from fairqr.retrieval.schema import Schema, load_schema, load_yaml, validated

__all__ = ["METRICS", "load_jsonl"]

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
        metric: One of :data:`METRICS`; where None, what ``own.yaml`` says, or ``rouge-l``.
        limit: How many lines are read at the most.
        pool: How many usable documents of each pool are taken from its front; all where None.

    Raises:
        CorpusError: The file is missing or empty, no question can be asked, or a line is no
            question; the line is named.
        SchemaError: The schema is wrong.
        InputError: There is no such metric, or a number is below 1.
    """
    if limit < 1 or (pool is not None and pool < 1):
        raise InputError("The numbers of queries and of documents must be 1 or more.")
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
                raise ValueError(f"the id '{one_line(query.id)}' stands twice")
        except (ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            what = "it is nested too deeply" if deep else one_line(error)
            raise CorpusError(f"{path}, line {number}: {what}; mend the question.") from None
        queries[query.id] = query
        without_text += blank
    if not queries:
        raise CorpusError(f"{path} is empty; each line is a question with golds and a pool.")
    asked = tuple(query for query in queries.values() if query.pool)
    if not asked:
        raise CorpusError(f"No document in {path} has a title or a text; give each some text.")
    notes = [about.note] if about.note else []
    if pool is not None:
        notes.append(f"Of each pool the first {pool}.")
    if without_text:
        notes.append(f"Documents without text, left out: {without_text}.")
    unasked = len(queries) - len(asked)
    digest = hashlib.sha256(sha256_of(path).encode())
    if schema_path:
        digest.update(sha256_of(schema_path).encode())
    digest.update(chosen.encode())
    return RagCollection(
        name=stem,
        title=about.title or stem,
        note=" ".join(notes),
        task=RagTask(stem, "questions of one's own", "answer", METRICS[chosen]),
        queries=asked,
        fingerprint=digest.hexdigest(),
        schema=schema,
        left_out={"no document of its pool can be used": unasked} if unasked else {},
    )


def _read_about(path: Path) -> _About:
    if not path.is_file():
        return _About()
    return validated(_About, load_yaml(path, "file", CorpusError) or {}, str(path), CorpusError)


def _schema_beside(path: Path, stem: str) -> Path | None:
    for name in (f"{stem}.schema.yaml", "schema.yaml"):
        if (beside := path.with_name(name)).is_file():
            return beside
    return None


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
        raise ValueError("a text of it has half a surrogate pair") from None
    except json.JSONDecodeError:
        raise ValueError("it is not valid JSON") from None
    documents: dict[str, PoolDocument] = {}
    blank = 0
    for place, fields in enumerate(read.pool, start=1):
        if len(documents) == pool:
            break
        if not any(_has_text(fields.get(name)) for name in ("title", "text")):
            blank += 1
            continue
        try:
            document = _document(fields, schema)
            if document.id in documents:
                raise ValueError(f"its id '{one_line(document.id)}' stands twice")
        except ValueError as error:
            raise ValueError(f"document {place} of the pool: {error}") from None
        documents[document.id] = document
    query = read.query or read.question
    made = RagQuery(read.id, read.question, query, read.golds, tuple(documents.values()))
    return made, blank


def _has_text(value: object) -> bool:
    """Return whether a field has something to read, or is wrong, which is said where it is read."""
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


def _document(fields: dict[str, Any], schema: Schema | None) -> PoolDocument:
    checked = schema or NO_SCHEMA
    document = parse_document(json.dumps(fields), checked)
    return PoolDocument(
        id=document.id,
        fields={"title": document.title, "text": document.text},
        text=f"{document.title}\n{document.text}".strip(),
        groups=shares_of(document, checked),
    )
