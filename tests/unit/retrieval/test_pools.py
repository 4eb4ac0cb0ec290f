"""Retrievers over a pool: BM25 against an index, neural ones against the same token by token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.retrieval.pools import retrievers as module
from fairqr.retrieval.pools.retrievers import (
    Bm25PoolRetriever,
    MemoryIndex,
    open_pool_retriever,
)
from fairqr.retrieval.sources.documents import Document
from tests.unit.agents.ranking.tiny_models import LIMIT, loaded, save_bert
from tests.unit.engines import ranked
from tests.unit.retrieval.embedded import built

WORDS = ["fair", "ranking", "rankings", "exposure", "of", "the", "groups", "1984", "naïve"]


@pytest.mark.parametrize(
    "query", ["rankings of groups", "the", "naïve person7 person7 fair", "absent"]
)
async def test_bm25_scores_as_an_index_of_the_pool_does(tmp_path: Path, query: str) -> None:
    """The embedded index of the same texts gives the same scores to the last bit."""
    pool = [f"{' '.join(WORDS[i % 9 :])} person{i} " + "ranking " * (i % 4) for i in range(40)]
    documents = [Document(f"d{number}", "", text) for number, text in enumerate(pool)]
    engine = built(tmp_path / "v1", documents)
    scores = await Bm25PoolRetriever().scores(query, pool)

    hits = await ranked(engine, query, len(pool))
    expected = np.zeros(len(pool))
    expected[[int(id_[1:]) for id_ in hits.ids]] = hits.scores
    assert (scores == expected).all()


@pytest.mark.parametrize("name", ["bm25", "dense:minilm", "splade", "contriever"])
async def test_blank_texts_score_least(name: str, minilm_cache: Path, tiny_bert: Path) -> None:
    retriever = open_pool_retriever(name if name not in module.NEURAL else f"{name}:{tiny_bert}")
    await retriever.start()
    scores = await retriever.scores("fair ranking", ["ranking", "", "  ", "bread\ud800"])

    assert np.isfinite(scores).all()
    assert scores[1] == scores[2] == min(0.0, scores[0], scores[3])
    assert not (await retriever.scores(" ", ["ranking"])).any()
    assert not (await retriever.scores("fair", ["", " "])).any()
    assert (
        (await retriever.scores("fair", [])).shape == MemoryIndex([]).scores("fair").shape == (0,)
    )


@pytest.mark.parametrize(
    ("name", "full_name"),
    [
        (" bm25 ", "bm25"),
        ("splade", "splade:naver/splade_v2_max"),
        ("contriever:org/own", "contriever:org/own"),
        ("dense", "dense:minilm"),
    ],
)
def test_retrievers_are_opened_by_name(name: str, full_name: str) -> None:
    assert open_pool_retriever(name).name == full_name


@pytest.mark.parametrize("name", ["", "bm26", "bm25:x", "splade:"])
def test_an_unknown_retriever_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="choose bm25, bm25okapi, splade"):
        open_pool_retriever(name)


def test_an_unknown_encoder_is_refused() -> None:
    with pytest.raises(ModelUnavailableError, match="There is no encoder 'none'"):
        open_pool_retriever("dense:none")


# --- SPLADE and Contriever --------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of two layers, as encoder and as language model."""
    pytest.importorskip("torch")
    return save_bert(tmp_path_factory.mktemp("bert") / "tiny", kind="BertForMaskedLM")


QUERY = "fair ranking paper"
TEXTS = [
    "the fair ranking",
    "a paper",
    "z",
    "the paper on ranking papers " * 20,  # far more than the model takes
    "rank rank rank",
    "unknown ≠ sign",
]


def _outputs(folder: Path, kind: str, text: str) -> list[list[float]]:
    """Return the first output for each token of one text, without padding."""
    import torch

    tokenizer, model = loaded(folder, kind)
    ids = tokenizer(text)["input_ids"]
    cut = ids if len(ids) <= LIMIT else [*ids[: LIMIT - 1], ids[-1]]
    with torch.inference_mode():
        rows: list[list[float]] = model(input_ids=torch.tensor([cut]))[0][0].tolist()
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
async def test_scores_are_those_of_the_formula(
    tiny_bert: Path, kind: str, naive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, company and batches, and for a text that is cut at the model's limit."""
    query = np.array(naive(tiny_bert, QUERY))
    expected = [float(query @ naive(tiny_bert, text)) for text in TEXTS]
    retriever = open_pool_retriever(f"{kind}:{tiny_bert}")

    assert retriever.name == f"{kind}:{tiny_bert}"

    await retriever.start()
    scores = await retriever.scores(QUERY, TEXTS)
    assert scores == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert len(set(np.round(scores, 4))) == len(TEXTS)

    backwards = await retriever.scores(QUERY, TEXTS[::-1])
    assert backwards[::-1] == pytest.approx(scores, rel=1e-4, abs=1e-5)

    monkeypatch.setitem(module.NEURAL, kind, module.NEURAL[kind]._replace(texts_at_once=2))
    retriever = open_pool_retriever(f"{kind}:{tiny_bert}")
    assert await retriever.scores(QUERY, TEXTS) == pytest.approx(scores, rel=1e-4, abs=1e-5)
