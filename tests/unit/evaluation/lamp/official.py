"""Entries of the seven tasks in the shape of LaMP's files, with words of these tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Data = dict[str, Any]
_READ = json.loads(Path(__file__).with_suffix(".json").read_text())
OFFICIAL: dict[int, Data] = {int(number): task for number, task in _READ.items()}
"""By task an entry of it (``input`` and ``profile``), and its gold, query and document's text."""

ENTRIES = {n: {"input": it["input"], "profile": it["profile"]} for n, it in OFFICIAL.items()}


def write_set(
    folder: Path, questions: object, outputs: object, prefix: str = "", packed: bool = False
) -> Path:
    """Write questions and outputs, each as JSON or as it is where it is bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("questions", questions), ("outputs", outputs)):
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        path = folder / f"{prefix}{name}.json{'.gz' * packed}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def golds_of(task: str | None, golds: dict[str, Any]) -> Data:
    """Return a file of outputs."""
    listed = [{"id": id_, "output": output} for id_, output in golds.items()]
    return {"golds": listed} if task is None else {"task": task, "golds": listed}
