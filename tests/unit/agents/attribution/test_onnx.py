"""Attribution by an exported model: the same verdicts as the model it was exported from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fairqr.agents.attribution.naming import AttributorName
from fairqr.agents.attribution.onnx_attributor import OnnxAttributor
from fairqr.agents.attribution.transformers_attributor import TransformersAttributor
from fairqr.agents.attribution.verdicts import Pair
from fairqr.base.errors import InputError, ModelUnavailableError
from tests.unit.agents.attribution.tiny_nli import WORDS, tiny_nli, tiny_onnx

__all__ = ["tiny_nli", "tiny_onnx"]

pytest.importorskip("onnxruntime", reason="needs the extra neural")
pytest.importorskip("onnxscript", reason="exports the model")


def attributor(folder: Path, **options: float) -> OnnxAttributor:
    return OnnxAttributor(AttributorName("onnx", str(folder), **options))


async def test_the_verdicts_are_those_of_the_original(tiny_nli: Path, tiny_onnx: Path) -> None:
    """Short and long documents, empty ones, and answers that are too long."""
    stream = np.random.default_rng(1)
    pairs = [
        Pair(
            " ".join(stream.choice(WORDS.split(), stream.integers(0, 150))),
            " ".join(stream.choice(WORDS.split(), stream.integers(0, 70))),
        )
        for _ in range(60)
    ]
    original = TransformersAttributor(AttributorName("transformers", str(tiny_nli)))
    one, two = await original.judge(pairs), await attributor(tiny_onnx).judge(pairs)
    assert [(v.status, v.attributed) for v in one] == [(v.status, v.attributed) for v in two]
    scored = [(a.score, b.score) for a, b in zip(one, two, strict=True) if a.score is not None]
    assert [a for a, _ in scored] == pytest.approx([b for _, b in scored], abs=1e-4)
    assert {verdict.attributed for verdict in two} == {True, False, None}


async def test_a_threshold_and_the_name(tiny_onnx: Path) -> None:
    """They are read as for transformers."""
    judge = attributor(tiny_onnx, threshold=1.0)
    (verdict,) = await judge.judge([Pair("the gold river", "a tree")])
    assert verdict.attributed is False
    assert judge.name == f"onnx:{tiny_onnx}?threshold=1"


async def test_a_folder_must_be_named_and_hold_the_model(tmp_path: Path) -> None:
    """Each in one sentence."""
    with pytest.raises(InputError, match="write onnx:path/to/folder"):
        OnnxAttributor(AttributorName("onnx"))
    with pytest.raises(ModelUnavailableError, match=r"There is no .*model\.onnx; name the folder"):
        await attributor(tmp_path).start()


@pytest.mark.parametrize("file", ["model.onnx", "config.json", "tokenizer.json"])
async def test_a_damaged_folder_is_refused(tiny_onnx: Path, tmp_path: Path, file: str) -> None:
    """Whatever of it is damaged."""
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_onnx, folder)
    (folder / file).write_bytes(b"{ no such thing")
    with pytest.raises(ModelUnavailableError, match="cannot be loaded") as refused:
        await attributor(folder).start()
    assert "\n" not in str(refused.value)


async def test_labels_that_do_not_fit_are_a_status(tiny_onnx: Path, tmp_path: Path) -> None:
    """The configuration of another model is no reason to judge wrongly."""
    folder = tmp_path / "other"
    shutil.copytree(tiny_onnx, folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "entailment", "1": "not_entailment"}
    config["label2id"] = {"entailment": 0, "not_entailment": 1}
    (folder / "config.json").write_text(json.dumps(config))
    (verdict,) = await attributor(folder).judge([Pair("the gold river", "a tree")])
    assert verdict.status == "parse_error"
    assert "outputs" in verdict.message
