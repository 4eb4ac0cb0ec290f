"""Counterfactual pairs: their files, what scores them, and what is said of two versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import FairqrError, InputError, SourceError
from fairqr.evaluation.audit.pair_files import PairDocument, Pairs, read_pairs
from fairqr.evaluation.audit.pairs import compare_versions, open_pair_scorer, scored
from fairqr.evaluation.audit.records import PairScores
from fairqr.retrieval.documents import Document
from tests.integration.local_model import minilm_cache, pulled_minilm
from tests.unit.retrieval.embedded import built

__all__ = ["minilm_cache", "pulled_minilm"]

HEAD = "query,pair,version,text"


def written(path: Path, *lines: str, name: str = "pairs.csv") -> Path:
    found = path / name
    found.write_text("".join(f"{line}\n" for line in lines))
    return found


def scores_of(values: Sequence[Sequence[Sequence[float]]], *versions: str) -> list[PairScores]:
    """Return records: for each query its pairs, and for each pair a score of each version."""
    return [
        PairScores(
            query=number,
            status="ok",
            pairs=tuple(pair for pair, row in enumerate(pairs) for _ in row),
            versions=versions * len(pairs),
            scores=tuple(score for row in pairs for score in row),
        )
        for number, pairs in enumerate(values, start=1)
    ]


def test_a_file_is_read_as_csv_and_as_json_lines(tmp_path: Path) -> None:
    table = written(
        tmp_path,
        HEAD,
        "good nurse,1,f,She cares",
        "good nurse,1,m,He cares",
        "",
        "good nurse,2,f,Her shift",
        "good nurse,2,m,His shift",
    )
    found = read_pairs(table)
    (query,) = found.queries
    assert (query.id, query.text, found.are_texts) == (1, "good nurse", True)
    assert query.documents[1] == PairDocument("1", "m", None, "", "He cares")
    rows = [
        f'{{"query": "good nurse", "pair": {pair}, "version": "{version}", "text": "{text}"}}'
        for pair, version, text in (
            (1, "f", "She cares"),
            (1, "m", "He cares"),
            (2, "f", "Her shift"),
            (2, "m", "His shift"),
        )
    ]
    same = read_pairs(written(tmp_path, *rows, name="pairs.jsonl"))
    assert same == found
    assert same.fingerprint == found.fingerprint


def test_without_a_pair_all_documents_of_a_query_are_versions_of_one(tmp_path: Path) -> None:
    found = read_pairs(
        written(tmp_path, "version,query,document", "f,a,d1", "m,a,d2", "n,a,d3", "f,b,d4", "m,b,5")
    )
    assert not found.are_texts
    assert [[it.id for it in query.documents] for query in found.queries] == [
        ["d1", "d2", "d3"],
        ["d4", "5"],
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((HEAD,), "are empty; give a row"),
        (("query,text", "a,b"), "line 1: it names query, text; name each column once"),
        ((HEAD, "a,1,f,x", "a,1,f,y"), "line 3: the version 'f' of its pair was there before"),
        ((HEAD, "a,1,f,x", "a,2,m,y"), "line 2: its document has no second version"),
        ((HEAD, "a,1,f,x", "a,1,m,"), "line 3: it has neither a document nor a text"),
        ((HEAD, "a,1,,x"), "line 2: it has no version"),
        ((HEAD, "a,1,f"), "line 2: it has 3 columns, and the first line 4"),
        ((HEAD, 'a,1,f,"x'), "it is not CSV"),
        (
            ("query,version,document,text", "a,f,d1,", "a,m,,x"),
            "line 3: some lines have a document's id, and others a text",
        ),
        (("query,version,document,text", "a,f,d1,x"), "line 2: it has both a document and a text"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, lines: Sequence[str], said: str
) -> None:
    with pytest.raises(FairqrError, match=said):
        read_pairs(written(tmp_path, *lines))


def test_a_line_that_is_no_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="line 1"):
        read_pairs(written(tmp_path, "[1]", name="pairs.jsonl"))


def test_a_planted_difference_is_found_in_its_size() -> None:
    random = np.random.default_rng(3)
    base = random.normal(size=(60, 3))
    noise = random.normal(scale=0.1, size=(60, 3, 2))
    values = base[..., None] + noise + np.array([0.3, 0.0])
    found = compare_versions("s", scores_of(values.tolist(), "m", "f"), seed=0)
    (it,) = found.comparisons
    assert (it.first, it.second, it.pairs, it.difference.queries) == ("m", "f", 180, 60)
    mean = (values[..., 0] - values[..., 1]).mean()
    assert it.difference.value == pytest.approx(mean / values.std())
    assert it.difference.low < 0.3 / values.std() < it.difference.high
    assert it.difference.p is not None
    assert it.difference.p < 0.001
    assert it.higher.value == pytest.approx((values[..., 0] > values[..., 1]).mean())
    assert it.equal.value == 0


def test_pairs_of_one_query_count_as_one() -> None:
    """A hundred pairs of three queries are three, and so too few to tell."""
    values = np.random.default_rng(5).normal(size=(3, 100, 2)) + np.array([2.0, 0.0])
    (it,) = compare_versions("s", scores_of(values.tolist(), "m", "f"), seed=0).comparisons
    assert it.pairs == 300
    assert it.difference.p is None
    assert np.isnan(it.difference.low)


def test_each_two_versions_are_compared_and_tests_corrected() -> None:
    values = np.random.default_rng(7).normal(scale=0.1, size=(10, 1, 3)) + np.array([1, 0, 0])
    found = compare_versions("s", scores_of(values.tolist(), "m", "f", "n"), seed=0)
    by_pair = {(it.first, it.second): it.difference.p for it in found.comparisons}
    # All 10 differences are above 0, so that the exact p is 2/1024, for each of two of three tests.
    assert by_pair["m", "f"] == pytest.approx(3 * 2 / 1024)
    assert by_pair["m", "n"] == pytest.approx(3 * 2 / 1024)
    assert (by_pair["f", "n"] or 0) > 0.05


def test_missing_documents_and_failed_queries_are_counted() -> None:
    records = [
        *scores_of([[[1.0, 0.0]], [[2.0, 2.0]]], "m", "f"),
        PairScores(query=3, status="ok", pairs=(0, 0), versions=("m", "f"), scores=(1.0, None)),
        PairScores(query=4, status="failed", message="The engine is slow."),
    ]
    found = compare_versions("s", records, seed=0)
    assert (found.queries, found.failed, found.missing) == (4, 1, 1)
    (it,) = found.comparisons
    assert (it.pairs, it.higher.value, it.equal.value) == (2, 0.5, 0.5)


def test_scores_that_are_all_alike_have_no_spread() -> None:
    found = compare_versions("s", scores_of([[[1.0, 1.0]]] * 8, "m", "f"), seed=0)
    (it,) = found.comparisons
    assert np.isnan(it.difference.value)
    assert it.equal.value == 1
    assert it.difference.p == 1


async def test_the_engine_and_readers_of_texts_score(tmp_path: Path, minilm_cache: Path) -> None:
    texts = read_pairs(written(tmp_path, HEAD, "nurse,1,f,a nurse she", "nurse,1,m,a doctor he"))
    ids = read_pairs(
        written(tmp_path, "query,version,document", "nurse,f,d1", "nurse,m,d2", "nurse,n,gone")
    )
    people = [
        Document("d1", "", "a nurse", {"gender": "female"}),
        Document("d2", "", "a doctor", {"gender": "male"}),
    ]
    engine = built(tmp_path / "v1", people)

    async def scores(name: str, pairs: Pairs) -> tuple[float, ...]:
        scorer = open_pair_scorer(name, pairs, engine)
        await scorer.start()
        record = scored(pairs.queries[0], await scorer.scores(pairs.queries[0]))
        return tuple(-1.0 if score is None else score for score in record.scores)

    nurse, doctor, gone = await scores("engine", ids)
    assert nurse > doctor == 0 > gone
    for name in ("bm25", "dense:minilm"):
        nurse, doctor = await scores(name, texts)
        assert nurse > doctor
    for name, pairs, said in (
        ("engine", texts, "an engine scores only documents that it holds"),
        ("bm25", ids, "'bm25' reads texts"),
        ("listwise", texts, "Nothing scores pairs as 'listwise'"),
    ):
        with pytest.raises(InputError, match=said):
            await scores(name, pairs)
