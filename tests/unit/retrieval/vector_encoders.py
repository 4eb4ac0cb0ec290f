"""Small real encoders for the tests: the meaning of a text is which words it has."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray


def word_vector(text: str, dimensions: int, salt: str = "") -> NDArray[np.float64]:
    """Return the sum of a random vector for each word; zeros for a text of full stops alone."""
    total = np.zeros(dimensions)
    for word in text.lower().replace(".", " ").split():
        seed = int.from_bytes(blake2b(f"{salt}{word}".encode(), digest_size=8).digest(), "big")
        total += np.random.default_rng(seed).standard_normal(dimensions)
    return total


def stored_vector(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a vector as an index keeps it: of length 1, in half precision; zeros stay zeros."""
    if not vector.any():
        return vector
    rounded = (vector / np.linalg.norm(vector)).astype(np.float16).astype(float)
    unit: NDArray[np.float64] = rounded / np.linalg.norm(rounded)
    return unit


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

    def __init__(self, dimensions: int = 8) -> None:
        self.dimensions = dimensions
        self.batches: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(texts)
        return [word_vector(text, self.dimensions).tolist() for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return word_vector(text, self.dimensions).tolist()
