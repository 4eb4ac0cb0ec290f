"""Small files in the shapes of TREC Fair 2021 and 2022, as the track's code reads them.

They stand in ``official.json``. Those of 2022 have training topics in two shapes, a page whose id
stands twice as the real corpus does, metadata in another order than the articles, and the list that
the topics were chosen from, which is no file of topics. Those of 2021 have the metadata of before
and of after the evaluation, and the one wrong gender.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FILES = json.loads(Path(__file__).with_suffix(".json").read_text())


def lines(path: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    """Write JSON Lines, packed where the name says so."""
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def write_2022(folder: Path) -> Path:
    """Write the files of 2022."""
    return write_official(folder, "2022")


def write_official(folder: Path, year: str) -> Path:
    """Write the files of a year."""
    for name, records in FILES[year].items():
        lines(folder / name, records)
    return folder
