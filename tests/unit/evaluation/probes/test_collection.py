"""Probe collections: their folder, and the pairs that are drawn from their lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.probes.collection import (
    CELLS,
    GROUP_KINDS,
    ProbeCollection,
    ProbeQuery,
    group_pairs,
    planned_pairs,
    relevance_pairs,
)
from tests.unit.evaluation.probes.made import collection, query_of


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """All of it, whatever separators and scripts a text has."""
    odd = {"text": "one\ntwo\u2028three\x85four\r\n«五»", "title": "\N{PILE OF POO}"}
    built = collection(queries=3)
    items = built.queries[0].items
    first = built.queries[0].model_copy(
        update={"items": (items[0].model_copy(update=odd), *items[1:])}
    )
    built = ProbeCollection.of(built.manifest, (first, *built.queries[1:]))
    built.write(tmp_path / "new" / "folder")
    assert ProbeCollection.read(tmp_path / "new" / "folder") == built


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["manifest"].update(format=1),
        lambda data: data["manifest"].update(queries=4),
        lambda data: data["manifest"].update(more=True),
        lambda data: data["queries"][1].update(id="q0"),
        lambda data: data["queries"][0]["items"].pop(),
        lambda data: data["queries"][0]["items"].clear(),
        lambda data: data["queries"][0]["items"].__setitem__(0, data["queries"][0]["items"][1]),
        lambda data: data["queries"][0]["items"][0].update(relevant="perhaps"),
    ],
)
def test_what_was_changed_is_refused(tmp_path: Path, change: Callable[[Any], object]) -> None:
    """In one sentence, with the place; nor is half a file read."""
    collection(queries=3).write(tmp_path)
    path = tmp_path / "probe.json"
    data = json.loads(path.read_text())
    change(data)
    for text in (json.dumps(data), path.read_text()[:-100]):
        path.write_text(text)
        with pytest.raises(InputError, match="damaged or of another version") as raised:
            ProbeCollection.read(tmp_path)
        assert "\n" not in str(raised.value)
        assert str(tmp_path) in str(raised.value)
    path.unlink()
    with pytest.raises(InputError, match="holds no probe collection"):
        ProbeCollection.read(tmp_path)


seeds = st.integers(0, 2**32)
queries = st.lists(st.integers(0, 7), min_size=4, max_size=4).map(lambda it: query_of("q1", *it))


@given(query=queries, limit=st.integers(1, 14), seed=seeds)
def test_pairs_are_of_their_cells_and_share_no_item(
    query: ProbeQuery, limit: int, seed: int
) -> None:
    """Relevance pairs are of one side, and the sides take turns."""
    size = {cell: len(query.of_cell(cell)) for cell in CELLS}
    for kind in GROUP_KINDS:
        pairs = group_pairs(query, kind, limit, seed)
        assert len(pairs) == min(limit, size[f"{kind}_protected"], size[f"{kind}_unprotected"])
        for pair in pairs:
            assert [it.cell for it in pair.items] == [f"{kind}_protected", f"{kind}_unprotected"]
        check_apart(query, pairs)
    pairs = relevance_pairs(query, limit, seed)
    able = [
        min(size[f"relevant_{side}"], size[f"irrelevant_{side}"])
        for side in ("protected", "unprotected")
    ]
    assert len(pairs) == min(limit, sum(able))
    for pair in pairs:
        assert [it.relevant for it in pair.items] == [True, False]
        assert pair.protected.protected == pair.unprotected.protected
    check_apart(query, pairs)
    sides = [pair.protected.protected for pair in pairs]
    both = 2 * min(able)
    assert sides[:both] == [place % 2 == 0 for place in range(len(sides[:both]))]


def check_apart(query: ProbeQuery, pairs: list[Any]) -> None:
    """Check that no item is in two pairs."""
    ids = [item.id for pair in pairs for item in pair.items]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {item.id for item in query.items}


@given(query=queries, seed=seeds, data=st.data())
def test_neither_the_order_of_the_list_nor_the_limit_changes_the_draw(
    query: ProbeQuery, seed: int, data: st.DataObject
) -> None:
    items = tuple(data.draw(st.permutations(list(query.items))))
    shuffled = query.model_copy(update={"items": items})
    assert planned_pairs(shuffled, 10, 10, seed) == planned_pairs(query, 10, 10, seed)
    for kind in GROUP_KINDS:
        assert group_pairs(query, kind, 2, seed) == group_pairs(query, kind, 10, seed)[:2]
    assert relevance_pairs(query, 3, seed) == relevance_pairs(query, 10, seed)[:3]


def test_seeds_and_queries_have_draws_of_their_own() -> None:
    """Over 20 draws of each, nearly all matchings differ; of 6! a few may be the same."""
    query = query_of("q1", 6, 6, 6, 6)
    for draws in (
        [(query, seed) for seed in range(20)],
        [(query.model_copy(update={"id": f"q{number}"}), 0) for number in range(20)],
    ):
        matched = {
            tuple(sorted(tuple(item.id for item in pair.items) for pair in pairs))
            for pairs in (group_pairs(it, "relevant", 6, seed) for it, seed in draws)
        }
        assert len(matched) >= 17
    kinds = Counter(pair.kind for pair in planned_pairs(query, 4, 3, 0))
    assert kinds == {"relevant": 4, "irrelevant": 4, "relevance": 3}
