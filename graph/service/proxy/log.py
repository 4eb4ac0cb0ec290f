"""Makes the logs of proxies a run with labels and queries, which audits read."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fairqr.base.errors import InputError
from fairqr.graph.search.result import Shares
from fairqr.graph.service.proxy.log_lines import (
    DAMAGED,
    LoggedList,
    LogReader,
    ids_shown,
    is_fair_shown,
    log_files,
)
from fairqr.graph.service.proxy.records import Record
from fairqr.retrieval.sources.schema import UNKNOWN
from fairqr.retrieval.texts.words import sendable

RUN = "run.txt"
QUERIES = "queries.jsonl"
DOCUMENTS = "documents.jsonl"
SOURCE = "source.yaml"
"""The files of a run."""


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
    folders: Iterable[Path], folder: Path, index: str | None = None, k: int | None = None
) -> Logged:
    """Write what was shown as a run with ``source.yaml`` and ``queries.jsonl``.

    Each list that was shown for a query is a query of its own, with the same text, and weighs as
    often as it was shown. So figures over all are those of what clients saw, also where the index
    changed in between, and where pages had several sizes. Logs are read twice, and one line at a
    time is in memory.

    Args:
        folders: The folders of one or several logs.
        folder: The folder for the files.
        index: The index; it may be left out if there is only one.
        k: How many ranks count; by default as many as the proxy counted.

    Raises:
        InputError: There is no search of it, or there are several indexes.
    """
    reader = LogReader()
    with ExitStack() as stack:
        # A log that is written to meanwhile may take the name of the older one.
        paths = chain.from_iterable(map(log_files, folders))
        files = [stack.enter_context(path.open("rb")) for path in paths]
        for file in files:
            reader.add_all(file)
        searches = reader.lists_of(index)
        if not searches.lists:
            raise InputError(
                f"The log has no list of '{searches.name}', only searches whose hits are not "
                f"known: {_enumerated(searches.unseen)}."
            )
        ranks = k or searches.k
        run = _Run(ranks)
        run.write(folder, [*searches.lists.values()])

    seen = {
        "lists": run.both_lists,
        "outcomes": searches.outcomes,
        "unseen": searches.unseen,
    }
    target = run.groups.target()
    return Logged(searches.name, ranks, searches.discount, reader.damaged, seen, target)


def write_searches(folders: Iterable[Path], file: Path, index: str) -> None:
    """Write the first pages of an index in the order of time, as clicks are joined with searches.

    Whose list is not known has no documents; only how often it was clicked counts.

    Args:
        folders: The folders of one or several logs.
        file: The file to write.
        index: The index.
    """
    logs = [_searches_of(folder, index) for folder in folders]
    with file.open("w", encoding="utf-8") as output:
        for row in heapq.merge(*logs, key=lambda search: search["time"]):
            output.write(f"{json.dumps(row)}\n")


def _searches_of(folder: Path, index: str) -> Iterator[dict[str, Any]]:
    """Yield the searches in a log, in the order of time."""
    for path in log_files(folder):
        with path.open("rb") as lines:
            for line in lines:
                search = None
                with suppress(*DAMAGED):
                    search = _search_in(json.loads(line), index)
                if search:
                    yield search


def _search_in(record: Record, index: str) -> dict[str, Any] | None:
    """Return the search in a record; None if it is of another index, or no first page.

    Raises:
        LookupError: It lacks something.
    """
    is_first_page = record.get("unseen") != "further page"
    is_of_index = record["index"] == index
    if not is_of_index or not is_first_page or not record.get("search"):
        return None
    ids = record.get("ids", [])
    whole_page = len(ids) + 1
    shown = ids_shown(record, ids, whole_page) if ids else []
    return {
        "time": float(record["time"]),
        "query_id": record["search"],
        "user_query": record["query"],
        "query_response_hit_ids": shown,
        "arm": record["arm"],
        "share": record["share"],
        "swap": record.get("swap", {}).get("rank", 0),
    }


class _Run:
    """Writes lists as a run with labels and queries.

    Args:
        k: How many ranks count.

    Attributes:
        both_lists: What is known of both lists of queries that have both.
        groups: The groups of the documents.
    """

    def __init__(self, k: int) -> None:
        self.both_lists: list[dict[str, Any]] = []
        self.groups = _Groups()
        self._k = k
        self._documents = _Documents()
        self._lists_of_query: Counter[str] = Counter()

    def write(self, folder: Path, lists: Sequence[LoggedList]) -> None:
        """Write the files."""
        total = sum(logged.weight for logged in lists)
        with (
            (folder / RUN).open("w", encoding="utf-8") as run,
            (folder / QUERIES).open("w", encoding="utf-8") as queries,
        ):
            for logged in lists:
                record = logged.record()
                id_ = self._query_id(record)
                query = {"id": id_, "query": _text_of(record), "weight": logged.weight}
                queries.write(json.dumps(query) + "\n")
                run.writelines(self._run_lines(id_, record))
                self.groups.add(record, logged.weight / total)
                if "fair" in record["exposure"]:
                    self.both_lists.append(_both_lists(record, logged.weight))

        self._documents.write(folder / DOCUMENTS)
        source = {
            "name": "shown",
            "engine": "run",
            "runs": [RUN],
            "topics": QUERIES,
            "documents": DOCUMENTS,
            "attributes": self.groups.attributes(),
        }
        (folder / SOURCE).write_text(yaml.safe_dump(source), encoding="utf-8")

    def _query_id(self, record: Record) -> str:
        """Return the id of a query; from its second list on it has a number."""
        query = str(record["query"])
        self._lists_of_query[query] += 1
        number = self._lists_of_query[query]
        return query if number == 1 else f"{query}-{number}"

    def _run_lines(self, query: str, record: Record) -> Iterator[str]:
        """Yield the lines of a run that have the list of a query, as it was shown."""
        ids = self._documents.ids_of(record)
        for rank, document in enumerate(ids_shown(record, ids, self._k), start=1):
            score = 1 / rank
            yield f"{query} Q0 {document} {rank} {score} shown\n"


class _Documents:
    """The documents of lists: one whose labels changed in between is several."""

    def __init__(self) -> None:
        self._labels: dict[str, Shares] = {}

    def ids_of(self, record: Mapping[str, Any]) -> list[str]:
        """Return the ids of the documents of a record, each once, with no space in it."""
        ids: dict[str, None] = {}  # in their order
        for position, id_in_log in enumerate(record["ids"]):
            labels: Shares = {
                attribute: _shares(groups[position])
                for attribute, groups in record["groups"].items()
            }
            first_id = re.sub(r"\s", "%20", id_in_log)  # columns of a run have spaces
            id_ = first_id
            number = 1
            while id_ in ids or self._labels.setdefault(id_, labels) != labels:
                number += 1
                id_ = f"{first_id}#{number}"
            ids[id_] = None
        return [*ids]

    def write(self, path: Path) -> None:
        """Write all of them."""
        with path.open("w", encoding="utf-8") as file:
            for id_, labels in self._labels.items():
                fields = {_field(attribute): shares for attribute, shares in labels.items()}
                file.write(json.dumps({"id": id_, **fields}) + "\n")


@dataclass
class _Groups:
    """The groups of documents, by attribute.

    Attributes:
        names: The names of all groups.
        aims: What fair lists aimed at on average.
    """

    names: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    aims: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, record: Mapping[str, Any], share: float) -> None:
        """Add the groups of a record, which makes up this share of all that was shown."""
        target = record["exposure"]["target"]
        for attribute, labels in record["groups"].items():
            for label in labels:
                self.names[attribute].update(dict.fromkeys(_shares(label)))
            for group, aim in target.get(attribute, {}).items():
                self.names[attribute][group] = None  # who is never found is not forgotten
                self.aims[attribute][group] += aim * share

    def target(self) -> Shares:
        """Return what fair lists aimed at on average."""
        return {attribute: dict(shares) for attribute, shares in self.aims.items()}

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of a source."""
        attributes: dict[str, Any] = {}
        for attribute, names in self.names.items():
            attributes[attribute] = {
                "field": _field(attribute),
                "groups": [group for group in names if group != UNKNOWN],
                "unknown": "group" if UNKNOWN in names else "exclude",
            }
        return attributes


def _field(attribute: str) -> str:
    """Return the field of documents that has the labels of an attribute."""
    return f"label {attribute}"


def _shares(label: str | dict[str, float] | None) -> dict[str, float]:
    """Return the share of each group in a document."""
    if isinstance(label, dict):
        return label
    return {label: 1.0} if label else {}


def _enumerated(counts: Mapping[str, int]) -> str:
    """Return counts in words, such as ``12 busy, 3 empty``."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _text_of(record: Mapping[str, Any]) -> str:
    """Return the words of a query, or its hash."""
    text = sendable(record.get("words", ""))
    has_words = any(map(str.isalnum, text))
    return text if has_words else str(record["query"])


def _both_lists(record: Mapping[str, Any], weight: int) -> dict[str, Any]:
    """Return what is known of both lists of a query: the fields of :class:`BothLists`."""
    exposure = record["exposure"]
    quality = record["quality"]
    return {
        "weight": weight,
        "arm": record["arm"],
        "shown": "fair" if is_fair_shown(record) else "engine",
        "by_texts": record["by"] == "vectors",
        "engine": _figures(exposure["engine"], quality.get("engine", ())),
        "fair": _figures(exposure["fair"], quality.get("fair", ())),
        "target": _figures(exposure["target"], quality.get("target", ())),
    }


def _figures(exposure: Shares, quality: Iterable[float]) -> dict[str, float]:
    """Return the figures of a list, or of the target, by name."""
    figures = dict(zip(("relevance", "fairness"), quality, strict=False))
    for attribute, shares in exposure.items():
        for group, share in shares.items():
            figures[f"{attribute}: {group}"] = share
    return figures
