"""``--set NAME=VALUE``: what it reads, what it refuses, and what it lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from fairqr.base.errors import InputError
from fairqr.cli.parameters import checked, explain, parameters_of, read_parameters
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.search.context import Context


def answer(*texts: str) -> AnswerContext:
    return checked(AnswerContext, read_parameters([AnswerContext], texts))


def test_every_kind_of_value_is_read() -> None:
    numbers = answer("k=7", "threshold=1e-2")
    words = answer("intersect=yes", "pool=last", "discount=rbp(.8)")
    nested = answer("budget.tokens=1000", "ranking.window=10", "method=listwise")
    tables = answer("method=mmr", "options.trade_off=.7", "prompts.refine=v2")

    assert (numbers.k, numbers.threshold) == (7, 0.01)
    assert (words.intersect, words.pool, str(words.discount)) == (True, "last", "rbp(0.8)")
    assert (nested.budget.tokens, nested.ranking.window) == (1000, 10)
    assert (tables.options, tables.prompts) == ({"trade_off": ".7"}, {"refine": "v2"})


def test_several_values_are_separated_by_commas_or_repeated() -> None:
    context = answer(
        "attributes=gender, continent",
        "attributes=field",
        "target=population:0.5,uniform:0.5",
        "target=gender=female:0.4,male:0.6",
    )

    assert context.attributes == ("gender", "continent", "field")
    assert context.target.parts == {"population": 0.5, "uniform": 0.5}
    assert context.target.shares == {"gender": {"female": 0.4, "male": 0.6}}


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["window"], "'window' has no value; write NAME=VALUE."),
        (["colour=3"], "There is no parameter 'colour'. '--set help' lists them all."),
        (["ranking.windw=3"], "did you mean ranking.window?"),
        (["window=3"], "There is no parameter 'window'; did you mean ranking.window?"),
        (["budget=5"], "did you mean budget.model_calls or budget.tokens or budget.seconds?"),
        (["k=5", "k=6"], "'k' is set twice; set it once."),
        (["k=many"], "The parameter 'k' is wrong: Input should be a valid integer"),
        (["budget.seconds=0"], "The parameter 'budget.seconds' is wrong: Input should be greater"),
        (["target=x:1"], "The target has no part 'x'"),
    ],
    ids=[
        "no value",
        "unknown",
        "misspelt",
        "part of a name",
        "several choices",
        "twice",
        "no number",
        "out of range",
        "target",
    ],
)
def test_what_is_wrong_is_one_sentence(texts: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("?", r"\?")):
        answer(*texts)


@pytest.mark.parametrize("context", [Context, AnswerContext, ProbeContext])
def test_every_parameter_is_listed(
    context: type[BaseModel], capsys: pytest.CaptureFixture[str]
) -> None:
    explain([context])
    lines = {*capsys.readouterr().out.splitlines()}
    labels = {f"  {parameter.label}" for parameter in parameters_of([context])}

    assert labels | {"  ranking.window"} <= lines


def test_an_experiment_lists_and_reads_what_its_file_sets(fairqr: Callable[..., Any]) -> None:
    """It has a --set of its own: which parameters there are depends on the file."""
    run = ("experiment", "run", "llm_pairwise", "--small")
    assert "\n  split\n" in fairqr(*run, "--set", "help").stdout

    complaint = fairqr(*run, "--set", "split=nothing", "-o", "out").complaint()
    assert "has no judgements 'nothing'" in complaint
