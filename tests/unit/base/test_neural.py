"""Loading models of transformers."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairqr.base import neural
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.neural import load_causal, load_pretrained, stated_limit, token_limit
from tests.unit.agents.ranking.tiny_models import save_bert, save_causal

pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return save_bert(tmp_path_factory.mktemp("models") / "encoder", "BertModel")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In half precision."""
    transformers: Any = pytest.importorskip("transformers")
    folder = save_causal(tmp_path_factory.mktemp("models") / "decoder")
    transformers.AutoModelForCausalLM.from_pretrained(folder).bfloat16().save_pretrained(folder)
    return folder


async def test_a_model_is_loaded_once_and_let_go(encoder: Path) -> None:
    """Two who use it share its memory, and the next model gets it once both have gone."""
    first = await load_pretrained("AutoModel", str(encoder))
    assert await load_pretrained("AutoModel", str(encoder)) is first
    model = first.model
    reference = weakref.ref(first)
    del first
    async with asyncio.timeout(10):  # the thread that loaded it may hold it for a moment
        while reference():
            gc.collect()
            await asyncio.sleep(0.01)
    assert (await load_pretrained("AutoModel", str(encoder))).model is not model, "loaded again"


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        ("BertForSequenceClassification", "bert.pooler"),
        ("LlamaForCausalLM", "lm_head"),
    ],
)
async def test_a_model_that_lacks_weights_is_refused(
    encoder: Path, decoder: Path, tmp_path: Path, kind: str, left_out: str
) -> None:
    """Random numbers would judge or answer in its place."""
    import transformers

    original = decoder if "Llama" in kind else encoder
    model = getattr(transformers, kind).from_pretrained(original)
    weights = model.state_dict()

    def save(folder: Path, weights: dict[str, Any]) -> None:
        shutil.copytree(original, folder)
        model.save_pretrained(folder, state_dict=weights)

    async def load(folder: Path) -> Any:
        if original is decoder:
            return await load_causal(str(folder))
        return await load_pretrained("AutoModelForSequenceClassification", str(folder))

    save(tmp_path / "whole", weights)
    save(tmp_path / "part", {name: weights[name] for name in weights if left_out not in name})

    assert await load(tmp_path / "whole")
    with pytest.raises(ModelUnavailableError, match=f"has no weights '{left_out}"):
        await load(tmp_path / "part")


async def test_a_model_without_its_tokenizer_is_refused(encoder: Path, tmp_path: Path) -> None:
    """Transformers would read every text as unknown words."""
    shutil.copytree(encoder, tmp_path / "half", ignore=shutil.ignore_patterns("tok*", "vocab*"))
    with pytest.raises(ModelUnavailableError, match="no words"):
        await load_pretrained("AutoModel", str(tmp_path / "half"))


async def test_a_silent_hub_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a moment to answer one request, and no request if HF_HUB_OFFLINE is set."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(neural, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with monkeypatch.context() as patch:
            patch.setattr(constants, "HF_HUB_OFFLINE", True)
            with pytest.raises(ModelUnavailableError, match="HF_HUB_OFFLINE"):
                await load_pretrained("AutoModel", "org/never-downloaded")
        with pytest.raises(BlockingIOError):
            silent.accept()
        with pytest.raises(ModelUnavailableError, match=r"timed out.*if it was never downloaded"):
            await load_pretrained("AutoModel", "org/never-downloaded")
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


async def test_a_causal_model_is_loaded_once_in_full_precision(decoder: Path) -> None:
    """Until its files change, which makes it another one under the same name."""
    import torch

    first = await load_causal(str(decoder))
    assert await load_causal(str(decoder)) is first
    if first.device == "cpu":
        assert {weight.dtype for weight in first.model.parameters()} == {torch.float32}
    assert not first.model.training
    (decoder / "note.txt").write_text("trained on")
    assert await load_causal(str(decoder)) is not first
    (decoder / "note.txt").unlink()


@pytest.mark.parametrize(
    ("kind", "options", "tokens", "limit"),
    [
        pytest.param("BertConfig", {"max_position_embeddings": 20}, 10, 10, id="tokenizer"),
        pytest.param("RobertaConfig", {"max_position_embeddings": 20}, 10**30, 18, id="model"),
        pytest.param("T5Config", {}, 9, 9, id="a model without a limit"),
    ],
)
def test_the_model_and_its_tokenizer_limit_the_tokens(
    kind: str, options: dict[str, int], tokens: int, limit: int
) -> None:
    """The smaller limit counts; RoBERTa and its relatives cannot use two of their positions."""
    transformers: Any = pytest.importorskip("transformers")
    config = getattr(transformers, kind)(**options)
    tokenizer = SimpleNamespace(model_max_length=tokens)

    assert token_limit(config, tokenizer) == limit
    assert stated_limit(config, tokenizer) == limit
