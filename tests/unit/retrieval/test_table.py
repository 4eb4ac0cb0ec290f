"""The groups of a run's documents come back as they were given, alone and as a product."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import intersection
from fairqr.retrieval.fairness.table import DocumentTable, coded, decoded
from fairqr.retrieval.sources.schema import Schema

SCHEMA = Schema.model_validate(
    {
        "attributes": {
            "gender": {"field": "gender", "groups": ["female", "male"]},
            "era": {"field": "era", "groups": ["old", "new"], "unknown": "group"},
        }
    }
)
SHARES = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@given(npst.arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 5)), elements=SHARES))
def test_coding_loses_nothing(rows: np.ndarray) -> None:
    code = coded({"gender": rows, "era": rows}, ["gender"])["gender"]
    np.testing.assert_array_equal(decoded(code), rows)
    assert len(code["patterns"]) == len(np.unique(rows, axis=0))


def test_no_documents_can_be_coded() -> None:
    assert decoded(coded({"gender": np.zeros((0, 2))}, ["gender"])["gender"]).shape[0] == 0


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), SHARES, SHARES), max_size=40))
def test_a_document_has_the_groups_that_came_last(entries: list[tuple[str, float, float]]) -> None:
    table, expected = DocumentTable(), {}
    for id_, one, other in entries:
        gender, era = np.array([[one, 1 - one]]), np.array([[other, 0.0, 1 - other]])
        table.add([id_], {"gender": gender, "era": era})
        expected[id_] = (gender, era)
    ids = list(expected)
    for name, place in (("gender", 0), ("era", 1)):
        found = table.memberships(Dimension.named(SCHEMA, name), ids)
        assert found.shape == (len(ids), len(Dimension.named(SCHEMA, name).groups))
        for row, id_ in zip(found, ids, strict=True):
            np.testing.assert_array_equal(row, expected[id_][place][0])
    product = table.memberships(Dimension.named(SCHEMA, "gender×era"), ids)
    for row, id_ in zip(product, ids, strict=True):
        np.testing.assert_array_equal(row, intersection(expected[id_])[0])


def test_a_document_that_was_never_met_is_a_fault() -> None:
    table = DocumentTable()
    table.add(["a"], {"gender": np.array([[1.0, 0.0]])})
    assert "a" in table
    assert "b" not in table
    with pytest.raises(KeyError):
        table.memberships(Dimension.named(SCHEMA, "gender"), ["b"])
