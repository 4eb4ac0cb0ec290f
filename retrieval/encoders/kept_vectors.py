"""Keeps vectors of texts in the user's cache, so that no text is encoded twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from fairqr.base.kept_file import KeptFile
from fairqr.base.settings import cache_dir
from fairqr.retrieval.encoders.encoder import (
    Encoder,
    EncoderMark,
    Float32Array,
    encode_documents,
)
from fairqr.retrieval.sources.documents import Progress

MAX_BYTES = 512 * 1024 * 1024
"""The largest size of the file: about 300,000 vectors of 384 dimensions."""

AT_ONCE = 64
"""How many texts we encode before saving their vectors."""


class KeptVectors:
    """Encodes texts, each only once for all processes of a user.

    Args:
        encoder: The encoder.
        mark: Identifies the encoder.
        path: The file; ``vectors.sqlite`` in the cache folder by default.
    """

    def __init__(self, encoder: Encoder, mark: EncoderMark, path: Path | None = None) -> None:
        self._encoder, self._mark = encoder, mark
        # Another model may have the same name.
        probe = " ".join(f"{value:.2f}" for value in mark.probe)
        self._key_of_encoder = f"{mark.name}\n{mark.dimensions}\n{probe}\n"
        self._file: KeptFile[bytes] = KeptFile(path or cache_dir() / "vectors.sqlite", MAX_BYTES)

    async def encode(self, texts: Sequence[str], progress: Progress | None = None) -> Float32Array:
        """Return the vectors of texts, shape (len(texts), d); see :func:`encode_documents`.

        Args:
            texts: Texts of documents.
            progress: Called with the number of encoded texts, if any are new.

        Raises:
            ModelError: The encoder failed.
        """
        keys = [self._key(text) for text in texts]
        kept = await asyncio.to_thread(self._file.get_many, list(dict.fromkeys(keys)))
        vectors = {
            key: np.frombuffer(value, dtype="<f4")
            for key, value in kept.items()
            if len(value) == 4 * self._mark.dimensions
        }
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
        waiting = list(missing)
        for start in range(0, len(waiting), AT_ONCE):
            some = waiting[start : start + AT_ONCE]
            made = await encode_documents(
                self._encoder, [missing[key] for key in some], self._mark.dimensions
            )
            new = dict(zip(some, made.astype("<f4"), strict=True))
            vectors |= new
            await asyncio.to_thread(
                self._file.put_many, {key: row.tobytes() for key, row in new.items()}
            )
            if progress is not None:
                progress(start + len(some), len(waiting))
        rows = [vectors[key] for key in keys]
        return np.stack(rows) if rows else np.zeros((0, self._mark.dimensions), dtype=np.float32)

    def _key(self, text: str) -> str:
        """Return the key of a text and the encoder."""
        whole = self._key_of_encoder + text
        return sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
