"""Balanced pairs to tune a model on, so that it learns to prefer no group and no position.

As in "Do Large Language Models Rank Fairly?" (arXiv 2404.03192, §5), the protected item and the
other one win equally often. Here each pair has one winner and is used in both orders, so that both
labels are right equally often, too.
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


@dataclass(frozen=True, slots=True)
class TuningPair:
    """Two items of one query that are both relevant or both irrelevant.

    Attributes:
        query: The query.
        kind: The kind of the pair, e.g. ``relevant``; winners are balanced within each kind.
        protected: The item of the protected group.
        unprotected: The other item.
    """

    query: str
    kind: str
    protected: RankItem
    unprotected: RankItem


@dataclass(frozen=True, slots=True)
class Example:
    """One question about a pair, and its right answer.

    Attributes:
        query: The query.
        first, second: The items in the order in which they are shown.
        winner: The item to prefer.
    """

    query: str
    first: RankItem
    second: RankItem
    winner: Literal["first", "second"]


def draw_winners(pairs: Sequence[TuningPair], random: np.random.Generator) -> list[bool]:
    """Draw who wins each pair.

    Args:
        pairs: Pairs of any kinds.
        random: Draws who wins.

    Returns:
        For each pair, whether its protected item wins. In each kind half of them do; an odd pair is
        decided at random.
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

    Both orders of a pair are in the same batch, so that in each step both labels are right equally
    often. Pairs that the protected item wins alternate with those that the other item wins, as far
    as possible; a batch of 4 has one of each. A pair has the same winner in each epoch.

    Args:
        pairs: The pairs to train on.
        random: Draws the winners and the order.
        batch: How many examples a step has; even.
        epochs: How often each pair is used, unless ``steps`` is given; the last batch may be
            smaller.
        steps: The number of complete batches; optional. If there are too few pairs, they are used
            again.

    Raises:
        InputError: There is no pair.
    """
    if not pairs:
        raise InputError("There is no pair to tune on; use more queries or larger lists.")
    order = _order(draw_winners(pairs, random), random)
    each = batch // 2
    wanted = epochs * len(pairs) if steps is None else steps * each
    examples = [both_orders(pairs[place], wins) for place, wins in itertools.islice(order, wanted)]
    return [
        tuple(itertools.chain.from_iterable(examples[start : start + each]))
        for start in range(0, len(examples), each)
    ]


def fingerprint(batches: Sequence[Sequence[Example]]) -> str:
    """Return a hash of all examples in their order."""
    digest = hashlib.sha256()
    for number, batch in enumerate(batches):
        for it in batch:
            digest.update(repr((number, it.query, it.first, it.second, it.winner)).encode())
    return digest.hexdigest()


def _order(winners: Sequence[bool], random: np.random.Generator) -> Iterator[tuple[int, bool]]:
    """Yield pairs endlessly, each once per epoch, so that wins are balanced at every point."""
    lead = 0  # the wins of the protected item minus those of the other
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
