"""Which round is best, whether another one is worth it, and which groups it would ask about."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.graph.search.context import Context, Groups
from fairqr.graph.search.result import GroupKey, Round, Shares, StopReason
from fairqr.retrieval.fairness.objective import DIGITS
from fairqr.retrieval.sources.schema import UNKNOWN

NEGLIGIBLE = 0.01
"""We ask no question for a group that lacks less than this share of the exposure."""


def best_of(rounds: Sequence[Round]) -> Round:
    """Return the first round with the highest objective, or the lowest divergence.

    The objective counts if the fair step ran after each round.
    """
    return min(rounds, key=lambda round_: round_.badness)


def expected_gain(share: float, relevance: float, fairness: float) -> float:
    """Return how much asking a model is expected to add to relevance × fairness.

    A list of relevant documents that meets the target would have p·F = 1. A model is expected to
    bring the same share of what lacks to that in each search: the one that it was measured to bring
    on average. So it promises more where the estimates of the first documents are low, and where
    their groups are far from the target.

    Args:
        share: What it was measured to bring; see
            :attr:`fairqr.agents.profiles.profile.ModelProfile.share`.
        relevance: p, the mean probability of relevance of the first k documents.
        fairness: F of these documents.
    """
    return round(share * (1 - relevance * fairness), DIGITS)


def decide_stop(
    rounds: Sequence[Round], context: Context, *, is_spent: bool = False, promised: float = 0.0
) -> StopReason | None:
    """Return why the loop ends after these rounds, or None if it goes on.

    With ``auto``, the model is asked in one round at most: what another one would bring was not
    measured.

    Args:
        rounds: The rounds.
        context: The context of the run.
        is_spent: Whether the budget has no room for another question.
        promised: How much asking the model is expected to add; see :func:`expected_gain`.
    """
    strategy = context.strategy
    if not strategy.refines or strategy.ask == "never":
        return "not_refining"
    last = rounds[-1]
    has_converged = last.objective is None and last.distance <= (0, context.threshold)
    if has_converged:
        return "converged"
    if last.objective is not None and strategy.ask == "auto":
        is_promising = promised > 0 and promised >= context.least_gain
        if last.index > 0 or not is_promising:
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
