"""MiniLM-L6, a small sentence encoder, in process: 384 dimensions, no server and no network.

The model is all-MiniLM-L6-v2 (Wang et al. 2020; Reimers & Gurevych 2019; Apache-2.0). The package
ships its computation graph without weights, made by ``tools/minilm``; ``fairqr models pull minilm``
downloads the weights. We encode each text alone, using all cores, so its vector has the same bits
whatever else is encoded.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.loops import usable_cores
from fairqr.base.weights import is_pulled, weights_path
from fairqr.retrieval.encoders.encoder import Float32Array

GRAPH = Path(__file__).with_name("minilm.onnx")
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
REMEDY = (
    "run pip install 'fairqr[dense]' and 'fairqr models pull minilm', or choose another retriever."
)
TOKENS = 256
"""Longer texts are cut at this length, which the model was trained on."""

_loading = threading.Lock()


class MiniLmEncoder:
    """Makes vectors of 384 dimensions, of documents and queries alike.

    The model is loaded once in a process, on first use, in about a third of a second. The methods
    raise :class:`fairqr.base.errors.ModelUnavailableError` if a package or the weights are missing.
    """

    name: ClassVar[str] = "minilm"

    async def encode_documents(self, texts: Sequence[str]) -> Float32Array:
        """Return the vectors of texts, shape (len(texts), d)."""
        return await self._encoded(texts)

    async def encode_query(self, text: str) -> Float32Array:
        """Return the vector of a query, shape (d,)."""
        vector: Float32Array = (await self._encoded([text]))[0]
        return vector

    async def _encoded(self, texts: Sequence[str]) -> Float32Array:
        """Encode in a thread, which stops after the texts under way if nobody waits any more."""
        given_up = threading.Event()
        try:
            return await asyncio.to_thread(self._encode, texts, given_up)
        finally:
            given_up.set()

    def _encode(self, texts: Sequence[str], given_up: threading.Event) -> Float32Array:
        with _loading:
            tokenizer, session = _load(weights_path(self.name).parent)

        def encode(text: str) -> Float32Array:
            if given_up.is_set():
                raise asyncio.CancelledError
            ids = np.array([tokenizer.encode(text).ids], dtype=np.int32)
            (vectors,) = session.run(None, {"ids": ids, "segments": np.zeros_like(ids)})
            vector: Float32Array = vectors[0]
            return vector

        if len(texts) == 1:
            return encode(texts[0])[None]
        with ThreadPoolExecutor(usable_cores()) as pool:
            return np.stack(list(pool.map(encode, texts)))


@functools.cache
def _load(folder: Path) -> tuple[Any, Any]:
    """Return the tokenizer, and a session of the graph with its weights."""
    if not is_pulled(MiniLmEncoder.name):
        raise ModelUnavailableError(f"The encoder 'minilm' is not installed; {REMEDY}")
    try:
        return _load_tokenizer(folder / TOKENIZER), _load_session(folder / WEIGHTS)
    except Exception as error:  # tokenizers and onnxruntime raise no narrower class
        raise ModelUnavailableError(
            f"The encoder 'minilm' cannot be loaded ({one_line(error, 120)}); {REMEDY}"
        ) from None


def _load_tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    # The file asks us to cut at 128 tokens, and to pad, which would make a vector depend on the
    # other texts.
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    return tokenizer


def _load_session(weights: Path) -> Any:
    import onnxruntime
    from safetensors.numpy import load_file

    names = []
    values = []
    for name, tensor in load_file(weights).items():
        # Only the floats are weights; the file also holds the positions.
        is_weight = tensor.dtype == np.float32
        if is_weight and name.startswith(("embeddings.", "encoder.")):
            names.append(name)
            values.append(onnxruntime.OrtValue.ortvalue_from_numpy(tensor))

    options = onnxruntime.SessionOptions()
    # We encode several texts at a time, each on one core.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_external_initializers(names, values)
    return onnxruntime.InferenceSession(
        GRAPH.read_bytes(), options, providers=["CPUExecutionProvider"]
    )
