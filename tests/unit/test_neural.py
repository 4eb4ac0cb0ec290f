"""Loading models of transformers."""

from __future__ import annotations

import gc
import shutil
import socket
from pathlib import Path

import pytest

from fairqr import neural
from fairqr.errors import ModelUnavailableError
from fairqr.neural import load_pretrained

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, made and saved here."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS]))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


async def test_a_model_is_loaded_once_and_let_go(encoder: Path) -> None:
    """Two who use it share its memory, and the next model gets it once both have gone."""
    first = await load_pretrained("AutoModel", str(encoder))
    assert await load_pretrained("AutoModel", str(encoder)) is first
    before = id(first.model)
    kept = first.model
    del first
    gc.collect()
    again = await load_pretrained("AutoModel", str(encoder))
    assert id(again.model) != before, "it was loaded anew"
    assert kept is not again.model


async def test_no_gradients_are_kept(encoder: Path) -> None:
    """What runs with the model does not learn."""
    loaded = await load_pretrained("AutoModel", str(encoder))

    def encode() -> bool:
        inputs = loaded.tokenizer(["a b"], return_tensors="pt")
        return bool(loaded.model(**inputs).last_hidden_state.requires_grad)

    assert not await loaded.run(encode)
    assert not loaded.model.training


async def test_a_model_of_another_kind_is_refused(encoder: Path) -> None:
    """An encoder has no head to classify with; random numbers would judge in its place."""
    with pytest.raises(ModelUnavailableError, match="has no weights 'classifier"):
        await load_pretrained("AutoModelForSequenceClassification", str(encoder))


async def test_a_classifier_without_its_pooler_is_refused(encoder: Path, tmp_path: Path) -> None:
    """BERT classifies by the pooler's output; random numbers there would judge."""
    import transformers

    config = transformers.BertConfig.from_pretrained(encoder)
    whole = transformers.BertForSequenceClassification(config)
    weights = whole.state_dict()
    for folder, left_out in ((tmp_path / "whole", "nothing"), (tmp_path / "part", "pooler")):
        shutil.copytree(encoder, folder)
        kept = {name: value for name, value in weights.items() if left_out not in name}
        whole.save_pretrained(folder, state_dict=kept)
    assert await load_pretrained("AutoModelForSequenceClassification", str(tmp_path / "whole"))
    with pytest.raises(ModelUnavailableError, match=r"has no weights 'bert\.pooler"):
        await load_pretrained("AutoModelForSequenceClassification", str(tmp_path / "part"))


async def test_an_encoder_needs_no_pooler(encoder: Path, tmp_path: Path) -> None:
    """Its hidden states are used alone, and many are saved without one."""
    import transformers

    folder = tmp_path / "bare"
    shutil.copytree(encoder, folder)
    config = transformers.BertConfig.from_pretrained(encoder)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    assert (await load_pretrained("AutoModel", str(folder))).name == str(folder)


async def test_a_silent_hub_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a moment to answer one request, and gets none where HF_HUB_OFFLINE is set."""
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
        with pytest.raises(ModelUnavailableError, match=f"{endpoint}: .*timed out"):
            await load_pretrained("AutoModel", "org/never-downloaded")
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


async def test_a_folder_without_a_model(tmp_path: Path) -> None:
    """One sentence says what could not be loaded."""
    with pytest.raises(ModelUnavailableError, match="cannot be loaded as AutoModel"):
        await load_pretrained("AutoModel", str(tmp_path))
