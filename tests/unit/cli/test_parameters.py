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
    """Several values are separated by commas or repeated."""
    read = answer(
        *("k=7", "threshold=1e-2", "intersect=yes", "pool=last", "discount=rbp(.8)"),
        *("budget.tokens=1000", "ranking.window=10", "method=listwise", "options.trade_off=.7"),
        *("prompts.refine=v2", "attributes=gender, continent", "attributes=field"),
        *("target=population:0.5,uniform:0.5", "target=gender=female:0.4,male:0.6"),
    )
    assert (read.k, read.threshold, read.intersect, read.pool) == (7, 0.01, True, "last")
    assert (str(read.discount), read.budget.tokens, read.ranking.window) == ("rbp(0.8)", 1000, 10)
    assert (read.options, read.prompts) == ({"trade_off": ".7"}, {"refine": "v2"})
    assert read.attributes == ("gender", "continent", "field")
    assert read.target.parts == {"population": 0.5, "uniform": 0.5}
    assert read.target.shares == {"gender": {"female": 0.4, "male": 0.6}}


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
)
def test_what_is_wrong_is_one_sentence(texts: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("?", r"\?")):
        answer(*texts)


@pytest.mark.parametrize("context", [Context, AnswerContext, ProbeContext])
def test_every_parameter_is_listed(
    context: type[BaseModel], capsys: pytest.CaptureFixture[str]
) -> None:
    explain([context])
    shown = {*capsys.readouterr().out.splitlines()}
    assert {f"  {it.label}" for it in parameters_of([context])} | {"  ranking.window"} <= shown


def test_an_experiment_lists_and_reads_what_its_file_sets(fairqr: Callable[..., Any]) -> None:
    """It has a --set of its own: which parameters there are depends on the file."""
    run = ("experiment", "run", "llm_pairwise", "--small")
    assert "\n  split\n" in fairqr(*run, "--set", "help").stdout
    told = fairqr(*run, "--set", "split=nothing", "-o", "out").complaint()
    assert "has no judgements 'nothing'" in told
