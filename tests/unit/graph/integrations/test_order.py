"""The fair order of a given list, and the amortised deficits of groups over a stream of lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairqr import Context
from fairqr.base.errors import TargetError
from fairqr.graph.integrations.amortised import AmortisedDeficit
from fairqr.graph.integrations.order import fair_order
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import Candidates
from fairqr.retrieval.rerankers.fair import FairStep
from tests.unit.retrieval.embedded import GENDER


def listed(*genders: str | None) -> Hits:
    members = np.array([GENDER.attribute("gender").membership(gender) for gender in genders])
    ranks = range(1, len(genders) + 1)
    return Hits([*map(str, ranks)], [1 / rank for rank in ranks], {"gender": members})


def test_a_fair_order_reports_what_it_shows() -> None:
    """Two ranks, weighed 1 and 1/log2(3): men have both, and a woman comes second at a price."""
    order = fair_order(GENDER, Context(k=2), listed("male", "male", "female"))
    share = 1 / (1 + np.log2(3))
    assert order.positions == [0, 2, 1]
    assert order.before.exposure["gender"] == {"female": 0.0, "male": 1.0}
    assert order.after.exposure["gender"]["female"] == pytest.approx(share)
    assert order.before.relevance == pytest.approx(1)
    assert order.after.relevance < 1
    assert order.after.fairness > order.before.fairness
    assert order.after.value > order.before.value


def test_a_list_without_labels_has_no_target() -> None:
    with pytest.raises(TargetError, match="is undefined"):
        fair_order(GENDER, Context(), listed(None, None))


@pytest.mark.promise("service")
def test_deficits_hold_exposure_over_a_stream_of_short_lists() -> None:
    """Amortised deficits hold exposure over a stream of lists that are too short for it.

    One is shown of two candidates. The mean distance from a target of .3 falls as 1/T.
    """
    context = Context.of(k=1, target="gender=female:0.3,male:0.7")
    pair = listed("male", "female")
    deficit = AmortisedDeficit(decay=1.0)
    exposure = 0.0
    distances = []
    for number in range(1, 401):
        order = fair_order(GENDER, context, pair, deficit.by_group)
        deficit.add(order.target, order.after.exposure)
        exposure += order.after.exposure["gender"]["female"]
        distances.append(abs(exposure / number - 0.3) * number)

    assert max(distances) <= 1.0 + 1e-9  # never more than one list's exposure
    # In a list alone she is never shown.
    assert fair_order(GENDER, context, pair).after.exposure["gender"]["female"] == 0.0


EVEN = {"gender": {"female": 0.5, "male": 0.5}}


def test_deficits_fade_and_outlast_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairqr.graph.integrations.amortised.WRITTEN", 0)
    deficit = AmortisedDeficit(tmp_path / "deficit.json", decay=0.5)
    for _ in range(3):
        deficit.add(EVEN, {"gender": {"female": 0.0, "male": 1.0}})

    assert deficit.by_group["gender"] == {"female": 0.875, "male": -0.875}
    deficit.add(EVEN, {"gender": {"female": 0.0, "male": 0.0}})  # nobody has a label
    assert deficit.by_group["gender"]["female"] == 0.875
    assert AmortisedDeficit(tmp_path / "deficit.json").by_group == deficit.by_group


@pytest.mark.parametrize(
    "damaged",
    ["{", "[]", '{"gender": {"female": NaN}}', '{"gender": 1}'],
    ids=["cut off", "list", "no number", "no groups"],
)
def test_a_damaged_file_of_deficits_counts_as_empty(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "deficit.json").write_text(damaged)

    assert AmortisedDeficit(tmp_path / "deficit.json").by_group == {}


def test_deficits_that_cannot_be_written_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairqr.graph.integrations.amortised.WRITTEN", 0)
    (tmp_path / "file").write_text("")
    deficit = AmortisedDeficit(tmp_path / "file" / "deficit.json")

    deficit.add(EVEN, EVEN)


def test_groups_that_no_document_has_count_as_one() -> None:
    """Of 300 groups a list has few. Each order is as good as with all of them, to rounding."""
    draw = np.random.default_rng(1)
    members = np.zeros((30, 300))
    members[np.arange(30), draw.integers(0, 300, 30)] = draw.uniform(0.5, 1, 30)
    ids = [*map(str, range(30))]
    candidates = Candidates(
        ranking=Ranking(ids, [1 / (place + 1) for place in range(30)]),
        memberships=[members],
        targets=[draw.dirichlet(np.ones(300))],
        dimensions=["seller"],
        groups=[[f"s{number}" for number in range(300)]],
        relevance=np.linspace(0.9, 0.1, 30),
    )
    folded = candidates.with_absent_groups_as_one()
    (groups,) = folded.groups
    present = [f"s{number}" for number in np.flatnonzero(members.any(axis=0))]
    assert groups == [*present, "all others"]
    assert folded.targets[0].sum() == pytest.approx(1)
    few_groups = FairStep().objective(folded, 0.7, 10)
    all_groups = FairStep().objective(candidates, 0.7, 10)
    for _ in range(100):
        ranking = draw.permutation(30)[:10].tolist()
        expected = all_groups.quality(ranking).figures
        assert few_groups.quality(ranking).figures == pytest.approx(expected)


def test_a_few_absent_groups_stay_as_they_are() -> None:
    members = np.eye(30)[:, :29]
    ids = [*map(str, range(30))]
    few = Candidates(
        Ranking(ids, [1.0] * 30), [members[:3]], [np.full(29, 1 / 29)], ["it"], [ids[:29]]
    )
    assert few.with_absent_groups_as_one().groups == [ids[:29]]
