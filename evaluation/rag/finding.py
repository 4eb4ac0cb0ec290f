"""Finding what questions are answered from: by the name of a collection, or by a path.

A collection with topics and judgements, such as ``notables``, asks for what its documents describe:
each topic is a question. Its pool is made with the judgements: half of it is relevant, half merely
has the words, since nearly all that BM25 finds first for a topic may be relevant, and a pool of
nothing else could not show what retrieval does. The profiles of LaMP mix documents that help and
others too. So retrieval over these pools cannot be compared with search in the corpus. An answer is
right if it has the title of a document that is judged relevant, in the pool or not.

Questions of one's own are a file of JSON Lines. Each line is
``{"id", "question", "query"?, "golds": […], "pool": [{"id", "text", "title"?, …}]}``.
What retrievers are asked is the question where ``query`` is missing. A document has its labels in
the fields that a schema names, as in a corpus; for ``own.jsonl`` it is ``own.schema.yaml`` or
``schema.yaml`` beside it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, StringConstraints

from fairqr.base.errors import CorpusError, InputError, one_line
from fairqr.base.files import sha256_of
from fairqr.evaluation.collections.collection import bad_line
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.lamp.loading import (
    NOTHING_KEPT,
    KeptDocuments,
    RatingLabels,
    is_lamp,
    load_lamp,
)
from fairqr.evaluation.lamp.metrics import NAMES_RELEVANT, ROUGE_1, ROUGE_L
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery, Utility
from fairqr.retrieval.pools.retrievers import MemoryIndex
from fairqr.retrieval.sources.corpus import stem_of
from fairqr.retrieval.sources.documents import Document, numbered_lines, parse_document
from fairqr.retrieval.sources.schema import Schema, load_schema

POOL = 25
"""How many documents a question has by default."""

FOUND = 300
"""So many of the first documents that BM25 finds are looked at."""

METRICS: dict[str, Utility] = {"rouge-l": ROUGE_L, "rouge-1": ROUGE_1, "names": NAMES_RELEVANT}
"""What answers can be judged by: text like a gold, or a gold's full name in the answer."""

NO_SCHEMA = Schema.model_construct(attributes={})
"""A schema without attributes, which no file may hold."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def load_topics(name: str | Path, limit: int = 1000, pool: int | None = None) -> RagCollection:
    """Make questions of a collection's topics; of 11,000 documents it takes about a second.

    Args:
        name: See :func:`fairqr.evaluation.collections.finding.find_collection`.
        limit: The most topics.
        pool: How many documents each question has, by default :data:`POOL`. Of the first
            :data:`FOUND` that BM25 finds, in its order, we take the first ⌈pool/2⌉ that are
            relevant and the first ⌊pool/2⌋ that are not, or fewer if there are fewer.
    """
    collection = find_collection(name)
    schema = collection.corpus.schema
    size = POOL if pool is None else pool
    most_irrelevant = size // 2
    most_relevant = size - most_irrelevant
    # Ties are broken by id, as in every index of fairqr.
    documents = sorted(collection.corpus.documents(), key=lambda document: document.id)
    titles = {document.id: document.title for document in documents}
    index = MemoryIndex(map(_text, documents))
    queries = []
    for topic in collection.topics[:limit]:
        relevant_ids = collection.relevant(topic.id)
        scores = index.scores(topic.title)
        order = np.argsort(-scores, kind="stable")[:FOUND]
        hits = [documents[position] for position in order if scores[position] > 0]
        is_relevant = {*relevant_ids}.__contains__
        relevant = [hit.id for hit in hits if is_relevant(hit.id)][:most_relevant]
        irrelevant = [hit.id for hit in hits if not is_relevant(hit.id)][:most_irrelevant]
        chosen = {*relevant, *irrelevant}
        query = RagQuery(
            id=topic.id,
            question=topic.title,
            query=topic.title,
            golds=tuple(titles[id_] for id_ in relevant_ids if id_ in titles),
            pool=tuple(_pool_document(hit, schema) for hit in hits if hit.id in chosen),
            judged=frozenset(relevant),
        )
        queries.append(query)
    return RagCollection(
        name=collection.name,
        title=f"Name one: {collection.title}",
        note=(
            "Each pool is made with the judgements: of what BM25 finds for the topic the first "
            f"{most_relevant} documents that are relevant and the first {most_irrelevant} that are "
            "not, in its order; how good retrieval is in it cannot be compared with search."
        ),
        prompt="names",
        utility=NAMES_RELEVANT,
        queries=tuple(queries),
        fingerprint=_digest(*collection.fingerprints().values()),
        schema=schema,
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _text(document: Document) -> str:
    # As the index of a corpus has it.
    return f"{document.title}\n{document.text}".strip()


def _pool_document(document: Document, schema: Schema) -> PoolDocument:
    shares = {}
    for name, attribute in schema.attributes.items():
        membership = document.membership(attribute)
        shares[name] = dict(zip(attribute.universe, membership, strict=True))
    fields = {"title": document.title, "text": document.text}
    return PoolDocument(document.id, fields, _text(document), shares)


class _Line(BaseModel, frozen=True, coerce_numbers_to_str=True):
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
        metric: One of :data:`METRICS`, by default the first.
        limit: The most lines to read.
        pool: How many documents of each pool to take from its front; by default all.

    Raises:
        CorpusError: The file is missing or empty, or a line is not a question; the line is named.
        SchemaError: The schema is wrong.
        InputError: There is no such metric.
    """
    stem = stem_of(path)
    metric = metric or next(iter(METRICS))
    if metric not in METRICS:
        raise InputError(f"There is no metric '{one_line(metric)}'; name {', '.join(METRICS)}.")
    candidates = [path.with_name(f"{stem}.schema.yaml"), path.with_name("schema.yaml")]
    schema_path = next(filter(Path.is_file, candidates), None)
    schema = load_schema(schema_path) if schema_path else None
    files = [path, schema_path] if schema_path else [path]
    queries: dict[str, RagQuery] = {}
    for number, line in itertools.islice(numbered_lines(path), limit):
        try:
            query = _query(line, schema or NO_SCHEMA, pool)
            if queries.setdefault(query.id, query) is not query:
                raise ValueError(f"the id '{one_line(query.id)}' appears twice")
        except ValueError as error:
            raise bad_line(path, number, error) from None
    if not queries:
        raise CorpusError(f"{path} is empty; each line is a question with golds and a pool.")
    return RagCollection(
        name=stem,
        title=stem,
        prompt="answer",
        utility=METRICS[metric],
        queries=tuple(queries.values()),
        fingerprint=_digest(*map(sha256_of, files), metric),
        schema=schema,
    )


def _query(line: str, schema: Schema, pool: int | None) -> RagQuery:
    row = _Line.model_validate_json(line)
    documents = [parse_document(json.dumps(fields), schema) for fields in row.pool[:pool]]
    if len({document.id for document in documents}) < len(documents):
        raise ValueError("two documents of its pool have the same id")
    return RagQuery(
        id=row.id,
        question=row.question,
        query=row.query or row.question,
        golds=row.golds,
        pool=tuple(_pool_document(document, schema) for document in documents),
    )


def find_rag_collection(
    name: str | Path,
    *,
    task: str | None = None,
    limit: int = 1000,
    pool: int | None = None,
    kept: KeptDocuments = NOTHING_KEPT,
    rating_labels: RatingLabels = "accuracy",
) -> RagCollection:
    """Find a collection and read its questions.

    Its ``fingerprint`` is a hash of the files and the task. Neither ``limit`` nor ``pool`` is part
    of it, so that labels made for a large run serve a smaller one.

    Args:
        name: A folder or a file of LaMP's, or of its shape; a file ``.jsonl`` or ``.jsonl.gz`` of
            one's own; or a collection with topics and judgements, as experiments with searches
            take it. A path that is named like a collection is written ``./notables``.
        task: For LaMP's files the task, if they do not say it; for a file of your own the
            metric, see :data:`fairqr.evaluation.rag.finding.METRICS`.
        limit: The most questions to read.
        pool: How many documents of each question's pool to take from its front, for small runs.
            Of topics how many to find, half of them relevant; 25 by default.
        kept: Which documents of LaMP's profiles stay.
        rating_labels: By what documents of LaMP-3 are useful.

    Raises:
        CorpusError: There is nothing of that name, or a file is missing or malformed.
        SchemaError: A schema is wrong.
        InputError: There is no such task or metric.
    """
    path = Path(name)
    try:
        if is_lamp(path):
            return load_lamp(
                path,
                task=task,
                limit=limit,
                pool=pool,
                kept=kept,
                rating_labels=rating_labels,
            )
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            return load_jsonl(path, metric=task, limit=limit, pool=pool)
    except OSError as error:
        # A file that may not be opened, or a name that is too long for one.
        raise CorpusError(f"{one_line(path)} cannot be read: {error.strerror or error}.") from None
    return load_topics(name, limit, pool)
