"""Run files: what is read, how ties are decided, and which lines are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fairqr.base.errors import CorpusError, InputError
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.runs import SystemRun, read_run


def write(folder: Path, *lines: str) -> Path:
    path = folder / "file.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_scores_order_a_run_whatever_the_ranks_say(tmp_path: Path) -> None:
    """A byte order mark, blank lines, ids that are no ASCII, samples and a packed file are read."""
    lines = ["\ufeff", "q Q0 é 1 0.5 t#1", "  q\tQ0 b 2 1.5e0 t#1\r", "", "q Q0 b 1 1 t#2"]
    path = tmp_path / "x.run.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, "2 Q0 c 1 -1e3 t#1"]).encode()))
    samples = [Ranking(["b", "é"], [1.5, 0.5]), Ranking(["b"], [1.0])]
    rankings = {"q": samples, "2": [Ranking(["c"], [-1000.0])]}
    assert read_run(path) == SystemRun("t", rankings, 0, "the rank in the file")


TIED = ("1 Q0 b 1 1 s", "1 Q0 c 2 1 s", "1 Q0 a 3 1 s", "1 Q0 z 4 2 s")


@pytest.mark.parametrize(
    ("ties", "order"), [("rank", "zbca"), ("id", "zabc"), ("trec_eval", "zcba")]
)
def test_ties_are_decided_as_asked(tmp_path: Path, ties: str, order: str) -> None:
    run = read_run(write(tmp_path, *TIED), ties=ties)  # type: ignore[arg-type]
    assert run.rankings["1"][0].ids == list(order)
    assert run.tied == 2


def test_ties_can_be_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the query '1' has 2 documents with the same score"):
        read_run(write(tmp_path, *TIED), ties="error")
    with pytest.raises(InputError, match="cannot be ordered by 'coin'; choose rank, id"):
        read_run(write(tmp_path, *TIED), ties="coin")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 Q0 x 2 0.5", "line 2: it has 5 fields instead of the 6"),
        ("1 Q0 x two 0.5 sys", "line 2: its rank 'two' or its score '0.5' is not a finite number"),
        ("1 Q0 a 2 0.5 sys", "line 2: the document 'a' comes twice"),
        ("1 Q0 x 2 0.5 other", "line 2: its tag 'other' belongs to another run than 'sys'"),
        ("1 Q0 \udcff 1 1 sys", "is not UTF-8 text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "run"
    path.write_text(f"1 Q0 a 1 1.0 sys\n{line}\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(CorpusError) as caught:
        read_run(path)
    assert words in str(caught.value)


def test_what_is_empty_or_absent_or_breaks_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="is empty"):
        read_run(write(tmp_path, "", " "))
    with pytest.raises(CorpusError, match="cannot be read"):
        read_run(tmp_path / "nowhere")
    packed = tmp_path / "cut.run.gz"
    packed.write_bytes(gzip.compress(b"1 Q0 a 1 1 s\n1 Q0 b 2 0 s\n")[:-9])
    with pytest.raises(CorpusError, match=r"cut\.run\.gz cannot be read to its end"):
        read_run(packed)
