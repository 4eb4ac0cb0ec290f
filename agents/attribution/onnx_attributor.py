"""Attribution by an exported model, run by ONNX Runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fairqr.agents.attribution.naming import AttributorName
from fairqr.agents.attribution.nli import (
    FloatArray,
    IntArray,
    NliAttributor,
    NliModel,
    fingerprint_of,
)
from fairqr.base.errors import InputError, ModelUnavailableError, one_line
from fairqr.base.neural import token_limit

__all__ = ["MODEL_FILE", "OnnxAttributor"]

MODEL_FILE = "model.onnx"

T = TypeVar("T")


class OnnxAttributor(NliAttributor):
    """Judges with a sequence classifier in the ONNX format.

    Args:
        name: Its ``model`` is a folder with ``model.onnx``, ``config.json`` (for the labels), and
            the files of the tokenizer. The graph takes the tokenizer's outputs, for any number of
            rows and tokens. The logits are its output ``logits``, or else the first.

    Raises:
        InputError: No folder is named.
    """

    def __init__(self, name: AttributorName) -> None:
        if not name.model:
            raise InputError(
                "The attributor 'onnx' needs a folder with a model: write onnx:path/to/folder."
            )
        super().__init__(name)

    async def load(self, model: str) -> NliModel:
        """Open the session and the tokenizer."""
        return await asyncio.to_thread(_load, Path(model))


class _OneThread:
    """Runs work on a thread of its own, so that waiting work does not occupy other threads."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "fairqr-onnx")

    async def __call__(self, work: Callable[[], T], /) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _load(folder: Path) -> NliModel:
    try:
        import onnxruntime
        import transformers
    except ImportError:
        raise ModelUnavailableError(
            f"The model {folder} needs onnxruntime and transformers: "
            "run `pip install 'fairqr[neural]'`."
        ) from None
    if not (folder / MODEL_FILE).is_file():
        raise ModelUnavailableError(
            f"There is no {folder / MODEL_FILE}; name the folder that contains it, config.json and "
            "the tokenizer's files."
        )
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        session = onnxruntime.InferenceSession(
            str(folder / MODEL_FILE), options, providers=["CPUExecutionProvider"]
        )
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ModelUnavailableError(
            f"The model in {folder} cannot be loaded ({one_line(error, 200)}); it needs "
            f"{MODEL_FILE}, config.json and the tokenizer's files, all of one model."
        ) from None
    wanted = [value.name for value in session.get_inputs()]
    given = [value.name for value in session.get_outputs()]
    output = "logits" if "logits" in given else given[0]
    return NliModel(
        tokenizer=tokenizer,
        labels=config.id2label,
        longest=token_limit(config, tokenizer),
        logits=lambda inputs: _logits(session, wanted, output, inputs),
        run=_OneThread(),
        fingerprint=fingerprint_of(folder),
    )


def _logits(
    session: Any, wanted: list[str], output: str, inputs: Mapping[str, IntArray]
) -> FloatArray:
    # A graph may need token types that are all 0; some tokenizers leave them out.
    feed = {name: inputs.get(name, np.zeros_like(inputs["input_ids"])) for name in wanted}
    return np.asarray(session.run([output], feed)[0], dtype=np.float64)
