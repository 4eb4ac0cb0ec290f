"""Errors: which built-in classes they are of, and how they pass through pydantic."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fairqr.base.errors import (
    BudgetError,
    FairqrError,
    IndexUnavailableError,
    QueryError,
    TargetError,
)
from fairqr.graph.answer.context import answer_context
from fairqr.graph.search.context import Context, make_context


def test_wrong_input_is_a_value_error() -> None:
    assert issubclass(QueryError, ValueError)
    assert issubclass(FairqrError, RuntimeError)
    assert not issubclass(IndexUnavailableError, ValueError)
    error = BudgetError("tokens", 3, 2, "Too much.")
    assert isinstance(error, ValueError)
    assert (str(error), error.needed) == ("Too much.", 3)


@pytest.mark.parametrize("target", ["nowhere:1", "retrieved:2", "gender=female:0.5"])
def test_a_wrong_target_keeps_its_kind(target: str) -> None:
    """Pydantic wraps it; programs know the error by its class, and servers by its slug."""
    for make in (make_context, answer_context):
        with pytest.raises(TargetError) as caught:
            make(target=target)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError):
        Context.model_validate({"target": target})
