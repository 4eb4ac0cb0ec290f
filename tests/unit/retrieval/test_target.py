"""Targets: how they are written, mixed and refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError, TargetError
from fairqr.graph.search.context import make_context
from fairqr.retrieval.fairness.target import (
    DEFAULT_TARGET,
    Target,
    can_be_weights,
    retrieved_distribution,
)
from fairqr.retrieval.sources.schema import Attribute

GENDER = Attribute(
    name="gender", field="g", groups=("female", "male"), population={"female": 0.5, "male": 0.5}
)
BARE = Attribute(name="age", field="a", groups=("old", "young"))
ZEROS = {"retrieved": np.zeros(2)}


def test_a_worked_mixture() -> None:
    """Shares of groups stand in for the parts of their attribute only."""
    target = Target.parse("retrieved:0.5,population:0.5")
    found = target.resolve(GENDER, {"retrieved": np.array([1.0, 9.0])})
    assert found == pytest.approx([0.3, 0.7])
    target = Target.parse(["uniform:1", "gender=female:0.6,male:0.4"])
    assert target.resolve(GENDER) == pytest.approx([0.6, 0.4])
    assert target.resolve(BARE) == pytest.approx([0.5, 0.5])
    assert Target.parse(str(target).split()) == target


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_mixture_is_a_distribution(weight: float, share: float) -> None:
    target = Target(parts={"retrieved": weight, "uniform": 1 - weight})
    found = target.resolve(GENDER, {"retrieved": np.array([share, 1 - share])})
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0


def test_a_part_that_is_undefined_leaves_its_weight_to_the_others() -> None:
    assert DEFAULT_TARGET.resolve(GENDER, ZEROS) == pytest.approx([0.5, 0.5])
    with pytest.raises(TargetError, match="undefined"):
        Target.parse("retrieved:1").resolve(GENDER, ZEROS)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (["population:0.5"], "sum to 1"),
        (["population:0.5,uniform:0.6"], "sum to 1"),
        (["population:1.5,uniform:-0.5"], "0 or more"),
        (["popularity:1"], "no part 'popularity'"),
        (["population"], "not a target"),
        ([""], "not a target"),
        (["population:x"], "wrong at parts.population"),
        (["population:nan"], "0 or more"),
        (["population:0.5,population:0.5"], "each name once"),
        (["gender=female:1", "gender=male:1"], "twice"),
        (["uniform:1", "population:1"], "twice"),
        (["gender=woman:0.5,male:0.5"], "'woman'.*female, male"),
        (["colour=red:1"], "'colour'.*gender"),
        (["population:1"], "population for 'age'.*uniform"),
    ],
)
def test_what_is_no_target_of_these_attributes_is_refused(texts: list[str], named: str) -> None:
    with pytest.raises(TargetError, match=named):
        Target.parse(texts).check([GENDER, BARE])


@pytest.mark.parametrize(
    "target",
    [
        {"parts": {"population": 0.5}},
        {"parts": {"population": 2, "retrieved": -1}},
        {"shares": {"gender": {"female": 5}}},
        {"shares": {"gender": {"female": -1, "male": 2}}},
        {"parts": {"popularity": 1}},
        "relevance:0.5,population:0.5",  # only judgements give it
    ],
)
def test_a_search_checks_a_target_however_it_is_given(target: object) -> None:
    """Over HTTP and from Python a target may come as an object."""
    with pytest.raises(InputError, match=r"target|'relevance' is only available in evaluation"):
        make_context(target=target)


@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True) | st.floats(-5, 5), min_size=1, max_size=9
    ),
    st.data(),
)
def test_what_was_retrieved_is_weighed_by_its_scores_or_ranks(
    scores: list[float], data: st.DataObject
) -> None:
    groups = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    members = np.array([[float(group), float(not group)] for group in groups])
    usable = can_be_weights(scores)
    weights = np.array(scores) / max(scores) if usable else 1 / np.arange(1, len(scores) + 1)
    found = retrieved_distribution(members, np.array(scores))
    assert found == pytest.approx(weights @ members / weights.sum())


def test_the_default_target_does_without_a_population_where_none_is_stated() -> None:
    assert DEFAULT_TARGET.without_population([GENDER, BARE]) == ["age"]
    found = DEFAULT_TARGET.resolve(BARE, {"retrieved": np.array([1.0, 3.0])})
    assert found == pytest.approx([0.25, 0.75])
    DEFAULT_TARGET.check([GENDER, BARE])
    with pytest.raises(TargetError, match="no population for 'age'"):
        Target.parse("retrieved:0.7,population:0.3").check([GENDER, BARE])
