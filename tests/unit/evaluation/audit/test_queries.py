"""The queries of an audit: what is put together, what a sample draws, and what is refused."""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from fairqr.base.errors import InputError
from fairqr.evaluation.audit import queries as module
from fairqr.evaluation.audit.queries import Queries, collect_queries
from fairqr.retrieval.sources.query_files import QueryColumns, QueryRow, query_rows
from tests.golden.reports import check_text


def read(path: Path, content: str, **options: Any) -> Queries:
    """Collect the queries of a file, by the column 'count' if it is CSV."""
    path.write_text(content)
    by = "count" if path.suffix == ".csv" else None
    return collect_queries(query_rows(path, QueryColumns(weight=by)), weighted_by=by, **options)


def numbered(
    texts: Sequence[str], weights: Sequence[float] = (), segments: Sequence[str] = ()
) -> list[QueryRow]:
    count = len(texts)
    held = zip(texts, weights or [1.0] * count, segments or [""] * count, strict=True)
    return [QueryRow(line, None, *it) for line, it in enumerate(held, start=1)]


TOPICS = [f"topic {number}" for number in range(51)]


LOG = "query,count\nred  shoes,12\nblue hat,3\n red shoes ,0.5\nhat,0\nRed shoes,1"


def test_what_is_collected_stays_as_it_was_read_once(tmp_path: Path) -> None:
    """Lines with the same text and segment are one query, whose id is that of the file, or a hash.

    A list does not say how often its queries are asked, and a log does. A sample may draw each
    query of a log once: then all of them were asked rarely.
    """
    log, topics, listed = (tmp_path / name for name in ("log.csv", "topics.tsv", "list.txt"))
    nurses = numbered(["nurse"] * 4, segments=["jobs", "health", "", "jobs"])
    collected = {
        "log": read(log, LOG),
        "sample of a log": read(log, LOG, sample=1000, seed=4),
        "list": read(listed, "red shoes\nblue\n"),
        "list with a query twice": read(listed, "blue\nred shoes\nblue\n"),
        "sample of a list": read(listed, "red shoes\n", sample=2),
        "topics, whose judgements name each": read(topics, "7\tred\n8\tblue\n9\tred\n"),
        "segments": collect_queries(nurses),
        "sample of segments": collect_queries(nurses, sample=100),
        "no segment": collect_queries(numbered(["nurse"])),
    }
    content = {
        name: asdict(queries)
        | {"fingerprint": queries.fingerprint, "say_how_often": queries.say_how_often}
        for name, queries in collected.items()
    }
    check_text("queries.json", json.dumps(content, indent=1) + "\n")
    every = itertools.chain.from_iterable(queries.queries for queries in collected.values())
    named = {(query.id, query.text, query.segment) for query in every}
    ids = {id_ for id_, *_ in named}
    assert len(ids) == len(named), "two audits can be compared by query"
    assert len({queries.fingerprint for queries in collected.values()}) == len(collected)
    assert collect_queries(nurses).fingerprint == collected["segments"].fingerprint


def test_fifty_segments_and_none_are_not_too_many() -> None:
    assert len(collect_queries(numbered(["a"] * 51, segments=["", *TOPICS[1:]])).queries) == 51


SEVEN = QueryRow(1, "7", "a")


@pytest.mark.parametrize("sample", [None, 200], ids=["all", "a sample"])
@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        pytest.param([], "The queries given are empty; give at least one query.", id="empty"),
        pytest.param(
            numbered(["", "a", ""], [0, 1, 1]), "have no text in lines 1, 3; fill", id="no text"
        ),
        pytest.param(
            numbered(["a", " \u200b"]),
            "The queries given have no text in line 2; fill",
            id="invisible text",
        ),
        pytest.param(
            numbered([""] * 9), "in lines 1, 2, 3, 4, 5, …; fill or remove these.", id="many lines"
        ),
        pytest.param(
            numbered(["a", "b"], [0, 0]),
            "All weights of the queries given are 0; name another",
            id="no weight",
        ),
        pytest.param(
            [SEVEN, QueryRow(5, "7", "c")],
            "line 5: the id '7' belongs to another query in line",
            id="an id twice",
        ),
        pytest.param(
            [SEVEN, QueryRow(2, "7", "a", 1.0, "jobs")],
            "line 2: the id '7' belongs",
            id="an id in two segments",
        ),
        pytest.param(
            numbered(["a"] * 51, segments=TOPICS),
            "more than 50 segments; group by another col",
            id="51 segments",
        ),
    ],
)
def test_queries_that_cannot_be_audited_are_refused(
    rows: list[QueryRow], sentence: str, sample: int | None
) -> None:
    with pytest.raises(InputError) as caught:
        collect_queries(rows, sample=sample)

    assert sentence in str(caught.value)


@pytest.mark.parametrize("sample", [0, -1, 200_001])
def test_a_sample_out_of_range_is_refused(sample: int) -> None:
    with pytest.raises(InputError, match="1 to 200,000 draws, not"):
        collect_queries(numbered(["a"]), sample=sample)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match="whole number of 0 or more, not -1"):
        collect_queries(numbered(["a"]), sample=1, seed=-1)


def test_too_many_different_queries_have_to_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_QUERIES", 3)
    assert len(collect_queries(numbered(list("abcab"))).queries) == 3
    with pytest.raises(InputError, match="are more than 3 different ones; draw some with"):
        collect_queries(numbered(list("abcabd")))
    assert len(collect_queries(numbered(list("abcdefgh")), sample=3).queries) <= 3


weights = st.lists(st.integers(0, 50), min_size=1, max_size=60).filter(any)


@given(weights, st.integers(1, 40), st.integers(0, 10), st.data())
def test_neither_seed_nor_order_change_what_is_there(
    counts: list[int], sample: int, seed: int, data: st.DataObject
) -> None:
    rows = numbered([f"q{place % 7}" for place in range(len(counts))], counts)
    drawn = collect_queries(iter(rows), sample=sample, seed=seed)
    assert sum(query.weight for query in drawn.queries) == sample
    assert all(query.weight >= query.lines >= 1 for query in drawn.queries)
    assert drawn == collect_queries(rows, sample=sample, seed=seed)
    # A line of weight 0 is as good as none.
    weighted = collect_queries([row for row in rows if row.weight], sample=sample, seed=seed)
    assert weighted.queries == drawn.queries
    found = collect_queries(rows)
    other = collect_queries(data.draw(st.permutations(rows)))
    assert {query.id: query for query in other.queries} == {q.id: q for q in found.queries}
    assert sum(query.weight for query in found.queries) == found.weight == sum(counts)
    assert sum(query.lines for query in found.queries) == found.lines


@pytest.mark.promise("audit")
@pytest.mark.parametrize("rows_at_once", [1, 3, 7, 8192])
def test_draws_are_proportional_to_the_weights(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries are drawn in proportion to their weights.

    However many rows are taken at once, each row is drawn in proportion to its weight.

    One row at once is the definition itself: the i-th row replaces with probability w_i / (w_1 + …
    + w_i).
    """
    monkeypatch.setattr(module, "ROWS_AT_ONCE", rows_at_once)
    counts = [5.0, 0.0, 1.0, 0.25, 30.0, 2.0, 2.0, 0.0, 10.0, 0.75, 4.0]
    rows = numbered([f"q{place}" for place in range(len(counts))], counts)
    drawn = {q.text: q.weight for q in collect_queries(rows, sample=50_000, seed=3).queries}
    assert "q1" not in drawn
    asked = {row.text: row.weight for row in rows if row.weight}
    expected = [50_000 * count / sum(counts) for count in asked.values()]
    assert chisquare([drawn.get(text, 0) for text in asked], expected).pvalue > 0.001


def test_one_pass_draws_as_two_passes_would() -> None:
    """The number of different queries depends on all draws together; it is distributed alike."""
    counts = np.array([9.0, 3.0, 1.0, 1.0, 1.0, 5.0])
    rows = numbered([f"q{place}" for place in range(len(counts))], counts.tolist())
    one_pass, two_passes = np.zeros(7), np.zeros(7)
    rng = np.random.default_rng(5)
    for seed in range(2000):
        one_pass[len(collect_queries(rows, sample=6, seed=seed).queries)] += 1
        drawn = rng.choice(len(counts), size=6, p=counts / counts.sum())
        two_passes[len(set(drawn.tolist()))] += 1
    seen = one_pass + two_passes > 10
    assert chi2_contingency([one_pass[seen], two_passes[seen]]).pvalue > 0.001


def log_of(lines: int) -> Iterator[QueryRow]:
    for line in range(1, lines + 1):
        yield QueryRow(line, None, f"query number {line * 7919 % 500_009}", float(line % 50))


@pytest.mark.promise("audit")
def test_a_million_lines_are_sampled_in_seconds(
    tmp_path: Path,
) -> None:
    """A million lines of queries are sampled in seconds and in bounded memory.

    This test takes a fifth of them, in a fifth of the time.
    """
    content = "".join(f"{row.text},{row.weight}\n" for row in log_of(200_000))
    begun = time.process_time()
    queries = read(tmp_path / "log.csv", f"query,count\n{content}", sample=500, seed=1)
    assert time.process_time() - begun < 6  # .6 s on an idle core
    assert queries.lines == 196_000
    assert sum(query.weight for query in queries.queries) == 500


@pytest.mark.promise("audit")
def test_memory_does_not_grow_with_the_lines_of_a_sample() -> None:
    """A sample of many queries takes no more memory than one of few."""

    def peak(lines: int) -> int:
        tracemalloc.start()
        collect_queries(log_of(lines), sample=500, seed=1)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    assert peak(50_000) < 1.5 * peak(17_000)
