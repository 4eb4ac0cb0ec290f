"""Re-ranks the hits in a cluster's reply; it runs in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairqr.base.errors import InputError
from fairqr.base.weights import is_pulled
from fairqr.graph.doors.evidence import ListEvidence
from fairqr.graph.doors.labels import Labels
from fairqr.graph.doors.memory import Ledger
from fairqr.graph.doors.order import fair_order
from fairqr.graph.search.context import Context, checked_context
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Hits, SearchEngine
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.schema import Attribute
from fairqr.retrieval.sources.source import load_source


class NotRerankedError(Exception):
    """The hits stay as they are; the text is one word that says why."""


class IndexOrder:
    """Re-ranks the hits of one index.

    Args:
        source: The source, which says where labels and texts are.
        engine: Looks up the labels that hits do not bring.
        context: What to aim at.
        evidence: Tells which hits are relevant.
        ledger: What groups are owed, if that counts.
    """

    def __init__(
        self,
        source: Any,
        engine: SearchEngine,
        context: Context,
        evidence: ListEvidence,
        ledger: Ledger | None,
    ) -> None:
        self.source, self.engine, self.context, self.evidence = source, engine, context, evidence
        self.ledger = ledger
        self.labels = Labels(engine, context, strict=False)

    async def __call__(self, reply: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Put the hits of a reply into their fair order and cut its page; return what was done.

        Args:
            reply: The cluster's reply to the whole window, which is changed.
            asked: ``start``, ``size``, ``window``, ``words`` as a plan has them.

        Raises:
            NotRerankedError: There is nothing to re-rank by.
        """
        every = reply["hits"]["hits"]
        hits, context = every[: asked["window"]], self.context
        if not hits:
            raise NotRerankedError("empty")
        attributes = self.labels.attributes
        own = {name: [_label(it, hit) for hit in hits] for name, it in attributes.items()}
        try:
            members = await self.labels.of([self._id(hit) for hit in hits], own)
        except InputError:
            raise NotRerankedError("labels") from None
        ranks = [1 / rank for rank in range(1, len(hits) + 1)]
        listed = Hits([*map(str, range(len(hits)))], ranks, members)
        texts = [self._text(hit) for hit in hits]
        listed = await self.evidence.known(asked["words"], texts, listed)
        context = context.model_copy(update={"k": min(context.k, len(hits))})
        owed = self.ledger.owed if self.ledger else None
        found = fair_order(self.engine.schema, context, listed, owed)
        if self.ledger and asked["fair"] and not asked["start"]:
            self.ledger.add(found.target, found.after.exposure)
        order = [hits[place] for place in found.positions] + every[len(hits) :]
        reply["hits"]["hits"] = order[asked["start"] : asked["start"] + asked["size"]]
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

    def _id(self, hit: Mapping[str, Any]) -> str:
        own = getattr(self.source, "id", "_id")
        return str(hit["_id"] if own == "_id" else value_at(hit.get("_source") or {}, own))

    def _text(self, hit: Mapping[str, Any]) -> str:
        named = [self.source.title or "", *self.source.text]
        texts = (value_at(hit.get("_source") or {}, name) for name in named if name)
        return "\n".join(text for text in texts if isinstance(text, str))


def _named(attribute: Attribute, row: Sequence[float]) -> str | dict[str, float] | None:
    """Return a document's group, the shares of several, or None if it has none."""
    shares = {group: share for group, share in zip(attribute.universe, row, strict=True) if share}
    return next(iter(shares)) if [*shares.values()] == [1.0] else shares or None


def _label(attribute: Attribute, hit: Mapping[str, Any]) -> object:
    return value_at(hit.get("_source") or {}, attribute.field) if attribute.field else None


async def opened(settings: ProxySettings) -> dict[str, IndexOrder]:
    """Open the sources of all indexes, by the names that clients use.

    Raises:
        FairqrError: One cannot be opened.
    """
    evidence, found = ListEvidence(), {}
    if is_pulled(MiniLmEncoder.name):
        await evidence.opened()  # not within a search
    for name, index in settings.indexes.items():
        source = load_source(settings.folder / index.source)
        context = checked_context(Context, index.parameters)
        ledger = Ledger(settings.folder / index.memory) if index.memory else None
        engine = await open_source(source)
        found[name] = IndexOrder(source, engine, context, evidence, ledger)
    return found
