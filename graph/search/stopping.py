"""Which round is best, whether another one is worth it, and which groups it would ask about."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fairqr.graph.search.context import Context, Groups
from fairqr.graph.search.result import GroupKey, Round, Shares, StopReason
from fairqr.retrieval.fairness.objective import DIGITS
from fairqr.retrieval.sources.schema import UNKNOWN

NEGLIGIBLE = 0.01
"""We ask no question for a group that lacks less than this share of the exposure."""

EXPECTED_SHARE = {True: 0.01, False: 0.13}
"""The share of what is left to gain that a first round of refinement brings: if the engine compares
the query with the vectors of all documents, and if it only finds words. These are means over
notables and TREC Fair 2022 with the refiner ``feedback`` (docs/explanation/relevance.md)."""


def best_of(rounds: Sequence[Round]) -> Round:
    """Return the first round with the highest objective, or the lowest divergence.

    The objective counts if the fair step ran after each round.
    """
    return min(rounds, key=lambda round_: round_.badness)


def expected_gain(rounds: Sequence[Round], share: float) -> float:
    """Return what another round is expected to add to J, as a share of it.

    If its documents were as relevant as those of today's ranking, it could add up to V − J. It is
    expected to add the mean share of that which rounds have added: those of this search with the
    same weight, and the one that a first round is expected to add.

    Args:
        rounds: The rounds, all with the fair step.
        share: That of a first round, one of :data:`EXPECTED_SHARE`.
    """
    objectives = [round_.objective for round_ in rounds if round_.objective is not None]
    shares = [share]
    for before, after in pairwise(objectives):
        if before.left > 0 and after.weight == before.weight:
            gain = max(0.0, after.worth - before.worth)
            shares.append(gain / before.left)
    last = objectives[-1]
    if last.worth <= 0:
        return 0.0
    mean = sum(shares) / len(shares)
    return round(mean * max(0.0, last.left) / last.worth, DIGITS)


def decide_stop(
    rounds: Sequence[Round], context: Context, *, is_spent: bool = False, by_vectors: bool = False
) -> StopReason | None:
    """Return why the loop ends after these rounds, or None if it goes on.

    Args:
        rounds: The rounds.
        context: The context of the run.
        is_spent: Whether the budget has no room for another question.
        by_vectors: Whether the engine compares the query with the vectors of all documents.
    """
    strategy = context.strategy
    if not strategy.refines or strategy.ask == "never":
        return "not_refining"
    last = rounds[-1]
    if last.objective is None:
        if last.distance <= (0, context.threshold):
            return "converged"
    elif strategy.ask == "auto":
        gain = expected_gain(rounds, EXPECTED_SHARE[by_vectors])
        if gain < context.least_gain:
            return "little_to_gain"
    rounds_without_gain = last.index - best_of(rounds).index
    if rounds_without_gain >= context.patience:
        return "no_improvement"
    if last.index >= context.max_iterations:
        return "max_iterations"
    return "budget" if is_spent else None


def groups_to_ask_about(
    target: Shares, exposure: Shares, which: Groups, limit: int
) -> list[GroupKey]:
    """Return the groups to ask about, sorted by ε* − ε with the largest first.

    ``unknown`` is left out, since a query cannot be refined toward documents without a label. If no
    group lacks exposure, the list is empty.

    Args:
        target: ε* by dimension and group.
        exposure: ε by dimension and group.
        which: The ``most`` under-represented group, those ``lacking`` exposure, or ``all``.
        limit: The largest number of groups.
    """
    lacks: list[tuple[float, GroupKey]] = []
    for name, shares in target.items():
        for group, share in shares.items():
            if group != UNKNOWN:
                lacks.append((share - exposure[name][group], (name, group)))

    def rank(entry: tuple[float, GroupKey]) -> tuple[bool, float]:
        """Put the largest lack first, and an attribute without any label last."""
        lack, (name, _) = entry
        is_unlabelled = not any(exposure[name].values())
        return is_unlabelled, -lack

    lacks.sort(key=rank)
    lacking = [entry for entry in lacks if entry[0] > 0]
    if which == "all" and lacking:
        chosen = lacks
    else:
        chosen = [entry for entry in lacking if entry[0] >= NEGLIGIBLE] or lacking[:1]
    most = min(1, limit) if which == "most" else limit
    return [key for _, key in chosen[:most]]
