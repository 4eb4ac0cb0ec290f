"""``fairqr audit --pairs``: what reads texts scores the versions of documents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.integration.model_server import Main, clean_environment, quick, write_people

__all__ = ["clean_environment", "quick"]

QUERIES = [f"good nurse {number}" for number in range(8)]


@pytest.fixture
def asked(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The arguments of an audit with a pair of versions for each of eight queries."""
    monkeypatch.chdir(clean_environment)
    corpus = write_people(Path("people"))
    rows = "".join(f"{it},f,A good nurse: she cares.\n{it},m,He cares.\n" for it in QUERIES)
    Path("pairs.csv").write_text(f"query,version,text\n{rows}")
    Path("queries.txt").write_text("physicist\n")
    return (
        *("audit", "--corpus", str(corpus), "--queries", "queries.txt", "--attribute", "gender"),
        *("-k", "2", "--depth", "4", "--pairs", "pairs.csv", "--pairs-by", "bm25"),
        *("--set", "concurrency=1", "--target", "uniform:1"),
    )


def test_a_preference_for_a_version_is_found_out(asked: tuple[str, ...], quick: Main) -> None:
    run = quick(*asked, "-o", "out")
    assert run.code == 0, run.stderr
    assert "16 versions for 8 queries by 'bm25'" in run.stderr
    found = json.loads(Path("out/audit.json").read_text())["pairs"]
    assert found["scored_by"] == "bm25"
    (it,) = found["comparisons"]
    assert (it["higher"]["value"], it["equal"]["value"]) == (1, 0)
    assert it["difference"]["p"] == pytest.approx(2 / 256)
    assert "scores the version 'f' of a document higher" in run.stdout.replace("\n", " ")
    assert "first higher" in Path("out/report.md").read_text()
    scores = gzip.decompress(Path("out/raw/pairs.jsonl.gz").read_bytes()).decode()
    assert "nurse" not in scores
    assert quick("audit", "verify", "out").code == 0


def test_ids_are_for_the_engine(asked: tuple[str, ...], quick: Main) -> None:
    Path("pairs.csv").write_text("query,version,document\nnurse,f,d1\nnurse,m,d2\n")
    assert "'bm25' reads texts" in quick(*asked, "-o", "out").complaint()
