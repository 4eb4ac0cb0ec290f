"""``fairqr audit --pairs``: what reads texts scores the versions of documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.model_server import Main, clean_environment, quick, write_people

__all__ = ["clean_environment", "quick"]


def test_a_preference_in_one_segment_is_found_there(
    clean_environment: Path, monkeypatch: pytest.MonkeyPatch, quick: Main
) -> None:
    monkeypatch.chdir(clean_environment)
    corpus = write_people(Path("people"))
    rows = "".join(
        f"{it},1,care,f,A good nurse: she cares.\n{it},1,care,m,He cares.\n"
        f"{it},2,pay,f,A nurse earns.\n{it},2,pay,m,A nurse works.\n"
        for it in [f"good nurse {number}" for number in range(8)]
    )
    Path("pairs.csv").write_text(f"query,pair,segment,version,text\n{rows}")
    Path("queries.txt").write_text("physicist\n")
    run = quick(
        *("audit", "--corpus", str(corpus), "--queries", "queries.txt", "--attribute", "gender"),
        *("-k", "2", "--depth", "4", "--pairs", "pairs.csv", "--pairs-by", "bm25"),
        *("--set", "concurrency=1", "--target", "uniform:1", "-o", "out"),
    )
    assert run.code == 0, run.stderr
    assert "32 versions for 8 queries by 'bm25'" in run.stderr
    found = json.loads(Path("out/audit.json").read_text())["pairs"]
    assert (found["scored_by"], found["tests"]["family"]) == ("bm25", 3)
    assert [it["segment"] for it in found["comparisons"]] == ["", "care", "pay"]
    _, care, pay = found["comparisons"]
    assert (care["higher"]["value"], care["difference"]["p"]) == (1, pytest.approx(3 * 2 / 256))
    # Scores that are all alike have no spread.
    assert (pay["equal"]["value"], pay["difference"]["value"]) == (1, None)
    assert pay["difference"]["p"] == 1
    said = " ".join(run.stdout.split())
    assert "In the segment 'care', 'bm25' scores the version 'f' of a document higher" in said
    assert "segment 'pay'" not in said
    report = Path("out/report.md").read_text()
    assert "| all | f and m | 16 |" in report
    assert "| care | f and m | 8 |" in report
    assert "\ncare,f,m,8," in Path("out/pairs.csv").read_text()
    scores = Path("out/raw/pairs.jsonl").read_text()
    assert "nurse" not in scores
    assert quick("audit", "verify", "out").code == 0
