"""Examples to tune on: balanced by group in each kind, and by position in each batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.ranking.rankers import RankItem
from fairqr.agents.tuning import TuningPair, draw_winners, fingerprint, make_batches
from fairqr.base.errors import InputError


def pairs_of(relevant: int, irrelevant: int) -> list[TuningPair]:
    kinds = ["relevant"] * relevant + ["irrelevant"] * irrelevant
    return [
        TuningPair(f"query {i % 3}", kind, RankItem(f"p{i}", "P", "p"), RankItem(f"u{i}", "U", "u"))
        for i, kind in enumerate(kinds)
    ]


sizes = st.integers(0, 12)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.promise("agents")
@given(sizes, sizes, seeds)
def test_in_each_kind_both_groups_win_equally_often(
    relevant: int, irrelevant: int, seed: int
) -> None:
    """A model is tuned on pairs in which both groups win equally often."""
    pairs = pairs_of(relevant, irrelevant)
    winners = draw_winners(pairs, np.random.default_rng(seed))
    for kind in ("relevant", "irrelevant"):
        wins = [wins for pair, wins in zip(pairs, winners, strict=True) if pair.kind == kind]
        assert abs(wins.count(True) - wins.count(False)) == len(wins) % 2


@given(sizes, sizes, seeds, st.sampled_from([2, 4, 6, 8]), st.integers(1, 3))
def test_each_epoch_has_each_pair_in_both_orders(
    relevant: int, irrelevant: int, seed: int, batch: int, epochs: int
) -> None:
    pairs = pairs_of(relevant, irrelevant)
    if not pairs:
        with pytest.raises(InputError, match="no pair"):
            make_batches(pairs, np.random.default_rng(0))
        return
    batches = make_batches(pairs, np.random.default_rng(seed), batch=batch, epochs=epochs)
    winner: dict[frozenset[str], str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for examples in batches:
        # Either label is right as often as the other, in each step.
        assert 2 * sum(it.winner == "first" for it in examples) == len(examples)
        orders = Counter((it.first.id, it.second.id) for it in examples)
        assert all(orders[b, a] == count for (a, b), count in orders.items())
        seen += orders
        for it in examples:
            best = it.first if it.winner == "first" else it.second
            ids = frozenset((it.first.id, it.second.id))
            assert winner.setdefault(ids, best.id) == best.id
    expected = {(p.protected.id, p.unprotected.id) for p in pairs}
    assert set(seen) == expected | {(b, a) for a, b in expected}
    assert set(seen.values()) == {epochs}
    assert all(len(examples) == batch for examples in batches[:-1])


@given(sizes, sizes, seeds)
def test_both_groups_win_equally_often_in_each_order(
    relevant: int, irrelevant: int, seed: int
) -> None:
    """Wins differ by at most one a kind and order, and many pairs have two winners."""
    pairs = pairs_of(relevant + 1, irrelevant)
    batches = make_batches(pairs, np.random.default_rng(seed), winners="question")
    examples = [it for batch in batches for it in batch]
    assert len(examples) == 2 * len(pairs)
    for first in ("p", "u"):
        shown = [it for it in examples if it.first.id[0] == first]
        assert len(shown) == len(pairs)
        assert abs(sum(it.winner == "first" for it in shown) * 2 - len(shown)) <= 2


def test_winners_of_pairs_never_differ() -> None:
    for winners, differing in (("pair", 0), ("question", 20)):
        batches = make_batches(pairs_of(50, 50), np.random.default_rng(0), winners=winners)
        couples = [batch[at : at + 2] for batch in batches for at in range(0, len(batch), 2)]
        # One winner of both orders is first once and second once.
        split = sum(one.winner == other.winner for one, other in couples)
        assert split == 0 if not differing else split > differing


def test_steps_are_as_many_as_asked_for_and_whole() -> None:
    batches = make_batches(pairs_of(3, 0), np.random.default_rng(0), batch=4, steps=7)
    assert [len(examples) for examples in batches] == [4] * 7


def test_batches_depend_on_the_seed() -> None:
    def hashed(seed: int) -> str:
        return fingerprint(make_batches(pairs_of(8, 8), np.random.default_rng(seed)))

    assert hashed(1) == hashed(1) != hashed(2)
