"""Finds the fair order of the hits of an index; it runs in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from fairqr.base.errors import FairqrError, InputError, SourceError
from fairqr.base.kept import Kept
from fairqr.base.weights import is_pulled
from fairqr.graph.integrations.amortised import AmortisedDeficit
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.integrations.learnt import AskAfterwards, LearntWords
from fairqr.graph.integrations.logged import fair_list_told, groups_of
from fairqr.graph.integrations.order import (
    Evidence,
    Given,
    OrderedList,
    aimed_at,
    fair_list,
    labels_of,
    listed_hits,
)
from fairqr.graph.search.context import Context
from fairqr.graph.search.pages import PAGED_SECONDS
from fairqr.graph.search.result import Shares
from fairqr.graph.search.target import by_group
from fairqr.graph.service.proxy.hit_documents import documents_of, have_ids
from fairqr.graph.service.proxy.records import Record, readable_shares
from fairqr.graph.service.proxy.requests import ProxiedSearch, UnavailableError
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.graph.service.proxy.swaps import order_shown, tossed
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.engine import (
    Hits,
    Memberships,
    SearchEngine,
    lexical_of,
)
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.fairness.dimension import Dimension, dimensions_of
from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.fairness.table import DocumentTable

KEPT_LISTS = 1_000
"""How many fair lists we keep."""


@dataclass
class KeptList:
    """A fair list, from which all pages of a query are cut.

    Attributes:
        record: What the log and the metrics say of the list, but for what depends on the page.
        ordered: Its order, and the groups of its documents.
    """

    record: Record
    ordered: OrderedList


def kept_lists() -> Kept[tuple[str, ...], KeptList]:
    """Return room for fair lists by query and hits."""
    return Kept(KEPT_LISTS, PAGED_SECONDS)


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
        names: The names by which its documents are searched.
        swap: The share of queries in which chance may swap two ranks.
        kept: Fair lists by query and hits.
    """

    source: Any
    engine: SearchEngine
    context: Context
    evidence: ListEvidence
    deficit: AmortisedDeficit | None
    learnt: LearntWords | None = None
    afterwards: AskAfterwards | None = None
    names: frozenset[str] = frozenset()
    swap: float = 0.0
    kept: Kept[tuple[str, ...], KeptList] = field(default_factory=kept_lists)

    async def __call__(
        self, documents: Sequence[Any], search: ProxiedSearch, until: float
    ) -> Record:
        """Return the fair order of the hits of a whole window, and what it gains.

        Raises:
            UnavailableError: There is nothing to re-rank by, or it is too late.
        """
        if time.monotonic() > until:
            raise UnavailableError("slow")
        hits = documents[: search.window]
        if not have_ids(hits):
            raise UnavailableError("ids")

        # Deficits count what is shown, once for each search: by its first page.
        counts_deficits = self.deficit is not None and search.fair and search.start == 0
        key = _kept_under(search, hits)
        kept_list = self.kept.get(key)
        if kept_list is None or counts_deficits:
            kept_list = await self._new_list(hits, search)
            self.kept.add(key, kept_list)
        is_in_time = time.monotonic() < until  # later it is not shown
        if self.deficit is not None and counts_deficits and is_in_time:
            ordered = kept_list.ordered
            self.deficit.add(ordered.target, ordered.after.exposure)
        return await self._record_of_page(kept_list, documents, search)

    async def measured(self, hits: Sequence[Any]) -> Record:
        """Return the exposure in a first page that was shown as it came, and the target.

        Raises:
            UnavailableError: Nothing is known of these hits.
        """
        if not have_ids(hits):
            raise UnavailableError("ids")
        lexical = lexical_of(self.engine)
        if isinstance(lexical, ElasticsearchEngine):
            hits = await lexical.labelled(hits)
        with _reasons_of_errors():
            listed, _ = await listed_hits(self.engine, self.context, self._documents_of(hits))
            aimed = aimed_at(self.engine.schema, self.context, listed)

        first_k = range(len(hits))[: self.context.k]
        shown = self._exposure(aimed.dimensions, aimed.members, first_k)
        shares = {"target": aimed.target, "shown": shown, "engine": shown}
        return {
            **self._counting,
            "page": len(hits),
            "exposure": self._readable(shares),
            "ids": [hit["_id"] for hit in hits],
            "groups": self._groups(listed.memberships),
        }

    async def _new_list(self, hits: Sequence[Any], search: ProxiedSearch) -> KeptList:
        ordered, listed = await self._fair_list(hits, search.words)
        if self.afterwards and not ordered.words_of:
            self.afterwards.add(self.engine, self.context, search.words)
        pinned = _pinned_first(hits, search)
        if pinned:
            ordered = self._behind(ordered, pinned)

        ids = [hit["_id"] for hit in hits]
        record = fair_list_told(ordered, listed, self._groups(listed.memberships), ids)
        if pinned:  # quality, bound and limits were of the fair list, which had another order
            record |= {"quality": {}, "bound": None, "below_best": None, "broken": []}
        return KeptList(record, ordered)

    def _behind(self, ordered: OrderedList, pinned: int) -> OrderedList:
        """Return an order in which the pinned documents, which come first, stay where they are."""
        behind = [position for position in ordered.positions if position >= pinned]
        positions = [*range(pinned), *behind]
        first_k = positions[: self.context.k]
        shown = self._exposure(ordered.dimensions, ordered.members, first_k)
        after = ordered.after.model_copy(update={"exposure": shown})
        return ordered._replace(positions=positions, after=after)

    async def _fair_list(self, hits: Sequence[Any], words: str) -> tuple[OrderedList, Hits]:
        """Return the fair order of hits, and the list as it came."""
        deficit = self.deficit.by_group if self.deficit else None
        documents = self._documents_of(hits)
        evidence = Evidence(self.evidence, self.learnt)
        with _reasons_of_errors():
            ordered, listed, _ = await fair_list(
                self.engine, self.context, words, documents, evidence, deficit=deficit
            )
        return ordered, listed

    async def _record_of_page(
        self, kept_list: KeptList, documents: Sequence[Any], search: ProxiedSearch
    ) -> Record:
        """Return the record of a list, with the exposure in the first page of each order.

        The first k ranks count, or as many as the page has. Of these, some may lie below the
        window.
        """
        page = min(search.size, len(documents))
        counted = min(self.context.k, page)
        dimensions = kept_list.ordered.dimensions
        members = kept_list.ordered.members
        record = kept_list.record
        if counted > len(record["ids"]):
            first_page = documents[:counted]
            record, members = await self._extended(record, first_page, dimensions)

        engine = self._exposure(dimensions, members, range(counted))
        fair = self._exposure(dimensions, members, record["order"][:counted])
        shares = {"engine": engine, "fair": fair, "target": kept_list.ordered.target}
        shares["shown"] = fair if search.fair else engine
        swap = self._swap(search)
        if swap is not None and swap["rank"] <= counted:
            record = {**record, "swap": swap}
            shown = order_shown(record)[:counted]
            shares["shown"] = self._exposure(dimensions, members, shown)
        return {**record, **self._counting, "page": page, "exposure": self._readable(shares)}

    async def _extended(
        self, record: Record, first_page: Sequence[Any], dimensions: Sequence[Dimension]
    ) -> tuple[Record, Memberships]:
        """Return a record with hits below the window, and the groups of the first page.

        Raises:
            UnavailableError: A hit has no id.
        """
        if not have_ids(first_page):
            raise UnavailableError("ids")
        labels, members = await self._labels(first_page, dimensions)
        below = range(len(record["ids"]), len(first_page))
        extended = {
            **record,
            "ids": [hit["_id"] for hit in first_page],
            "order": [*record["order"], *below],
            "groups": self._groups(labels),
        }
        return extended, members

    def _swap(self, search: ProxiedSearch) -> Record | None:
        """Return whether chance swaps two ranks of a search; None if it may not."""
        is_first_page = search.start == 0
        if search.fair and is_first_page and not search.pinned:
            return tossed(search.key, self.swap, self.context.k)
        return None

    async def _labels(
        self, hits: Sequence[Any], dimensions: Sequence[Dimension]
    ) -> tuple[Memberships, Memberships]:
        """Return the groups of hits by attribute, and those that exposure is measured over."""
        labelled = await labels_of(self.engine, self.context, self._documents_of(hits))
        ids = [str(position) for position in range(len(hits))]
        table = DocumentTable()
        table.add(ids, labelled.members)
        members = {dimension.name: table.memberships(dimension, ids) for dimension in dimensions}
        return labelled.members, members

    @property
    def _counting(self) -> Record:
        """How many ranks count, and how much each."""
        return {"k": self.context.k, "discount": str(self.context.discount)}

    @property
    def _dimensions(self) -> list[Dimension]:
        """What exposure is measured over: attributes, or the product of all."""
        context = self.context
        return dimensions_of(self.engine.schema, context.attributes, intersect=context.intersect)

    def _exposure(
        self, dimensions: Sequence[Dimension], members: Memberships, positions: Sequence[int]
    ) -> Shares:
        """Return the exposure of each group in a page with the documents at these positions."""
        shares = {}
        for dimension in dimensions:
            of_page = members[dimension.name][[*positions]]
            shares[dimension.name] = by_group(dimension, exposure(of_page, self.context.discount))
        return shares

    def _readable(self, lists: Mapping[str, Shares]) -> dict[str, Shares]:
        """Return the shares in several lists, as they are recorded."""
        open_attributes = {dimension.name for dimension in self._dimensions if dimension.is_open}
        return readable_shares(lists, open_attributes)

    def _documents_of(self, hits: Sequence[Any]) -> list[Given]:
        """Return hits as documents that somebody else retrieved.

        Raises:
            UnavailableError: There are none.
        """
        return documents_of(self.source, self.engine, hits)

    def _groups(self, memberships: Memberships) -> dict[str, list[Any]]:
        """Return the group of each document, by attribute."""
        return groups_of(self.engine.schema, memberships)


def _kept_under(search: ProxiedSearch, hits: Sequence[Any]) -> tuple[str, ...]:
    """Return what a list is kept under: what was searched for, and what was found."""
    # A client may leave the texts out, and the next one may not.
    has_texts = any(hit.get("_source") for hit in hits)
    return (search.key, str(has_texts), *(hit["_id"] for hit in hits))


@contextmanager
def _reasons_of_errors() -> Iterator[None]:
    """Raise an UnavailableError with its reason where a list has no fair order, and no target."""
    try:
        yield
    except SourceError:  # of a hit without its id
        raise UnavailableError("ids") from None
    except InputError:
        raise UnavailableError("labels") from None


def _pinned_first(hits: Sequence[Any], search: ProxiedSearch) -> int:
    """Return how many of the first hits a client has pinned."""
    ids = [hit["_id"] for hit in hits]
    pinned_ids = takewhile(search.pinned.__contains__, ids)
    return len([*pinned_ids])


async def opened(
    settings: ProxySettings, name: str, encode_later: Callable[[list[str]], None]
) -> IndexOrder:
    """Open the source of an index.

    Args:
        settings: The settings of the proxy.
        name: The index, as clients name it.
        encode_later: Takes the texts that have no vectors yet.

    Raises:
        FairqrError: It cannot be opened.
    """
    evidence = ListEvidence(encode_later)
    if is_pulled(MiniLmEncoder.name):
        await evidence.opened()  # not within a search
    learnt = settings.learnt_words()
    afterwards = None
    if learnt is not None and settings.ask == "afterwards":
        afterwards = AskAfterwards(learnt)

    index = settings.indexes[name]
    source, context = index.open(settings.folder)
    deficit = None
    if index.amortised:
        deficit = AmortisedDeficit(settings.folder / index.amortised)

    engine = await open_source(source)
    names = frozenset([name])
    lexical = lexical_of(engine)
    if isinstance(lexical, ElasticsearchEngine):
        with suppress(FairqrError):  # the account may not see aliases
            names |= await lexical.names()
    return IndexOrder(
        source, engine, context, evidence, deficit, learnt, afterwards, names, swap=index.swap
    )
