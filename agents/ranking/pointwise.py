"""Neural models that score one document at a time for a query: monoT5 and monoBERT.

monoT5 (Nogueira et al. 2020, "Document Ranking with a Pretrained Sequence-to-Sequence Model") is
asked whether a document is relevant. Its score is ln P(true) among true and false for the first
token. monoBERT (Nogueira & Cho 2019, "Passage Re-ranking with BERT") classifies the pair of query
and document. Its score is the log probability of the second class, which means relevant.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from fairqr.agents.models.replies import Status, no_answer_within
from fairqr.agents.ranking.rankers import Cost, ItemRanking, RankerOptions, RankItem
from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.neural import PretrainedModel, load_pretrained, to_float32, token_limit
from fairqr.retrieval.sources.documents import chunks

BATCH = 16
"""How many documents are read at once."""

ANSWERS = ("▁false", "▁true")
"""The two answers of monoT5, as pieces of its vocabulary."""

MODELS = {
    "monot5": ("AutoModelForSeq2SeqLM", "castorini/monot5-base-msmarco"),
    "monobert": ("AutoModelForSequenceClassification", "castorini/monobert-large-msmarco"),
}
"""For each ranker, the class of transformers that loads it, and the authors' own weights."""


class PointwiseRanker:
    """Orders items by their scores; items with equal scores keep their order.

    The query gets at most half of the model's tokens, the document the rest. All scores come from
    one model, a batch at a time; up to rounding, a score does not depend on its batch.

    Args:
        kind: One of :data:`MODELS`.
        options: The weights, a hub id or a folder; and what is shown of an item.

    Attributes:
        name: The kind and the model, e.g. ``monot5(castorini/monot5-base-msmarco)``.
    """

    def __init__(self, kind: str, options: RankerOptions) -> None:
        self._kind = kind
        self._options = options
        self._loader, weights = MODELS[kind]
        self._model = options.weights or weights
        self._loaded: PretrainedModel | None = None
        self.name = f"{kind}({self._model})"

    async def start(self) -> None:
        """Load the model.

        Raises:
            ModelUnavailableError: The extra ``neural`` is missing, the model does not exist, or it
                is of another kind.
        """
        await self._pretrained()

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return a cost of 0, since no language model is asked."""
        return Cost()

    async def rank(
        self, query: str, items: Sequence[RankItem], group: str = "", deadline: float | None = None
    ) -> ItemRanking:
        """Rank the items; see :meth:`fairqr.agents.ranking.rankers.ItemRanker.rank`.

        If not all items could be scored, the order is unchanged, and the ranking counts as one
        failed question with its status.
        """
        until = None if deadline is None else asyncio.get_running_loop().time() + deadline
        pretrained = await self._pretrained()
        query_text = _clean(f"{group} {query}" if group else query)
        texts = [_clean(item.shown(self._options.shown)[: self._options.length]) for item in items]
        try:
            async with asyncio.timeout_at(until):
                score_of = await self._score(pretrained, query_text, texts)
        except TimeoutError:
            return _unchanged(len(texts), "timeout", no_answer_within(self.name, deadline or 0))
        except Exception as error:  # out of memory, or weights that do not fit
            message = f"The model {self.name} failed ({one_line(error, 200)})."
            return _unchanged(len(texts), "unavailable", message)

        scores = tuple(score_of[text] for text in texts)
        if not all(map(math.isfinite, scores)):
            message = f"The model {self.name} gave a score that is not a number."
            return _unchanged(len(texts), "unavailable", message)
        order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        return ItemRanking(tuple(order), scores=scores)

    async def _score(
        self, pretrained: PretrainedModel, query: str, texts: Sequence[str]
    ) -> dict[str, float]:
        """Return the score of each text."""
        # Batches do not depend on the order of the texts, since that would change the rounding of
        # scores. The longest come first, so that there is little padding.
        distinct = sorted(set(texts), key=lambda text: (-len(text), text))
        logits_of = _monot5_logits if self._kind == "monot5" else _monobert_logits
        score_of: dict[str, float] = {}
        for batch in chunks(distinct, BATCH):
            logits = await pretrained.run(partial(logits_of, pretrained, query, batch))
            scores = logits.double().log_softmax(-1)[:, 1].tolist()
            score_of.update(zip(batch, scores, strict=True))
        return score_of

    async def _pretrained(self) -> PretrainedModel:
        """Return the model and its tokenizer, loaded on first use."""
        if self._loaded is None:
            loaded = await load_pretrained(self._loader, self._model)
            self._require_kind(loaded)
            # Some models are stored in half precision, which would change close scores.
            to_float32(loaded.model)
            self._loaded = loaded
        return self._loaded

    def _require_kind(self, loaded: PretrainedModel) -> None:
        """Refuse a model of another kind.

        Raises:
            ModelUnavailableError: It has not the answers, or the classes, of its kind.
        """
        vocabulary = loaded.tokenizer.get_vocab()
        missing = [piece for piece in ANSWERS if piece not in vocabulary]
        if self._kind == "monot5" and missing:
            raise ModelUnavailableError(
                f"The tokenizer of {self._model} has no piece '{missing[0]}', which monoT5 "
                "answers with; name a monoT5 model."
            )
        classes = loaded.model.config.num_labels
        if self._kind == "monobert" and classes != 2:
            raise ModelUnavailableError(
                f"The model {self._model} has {classes} classes, but monoBERT has 2: not "
                "relevant, and relevant; name a monoBERT model."
            )


def _unchanged(n: int, status: Status, message: str) -> ItemRanking:
    """Return n items in their order, as one question that failed."""
    return ItemRanking(tuple(range(n)), 1, {status: 1}, warnings=(message,), message=message)


def _monot5_logits(pretrained: PretrainedModel, query: str, documents: Sequence[str]) -> Any:
    """Return the logits of false and true as the first token that the T5 would write.

    It reads ``Query: … Document: … Relevant:``; only the document is cut. Pieces never cross a
    space, so that the parts have the tokens of the whole text.
    """
    import torch

    tokenizer = pretrained.tokenizer
    model = pretrained.model
    limit = token_limit(model.config, tokenizer)
    parts = ["Query:", query, "Document:", "Relevant:", *documents]
    tokens = tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"]
    query_mark, query_tokens, document_mark, question, *texts = tokens
    before = [*query_mark, *query_tokens[: limit // 2], *document_mark]
    after = [*question, tokenizer.eos_token_id]
    room = limit - len(before) - len(after)
    rows = {"input_ids": [[*before, *text[:room], *after] for text in texts]}
    inputs = tokenizer.pad(rows, return_tensors="pt", verbose=False).to(pretrained.device)
    start = torch.full((len(texts), 1), model.config.decoder_start_token_id)
    output = model(**inputs, decoder_input_ids=start.to(pretrained.device))
    return output.logits[:, 0, tokenizer.convert_tokens_to_ids(ANSWERS)]


def _monobert_logits(pretrained: PretrainedModel, query: str, documents: Sequence[str]) -> Any:
    """Return the logits of both classes of a pair; the second class means relevant."""
    tokenizer = pretrained.tokenizer
    limit = token_limit(pretrained.model.config, tokenizer)
    inputs = tokenizer(
        [_cut(tokenizer, query, limit // 2)] * len(documents),
        documents,
        padding=True,
        truncation="only_second",
        max_length=limit,
        return_tensors="pt",
    )
    return pretrained.model(**inputs.to(pretrained.device)).logits


def _clean(text: str) -> str:
    """Return a text on one line, without half surrogate pairs, which tokenizers refuse."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def _cut(tokenizer: Any, text: str, limit: int) -> str:
    """Return the beginning of a text that its first tokens cover, in complete characters."""
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = [end for _, end in encoding["offset_mapping"]]
    if len(ends) <= limit:
        return text
    return text[: ends[limit - 1]]
