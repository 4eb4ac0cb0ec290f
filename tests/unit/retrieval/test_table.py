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
from fairqr.retrieval.sources.schema import Attribute, Schema

SCHEMA = Schema(
    attributes={
        "gender": Attribute(name="gender", field="gender", groups=("female", "male")),
        "era": Attribute(name="era", field="era", groups=("old", "new"), unknown="group"),
    }
)
SHARES = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@given(npst.arrays(np.float64, st.tuples(st.integers(0, 30), st.integers(1, 5)), elements=SHARES))
def test_coding_loses_nothing(rows: np.ndarray) -> None:
    code = coded({"gender": rows, "era": rows}, ["gender"])["gender"]
    assert decoded(code).tolist() == rows.tolist()
    assert len(code["patterns"]) == len(np.unique(rows, axis=0))


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), SHARES, SHARES), max_size=40))
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
