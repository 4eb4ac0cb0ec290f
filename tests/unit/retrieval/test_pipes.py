"""A pipe or a device in the place of a file is refused at once, in a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import FairqrError
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import read_documents
from fairqr.retrieval.sources.label_files import read_labels
from fairqr.retrieval.sources.query_files import read_queries
from fairqr.retrieval.sources.runs import read_run
from fairqr.retrieval.sources.schema import load_schema
from fairqr.retrieval.sources.source import load_source


def labels(path: Path) -> Iterable[object]:
    return read_labels(path, "gender")


READERS: list[tuple[str, Callable[[Path], Any]]] = [
    ("source.yaml", load_source),
    ("schema.yaml", load_schema),
    ("people.jsonl", read_documents),
    ("people.jsonl.gz", read_documents),
    ("people.csv", read_documents),
    ("gender.csv", labels),
    ("queries.txt", read_queries),
    ("queries.csv", read_queries),
    ("baseline.run", read_run),
]


@pytest.mark.parametrize("is_endless", [False, True])
@pytest.mark.parametrize(("name", "read"), READERS)
def test_no_reader_waits_for_a_pipe_or_reads_a_device(
    name: str, read: Callable[[Path], Any], is_endless: bool, tmp_path: Path
) -> None:
    path = tmp_path / name
    if is_endless:
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)

    with pytest.raises(FairqrError, match="it is a pipe or a device, and no file") as refused:
        # Some readers yield what they read.
        dict.fromkeys(map(str, read(path)))
    assert str(path) in str(refused.value)


async def test_no_corpus_is_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "people.jsonl"
    os.mkfifo(path)
    with pytest.raises(FairqrError, match=r"There is no corpus at .*; give a JSON Lines file"):
        await Catalog(tmp_path / "data").resolve(str(path))
