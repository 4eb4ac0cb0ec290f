"""The frames of groups and of counts, against loops over the records."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from fairqr.evaluation.rag.measuring import (
    OF_GROUPS,
    POLICY,
    counts_of,
    group_shares,
    means_of,
    policy_name,
)
from fairqr.evaluation.rag.store import PolicyRecord
from tests.unit.evaluation.rag.made_records import USEFUL, K, Made, made

GROUPS = {0: "female", 1: "male", 2: "male", 3: "female", 4: "male", 5: "unknown"}
"""Of the documents of :func:`made`."""


@pytest.fixture(scope="module")
def run() -> Made:
    """Two seeds, one of them with other rankings, and a record of nothing."""
    found = made(queries=7, alphas=(2.0, 8.0), retrievers=("bm25",), samples=9)
    again = [
        record.model_copy(
            update={"seed": 1, "samples": record.samples[:3], "answers": record.answers[:1]}
        )
        for record in found.records
        if record.policy != "deterministic"
    ]
    first = found.records[0]
    nothing = first.model_copy(update={"samples": (), "answers": (), "failure": "no scores"})
    found.records = [nothing, *found.records[1:], *again]
    return found


def _shown(record: PolicyRecord) -> Counter[str]:
    """Count how often each group is read, by ranking."""
    read = Counter(GROUPS[i] for sample in record.samples for i in sample)
    return Counter({group: count / len(record.samples) for group, count in read.items()})


def _used(record: PolicyRecord) -> Counter[str]:
    """Count how often each group is used, by answered ranking."""
    used: Counter[str] = Counter()
    times = sum(answer.times for answer in record.answers)
    for answer in record.answers:
        for i, was_used in zip(answer.ranking, answer.used, strict=True):
            used[GROUPS[i]] += answer.times * bool(was_used) / times
    return used


def _means(shares: list[dict[str, float]]) -> dict[str, float]:
    return {
        group: float(np.mean([s.get(group, 0.0) for s in shares])) for group in set(GROUPS.values())
    }


def test_shares_are_means_over_queries_with_seeds_averaged_first(run: Made) -> None:
    found = group_shares(run.measured().groups).set_index(["generator", "policy", "group"])
    by_key: dict[tuple[str, str], dict[str, list[PolicyRecord]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in run.records:
        if record.samples:
            key = (record.generator, policy_name(record.policy, record.alpha))
            by_key[key][record.query].append(record)
    assert len(by_key) == 2 * 4
    for key, queries in by_key.items():
        shown, used = [], []
        for own in queries.values():
            total = sum((_shown(record) for record in own), Counter[str]())
            shown.append({group: x / (K * len(own)) for group, x in total.items()})
            total = sum((_used(record) for record in own), Counter[str]())
            if total:
                used.append({group: x / total.total() for group, x in total.items()})
        for group in set(GROUPS.values()):
            row = found.loc[(*key, group)]
            assert row.exposure == pytest.approx(_means(shown)[group])
            assert row.attributed == pytest.approx(_means(used)[group])
            assert (row.queries, row.used_queries) == (len(shown), len(used))
    # Of three useful documents, two are of women, and two are read.
    targets = found.target.groupby("group").unique()
    assert {group: pytest.approx(list(t)) for group, t in targets.items()} == {
        "female": [2 / 3],
        "male": [1 / 3],
        "unknown": [0],
    }


def test_expected_exposure_by_group_is_that_of_the_rankings(run: Made) -> None:
    measures = run.measured().group_measures
    means = means_of(measures, POLICY, OF_GROUPS).set_index(["generator", "policy", "measure"])
    target = {"female": 2 * K / 3, "male": K / 3}
    for generator in ("small", "large"):
        disparities, losses = defaultdict(list), defaultdict(list)
        for record in run.records:
            if (record.generator, record.alpha) == (generator, 2.0) and record.samples:
                shown = _shown(record)
                disparities[record.query].append(sum(shown[g] ** 2 for g in target))
                losses[record.query].append(sum((shown[g] - target[g]) ** 2 for g in target))
        for name, values in (("EE-D by group", disparities), ("EE-L by group", losses)):
            row = means.loc[(generator, "α = 2", name)]
            assert row["mean"] == pytest.approx(np.mean([np.mean(v) for v in values.values()]))
            assert row.queries == 7
    assert set(USEFUL) == {0, 2, 3}


def test_counts_and_costs_are_sums_over_records(run: Made) -> None:
    found = counts_of(run.measured().values, POLICY).set_index(["generator", "policy"])
    own = [r for r in run.records if (r.generator, r.policy) == ("small", "deterministic")]
    row = found.loc[("small", "deterministic")]
    assert (row["rows"], row.undrawn, row.drawn) == (7, 1, 6)
    assert row.generated == row.distinct == 6
    assert row.pairs == 6 * K
    assert row.tokens == sum(record.tokens for record in own)
    random = [r for r in run.records if (r.generator, r.alpha) == ("large", 8.0)]
    row = found.loc[("large", "α = 8")]
    assert row["rows"] == len(random) == 14
    assert row.drawn == sum(len(record.samples) for record in random)
    assert row.generated == sum(answer.times for r in random for answer in r.answers)
    assert row.failed == {}


def test_all_frames_are_given_by_name(run: Made) -> None:
    frames = run.measured().frames
    assert list(frames) == [
        "values",
        "reasons",
        "means",
        "groups",
        "group_measures",
        "labels",
        "official",
    ]
    assert len(frames["values"]) == len(frames["reasons"]) == len(run.records)
    missing = frames["values"]["EE-D"].isna()
    assert frames["reasons"]["EE-D"][missing].tolist() == ["missing"]
    assert frames["values"].failure[missing].tolist() == ["no scores"]
