"""Wrong labels: what they do to shares is undone, in expectation."""

from __future__ import annotations

import numpy as np
import pytest

from fairqr.base.errors import SchemaError
from fairqr.retrieval.fairness.confusion import by_group, drawn_inverses, slopes, variances
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.sources.schema import Attribute, Schema, validated

MATRIX = np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.05, 0.15, 0.8]])


def test_shares_by_label_become_shares_by_group() -> None:
    random = np.random.default_rng(1)
    shares = random.dirichlet([1, 1, 1], size=20)
    assert by_group(shares @ MATRIX, MATRIX) == pytest.approx(shares)
    assert by_group(shares, None) is shares


def test_the_slope_is_that_of_the_share_by_label_where_others_keep_their_mix() -> None:
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


def test_a_product_is_confused_as_if_its_attributes_were_confused_independently() -> None:
    wrong = {"a": {"a": 0.9, "b": 0.1}, "b": {"a": 0.3, "b": 0.7}}
    one = Attribute(name="one", field="f", groups=("a", "b"), confusion=wrong)
    other = Attribute(name="other", field="g", groups=("c", "d"))
    schema = Schema(attributes={"one": one, "other": other})
    matrix = [[0.9, 0.1], [0.3, 0.7]]
    assert Dimension.named(schema, "other").confusion is None
    found = Dimension.named(schema, "one×other").confusion
    assert found == pytest.approx(np.kron(matrix, np.eye(2)))


@pytest.mark.parametrize(
    ("confusion", "why"),
    [
        ({"a": {"a": 1}}, "a row for each group"),
        ({"a": {"a": 1}, "b": {"c": 1}}, "with groups as labels"),
        ({"a": {"a": 0.9}, "b": {"b": 1}}, "sum to 1"),
        ({"a": {"a": 1.1, "b": -0.1}, "b": {"b": 1}}, "sum to 1"),
        ({"a": {"a": 9, "b": 1.5}, "b": {"b": 1}}, "sum to 1"),
        ({"a": {"a": 4, "b": 6}, "b": {"a": 40, "b": 60}}, "say nothing"),
        ({"a": {"a": 0.4, "b": 0.6}, "b": {"a": 0.4, "b": 0.6}}, "say nothing"),
        (
            {
                "a": {"a": 0.15, "b": 0.05, "c": 0.4, "d": 0.4},
                "b": {"a": 0.05, "b": 0.15, "c": 0.4, "d": 0.4},
                "c": {"a": 0.1, "b": 0.1, "c": 0.5, "d": 0.3},
                "d": {"a": 0.1, "b": 0.1, "c": 0.3, "d": 0.5},
            },
            "too alike",
        ),
        ({"a": {}, "b": {"b": 1}}, "sum to 1"),
    ],
)
def test_a_matrix_that_says_nothing_is_refused(confusion: dict[str, object], why: str) -> None:
    groups = ["a", "b", *[*confusion][2:]]
    described = {"attributes": {"x": {"name": "x", "field": "f", "groups": groups}}}
    described["attributes"]["x"]["confusion"] = confusion
    with pytest.raises(SchemaError, match=why):
        validated(Schema, described, "The schema", SchemaError)
