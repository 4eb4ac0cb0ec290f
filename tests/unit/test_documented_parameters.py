"""The page of parameters is what the code says."""

from __future__ import annotations

from fairqr.cli.parameters import parameters_of
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.probe.context import ProbeContext
from tests.checks.parameters_page import PAGE, page


def test_the_page_of_parameters_is_up_to_date() -> None:
    """``make parameters`` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_page_has_every_parameter() -> None:
    text = page()
    for parameter in parameters_of([AnswerContext, ProbeContext]):
        assert parameter.field.description, parameter.name
        assert f"| `{parameter.label}` |" in text
