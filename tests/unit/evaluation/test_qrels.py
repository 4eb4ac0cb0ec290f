"""Judgements: what is read, and which lines are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.base.errors import CorpusError
from fairqr.evaluation.qrels import read_qrels, write_qrels


def write(folder: Path, *lines: str) -> Path:
    path = folder / "file.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_judgements(tmp_path: Path) -> None:
    path = write(tmp_path, "1 0 a 2", "1 0 b 0", "2 0 a -1")
    qrels = read_qrels(path)
    assert qrels == {"1": {"a": 2, "b": 0}, "2": {"a": -1}}
    again = tmp_path / "again.txt"
    write_qrels(again, qrels)
    assert read_qrels(again) == qrels


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 0 b", "line 2: it has 3 fields instead of the 4"),
        ("1 0 b yes", "line 2: its grade 'yes' is not a whole number"),
        ("1 0 a 0", "line 2: the document 'a' is judged twice"),
    ],
)
def test_a_bad_judgement_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(CorpusError) as caught:
        read_qrels(write(tmp_path, "1 0 a 1", line))
    assert words in str(caught.value)
