"""Retrievers over a pool of texts, such as a query's own documents, opened by name."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tantivy

from fairqr.base.errors import InputError, ModelUnavailableError, one_line
from fairqr.base.extras import library
from fairqr.base.neural import load_pretrained, token_limit
from fairqr.retrieval.encoders.encoder import Encoder, encode_documents, encode_query
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import chunks
from fairqr.retrieval.texts.words import (
    ANALYZER_NAME,
    english_analyzer,
    indexed_text,
    query_terms,
    sendable,
)

WRITER_BYTES = 15 << 20
"""The smallest memory that tantivy accepts, in bytes."""


class PoolRetriever(ABC):
    """Scores the texts of a pool for a query; it keeps nothing of the pool.

    All treat blank texts alike: a blank text gets the lowest of the other scores, or 0 if that is
    lower. If the query or all texts are blank, all scores are 0. A neural retriever reads a text,
    and a query, only up to its model's limit.

    Attributes:
        name: The name in results, such as ``bm25`` or ``splade:org/model``.
    """

    name: str

    async def start(self) -> None:
        """Prepare for use; raises ModelUnavailableError if something is missing."""
        await self.scores("start", ["start"])

    async def scores(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return a score for each text, shape (n,), finite; higher is better.

        Raises:
            ModelUnavailableError: A package or the model is missing, or it is of another kind.
            ModelError: The encoder failed.
        """
        # Tokenizers refuse lone surrogates.
        clean = [sendable(text) for text in texts]
        scored = [position for position, text in enumerate(clean) if text.strip()]
        scores = np.zeros(len(texts))
        if scored and query.strip():
            scores_of_texts = await self._score(
                sendable(query), [clean[position] for position in scored]
            )
            scores += min(0.0, float(scores_of_texts.min()))
            scores[scored] = scores_of_texts
        return scores

    @abstractmethod
    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        """Score texts; neither they nor the query are blank."""


class MemoryIndex:
    """Texts in memory, scored by BM25 with their own statistics.

    Analysis and formula are those of the embedded index, so a text scores here as in an index of
    these texts. Building an index of 20 texts takes 8 ms, and little more for 1,000.

    Args:
        texts: The texts, in the order of the scores.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("body", tokenizer_name=ANALYZER_NAME, index_option="freq")
        builder.add_unsigned_field("number", fast=True)
        self._schema = builder.build()
        self.size = 0
        index = tantivy.Index(self._schema)
        index.register_tokenizer(ANALYZER_NAME, english_analyzer())
        with index.writer(WRITER_BYTES, 1) as writer:
            for text in texts:
                entry = {"body": indexed_text(text), "number": self.size}
                writer.add_document(tantivy.Document.from_dict(entry, self._schema))
                self.size += 1
            writer.commit()
        index.reload()
        self._searcher = index.searcher()

    def scores(self, query: str) -> FloatArray:
        """Return the score of each text, shape (n,); 0 for texts without a term of the query."""
        clauses = []
        for term in query_terms(query):
            clause = tantivy.Query.term_query(self._schema, "body", term)
            clauses.append((tantivy.Occur.Should, clause))
        matching = tantivy.Query.boolean_query(clauses)
        hits = self._searcher.search(matching, max(1, self.size), count=False).hits

        addresses = [address for _, address in hits]
        numbers = self._searcher.fast_field_values("number", addresses)
        scores = np.zeros(self.size)
        scores[np.array(numbers, dtype=np.intp)] = [score for score, _ in hits]
        return scores


class Bm25PoolRetriever(PoolRetriever):
    """BM25 of the embedded index, with the statistics of the pool alone.

    Words are stemmed, and stop words left out. LaMP and the Fair RAG experiments have the
    statistics of the pool too, but other words and another formula: :class:`OkapiPoolRetriever`.
    """

    name = "bm25"

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        return await asyncio.to_thread(lambda: MemoryIndex(texts).scores(query))


class OkapiPoolRetriever(PoolRetriever):
    """BM25Okapi of the library ``rank_bm25``, as LaMP and the Fair RAG experiments use it.

    Words are what stands between white space, with their case and punctuation; k1 is 1.5 and b .75.
    A word in more than half of the texts has a negative weight, which the library replaces by a
    quarter of the mean weight.
    """

    name = "bm25okapi"

    async def start(self) -> None:
        """Find the library.

        Raises:
            ModelUnavailableError: It is not installed.
        """
        self._library()

    @staticmethod
    def _library() -> Any:
        return library("rank_bm25", "The retriever bm25okapi", "lamp", ModelUnavailableError)

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        okapi = self._library().BM25Okapi

        def scores() -> FloatArray:
            index = okapi([text.split() for text in texts])
            return np.asarray(index.get_scores(query.split()), dtype=np.float64)

        return await asyncio.to_thread(scores)


class DensePoolRetriever(PoolRetriever):
    """Scores by the cosine, in [-1, 1]; 0 for a text without any word the encoder knows.

    Args:
        encoder: See :func:`fairqr.retrieval.encoders.opening.open_encoder`.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.name = f"dense:{encoder.name}"
        self._encoder = encoder

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        vectors = await encode_documents(self._encoder, texts)
        dimensions = vectors.shape[1]
        query_vector = await encode_query(self._encoder, query, dimensions)
        return np.asarray(vectors.astype(np.float64) @ query_vector.astype(np.float64))


class NeuralPoolRetriever(PoolRetriever):
    """The dot product of a transformers model's vectors of query and text.

    We read a text only up to the model's limit, 512 tokens for the published ones.

    Args:
        name: The retriever's name, with its model.
        model: A hub id or a folder.
        kind: What makes vectors.
    """

    def __init__(self, name: str, model: str, kind: NeuralKind) -> None:
        self.name = name
        self._model = model
        self._kind = kind

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        self._loaded = await load_pretrained(self._kind.loader, self._model)
        return await self._loaded.run(lambda: self._dot_products(query, texts))

    def _dot_products(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the dot products of the query's vector with the texts'; none of them is blank.

        A text's vector does not depend on the rest of its batch, up to rounding: the padding of
        shorter texts is masked.
        """
        query_vector = self._vectors([query])[0]
        scores = np.zeros(len(texts))
        # Longest first, so that padding is small.
        by_length = sorted(range(len(texts)), key=lambda position: -len(texts[position]))
        for positions in chunks(by_length, self._kind.texts_at_once):
            vectors = self._vectors([texts[position] for position in positions])
            scores[positions] = (vectors @ query_vector).cpu().numpy()
        return scores

    def _vectors(self, texts: list[str]) -> Any:
        """Return the vectors of a batch of texts, shape (b, d), as a tensor of torch."""
        model = self._loaded.model
        tokenizer = self._loaded.tokenizer
        inputs = tokenizer(
            texts,
            padding=True,
            return_tensors="pt",
            truncation=True,
            max_length=token_limit(model.config, tokenizer),
        ).to(self._loaded.device)
        return self._kind.vectors(model(**inputs), inputs["attention_mask"]).float()


def splade_vectors(output: Any, mask: Any) -> Any:
    """Return weights over the vocabulary, most of them 0, shape (b, v).

    Formal et al. (2021), SPLADE v2, with max pooling: the weight of term j in a text is the maximum
    of ln(1 + max(0, logit of j at token t)) over its tokens t. The logits come from a masked
    language model; special tokens count, padding does not.
    """
    # The logarithm is increasing, so we take the maximum first and the logarithm of fewer values.
    masked = output.logits.masked_fill(mask.unsqueeze(-1) == 0, float("-inf"))
    return masked.max(dim=1).values.clamp(min=0).log1p()


def contriever_vectors(output: Any, mask: Any) -> Any:
    """Return the mean token vectors, shape (b, d); their products may be negative.

    As in Izacard et al. (2022), we average the last hidden states of the tokens, including special
    tokens but not padding; the score is the dot product, not the cosine.
    """
    present = mask.unsqueeze(-1).to(output.last_hidden_state.dtype)
    return (output.last_hidden_state * present).sum(dim=1) / present.sum(dim=1)


class NeuralKind(NamedTuple):
    """How a kind of transformers model makes vectors of texts.

    Attributes:
        published: The model that was published with it.
        loader: The transformers class that loads the model.
        vectors: Makes vectors, shape (b, d), from a model's output and attention mask, shape
            (b, t).
        texts_at_once: How many texts of 512 tokens fit in about 500 MB.
    """

    published: str
    loader: str
    vectors: Callable[[Any, Any], Any]
    texts_at_once: int


NEURAL = {
    # Each token has a logit for each of some 30,000 terms.
    "splade": NeuralKind("naver/splade_v2_max", "AutoModelForMaskedLM", splade_vectors, 8),
    "contriever": NeuralKind("facebook/contriever", "AutoModel", contriever_vectors, 16),
}


def open_pool_retriever(name: str) -> PoolRetriever:
    """Return the retriever with a name; nothing is loaded before it is started or used.

    Args:
        name: ``bm25``; ``bm25okapi``; ``splade`` or ``contriever``, optionally with a hub id or a
            folder after a colon; ``dense``, optionally with an encoder after a colon, MiniLM by
            default.

    Raises:
        InputError: There is no such retriever.
        ModelUnavailableError: The encoder does not exist, or cannot be started.
    """
    name = name.strip()
    if name == Bm25PoolRetriever.name:
        return Bm25PoolRetriever()
    if name == OkapiPoolRetriever.name:
        return OkapiPoolRetriever()

    kind, colon, model = name.partition(":")
    # A colon is followed by a model.
    is_complete = bool(colon) == bool(model)
    if is_complete and kind == "dense":
        return DensePoolRetriever(open_encoder(model or MiniLmEncoder.name))
    if is_complete and kind in NEURAL:
        neural = NEURAL[kind]
        model = model or neural.published
        return NeuralPoolRetriever(f"{kind}:{model}", model, neural)
    raise InputError(
        f"There is no retriever '{one_line(name)}' over pools; choose bm25, bm25okapi, "
        "splade[:MODEL], contriever[:MODEL] or dense[:ENCODER]."
    )
