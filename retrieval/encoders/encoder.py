"""The interface of encoders, the check of their vectors, and the store that keeps them.

An encoder turns a text into a vector, so that texts of similar meaning point in similar directions.
The similarity of two texts is the cosine between their vectors. We check whatever an encoder
returns and scale it to length 1 here, so the cosine is a plain dot product everywhere else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import ModelError
from fairqr.base.kept_file import KeptFile
from fairqr.base.loops import run_together
from fairqr.base.settings import cache_dir
from fairqr.retrieval.sources.documents import Document, ProgressFunction, chunks
from fairqr.retrieval.texts.words import sendable

Float32Array = NDArray[np.float32]

PROBE = "Who discovered this, and when was it made known?"
"""The text by whose vector we recognise an encoder."""
PROBE_VALUES = 6
LONGEST_KEY = 40
"""How many characters of its name are in an encoder's key."""

MAX_BYTES = 1 << 30
"""The largest size of the kept vectors: about 600,000 of 384 dimensions."""

AT_ONCE = 64
"""How many texts we encode before keeping their vectors: half a second of MiniLM's work, which is
lost if nobody waits for it any more."""


class Encoder(Protocol):
    """Turns texts into vectors, of any length.

    Documents and queries have separate methods, since many models encode them differently. Blank
    texts are never sent. A text without any known words may get a vector of zeros, which is similar
    to nothing. We learn the number of dimensions from the vectors, since a hosted model does not
    state it in advance.
    """

    @property
    def name(self) -> str:
        """The name in results and of stored vectors; it must be unique to the model."""

    async def encode_documents(self, texts: Sequence[str]) -> ArrayLike:
        """Return the vectors of document texts, shape (len(texts), d)."""

    async def encode_query(self, text: str) -> ArrayLike:
        """Return the vector of a query, shape (d,)."""


@dataclass(frozen=True, slots=True)
class EncoderMark:
    """Identifies the encoder that made a set of vectors.

    Attributes:
        name: The encoder's name.
        dimensions: The dimensions of its vectors.
        probe: The first values of its vector for a fixed text. They differ between two models of
            the same name, whose vectors must not be compared.
    """

    name: str
    dimensions: int
    probe: tuple[float, ...]

    @classmethod
    async def of(cls, encoder: Encoder) -> EncoderMark:
        """Return the mark of an encoder, by encoding one short text.

        Raises:
            ModelError: The encoder failed, or returned something other than a vector.
        """
        (vector,) = await encode_documents(encoder, [PROBE])
        return cls(encoder.name, len(vector), tuple(vector[:PROBE_VALUES].tolist()))

    @property
    def text(self) -> str:
        """The mark as text, for the keys of what is kept; another model may have the same name."""
        probe = " ".join(f"{value:.2f}" for value in self.probe)
        return f"{self.name}\n{self.dimensions}\n{probe}\n"


class KeptVectors:
    """Encodes texts, each only once for all processes of a user.

    Indexes, audits and searches of other engines encode through it. The vectors are in the user's
    cache; the oldest ones are dropped if there are too many.

    Args:
        encoder: The encoder.
        mark: Identifies the encoder.
    """

    def __init__(self, encoder: Encoder, mark: EncoderMark) -> None:
        self.encoder = encoder
        self.mark = mark
        self.dimensions = mark.dimensions
        self._prefix = mark.text
        self._file: KeptFile[bytes] = KeptFile(cache_dir() / "vectors.sqlite", MAX_BYTES)

    @classmethod
    async def of(cls, encoder: Encoder) -> Self:
        """Return the kept vectors of an encoder; see :meth:`EncoderMark.of`."""
        return cls(encoder, await EncoderMark.of(encoder))

    async def encode_query(self, text: str) -> Float32Array:
        """Return the vector of a query, which is not kept; see :func:`encode_query`."""
        return await encode_query(self.encoder, text, self.dimensions)

    async def encode_queries(self, texts: Sequence[str]) -> Float32Array:
        """Return the vectors of queries of our own, which are kept, shape (len(texts), d).

        Raises:
            ModelError: The encoder failed.
        """
        # An encoder may encode a document of these words in another way.
        keys, vectors = await self._look_up([f"query\n{text}" for text in texts])
        text_by_key = dict(zip(keys, texts, strict=True))
        missing = [key for key in text_by_key if key not in vectors]
        if missing:
            rows = await run_together([self.encode_query(text_by_key[key]) for key in missing])
            vectors |= await self._keep(missing, rows)
        return self._stacked(keys, vectors)

    async def encode(
        self, texts: Sequence[str], progress: ProgressFunction | None = None
    ) -> Float32Array:
        """Return the vectors of texts, shape (len(texts), d); see :func:`encode_documents`.

        Args:
            texts: Texts of documents.
            progress: Called with the number of encoded texts, if any are new.

        Raises:
            ModelError: The encoder failed.
        """
        keys, vectors = await self._look_up(texts)
        text_by_key = dict(zip(keys, texts, strict=True))
        missing = [key for key in text_by_key if key not in vectors]
        done = 0
        for batch in chunks(missing, AT_ONCE):
            batch_texts = [text_by_key[key] for key in batch]
            rows = await encode_documents(self.encoder, batch_texts, self.dimensions)
            vectors |= await self._keep(batch, rows)
            done += len(batch)
            if progress is not None:
                progress(done, len(missing))
        return self._stacked(keys, vectors)

    async def kept(self, texts: Sequence[str]) -> list[Float32Array | None]:
        """Return the vector of each text, or None if it has not been encoded yet."""
        keys, vectors = await self._look_up(texts)
        return [vectors.get(key) for key in keys]

    async def _look_up(self, texts: Sequence[str]) -> tuple[list[str], dict[str, Float32Array]]:
        """Return the key of each text, and the vectors that are kept, by key."""
        keys = []
        for text in texts:
            content = (self._prefix + text).encode("utf-8", "surrogatepass")
            keys.append(sha256(content).hexdigest())
        stored = await asyncio.to_thread(self._file.get_many, [*dict.fromkeys(keys)])

        size = 4 * self.dimensions
        vectors = {}
        for key, content in stored.items():
            if len(content) == size:
                vectors[key] = np.frombuffer(content, "<f4")
        return keys, vectors

    async def _keep(
        self, keys: Sequence[str], rows: Iterable[Float32Array]
    ) -> dict[str, Float32Array]:
        """Keep new vectors, and return them by key."""
        vectors = {key: row.astype("<f4") for key, row in zip(keys, rows, strict=True)}
        stored = {key: vector.tobytes() for key, vector in vectors.items()}
        await asyncio.to_thread(self._file.put_many, stored)
        return vectors

    def _stacked(self, keys: Sequence[str], vectors: Mapping[str, Float32Array]) -> Float32Array:
        """Return the vectors of texts by their keys, shape (len(keys), d)."""
        rows = [vectors[key] for key in keys]
        return np.array(rows, dtype=np.float32).reshape(len(keys), self.dimensions)


def key_of(name: str) -> str:
    """Return an encoder's name as letters, digits and underscores; distinct names stay distinct."""
    readable = re.sub(r"[^a-z0-9]+", "_", name.lower())[:LONGEST_KEY].strip("_")
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{readable}_{digest[:8]}"


def text_of(document: Document) -> str:
    """Return the text of a document to encode: title and text, each on its own lines."""
    return "\n".join(part for part in (document.title, document.text) if part.strip())


def unit_rows(rows: ArrayLike) -> Float32Array:
    """Scale vectors, shape (n, d), to length 1; zero vectors stay as they are."""
    values = np.asarray(rows, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.where(lengths > 0, lengths, 1), dtype=np.float32)


async def encode_documents(
    encoder: Encoder, texts: Sequence[str], dimensions: int | None = None
) -> Float32Array:
    """Return the vectors of document texts, shape (len(texts), d), each of length 1 or 0.

    Blank texts, which many providers refuse, are not sent; their vectors are zeros.

    Args:
        encoder: The encoder.
        texts: The texts of documents; see :func:`text_of`.
        dimensions: The required d; by default whatever the encoder returns. Needed if all texts may
            be blank.

    Raises:
        ModelError: The encoder failed, or returned something other than these vectors.
    """
    positions = [position for position, text in enumerate(texts) if text.strip()]
    if not positions:
        return np.zeros((len(texts), dimensions or 0), dtype=np.float32)
    output = await encoder.encode_documents([texts[position] for position in positions])
    vectors = _checked(encoder, output, len(positions), dimensions)
    rows = np.zeros((len(texts), vectors.shape[1]), dtype=np.float32)
    rows[positions] = vectors
    return rows


async def encode_query(encoder: Encoder, text: str, dimensions: int) -> Float32Array:
    """Return the vector of a query, shape (d,), of length 1 or 0; see :func:`encode_documents`."""
    # Most encoders do not accept a lone surrogate, which a query can contain.
    clean = sendable(text)
    if not clean.strip():
        return np.zeros(dimensions, dtype=np.float32)
    output = await encoder.encode_query(clean)
    vector: Float32Array = _checked(encoder, [output], 1, dimensions)[0]
    return vector


def _checked(encoder: Encoder, output: Any, count: int, dimensions: int | None) -> Float32Array:
    """Return an encoder's output as vectors of length 1 or 0, shape (count, d).

    Raises:
        ModelError: The output is something else.
    """
    try:
        values = np.asarray(output, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    width = dimensions or values.shape[-1]
    has_shape = bool(width) and values.shape == (count, width)
    if not has_shape or not np.isfinite(values).all():
        raise ModelError(
            "parse_error",
            f"The encoder '{encoder.name}' did not return {count} vectors of "
            f"{dimensions or 'as many'} numbers each for {count} texts; check the encoder, or "
            "choose another.",
        )
    return unit_rows(values)
