"""The corpus of notable people as questions: name somebody of whom the documents tell.

Each topic of the collection is a question. Its pool is made with the judgements: half of it are
people who are meant, half are others whose text merely has the words, since nearly all that BM25
finds first for a topic is relevant, and a pool of nothing else could not show what retrieval does.
The profiles of LaMP mix documents that help and others too. So retrieval over these pools cannot be
compared with search in the corpus. An answer is right if it names anybody of the corpus who is
judged relevant, in the pool or not.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set

import numpy as np

from fairqr.base.errors import CorpusError, InputError
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.lamp.metrics import NamesRelevant
from fairqr.evaluation.rag.collection import PoolDocument, RagCollection, RagQuery, RagTask
from fairqr.retrieval.documents import Document
from fairqr.retrieval.files import sha256_of
from fairqr.retrieval.pools.bm25 import MemoryIndex
from fairqr.retrieval.schema import Schema

__all__ = ["POOL", "load_notables", "shares_of"]

POOL = 25
"""How many documents a question has unless it is told otherwise."""

FOUND = 300
"""So many of the first documents that BM25 finds are looked at."""


def load_notables(limit: int = 1000, pool: int | None = None) -> RagCollection:
    """Make questions of the topics; it takes about a second.

    Args:
        limit: How many topics at the most.
        pool: How many documents each question has, :data:`POOL` where None: of the first
            :data:`FOUND` that BM25 finds, in its order, the first ⌈pool/2⌉ that are relevant and
            the first ⌊pool/2⌋ that are not. Where there are not so many the pool is smaller.

    Raises:
        InputError: A number is below 1.
    """
    size = POOL if pool is None else pool
    if limit < 1 or size < 1:
        raise InputError("The numbers of queries and of documents must be 1 or more.")
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
                id=topic.id,
                question=topic.title,
                query=topic.title,
                golds=tuple(golds),
                pool=tuple(_pool_document(document, schema) for document in found),
            )
        )
    if not queries:
        raise CorpusError("No topic of the collection can be asked; install fairqr again.")
    digest = hashlib.sha256()
    for name in (collection.corpus.path.name, "schema.yaml", "topics.jsonl", "qrels.txt"):
        digest.update(sha256_of(collection.folder / name).encode())
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
        fingerprint=digest.hexdigest(),
        schema=schema,
        left_out=dict(left_out),
    )


def shares_of(document: Document, schema: Schema) -> Mapping[str, Mapping[str, float]]:
    """Return by attribute the share of each group in a document; none where it is unknown.

    Raises:
        ValueError: A label does not fit the schema.
    """
    groups: dict[str, dict[str, float]] = {}
    for name, attribute in schema.attributes.items():
        membership = zip(attribute.universe, document.membership(attribute), strict=True)
        groups[name] = {group: share for group, share in membership if share > 0}
    return groups


def _mixed(found: Sequence[Document], relevant: Set[str], size: int) -> list[Document]:
    """Return the first documents of both kinds, in their order, half as many as asked of each."""
    room = {True: size - size // 2, False: size // 2}
    taken = []
    for document in found:
        is_relevant = document.id in relevant
        if room[is_relevant]:
            room[is_relevant] -= 1
            taken.append(document)
    return taken


def _text(document: Document) -> str:
    # As the index of a corpus has it.
    return f"{document.title}\n{document.text}"


def _pool_document(document: Document, schema: Schema) -> PoolDocument:
    return PoolDocument(
        id=document.id,
        fields={"title": document.title, "text": document.text},
        text=_text(document),
        groups=shares_of(document, schema),
    )
