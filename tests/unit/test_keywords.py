"""The keywords that editors complete are the fields of the models that check them."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.graph.answer.context import AnswerContext, AnswerSettings
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.search.context import Context
from fairqr.keywords import AnswerKeywords, AuditKeywords, ProbeKeywords, SearchKeywords


@pytest.mark.parametrize(
    ("keywords", "models"),
    [
        pytest.param(SearchKeywords, (Context,), id="search"),
        pytest.param(AnswerKeywords, (AnswerContext, AnswerSettings), id="answer"),
        pytest.param(ProbeKeywords, (ProbeContext, ProbeSettings), id="probe"),
        pytest.param(AuditKeywords, (AuditSpec,), id="audit"),
    ],
)
def test_every_field_has_a_keyword(
    keywords: type[object], models: tuple[type[BaseModel], ...]
) -> None:
    fields = set[str]().union(*(model.model_fields for model in models))
    # `attribute` is short for `attributes`; a whole context has the parameter `context`.
    names = set(keywords.__annotations__)
    assert names - {"attribute", "context"} == fields - {"attribute", "context"}
