"""One group against the rest: how it is written, what it is called, and who belongs to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairqr.base.errors import InputError
from fairqr.retrieval.fairness.sides import default_protected, parse_sides
from fairqr.retrieval.sources.schema import Attribute

GENDER = Attribute(name="gender", field="gender", groups=("female", "male", "non-binary"))
PLACE = Attribute(
    name="continent",
    field="continent",
    groups=("Africa", "Asia", "Europe", "South America"),
    unknown="group",
)
ODD = Attribute(
    name="odd", field="odd", groups=("not listed", "this vs that", "Berlin, Germany", "plain")
)


@pytest.mark.parametrize(
    ("attribute", "text", "protected", "unprotected", "words"),
    [
        (GENDER, "female", ["female"], ["male", "non-binary"], ("female", "non-female")),
        (GENDER, " female  vs. male ", ["female"], ["male"], ("female", "male")),
        (GENDER, "not male", ["female", "non-binary"], ["male"], ("non-male", "male")),
        (
            PLACE,
            "not Europe",
            ["Africa", "Asia", "South America"],
            ["Europe"],
            ("non-European", "European"),
        ),
        (
            PLACE,
            "Asia, South America,Asia",
            ["Asia", "South America"],
            ["Africa", "Europe"],
            ("Asian or South American", "African or European"),
        ),
        (
            PLACE,
            "not Europe, Asia",
            ["Africa", "South America"],
            ["Europe", "Asia"],
            ("African or South American", "European or Asian"),
        ),
        (PLACE, "Africa vs Europe", ["Africa"], ["Europe"], ("African", "European")),
        (
            ODD,
            "not listed",
            ["not listed"],
            ["this vs that", "Berlin, Germany", "plain"],
            ("not listed", "non-not listed"),
        ),
        (ODD, "not not listed vs plain", None, None, None),
        (
            ODD,
            "not Berlin, Germany",
            ["not listed", "this vs that", "plain"],
            ["Berlin, Germany"],
            ("non-Berlin, Germany", "Berlin, Germany"),
        ),
    ],
)
def test_sides_are_read_and_named(
    attribute: Attribute,
    text: str,
    protected: list[str] | None,
    unprotected: list[str] | None,
    words: tuple[str, str] | None,
) -> None:
    """The three ways to write them; a group that is named as written wins over any of them."""
    if protected is None:
        with pytest.raises(InputError, match="does not give two sides"):
            parse_sides(attribute, text)
        return
    sides = parse_sides(attribute, text)
    assert (list(sides.protected), list(sides.unprotected)) == (protected, unprotected)
    assert sides.words == words
    assert sides.universe == attribute.universe


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("martian", None, "no group 'martian' of gender; choose among female, male, non-binary"),
        ("", None, "no group ''"),
        ("unknown", None, "no group 'unknown'"),
        ("female,", None, "no group ''"),
        ("not female vs male", None, "write one 'vs' or one 'not'"),
        ("female vs not male", None, "no group 'not male'"),
        ("female vs male vs non-binary", None, "write one 'vs' or one 'not'"),
        ("female vs female, male", None, "a group on both sides"),
        ("female, male, non-binary", None, "leaves no group of gender for the other side"),
        ("not female, male, non-binary", None, "leaves no group of gender for the other side"),
        ("female", (" ", "men"), "side needs a word, such as female"),
        ("female", ("wo\nmen", "men"), "one line of at most 100 characters"),
        ("female", ("w" * 101, "men"), "one line of at most 100 characters"),
        ("female", ("People", "people "), "Both sides are called 'People'"),
    ],
)
def test_what_names_no_sides_is_refused(
    text: str, words: tuple[str, str] | None, told: str
) -> None:
    """One sentence that says what to write."""
    with pytest.raises(InputError) as raised:
        parse_sides(GENDER, text, words)
    assert told in str(raised.value)


def test_own_words() -> None:
    """As the user has them, without white space around."""
    assert parse_sides(GENDER, "female", (" women", "men ")).words == ("women", "men")


def test_the_protected_group_where_none_is_named() -> None:
    """Female where there is such a group; else it is asked for, and the groups are listed."""
    assert default_protected(GENDER) == "female"
    with pytest.raises(
        InputError, match="group of continent is protected: one of Africa, Asia, Europe, South"
    ):
        default_protected(PLACE)


@given(
    hnp.arrays(float, st.tuples(st.integers(0, 8), st.just(5)), elements=st.floats(0, 1)),
    st.sets(st.sampled_from(PLACE.groups), min_size=1, max_size=3),
)
def test_a_document_is_where_more_of_it_is(memberships: np.ndarray, groups: set[str]) -> None:
    """Against a loop; the unknown mass decides nothing; the sides swapped give the other side."""
    sides = parse_sides(PLACE, ", ".join(sorted(groups)))
    found = sides.of(memberships)
    assert found.shape == (len(memberships),)
    for row, side in zip(memberships, found, strict=True):
        mass = {True: 0.0, False: 0.0}
        for group, share in zip(PLACE.groups, row, strict=False):
            mass[group in groups] += share
        if abs(mass[True] - mass[False]) > 1e-6:
            assert side == int(mass[True] > mass[False])
    other = parse_sides(PLACE, "not " + ", ".join(sorted(groups))).of(memberships)
    assert np.array_equal(other, np.where(found < 0, found, 1 - found))


@pytest.mark.parametrize(
    ("label", "side"),
    [
        ("Asia", 1),
        ("Europe", 0),
        (None, -1),
        (["Asia", "Europe"], -1),
        (["Asia", "Africa", "Europe"], 1),
        ({"Asia": 0.1, "unknown": 0.9}, 1),
        ({"Africa": 0.1, "Asia": 0.2, "Europe": 0.3}, -1),
    ],
)
def test_the_side_of_a_label(label: object, side: int) -> None:
    """As documents have them; a tie that rounding breaks is a tie."""
    sides = parse_sides(PLACE, "not Europe")
    assert sides.of([PLACE.membership(label)]).tolist() == [side]


def test_a_group_of_neither_side_decides_nothing() -> None:
    """With both sides named, others are left out."""
    sides = parse_sides(GENDER, "female vs male")
    rows = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.2, 0.1, 0.7]]
    assert sides.of(rows).tolist() == [1, 0, -1, 1]
