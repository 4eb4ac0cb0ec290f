"""Makes the logs of proxies a run with labels and queries, which audits read."""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import yaml

from fairqr.base.errors import InputError
from fairqr.graph.integrations.logged import RERANKED
from fairqr.graph.search.result import Shares
from fairqr.graph.service.proxy.ordering import Record, order_shown
from fairqr.graph.service.proxy.seen import LOG, OLDER
from fairqr.retrieval.sources.schema import UNKNOWN
from fairqr.retrieval.texts.words import sendable

OF_LIST = ("query", "arm", "page", "ids", "groups", "exposure")
"""What tells lists apart, beside whether the fair one was shown."""

OF_BOTH_LISTS = ("order", "quality")
"""The same, where the fair list is known."""


class Logged(NamedTuple):
    """What logs say of the searches of an index, beside the files of a run.

    Attributes:
        name: The index.
        k: How many ranks counted at most: those that fair lists are made for, or the longest page.
        discount: How much each counted in the newest list.
        damaged: How many lines cannot be read.
        seen: The ``lists`` of each query that has both, the ``outcomes`` of all searches, and how
            many are ``unseen``: the fields of :class:`SeenSearches`.
        target: What fair lists aimed at on average: the share of each group, by attribute.
    """

    name: str
    k: int
    discount: str
    damaged: int
    seen: dict[str, Any]
    target: Shares


def as_run(
    folders: Iterable[Path], place: Path, index: str | None = None, k: int | None = None
) -> Logged:
    """Write what was shown as a run with ``source.yaml`` and ``queries.jsonl``.

    Each list that was shown for a query is a query of its own, with the same text, and weighs as
    often as it was shown. So figures over all are those of what clients saw, also where the index
    changed in between, and where pages had several sizes. Logs are read twice, and one line at a
    time is in memory.

    Args:
        folders: The folders of one or several logs.
        place: The folder for the files.
        index: The index; it may be left out if there is only one.
        k: How many ranks count; by default as many as the proxy counted.

    Raises:
        InputError: There is no search of it, or there are several indexes.
    """
    paths = [folder / name for folder in folders for name in (OLDER, LOG)]
    with ExitStack() as stack:
        # A log that is written to meanwhile may take the name of the older one.
        files = [stack.enter_context(path.open("rb")) for path in paths if path.is_file()]
        read = _Read()
        for file in files:
            read.add_all(file)
        found = read.of(index)
        if not found.lists:
            raise InputError(
                f"The log has no list of '{found.name}', only searches whose hits are not known: "
                f"{_listing(found.unseen)}."
            )
        counted = k or found.k
        lists, target = _written(found, counted, place)
    seen = {"lists": lists, "outcomes": found.outcomes, "unseen": found.unseen}
    return Logged(found.name, counted, found.discount, read.damaged, seen, target)


def write_searches(folders: Iterable[Path], file: Path, index: str) -> None:
    """Write the first pages of an index in the order of time, as clicks are joined with searches.

    Whose list is not known has no documents; only how often it was clicked counts.

    Args:
        folders: The folders of one or several logs.
        file: The file to write.
        index: The index.
    """
    logs = [_searches_of(folder, index) for folder in folders]
    with file.open("w", encoding="utf-8") as written:
        for row in heapq.merge(*logs, key=lambda it: it["time"]):
            written.write(f"{json.dumps(row)}\n")


def _searches_of(folder: Path, index: str) -> Iterator[dict[str, Any]]:
    """Yield the searches in a log, in the order of time."""
    for path in filter(Path.is_file, (folder / OLDER, folder / LOG)):
        with path.open("rb") as lines:
            for line in lines:
                row = None
                with suppress(ValueError, LookupError, TypeError, AttributeError):  # damaged
                    row = _search_in(json.loads(line), index)
                if row:
                    yield row


def _search_in(record: Record, index: str) -> dict[str, Any] | None:
    """Return the search in a record; None if it is of another index, or no first page.

    Raises:
        LookupError: It lacks something.
    """
    is_first = record.get("unseen") != "further page"
    if record["index"] != index or not is_first or not record.get("search"):
        return None
    ids = record.get("ids", [])
    shown = _shown(record, ids, len(ids) + 1) if ids else []
    return {
        "time": float(record["time"]),
        "query_id": record["search"],
        "user_query": record["query"],
        "query_response_hit_ids": shown,
        "arm": record["arm"],
        "share": record["share"],
        "swap": record.get("swap", {}).get("rank", 0),
    }


@dataclass(slots=True)
class _List:
    """A list, where a log first has it.

    Attributes:
        file: The file of the log.
        offset: Where its line begins.
        weight: How often it was shown.
    """

    file: BinaryIO
    offset: int
    weight: int = 0

    def record(self) -> dict[str, Any]:
        """Read the line again."""
        self.file.seek(self.offset)
        found: dict[str, Any] = json.loads(self.file.readline())
        return found


@dataclass(slots=True)
class _Index:
    """The searches of an index.

    Attributes:
        name: The index.
        lists: The lists that were shown, by a hash.
        k: How many ranks of them counted at most.
        discount: How much each counted in the newest.
        outcomes: How many searches there were by what became of them.
        unseen: How many of them are in no figure by the reason.
    """

    name: str
    lists: dict[bytes, _List] = field(default_factory=dict)
    k: int = 1
    discount: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)


class _Read:
    """The lines of logs.

    Attributes:
        damaged: How many lines cannot be read.
    """

    def __init__(self) -> None:
        self.damaged = 0
        self._indexes: dict[str, _Index] = {}

    def add_all(self, file: BinaryIO) -> None:
        """Add the lines of a file."""
        offset = 0
        for line in file:
            try:
                if line.strip():
                    self._add(json.loads(line), _List(file, offset))
            except (ValueError, LookupError, TypeError, AttributeError):
                self.damaged += 1  # of a proxy that was killed, or had no room
            offset += len(line)

    def of(self, name: str | None) -> _Index:
        """Return the searches of an index.

        Raises:
            InputError: There are none, or there are several indexes and none is named.
        """
        if name is None and len(self._indexes) > 1:
            named = ", ".join(self._indexes)
            raise InputError(f"The log has searches of {named}; name one by --corpus.")
        for index in self._indexes.values():
            if name in (None, index.name):
                return index
        raise InputError("The log has no such searches; name the folder of a proxy's log.")

    def _add(self, record: Mapping[str, Any], place: _List) -> None:
        """Add a record, or nothing of it.

        Raises:
            LookupError: It lacks something.
        """
        name = str(record["index"])
        outcome = str(record["outcome"])
        index = self._indexes.get(name) or _Index(name)
        if "unseen" in record:
            index.unseen[str(record["unseen"])] += 1
        else:
            is_fair = outcome == RERANKED
            told = [record[it] for it in OF_LIST]
            more = [record[it] for it in OF_BOTH_LISTS if is_fair or it in record]
            counted = min(record["k"], record["page"])
            discount = str(record["discount"])
            text = json.dumps([is_fair, *told, *more, record.get("swap")])
            key = hashlib.sha256(text.encode()).digest()
            index.lists.setdefault(key, place).weight += 1
            index.k = max(index.k, counted)
            index.discount = discount
        index.outcomes[outcome] += 1
        self._indexes[name] = index


def _listing(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


class _Documents:
    """The documents of lists: one whose labels changed in between is several."""

    def __init__(self) -> None:
        self._labels: dict[str, Shares] = {}

    def ids_of(self, record: Mapping[str, Any]) -> list[str]:
        """Return the ids of the documents of a record, each once, with no space in it."""
        ids = dict[str, None]()  # in their order
        for place, written in enumerate(record["ids"]):
            groups = record["groups"].items()
            labels: Shares = {name: _shares(own[place]) for name, own in groups}
            first = re.sub(r"\s", "%20", written)  # columns of a run have spaces
            id_ = first
            number = 1
            while id_ in ids or self._labels.setdefault(id_, labels) != labels:
                number += 1
                id_ = f"{first}#{number}"
            ids[id_] = None
        return [*ids]

    def write(self, path: Path) -> None:
        """Write all of them."""
        with path.open("w", encoding="utf-8") as file:
            for id_, labels in self._labels.items():
                fields = {_field(name): shares for name, shares in labels.items()}
                file.write(json.dumps({"id": id_, **fields}) + "\n")


def _field(attribute: str) -> str:
    """Return the field of documents that has the labels of an attribute."""
    return f"label {attribute}"


def _shares(label: str | dict[str, float] | None) -> dict[str, float]:
    """Return the share of each group in a document."""
    if isinstance(label, dict):
        return label
    return {label: 1.0} if label else {}


@dataclass
class _Groups:
    """The groups of documents, by attribute.

    Attributes:
        known: Those that there are.
        aims: What fair lists aimed at on average.
    """

    known: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    aims: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, record: Mapping[str, Any], share: float) -> None:
        """Add those of a record that is such a share of all."""
        for name, own in record["groups"].items():
            for label in own:
                self.known[name].update(dict.fromkeys(_shares(label)))
            for group, aim in record["exposure"]["target"].get(name, {}).items():
                self.known[name][group] = None  # who is never found is not forgotten
                self.aims[name][group] += aim * share

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of a source."""
        return {
            name: {
                "field": _field(name),
                "groups": [group for group in known if group != UNKNOWN],
                "unknown": "group" if UNKNOWN in known else "exclude",
            }
            for name, known in self.known.items()
        }


def _written(found: _Index, k: int, place: Path) -> tuple[list[dict[str, Any]], Shares]:
    """Write the files of a run; return the lists of queries that have both, and the target."""
    documents = _Documents()
    groups = _Groups()
    both = list[dict[str, Any]]()
    numbers = Counter[str]()
    every = sum(one.weight for one in found.lists.values())
    run_file = place / "run.txt"
    query_file = place / "queries.jsonl"
    with (
        run_file.open("w", encoding="utf-8") as run,
        query_file.open("w", encoding="utf-8") as queries,
    ):
        for one in found.lists.values():
            record = one.record()
            query = str(record["query"])
            numbers[query] += 1
            id_ = query if numbers[query] == 1 else f"{query}-{numbers[query]}"
            row = {"id": id_, "query": _text_of(record), "weight": one.weight}
            queries.write(json.dumps(row) + "\n")
            shown = _shown(record, documents.ids_of(record), k)
            for rank, document in enumerate(shown, start=1):
                run.write(f"{id_} Q0 {document} {rank} {1 / rank} shown\n")
            groups.add(record, one.weight / every)
            if "fair" in record["exposure"]:
                both.append(_both(record, one.weight))
    documents.write(place / "documents.jsonl")
    files = {"runs": [run_file.name], "topics": query_file.name, "documents": "documents.jsonl"}
    source = {"name": "shown", "engine": "run", **files, "attributes": groups.attributes()}
    (place / "source.yaml").write_text(yaml.safe_dump(source), encoding="utf-8")
    return both, {name: dict(shares) for name, shares in groups.aims.items()}


def _text_of(record: Mapping[str, Any]) -> str:
    """Return the words of a query, or its hash."""
    text = sendable(record.get("words", ""))
    return text if any(map(str.isalnum, text)) else str(record["query"])


def _shown(record: Record, ids: Sequence[str], k: int) -> list[str]:
    """Return the documents of a list in the order in which they were shown.

    Those behind a page stay as candidates, unless the page has less than k: they were not shown.
    """
    is_fair = record["outcome"] == RERANKED
    ordered = [ids[place] for place in order_shown(record)] if is_fair else [*ids]
    page = int(record["page"])
    return ordered[:page] if page < k else ordered


def _both(record: Mapping[str, Any], weight: int) -> dict[str, Any]:
    """Return what is known of both lists of a query: the fields of :class:`BothLists`."""
    exposure = record["exposure"]
    quality = record["quality"]
    figures = {
        which: _figures(exposure[which], quality.get(which, ()))
        for which in ("engine", "fair", "target")
    }
    which_shown = "fair" if record["outcome"] == RERANKED else "engine"
    return {
        "weight": weight,
        "arm": record["arm"],
        "shown": which_shown,
        "by_texts": record["by"] == "vectors",
        **figures,
    }


def _figures(exposure: Shares, quality: Iterable[float]) -> dict[str, float]:
    """Return the figures of a list, or of the target, by name."""
    shares = {f"{it}: {group}": own for it, of in exposure.items() for group, own in of.items()}
    return dict(zip(("relevance", "fairness"), quality, strict=False)) | shares
