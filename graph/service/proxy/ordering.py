"""Re-ranks the hits in a cluster's reply; it runs in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairqr.base.errors import InputError
from fairqr.base.weights import is_pulled
from fairqr.graph.doors.evidence import ListEvidence
from fairqr.graph.doors.labels import Labels
from fairqr.graph.doors.memory import Ledger
from fairqr.graph.doors.order import fair_order
from fairqr.graph.search.context import Context
from fairqr.graph.service.proxy.requests import Search, UnavailableError, hits_in, with_page
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.schema import Attribute, Schema

Told = dict[str, Any]

KEPT, SECONDS_KEPT = 1_000, 300.0
"""How many fair lists we keep, and for how long: all pages are cut from one."""


@dataclass(frozen=True, slots=True)
class IndexOrder:
    """Finds the fair order of the hits of one index.

    Attributes:
        source: The source, which says where texts are.
        schema: Its attributes.
        labels: Finds the groups of hits.
        context: What to aim at.
        evidence: Tells which hits are relevant.
        ledger: What groups are owed, if that counts.
        kept: When fair lists were made, and the lists, by query and hits.
    """

    source: Any
    schema: Schema
    labels: Labels
    context: Context
    evidence: ListEvidence
    ledger: Ledger | None
    kept: dict[tuple[str, ...], tuple[float, Told]] = field(default_factory=dict)

    async def __call__(self, documents: Sequence[Any], search: Search) -> Told:
        """Return the fair order of the hits of a whole window, and what it gains.

        Raises:
            UnavailableError: There is nothing to re-rank by.
        """
        hits, first = documents[: search.plan.window], search.fair and search.plan.start == 0
        if not all("_id" in hit for hit in hits):
            raise UnavailableError("ids")
        key = (search.plan.key, *(hit["_id"] for hit in hits))
        since, told = self.kept.pop(key, (0.0, None))
        if told is None or time.monotonic() - since > SECONDS_KEPT or (self.ledger and first):
            since, told = time.monotonic(), await self._told(hits, search.plan.words)
        self.kept[key] = since, told
        if len(self.kept) > KEPT:
            del self.kept[next(iter(self.kept))]
        if self.ledger and first:
            self.ledger.add(told["target"], told["exposure"])
        return told

    async def _told(self, hits: Sequence[Any], words: str) -> Told:
        if not hits:
            raise UnavailableError("empty")
        attributes = self.labels.attributes
        own = {name: [_field(hit, it.field) for hit in hits] for name, it in attributes.items()}
        try:
            members, _ = await self.labels.of([self._id(hit) for hit in hits], own)
        except InputError:
            raise UnavailableError("labels") from None
        ranks = [1 / rank for rank in range(1, len(hits) + 1)]
        listed = Hits([*map(str, range(len(hits)))], ranks, members)
        listed = await self.evidence.known(words, [self._text(hit) for hit in hits], listed)
        owed = self.ledger.owed if self.ledger else None
        found = fair_order(self.schema, self.context, listed, owed)
        return {
            "by": "ranks" if listed.relevance is None else "vectors",
            "before": [found.before.value, found.before.relevance, found.before.fairness],
            "after": [found.after.value, found.after.relevance, found.after.fairness],
            "shown": found.before.exposure,
            "exposure": found.after.exposure,
            "target": found.target,
            "ids": [hit["_id"] for hit in hits],
            "order": found.positions,
            "groups": {
                name: [_named(attributes[name], row) for row in rows.tolist()]
                for name, rows in members.items()
            },
        }

    def _id(self, hit: Any) -> str:
        own = getattr(self.source, "id", "_id")
        return str(hit["_id"] if own == "_id" else _field(hit, own))

    def _text(self, hit: Any) -> str:
        names = [getattr(self.source, "title", None), *getattr(self.source, "text", ())]
        texts = (_field(hit, name) for name in names)
        return "\n".join(text for text in texts if isinstance(text, str))


def _named(attribute: Attribute, row: Sequence[float]) -> str | dict[str, float] | None:
    """Return a document's group, the shares of several, or None if it has none."""
    shares = {group: share for group, share in zip(attribute.universe, row, strict=True) if share}
    return next(iter(shares)) if [*shares.values()] == [1.0] else shares or None


def _field(hit: Any, name: str | None) -> Any:
    return value_at(hit.get("_source") or {}, name) if name else None


async def opened(settings: ProxySettings) -> dict[str, IndexOrder]:
    """Open the sources of all indexes, by the names that clients use.

    Raises:
        FairqrError: One cannot be opened.
    """
    evidence, found = ListEvidence(), {}
    if is_pulled(MiniLmEncoder.name):
        await evidence.opened()  # not within a search
    for name, index in settings.indexes.items():
        source, context = index.opened(settings.folder)
        ledger = Ledger(settings.folder / index.memory) if index.memory else None
        labels = Labels(await open_source(source), context, strict=False)
        schema = Schema(attributes=source.attributes)
        found[name] = IndexOrder(source, schema, labels, context, evidence, ledger)
    return found


async def reranked(
    orders: Mapping[str, IndexOrder], searches: Sequence[Search], reply: bytes
) -> tuple[list[Told | str], bytes]:
    """Re-rank the searches of a reply; return what was done to each, or why nothing, and the reply.

    Args:
        orders: By index.
        searches: In the order of the reply.
        reply: The cluster's reply to whole windows.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    text, outcomes = reply.decode(), list[Told | str]()
    for search in searches:
        hits, order = hits_in(text, search), list[int]()
        try:
            told = await orders[search.index]([hit for *_, hit in hits], search)
            outcomes.append(told)
            order = told["order"]
        except UnavailableError as error:
            outcomes.append(str(error))
        text = with_page(text, search, hits, order)
    return outcomes, text.encode()
