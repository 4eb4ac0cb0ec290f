"""One group against the rest: how it is written, what it is called, and who belongs to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.protected import ProtectedGroup, default_protected
from fairqr.retrieval.sources.schema import Attribute

GENDER = Attribute(name="gender", field="gender", groups=("female", "male", "non-binary"))
PLACE = Attribute(
    name="continent",
    field="c",
    groups=("Africa", "Asia", "Europe", "South America"),
    unknown="group",
)
ODD = Attribute(name="odd", field="odd", groups=("not a", "a vs b", "a, b", "c"))


@pytest.mark.parametrize(
    ("attribute", "text", "protected", "unprotected", "words"),
    [
        (GENDER, "female", "female", "male|non-binary", "female/non-female"),
        (GENDER, " female  vs. male ", "female", "male", "female/male"),
        (GENDER, "not male", "female|non-binary", "male", "non-male/male"),
        (PLACE, "not Europe", "Africa|Asia|South America", "Europe", "non-European/European"),
        (
            PLACE,
            "Asia, South America,Asia",
            "Asia|South America",
            "Africa|Europe",
            "Asian or South American/African or European",
        ),
        (PLACE, "Africa vs Europe", "Africa", "Europe", "African/European"),
        (ODD, "not a", "not a", "a vs b|a, b|c", "not a/non-not a"),
        (ODD, "not a vs c", "not a", "c", "not a/c"),
        (ODD, "not a, b", "not a|a vs b|c", "a, b", "non-a, b/a, b"),
    ],
)
def test_sides_are_read_and_named(
    attribute: Attribute, text: str, protected: str, unprotected: str, words: str
) -> None:
    """The three ways to write them; a group that is named as written wins over any of them."""
    sides = ProtectedGroup.parse(attribute, text)
    assert "|".join(sides.protected) == protected
    assert "|".join(sides.unprotected) == unprotected
    assert "/".join(sides.words) == words


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("martian", None, "no group 'martian' of gender; choose among female, male, non-binary"),
        ("", None, "no group ''"),
        ("unknown", None, "no group 'unknown'"),
        ("female,", None, "no group ''"),
        ("not female vs male", None, "needs groups of gender on both sides"),
        ("female vs not male", None, "no group 'not male'"),
        ("female vs male vs non-binary", None, "no group 'male vs non-binary'"),
        ("female vs female, male", None, "groups of gender on both sides, each on one of them"),
        ("female, male, non-binary", None, "groups of gender on both sides"),
        ("not female, male, non-binary", None, "groups of gender on both sides"),
        ("female", (" ", "men"), "side needs a word, such as female"),
        ("female", ("wo\nmen", "men"), "one line of at most 100 characters"),
        ("female", ("w" * 101, "men"), "one line of at most 100 characters"),
        ("female", ("People", "people "), "Both sides are called 'People'"),
    ],
)
def test_what_names_no_sides_is_refused(text: str, words: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        ProtectedGroup.parse(GENDER, text, words)


def test_own_words_and_the_group_that_is_protected_by_default() -> None:
    sides = ProtectedGroup.parse(GENDER, default_protected(GENDER), (" women", "men "))
    assert (sides.protected, sides.words) == (("female",), ("women", "men"))
    with pytest.raises(InputError, match="group of continent is protected: one of Africa, Asia, E"):
        default_protected(PLACE)


@given(
    hnp.arrays(float, st.tuples(st.integers(0, 8), st.just(5)), elements=st.floats(0, 1)),
    st.sets(st.sampled_from(PLACE.groups), min_size=1, max_size=3),
)
def test_a_document_is_where_more_of_it_is(memberships: np.ndarray, groups: set[str]) -> None:
    """Against a loop; the unknown mass decides nothing; the sides swapped give the other side."""
    found = ProtectedGroup.parse(PLACE, ", ".join(sorted(groups))).sides_of(memberships)
    assert found.shape == (len(memberships),)
    for row, side in zip(memberships, found, strict=True):
        mass = {True: 0.0, False: 0.0}
        for group, share in zip(PLACE.groups, row, strict=False):
            mass[group in groups] += share
        if abs(mass[True] - mass[False]) > 1e-6:
            assert side == int(mass[True] > mass[False])
    other = ProtectedGroup.parse(PLACE, "not " + ", ".join(sorted(groups))).sides_of(memberships)
    assert np.array_equal(other, np.where(found < 0, found, 1 - found))


@pytest.mark.parametrize(
    ("label", "side"),
    [
        ("Asia", 1),
        ("Europe", 0),
        (None, -1),
        (["Asia", "Europe"], -1),
        ({"Asia": 0.1, "unknown": 0.9}, 1),
        ({"Africa": 0.1, "Asia": 0.2, "Europe": 0.3}, -1),
    ],
)
def test_the_side_of_a_label(label: object, side: int) -> None:
    """A tie that rounding breaks is a tie; a group of neither side decides nothing."""
    sides = ProtectedGroup.parse(PLACE, "not Europe")
    assert sides.sides_of([PLACE.membership(label)]).tolist() == [side]
    of_two = ProtectedGroup.parse(GENDER, "female vs male")
    assert of_two.sides_of([[0, 0, 1], [0.2, 0.1, 0.7]]).tolist() == [-1, 1]
