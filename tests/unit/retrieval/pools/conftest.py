"""Tiny BERT models with random weights, made and saved here, loaded by the real code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fair", "rank", "##ing", "paper"]
LIMIT = 24


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of two layers that takes 24 tokens, as encoder and as language model."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = [*WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer = transformers.BertTokenizerFast(
        str(folder / "vocab.txt"), do_lower_case=True, model_max_length=LIMIT
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LIMIT,
        initializer_range=0.8,
    )
    transformers.BertForMaskedLM(config).eval().save_pretrained(folder)
    return folder
