"""Neural models that score one document at a time for a query: monoT5 and monoBERT.

monoT5 (Nogueira et al. 2020, "Document Ranking with a Pretrained Sequence-to-Sequence Model") is
asked whether a document is relevant. Its score is ln P(true) among true and false for the first
token. monoBERT (Nogueira & Cho 2019, "Passage Re-ranking with BERT") classifies the pair of query
and document. Its score is the log probability of the second class, which means relevant.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from fairqr.agents.models.failures import no_answer_within
from fairqr.agents.ranking.item_ranker import Cost, ItemRanking, RankItem
from fairqr.agents.ranking.rankers import DEFAULTS, RankerOptions
from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.neural import Pretrained, load_pretrained, to_float32, token_limit

BATCH = 16
"""How many documents are read at once."""

ANSWERS = ("▁false", "▁true")
"""The two answers of monoT5, as pieces of its vocabulary."""


class PointwiseRanker(ABC):
    """Orders items by their scores; items with equal scores keep their order.

    The query gets at most half of the model's tokens, the document the rest. All scores come from
    one model, a batch at a time; up to rounding, a score does not depend on its batch.

    Args:
        options: The weights, a hub id or a folder, which default to the authors' own; and what is
            shown of an item.

    Attributes:
        kind: The ranker's name without the model.
        loader: The class of transformers that loads the model.
        weights: The hub id of the default model.
    """

    kind: ClassVar[str]
    loader: ClassVar[str]
    weights: ClassVar[str]

    def __init__(self, options: RankerOptions = DEFAULTS) -> None:
        self._options = options
        self._model = options.weights or self.weights
        self._loaded: Pretrained | None = None

    @property
    def name(self) -> str:
        """The kind and the model, e.g. ``monot5(castorini/monot5-base-msmarco)``."""
        return f"{self.kind}({self._model})"

    @abstractmethod
    def check(self, pretrained: Pretrained) -> None:
        """Check that the model can score; raises ModelUnavailableError if not."""

    @abstractmethod
    def logits(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> Any:
        """Return the logits that each document is not relevant, and relevant; shape (n, 2).

        It is called without gradients on the model's thread.

        Args:
            pretrained: The model, after :meth:`check`.
            query: Valid Unicode, like the documents; all may be empty.
            documents: A batch of at least one document.
        """

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
        """Rank the items; see :meth:`fairqr.agents.ranking.item_ranker.ItemRanker.rank`.

        If not all items could be scored, the order is unchanged, and the ranking counts as one
        failed question with its status.
        """
        until = None if deadline is None else asyncio.get_running_loop().time() + deadline
        pretrained = await self._pretrained()
        asked = _clean(f"{group} {query}" if group else query)
        texts = [_clean(item.shown(self._options.shown)[: self._options.length]) for item in items]
        # Batches do not depend on the order of the texts, since that would change the rounding of
        # scores. The longest come first, so that there is little padding.
        distinct = sorted(set(texts), key=lambda text: (-len(text), text))
        scores: dict[str, float] = {}
        status, message = "unavailable", f"The model {self.name} gave a score that is not a number."
        try:
            async with asyncio.timeout_at(until):
                for start in range(0, len(distinct), BATCH):
                    batch = distinct[start : start + BATCH]
                    logits = await pretrained.run(partial(self.logits, pretrained, asked, batch))
                    found = logits.double().log_softmax(-1)[:, 1].tolist()
                    scores.update(zip(batch, found, strict=True))
            if all(map(math.isfinite, scores.values())):
                own = tuple(scores[text] for text in texts)
                order = sorted(range(len(own)), key=own.__getitem__, reverse=True)
                return ItemRanking(tuple(order), scores=own)
        except TimeoutError:
            status, message = "timeout", no_answer_within(self.name, deadline or 0)
        except Exception as error:  # out of memory, or weights that do not fit
            message = f"The model {self.name} failed ({one_line(error, 200)})."
        unchanged = tuple(range(len(texts)))
        return ItemRanking(unchanged, 1, {status: 1}, warnings=(message,), message=message)

    async def _pretrained(self) -> Pretrained:
        if self._loaded is None:
            loaded = await load_pretrained(self.loader, self._model)
            self.check(loaded)
            # Some models are stored in half precision, which would change close scores.
            to_float32(loaded.model)
            self._loaded = loaded
        return self._loaded


class MonoT5Ranker(PointwiseRanker):
    """Scores by ln P(true) among true and false, for the first token that the T5 would write."""

    kind = "monot5"
    loader = "AutoModelForSeq2SeqLM"
    weights = "castorini/monot5-base-msmarco"

    def check(self, pretrained: Pretrained) -> None:
        """Check that the vocabulary has the two answers."""
        vocabulary = pretrained.tokenizer.get_vocab()
        if missing := [piece for piece in ANSWERS if piece not in vocabulary]:
            raise ModelUnavailableError(
                f"The tokenizer of {self._model} has no piece '{missing[0]}', which monoT5 "
                "answers with; name a monoT5 model."
            )

    def logits(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> Any:
        """Read ``Query: … Document: … Relevant:``; only the document is cut."""
        import torch

        tokenizer, model = pretrained.tokenizer, pretrained.model
        limit = token_limit(model.config, tokenizer)
        query = _cut(tokenizer, query, limit // 2)
        texts = [_t5_text(tokenizer, query, document, limit) for document in documents]
        inputs = tokenizer(
            texts, padding=True, truncation=True, max_length=limit, return_tensors="pt"
        ).to(pretrained.device)
        start = torch.full((len(texts), 1), model.config.decoder_start_token_id)
        output = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=start.to(pretrained.device),
        )
        return output.logits[:, 0, tokenizer.convert_tokens_to_ids(ANSWERS)]


class MonoBertRanker(PointwiseRanker):
    """Scores by ln P(relevant), the second of two classes of a pair."""

    kind = "monobert"
    loader = "AutoModelForSequenceClassification"
    weights = "castorini/monobert-large-msmarco"

    def check(self, pretrained: Pretrained) -> None:
        """Check that there are two classes."""
        if (classes := pretrained.model.config.num_labels) != 2:
            raise ModelUnavailableError(
                f"The model {self._model} has {classes} classes, but monoBERT has 2: not "
                "relevant, and relevant; name a monoBERT model."
            )

    def logits(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> Any:
        """Read the pair; a long document is cut."""
        tokenizer = pretrained.tokenizer
        limit = token_limit(pretrained.model.config, tokenizer)
        inputs = tokenizer(
            [_cut(tokenizer, query, limit // 2)] * len(documents),
            documents,
            padding=True,
            truncation="only_second",
            max_length=limit,
            return_tensors="pt",
        ).to(pretrained.device)
        return pretrained.model(**inputs).logits


POINTWISE: Mapping[str, type[PointwiseRanker]] = {
    ranker.kind: ranker for ranker in (MonoT5Ranker, MonoBertRanker)
}


def _clean(text: str) -> str:
    """Return a text on one line, without half surrogate pairs, which tokenizers refuse."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def _t5_text(tokenizer: Any, query: str, document: str, limit: int) -> str:
    while True:
        text = f"Query: {query} Document: {document} Relevant:"
        over = len(tokenizer(text, verbose=False)["input_ids"]) - limit
        if over <= 0 or not document:
            return text
        has = len(tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"])
        shorter = _cut(tokenizer, document, has - over)
        # Joined texts may have a few more tokens than the sum of the parts.
        document = shorter if len(shorter) < len(document) else document[:-1]


def _cut(tokenizer: Any, text: str, limit: int) -> str:
    """Return the beginning of a text that its first tokens cover, in complete characters."""
    if limit < 1:
        return ""
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = [end for _, end in found["offset_mapping"]]
    return text if len(ends) <= limit else text[: ends[limit - 1]]
