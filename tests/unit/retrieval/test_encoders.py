"""Encoders: what is asked of their vectors, which are kept, and those of LangChain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from fairqr.base.errors import ModelError, ModelUnavailableError
from fairqr.retrieval.encoders.encoder import (
    AT_ONCE,
    KeptVectors,
    encode_documents,
    encode_query,
    text_of,
    unit_rows,
)
from fairqr.retrieval.encoders.opening import LangChainEncoder, open_encoder
from fairqr.retrieval.sources.documents import Document
from tests.unit.retrieval.vector_encoders import CountingEncoder, WordEmbeddings


class Constant:
    """An encoder that gives this, whatever it is asked."""

    name = "constant"

    def __init__(self, rows: Any, query: Any = None) -> None:
        self.rows = rows
        self.query = query

    async def encode_documents(self, texts: Sequence[str]) -> Any:
        return self.rows

    async def encode_query(self, text: str) -> Any:
        return self.query


NO_VECTORS = [[[1.0, 2.0]], [[1.0], [1.0]], [[1.0, 2.0], [1.0]], [1.0, 2.0], None, [["a", "b"]] * 2]


@pytest.mark.parametrize("rows", [*NO_VECTORS, [[float("nan"), 1.0]] * 2])
async def test_what_is_no_vectors_is_refused(rows: Any) -> None:
    """Two texts, two dimensions: any other shape, and values that are no numbers."""
    with pytest.raises(ModelError, match="'constant'"):
        await encode_documents(Constant(rows), ["a", "b"], 2)
    with pytest.raises(ModelError, match="'constant'"):
        await encode_query(Constant(None, rows), "a", 3)


@pytest.mark.parametrize(
    ("title", "text", "whole"),
    [
        ("Ada", "Lovelace", "Ada\nLovelace"),
        (" ", "Lovelace", "Lovelace"),
        ("Ada", "", "Ada"),
    ],
    ids=["both", "text", "title"],
)
def test_the_text_of_a_document_has_its_title(title: str, text: str, whole: str) -> None:
    assert text_of(Document("1", title, text)) == whole


async def test_blank_texts_are_not_sent() -> None:
    encoder = CountingEncoder()
    rows = await encode_documents(encoder, ["one", " \n", "", "two"], 8)
    assert encoder.encoded == ["one", "two"]
    assert rows.any(axis=1).tolist() == [True, False, False, True]
    assert (await encode_documents(encoder, ["", " "], 8)).shape == (2, 8)
    assert not (await encode_query(Constant(None), "\t", 8)).any()


# --- kept vectors ------------------------------------------------------------------------------

TEXTS = [f"text number {number}" for number in range(AT_ONCE + 9)]


async def kept_by(encoder: CountingEncoder) -> KeptVectors:
    kept = await KeptVectors.of(encoder)
    encoder.taken()
    return kept


async def test_vectors_are_the_encoders_and_each_text_is_encoded_once() -> None:
    encoder = CountingEncoder()
    kept = await kept_by(encoder)
    expected = await encode_documents(CountingEncoder(), TEXTS)
    rows = await kept.encode([*TEXTS[:9], *TEXTS[:9], " "])

    assert np.array_equal(rows[:18], [*expected[:9], *expected[:9]])
    assert sorted(encoder.taken()) == sorted(TEXTS[:9])

    again = await kept_by(encoder)
    assert np.array_equal(await again.encode(TEXTS), expected)
    assert sorted(encoder.taken()) == sorted(TEXTS[9:])
    assert not (await again.encode([" "])).any()
    assert (await again.encode([])).shape == (0, 8)


# --- LangChain ---------------------------------------------------------------------------------


async def test_an_embeddings_object_of_langchain_encodes() -> None:
    """It is named by its class and model."""
    encoder = LangChainEncoder(WordEmbeddings())
    texts = TEXTS[:8]

    assert encoder.name == "WordEmbeddings"
    assert LangChainEncoder(WordEmbeddings(), "mine").name == "mine"
    rows = await encode_documents(encoder, texts)
    assert rows == pytest.approx(unit_rows(WordEmbeddings().embed_documents(texts)))
    assert await encode_query(encoder, texts[3], 8) == pytest.approx(rows[3])


OPENAI = "openai:text-embedding-3-small"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("magic", "There is no encoder 'magic'; choose minilm, or a LangChain model"),
        ("nobody:model", "'nobody:model' cannot be started"),
        (OPENAI, "cannot be started .*; install its package and set"),
    ],
    ids=["name", "provider", "key"],
)
def test_what_is_no_encoder_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, complaint: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(ModelUnavailableError, match=f"^[^\n]*{complaint}[^\n]*$"):
        open_encoder(name)


def test_an_encoder_of_a_provider_is_opened_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")

    assert open_encoder(OPENAI).name == OPENAI


class RefusedError(Exception):
    """What a provider's client raises."""

    def __init__(self, status: int) -> None:
        super().__init__("the key sk-secret is wrong")
        self.status_code = status


class Failing(Embeddings):
    """Fails the first times."""

    def __init__(self, failures: int, status: int) -> None:
        self.failures = failures
        self.status = status
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        if self.calls <= self.failures:
            raise RefusedError(self.status)
        return [[1.0, 0.0] for _ in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


async def test_what_can_heal_is_tried_again() -> None:
    embeddings = Failing(1, 503)
    rows = await encode_documents(LangChainEncoder(embeddings), ["a"])

    assert rows.tolist() == [[1, 0]]
    assert embeddings.calls == 2


@pytest.mark.parametrize(("status", "kind"), [(401, "denied"), (400, "invalid_request")])
async def test_what_cannot_heal_is_said_without_secrets(status: int, kind: str) -> None:
    embeddings = Failing(99, status)
    sentence = rf"'Failing' failed \(RefusedError, status {status}\)"

    with pytest.raises(ModelError, match=sentence) as caught:
        await encode_query(LangChainEncoder(embeddings), "a", 2)
    assert caught.value.status == kind
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert embeddings.calls == 1
