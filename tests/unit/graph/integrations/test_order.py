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
    members = np.array([GENDER.attribute("gender").membership(it) for it in genders])
    ranks = range(1, len(genders) + 1)
    return Hits([*map(str, ranks)], [1 / rank for rank in ranks], {"gender": members})


def test_what_is_told_is_what_the_list_shows() -> None:
    """Two ranks, weighed 1 and 1/log2(3): men have both, and a woman comes second at a price."""
    found = fair_order(GENDER, Context(k=2), listed("male", "male", "female"))
    share = 1 / (1 + np.log2(3))
    assert found.positions == [0, 2, 1]
    assert found.before.exposure["gender"] == {"female": 0.0, "male": 1.0}
    assert found.after.exposure["gender"]["female"] == pytest.approx(share)
    assert found.before.relevance == pytest.approx(1)
    assert found.after.relevance < 1
    assert found.after.fairness > found.before.fairness
    assert found.after.value > found.before.value
    with pytest.raises(TargetError, match="is undefined"):
        fair_order(GENDER, Context(), listed(None, None))


@pytest.mark.promise("service")
def test_deficits_hold_exposure_over_a_stream_of_short_lists() -> None:
    """Amortised deficits hold exposure over a stream of lists that are too short for it.

    One is shown of two candidates. The mean distance from a target of .3 falls as 1/T.
    """
    context = Context.of(k=1, target="gender=female:0.3,male:0.7")
    pair, deficit = listed("male", "female"), AmortisedDeficit(decay=1.0)
    shown, distances = 0.0, []
    for number in range(1, 401):
        found = fair_order(GENDER, context, pair, deficit.by_group)
        deficit.add(found.target, found.after.exposure)
        shown += found.after.exposure["gender"]["female"]
        distances.append(abs(shown / number - 0.3) * number)
    assert max(distances) <= 1.0 + 1e-9  # never more than one list's exposure
    # In a list alone she is never shown.
    assert fair_order(GENDER, context, pair).after.exposure["gender"]["female"] == 0.0


def test_deficits_fade_and_outlast_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairqr.graph.integrations.amortised.WRITTEN", 0)
    deficit = AmortisedDeficit(tmp_path / "deficit.json", decay=0.5)
    target = {"gender": {"female": 0.5, "male": 0.5}}
    for _ in range(3):
        deficit.add(target, {"gender": {"female": 0.0, "male": 1.0}})
    assert deficit.by_group["gender"] == {"female": 0.875, "male": -0.875}
    deficit.add(target, {"gender": {"female": 0.0, "male": 0.0}})  # nobody has a label
    assert deficit.by_group["gender"]["female"] == 0.875
    assert AmortisedDeficit(tmp_path / "deficit.json").by_group == deficit.by_group
    for damaged in ("{", "[]", '{"gender": {"female": NaN}}', '{"gender": 1}'):
        (tmp_path / "deficit.json").write_text(damaged)
        assert AmortisedDeficit(tmp_path / "deficit.json").by_group == {}
    deficit = AmortisedDeficit(tmp_path / "deficit.json" / "below a file")
    deficit.add(target, target)  # a file that cannot be written costs nothing but itself


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
    one, all_of_them = (FairStep().objective(it, 0.7, 10) for it in (folded, candidates))
    for _ in range(100):
        order = draw.permutation(30)[:10].tolist()
        assert one.quality(order).figures == pytest.approx(all_of_them.quality(order).figures)


def test_a_few_absent_groups_stay_as_they_are() -> None:
    members = np.eye(30)[:, :29]
    ids = [*map(str, range(30))]
    few = Candidates(
        Ranking(ids, [1.0] * 30), [members[:3]], [np.full(29, 1 / 29)], ["it"], [ids[:29]]
    )
    assert few.with_absent_groups_as_one().groups == [ids[:29]]
