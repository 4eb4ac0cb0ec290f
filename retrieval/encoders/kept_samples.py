"""The vectors of samples of documents, kept for a day.

An engine on a server need not be asked again what a similarity of its usual documents is.
"""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256

import numpy as np

from fairqr.base.kept_file import KeptFile
from fairqr.base.settings import cache_dir
from fairqr.retrieval.encoders.encoder import EncoderMark, Float32Array

MAX_BYTES = 1 << 27
"""The largest size of all samples: about 400 of 200 documents and 384 dimensions."""

DAY = 86_400
"""Seconds until a sample is taken again, since the documents of an index change."""


class KeptSample:
    """The vectors of one sample, on disk.

    Args:
        documents: Changes when other documents would be sampled.
        mark: Identifies the encoder.
    """

    def __init__(self, documents: str, mark: EncoderMark) -> None:
        day = int(time.time() // DAY)
        self._key = sha256(f"{mark.text}{documents}\n{day}".encode()).hexdigest()
        self._dimensions = mark.dimensions
        self._file: KeptFile[bytes] = KeptFile(cache_dir() / "samples.sqlite", MAX_BYTES)

    async def read(self) -> Float32Array | None:
        """Return the vectors, shape (n, d), or None if they are not kept."""
        stored = await asyncio.to_thread(self._file.get_many, [self._key])
        content = stored.get(self._key)
        bytes_of_row = 4 * self._dimensions
        if not content or len(content) % bytes_of_row:
            return None
        return np.frombuffer(content, "<f4").reshape(-1, self._dimensions).astype(np.float32)

    async def write(self, vectors: Float32Array) -> None:
        """Keep the vectors, unless there are none yet: an index may be filled at this moment."""
        if len(vectors):
            stored = {self._key: vectors.astype("<f4").tobytes()}
            await asyncio.to_thread(self._file.put_many, stored)
