"""Exposure, divergence, targets, groups and rankings: against loops, by hand, and by properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairqr.base.errors import InputError, SchemaError, TargetError
from fairqr.retrieval.fairness.confusion import by_group, drawn_inverses, slopes, variances
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.divergence import jensen_shannon, kullback_leibler, lacks, smooth
from fairqr.retrieval.fairness.exposure import (
    LOG2,
    Discount,
    exposure_and_unknown,
    exposure_ratio,
    group_exposure,
    intersection,
)
from fairqr.retrieval.fairness.protected import ProtectedGroup
from fairqr.retrieval.fairness.ranking import Ranking, reciprocal_rank_fusion
from fairqr.retrieval.fairness.table import DocumentTable
from fairqr.retrieval.fairness.target import (
    DEFAULT_TARGET,
    Target,
    can_be_weights,
    retrieved_distribution,
)
from fairqr.retrieval.sources.schema import Attribute, Schema, validated

WEIGHTS = {
    "log2": lambda rank: 1 / math.log2(rank + 1),
    "trec": lambda rank: 1 / math.log2(max(rank, 2)),
    "rbp(0.8)": lambda rank: 0.2 * 0.8 ** (rank - 1),
    "top_k(3)": lambda rank: float(rank <= 3),
    "inverse_log": lambda rank: 1 / math.log(1 + rank),
}
"""The definitions, once more and one rank at a time."""
mixed = st.lists(st.booleans(), min_size=2, max_size=40).filter(lambda it: any(it) and not all(it))


@st.composite
def rankings(draw: st.DrawFn) -> np.ndarray:
    """Memberships of a ranking: rows sum to 1, to less (partly unknown) or to 0 (unknown)."""
    shape = (draw(st.integers(1, 12)), draw(st.integers(2, 5)))
    weights = draw(hnp.arrays(float, shape, elements=st.floats(0, 1)))
    known = draw(hnp.arrays(float, (shape[0], 1), elements=st.sampled_from([0.0, 0.5, 1.0])))
    totals = weights.sum(axis=1, keepdims=True)
    return np.where(totals > 1e-6, weights / np.maximum(totals, 1e-6), 0) * known


@pytest.mark.promise("labels")
@pytest.mark.parametrize("text", WEIGHTS)
@given(members=rankings())
def test_agrees_with_a_loop_over_documents(text: str, members: np.ndarray) -> None:
    """Exposures of groups, by each discount, are the formulas of the page."""
    rows = enumerate(members, start=1)
    by_hand = sum(WEIGHTS[text](rank) * row for rank, row in rows)
    assert np.allclose(group_exposure(members, Discount.parse(text)), by_hand)
    assert str(Discount.parse(text)) == text


@pytest.mark.promise("labels")
@given(members=rankings())
def test_known_and_unknown_exposure_make_up_all_of_it(members: np.ndarray) -> None:
    """The exposure of the groups and the unknown exposure make up all exposure of a list."""
    total = LOG2.weights(len(members)).sum()
    known = group_exposure(members).sum()
    assert known / total + exposure_and_unknown(members)[1] == pytest.approx(1)


@pytest.mark.parametrize(
    "text", ["log3", "rbp", "rbp(1)", "rbp(0)", "top_k(0)", "top_k(1.5)", "", "log2(3)", "rbp(1e)"]
)
def test_a_discount_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Discount.parse(text)


def test_the_weights_of_a_discount_may_be_listed() -> None:
    """What is below the last gets nothing; and it is read as it is written."""
    listed = Discount.parse("weights(1, 0.5,.25)")
    assert str(listed) == "weights(1, 0.5, 0.25)"
    assert Discount.parse(str(listed)) == listed
    assert listed.weights(5).tolist() == [1, 0.5, 0.25, 0, 0]
    assert listed.weights(2).tolist() == [1, 0.5]


@given(first=rankings(), data=st.data())
def test_a_product_keeps_the_known_mass_of_both_attributes(
    first: np.ndarray, data: st.DataObject
) -> None:
    shares = st.sampled_from([0.0, 0.25, 0.5])
    second = data.draw(hnp.arrays(float, (len(first), 2), elements=shares))
    product = intersection([first, second])
    assert product.shape == (len(first), first.shape[1] * 2)
    assert np.allclose(product.sum(axis=1), first.sum(axis=1) * second.sum(axis=1))
    assert product[0, 1] == pytest.approx(first[0, 0] * second[0, 1])


@given(mixed)
def test_the_ratio_is_its_definition(protected: list[bool]) -> None:
    """L1, with a logarithm of another base; the groups swapped give the inverse."""
    v = [1 / math.log10(1 + rank) for rank in range(1, len(protected) + 1)]
    of_side = {
        side: [w for w, it in zip(v, protected, strict=True) if it == side] for side in (0, 1)
    }
    means = {side: sum(weights) / len(weights) for side, weights in of_side.items()}
    found = exposure_ratio(protected)
    assert found == pytest.approx(means[1] / means[0], rel=1e-12)
    assert exposure_ratio([not it for it in protected]) == pytest.approx(1 / found, rel=1e-12)
    best, worst = exposure_ratio(sorted(protected, reverse=True)), exposure_ratio(sorted(protected))
    assert worst - 1e-12 <= found <= best + 1e-12


def test_an_empty_group_or_others_without_exposure_have_no_ratio() -> None:
    for protected in ([], [True, True], [False, False, False]):
        assert exposure_ratio(protected) is None
    assert exposure_ratio([True, False], Discount("top_k", 1)) is None
    assert exposure_ratio([False, True], Discount("top_k", 1)) == 0


@st.composite
def pairs(draw: st.DrawFn) -> list[np.ndarray]:
    size = draw(st.integers(2, 6))
    weights = st.lists(st.integers(0, 20), min_size=size, max_size=size).filter(any)
    return [np.array(it) / sum(it) for it in (draw(weights), draw(weights))]


@pytest.mark.promise("labels")
def test_a_worked_value_of_kl() -> None:
    """The Kullback–Leibler divergence is the formula of the page."""
    # KL([½,½] ‖ [¼,¾]) = ½ ln 2 + ½ ln ⅔
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    found = kullback_leibler([0.5, 0.5], [0.25, 0.75], smoothing=0)
    assert found == pytest.approx(expected)
    turned = kullback_leibler([0.25, 0.75], [0.5, 0.5], smoothing=0, direction="exposure_target")
    assert turned == pytest.approx(expected)
    # Without smoothing, an absent group is infinitely far.
    assert kullback_leibler([0.5, 0.5], [1, 0], smoothing=0) == np.inf
    assert np.isfinite(kullback_leibler([0.5, 0.5], [1, 0]))


def test_worked_values_of_what_a_group_lacks() -> None:
    """The terms of the divergence add up to it; a group without exposure has a finite ratio."""
    target = [0.5, 0.4, 0.1]
    exposure = [0.2, 0.8, 0.0]
    assert lacks(target, exposure) == pytest.approx([0.3, -0.4, 0.1])
    ratios = lacks(target, exposure, "ratio", smoothing=0.03)
    assert ratios == pytest.approx([0.495 / 0.204, 0.398 / 0.786, 0.107 / 0.01])
    terms = lacks(target, exposure, "divergence")
    assert terms.sum() == pytest.approx(kullback_leibler(target, exposure))
    assert lacks(target, target, "divergence") == pytest.approx([0.0, 0.0, 0.0])


@pytest.mark.promise("labels")
def test_a_worked_value_of_js() -> None:
    """The Jensen–Shannon divergence is the formula of the page."""
    # Disjoint distributions are one bit apart.
    assert jensen_shannon([1, 0], [0, 1], unit="bits") == pytest.approx(1)
    assert jensen_shannon([1, 0], [0, 1]) == pytest.approx(math.log(2))
    # JS([1,0],[½,½]): m = [¾,¼], ½ ln(4/3) + ½(½ ln ⅔ + ½ ln 2)
    expected = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2)
    assert jensen_shannon([1, 0], [0.5, 0.5]) == pytest.approx(expected)


@given(pairs(), st.sampled_from([1e-6, 1e-3, 0.1]), st.floats(0.05, 0.95), st.data())
def test_what_always_holds(
    pair: list[np.ndarray], smoothing: float, step: float, data: st.DataObject
) -> None:
    """Zero exactly at equality, falling toward the target, and the same in any order of groups."""
    p, q = pair
    kl, js = kullback_leibler(p, q, smoothing=smoothing), jensen_shannon(p, q)
    assert kullback_leibler(p, p, smoothing=smoothing) == jensen_shannon(p, p) == 0
    assert js == pytest.approx(jensen_shannon(q, p))
    assert 0 <= jensen_shannon(p, q, unit="bits") <= 1 + 1e-12
    order = data.draw(st.permutations(range(len(p))))
    assert kullback_leibler(p[order], q[order], smoothing=smoothing) == pytest.approx(kl)
    assert jensen_shannon(p[order], q[order]) == pytest.approx(js)
    assert smooth(p, smoothing).sum() == pytest.approx(1)
    assert smooth(p, smoothing).min() > 0
    assume(not np.allclose(p, q))
    assert min(kl, js) > 0
    assert kullback_leibler(p, (1 - step) * q + step * p, smoothing=smoothing) < kl


MATRIX = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.05, 0.15, 0.8]])


def test_a_slope_is_that_of_the_share_by_label() -> None:
    shares, step = np.array([0.2, 0.5, 0.3]), 1e-6
    for group in range(3):
        moved = shares * (1 - step / (1 - shares[group]))
        moved[group] = shares[group] + step
        change = ((moved - shares) @ MATRIX)[group] / step
        assert slopes(MATRIX, shares)[group] == pytest.approx(change)


def test_the_variance_of_a_label_is_that_of_drawn_ones() -> None:
    random, shares = np.random.default_rng(2), np.array([0.2, 0.5, 0.3])
    own = random.choice(3, size=200_000, p=shares)
    labels = (MATRIX.cumsum(axis=1)[own] < random.random((len(own), 1))).sum(axis=1)
    errors = by_group(np.eye(3)[labels], MATRIX) - np.eye(3)[own]
    assert errors.mean(axis=0) == pytest.approx(0, abs=0.01)
    assert by_group(shares, None) is shares
    assert errors.var(axis=0) == pytest.approx(variances(MATRIX, shares), rel=0.02)


def test_matrices_are_drawn_from_what_a_sample_leaves_possible() -> None:
    """Also in a product with another attribute, whose labels are right."""
    counted = 4_000 * MATRIX
    drawn = drawn_inverses([np.eye(2), counted], np.random.default_rng(3), 5_000)
    assert drawn.shape == (5_000, 6, 6)
    assert drawn[:, :3, 3:] == pytest.approx(0)
    assert drawn[:, :3, :3] == pytest.approx(drawn[:, 3:, 3:])
    matrices = np.linalg.inv(drawn[:, :3, :3])
    assert matrices.mean(axis=0) == pytest.approx(MATRIX, abs=0.001)
    variance = MATRIX * (1 - MATRIX) / 4_000
    assert matrices.var(axis=0) == pytest.approx(variance, rel=0.1, abs=1e-6)
    exact = drawn_inverses([MATRIX], np.random.default_rng(3), 2)
    assert exact == pytest.approx(np.linalg.inv(MATRIX)[None])


def test_a_product_is_confused_as_independent_attributes() -> None:
    wrong = {"a": {"a": 0.9, "b": 0.1}, "b": {"a": 0.3, "b": 0.7}}
    one = Attribute(name="one", field="f", groups=("a", "b"), confusion=wrong)
    other = Attribute(name="other", field="g", groups=("c", "d"))
    schema = Schema(attributes={"one": one, "other": other})
    matrix = [[0.9, 0.1], [0.3, 0.7]]
    assert Dimension.named(schema, "other").confusion is None
    found = Dimension.named(schema, "one×other").confusion
    assert found == pytest.approx(np.kron(matrix, np.eye(2)))


@pytest.mark.promise("audit")
def test_a_matrix_that_says_nothing_is_refused() -> None:
    """A confusion matrix of labels that says nothing about the groups, and so could correct
    nothing, is refused.
    """
    for of_a, of_b, why in (
        ({"a": 1}, {"c": 1}, "with groups as labels"),
        ({"a": 0.9}, {"b": 1}, "sum to 1"),
        ({"a": 1.1, "b": -0.1}, {"b": 1}, "sum to 1"),
        ({"a": 0.4, "b": 0.6}, {"a": 0.4, "b": 0.6}, "say nothing"),
        ({"a": 0.5001, "b": 0.4999}, {"a": 0.4999, "b": 0.5001}, "too alike"),
    ):
        described = {"field": "f", "groups": ["a", "b"], "confusion": {"a": of_a, "b": of_b}}
        with pytest.raises(SchemaError, match=why):
            validated(Schema, {"attributes": {"x": described}}, "The schema", SchemaError)


SCHEMA = Schema(
    attributes={
        "gender": Attribute(name="gender", field="gender", groups=("female", "male")),
        "era": Attribute(name="era", field="era", groups=("old", "new"), unknown="group"),
    }
)
QUARTERS = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), QUARTERS, QUARTERS), max_size=40))
def test_a_document_has_the_groups_that_came_last(entries: list[tuple[str, float, float]]) -> None:
    table, expected = DocumentTable(), {}
    for id_, one, other in entries:
        expected[id_] = np.array([[one, 1 - one]]), np.array([[other, 0.0, 1 - other]])
        table.add([id_], dict(zip(("gender", "era"), expected[id_], strict=True)))
    ids = list(expected)
    for name in ("gender", "era", "gender×era"):
        dimension = Dimension.named(SCHEMA, name)
        found = table.memberships(dimension, ids)
        assert found.shape == (len(ids), len(dimension.groups))
        for row, (gender, era) in zip(found, expected.values(), strict=True):
            parts = {"gender": [gender], "era": [era]}.get(name, [gender, era])
            assert row.tolist() == intersection(parts)[0].tolist()
    assert "never met" not in table
    with pytest.raises(KeyError):
        table.memberships(Dimension.named(SCHEMA, "gender"), ["never met"])


def ranking(text: str) -> Ranking:
    return Ranking(list(text), [float(-n) for n in range(len(text))])


def test_a_worked_fusion() -> None:
    """Equal scores stand in order of id; a share speaks for some documents only."""
    fused = reciprocal_rank_fusion([ranking("abc"), ranking("ca")], [1.0, 0.5], k=60)
    assert fused.ids == ["a", "c", "b"]
    assert fused.scores == pytest.approx([1 / 61 + 0.5 / 62, 1 / 63 + 0.5 / 61, 1 / 62])
    assert reciprocal_rank_fusion([ranking("ab"), ranking("ba")]).ids == ["a", "b"]
    shares = [None, np.array([0.0, 0.5])]
    fused = reciprocal_rank_fusion([ranking("ab"), ranking("cb")], shares=shares)
    assert fused.ids == ["b", "a"]
    assert fused.scores == pytest.approx([1.5 / 62, 1 / 61])


def alone(attribute: Attribute) -> Dimension:
    return Dimension(attribute, (attribute,))


GENDER = Attribute(
    name="gender", field="g", groups=("female", "male"), population={"female": 0.5, "male": 0.5}
)
BARE = Attribute(name="age", field="a", groups=("old", "young"))
ZEROS = {"retrieved": np.zeros(2)}


@pytest.mark.promise("labels")
def test_a_worked_mixture() -> None:
    """Targets, mixtures of parts, are the formulas of the page.

    Shares of groups stand in for the parts of their attribute only.
    """
    target = Target.parse("retrieved:0.5,population:0.5")
    found = target.resolve(alone(GENDER), {"retrieved": np.array([1.0, 9.0])})
    assert found == pytest.approx([0.3, 0.7])
    target = Target.parse(["uniform:1", "gender=female:0.6,male:0.4"])
    assert target.resolve(alone(GENDER)) == pytest.approx([0.6, 0.4])
    assert target.resolve(alone(BARE)) == pytest.approx([0.5, 0.5])
    assert Target.parse(str(target).split()) == target


@pytest.mark.promise("labels")
@given(st.floats(0, 1), st.floats(0, 1))
def test_a_mixture_is_a_distribution(weight: float, share: float) -> None:
    """A target is a distribution, whatever parts are mixed."""
    target = Target(parts={"retrieved": weight, "uniform": 1 - weight})
    found = target.resolve(alone(GENDER), {"retrieved": np.array([share, 1 - share])})
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0


def test_an_undefined_part_leaves_its_weight_to_the_others() -> None:
    assert DEFAULT_TARGET.resolve(alone(GENDER), ZEROS) == pytest.approx([0.5, 0.5])
    with pytest.raises(TargetError, match="undefined"):
        Target.parse("retrieved:1").resolve(alone(GENDER), ZEROS)


def test_found_groups_share_alike_and_other_gets_nothing() -> None:
    """In a product, what is other in any of its attributes; if only other is there, it gets all."""
    attributes = {
        "seller": {"field": "s", "groups": "any"},
        "brand": {"field": "b", "groups": "any"},
        "gender": {"field": "g", "groups": ["female", "male"]},
    }
    schema = Schema.model_validate({"attributes": attributes})
    found = {"seller": ["ann", "bob"], "brand": ["x"]}
    uniform = Target.parse("uniform:1")
    for name in ("seller", "seller×gender", "gender×seller", "seller×brand", "seller×brand×gender"):
        dimension = Dimension.named(schema, name).with_groups(found)
        shares = dict(zip(dimension.groups, uniform.resolve(dimension), strict=True))
        named = [group for group in shares if "other" not in group.split(" × ")]
        assert shares == pytest.approx({it: (it in named) / len(named) for it in shares})
    nobody = Dimension.named(schema, "seller×gender").with_groups({"seller": []})
    assert uniform.resolve(nobody) == pytest.approx([0.5, 0.5])


def test_what_is_no_target_of_these_attributes_is_refused() -> None:
    for texts, named in (
        (["population:0.5,uniform:0.6"], "sum to 1"),
        (["popularity:1"], "no part 'popularity'"),
        (["population"], "not a target"),
        (["population:x"], "wrong at parts.population"),
        (["population:0.5,population:0.5"], "each name once"),
        (["gender=female:1", "gender=male:1"], "twice"),
        (["gender=woman:0.5,male:0.5"], "'woman'.*female, male"),
        (["colour=red:1"], "'colour'.*gender"),
        (["population:1"], "population for 'age'.*uniform"),
    ):
        with pytest.raises(TargetError, match=named):
            Target.parse(texts).check([GENDER, BARE])


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


KINDS = Attribute(name="gender", field="gender", groups=("female", "male", "non-binary"))
PLACE = Attribute(
    name="continent",
    field="c",
    groups=("Africa", "Asia", "Europe", "South America"),
    unknown="group",
)
ODD = Attribute(name="odd", field="odd", groups=("not a", "a vs b", "a, b", "c"))


def test_sides_are_read_and_named() -> None:
    """The three ways to write them; a group that is named as written wins over any of them."""
    for attribute, text, protected, unprotected, words in (
        (KINDS, "female", "female", "male|non-binary", "female/non-female"),
        (KINDS, "not male", "female|non-binary", "male", "non-male/male"),
        (PLACE, "not Europe", "Africa|Asia|South America", "Europe", "non-European/European"),
        (PLACE, "Africa vs Europe", "Africa", "Europe", "African/European"),
        (ODD, "not a", "not a", "a vs b|a, b|c", "not a/non-not a"),
        (ODD, "not a, b", "not a|a vs b|c", "a, b", "non-a, b/a, b"),
    ):
        sides = ProtectedGroup.parse(attribute, text)
        assert "|".join(sides.protected) == protected
        assert "|".join(sides.unprotected) == unprotected
        assert "/".join(sides.words) == words


def test_what_names_no_sides_is_refused() -> None:
    for text, words, told in (
        ("martian", None, "no group 'martian' of gender; choose among female, male, non-binary"),
        ("not female vs male", None, "needs groups of gender on both sides"),
        ("female vs female, male", None, "groups of gender on both sides, each on one of them"),
        ("not female, male, non-binary", None, "groups of gender on both sides"),
        ("female", (" ", "men"), "side needs a word, such as female"),
        ("female", ("wo\nmen", "men"), "one line of at most 100 characters"),
        ("female", ("People", "people "), "Both sides are called 'People'"),
    ):
        with pytest.raises(InputError, match=told):
            ProtectedGroup.parse(KINDS, text, words)


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


def test_a_tie_that_rounding_breaks_is_a_tie() -> None:
    sides = ProtectedGroup.parse(PLACE, "not Europe", (" others", "europeans "))
    assert sides.words == ("others", "europeans")
    tied = PLACE.membership({"Africa": 0.1, "Asia": 0.2, "Europe": 0.3})
    assert sides.sides_of([tied]).tolist() == [-1]
    of_two = ProtectedGroup.parse(KINDS, "female vs male")
    assert of_two.sides_of([[0, 0, 1], [0.2, 0.1, 0.7]]).tolist() == [-1, 1]
