"""Counterfactual pairs: their files, what scores them, and what is said of two versions."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from fairqr.base.errors import FairqrError, InputError
from fairqr.evaluation.audit.bundle import PairScores, VersionScores
from fairqr.evaluation.audit.pairs import Pairs, compare_versions, open_pairs, read_pairs
from fairqr.retrieval.sources.documents import Document
from tests.servers.local_model import minilm_cache, pulled_minilm
from tests.unit.retrieval.embedded import built

__all__ = ["minilm_cache", "pulled_minilm"]

HEAD = "query,pair,version,text"


def written(path: Path, *lines: str, name: str = "pairs.csv") -> Path:
    found = path / name
    text = "".join(f"{line}\n" for line in lines).encode()
    found.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return found


def scores_of(
    values: ArrayLike, *versions: str, segments: Sequence[str] = ("",) * 100
) -> list[PairScores]:
    """Return records: for each query its pairs, and for each pair a score of each version."""
    found = []
    for number, pairs in enumerate(np.asarray(values).tolist(), start=1):
        scores = [dict(zip(versions, row, strict=True)) for row in pairs]
        held = zip(segments, scores, strict=False)
        scored = tuple(VersionScores(segment=segment, scores=it) for segment, it in held)
        found.append(PairScores(query=number, status="ok", pairs=scored))
    return found


def test_a_file_is_read_as_csv_and_as_json_lines(tmp_path: Path) -> None:
    names = ("pair", "query", "version", "segment", "text")
    rows = [(1, "x", "f", "love", "She"), (1, "x", "m", "love", "He"), (2, "x", "f", "", "Her")]
    rows.append((2, "x", "m", "", "His"))
    lines = (",".join(map(str, row)) for row in (names, *rows))
    found = read_pairs(written(tmp_path, "", *lines))
    assert [query.id for query in found] == [1]
    assert found[0].documents[1] == ("x", "m", "1", "love", "", "", "He")
    objects = (json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    assert read_pairs(written(tmp_path, *objects, name="pairs.jsonl.gz")) == found
    # Without a pair all documents of a query are versions of one.
    ids = ("f,a,d1", "m,a,d2", "n,a,d3", "f,b,d4", "m,b,5")
    of_ids = read_pairs(written(tmp_path, "version,query,document", *ids))
    held = [[it.document for it in query.documents] for query in of_ids]
    assert held == [["d1", "d2", "d3"], ["d4", "5"]]


def test_what_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    for lines, said in (
        ((HEAD,), "are empty; give a row"),
        (("query,text", "a,b"), "line 2: it needs a query, a version, and either"),
        (("query,query,version,text", "a,b,c,d"), "line 1: it names the column 'query' twice"),
        ((HEAD, "a,1,f,x", "a,1,f,y"), "line 3: its pair has this version already"),
        ((HEAD, "a,1,f,x", "a,1,m,y", "a,2,m,y"), "line 4: its document has no second version"),
        (("query,version,segment,text", "a,f,b,x", "a,m,c,y"), "line 3: its pair has another seg"),
        (("query,version,document,text", "a,f,d1,x"), "line 2: it needs .* either a document or a"),
        ((HEAD, "a,1,f"), "line 2: it needs a query, a version, and"),
        ((HEAD, 'a,1,f,"x'), "it is not CSV"),
        (("query,version,document,text", "a,f,d1,", "a,m,,x"), "line 3: some lines have a doc"),
        (("[1]",), "pairs.jsonl, line 1: it is a JSON list"),
        (('{"query": "a", "version": ["f"]}',), "line 1: its version is not text"),
    ):
        name = "pairs.jsonl" if lines[0][0] in "[{" else "pairs.csv"
        with pytest.raises(FairqrError, match=said):
            read_pairs(written(tmp_path, *lines, name=name))


def test_a_planted_difference_is_found_in_its_size_and_in_its_segment() -> None:
    """Tests are corrected together."""
    random = np.random.default_rng(3)
    base = random.normal(size=(60, 3))
    noise = random.normal(scale=0.1, size=(60, 3, 2))
    values = base[..., None] + noise + np.array([0.3, 0.0])
    (it,) = compare_versions("s", scores_of(values, "a", "b"), seed=0).comparisons
    assert (it.first, it.second, it.pairs, it.difference.queries) == ("a", "b", 180, 60)
    mean = (values[..., 0] - values[..., 1]).mean()
    assert it.difference.value == pytest.approx(mean / values.std())
    assert it.difference.low < 0.3 / values.std() < it.difference.high
    assert (it.difference.p or 1) < 0.001
    assert it.higher.value == pytest.approx((values[..., 0] > values[..., 1]).mean())
    assert it.equal.value == 0
    # Pairs of one query count as one: a hundred pairs of three queries are too few to tell.
    values = np.random.default_rng(5).normal(size=(3, 100, 2)) + np.array([2.0, 0.0])
    (it,) = compare_versions("s", scores_of(values, "a", "b"), seed=0).comparisons
    assert (it.pairs, it.difference.p, np.isnan(it.difference.low)) == (300, None, True)
    # Each query has a pair of either segment, in three versions; 'a' is higher in one of them.
    values = np.random.default_rng(7).normal(scale=0.1, size=(12, 2, 3))
    values[:, 0, 0] += 1
    records = scores_of(values, "a", "b", "c", segments=("love", "work"))
    comparisons = compare_versions("s", records, seed=0).comparisons
    found = {(it.segment, it.first + it.second): it.difference for it in comparisons}
    assert [*found] == [(it, both) for it in ("", "love", "work") for both in ("ab", "ac", "bc")]
    # All 12 differences are above 0, in "love" and in the means of both pairs of a query.
    assert found["love", "ab"].p == found["", "ac"].p == pytest.approx(9 * 2 / 4096)
    assert min(found["work", "ab"].p or 0, found["", "bc"].p or 0) > 0.05


def test_missing_documents_and_failed_queries_are_counted() -> None:
    half = VersionScores(scores={"a": 1.0, "b": None})
    records = [
        *scores_of([[[1.0, 0.0]], [[2.0, 2.0]]], "a", "b"),
        PairScores(query=3, status="ok", pairs=(half,)),
        PairScores(query=4, status="failed", message="The engine is slow."),
    ]
    found = compare_versions("s", records, seed=0)
    assert (found.queries, found.failed, found.missing) == (4, 1, 1)
    (it,) = found.comparisons
    assert (it.pairs, it.higher.value, it.equal.value) == (2, 0.5, 0.5)


async def test_the_engine_and_readers_of_texts_score(tmp_path: Path, minilm_cache: Path) -> None:
    head = f"{HEAD},document"
    texts = read_pairs(written(tmp_path, head, "nurse,1,f,a nurse she,", "nurse,1,m,a doctor he,"))
    ids = read_pairs(written(tmp_path, head, "nurse,2,f,,d1", "nurse,2,m,,d2", "nurse,2,n,,gone"))
    engine = built(tmp_path / "v1", [Document("d1", "", "a nurse"), Document("d2", "", "a doctor")])

    async def scores(name: str, pairs: Pairs) -> list[float | None]:
        scored = await open_pairs(name, pairs, engine)
        (pair,) = (await scored.do(pairs[0])).records[0].pairs
        return list(pair.scores.values())

    for name, pairs in (("engine", ids), ("bm25", texts), ("dense:minilm", texts)):
        nurse, doctor, *gone = await scores(name, pairs)
        assert (nurse or 0) > (doctor or 0)
        assert gone == [None] * (name == "engine")
    for name, pairs in (("engine", texts), ("bm25", ids), ("splade", texts)):
        with pytest.raises(InputError, match=f"which '{name}' does not score; choose --pairs-by"):
            await scores(name, pairs)
