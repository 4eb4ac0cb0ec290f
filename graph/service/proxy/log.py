"""Makes the logs of proxies a run with labels and queries, which audits read."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fairqr.base.errors import InputError
from fairqr.graph.search.result import Shares
from fairqr.graph.service.proxy.seen import LOG, OLDER, RERANKED
from fairqr.retrieval.sources.schema import UNKNOWN
from fairqr.retrieval.texts.words import sendable


class Logged(NamedTuple):
    """What logs say of the searches of an index, beside the files of a run.

    Attributes:
        size: How many hits most searches asked for.
        damaged: How many lines cannot be read.
        seen: The ``lists`` of each query that has both, the ``outcomes`` of all searches, and how
            many are ``unseen``: the fields of :class:`SeenSearches`.
        target: What fair lists aimed at on average: the share of each group, by attribute.
    """

    size: int
    damaged: int
    seen: dict[str, Any]
    target: Shares


def as_run(folders: Iterable[Path], place: Path, index: str | None = None) -> Logged:
    """Write what was last shown for each query as a run with ``source.yaml`` and ``queries.jsonl``.

    A query weighs as often as its first page was shown. If both lists were shown, as before and
    after fair lists were switched on, or where re-ranking was late, it counts as two.

    Args:
        folders: The folders of one or several logs.
        place: The folder for the files.
        index: The index; it may be left out if there is only one.

    Raises:
        InputError: There is no search of it, or there are several indexes.
    """
    read = _Read()
    for path in (folder / name for folder in folders for name in (OLDER, LOG)):
        for line in path.read_bytes().split(b"\n") if path.is_file() else ():
            read.add(line)
    indexes = dict.fromkeys(read.outcomes)
    if index is None and len(indexes) > 1:
        raise InputError(f"The log has searches of {', '.join(indexes)}; name one by --corpus.")
    if index not in (None, *indexes) or not indexes:
        raise InputError("The log has no such searches; name the folder of a proxy's log.")
    name = index or next(iter(indexes))
    shown = {key: own for key, own in read.last.items() if key.index == name}
    if not shown:
        raise InputError(
            f"The log has no list of '{name}', only searches whose hits are not known: "
            f"{_listing(read.unseen[name])}."
        )
    sizes = read.sizes[name]
    lists, target = _written({key: (line, read.shown[key]) for key, line in shown.items()}, place)
    return Logged(
        size=max(sizes, key=lambda size: sizes[size]),
        damaged=read.damaged,
        seen={
            "lists": lists,
            "outcomes": read.outcomes[name],
            "unseen": read.unseen[name],
        },
        target=target,
    )


@dataclass(frozen=True, slots=True)
class _Key:
    """Searches of one query that were shown one of its lists."""

    index: str
    query: str
    arm: str
    is_fair: bool


class _Read:
    """The lines of logs.

    Attributes:
        last: The newest line of each query and list.
        shown: How often it was shown.
        sizes: How often each number of hits was asked for, by index.
        outcomes: How many searches there were by what became of them, by index.
        unseen: How many of them are in no figure by the reason, by index.
        damaged: How many lines cannot be read.
    """

    def __init__(self) -> None:
        self.last: dict[_Key, bytes] = {}
        self.shown: Counter[_Key] = Counter()
        self.sizes: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.unseen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.damaged = 0

    def add(self, line: bytes) -> None:
        """Add a line."""
        if not line:
            return
        try:
            record = json.loads(line)
            index, query, arm, outcome = (
                str(record[name]) for name in ("index", "query", "arm", "outcome")
            )
            size = int(record["size"])
            unseen = record.get("unseen")
        except (ValueError, LookupError, TypeError, AttributeError):
            self.damaged += 1  # of a proxy that was killed, or had no room
            return
        self.outcomes[index][outcome] += 1
        if unseen:
            self.unseen[index][unseen] += 1
            return
        key = _Key(index, query, arm, outcome == RERANKED)
        self.last[key] = line
        self.shown[key] += 1
        self.sizes[index][size] += 1


def _listing(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _written(
    last: Mapping[_Key, tuple[bytes, int]], place: Path
) -> tuple[list[dict[str, Any]], Shares]:
    documents, lists = defaultdict[str, dict[str, Any]](dict), list[dict[str, Any]]()
    queries, run = list[dict[str, Any]](), list[str]()
    groups, aims = (defaultdict[str, Counter[str]](Counter) for _ in range(2))
    every = sum(weight for _, weight in last.values())
    engines = {(key.index, key.query) for key in last if not key.is_fair}
    for key, (line, weight) in last.items():
        it = json.loads(line)
        text, exposure = sendable(it.get("words", "")), it["exposure"]
        text = text if any(map(str.isalnum, text)) else key.query
        id_of_query = key.query
        if key.is_fair and (key.index, key.query) in engines:
            id_of_query = f"{key.query}-fair"
            text = f"{text} (fair list)"
        queries.append({"id": id_of_query, "query": text, "weight": weight})
        ids = [re.sub(r"\s", "%20", id_) for id_ in it["ids"]]  # columns of a run have spaces
        order = it["order"] if key.is_fair else range(len(ids))
        shown = enumerate(dict.fromkeys(ids[number] for number in order), start=1)
        run += [f"{id_of_query} Q0 {id_} {rank} {1 / rank} shown\n" for rank, id_ in shown]
        for name, own in it["groups"].items():
            for id_, label in zip(ids, own, strict=True):
                shares = label if isinstance(label, dict) else {label: 1.0} if label else {}
                documents[id_] |= {"id": id_, f"label {name}": shares}
                groups[name].update(shares)
            for group, share in exposure["target"].get(name, {}).items():
                groups[name][group] += 0  # who is never found is not forgotten
                aims[name][group] += share * weight / every
        if "fair" in exposure:
            figures = {
                which: _figures(exposure[which], it["quality"].get(which, ()))
                for which in ("engine", "fair", "target")
            }
            which_shown = "fair" if key.is_fair else "engine"
            lists.append({"weight": weight, "arm": key.arm, "shown": which_shown, **figures})
    attributes = {
        name: {
            "field": f"label {name}",
            "groups": [group for group in known if group != UNKNOWN],
            "unknown": "group" if UNKNOWN in known else "exclude",
        }
        for name, known in groups.items()
    }
    files = {"runs": ["run.txt"], "topics": "queries.jsonl", "documents": "documents.jsonl"}
    source = {"name": "shown", "engine": "run", **files, "attributes": attributes}
    (place / "source.yaml").write_text(yaml.safe_dump(source), encoding="utf-8")
    (place / "run.txt").write_text("".join(run), encoding="utf-8")
    for name, rows in (("documents", documents.values()), ("queries", queries)):
        lines = "".join(json.dumps(one) + "\n" for one in rows)
        (place / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return lists, {name: dict(shares) for name, shares in aims.items()}


def _figures(exposure: Shares, quality: Iterable[float]) -> dict[str, float]:
    """Return the figures of a list, or of the target, by name."""
    shares = {f"{it}: {group}": own for it, of in exposure.items() for group, own in of.items()}
    return dict(zip(("relevance", "fairness"), quality, strict=False)) | shares
