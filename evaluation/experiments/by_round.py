"""What the rounds of searches are worth by the judgements, which the loop itself does not see.

The loop goes by its own divergence from a target that it estimates. Whether a lower divergence
means fairer lists, and how near the estimated target is to the judged one, is told here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairqr.evaluation.estimates import NORMAL, mean_with_ends
from fairqr.evaluation.experiments.specification import RoundRecord, SearchRecord
from fairqr.evaluation.results import Evaluation
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import by_rank
from fairqr.retrieval.sources.runs import SystemRun

if TYPE_CHECKING:
    from pandas import DataFrame

FEWEST = 4
"""A correlation over fewer topics has no interval."""

Evaluates = Callable[[SystemRun], Evaluation]
"""Measures a run against the judgements."""


def round_at(record: SearchRecord, number: int) -> RoundRecord:
    """Return a round of a search; one that has stopped before keeps its last round."""
    return record.rounds[min(number, len(record.rounds) - 1)]


def run_at(name: str, records: Sequence[SearchRecord], number: int) -> SystemRun:
    """Return the lists of a round before any re-ranking, one for each seed of each topic."""
    rankings: dict[str, list[Ranking]] = {}
    for record in records:
        if record.rounds and round_at(record, number).ids:
            ranking = by_rank(round_at(record, number).ids)
            rankings.setdefault(record.topic, []).append(ranking)
    return SystemRun(name, rankings)


def judged_rounds(records: Sequence[SearchRecord], evaluates: Evaluates) -> DataFrame:
    """Return the values of each round of a system.

    Args:
        records: Its searches.
        evaluates: Measures a run.

    Returns:
        A row for each ``round``, ``topic`` and ``measure`` with its ``value``, which may be NaN,
        and the mean ``divergence`` that the searches had then.
    """
    import pandas as pd

    name = records[0].system
    last = max(len(record.rounds) for record in records) - 1
    frames = []
    for number in range(last + 1):
        values = evaluates(run_at(name, records, number)).to_frame()
        values = values.rename(columns={"query_id": "topic"}).astype({"value": float})
        of_searches = [
            (record.topic, round_at(record, number).divergence)
            for record in records
            if record.rounds
        ]
        divergences = pd.DataFrame(of_searches, columns=["topic", "divergence"])
        divergences = divergences.astype({"divergence": float}).groupby("topic").mean()
        joined = values[["topic", "measure", "value"]].join(divergences, on="topic")
        frames.append(joined.assign(round=number))
    return pd.concat(frames, ignore_index=True)


def agreement(rounds: DataFrame, fairness: str) -> dict[str, float] | None:
    """Return whether a lower divergence meant more of a judged measure of fairness, by topic.

    Args:
        rounds: What :func:`judged_rounds` returns.
        fairness: The measure; the higher, the fairer.

    Returns:
        Over the ``topics`` whose list changed: Pearson's correlation ``r`` of the fall of the
        divergence with the rise of the measure, its 95 % interval by Fisher's transformation
        (``low``, ``high``), in how many topics the divergence ``fell``, and in how many of these
        the measure ``rose``. None without such topics.
    """
    of_measure = rounds[rounds.measure == fairness]
    last_round = of_measure["round"].max()
    if last_round < 1:
        return None
    first = of_measure[of_measure["round"] == 0].set_index("topic")
    last = of_measure[of_measure["round"] == last_round].set_index("topic")
    fall = (first.divergence - last.divergence).rename("fall")
    rise = (last.value - first.value).rename("rise")
    both = fall.to_frame().join(rise).dropna()
    # A search that never refined changes nothing, and says nothing.
    both = both[(both.fall != 0) | (both.rise != 0)]
    if both.empty:
        return None
    fell = both[both.fall > 0]
    counts = {"topics": len(both), "fell": len(fell), "rose": int((fell.rise > 0).sum())}
    return counts | _correlation(both.fall.to_numpy(), both.rise.to_numpy())


def _correlation(x: FloatArray, y: FloatArray) -> dict[str, float]:
    """Return Pearson's correlation with its interval; NaN where it has none."""
    none = {"r": math.nan, "low": math.nan, "high": math.nan}
    if len(x) < FEWEST or not x.std() or not y.std():
        return none
    r = float(np.corrcoef(x, y)[0, 1])
    if abs(r) >= 1:
        return none | {"r": r}
    middle = math.atanh(r)
    half = NORMAL / math.sqrt(len(x) - 3)
    return {"r": r, "low": math.tanh(middle - half), "high": math.tanh(middle + half)}


def targets_apart(
    records: Sequence[SearchRecord], judged: Mapping[str, Mapping[str, float]]
) -> DataFrame:
    """Return the targets that searches estimated beside those that the judgements give.

    The unknown is in no estimate, so it is left out of both, and the rest sums to 1.

    Args:
        records: The searches of a system.
        judged: The judged target of each topic, by group.

    Returns:
        A row for each ``group`` with the means ``estimated`` and ``judged`` and the mean absolute
        difference ``apart`` over ``topics``; the last row, of all groups, has the mean of half the
        sum of the differences, with its interval (``low``, ``high``).
    """
    import pandas as pd

    rows = []
    for record in records:
        target = judged.get(record.topic)
        if not target or not any(record.target.values()):
            continue
        total = sum(target.get(group, 0.0) for group in record.target)
        if not total:
            continue
        for group, share in record.target.items():
            judged_share = target.get(group, 0.0) / total
            apart = abs(share - judged_share)
            rows.append((record.topic, group, share, judged_share, apart))
    whole = pd.DataFrame(rows, columns=["topic", "group", "estimated", "judged", "apart"])
    columns = ["group", "estimated", "judged", "apart", "low", "high", "topics"]
    if whole.empty:
        return pd.DataFrame(columns=columns)
    by_group = whole.groupby("group", sort=False)[["estimated", "judged", "apart"]].mean()
    by_group["topics"] = whole.groupby("group", sort=False).topic.nunique()
    apart = whole.groupby("topic").apart.sum() / 2
    seeds = whole.groupby("topic").size() / whole.group.nunique()
    mean, low, high, topics = mean_with_ends(apart / seeds)
    of_all = {"group": "all", "apart": mean, "low": low, "high": high, "topics": topics}
    table = pd.concat([by_group.reset_index(), pd.DataFrame([of_all])], ignore_index=True)
    return table.reindex(columns=columns)
