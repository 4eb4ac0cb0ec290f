"""SPLADE and Contriever against the same computed token by token, one text at a time."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import ModelUnavailableError
from fairqr.retrieval.pools import encoding
from fairqr.retrieval.pools.open import open_pool_retriever
from tests.unit.retrieval.pools.conftest import LIMIT

QUERY = "fair ranking paper"
TEXTS = [
    "the fair ranking",
    "a paper",
    "z",
    "the paper on ranking papers " * 20,  # far more than the model takes
    "rank rank rank",
    "unknown ≠ sign",
]


@functools.cache
def _loaded(folder: Path, kind: str) -> tuple[Any, Any]:
    import transformers

    model: Any = getattr(transformers, kind).from_pretrained(folder).eval()
    return transformers.AutoTokenizer.from_pretrained(folder), model


def _outputs(folder: Path, kind: str, text: str) -> list[list[float]]:
    """Return logits or hidden states of each token of one text, without padding."""
    import torch

    tokenizer, model = _loaded(folder, kind)
    ids = tokenizer(text)["input_ids"]
    cut = ids if len(ids) <= LIMIT else [*ids[: LIMIT - 1], ids[-1]]
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([cut]))
    rows: list[list[float]] = (
        output.logits if kind == "AutoModelForMaskedLM" else output.last_hidden_state
    )[0].tolist()
    return rows


def _splade(folder: Path, text: str) -> list[float]:
    tokens = _outputs(folder, "AutoModelForMaskedLM", text)
    return [
        max(math.log(1 + max(0.0, value)) for value in term) for term in zip(*tokens, strict=True)
    ]


def _contriever(folder: Path, text: str) -> list[float]:
    tokens = _outputs(folder, "AutoModel", text)
    return [sum(values) / len(tokens) for values in zip(*tokens, strict=True)]


@pytest.mark.parametrize(("kind", "naive"), [("splade", _splade), ("contriever", _contriever)])
async def test_scores_are_those_of_the_formula(tiny_bert: Path, kind: str, naive: Any) -> None:
    """In any order and company, and for a text that is cut at the model's limit."""
    query = naive(tiny_bert, QUERY)
    expected = [
        sum(one * other for one, other in zip(query, naive(tiny_bert, text), strict=True))
        for text in TEXTS
    ]
    retriever = open_pool_retriever(f"{kind}:{tiny_bert}")
    assert retriever.name == f"{kind}:{tiny_bert}"
    await retriever.start()
    scores = await retriever.scores(QUERY, TEXTS)
    assert scores == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert len(set(np.round(scores, 4))) == len(TEXTS)
    backwards = await retriever.scores(QUERY, TEXTS[::-1])
    assert backwards[::-1] == pytest.approx(scores, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["splade", "contriever"])
async def test_small_batches_change_nothing(
    tiny_bert: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = open_pool_retriever(f"{kind}:{tiny_bert}")
    whole = await retriever.scores(QUERY, TEXTS)
    monkeypatch.setattr(encoding, "TEXTS_AT_ONCE", 2)
    assert await retriever.scores(QUERY, TEXTS) == pytest.approx(whole, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["splade", "contriever"])
async def test_texts_that_say_nothing_score_least(tiny_bert: Path, kind: str) -> None:
    retriever = open_pool_retriever(f"{kind}:{tiny_bert}")
    scores = await retriever.scores(QUERY, ["a paper", "", " \n", "fair\ud800"])
    assert scores[1] == scores[2] == min(0.0, scores[0], scores[3])
    assert not (await retriever.scores(" ", TEXTS)).any()
    assert not (await retriever.scores(QUERY, ["", " "])).any()
    assert (await retriever.scores(QUERY, [])).shape == (0,)


async def test_a_roberta_cuts_texts_at_its_last_position(tiny_bert: Path, tmp_path: Path) -> None:
    """It states more positions than tokens can have, and its tokenizer may state no limit."""
    import torch
    import transformers

    tokenizer = transformers.BertTokenizerFast(str(tiny_bert / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(7)
    config = transformers.RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LIMIT + 2,
        pad_token_id=1,
    )
    transformers.RobertaModel(config).eval().save_pretrained(tmp_path)
    retriever = open_pool_retriever(f"contriever:{tmp_path}")
    long = "paper " * 10 * LIMIT
    scores = await retriever.scores(QUERY, [long, long + "fair"])
    assert np.isfinite(scores).all()
    assert scores[0] == pytest.approx(scores[1]), "what is beyond the limit is not read"


def test_batches_hold_every_place_once_and_no_more_than_is_allowed() -> None:
    lengths = [3, 50, 1, 7, 7, 2, 9]
    batches = list(encoding._batches(lengths, 20))
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= 20


async def test_a_model_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match="cannot be loaded as AutoModelForMaskedLM"):
        await open_pool_retriever(f"splade:{tmp_path / 'none'}").start()


async def test_a_model_of_another_kind_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    """An encoder has no head that gives weights to terms; random ones would rank by chance."""
    import transformers

    transformers.AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    transformers.BertModel.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    with pytest.raises(ModelUnavailableError, match="which AutoModelForMaskedLM needs"):
        await open_pool_retriever(f"splade:{tmp_path}").scores("fair", ["paper"])
    scores = await open_pool_retriever(f"contriever:{tmp_path}").scores("fair", ["paper", "z"])
    assert np.isfinite(scores).all()
