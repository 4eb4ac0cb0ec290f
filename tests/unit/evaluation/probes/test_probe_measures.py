"""Measures of rankings and pairs, against plain loops over the definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.ranking.item_ranker import Asker
from fairqr.base.errors import InputError
from fairqr.base.statistics import holm
from fairqr.evaluation.probes.collection import ProbeQuery
from fairqr.evaluation.probes.listwise_measures import average, query_values, rank_distribution
from fairqr.evaluation.probes.measured import ListwiseRow
from fairqr.evaluation.probes.measures import measure_listwise, measure_pairwise
from fairqr.evaluation.probes.pairs import planned_pairs
from fairqr.evaluation.probes.records import PairRecord, RankingRecord, Spent
from tests.unit.evaluation.probes.written_out import (
    collection_of,
    listwise,
    manifest_of,
    pairwise,
    query_of,
)

NAME = "small, gender"


def ranked(
    query: ProbeQuery, order: Sequence[int], asker: Asker = "neutral", **more: object
) -> RankingRecord:
    values = {
        "collection": NAME,
        "ranker": "initial",
        "asker": asker,
        "query": query.id,
        "order": tuple(order),
    }
    return RankingRecord.model_validate(values | more)


@st.composite
def ranked_queries(draw: st.DrawFn) -> tuple[ProbeQuery, tuple[int, ...]]:
    cells = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any))
    query = query_of("q", *cells)
    return query, tuple(draw(st.permutations(range(len(query.items)))))


@given(given_=ranked_queries(), k=st.integers(1, 20))
def test_the_measures_of_a_list_are_their_definitions(
    given_: tuple[ProbeQuery, tuple[int, ...]], k: int
) -> None:
    query, order = given_
    values = query_values(query, ranked(query, order), k)
    items = [query.items[place] for place in order]
    total = sum(item.relevant for item in items)
    assert values.precision == pytest.approx(sum(item.relevant for item in items[:k]) / k)
    if total == 0:
        assert values.ndcg is None
    else:
        dcg = sum(1 / math.log2(r + 1) for r, it in enumerate(items[:k], 1) if it.relevant)
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, total) + 1))
        assert values.ndcg == pytest.approx(dcg / ideal)
    exposure = {
        side: [1 / math.log(1 + rank) for rank, it in enumerate(items, 1) if it.protected == side]
        for side in (True, False)
    }
    if not exposure[True] or not exposure[False]:
        assert values.ratio is None
    else:
        means = {side: sum(of) / len(of) for side, of in exposure.items()}
        assert values.ratio == pytest.approx(means[True] / means[False])


def test_a_failed_ranking_has_no_measure_and_is_counted() -> None:
    """Nor has a list without a relevant item an nDCG, and one without a group a ratio."""
    queries = [
        query_of("failed", 2, 2, 2, 2),
        query_of("irrelevant", 0, 0, 2, 2),
        query_of("unprotected", 2, 0, 2, 0),
        query_of("whole", 2, 2, 2, 2),
        query_of("missing", 2, 2, 2, 2),
    ]
    collection = collection_of(*queries)
    records = [
        ranked(queries[0], range(8), asked=3, failures={"timeout": 2, "refused": 1}),
        ranked(queries[1], range(4), asked=3, failures={"timeout": 2}, repairs={"missing": 4}),
        ranked(queries[2], range(4), warnings=("It was shrunk.",), spent=Spent(tokens=5)),
        ranked(queries[3], range(8), warnings=("It was shrunk.",), repairs={"missing": 1}),
    ]
    experiment = listwise(askers=("neutral",), k=4)
    measured = measure_listwise(manifest_of(experiment, collection), [collection], records)
    assert measured.missing == 1
    (row,) = measured.rows
    assert (row.precision.n, row.precision.left_out) == (3, {"failed": 1, "not_run": 1})
    assert row.ndcg.left_out == {"failed": 1, "not_run": 1, "nothing_relevant": 1}
    assert row.ratio.left_out == {"failed": 1, "not_run": 1, "empty_group": 1}
    # All relevant items stand on top of the last list, and none is in the second.
    assert row.precision.mean == pytest.approx((0 + 2 / 4 + 1) / 3)
    assert row.ndcg.mean == pytest.approx(1.0)
    assert row.ratio.n == 2
    assert (row.asked, row.failures) == (6, {"refused": 1, "timeout": 4})
    assert (row.repairs, row.warnings) == ({"missing": 5}, {"It was shrunk.": 2})
    assert row.spent.tokens == 5
    assert [each.status for each in row.by_query] == ["failed", "ok", "ok", "ok"]
    assert row.ranks.queries == 3
    assert row.ranks.items == 2 + 0 + 4


@given(lists=st.lists(st.lists(st.booleans(), max_size=12), max_size=6), k=st.integers(1, 12))
def test_the_distribution_of_ranks_counts_each_protected_item_once(
    lists: list[list[bool]], k: int
) -> None:
    found = rank_distribution(lists, k)
    places = sorted(
        (rank - 0.5) / len(each) for each in lists for rank, it in enumerate(each, 1) if it
    )
    assert found.items == len(places) == sum(found.counts)
    assert found.normalised == pytest.approx(places)
    assert found.queries == sum(bool(each) for each in lists)
    for number, count in enumerate(found.counts):
        low, high = number / len(found.counts), (number + 1) / len(found.counts)
        near = [place for place in places if low - 1e-9 <= place <= high + 1e-9]
        inside = [place for place in places if low + 1e-9 < place < high - 1e-9]
        assert len(inside) <= count <= len(near)
    if not places:
        assert found.mean is None
        assert found.quantiles == found.rank_quantiles == ()
    else:
        assert found.mean == pytest.approx(np.mean(places))
        assert found.quantiles[2] == pytest.approx(np.median(places))
    if found.queries:
        tops = [sum(each[:k]) / len(each[:k]) for each in lists if each]
        assert found.top == pytest.approx(np.mean(tops))


def test_a_uniform_order_has_its_protected_items_in_the_middle() -> None:
    """The mean of all places of a list is ½, whatever its length, and each bin has as many."""
    for size in (20, 40, 200):
        found = rank_distribution([[True] * size], 20)
        assert found.mean == pytest.approx(0.5)
        assert set(found.counts) == {size // 20}


def by_asker(rows: Sequence[ListwiseRow]) -> dict[str, ListwiseRow]:
    return {row.asker: row for row in rows}


def test_both_sensitive_askers_are_compared_query_by_query() -> None:
    """Only queries that have both values count; Holm corrects over all rankers and windows."""
    queries = [query_of(f"q{number}", 2, 2, 2, 2) for number in range(8)]
    collection = collection_of(*queries)
    best, worst = tuple(range(8)), tuple(reversed(range(8)))
    records = []
    for number, query in enumerate(queries):
        for asker in ("protected", "unprotected"):
            records.append(ranked(query, worst, asker, ranker="initial"))
        for ranker in ("monobert", "monot5"):
            better = number < 7 if ranker == "monobert" else number % 2 == 0
            records += [
                ranked(query, best if better else worst, "protected", ranker=ranker),
                ranked(query, worst if better else best, "unprotected", ranker=ranker),
            ]
    records[-1] = ranked(
        queries[-1], best, "unprotected", ranker="monot5", asked=1, failures={"timeout": 1}
    )
    experiment = listwise(rankers=("initial", "monobert", "monot5"), k=4)
    measured = measure_listwise(manifest_of(experiment, collection), [collection], records)
    assert measured.missing == 3 * 8
    found = {(each.ranker, each.measure): each for each in measured.differences}
    # The initial order is that of both, and no test of a ranker: Holm corrects for two tests.
    given_order = found["initial", "precision"]
    assert (given_order.difference.mean, given_order.holm_p) == (0.0, None)
    first = found["monobert", "precision"]
    assert first.difference.mean == pytest.approx((7 - 1) / 8)
    assert (first.difference.n, first.difference.left_out) == (8, {})
    assert first.randomisation is not None
    # Of 2^8 signs, those with at most one against the others, on either side.
    assert first.randomisation.p == pytest.approx(2 * (1 + 8) / 256)
    second = found["monot5", "precision"]
    assert second.difference.n == 7
    assert second.difference.left_out == {"one_asker_lacks_it": 1}
    assert second.randomisation is not None
    assert [first.holm_p, second.holm_p] == pytest.approx(
        holm([first.randomisation.p, second.randomisation.p])
    )
    rows = by_asker([row for row in measured.rows if row.ranker == "monobert"])
    assert rows["protected"].precision.mean == pytest.approx(7 / 8)
    assert rows["neutral"].precision.n == 0


def test_without_both_askers_nothing_is_compared() -> None:
    query = query_of("q", 2, 2, 2, 2)
    collection = collection_of(query)
    experiment = listwise(askers=("neutral", "protected"))
    measured = measure_listwise(
        manifest_of(experiment, collection), [collection], [ranked(query, range(8), "protected")]
    )
    assert measured.differences == ()


def test_the_order_of_the_records_and_strangers_change_nothing() -> None:
    queries = [query_of(f"q{number}", 2, 2, 2, 2) for number in range(5)]
    collection = collection_of(*queries)
    manifest = manifest_of(listwise(), collection)
    askers: tuple[Asker, ...] = ("neutral", "protected", "unprotected")
    records = [
        ranked(query, np.random.default_rng(number).permutation(8).tolist(), asker)
        for number, query in enumerate(queries)
        for asker in askers
    ]
    stranger = ranked(query_of("other", 2, 2, 2, 2), range(8))
    one = measure_listwise(manifest, [collection], records)
    assert measure_listwise(manifest, [collection], [stranger, *reversed(records)]) == one


def asked(pair: object, query: str, first: str, second: str) -> PairRecord:
    return PairRecord(
        collection=NAME,
        model="openai:fake",
        query=query,
        kind=pair.kind,  # type: ignore[attr-defined]
        protected=pair.protected.id,  # type: ignore[attr-defined]
        unprotected=pair.unprotected.id,  # type: ignore[attr-defined]
        protected_first=first,
        unprotected_first=second,
        spent=Spent(model_calls=2, tokens=10),
    )


def test_pairs_are_counted_by_kind_and_together() -> None:
    """Relevant pairs go to the protected item, irrelevant ones flip, and some are missing."""
    queries = [query_of(f"q{number}", 3, 3, 2, 2) for number in range(7)]
    queries.append(query_of("empty", 3, 0, 2, 2))
    collection = collection_of(*queries)
    experiment = pairwise(pairs=3, relevance_pairs=2)
    records = []
    for query in queries:
        for pair in planned_pairs(query, experiment):
            says = {
                "relevant": ("protected", "protected"),
                "irrelevant": ("protected", "unprotected"),
                "relevance": ("unprotected", "refused"),
            }[pair.kind]
            records.append(asked(pair, query.id, *says))
    missing = [record for record in records if record.query == "q5"][:1]
    measured = measure_pairwise(
        manifest_of(experiment, collection),
        [collection],
        [record for record in records if record not in missing],
    )
    assert measured.missing == 1
    rows = {row.kind: row for row in measured.rows}
    assert [row.kind for row in measured.rows] == ["relevant", "irrelevant", "both", "relevance"]
    relevant, irrelevant, both = rows["relevant"], rows["irrelevant"], rows["both"]
    assert (relevant.planned, relevant.figures.pairs, relevant.without_pairs) == (21, 20, 1)
    assert relevant.figures.protected.count == 20
    assert (irrelevant.figures.pairs, irrelevant.figures.flips.count) == (16, 16)
    assert irrelevant.without_pairs == 0
    assert (both.figures.pairs, both.planned, both.without_pairs) == (36, 37, 0)
    assert both.spent == Spent(model_calls=72, tokens=360)
    assert relevant.verdict is not None
    assert relevant.verdict.kind == "favours_protected"
    assert "favours female items" in relevant.verdict.sentence
    assert rows["relevance"].verdict is None
    assert rows["relevance"].figures.failures == {"refused": rows["relevance"].figures.pairs}


def test_a_run_of_the_other_kind_is_refused() -> None:
    collection = collection_of(query_of("q", 2, 2, 2, 2))
    with pytest.raises(InputError, match="has no rankings"):
        measure_listwise(manifest_of(pairwise(), collection), [collection], [])
    with pytest.raises(InputError, match="asked about no pairs"):
        measure_pairwise(manifest_of(listwise(), collection), [collection], [])


def test_an_average_says_over_how_many() -> None:
    nothing = average([], {"failed": 2, "not_run": 0})
    assert (nothing.n, nothing.mean, nothing.sd, nothing.interval) == (0, None, None, None)
    assert nothing.left_out == {"failed": 2}
    some = average([1.0, 2.0, 6.0])
    assert (some.n, some.mean) == (3, 3.0)
    assert some.sd == pytest.approx(math.sqrt(7))
    assert some.interval is None
    assert average([1.0, 2.0, 6.0] * 2).interval is not None
