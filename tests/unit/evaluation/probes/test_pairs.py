"""Pairs: no item twice, the cells they say, the same whatever the order of the list."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairqr.evaluation.probes.collection import CELLS, ProbeItem, ProbeQuery
from fairqr.evaluation.probes.pairs import GroupKind, group_pairs, planned_pairs, relevance_pairs
from fairqr.evaluation.probes.specification import PairwiseExperiment, ProbeSource

KINDS: tuple[GroupKind, ...] = ("relevant", "irrelevant")


@st.composite
def probe_queries(draw: st.DrawFn) -> ProbeQuery:
    """Queries whose cells have up to seven items each, in any order."""
    items = [
        ProbeItem(
            id=f"{cell}-{number}",
            title=f"{cell} {number}",
            relevant=cell.startswith("relevant"),
            protected=cell.endswith("_protected"),
        )
        for cell in CELLS
        for number in range(draw(st.integers(0, 7)))
    ]
    return ProbeQuery(
        id=draw(st.text(max_size=5)), query="physicist", items=tuple(draw(st.permutations(items)))
    )


seeds = st.integers(0, 2**32)


@given(query=probe_queries(), limit=st.integers(1, 10), seed=seeds)
def test_pairs_of_a_kind_share_no_item_and_are_alike_in_relevance(
    query: ProbeQuery, limit: int, seed: int
) -> None:
    for kind in KINDS:
        pairs = group_pairs(query, kind, limit, seed)
        cells = [len(query.of_cell(f"{kind}_{side}")) for side in ("protected", "unprotected")]
        assert len(pairs) == min(limit, *cells)
        ids = [item.id for pair in pairs for item in (pair.protected, pair.unprotected)]
        assert len(set(ids)) == len(ids)
        for pair in pairs:
            assert pair.protected in query.items
            assert pair.unprotected in query.items
            assert (pair.protected.protected, pair.unprotected.protected) == (True, False)
            assert pair.protected.relevant == pair.unprotected.relevant == (kind == "relevant")
            assert pair.kind == kind


@given(query=probe_queries(), limit=st.integers(1, 14), seed=seeds)
def test_relevance_pairs_are_of_one_side_and_the_sides_take_turns(
    query: ProbeQuery, limit: int, seed: int
) -> None:
    pairs = relevance_pairs(query, limit, seed)
    able = {
        side: min(len(query.of_cell(f"relevant_{name}")), len(query.of_cell(f"irrelevant_{name}")))
        for side, name in ((True, "protected"), (False, "unprotected"))
    }
    assert len(pairs) == min(limit, sum(able.values()))
    ids = [item.id for pair in pairs for item in (pair.protected, pair.unprotected)]
    assert len(set(ids)) == len(ids)
    for pair in pairs:
        assert pair.protected.relevant
        assert not pair.unprotected.relevant
        assert pair.protected.protected == pair.unprotected.protected
    sides = [pair.protected.protected for pair in pairs]
    both = 2 * min(able.values())
    assert sides[:both] == [place % 2 == 0 for place in range(len(sides[:both]))]
    assert all(Counter(sides)[side] <= count for side, count in able.items())


@given(query=probe_queries(), seed=seeds, data=st.data())
def test_neither_the_order_of_the_list_nor_the_limit_changes_the_draw(
    query: ProbeQuery, seed: int, data: st.DataObject
) -> None:
    shuffled = query.model_copy(
        update={"items": tuple(data.draw(st.permutations(list(query.items))))}
    )
    for kind in KINDS:
        whole = group_pairs(query, kind, 10, seed)
        assert group_pairs(shuffled, kind, 10, seed) == whole
        assert group_pairs(query, kind, 2, seed) == whole[:2]
    assert relevance_pairs(shuffled, 10, seed) == relevance_pairs(query, 10, seed)
    assert relevance_pairs(query, 3, seed) == relevance_pairs(query, 10, seed)[:3]


def full_query(name: str) -> ProbeQuery:
    """Return a query with six items in each cell."""
    return ProbeQuery(
        id=name,
        query="physicist",
        items=tuple(
            ProbeItem(
                id=f"{cell}-{number}",
                title="",
                relevant=cell.startswith("relevant"),
                protected=cell.endswith("_protected"),
            )
            for cell in CELLS
            for number in range(6)
        ),
    )


def test_seeds_and_queries_have_draws_of_their_own() -> None:
    """Over 20 draws of each, nearly all matchings differ; of 6! a few may be the same."""
    by_seed = {tuple(group_pairs(full_query("q"), "relevant", 6, seed)) for seed in range(20)}
    matched = {
        tuple(sorted((p.protected.id, p.unprotected.id) for p in pairs)) for pairs in by_seed
    }
    assert len(matched) >= 17
    by_query = {
        tuple(
            (p.protected.id, p.unprotected.id)
            for p in group_pairs(full_query(f"q{number}"), "relevant", 6, 0)
        )
        for number in range(20)
    }
    assert len(by_query) >= 17


def test_an_experiment_says_how_many_of_each_kind() -> None:
    experiment = PairwiseExperiment(
        kind="llm_pairwise",
        title="",
        collection="notables",
        sources=(ProbeSource(attribute="gender", protected="female"),),
        models=("openai:fake",),
        pairs=4,
        relevance_pairs=3,
    )
    planned = planned_pairs(
        full_query("q"), experiment.pairs, experiment.relevance_pairs, experiment.seed
    )
    assert Counter(pair.kind for pair in planned) == {
        "relevant": 4,
        "irrelevant": 4,
        "relevance": 3,
    }
