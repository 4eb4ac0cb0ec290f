"""The queries of an audit: what is put together, what a sample draws, and what is refused."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fairqr.base.errors import InputError
from fairqr.evaluation.audit import queries as module
from fairqr.evaluation.audit.queries import (
    collect_queries,
    read_audit_queries,
)
from fairqr.retrieval.query_files import QueryColumns, QueryRow

BY_COUNT = QueryColumns(weight="count")


def numbered(texts: Sequence[str], weights: Sequence[float] | None = None) -> list[QueryRow]:
    given = [1.0] * len(texts) if weights is None else weights
    return [
        QueryRow(line, None, text, weight)
        for line, (text, weight) in enumerate(zip(texts, given, strict=True), start=1)
    ]


def surprise(observed: Sequence[float], expected: Sequence[float]) -> float:
    """Return the p value of the chi-square test of goodness of fit."""
    seen, wanted = np.array(observed), np.array(expected)
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return float(chi2.sf(statistic, len(seen) - 1))


def test_lines_with_the_same_text_are_one_query(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("query,count\nred  shoes,12\nblue hat,3\n red shoes ,0.5\nhat,0\nRed shoes,1")
    found = read_audit_queries(path, BY_COUNT)
    assert [(query.text, query.weight, query.lines, query.asks) for query in found.queries] == [
        ("red shoes", 12.5, 2, 12.5),
        ("blue hat", 3.0, 1, 3.0),
        ("Red shoes", 1.0, 1, 1.0),
    ]
    assert (found.lines, found.distinct, found.weight) == (4, 3, 16.5)
    assert found.design == (
        "All 3 different queries of 4 lines were asked; each counts by its 'count'. "
        "Lines of weight 0, left out: 1."
    )


@pytest.mark.parametrize("sample", [None, 2])
def test_blank_queries_are_refused_with_their_lines(tmp_path: Path, sample: int | None) -> None:
    path = tmp_path / "log.csv"
    path.write_text("query,count\nred,1\n,4\n  ,0\nblue,1\n" + ",1\n" * 5)
    with pytest.raises(InputError, match="no text in lines 3, 4, 6, 7, 8, …; fill or remove"):
        read_audit_queries(path, BY_COUNT, sample=sample)


def test_without_weights_each_line_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "queries.txt"
    path.write_text("red\nblue\nred\n")
    found = read_audit_queries(path)
    assert [(query.text, query.weight, query.lines) for query in found.queries] == [
        ("red", 2.0, 2),
        ("blue", 1.0, 1),
    ]
    assert found.design == (
        "All 2 different queries of 3 lines were asked; each counts by its number of lines."
    )


def test_ids_are_those_of_the_file_or_hashes_of_texts(tmp_path: Path) -> None:
    """Two audits can so be compared by query, whatever else their files hold."""
    (tmp_path / "topics.tsv").write_text("7\tred\n8\tblue\n9\tred\n")
    assert [query.id for query in read_audit_queries(tmp_path / "topics.tsv").queries] == ["7", "8"]
    (tmp_path / "may.txt").write_text("red\nblue\n")
    (tmp_path / "june.txt").write_text("green\n  red\n")
    may = {query.text: query.id for query in read_audit_queries(tmp_path / "may.txt").queries}
    june = {query.text: query.id for query in read_audit_queries(tmp_path / "june.txt").queries}
    assert may["red"] == june["red"] == "b1f51a511f1da0cd"
    assert len({*may.values(), *june.values()}) == 3


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "The queries given are empty; give at least one query."),
        (numbered(["", ""]), "The queries given have no text in lines 1, 2; fill or remove these."),
        (numbered(["a", "b"], [0, 0]), "All weights of the queries given are 0; name another"),
        (
            [QueryRow(1, "7", "a"), QueryRow(2, "8", "b"), QueryRow(5, "7", "c")],
            "line 5: the id '7' belongs to another query in line 1; give each query its own id.",
        ),
        (numbered(["a", "b"], [1e308, 1e308]), "The weights of the queries given add up to inf"),
    ],
)
@pytest.mark.parametrize("sample", [None, 200])
def test_queries_that_cannot_be_audited(
    rows: list[QueryRow], words: str, sample: int | None
) -> None:
    with pytest.raises(InputError) as caught:
        collect_queries(rows, sample=sample)
    assert words in str(caught.value)


def test_too_many_different_queries_have_to_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_QUERIES", 3)
    three = numbered(["a", "b", "c", "a", "b"])
    assert len(collect_queries(three).queries) == 3
    with pytest.raises(InputError, match="are more than 3 different ones; draw some of them"):
        collect_queries([*three, QueryRow(6, None, "d")])
    assert len(collect_queries(numbered(list("abcdefgh")), sample=3).queries) <= 3


@pytest.mark.parametrize("sample", [0, -1, 200_001])
def test_samples_of_impossible_sizes(sample: int) -> None:
    with pytest.raises(InputError, match=r"A sample has 1 to 200,000 draws, not"):
        collect_queries(numbered(["a"]), sample=sample)
    with pytest.raises(InputError, match="The seed must be 0 or more, not -1"):
        collect_queries(numbered(["a"]), sample=1, seed=-1)


def test_a_sample_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("query,count\nred,3\nblue,2\nred,1\n")
    found = read_audit_queries(path, BY_COUNT, sample=1000, seed=4)
    red, blue = found.queries
    assert (red.text, blue.text) == ("red", "blue")
    assert red.weight + blue.weight == 1000
    assert (red.lines, red.asks, blue.lines, blue.asks) == (2, 4.0, 1, 2.0)
    assert (found.lines, found.distinct, found.weight) == (3, None, 6.0)
    assert found.design == (
        "1,000 draws with replacement from 3 lines, the probability of a line being proportional "
        "to its 'count' (seed 4), gave 2 different queries; each counts as often as it was drawn."
    )
    (tmp_path / "q.txt").write_text("red\n")
    said = read_audit_queries(tmp_path / "q.txt", sample=2).design
    assert "the probability of a line being equal for all (seed 0), gave 1 different" in said


weights = st.lists(st.integers(0, 50), min_size=1, max_size=60).filter(any)


@given(weights, st.integers(1, 40), st.integers(0, 10))
def test_a_sample_has_its_size_and_the_same_seed_draws_the_same(
    counts: list[int], sample: int, seed: int
) -> None:
    rows = numbered([f"q{place % 7}" for place in range(len(counts))], counts)
    found = collect_queries(iter(rows), sample=sample, seed=seed)
    assert sum(query.weight for query in found.queries) == sample
    assert all(query.weight >= query.lines >= 1 for query in found.queries)
    assert found == collect_queries(rows, sample=sample, seed=seed)
    # A line of weight 0 is as good as none.
    asked = collect_queries([row for row in rows if row.weight], sample=sample, seed=seed)
    assert asked.queries == found.queries


@given(weights, st.data())
def test_putting_together_does_not_depend_on_the_order(
    counts: list[int], data: st.DataObject
) -> None:
    rows = numbered([f"q{place % 7}" for place in range(len(counts))], counts)
    found = collect_queries(rows)
    other = collect_queries(data.draw(st.permutations(rows)))
    assert {query.id: query for query in other.queries} == {q.id: q for q in found.queries}
    assert sum(query.weight for query in found.queries) == found.weight == sum(counts)
    assert sum(query.lines for query in found.queries) == found.lines


@pytest.mark.parametrize("rows_at_once", [1, 3, 7, 8192])
def test_draws_are_proportional_to_the_weights(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows are taken at once, each row is drawn in proportion to its weight.

    One row at once is the definition itself: the i-th row replaces with probability w_i / (w_1 + …
    + w_i).
    """
    monkeypatch.setattr(module, "ROWS_AT_ONCE", rows_at_once)
    counts = [5.0, 0.0, 1.0, 0.25, 30.0, 2.0, 2.0, 0.0, 10.0, 0.75, 4.0]
    rows = numbered([f"q{place}" for place in range(len(counts))], counts)
    draws = 50_000
    drawn = {q.text: q.weight for q in collect_queries(rows, sample=draws, seed=3).queries}
    assert "q1" not in drawn
    places = [place for place, count in enumerate(counts) if count]
    expected = [draws * counts[place] / sum(counts) for place in places]
    assert surprise([drawn.get(f"q{place}", 0) for place in places], expected) > 0.001


def test_one_pass_draws_as_two_passes_would() -> None:
    """The number of different queries depends on all draws together; it is distributed alike."""
    counts = np.array([9.0, 3.0, 1.0, 1.0, 1.0, 5.0])
    rows = numbered([f"q{place}" for place in range(len(counts))], counts.tolist())
    runs, sample = 2000, 6
    one_pass = np.zeros(7)
    two_passes = np.zeros(7)
    rng = np.random.default_rng(5)
    for seed in range(runs):
        one_pass[len(collect_queries(rows, sample=sample, seed=seed).queries)] += 1
        drawn = rng.choice(len(counts), size=sample, p=counts / counts.sum())
        two_passes[len(set(drawn.tolist()))] += 1
    both = (one_pass + two_passes) / 2
    seen = both > 5
    # Pearson's test of homogeneity.
    statistic = (((one_pass - both) ** 2 + (two_passes - both) ** 2)[seen] / both[seen]).sum()
    assert chi2.sf(statistic, seen.sum() - 1) > 0.001


def test_draws_do_not_depend_on_one_another() -> None:
    """Two draws agree as often as independent ones would."""
    counts = [1.0, 2.0, 3.0, 4.0]
    rows = numbered(list("abcd"), counts)
    runs = 4000
    agreed = sum(
        len(collect_queries(rows, sample=2, seed=seed).queries) == 1 for seed in range(runs)
    )
    wanted = sum((count / 10) ** 2 for count in counts)
    assert surprise([agreed, runs - agreed], [runs * wanted, runs * (1 - wanted)]) > 0.001


def a_log(lines: int) -> Iterator[QueryRow]:
    for line in range(1, lines + 1):
        yield QueryRow(line, None, f"query number {line * 7919 % 500_009}", float(line % 50))


def test_a_million_lines_are_sampled_in_seconds_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    with path.open("w") as stream:
        stream.write("query,count\n")
        stream.writelines(f"query number {n * 7919 % 500_009},{n % 50}\n" for n in range(1_000_000))
    told: list[int] = []
    begun = time.process_time()
    found = read_audit_queries(
        path, BY_COUNT, sample=500, seed=1, progress=lambda done, total=None, /: told.append(done)
    )
    assert time.process_time() - begun < 30  # 3 s on an idle core
    assert (found.lines, len(found.queries)) == (980_000, 500)
    assert told[-1] == 1_000_000
    assert told == sorted(told)


def test_memory_does_not_grow_with_the_lines() -> None:
    def peak(lines: int) -> int:
        tracemalloc.start()
        collect_queries(a_log(lines), sample=500, seed=1)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    assert peak(50_000) < 1.5 * peak(17_000)


def test_lists_do_not_say_how_often_their_queries_are_asked_and_logs_do() -> None:
    """A sample may draw each query of a log once: then all of them were asked rarely."""
    rows = numbered(list("abcdefgh"))
    assert not collect_queries(rows).say_how_often
    assert collect_queries([*rows, QueryRow(9, None, "a")]).say_how_often
    assert collect_queries(rows, sample=2).say_how_often
    assert collect_queries(rows, weighted_by="count").say_how_often


def test_a_fingerprint_changes_with_texts_and_weights() -> None:
    prints = {
        collect_queries(rows).fingerprint
        for rows in (
            numbered(["a", "b"]),
            numbered(["a", "b"], [1, 2]),
            numbered(["a", "c"]),
            [QueryRow(1, "7", "a"), QueryRow(2, "8", "b")],
        )
    }
    assert len(prints) == 4
    assert collect_queries(numbered(["a", "b"])).fingerprint in prints
