"""Makes lists of made-up hits before an index counts as open, so that no real one is slow."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fairqr.base.weights import is_pulled
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.service.proxy.ordering import IndexOrder, kept_lists
from fairqr.graph.service.proxy.requests import SIZE, ProxiedSearch
from fairqr.graph.service.proxy.reranking import reranked
from fairqr.retrieval.encoders.encoder import Float32Array
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.sources.group_values import Range
from fairqr.retrieval.sources.schema import Attribute

LISTS = 3
"""So many lists of each kind are made."""

PATIENT = 10.0
"""Seconds that one may take."""

WORDS = "warming up"

log = logging.getLogger(__name__)


class _MadeUpVectors:
    """Has a random vector of length 1 for every text.

    Args:
        dimensions: The length of the vectors of real texts.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._draw = np.random.default_rng(0)

    async def kept(self, texts: Sequence[str]) -> list[Float32Array | None]:
        """Return a vector for each text."""
        rows = self._draw.normal(size=(len(texts), self.dimensions)).astype(np.float32)
        return [*(rows / np.linalg.norm(rows, axis=1, keepdims=True))]


async def warm_up(order: IndexOrder, window: int) -> None:
    """Make lists of both kinds, by ranks and by vectors; nothing of them is kept or counted.

    Args:
        order: Finds the fair order of the index.
        window: How many hits a list has.
    """
    search = ProxiedSearch(
        index="",
        line=0,
        body={},
        start=0,
        size=SIZE,
        window=window,
        words=WORDS,
        key="",
        fair=False,
    )
    alone = replace(order, learnt=None, afterwards=None, kept=kept_lists())
    by_ranks = replace(alone, evidence=ListEvidence())
    kinds = [(by_ranks, _reply(order, window, text=""))]
    if is_pulled(MiniLmEncoder.name):
        vectors = (await order.evidence.opened()).vectors
        await vectors.kept([WORDS])
        made_up: Any = _MadeUpVectors(vectors.dimensions)
        by_vectors = replace(alone, evidence=ListEvidence(vectors=made_up))
        kinds.append((by_vectors, _reply(order, window, text=WORDS)))

    try:
        for order_of_kind, reply in kinds * LISTS:
            order_of_kind.kept.clear()
            await reranked(order_of_kind, [search], reply, time.monotonic() + PATIENT)
    except MemoryError:
        raise
    except Exception as error:  # what fails now may fail later, and is said then
        log.info("Lists of made-up hits failed: %r", error)


def _reply(order: IndexOrder, window: int, text: str) -> str:
    """Return a reply with a whole window of made-up hits, whose groups take turns."""
    id_field = getattr(order.source, "id", "_id")
    texts = dict.fromkeys(getattr(order.source, "text", ()), text)
    attributes = order.engine.schema.attributes.values()
    labelled = [attribute for attribute in attributes if attribute.field]
    hits: list[dict[str, Any]] = []
    for position in range(window):
        id_ = str(position)
        fields: dict[str, list[str | float]] = {id_field: [id_]}
        for attribute in labelled:
            fields[attribute.field] = [_value(attribute, position)]
        hits.append({"_index": "", "_id": id_, "_source": texts, "fields": fields})
    reply = {"timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": hits}}
    return json.dumps(reply)


def _value(attribute: Attribute, position: int) -> str | float:
    """Return a value of one of the groups; if each value is one, any."""
    if attribute.open:
        return str(position // 2)
    group = attribute.groups[position % len(attribute.groups)]
    values = attribute.values.get(group, (group,))
    if not isinstance(values, Range):
        return values[0]
    return _within(values)


def _within(values: Range) -> float:
    """Return a number in a range."""
    lower = values.gte if values.gt is None else values.gt + 1
    upper = values.lte if values.lt is None else values.lt - 1
    bounds = [bound for bound in (lower, upper) if bound is not None]
    return sum(bounds) / len(bounds)
