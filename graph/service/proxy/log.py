"""Makes the log of a proxy a run with labels and queries, which audits read."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import yaml

from fairqr.base.errors import InputError
from fairqr.graph.service.proxy.seen import LOG

Shown = Literal["shown", "engine", "fair"]
"""Which list of each query counts: what was shown, the engine's, or the fair one."""


def as_run(folder: Path, which: Shown = "shown") -> tuple[Path, Path]:
    """Write the last list of each query as a run, and return its source and its queries.

    A query weighs as often as its first page was asked for.

    Args:
        folder: The folder of the log, where the files go.
        which: Which list counts.

    Raises:
        InputError: There is no log, or it has no searches.
    """
    last, asked = dict[str, dict[str, Any]](), Counter[str]()
    if (folder / LOG).is_file():
        for line in (folder / LOG).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            last[record["query"]] = record
            asked[record["query"]] += record["start"] == 0
    if not last:
        raise InputError(f"There is no search in {folder / LOG}; name the folder of a proxy's log.")
    place = folder / which
    place.mkdir(exist_ok=True)
    labels: dict[str, dict[str, Any]] = {}
    with (place / "run.txt").open("w", encoding="utf-8") as run:
        for key, record in last.items():
            ids, order = record["ids"], record["order"]
            if which == "fair" or (which == "shown" and record["arm"] == "fair"):
                ids = [ids[number] for number in order]
            for rank, id_ in enumerate(ids, start=1):
                run.write(f"{key} Q0 {id_} {rank} {1 / rank} {which}\n")
            for name, groups in record["groups"].items():
                labels.setdefault(name, {}).update(zip(record["ids"], groups, strict=True))
    attributes = {}
    for name, groups in labels.items():
        rows = [
            (id_, group, share)
            for id_, own in groups.items()
            for group, share in (own if isinstance(own, dict) else {own: 1.0}).items()
            if group is not None
        ]
        with (place / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("id", "group", "weight"), *rows])
        attributes[name] = {"labels": f"{name}.csv"}
    with (place / "queries.csv").open("w", encoding="utf-8", newline="") as file:
        told = [(key, it.get("words", key), asked[key]) for key, it in last.items()]
        csv.writer(file).writerows([("id", "query", "weight"), *told])
    source = {"name": which, "engine": "run", "runs": ["run.txt"], "topics": "queries.csv"}
    (place / "source.yaml").write_text(yaml.safe_dump({**source, "attributes": attributes}))
    return place / "source.yaml", place / "queries.csv"
