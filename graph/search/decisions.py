"""The decisions of the loop, as pure functions: when to stop, which round is best, whom to help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.rankers import Cost
from fairqr.graph.search.context import Budget, Context, Groups
from fairqr.graph.search.round_lists import rank_key
from fairqr.graph.search.state import (
    FairListRecord,
    GroupKey,
    IterationRecord,
    ObjectiveRecord,
    State,
    StopReason,
)
from fairqr.retrieval.fairness.objective import DIGITS
from fairqr.retrieval.sources.schema import UNKNOWN

# We ask no question for a group that lacks less than this share of the exposure.
NEGLIGIBLE = 0.01


EXPECTED_SHARE = {True: 0.01, False: 0.13}
"""The share of what is left to gain that a first round of refinement brings: if the engine compares
the query with the vectors of all documents, and if it only finds words. These are means over
notables and TREC Fair 2022 with the refiner ``feedback`` (docs/explanation/relevance.md)."""


def best_iteration(iterations: Sequence[IterationRecord]) -> int:
    """Return the index of the first round with the highest objective, or the lowest divergence.

    The objective counts if the fair step ran after each round.
    """

    def badness(record: IterationRecord) -> tuple[tuple[float, ...], int]:
        objective = record["objective"]
        if objective is None:
            return rank_key(record["divergences"]), record["index"]
        return preference(objective), record["index"]

    return min(iterations, key=badness)["index"]


def preference(objective: ObjectiveRecord) -> tuple[float, ...]:
    """Return a key that sorts lists from best to worst.

    A target of one's own comes first, and then the lowest weight of fairness that led so near to
    it, which pays least relevance. J is only comparable at the same weight.
    """
    missed, weight = objective["missed"], objective["weight"]
    return objective["undefined"], missed, weight, -worth(objective)


def better(one: FairListRecord | None, other: FairListRecord) -> FairListRecord:
    """Return the better list by the objective; the first one if both are equal."""
    if one is None:
        return other
    return min(one, other, key=lambda record: preference(record["objective"]))


def worth(objective: ObjectiveRecord) -> float:
    """Return J on a scale that all rounds share, rounded as J itself."""
    return round(objective["value"] * objective["most"], DIGITS)


def expected_gain(iterations: Sequence[IterationRecord], share: float) -> float:
    """Return what another round is expected to add to J, as a share of it.

    If its documents were as relevant as those of today's ranking, it could add up to V − J. It is
    expected to add the mean share of that which rounds have added: those of this search with the
    same weight, and the one that a first round is expected to add.

    Args:
        iterations: The rounds.
        share: That of a first round, one of :data:`EXPECTED_SHARE`.
    """
    shares, left = [share], 0.0
    found = [record["objective"] for record in iterations]
    last, before = 0.0, None
    for objective in found:
        if objective is None:
            return 0.0
        now, weight = worth(objective), objective["weight"]
        if left > 0 and weight == before:
            shares.append(max(0.0, now - last) / left)
        most = objective["relevance"] * objective["most"]
        last, left, before = now, most - now, weight
    return round(sum(shares) / len(shares) * max(0.0, left) / last, DIGITS) if last > 0 else 0.0


class Shortage(NamedTuple):
    """What a budget lacks: ``needed`` of a unit, while only ``left`` of ``limit`` remain.

    ``unit`` is ``model_calls`` or ``tokens``.
    """

    unit: str
    needed: int
    left: int
    limit: int

    @property
    def unit_in_words(self) -> str:
        """The unit in words for users."""
        return self.unit.replace("_", " ")


def shortage(budget: Budget, spent: Usage, needed: Cost) -> Shortage | None:
    """Return what a budget lacks for something, or None if it has room for it."""
    tokens = spent.prompt_tokens + spent.completion_tokens
    for unit, limit, used, number in (
        ("model_calls", budget.model_calls, spent.model_calls, needed.calls),
        ("tokens", budget.tokens, tokens, needed.tokens),
    ):
        if limit is not None and used + number > limit:
            return Shortage(unit, number, max(0, limit - used), limit)
    return None


def for_the_loop(context: Context, state: State) -> Context:
    """Return the context with the budget for refinement: without re-ranking and later steps."""
    cost, budget = state.get("cost"), context.budget
    if cost is None:
        return context
    left: dict[str, int] = {}
    if budget.model_calls is not None:
        left["model_calls"] = max(0, budget.model_calls - cost["calls"] - cost["reserved_calls"])
    if budget.tokens is not None:
        left["tokens"] = max(0, budget.tokens - cost["tokens"] - cost["reserved_tokens"])
    return context.model_copy(update={"budget": budget.model_copy(update=left)})


def budget_is_spent(budget: Budget, usage: Usage, seconds: float) -> bool:
    """Return whether the budget has no room for another question."""
    if budget.seconds is not None and seconds >= budget.seconds:
        return True
    return shortage(budget, usage, Cost(calls=1, tokens=1)) is not None


def decide_stop(
    iterations: Sequence[IterationRecord],
    context: Context,
    usage: Usage,
    seconds: float,
    *,
    by_vectors: bool = False,
) -> StopReason | None:
    """Return why the loop ends after these rounds, or None if it goes on.

    Args:
        iterations: The rounds.
        context: The context of the run.
        usage: What the run has cost so far.
        seconds: How long it has taken.
        by_vectors: Whether the engine compares the query with the vectors of all documents.
    """
    last, asks = iterations[-1], context.strategy.ask
    if not context.strategy.refines or asks == "never":
        return "not_refining"
    if last["objective"] is None:
        undefined, divergence = rank_key(last["divergences"])
        if not undefined and divergence <= context.threshold:
            return "converged"
    elif asks == "auto" and (
        expected_gain(iterations, EXPECTED_SHARE[by_vectors]) < context.least_gain
    ):
        return "little_to_gain"
    if last["index"] - best_iteration(iterations) >= context.patience:
        return "no_improvement"
    if last["index"] >= context.max_iterations:
        return "max_iterations"
    if budget_is_spent(context.budget, usage, seconds):
        return "budget"
    return None


def groups_to_ask_about(
    target: Mapping[str, Mapping[str, float]],
    exposure: Mapping[str, Mapping[str, float]],
    which: Groups,
    limit: int,
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
    lacks = [
        (share - exposure[name][group], name, group)
        for name, shares in target.items()
        for group, share in shares.items()
        if group != UNKNOWN
    ]
    # An attribute of which nothing has a label comes last: what it lacks is not known.
    lacks.sort(key=lambda entry: (not any(exposure[entry[1]].values()), -entry[0]))
    lacking = [entry for entry in lacks if entry[0] > 0]
    if which != "all" or not lacking:
        lacks = [entry for entry in lacking if entry[0] >= NEGLIGIBLE] or lacking[:1]
    return [(name, group) for _, name, group in lacks[: 1 if which == "most" else limit]]
