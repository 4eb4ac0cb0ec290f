"""Small real encoders for the tests: the meaning of a text is which words it has."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.fairness.answerable import Background, unrelated_queries
from fairqr.retrieval.fairness.relevance import CALIBRATED
from fairqr.retrieval.sources.documents import Document

WORDS = [f"w{i}" for i in range(12)]


def generated(count: int, seed: int = 1, more: Sequence[str] = ("",)) -> list[Document]:
    """Documents about some of twelve things; optionally each with one of more words."""
    draw = random.Random(seed)
    return [
        Document(
            f"d{number:03}",
            draw.choice(WORDS),
            " ".join([*draw.choices(WORDS, k=draw.randint(2, 9)), draw.choice(more)]),
            {"gender": draw.choice(["female", "male"])},
        )
        for number in range(count)
    ]


def unit(vector: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return a vector of length 1; zeros stay zeros."""
    return np.asarray(vector / (np.linalg.norm(vector) or 1.0), dtype=float)


def word_vector(text: str, dimensions: int, salt: str = "") -> NDArray[np.float64]:
    """Return the sum of a random vector for each word; zeros for a text of full stops alone."""
    total = np.zeros(dimensions)
    for word in text.lower().replace(".", " ").split():
        seed = int.from_bytes(blake2b(f"{salt}{word}".encode(), digest_size=8).digest(), "big")
        total += np.random.default_rng(seed).standard_normal(dimensions)
    return total


def moved_by_hand(query_vector: Any, vectors: Any, rankings: Sequence[Sequence[Any]]) -> Any:
    """Return a query's vector, moved halfway toward the mean of the ten best by rank fusion."""
    fused: dict[Any, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(ranking[:200], start=1):
            fused[item] += 1 / (60 + rank)
    best = sorted(fused, key=lambda item: (-fused[item], item))[:10]
    return unit(query_vector + unit(np.mean([vectors[item] for item in best], axis=0)))


def unrelated_by_hand(vectors: Sequence[Any]) -> Background:
    """Return what cosines unrelated queries reach among vectors of length 1.

    The encoder is not MiniLM, so differences are brought to its scale.
    """
    nearest = []
    deviations = []
    for text in unrelated_queries()[::5]:
        query = unit(word_vector(text, len(vectors[0])))
        cosines = sorted(float(vector @ query) for vector in vectors)
        nearest.append(np.mean(cosines[-5:]))
        deviations.append(np.std(cosines))
    return Background(float(np.mean(nearest)), float(0.055 / np.mean(deviations)))


async def estimates_by_hand(
    lexical: SearchEngine,
    vectors: Mapping[str, Any],
    query: str,
    *,
    by_rank: bool,
    sample: Sequence[Any] = (),
) -> dict[str, float]:
    """Return the definition of docs/explanation/relevance.md, document by document.

    Args:
        lexical: Ranks by the words of the query.
        vectors: The vectors of documents, of length 1; a document may lack one.
        query: The words.
        by_rank: Whether ranks are evidence, as of an engine that is not ours, or scores.
        sample: The vectors that similarities are compared with; all by default.
    """
    (hits,) = await lexical.search([Query(query, 1000)])
    present = {id_: vector for id_, vector in vectors.items() if vector.any()}
    query_vector = unit(word_vector(query, 8))
    by_vector = sorted(present, key=lambda id_: (-(present[id_] @ query_vector), id_))
    # Zeros change no direction.
    rows = {**dict.fromkeys(hits.ids, np.zeros(8)), **present}
    moved = moved_by_hand(query_vector, rows, [hits.ids, by_vector])
    similar = {id_: float(vector @ moved) for id_, vector in present.items()}
    usual = [vector @ moved for vector in sample or present.values()]
    mean = np.mean(usual)
    deviation = np.std(usual)
    if by_rank:
        fit = CALIBRATED.rank
        evidence = {id_: 61 / (61 + position) for position, id_ in enumerate(hits.ids)}
    else:
        fit = CALIBRATED.words
        highest = max(hits.scores)
        evidence = {id_: score / highest for id_, score in zip(hits.ids, hits.scores, strict=True)}
    estimates = {}
    for id_ in {*hits.ids, *vectors}:
        likeness = (similar.get(id_, mean) - mean) / deviation
        probability = fit.probability(np.array(evidence.get(id_, 0.0)), np.array(likeness))
        estimates[id_] = float(probability)
    return estimates


def stored_vector(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a vector as an index keeps it: of length 1, in half precision; zeros stay zeros."""
    return unit(unit(vector).astype(np.float16).astype(float))


class CountingEncoder:
    """Encodes by words, and remembers what it was asked to encode."""

    def __init__(self, name: str = "words", dimensions: int = 8, salt: str = "") -> None:
        self.name = name
        self.dimensions = dimensions
        self.salt = salt
        self.encoded: list[str] = []

    async def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float64]:
        self.encoded += texts
        return np.array([word_vector(text, self.dimensions, self.salt) for text in texts])

    async def encode_query(self, text: str) -> NDArray[np.float64]:
        return word_vector(text, self.dimensions, self.salt)

    def taken(self) -> list[str]:
        """Return the documents encoded since the last time, but for the probe of each opening."""
        texts = [text for text in self.encoded if not text.startswith("Who discovered this")]
        self.encoded.clear()
        return texts


class WordEmbeddings(Embeddings):
    """The same as LangChain knows it."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return word_vector(text, 8).tolist()
