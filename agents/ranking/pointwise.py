"""Neural models that score one document at a time for a query: monoT5 and monoBERT.

monoT5 (Nogueira et al. 2020, "Document Ranking with a Pretrained Sequence-to-Sequence Model") is
asked whether a document is relevant. Its score is ln P(true) among true and false for the first
token. monoBERT (Nogueira & Cho 2019, "Passage Re-ranking with BERT") classifies the pair of query
and document. Its score is the log probability of the second class, which means relevant.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from fairqr.agents.models.failures import no_answer_within
from fairqr.agents.ranking.item_ranker import Cost, ItemRanker, ItemRanking, RankItem, Shown
from fairqr.agents.ranking.rankers import RankerOptions
from fairqr.base.errors import InputError, ModelUnavailableError, one_line
from fairqr.base.neural import Pretrained, load_pretrained, to_float32, token_limit

BATCH = 16
"""How many documents are read at once."""


class PointwiseRanker(ABC):
    """Orders items by their scores; items with equal scores keep their order.

    The query gets at most half of the model's tokens, the document the rest. All scores come from
    one model, a batch at a time; up to rounding, a score does not depend on its batch.

    Args:
        weights: A hub id or a folder; the default depends on the kind.
        shown: What the model reads of an item.
        length: The most characters of an item that are read.

    Raises:
        InputError: The length is below 1.

    Attributes:
        kind: The ranker's name without the model.
        loader: The class of transformers that loads the model.
        default: The hub id of the default model.
    """

    kind: ClassVar[str]
    loader: ClassVar[str]
    default: ClassVar[str]

    def __init__(
        self, weights: str | None = None, *, shown: Shown = "title_text", length: int = 2000
    ) -> None:
        if length < 1:
            raise InputError(f"At least 1 character of an item must be shown, not {length}.")
        self._weights = weights or self.default
        self._shown: Shown = shown
        self._length = length
        self._loaded: Pretrained | None = None

    @property
    def name(self) -> str:
        """The kind and the model, e.g. ``monot5(castorini/monot5-base-msmarco)``."""
        return f"{self.kind}({self._weights})"

    @abstractmethod
    def check(self, pretrained: Pretrained) -> None:
        """Check that the model can score; raises ModelUnavailableError if not."""

    @abstractmethod
    def scores(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> list[float]:
        """Return the logarithm of the probability that each document is relevant.

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
        self,
        query: str,
        items: Sequence[RankItem],
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> ItemRanking:
        """Rank the items; see :meth:`fairqr.agents.ranking.item_ranker.ItemRanker.rank`.

        If not all items could be scored, the order is unchanged, and the ranking counts as one
        failed question with its status.
        """
        until = None if deadline is None else time.monotonic() + deadline
        pretrained = await self._pretrained()
        asked = _clean(f"{group} {query}" if group else query)
        texts = [_clean(item.shown(self._shown)[: self._length]) for item in items]
        scores: dict[str, float] = {}
        for documents in _batches(texts):
            if until is not None and time.monotonic() >= until:
                late = no_answer_within(self.name, deadline or 0).rstrip(".")
                scored = sum(text in scores for text in texts)
                return _failed(texts, "timeout", f"{late}: it had scored {scored} of {len(texts)}.")
            try:
                found = await pretrained.run(partial(self.scores, pretrained, asked, documents))
            except Exception as error:  # out of memory, or weights that do not fit
                message = f"The model {self.name} failed ({one_line(error, 200)})."
                return _failed(texts, "unavailable", message)
            if not all(map(math.isfinite, found)):
                message = f"The model {self.name} gave a score that is not a number."
                return _failed(texts, "unavailable", message)
            scores.update(zip(documents, found, strict=True))
        order = sorted(range(len(texts)), key=lambda place: (-scores[texts[place]], place))
        return ItemRanking(tuple(order), scores=tuple(scores[text] for text in texts))

    async def _pretrained(self) -> Pretrained:
        if self._loaded is None:
            loaded = await load_pretrained(self.loader, self._weights)
            self.check(loaded)
            # Some models are stored in half precision, which would change close scores.
            to_float32(loaded.model)
            self._loaded = loaded
        return self._loaded


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield each text once in batches, longest first, so that there is little padding.

    Batches do not depend on the order of the texts, since that would change the rounding of scores.
    """
    ordered = sorted(set(texts), key=lambda text: (-len(text), text))
    for begin in range(0, len(ordered), BATCH):
        yield ordered[begin : begin + BATCH]


def _clean(text: str) -> str:
    """Return a text on one line, without half surrogate pairs, which tokenizers refuse."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def _failed(texts: Sequence[str], status: str, message: str) -> ItemRanking:
    return ItemRanking(
        tuple(range(len(texts))),
        asked=1,
        failures={status: 1},
        warnings=(message,),
        message=message,
    )


FALSE, TRUE = "▁false", "▁true"
"""The two answers of monoT5, as pieces of its vocabulary."""


def open_pointwise(name: str, options: RankerOptions) -> ItemRanker:
    """Return a ranker that scores each document alone.

    Args:
        name: ``monot5`` or ``monobert``.
        options: Its ``weights``, ``shown`` and ``length`` are used.

    Raises:
        InputError: The ranker does not exist, or the length is too small.
    """
    kinds: dict[str, type[PointwiseRanker]] = {"monot5": MonoT5Ranker, "monobert": MonoBertRanker}
    if name not in kinds:
        raise InputError(f"There is no ranker '{one_line(name)}'; choose {' or '.join(kinds)}.")
    return kinds[name](options.weights, shown=options.shown or "title_text", length=options.length)


class MonoT5Ranker(PointwiseRanker):
    """Scores by ln P(true) among true and false, for the first token that the T5 would write."""

    kind = "monot5"
    loader = "AutoModelForSeq2SeqLM"
    default = "castorini/monot5-base-msmarco"

    def check(self, pretrained: Pretrained) -> None:
        """Check that the vocabulary has the two answers."""
        vocabulary = pretrained.tokenizer.get_vocab()
        for piece in (FALSE, TRUE):
            if piece not in vocabulary:
                raise ModelUnavailableError(
                    f"The tokenizer of {self._weights} has no piece '{piece}', which monoT5 "
                    "answers with; name a monoT5 model."
                )

    def scores(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> list[float]:
        """Read ``Query: … Document: … Relevant:``; only the document is cut."""
        import torch

        tokenizer, model = pretrained.tokenizer, pretrained.model
        limit = token_limit(pretrained.model.config, tokenizer)
        texts = [_t5_text(tokenizer, query, document, limit) for document in documents]
        inputs = tokenizer(
            texts, padding=True, truncation=True, max_length=limit, return_tensors="pt"
        ).to(pretrained.device)
        begin = torch.full(
            (len(texts), 1), model.config.decoder_start_token_id, device=pretrained.device
        )
        logits = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=begin,
        ).logits[:, 0]
        answers = tokenizer.convert_tokens_to_ids([FALSE, TRUE])
        return _second(logits[:, answers])


class MonoBertRanker(PointwiseRanker):
    """Scores by ln P(relevant), the second of two classes of a pair."""

    kind = "monobert"
    loader = "AutoModelForSequenceClassification"
    default = "castorini/monobert-large-msmarco"

    def check(self, pretrained: Pretrained) -> None:
        """Check that there are two classes."""
        classes = int(pretrained.model.config.num_labels)
        if classes != 2:
            raise ModelUnavailableError(
                f"The model {self._weights} has {classes} classes, but monoBERT has 2: not "
                "relevant, and relevant; name a monoBERT model."
            )

    def scores(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> list[float]:
        """Read the pair; a long document is cut."""
        limit = token_limit(pretrained.model.config, pretrained.tokenizer)
        short = _cut(pretrained.tokenizer, query, limit // 2)
        inputs = pretrained.tokenizer(
            [short] * len(documents),
            list(documents),
            padding=True,
            truncation="only_second",
            max_length=limit,
            return_tensors="pt",
        ).to(pretrained.device)
        return _second(pretrained.model(**inputs).logits)


def _t5_text(tokenizer: Any, query: str, document: str, limit: int) -> str:
    query = _cut(tokenizer, query, limit // 2)
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
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
    return text if len(found) <= limit else text[: found[limit - 1][1]]


def _second(logits: Any) -> list[float]:
    """Return ln P of the second of two classes, from logits of shape (n, 2)."""
    scores: list[float] = logits.double().log_softmax(-1)[:, 1].tolist()
    return scores
