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

Told = dict[str, Any]

KEPT_LISTS = 1_000
"""How many fair lists we keep."""


@dataclass
class KeptList:
    """A fair list, from which all pages of a query are cut.

    Attributes:
        told: What became of the list.
        found: Its order, and the groups of its documents.
    """

    told: Told
    found: OrderedList


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

    async def __call__(self, documents: Sequence[Any], search: ProxiedSearch, until: float) -> Told:
        """Return the fair order of the hits of a whole window, and what it gains.

        Raises:
            UnavailableError: There is nothing to re-rank by, or it is too late.
        """
        if time.monotonic() > until:
            raise UnavailableError("slow")
        hits, first = documents[: search.window], search.fair and search.start == 0
        if not all("_id" in hit for hit in hits):
            raise UnavailableError("ids")
        # A client may leave the texts out, and the next one may not.
        has_texts = any(hit.get("_source") for hit in hits)
        key = (search.key, str(has_texts), *(hit["_id"] for hit in hits))
        one = self.kept.get(key)
        if one is None or (self.deficit and first):
            one = await self._new_list(hits, search)
            self.kept.add(key, one)
        if self.deficit and first and time.monotonic() < until:  # later it is not shown
            self.deficit.add(one.found.target, one.found.after.exposure)
        return await self._as_seen(one, documents, search)

    async def measured(self, hits: Sequence[Any]) -> Told:
        """Return the exposure in a first page that was shown as it came, and the target.

        Raises:
            UnavailableError: Nothing is known of these hits.
        """
        if not all("_id" in hit for hit in hits):
            raise UnavailableError("ids")
        lexical = lexical_of(self.engine)
        if isinstance(lexical, ElasticsearchEngine):
            hits = await lexical.labelled(hits)
        with _told_why():
            listed, _ = await listed_hits(self.engine, self.context, self._all_given(hits))
            aimed = aimed_at(self.engine.schema, self.context, listed)
        counted = range(len(hits))[: self.context.k]
        shown = self._exposure(aimed.dimensions, aimed.members, counted)
        shares = {"target": aimed.target, "shown": shown, "engine": shown}
        return {
            **self._counting,
            "page": len(hits),
            "exposure": self._readable(shares),
            "ids": [hit["_id"] for hit in hits],
            "groups": self._groups(listed.memberships),
        }

    async def _new_list(self, hits: Sequence[Any], search: ProxiedSearch) -> KeptList:
        evidence = Evidence(self.evidence, self.learnt)
        found, listed = await self._fair_list(hits, search.words, evidence)
        if self.afterwards and not found.words_of:
            self.afterwards.add(self.engine, self.context, search.words)
        pinned = _pinned_first(hits, search)
        if pinned:
            found = self._behind(found, pinned)
        ids = [hit["_id"] for hit in hits]
        told = fair_list_told(found, listed, self._groups(listed.memberships), ids)
        if pinned:  # quality, bound and limits were of the fair list, which had another order
            told |= {"quality": {}, "bound": None, "below_best": None, "broken": []}
        return KeptList(told, found)

    def _behind(self, found: OrderedList, pinned: int) -> OrderedList:
        """Return an order in which so many of the first documents stay where they are."""
        behind = [place for place in found.positions if place >= pinned]
        positions = [*range(pinned), *behind]
        shown = self._exposure(found.dimensions, found.members, positions[: self.context.k])
        after = found.after.model_copy(update={"exposure": shown})
        return found._replace(positions=positions, after=after)

    async def _fair_list(
        self, hits: Sequence[Any], words: str, evidence: Evidence | None
    ) -> tuple[OrderedList, Hits]:
        deficit = self.deficit.by_group if self.deficit else None
        given = self._all_given(hits)
        with _told_why():
            found, listed, _ = await fair_list(
                self.engine, self.context, words, given, evidence, deficit=deficit
            )
        return found, listed

    async def _as_seen(
        self, one: KeptList, documents: Sequence[Any], search: ProxiedSearch
    ) -> Told:
        """Return what became of a list, with the exposure in the first page of each order.

        The first k ranks count, or as many as the page has. Of these, some may lie below the
        window.
        """
        page = min(search.size, len(documents))
        counted = min(self.context.k, page)
        dimensions = one.found.dimensions
        members = one.found.members
        told = one.told
        window = len(told["ids"])
        if counted > window:
            seen = documents[:counted]
            labels, members = await self._labels(seen, dimensions)
            ids = [hit["_id"] for hit in seen if "_id" in hit]
            if len(ids) < counted:
                raise UnavailableError("ids")
            order = [*told["order"], *range(window, counted)]
            told = {**told, "ids": ids, "order": order, "groups": self._groups(labels)}
        engine = self._exposure(dimensions, members, range(counted))
        fair = self._exposure(dimensions, members, told["order"][:counted])
        shares = {"engine": engine, "fair": fair, "target": one.found.target}
        shares["shown"] = fair if search.fair else engine
        if search.fair and not search.start and not search.pinned:
            toss = tossed(search.key, self.swap, self.context.k)
            if toss and toss["rank"] <= counted:
                told = {**told, "swap": toss}
                shown = order_shown(told)[:counted]
                shares["shown"] = self._exposure(dimensions, members, shown)
        return {**told, **self._counting, "page": page, "exposure": self._readable(shares)}

    async def _labels(
        self, hits: Sequence[Any], dimensions: Sequence[Dimension]
    ) -> tuple[Memberships, Memberships]:
        """Return the groups of hits by attribute, and those that exposure is measured over."""
        given = self._all_given(hits)
        labelled = await labels_of(self.engine, self.context, given)
        ids = [*map(str, range(len(hits)))]
        table = DocumentTable()
        table.add(ids, labelled.members)
        members = {it.name: table.memberships(it, ids) for it in dimensions}
        return labelled.members, members

    @property
    def _counting(self) -> Told:
        """How many ranks count, and how much each."""
        return {"k": self.context.k, "discount": str(self.context.discount)}

    @property
    def _dimensions(self) -> list[Dimension]:
        """What exposure is measured over: attributes, or the product of all."""
        context = self.context
        return dimensions_of(self.engine.schema, context.attributes, intersect=context.intersect)

    def _exposure(
        self, dimensions: Sequence[Dimension], members: Memberships, places: Sequence[int]
    ) -> Shares:
        """Return the exposure of each group in a page with the documents of these places."""
        return {
            it.name: by_group(it, exposure(members[it.name][[*places]], self.context.discount))
            for it in dimensions
        }

    def _readable(self, lists: Mapping[str, Shares]) -> dict[str, Shares]:
        """Return the shares in several lists; of many groups, those that no list has are one.

        So are those of an open attribute, however few, as other lists have others.
        """
        opened = {it.name for it in self._dimensions if it.is_open}
        found: dict[str, Shares] = {name: {} for name in lists}
        for attribute in next(iter(lists.values())):
            groups = list(lists["target"][attribute])
            named = groups
            is_open = attribute in opened
            if is_open or len(groups) >= MANY_ABSENT:
                seen = [own[attribute] for name, own in lists.items() if name != "target"]
                named = [group for group in groups if any(own[group] for own in seen)]
            for name, own in lists.items():
                shares = {group: own[attribute][group] for group in named}
                if is_open or len(named) < len(groups):
                    shares[OTHERS] = sum(own[attribute].values()) - sum(shares.values())
                found[name][attribute] = shares
        return found

    @property
    def label_fields(self) -> LabelFields:
        """What is to be asked for with each window, so that labels and ids are known."""
        reader = reader_of(self.engine)
        if reader is None:
            return NO_FIELDS
        asked = reader.request
        return LabelFields(tuple(asked["docvalue_fields"]), tuple(asked["fields"]))

    def _all_given(self, hits: Sequence[Any]) -> list[Given]:
        if not hits:
            raise UnavailableError("empty")
        # A window that was asked for before the index was open came without them.
        with_labels = any("fields" in hit for hit in hits)
        return [self._given(place, hit, with_labels) for place, hit in enumerate(hits)]

    def _given(self, place: int, hit: Any, with_labels: bool) -> Given:
        values = partial(value_at, hit.get("_source") or {})
        title = getattr(self.source, "title", None)
        reader = reader_of(self.engine)
        if reader is not None:
            id_ = "" if with_labels else reader.id_of(hit)  # by which labels are looked up
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

    def _groups(self, memberships: Memberships) -> dict[str, list[Any]]:
        """Return the group of each document, by attribute."""
        return groups_of(self.engine.schema, memberships)


def tossed(key: str, share: float, ranks: int) -> Told | None:
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


def order_shown(told: Told) -> list[int]:
    """Return the fair order of a list as it was shown: chance may have swapped two ranks."""
    order = [*told["order"]]
    swap = told.get("swap")
    if swap and swap["is_swapped"]:
        last = swap["rank"] - 1
        order[0], order[last] = order[last], order[0]
    return order


@contextmanager
def _told_why() -> Iterator[None]:
    """Name the reason where a list has no fair order, and no target."""
    try:
        yield
    except SourceError:  # of a hit without its id
        raise UnavailableError("ids") from None
    except InputError:
        raise UnavailableError("labels") from None


def _pinned_first(hits: Sequence[Any], search: ProxiedSearch) -> int:
    """Return how many of the first hits a client has pinned."""
    is_pinned = (hit["_id"] in search.pinned for hit in hits)
    return len([*takewhile(bool, is_pinned)])


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
    source, context = index.opened(settings.folder)
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
) -> tuple[list[Told | str], str]:
    """Re-rank searches of a reply; return what was done to each, or why nothing, and the reply.

    Args:
        order: Finds the fair order.
        searches: Those of its index that can be re-ranked.
        reply: The cluster's reply to whole windows.
        until: How long somebody waits for it, by the monotonic clock.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    outcomes = list[Told | str]()
    pairs = [*zip(searches, windows_in(reply, searches), strict=True)]
    for search, (hits, is_partial) in reversed(pairs):  # so that what comes before stays in place
        places = list[int]()
        try:
            if is_partial:
                raise UnavailableError("partial")
            told = await order([hit for *_, hit in hits], search, until)
            outcomes.insert(0, told)
            places = order_shown(told) if search.fair else []
        except UnavailableError as error:
            outcomes.insert(0, str(error))
        reply = with_page(reply, search, hits, places)
    return outcomes, reply


def as_asked(searches: Sequence[ProxiedSearch], reply: str) -> str:
    """Cut the pages of searches from whole windows, in the cluster's own order.

    Raises:
        UnavailableError: The reply cannot be cut.
    """
    pairs = [*zip(searches, windows_in(reply, searches), strict=True)]
    for search, window in reversed(pairs):
        reply = with_page(reply, search, window.hits, [])
    return reply
