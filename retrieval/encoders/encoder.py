"""The interface of encoders, and the check of their vectors before use.

An encoder turns a text into a vector, so that texts of similar meaning point in similar directions.
The similarity of two texts is the cosine between their vectors. We check whatever an encoder
returns and scale it to length 1 here, so the cosine is a plain dot product everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairqr.base.errors import InputError, ModelError
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.sendable import sendable

Float32Array = NDArray[np.float32]

PROBE = "Who discovered this, and when was it made known?"
PROBE_VALUES = 6
PROBE_TOLERANCE = 2e-3
LONGEST_KEY = 40


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
        ...

    async def encode_documents(self, texts: Sequence[str]) -> ArrayLike:
        """Return the vectors of document texts, shape (len(texts), d)."""
        ...

    async def encode_query(self, text: str) -> ArrayLike:
        """Return the vector of a query, shape (d,)."""
        ...


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

    def check(self, dimensions: int, probe: Sequence[float], where: str, remedy: str) -> None:
        """Refuse stored vectors that another model made.

        Args:
            dimensions: The dimensions of the stored vectors.
            probe: The probe of the encoder that made them.
            where: The place of the vectors, for the message: ``in /data``.
            remedy: How to have them made again, for the message.

        Raises:
            InputError: Another model made them.
        """
        same = dimensions == self.dimensions and np.allclose(
            probe, self.probe, rtol=0, atol=PROBE_TOLERANCE
        )
        if not same:
            raise InputError(
                f"The vectors '{self.name}' {where} were made by another model of that name, with "
                f"{dimensions} dimensions; give your encoder another name, or {remedy}."
            )


def key_of(name: str) -> str:
    """Return an encoder's name as letters, digits and underscores; distinct names stay distinct."""
    readable = re.sub(r"[^a-z0-9]+", "_", name.lower())[:LONGEST_KEY].strip("_")
    return f"{readable}_{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def text_of(document: Document) -> str:
    """Return the text of a document to encode: title and text, each on its own lines."""
    return "\n".join(part for part in (document.title, document.text) if part.strip())


def unit_rows(rows: ArrayLike) -> Float32Array:
    """Scale vectors, shape (n, d), to length 1; zero vectors stay as they are."""
    values = np.asarray(rows, dtype=np.float64)
    # Scale by the largest value first, so that squares neither overflow nor vanish.
    largest = np.abs(values).max(axis=1, keepdims=True, initial=0)
    scaled = np.divide(values, largest, out=np.zeros_like(values), where=largest > 0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit = np.divide(scaled, lengths, out=np.zeros_like(scaled), where=lengths > 0)
    return np.asarray(unit, dtype=np.float32)


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
    spoken = [place for place, text in enumerate(texts) if text.strip()]
    if not spoken:
        return np.zeros((len(texts), dimensions or 0), dtype=np.float32)
    made = await encoder.encode_documents([texts[place] for place in spoken])
    vectors = _checked(encoder, made, len(spoken), dimensions)
    rows = np.zeros((len(texts), vectors.shape[1]), dtype=np.float32)
    rows[spoken] = vectors
    return rows


async def encode_query(encoder: Encoder, text: str, dimensions: int) -> Float32Array:
    """Return the vector of a query, shape (d,), of length 1 or 0; see :func:`encode_documents`."""
    # Most encoders do not accept a lone surrogate, which a query can contain.
    clean = sendable(text)
    if not clean.strip():
        return np.zeros(dimensions, dtype=np.float32)
    made: Any = [await encoder.encode_query(clean)]
    vector: Float32Array = _checked(encoder, made, 1, dimensions)[0]
    return vector


def _checked(encoder: Encoder, rows: ArrayLike, count: int, dimensions: int | None) -> Float32Array:
    try:
        values = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    rows_found, width = values.shape if values.ndim == 2 else (0, 0)
    if rows_found != count or width < 1 or (dimensions is not None and width != dimensions):
        wanted = "" if dimensions is None else f" of {dimensions} values each"
        raise ModelError(
            "parse_error",
            f"The encoder '{encoder.name}' did not return {count} vectors{wanted} for {count} "
            "texts; check the encoder, or choose another.",
        )
    if not np.isfinite(values).all():
        raise ModelError(
            "parse_error",
            f"The encoder '{encoder.name}' returned vectors with values that are not numbers; "
            "check the encoder, or choose another.",
        )
    return unit_rows(values)
