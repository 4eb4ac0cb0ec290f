"""Counterfactual pairs: their files, what scores them, and what is said of two versions."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from fairqr.base.errors import FairqrError, InputError
from fairqr.evaluation.audit.bundle import PairScores, VersionScores
from fairqr.evaluation.audit.pairs import Pairs, compare_versions, open_pairs, read_pairs
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.documents import Document
from tests.servers.local_model import minilm_cache, pulled_minilm
from tests.unit.retrieval.embedded import built

__all__ = ["minilm_cache", "pulled_minilm"]

HEAD = "query,pair,version,text"


def written(path: Path, *lines: str, name: str = "pairs.csv") -> Path:
    """Write a file of pairs, which a name may compress."""
    file = path / name
    text = "".join(f"{line}\n" for line in lines).encode()
    file.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return file


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


def test_without_a_pair_all_documents_of_a_query_are_versions(tmp_path: Path) -> None:
    ids = ("f,a,d1", "m,a,d2", "n,a,d3", "f,b,d4", "m,b,5")
    pairs = read_pairs(written(tmp_path, "version,query,document", *ids))
    documents = [[version.document for version in query.documents] for query in pairs]
    assert documents == [["d1", "d2", "d3"], ["d4", "5"]]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        pytest.param((HEAD,), "are empty; give a row", id="no row"),
        pytest.param(
            ("query,text", "a,b"),
            "line 2: it needs a query, a version, and either",
            id="no version",
        ),
        pytest.param(
            ("query,query,version,text", "a,b,c,d"),
            "line 1: it names the column 'query' twice",
            id="a column twice",
        ),
        pytest.param(
            (HEAD, "a,1,f,x", "a,1,f,y"),
            "line 3: its pair has this version already",
            id="a version twice",
        ),
        pytest.param(
            (HEAD, "a,1,f,x", "a,1,m,y", "a,2,m,y"),
            "line 4: its document has no second version",
            id="one version",
        ),
        pytest.param(
            ("query,version,segment,text", "a,f,b,x", "a,m,c,y"),
            "line 3: its pair has another seg",
            id="two segments",
        ),
        pytest.param(
            ("query,version,document,text", "a,f,d1,x"),
            "line 2: it needs .* either a document or a",
            id="a document and a text",
        ),
        pytest.param(
            (HEAD, "a,1,f"), "line 2: it needs a query, a version, and", id="a missing cell"
        ),
        pytest.param((HEAD, 'a,1,f,"x'), "it is not CSV", id="an open quote"),
        pytest.param(
            ("query,version,document,text", "a,f,d1,", "a,m,,x"),
            "line 3: some lines have a doc",
            id="documents and texts",
        ),
        pytest.param(("[1]",), "pairs.jsonl, line 1: it is a JSON list", id="a list"),
        pytest.param(
            ('{"query": "a", "version": ["f"]}',),
            "line 1: its version is not text",
            id="no text",
        ),
    ],
)
def test_a_fault_of_a_file_is_named_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], sentence: str
) -> None:
    name = "pairs.jsonl" if lines[0][0] in "[{" else "pairs.csv"

    with pytest.raises(FairqrError, match=sentence):
        read_pairs(written(tmp_path, *lines, name=name))


@pytest.mark.promise("audit")
def test_a_planted_difference_is_found_in_its_size() -> None:
    """A difference between versions of documents is found in its size."""
    random = np.random.default_rng(3)
    base = random.normal(size=(60, 3))
    noise = random.normal(scale=0.1, size=(60, 3, 2))
    values = base[..., None] + noise + np.array([0.3, 0.0])

    (comparison,) = compare_versions("s", scores_of(values, "a", "b"), seed=0).comparisons

    assert (comparison.first, comparison.second) == ("a", "b")
    difference = comparison.difference
    assert (comparison.pairs, difference.queries) == (180, 60)
    mean = (values[..., 0] - values[..., 1]).mean()
    assert difference.value == pytest.approx(mean / values.std())
    assert difference.low < 0.3 / values.std() < difference.high
    assert (difference.p or 1) < 0.001
    assert comparison.higher.value == pytest.approx((values[..., 0] > values[..., 1]).mean())
    assert comparison.equal.value == 0


def test_pairs_of_one_query_count_as_one() -> None:
    """A hundred pairs of three queries are too few to tell."""
    values = np.random.default_rng(5).normal(size=(3, 100, 2)) + np.array([2.0, 0.0])

    (comparison,) = compare_versions("s", scores_of(values, "a", "b"), seed=0).comparisons

    assert comparison.pairs == 300
    assert comparison.difference.p is None
    assert np.isnan(comparison.difference.low)


@pytest.mark.promise("audit")
def test_a_difference_is_found_only_in_its_segment() -> None:
    """A difference between versions of documents is found only in the segment that has it.

    Each query has a pair of either segment, in three versions; 'a' is higher in one of them. Tests
    are corrected together.
    """
    values = np.random.default_rng(7).normal(scale=0.1, size=(12, 2, 3))
    values[:, 0, 0] += 1
    records = scores_of(values, "a", "b", "c", segments=("love", "work"))

    comparisons = compare_versions("s", records, seed=0).comparisons

    differences = {(it.segment, it.first + it.second): it.difference for it in comparisons}
    segments = ("", "love", "work")
    assert [*differences] == [*itertools.product(segments, ("ab", "ac", "bc"))]
    # All 12 differences are above 0, in "love" and in the means of both pairs of a query.
    expected = pytest.approx(9 * 2 / 4096)
    assert differences["love", "ab"].p == differences["", "ac"].p == expected
    assert min(differences["work", "ab"].p or 0, differences["", "bc"].p or 0) > 0.05


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


@pytest.fixture
def texts(tmp_path: Path) -> Pairs:
    """A pair of texts, of which the first is nearer to its query."""
    rows = ("nurse,1,f,a nurse she,", "nurse,1,m,a doctor he,")
    return read_pairs(written(tmp_path, f"{HEAD},document", *rows))


@pytest.fixture
def ids(tmp_path: Path) -> Pairs:
    """Ids of three versions, of which the engine has two."""
    rows = ("nurse,2,f,,d1", "nurse,2,m,,d2", "nurse,2,n,,gone")
    return read_pairs(written(tmp_path, f"{HEAD},document", *rows))


@pytest.fixture
def engine(tmp_path: Path) -> TantivyEngine:
    return built(tmp_path / "v1", [Document("d1", "", "a nurse"), Document("d2", "", "a doctor")])


async def scores(name: str, pairs: Pairs, engine: TantivyEngine) -> list[float | None]:
    """Score the first pair, by the engine or by a reader of texts."""
    scorer = await open_pairs(name, pairs, engine)
    (pair,) = (await scorer.do(pairs[0])).records[0].pairs
    return list(pair.scores.values())


async def test_the_engine_scores_documents(ids: Pairs, engine: TantivyEngine) -> None:
    nurse, doctor, missing = await scores("engine", ids, engine)

    assert (nurse or 0) > (doctor or 0)
    assert missing is None


@pytest.mark.usefixtures("minilm_cache")
@pytest.mark.parametrize("name", ["bm25", "dense:minilm"])
async def test_readers_score_texts(name: str, texts: Pairs, engine: TantivyEngine) -> None:
    nurse, doctor = await scores(name, texts, engine)

    assert (nurse or 0) > (doctor or 0)


@pytest.mark.parametrize(
    ("name", "fixture"),
    [
        pytest.param("engine", "texts", id="texts by the engine"),
        pytest.param("bm25", "ids", id="documents by a reader"),
        pytest.param("splade", "texts", id="an unknown reader"),
    ],
)
async def test_what_cannot_score_is_refused(
    name: str, fixture: str, engine: TantivyEngine, request: pytest.FixtureRequest
) -> None:
    pairs = request.getfixturevalue(fixture)

    with pytest.raises(InputError, match=f"which '{name}' does not score; choose --pairs-by"):
        await scores(name, pairs, engine)
