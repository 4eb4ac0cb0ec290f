"""Groups: what documents get, summed by membership, against dictionaries and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.evaluation.rag.measures import GROUP_SUMS, group_exposure, memberships_of
from fairqr.retrieval.sources.schema import Attribute

ATTRIBUTE = Attribute(name="from", field="from", groups=("north", "south"))
LABELS: list[dict[str, float]] = [
    {"north": 1.0},
    {"south": 1.0},
    {"north": 0.5, "south": 0.5},
    {"north": 0.25, "unknown": 0.75},
    {},
]


def test_memberships_sum_to_one_with_the_unknown_apart() -> None:
    rows = memberships_of(ATTRIBUTE, [{"from": label} if label else {} for label in LABELS])
    assert rows.tolist() == [
        [1, 0, 0],
        [0, 1, 0],
        [0.5, 0.5, 0],
        [0.25, 0, 0.75],
        [0, 0, 1],
    ]


def test_the_unknown_stand_apart_where_the_schema_has_them_as_a_group_too() -> None:
    grouped = ATTRIBUTE.model_copy(update={"unknown": "group"})
    documents = [{"from": label} for label in LABELS]
    assert (
        memberships_of(grouped, documents).tolist() == memberships_of(ATTRIBUTE, documents).tolist()
    )


@st.composite
def cases(draw: Any) -> tuple[list[int], list[float], list[bool], list[bool], int]:
    labels = draw(st.lists(st.integers(0, 4), min_size=2, max_size=6))
    n = len(labels)
    k = draw(st.integers(1, n))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    samples = [random.permutation(n)[:k] for _ in range(3)]
    exposure = [sum(i in sample for sample in samples) / 3 for i in range(n)]
    useful = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    used = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return labels, exposure, useful, used, k


@settings(max_examples=60)
@given(cases())
def test_groups_get_what_their_documents_get(
    case: tuple[list[int], list[float], list[bool], list[bool], int],
) -> None:
    labels, exposure, useful, used, k = case
    n, m = len(labels), sum(useful)
    rows = memberships_of(ATTRIBUTE, [{"from": LABELS[label]} for label in labels])
    attributed = [e * u for e, u in zip(exposure, used, strict=True)]
    sums_of = group_exposure(rows, useful, k, exposure, exposure, attributed)
    found = dict(zip(GROUP_SUMS, sums_of, strict=True))
    target = [(min(k, m) / m if is_useful else max(0, k - m) / (n - m)) for is_useful in useful]
    expected: dict[str, dict[str, float]] = {}
    for name, values in {
        "exposure": exposure,
        "target": target,
        "useful_exposure": [e * u for e, u in zip(exposure, useful, strict=True)],
        "answered": exposure,
        "attributed": attributed,
    }.items():
        sums = {"north": 0.0, "south": 0.0, "unknown": 0.0}
        for label, value in zip(labels, values, strict=True):
            shares = LABELS[label] or {"unknown": 1.0}
            for group, share in shares.items():
                sums[group] += share * value
        expected[name] = sums
        assert list(found[name]) == pytest.approx(list(sums.values()))
    assert sum(found["exposure"]) == pytest.approx(k)
    assert sum(found["target"]) == pytest.approx(k)


def test_the_oracle_gives_groups_their_target() -> None:
    """Two useful documents of one group, one of the other, two read: no loss."""
    rows = memberships_of(ATTRIBUTE, [{"from": LABELS[i]} for i in (0, 0, 1, 1, 4)])
    useful = [True, True, True, False, False]
    exposure = [2 / 3, 2 / 3, 2 / 3, 0, 0]
    shown, target, *_ = group_exposure(rows, useful, 2, exposure, exposure, exposure)
    assert shown.tolist() == pytest.approx(target.tolist())
    assert shown.tolist() == pytest.approx([4 / 3, 2 / 3, 0])
