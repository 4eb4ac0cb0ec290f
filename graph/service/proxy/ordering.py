"""Re-ranks the hits in a cluster's reply; it runs in a process of its own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
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
from fairqr.graph.service.proxy.requests import (
    NO_FIELDS,
    LabelFields,
    ProxiedSearch,
    UnavailableError,
    windows_in,
    with_page,
)
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.elasticsearch.engine import ElasticsearchEngine
from fairqr.retrieval.engines.elasticsearch.hit_reader import reader_of
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
from fairqr.retrieval.rerankers.base import MANY_ABSENT, OTHERS
from fairqr.retrieval.sources.documents import value_at

Record = dict[str, Any]
"""What the log and the metrics say of a list."""

Outcome = Record | str
"""What became of a search: the record of its list, or in a word why it has none."""

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
        if not _have_ids(hits):
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
        if not _have_ids(hits):
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
        """Return an order in which so many of the first documents stay where they are."""
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
        window = len(record["ids"])
        if counted > window:
            first_page = documents[:counted]
            if not _have_ids(first_page):
                raise UnavailableError("ids")
            labels, members = await self._labels(first_page, dimensions)
            record = {
                **record,
                "ids": [hit["_id"] for hit in first_page],
                "order": [*record["order"], *range(window, counted)],
                "groups": self._groups(labels),
            }

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

    def _swap(self, search: ProxiedSearch) -> Record | None:
        """Return what chance decides about swapping two ranks; None where it decides nothing."""
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
        """Return the shares in several lists; of many groups, those that no list has are one.

        So are those of an open attribute, however few, as other lists have others.
        """
        open_attributes = {dimension.name for dimension in self._dimensions if dimension.is_open}
        readable: dict[str, Shares] = {name: {} for name in lists}
        for attribute, target in lists["target"].items():
            of_lists = {name: shares[attribute] for name, shares in lists.items()}
            is_open = attribute in open_attributes
            named = [*target]
            if is_open or len(named) >= MANY_ABSENT:
                named = _groups_shown(of_lists)
            has_others = is_open or len(named) < len(target)
            for name, shares in of_lists.items():
                of_named = {group: shares[group] for group in named}
                if has_others:
                    of_named[OTHERS] = sum(shares.values()) - sum(of_named.values())
                readable[name][attribute] = of_named
        return readable

    @property
    def label_fields(self) -> LabelFields:
        """What is to be asked for with each window, so that labels and ids are known."""
        reader = reader_of(self.engine)
        if reader is None:
            return NO_FIELDS
        request = reader.request
        return LabelFields(tuple(request["docvalue_fields"]), tuple(request["fields"]))

    def _documents_of(self, hits: Sequence[Any]) -> list[Given]:
        """Return hits as documents that somebody else retrieved.

        Raises:
            UnavailableError: There are none.
        """
        if not hits:
            raise UnavailableError("empty")
        # A window that was asked for before the index was open came without them.
        with_labels = any("fields" in hit for hit in hits)
        return [self._document_of(position, hit, with_labels) for position, hit in enumerate(hits)]

    def _document_of(self, position: int, hit: Any, with_labels: bool) -> Given:
        value = partial(value_at, hit.get("_source") or {})
        reader = reader_of(self.engine)
        if reader is not None:
            id_ = "" if with_labels else reader.id_of(hit)  # by which labels are looked up
            labels = {name: values[0] for name, values in reader.values([hit]).items()}
        else:
            id_ = hit["_id"]
            labels = {
                name: value(attribute.field)
                for name, attribute in self.engine.schema.attributes.items()
                if attribute.field
            }

        title_field = getattr(self.source, "title", None)
        title = value(title_field) if title_field else None
        texts = [title, *map(value, getattr(self.source, "text", ()))]
        return Given(
            place=position,
            id=id_,
            text="\n".join(text for text in texts if isinstance(text, str)),
            title=title if isinstance(title, str) else "",
            label=lambda attribute: labels.get(attribute.name),
        )

    def _groups(self, memberships: Memberships) -> dict[str, list[Any]]:
        """Return the group of each document, by attribute."""
        return groups_of(self.engine.schema, memberships)


def _have_ids(hits: Sequence[Any]) -> bool:
    """Return whether each hit has its id, without which it cannot be found again."""
    return all("_id" in hit for hit in hits)


def _kept_under(search: ProxiedSearch, hits: Sequence[Any]) -> tuple[str, ...]:
    """Return what a list is kept under: what was searched for, and what was found."""
    # A client may leave the texts out, and the next one may not.
    has_texts = any(hit.get("_source") for hit in hits)
    return (search.key, str(has_texts), *(hit["_id"] for hit in hits))


def _groups_shown(of_lists: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the groups that some list shows, in the order of the target.

    Args:
        of_lists: The shares of the groups, by list; ``target`` is the target and no list.
    """
    shown = [shares for name, shares in of_lists.items() if name != "target"]
    return [group for group in of_lists["target"] if any(shares[group] for shares in shown)]


def tossed(key: str, share: float, ranks: int) -> Record | None:
    """Toss a coin whether the first rank is swapped with another one, for a share of the queries.

    A query keeps what it got for a day, so that pages and reloads show one list.

    Args:
        key: Stands for the query.
        share: The share of queries for which the coin is tossed.
        ranks: Ranks below this are not swapped.

    Returns:
        The ``rank``, and whether it ``is_swapped``; None if no coin is tossed.
    """
    if ranks < 2:
        return None
    day = datetime.now(UTC).date()
    chance = hashlib.sha256(f"swap {key} {day}".encode()).digest()
    if int.from_bytes(chance[:8]) / 2**64 >= share:
        return None
    rank = 2 + int.from_bytes(chance[8:16]) % (ranks - 1)
    return {"rank": rank, "is_swapped": chance[16] % 2 == 1}


def order_shown(record: Record) -> list[int]:
    """Return the fair order of a list as it was shown: chance may have swapped two ranks."""
    order = [*record["order"]]
    swap = record.get("swap")
    if swap and swap["is_swapped"]:
        last = swap["rank"] - 1
        order[0], order[last] = order[last], order[0]
    return order


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
    ids = (hit["_id"] for hit in hits)
    return len([*takewhile(search.pinned.__contains__, ids)])


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
    deficit = AmortisedDeficit(settings.folder / index.amortised) if index.amortised else None
    engine = await open_source(source)
    names = frozenset([name])
    if isinstance(lexical := lexical_of(engine), ElasticsearchEngine):
        with suppress(FairqrError):  # the account may not see aliases
            names |= await lexical.names()
    return IndexOrder(
        source, engine, context, evidence, deficit, learnt, afterwards, names, swap=index.swap
    )


async def reranked(
    order: IndexOrder, searches: Sequence[ProxiedSearch], reply: str, until: float
) -> tuple[list[Outcome], str]:
    """Re-rank searches of a reply; return what was done to each, or why nothing, and the reply.

    Args:
        order: Finds the fair order.
        searches: Those of its index that can be re-ranked.
        reply: The cluster's reply to whole windows.
        until: How long somebody waits for it, by the monotonic clock.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    outcomes: list[Outcome] = []
    windows = windows_in(reply, searches)
    pairs = [*zip(searches, windows, strict=True)]
    # From the last one on, so that what comes before stays where it is in the reply.
    for search, window in reversed(pairs):
        positions: list[int] = []
        try:
            if window.is_partial:
                raise UnavailableError("partial")
            documents = [hit for *_, hit in window.hits]
            record = await order(documents, search, until)
            outcomes.append(record)
            if search.fair:
                positions = order_shown(record)
        except UnavailableError as error:
            outcomes.append(str(error))
        reply = with_page(reply, search, window.hits, positions)
    return outcomes[::-1], reply


def as_asked(searches: Sequence[ProxiedSearch], reply: str) -> str:
    """Cut the pages of searches from whole windows, in the cluster's own order.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    pairs = [*zip(searches, windows_in(reply, searches), strict=True)]
    for search, window in reversed(pairs):
        reply = with_page(reply, search, window.hits, [])
    return reply
