"""Re-ranks the hits in a cluster's reply; it runs in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fairqr.base.errors import InputError, SourceError
from fairqr.base.weights import is_pulled
from fairqr.graph.integrations.amortised import AmortisedDeficit
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.integrations.learnt import AskAfterwards, LearntWords
from fairqr.graph.integrations.order import Evidence, Given, fair_list
from fairqr.graph.search.context import Context
from fairqr.graph.service.proxy.requests import (
    NO_FIELDS,
    LabelFields,
    Search,
    UnavailableError,
    hits_in,
    with_page,
)
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.elasticsearch.mapping import reader_of
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.schema import Attribute

Told = dict[str, Any]

KEPT, SECONDS_KEPT = 1_000, 300.0
"""How many fair lists we keep, and for how long: all pages are cut from one."""


@dataclass
class IndexOrder:
    """Finds the fair order of the hits of one index.

    Attributes:
        source: The source, which says where texts and ids are.
        engine: The source, opened.
        context: What to aim at.
        evidence: Tells which hits are relevant.
        deficit: The amortised deficits of groups, if they count.
        learnt: Knows what a model said about queries before, if one is named.
        afterwards: Asks it about queries that it knows nothing of, if that is wished.
        kept: When fair lists were made, and the lists, by query and hits.
    """

    source: Any
    engine: SearchEngine
    context: Context
    evidence: ListEvidence
    deficit: AmortisedDeficit | None
    learnt: LearntWords | None = None
    afterwards: AskAfterwards | None = None
    kept: dict[tuple[str, ...], tuple[float, Told]] = field(default_factory=dict)

    async def __call__(self, documents: Sequence[Any], search: Search, until: float) -> Told:
        """Return the fair order of the hits of a whole window, and what it gains.

        Raises:
            UnavailableError: There is nothing to re-rank by.
        """
        hits, first = documents[: search.window], search.fair and search.start == 0
        if not all("_id" in hit for hit in hits):
            raise UnavailableError("ids")
        # A client may leave the texts out, and the next one may not.
        has_texts = any(hit.get("_source") for hit in hits)
        key = (search.key, str(has_texts), *(hit["_id"] for hit in hits))
        since, told = self.kept.pop(key, (0.0, None))
        if told is None or time.monotonic() - since > SECONDS_KEPT or (self.deficit and first):
            since, told = time.monotonic(), await self._told(hits, search.words)
        self.kept[key] = since, told
        if len(self.kept) > KEPT:
            del self.kept[next(iter(self.kept))]
        if self.deficit and first and time.monotonic() < until:  # later it is not shown
            self.deficit.add(told["exposure"]["target"], told["exposure"]["fair"])
        return told

    async def _told(self, hits: Sequence[Any], words: str) -> Told:
        if not hits:
            raise UnavailableError("empty")
        try:
            found, listed, _ = await fair_list(
                self.engine,
                self.context,
                words,
                [self._given(place, hit) for place, hit in enumerate(hits)],
                Evidence(self.evidence, self.learnt, later=True),
                deficit=self.deficit.by_group if self.deficit else None,
            )
        except SourceError:  # of a hit without its id
            raise UnavailableError("ids") from None
        except InputError:
            raise UnavailableError("labels") from None
        if self.afterwards and not found.words_of:
            self.afterwards.add(self.engine, self.context, words)
        lists = {"engine": found.before, "fair": found.after}
        exposure = {name: it.exposure for name, it in lists.items()}
        return {
            "by": "ranks" if listed.relevance is None else "vectors",
            "model": found.words_of,
            "exposure": {**exposure, "target": found.target},
            "quality": {name: [it.relevance, it.fairness] for name, it in lists.items()},
            "ids": [hit["_id"] for hit in hits],
            "order": found.positions,
            "groups": {
                name: [_named(self.engine.schema.attribute(name), row) for row in rows.tolist()]
                for name, rows in listed.memberships.items()
            },
        }

    @property
    def label_fields(self) -> LabelFields:
        """What is to be asked for with each window, so that labels and ids are known."""
        reader = reader_of(self.engine)
        if reader is None:
            return NO_FIELDS
        asked = reader.request
        return LabelFields(tuple(asked["docvalue_fields"]), tuple(asked["fields"]))

    def _given(self, place: int, hit: Any) -> Given:
        values = partial(value_at, hit.get("_source") or {})
        title = getattr(self.source, "title", None)
        reader = reader_of(self.engine)
        if reader is not None:
            id_ = reader.id_of(hit)
            labels = {name: own[0] for name, own in reader.values([hit]).items()}
        else:
            id_ = hit["_id"]
            labels = {
                name: values(it.field)
                for name, it in self.engine.schema.attributes.items()
                if it.field
            }
        named = values(title) if title else None
        texts = [named, *map(values, getattr(self.source, "text", ()))]
        text = "\n".join(it for it in texts if isinstance(it, str))
        return Given(
            place=place,
            id=id_,
            text=text,
            title=named if isinstance(named, str) else "",
            label=lambda it: labels.get(it.name),
        )


def _named(attribute: Attribute, row: Sequence[float]) -> str | dict[str, float] | None:
    """Return a document's group, the shares of several, or None if it has none."""
    shares = {group: share for group, share in zip(attribute.universe, row, strict=True) if share}
    return next(iter(shares)) if [*shares.values()] == [1.0] else shares or None


async def opened(settings: ProxySettings) -> dict[str, IndexOrder]:
    """Open the sources of all indexes, by the names that clients use.

    Raises:
        FairqrError: One cannot be opened.
    """
    evidence, found = ListEvidence(), {}
    if is_pulled(MiniLmEncoder.name):
        await evidence.opened()  # not within a search
    learnt = settings.learnt_words()
    afterwards = None
    if learnt is not None and settings.ask == "afterwards":
        afterwards = AskAfterwards(learnt)
    for name, index in settings.indexes.items():
        source, context = index.opened(settings.folder)
        deficit = AmortisedDeficit(settings.folder / index.amortised) if index.amortised else None
        engine = await open_source(source)
        found[name] = IndexOrder(source, engine, context, evidence, deficit, learnt, afterwards)
    return found


async def reranked(
    orders: Mapping[str, IndexOrder], searches: Sequence[Search], reply: bytes, until: float
) -> tuple[list[Told | str], bytes]:
    """Re-rank the searches of a reply; return what was done to each, or why nothing, and the reply.

    Args:
        orders: By index.
        searches: Those that can be re-ranked.
        reply: The cluster's reply to whole windows.
        until: How long somebody waits for it, by the monotonic clock.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    text, outcomes = reply.decode(), list[Told | str]()
    pairs = [*zip(searches, hits_in(text, searches), strict=True)]
    for search, hits in reversed(pairs):  # so that what comes before stays in its place
        order = list[int]()
        try:
            told = await orders[search.index]([hit for *_, hit in hits], search, until)
            outcomes.insert(0, told)
            order = told["order"] if search.fair else []
        except UnavailableError as error:
            outcomes.insert(0, str(error))
        text = with_page(text, search, hits, order)
    return outcomes, text.encode()
