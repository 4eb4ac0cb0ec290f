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


def test_a_worked_mixture() -> None:
    target = Target.parse("retrieved:0.5,population:0.5")
    found = target.resolve(GENDER, {"retrieved": np.array([1.0, 9.0])})
    assert found == pytest.approx([0.3, 0.7])


def test_shares_of_groups_stand_in_for_the_parts_of_their_attribute_only() -> None:
    target = Target.parse(["uniform:1", "gender=female:0.6,male:0.4"])
    assert target.resolve(GENDER) == pytest.approx([0.6, 0.4])
    assert target.resolve(BARE) == pytest.approx([0.5, 0.5])


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_mixture_is_a_distribution(weight: float, share: float) -> None:
    target = Target(parts={"retrieved": weight, "uniform": 1 - weight})
    found = target.resolve(GENDER, {"retrieved": np.array([share, 1 - share])})
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0


def test_a_part_that_is_undefined_leaves_its_weight_to_the_others() -> None:
    found = Target.parse("retrieved:0.5,population:0.5").resolve(GENDER, {"retrieved": np.zeros(2)})
    assert found == pytest.approx([0.5, 0.5])
    with pytest.raises(TargetError, match="undefined"):
        Target.parse("retrieved:1").resolve(GENDER, {"retrieved": np.zeros(2)})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("population:0.5", "sum to 1"),
        ("population:0.5,uniform:0.6", "sum to 1"),
        ("population:1.5,uniform:-0.5", "0 or more"),
        ("popularity:1", "no part 'popularity'"),
        ("population", "not a target"),
        ("", "not a target"),
        ("population:x", "not a target"),
        ("population:nan", "0 or more"),
        ("population:0.5,population:0.5", "twice"),
    ],
)
def test_what_is_no_target_is_refused(text: str, named: str) -> None:
    with pytest.raises(TargetError, match=named):
        Target.parse(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gender=woman:0.5,male:0.5", "'woman'.*female, male"),
        ("colour=red:1", "'colour'.*gender"),
    ],
)
def test_a_target_that_names_what_does_not_exist_is_refused(text: str, named: str) -> None:
    with pytest.raises(TargetError, match=named):
        Target.parse(text).check([GENDER])


def test_a_population_that_the_schema_lacks_is_named() -> None:
    with pytest.raises(TargetError, match=r"population for 'age'.*uniform"):
        Target.parse("population:1").check([GENDER, BARE])


def test_retrieved_weighs_documents_by_their_scores() -> None:
    members = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert retrieved_distribution(members, np.array([3.0, 1.0, 9.0])) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    "target",
    [
        {"parts": {"population": 0.5}},
        {"parts": {"population": 2, "retrieved": -1}},
        {"shares": {"gender": {"female": 5}}},
        {"shares": {"gender": {"female": -1, "male": 2}}},
        {"parts": {"popularity": 1}},
    ],
)
def test_a_structured_target_is_checked_as_a_written_one_is(target: dict[str, object]) -> None:
    """Over HTTP and from Python a target may come as an object."""
    with pytest.raises(InputError, match="target"):
        make_context(target=target)


@pytest.mark.parametrize("target", ["relevance:1", "relevance:0.5,population:0.5"])
def test_a_search_refuses_the_part_that_only_judgements_give(target: str) -> None:
    with pytest.raises(TargetError, match="'relevance' is only available in evaluation"):
        make_context(target=target)


def test_a_target_given_twice_is_refused() -> None:
    for texts in (["gender=female:1", "gender=male:1"], ["uniform:1", "population:1"]):
        with pytest.raises(TargetError, match="twice"):
            Target.parse(texts)


@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True) | st.floats(-5, 5), min_size=1, max_size=9
    ),
    st.data(),
)
def test_what_was_retrieved_is_a_distribution_whatever_the_scores(
    scores: list[float], data: st.DataObject
) -> None:
    sides = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    members = np.array([[float(side), float(not side)] for side in sides])
    found = retrieved_distribution(members, np.array(scores))
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    if not can_be_weights(scores):
        ranks = 1 / np.arange(1, len(scores) + 1)
        assert found == pytest.approx(ranks @ members / ranks.sum())


def test_the_default_target_does_without_a_population_where_none_is_stated() -> None:
    assert DEFAULT_TARGET.without_population([GENDER, BARE]) == ["age"]
    found = DEFAULT_TARGET.resolve(BARE, {"retrieved": np.array([1.0, 3.0])})
    assert found == pytest.approx([0.25, 0.75])
    DEFAULT_TARGET.check([GENDER, BARE])
    with pytest.raises(TargetError, match="no population for 'age'"):
        Target.parse("retrieved:0.7,population:0.3").check([GENDER, BARE])
