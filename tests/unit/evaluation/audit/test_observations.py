"""Observations: what fits together, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fairqr.evaluation.audit.records import Observation
from fairqr.retrieval.fairness.table import coded, decoded

WHOLE: dict[str, Any] = {
    "query": "q1",
    "status": "ok",
    "ids": ("a", "b"),
    "others": ("c",),
    "relevance": (0.5, 0.0, 1.0),
    "groups": {"gender": {"patterns": [[1.0, 0.0], [0.5, 0.5]], "rows": [0, 1, 0]}},
}


def test_an_observation_comes_back_as_it_was_written() -> None:
    shares = np.array([[1.0, 0.0], [0.25, 0.75], [1.0, 0.0]])
    groups = coded({"gender": shares}, ["gender"])
    observation = Observation.model_validate({**WHOLE, "groups": groups})
    read = Observation.model_validate_json(observation.model_dump_json())
    assert read == observation
    assert (read.key, read.pool) == (("q1",), ("a", "b", "c"))
    np.testing.assert_array_equal(decoded(read.groups["gender"]), shares)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": ""}, "at least 1 character"),
        ({"status": "lost"}, "'ok', 'empty' or 'failed'"),
        ({"status": "empty"}, "the status is 'empty' with 2 ids"),
        ({"ids": ()}, "the status is 'ok' with 0 ids"),
        ({"levels": {"g": float("nan")}}, "finite number"),
        ({"others": ("a",)}, "has an id twice"),
        ({"others": ("c", "c")}, "has an id twice"),
        ({"relevance": (0.5, 0.5)}, "one number from 0 to 1"),
        ({"relevance": (0.5, 0.5, 1.5)}, "one number from 0 to 1"),
        ({"groups": {"g": {"patterns": [[1.0]], "rows": [0, 0]}}}, "not those of the pool"),
        ({"groups": {"g": {"patterns": [[1.0]], "rows": [0, 0, 1]}}}, "not those of the pool"),
        ({"groups": {"g": {"patterns": [[1.0]], "rows": [0, 0, -1]}}}, "not those of the pool"),
        ({"groups": {"g": {"patterns": [[2.0]], "rows": [0, 0, 0]}}}, "not shares"),
        ({"groups": {"g": {"patterns": [[1.0, float("nan")]], "rows": [0] * 3}}}, "finite number"),
        ({"groups": {"g": {"patterns": [[1.0], [0.0, 1.0]], "rows": [0, 0, 1]}}}, "not shares"),
        ({"hidden": -1}, "greater than or equal to 0"),
        ({"strange": 1}, "not permitted"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Observation.model_validate({**WHOLE, **changes})


def test_failures_are_asked_again_and_nothing_found_is_not() -> None:
    failed = Observation(query="q1", status="failed", message="The engine did not answer.")
    assert not failed.is_final
    assert Observation(query="q1", status="empty").is_final
    # Wider searches may find documents where the query itself finds none.
    Observation(query="q1", status="empty", others=("c",), relevance=(1.0,))
