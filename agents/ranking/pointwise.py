"""Neural models that score one document at a time for a query: monoT5 and monoBERT.

monoT5 (Nogueira et al. 2020, "Document Ranking with a Pretrained Sequence-to-Sequence Model") is
asked whether a document is relevant, and scores by the logarithm of P(true) against P(false) in its
first token. monoBERT (Nogueira & Cho 2019, "Passage Re-ranking with BERT") classifies the pair of
query and document, and scores by the logarithm of the class of relevant ones, which is the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairqr.agents.ranking.item_ranker import ItemRanker
from fairqr.agents.ranking.rankers import RankerOptions
from fairqr.agents.ranking.scoring import PointwiseRanker
from fairqr.base.errors import InputError, ModelUnavailableError, one_line
from fairqr.base.neural import Pretrained, token_limit

__all__ = ["MonoBertRanker", "MonoT5Ranker", "open_pointwise"]

FALSE, TRUE = "▁false", "▁true"
"""The pieces that monoT5 answers with."""


def open_pointwise(name: str, options: RankerOptions) -> ItemRanker:
    """Return a ranker that scores each document by itself.

    Args:
        name: ``monot5`` or ``monobert``.
        options: Its ``weights``, ``shown`` and ``length`` are heeded.

    Raises:
        InputError: There is no such ranker, or the length is too small.
    """
    kinds: dict[str, type[PointwiseRanker]] = {"monot5": MonoT5Ranker, "monobert": MonoBertRanker}
    if name not in kinds:
        raise InputError(f"There is no ranker '{one_line(name)}'; choose {' or '.join(kinds)}.")
    return kinds[name](options.weights, shown=options.shown or "title_text", length=options.length)


class MonoT5Ranker(PointwiseRanker):
    """Scores by ln P(true) among true and false, the first token that a T5 would write."""

    kind = "monot5"
    loader = "AutoModelForSeq2SeqLM"
    default = "castorini/monot5-base-msmarco"

    def check(self, pretrained: Pretrained) -> None:
        """Look for the two pieces."""
        vocabulary = pretrained.tokenizer.get_vocab()
        for piece in (FALSE, TRUE):
            if piece not in vocabulary:
                raise ModelUnavailableError(
                    f"The tokenizer of {self._weights} has no piece '{piece}', which monoT5 "
                    "answers with; name a monoT5 model."
                )

    def scores(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> list[float]:
        """Read ``Query: … Document: … Relevant:``; the document is cut so that the end stays."""
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
        """Count the classes."""
        classes = int(pretrained.model.config.num_labels)
        if classes != 2:
            raise ModelUnavailableError(
                f"The model {self._weights} has {classes} classes, and monoBERT has 2: not "
                "relevant, and relevant; name a monoBERT model."
            )

    def scores(self, pretrained: Pretrained, query: str, documents: Sequence[str]) -> list[float]:
        """Read the pair; the document is cut where both are too long."""
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
        # Put together, texts may have a few more tokens than each by itself.
        document = shorter if len(shorter) < len(document) else document[:-1]


def _cut(tokenizer: Any, text: str, limit: int) -> str:
    """Return the begin of a text that its first tokens are made of, whole characters only."""
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
