"""Pairs to tune a model on: balanced, so that neither a group nor a position can be learned.

As in "Do Large Language Models Rank Fairly?" (arXiv 2404.03192, §5): in the pairs that a model is
tuned on, the protected item and the other win equally often. Here each pair has one winner, and is
trained on in both orders, so that each label is right as often as the other too.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairqr.agents.ranking.item_ranker import RankItem
from fairqr.base.errors import InputError

__all__ = ["Example", "TuningPair", "both_orders", "draw_winners", "fingerprint", "make_batches"]


@dataclass(frozen=True, slots=True)
class TuningPair:
    """Two items of one query that are relevant both, or irrelevant both.

    Attributes:
        query: What is asked.
        kind: Winners are balanced within each, e.g. ``relevant``.
        protected: The item of the protected group.
        unprotected: The other.
    """

    query: str
    kind: str
    protected: RankItem
    unprotected: RankItem


@dataclass(frozen=True, slots=True)
class Example:
    """One question about a pair, and what is to be answered.

    Attributes:
        query: What is asked.
        first, second: In the order in which they are shown.
        winner: Which of the two is to be preferred.
    """

    query: str
    first: RankItem
    second: RankItem
    winner: Literal["first", "second"]


def draw_winners(pairs: Sequence[TuningPair], random: np.random.Generator) -> list[bool]:
    """Draw who wins each pair.

    Args:
        pairs: Of any kinds.
        random: Draws who wins.

    Returns:
        For each pair, whether its protected item wins. In each kind half of them do; of an odd
        number, one more or one less.
    """
    winners = [False] * len(pairs)
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        places = [place for place, pair in enumerate(pairs) if pair.kind == kind]
        half = len(places) // 2 + int(random.integers(0, 2)) * (len(places) % 2)
        for place in random.permutation(len(places))[:half]:
            winners[places[place]] = True
    return winners


def both_orders(pair: TuningPair, protected_wins: bool) -> tuple[Example, Example]:
    """Return the examples of a pair: the protected item first, then the other first."""
    one, other = pair.protected, pair.unprotected
    return (
        Example(pair.query, one, other, "first" if protected_wins else "second"),
        Example(pair.query, other, one, "second" if protected_wins else "first"),
    )


def make_batches(
    pairs: Sequence[TuningPair],
    random: np.random.Generator,
    *,
    batch: int = 4,
    epochs: int = 1,
    steps: int | None = None,
) -> list[tuple[Example, ...]]:
    """Return the examples of each step.

    Both orders of a pair stand in one batch, so that in each step either label is right as often as
    the other. Pairs that the protected item wins alternate with those that the other wins, as far
    as there are any; a batch of 4 has one of each. A pair has the same winner in each epoch.

    Args:
        pairs: To train on.
        random: Draws the winners and the order.
        batch: Examples a step; even.
        epochs: How often each pair is trained on, where ``steps`` is None; the last batch may be
            smaller.
        steps: So many whole batches, begun anew with the pairs where there are too few.

    Raises:
        InputError: There is no pair, or the batch is not even.
    """
    if not pairs:
        raise InputError("There is no pair to tune on; take more queries or larger lists.")
    if batch < 2 or batch % 2:
        raise InputError(f"A batch holds both orders of each pair, so it is even, not {batch}.")
    order = _order(draw_winners(pairs, random), random)
    each = batch // 2
    wanted = epochs * len(pairs) if steps is None else steps * each
    examples = [both_orders(pairs[place], wins) for place, wins in itertools.islice(order, wanted)]
    return [
        tuple(itertools.chain.from_iterable(examples[start : start + each]))
        for start in range(0, len(examples), each)
    ]


def fingerprint(batches: Sequence[Sequence[Example]]) -> str:
    """Return a hash over all examples and their order."""
    digest = hashlib.sha256()
    for number, batch in enumerate(batches):
        for it in batch:
            digest.update(repr((number, it.query, it.first, it.second, it.winner)).encode())
    return digest.hexdigest()


def _order(winners: Sequence[bool], random: np.random.Generator) -> Iterator[tuple[int, bool]]:
    """Yield pairs without end, each once an epoch, so that who wins is even at every point."""
    lead = 0  # how often the protected item won more than the other
    while True:
        left = {
            side: [
                int(place) for place in random.permutation(len(winners)) if winners[place] == side
            ]
            for side in (True, False)
        }
        while left[True] or left[False]:
            side = lead < 0 or (lead == 0 and bool(random.integers(0, 2)))
            if not left[side]:
                side = not side
            lead += 1 if side else -1
            yield left[side].pop(), side
