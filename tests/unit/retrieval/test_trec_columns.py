"""Files read by columns give what the line by line reader gives, or are left to it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.base.errors import CorpusError
from fairqr.retrieval.sources import runs, trec_columns
from fairqr.retrieval.sources.runs import Run, read_run
from fairqr.retrieval.sources.trec_columns import UnusualError

scores = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=4).map(str),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["1e3", "+2.5", ".5", "5.", "-0.0", "123456789.123456", "0.30000000000000004"]),
)
ids = st.text("abcXYZ019-_:/", min_size=1, max_size=12)


def by_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def refuse(*_: object) -> Run:
        raise UnusualError

    with monkeypatch.context() as patch:
        patch.setattr(runs, "_read_by_columns", refuse)
        return read_run(path)


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), ids, scores), min_size=1, max_size=30),
    st.sampled_from([" ", "\t", "  "]),
    st.integers(20, 200),
)
def test_both_readers_agree(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[str, str, str]],
    space: str,
    at_once: int,
) -> None:
    path = tmp_path_factory.mktemp("run") / "x.run"
    known = {(query, id_): score for query, id_, score in lines}
    path.write_text(
        "".join(
            space.join((query, "Q0", id_, str(rank), score, "tag")) + "\n"
            for rank, ((query, id_), score) in enumerate(known.items())
        )
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trec_columns, "AT_ONCE", at_once)
        assert runs._read_by_columns(path, "rank") == by_lines(path, patch)


@pytest.mark.parametrize(
    "content",
    [
        "q Q0 a 1 1.0\n",
        "q Q0 a 1 1.0\nt q Q0 b 2 0.5 t\n",
        "q Q0 a 1 1_0 t\n",
        "q Q0 a 1 1e999 t\n",
        "q Q0 a 1 inf t\n",
        "q Q0 a 1.5 1 t\n",
        "q Q0 a 1 1-2 t\n",
        "q Q0 a 1 1 t\nq Q0 a 2 0 t\n",
        "q Q0 a 1 1 t\nq Q0 b 2 0 u\n",
        "q Q0 a\x1cb 1 1 t\n",
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.run"
    path.write_text(content)
    with pytest.raises(CorpusError, match=r"line \d"):
        read_run(path)


def test_what_is_unusual_is_read_all_the_same(tmp_path: Path) -> None:
    """Blank lines, spaces at the beginning, ids that are no ASCII, samples, a packed file."""
    path = tmp_path / "x.run.gz"
    content = "\n  q Q0 é 1 2 t#1\n\nq Q0 b 2 1 t#1\nq Q0 b 1 1 t#2"
    path.write_bytes(gzip.compress(content.encode()))
    assert [ranking.ids for ranking in read_run(path).rankings["q"]] == [["é", "b"], ["b"]]
