"""The fair order of a given list, and what groups are owed over a stream of lists."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document as Passage

from fairqr import Context, FairReranker
from fairqr.base.errors import TargetError, UnknownAttributeError
from fairqr.graph.doors.memory import Ledger
from fairqr.graph.doors.order import FairOrder, fair_order
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.sources.schema import Schema

SCHEMA: Any = {
    "attributes": {
        "gender": {"field": "gender", "groups": ["female", "male"]},
        "place": {"field": "place", "groups": ["north", "south", "east"], "unknown": "group"},
    }
}
READ = Schema.model_validate(SCHEMA)

LABELS = st.tuples(
    st.sampled_from(["female", "male", "male", "male", None]),
    st.sampled_from(["north", "north", "south", "east", None]),
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"attributes": ("gender",)},
    {"intersect": True},
    {"target": "uniform:1"},
    {"target": "gender=female:0.5,male:0.5"},
    {"fairness_weight": 3.0},
    {"fairness_weight": 0.0},
    {"order": "estimated", "discount": "rbp(0.8)"},
]


def listed(labels: list[tuple[str | None, str | None]]) -> Hits:
    members = {
        name: np.array([attribute.membership(one[number]) for one in labels])
        for number, (name, attribute) in enumerate(READ.attributes.items())
    }
    ids = [str(place) for place in range(len(labels))]
    return Hits(ids, [1 / (place + 1) for place in range(len(labels))], members)


def order(labels: list[tuple[str | None, str | None]], **options: Any) -> FairOrder:
    return fair_order(READ, Context.of(**options), listed(labels))


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(LABELS, min_size=1, max_size=40),
    k=st.integers(1, 50),
    options=st.sampled_from(OPTIONS),
)
def test_the_order_is_that_of_the_re_ranker(
    labels: list[tuple[str | None, str | None]], k: int, options: dict[str, Any]
) -> None:
    """Exactly: no document changes place between the door and :class:`FairReranker`."""
    context = Context.of(k=k, **options)
    passages = [
        Passage("", id=str(place), metadata={"gender": gender, "place": where})
        for place, (gender, where) in enumerate(labels)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ranker = FairReranker(labels=SCHEMA, context=context)
            wanted = ranker.compress_documents(passages, "any")
        except TargetError:  # nobody has a label
            with pytest.raises(TargetError):
                fair_order(READ, context, listed(labels))
            return
    found = fair_order(READ, context, listed(labels))
    assert found.positions[: len(wanted)] == [int(str(one.id)) for one in wanted]
    assert sorted(found.positions) == list(range(len(labels)))  # none is lost
    rest = found.positions[len(wanted) :]
    assert rest == sorted(rest)  # below, the list's own order
    before, after = (
        [any(groups.values()) for groups in one.exposure.values()]
        for one in (found.before, found.after)
    )
    if before == after:
        assert found.after.value >= found.before.value - 1e-9


def test_what_is_told_is_what_the_list_shows() -> None:
    """Two ranks, weighed 1 and 1/log2(3): men have both, and a woman comes second at a price."""
    found = order([("male", None), ("male", None), ("female", None)], attributes=("gender",), k=2)
    share = 1 / (1 + np.log2(3))
    assert found.positions == [0, 2, 1]
    assert found.before.exposure["gender"] == {"female": 0.0, "male": 1.0}
    assert found.after.exposure["gender"]["female"] == pytest.approx(share)
    assert found.before.relevance == pytest.approx(1)
    assert found.after.relevance < 1
    assert found.after.fairness > found.before.fairness


def test_what_a_list_cannot_tell_is_refused() -> None:
    with pytest.raises(UnknownAttributeError):
        order([("male", None)], attributes=("age",))
    with pytest.raises(TargetError):
        order([("male", None)], target="corpus:1")


def test_debts_hold_exposure_over_a_stream_of_lists_too_short_for_it() -> None:
    """One is shown of two candidates. The mean distance from a target of .3 falls as 1/T."""
    context = Context.of(attributes=("gender",), k=1, target="gender=female:0.3,male:0.7")
    pair, ledger = listed([("male", None), ("female", None)]), Ledger(decay=1.0)
    shown, distances = 0.0, []
    for number in range(1, 401):
        found = fair_order(READ, context, pair, ledger.owed)
        ledger.add(found.target, found.after.exposure)
        shown += found.after.exposure["gender"]["female"]
        distances.append(abs(shown / number - 0.3) * number)
    assert max(distances) <= 1.0 + 1e-9  # never more than one list's exposure
    assert fair_order(READ, context, pair).after.exposure["gender"]["female"] == 0.0  # alone, never


def test_debts_fade_and_outlast_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairqr.graph.doors.memory.WRITTEN", 0)
    ledger = Ledger(tmp_path / "owed.json", decay=0.5)
    target = {"gender": {"female": 0.5, "male": 0.5}}
    for _ in range(3):
        ledger.add(target, {"gender": {"female": 0.0, "male": 1.0}})
    assert ledger.owed["gender"] == {"female": 0.875, "male": -0.875}
    ledger.add(target, {"gender": {"female": 0.0, "male": 0.0}})  # nobody has a label
    assert ledger.owed["gender"]["female"] == 0.875
    assert Ledger(tmp_path / "owed.json").owed == ledger.owed
    for damaged in ("{", "[]", '{"gender": {"female": NaN}}', '{"gender": 1}'):
        (tmp_path / "owed.json").write_text(damaged)
        assert Ledger(tmp_path / "owed.json").owed == {}
    ledger = Ledger(tmp_path / "owed.json" / "below a file")
    ledger.add(target, target)  # a file that cannot be written costs nothing but itself
