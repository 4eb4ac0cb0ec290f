"""Retrievers over a pool of texts, such as a query's own documents, opened by name."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import tantivy

from fairqr.base.errors import InputError, one_line
from fairqr.base.neural import load_pretrained, token_limit
from fairqr.retrieval.encoders.encoder import Encoder, encode_documents, encode_query
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.tantivy.analysis import ANALYZER_NAME, english_analyzer
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.texts.sendable import sendable

WRITER_BYTES = 15 << 20
"""The smallest memory that tantivy accepts, in bytes."""

TEXTS_AT_ONCE = 64


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
        spoken = [place for place, text in enumerate(clean) if text.strip()]
        scores = np.zeros(len(texts))
        if spoken and query.strip():
            found = await self._score(sendable(query), [clean[place] for place in spoken])
            scores += min(0.0, float(found.min()))
            scores[spoken] = found
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
        self._schema, self._analyzer, self.size = builder.build(), english_analyzer(), 0
        index = tantivy.Index(self._schema)
        index.register_tokenizer(ANALYZER_NAME, self._analyzer)
        writer = index.writer(WRITER_BYTES, 1)
        for text in texts:
            entry = {"body": text, "number": self.size}
            writer.add_document(tantivy.Document.from_dict(entry, self._schema))
            self.size += 1
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        self._searcher = index.searcher()

    def scores(self, query: str) -> FloatArray:
        """Return the score of each text, shape (n,); 0 for texts without a term of the query."""
        scores = np.zeros(self.size)
        if self.size:
            terms = [
                (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "body", term))
                for term in self._analyzer.analyze(query)
            ]
            matching = tantivy.Query.boolean_query(terms)
            hits = self._searcher.search(matching, self.size, count=False).hits
            found = self._searcher.fast_field_values("number", [address for _, address in hits])
            scores[np.array(found, dtype=np.intp)] = [score for score, _ in hits]
        return scores


class Bm25PoolRetriever(PoolRetriever):
    """BM25 with the statistics of the pool alone, as in LaMP and the Fair RAG experiments."""

    name = "bm25"

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        return await asyncio.to_thread(lambda: MemoryIndex(texts).scores(query))


class DensePoolRetriever(PoolRetriever):
    """Scores by the cosine, in [-1, 1]; 0 for a text without any word the encoder knows.

    Args:
        encoder: See :func:`fairqr.retrieval.encoders.opening.open_encoder`.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self.name = encoder, f"dense:{encoder.name}"

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        vectors = await encode_documents(self._encoder, texts)
        wanted = await encode_query(self._encoder, query, vectors.shape[1])
        return np.asarray(vectors.astype(np.float64) @ wanted.astype(np.float64))


class NeuralPoolRetriever(PoolRetriever):
    """The dot product of a transformers model's vectors of query and text.

    Args:
        model: A hub id or a folder; the published one by default. We read a text only up to the
            model's limit, 512 tokens for the published ones.

    Attributes:
        kind: The retriever's name, without its model.
        published: The model that was published with it.
        loader: The transformers class that loads the model.
        tokens_at_once: The most tokens in a batch of several texts, including padding; bounds
            memory.
    """

    kind: ClassVar[str]
    published: ClassVar[str]
    loader: ClassVar[str]
    tokens_at_once: ClassVar[int]

    def __init__(self, model: str = "") -> None:
        self._model = model or self.published
        self.name = f"{self.kind}:{self._model}"

    @staticmethod
    @abstractmethod
    def vectors(output: Any, mask: Any) -> Any:
        """Make vectors, shape (b, d), from a model's output and attention mask, shape (b, t)."""

    async def _score(self, query: str, texts: list[str]) -> FloatArray:
        self._loaded = await load_pretrained(self.loader, self._model)
        return await self._loaded.run(lambda: self._dot_products(query, texts))

    def _dot_products(self, query: str, texts: Sequence[str]) -> FloatArray:
        """Return the dot products of the query's vector with the texts'; none of them is blank.

        A text's vector does not depend on the rest of its batch, up to rounding: the padding of
        shorter texts is masked.
        """
        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        cut = {"truncation": True, "max_length": token_limit(model.config, tokenizer)}

        def encoded(some: Sequence[str]) -> Any:
            inputs = tokenizer([*some], padding=True, return_tensors="pt", **cut)
            inputs = inputs.to(self._loaded.device)
            return self.vectors(model(**inputs), inputs["attention_mask"]).float()

        wanted, scores = encoded([query])[0], np.zeros(len(texts))
        lengths = [len(ids) for ids in tokenizer([*texts], **cut)["input_ids"]]
        for places in _batches(lengths, self.tokens_at_once):
            found = encoded([texts[place] for place in places]) @ wanted
            scores[places] = found.cpu().numpy()
        return scores


class SpladePoolRetriever(NeuralPoolRetriever):
    """The dot product of weights over the vocabulary, most of them 0.

    Formal et al. (2021), SPLADE v2, with max pooling: the weight of term j in a text is the maximum
    of ln(1 + max(0, logit of j at token t)) over its tokens t. The logits come from a masked
    language model; special tokens count, padding does not.
    """

    kind, published, loader = "splade", "naver/splade_v2_max", "AutoModelForMaskedLM"
    # Each token has a logit for each of some 30,000 terms: 250 MB for these.
    tokens_at_once = 2048

    @staticmethod
    def vectors(output: Any, mask: Any) -> Any:
        """Return the weights of the vocabulary's terms."""
        # The logarithm is increasing, so we take the maximum first and the logarithm of fewer
        # values.
        masked = output.logits.masked_fill(mask.unsqueeze(-1) == 0, float("-inf"))
        return masked.max(dim=1).values.clamp(min=0).log1p()


class ContrieverPoolRetriever(NeuralPoolRetriever):
    """The dot product of the mean token vectors of query and text; may be negative.

    As in Izacard et al. (2022), we average the last hidden states of the tokens, including special
    tokens but not padding; the score is the dot product, not the cosine.
    """

    kind, published, loader = "contriever", "facebook/contriever", "AutoModel"
    tokens_at_once = 8192

    @staticmethod
    def vectors(output: Any, mask: Any) -> Any:
        """Return the means over all tokens except padding."""
        present = mask.unsqueeze(-1).to(output.last_hidden_state.dtype)
        return (output.last_hidden_state * present).sum(dim=1) / present.sum(dim=1)


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of positions, longest text first, so that padding is small."""
    left = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    while left:
        size = min(TEXTS_AT_ONCE, max(1, tokens // lengths[left[0]]))
        yield left[:size]
        left = left[size:]


def open_pool_retriever(name: str) -> PoolRetriever:
    """Return the retriever with a name; nothing is loaded before it is started or used.

    Args:
        name: ``bm25``; ``splade`` or ``contriever``, optionally with a hub id or a folder after a
            colon; ``dense``, optionally with an encoder after a colon, MiniLM by default.

    Raises:
        InputError: There is no such retriever.
        ModelUnavailableError: The encoder does not exist, or cannot be started.
    """
    kind, colon, model = name.strip().partition(":")
    if bool(colon) == bool(model):
        if kind == "bm25" and not model:
            return Bm25PoolRetriever()
        if kind == "dense":
            return DensePoolRetriever(open_encoder(model or MiniLmEncoder.name))
        for neural in (SpladePoolRetriever, ContrieverPoolRetriever):
            if kind == neural.kind:
                return neural(model)
    raise InputError(
        f"There is no retriever '{one_line(name)}' over pools; choose bm25, splade[:MODEL], "
        "contriever[:MODEL] or dense[:ENCODER]."
    )
