"""Makes the logs of proxies a run with labels and queries, which audits read."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fairqr.base.errors import InputError
from fairqr.graph.service.proxy.seen import LOG, OLDER
from fairqr.retrieval.sources.schema import UNKNOWN


class Logged(NamedTuple):
    """What logs say of the searches of an index, beside the files of a run.

    Attributes:
        lists: Figures of the engine's list and of the fair one, for each query.
        size: How many hits most searches asked for.
        damaged: How many lines cannot be read.
    """

    lists: list[dict[str, Any]]
    size: int
    damaged: int


def as_run(folders: Iterable[Path], place: Path, index: str | None = None) -> Logged:
    """Write what was last shown for each query as a run with ``source.yaml`` and ``queries.csv``.

    A query weighs as often as its first page was asked for.

    Args:
        folders: The folders of one or several logs.
        place: The folder for the files.
        index: The index; it may be left out if there is only one.

    Raises:
        InputError: There is no search of it, or there are several indexes.
    """
    last, asked, sizes = dict[tuple[str, str], bytes](), Counter[Any](), Counter[Any]()
    damaged = 0
    for path in (folder / name for folder in folders for name in (OLDER, LOG)):
        for line in path.read_bytes().split(b"\n") if path.is_file() else ():
            try:
                record = json.loads(line)
                named, key, size = (record[it] for it in ("index", "query", "size"))
            except (ValueError, LookupError, TypeError):
                damaged += bool(line)  # of a proxy that was killed, or had no room
                continue
            last[named, key] = line
            asked[named, key] += 1
            sizes[named, size] += 1
    indexes = dict.fromkeys(it for it, _ in last)
    if index is None and len(indexes) > 1:
        raise InputError(f"The log has searches of {', '.join(indexes)}; name one by --corpus.")
    if index not in (None, *indexes) or not indexes:
        raise InputError("The log has no such searches; name the folder of a proxy's log.")
    kept = {it: line for it, line in last.items() if index in (None, it[0])}
    size = next(size for (it, size), _ in sizes.most_common() if index in (None, it))
    return Logged(_written(kept, asked, place), size, damaged)


def _written(
    last: Mapping[tuple[str, str], bytes], asked: Mapping[Any, int], place: Path
) -> list[dict[str, Any]]:
    documents, lists = defaultdict[str, dict[str, Any]](dict), list[dict[str, Any]]()
    groups, queries = defaultdict[str, dict[str, Any]](dict), [("id", "query", "weight")]
    run = list[str]()
    for (index, key), line in last.items():
        it = json.loads(line)
        weight, words = asked[index, key], it.get("words", "")
        queries.append((key, words if any(map(str.isalnum, words)) else key, str(weight)))
        ids = [re.sub(r"\s", "%20", id_) for id_ in it["ids"]]  # columns of a run have spaces
        order = it["order"] if it["arm"] == "fair" else range(len(ids))
        shown = enumerate(dict.fromkeys(ids[number] for number in order), start=1)
        run += [f"{key} Q0 {id_} {rank} {1 / rank} shown\n" for rank, id_ in shown]
        for name, own in it["groups"].items():
            groups[name] |= it["exposure"]["target"].get(name, {})  # also who is never found
            for id_, label in zip(ids, own, strict=True):
                shares = label if isinstance(label, dict) else {label: 1.0} if label else {}
                documents[id_] |= {"id": id_, f"label {name}": shares}
                groups[name] |= shares
        figures = {name: _figures(it, name) for name in it["exposure"]}
        lists.append({"weight": weight, "arm": it["arm"], **figures})
    attributes = {
        name: {
            "field": f"label {name}",
            "groups": [group for group in known if group != UNKNOWN],
            "unknown": "group" if UNKNOWN in known else "exclude",
        }
        for name, known in groups.items()
    }
    source: dict[str, Any] = {
        "name": "shown",
        "engine": "run",
        "runs": ["run.txt"],
        "topics": "queries.csv",
    }
    source |= {"documents": "documents.jsonl", "attributes": attributes}
    (place / "source.yaml").write_text(yaml.safe_dump(source), encoding="utf-8")
    (place / "run.txt").write_text("".join(run), encoding="utf-8")
    lines = "".join(json.dumps(one) + "\n" for one in documents.values())
    (place / "documents.jsonl").write_text(lines, encoding="utf-8")
    with (place / "queries.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(queries)
    return lists


def _figures(record: Mapping[str, Any], which: str) -> dict[str, float]:
    """Return the figures of a list, or of the target, by name."""
    groups = record["exposure"][which].items()
    shares = [(f"{name}: {group}", it) for name, own in groups for group, it in own.items()]
    quality = zip(("relevance", "fairness"), record["quality"].get(which, ()), strict=False)
    return dict([*quality, *shares])
