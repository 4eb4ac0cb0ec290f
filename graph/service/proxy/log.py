"""Makes the logs of proxies a run with labels and queries, which audits read."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fairqr.base.errors import InputError
from fairqr.graph.search.result import Shares
from fairqr.graph.service.proxy.seen import LOG, OLDER
from fairqr.retrieval.sources.schema import UNKNOWN
from fairqr.retrieval.texts.words import sendable


class Logged(NamedTuple):
    """What logs say of the searches of an index, beside the files of a run.

    Attributes:
        size: How many hits most searches asked for.
        damaged: How many lines cannot be read.
        lists: Figures of the engine's list and of the fair one, for each query.
        target: What fair lists aimed at on average: the share of each group, by attribute.
    """

    size: int
    damaged: int
    lists: list[dict[str, Any]]
    target: Shares


def as_run(folders: Iterable[Path], place: Path, index: str | None = None) -> Logged:
    """Write what was last shown for each query as a run with ``source.yaml`` and ``queries.jsonl``.

    A query weighs as often as its first page was asked for. If it was shown both lists, as before
    and after fair lists were switched on, it counts as two.

    Args:
        folders: The folders of one or several logs.
        place: The folder for the files.
        index: The index; it may be left out if there is only one.

    Raises:
        InputError: There is no search of it, or there are several indexes.
    """
    last, asked, sizes = dict[tuple[str, str, str], bytes](), Counter[Any](), Counter[Any]()
    damaged = 0
    for path in (folder / name for folder in folders for name in (OLDER, LOG)):
        for line in path.read_bytes().split(b"\n") if path.is_file() else ():
            try:
                record = json.loads(line)
                named, key, arm, size = (record[it] for it in ("index", "query", "arm", "size"))
            except (ValueError, LookupError, TypeError):
                damaged += bool(line)  # of a proxy that was killed, or had no room
                continue
            last[named, key, arm] = line
            asked[named, key, arm] += 1
            sizes[named, size] += 1
    indexes = dict.fromkeys(it for it, *_ in last)
    if index is None and len(indexes) > 1:
        raise InputError(f"The log has searches of {', '.join(indexes)}; name one by --corpus.")
    if index not in (None, *indexes) or not indexes:
        raise InputError("The log has no such searches; name the folder of a proxy's log.")
    kept = {of[1:]: (line, asked[of]) for of, line in last.items() if index in (None, of[0])}
    size = next(size for (it, size), _ in sizes.most_common() if index in (None, it))
    return Logged(size, damaged, *_written(kept, place))


def _written(
    last: Mapping[tuple[str, str], tuple[bytes, int]], place: Path
) -> tuple[list[dict[str, Any]], Shares]:
    documents, lists = defaultdict[str, dict[str, Any]](dict), list[dict[str, Any]]()
    queries, run = list[dict[str, Any]](), list[str]()
    groups, aims = (defaultdict[str, Counter[str]](Counter) for _ in range(2))
    every = sum(weight for _, weight in last.values())
    for (key, arm), (line, weight) in last.items():
        it = json.loads(line)
        text, exposure = sendable(it.get("words", "")), it["exposure"]
        text = text if any(map(str.isalnum, text)) else key
        if (key, "engine") in last and arm == "fair":
            key, text = f"{key}-fair", f"{text} (fair list)"
        queries.append({"id": key, "query": text, "weight": weight})
        ids = [re.sub(r"\s", "%20", id_) for id_ in it["ids"]]  # columns of a run have spaces
        order = it["order"] if it["arm"] == "fair" else range(len(ids))
        shown = enumerate(dict.fromkeys(ids[number] for number in order), start=1)
        run += [f"{key} Q0 {id_} {rank} {1 / rank} shown\n" for rank, id_ in shown]
        for name, own in it["groups"].items():
            for id_, label in zip(ids, own, strict=True):
                shares = label if isinstance(label, dict) else {label: 1.0} if label else {}
                documents[id_] |= {"id": id_, f"label {name}": shares}
                groups[name].update(shares)
            for group, share in exposure["target"].get(name, {}).items():
                groups[name][group] += 0  # who is never found is not forgotten
                aims[name][group] += share * weight / every
        figures = {
            which: _figures(of, it["quality"].get(which, ())) for which, of in exposure.items()
        }
        lists.append({"weight": weight, "arm": it["arm"], **figures})
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
