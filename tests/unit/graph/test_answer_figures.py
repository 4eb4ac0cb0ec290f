"""The arithmetic over sampled rankings, against counting one sample after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.graph.answer.builder import attribution_rate, group_shares, mean_exposure
from fairqr.graph.answer.result import RankingAnswer

IDS = list("abcdef")
K = 3


@st.composite
def answers(draw: st.DrawFn) -> RankingAnswer:
    """K of the documents in some order, read by some samples."""
    verdicts = st.sampled_from([True, False, None])
    return RankingAnswer(
        ids=draw(st.permutations(IDS))[:K],
        samples=draw(st.integers(1, 9)),
        status="ok",
        text="x",
        used=draw(st.lists(verdicts, min_size=K, max_size=K)),
    )


@given(st.lists(answers(), min_size=1, max_size=6))
def test_exposure_and_the_rate_are_those_of_the_samples_one_by_one(
    several: list[RankingAnswer],
) -> None:
    samples = [answer for answer in several for _ in range(answer.samples)]
    read, used = (mean_exposure(several, IDS, used=used) for used in (False, True))
    for place, id_ in enumerate(IDS):
        verdicts = [dict(zip(it.ids, it.used, strict=True)).get(id_, "unread") for it in samples]
        assert read[place] == pytest.approx(1 - verdicts.count("unread") / len(samples))
        assert used[place] == pytest.approx(verdicts.count(True) / len(samples))
    assert read.sum() == pytest.approx(K)
    known = [[used for used in it.used if used is not None] for it in samples]
    rates = [verdicts.count(True) / len(verdicts) for verdicts in known if verdicts]
    judged = [answer for answer in several if set(answer.used) != {None}]
    assert attribution_rate(judged) == (pytest.approx(np.mean(rates)) if rates else None)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 5)), min_size=1))
def test_the_shares_of_groups_are_summed_by_membership(
    documents: list[tuple[float, float, int]],
) -> None:
    """A document may have a label for a part of itself, or for none."""
    members = np.array([[label * a, label * (1 - a)] for label, a, _ in documents])
    exposure = np.array([float(times) for _, _, times in documents])
    shares, unknown = group_shares(members, exposure)
    total = sum(exposure)
    first = sum(m[0] * e for m, e in zip(members, exposure, strict=True))
    second = sum(m[1] * e for m, e in zip(members, exposure, strict=True))
    known = first + second
    assert shares == pytest.approx([first / known, second / known] if known > 0 else [None, None])
    assert unknown == (pytest.approx(max(0.0, 1 - known / total), abs=1e-12) if total else None)
