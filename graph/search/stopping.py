"""Which round is best, whether another one is worth it, and which groups it would ask about."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.graph.search.context import Context, FinalRound, Groups
from fairqr.graph.search.result import GroupKey, Round, Shares, StopReason
from fairqr.retrieval.fairness.divergence import DEFAULT_SMOOTHING, Lack, lacks
from fairqr.retrieval.fairness.objective import DIGITS
from fairqr.retrieval.sources.schema import UNKNOWN

NEGLIGIBLE = 0.01
"""We ask no question for a group that lacks less than this share of the exposure."""


def kept_of(rounds: Sequence[Round], final_round: FinalRound) -> Round:
    """Return the round that the result is made of: the best one, or the last one."""
    return rounds[-1] if final_round == "last" else best_of(rounds)


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

    newest = rounds[-1]
    if newest.objective is None:
        if newest.distance <= (0, context.threshold):
            return "converged"
    elif strategy.ask == "auto":
        is_promising = promised > 0 and promised >= context.least_gain
        was_asked = newest.index > 0
        if was_asked or not is_promising:
            return "little_to_gain"

    rounds_without_gain = newest.index - best_of(rounds).index
    if rounds_without_gain >= context.patience:
        return "no_improvement"
    if newest.index >= context.max_iterations:
        return "max_iterations"
    return "budget" if is_spent else None


def groups_to_ask_about(
    target: Shares,
    exposure: Shares,
    groups: Groups,
    limit: int,
    lack: Lack = "difference",
    smoothing: float = DEFAULT_SMOOTHING,
) -> list[GroupKey]:
    """Return the groups to ask about, those that lack most first.

    ``unknown`` is left out, since a query cannot be refined toward documents without a label. If no
    group lacks exposure, the list is empty.

    Args:
        target: ε* by dimension and group.
        exposure: ε by dimension and group.
        groups: The ``most`` under-represented group, those ``lacking`` exposure, or ``all``.
        limit: The largest number of groups.
        lack: By what a group lacks most; see :func:`fairqr.retrieval.fairness.divergence.lacks`.
        smoothing: Of shares whose ratio is taken.
    """
    candidates = _sorted_by_lack(target, exposure, lack, smoothing)
    missing: dict[GroupKey, float] = {}
    for name, group in candidates:
        share = target[name][group] - exposure[name][group]
        if share > 0:
            missing[name, group] = share

    lacking = list(missing)
    if groups == "most":
        return lacking[: min(1, limit)]
    if groups == "all" and lacking:
        return candidates[:limit]
    worth_asking = [key for key in lacking if missing[key] >= NEGLIGIBLE]
    return (worth_asking or lacking[:1])[:limit]


def _sorted_by_lack(
    target: Shares, exposure: Shares, lack: Lack, smoothing: float
) -> list[GroupKey]:
    """Return all groups, those that lack most first; those of unlabelled attributes last."""
    keys: list[GroupKey] = []
    ranks: dict[GroupKey, tuple[bool, float]] = {}
    for name, shares in target.items():
        reached = [exposure[name][group] for group in shares]
        is_unlabelled = not any(exposure[name].values())
        values = lacks(list(shares.values()), reached, lack, smoothing=smoothing)
        for group, value in zip(shares, values.tolist(), strict=True):
            if group != UNKNOWN:
                keys.append((name, group))
                ranks[name, group] = (is_unlabelled, -value)
    return sorted(keys, key=lambda key: ranks[key])
