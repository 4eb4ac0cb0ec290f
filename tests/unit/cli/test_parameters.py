"""``--set NAME=VALUE``: what it reads, what it refuses, and what it lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from fairqr.base.errors import InputError
from fairqr.cli.options import checked, explain, parameters_of, read_parameters
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.search.context import Context


def answer(*texts: str) -> AnswerContext:
    return checked(AnswerContext, read_parameters([AnswerContext], texts))


def test_every_kind_of_value_is_read() -> None:
    read = answer(
        *("k=7", "threshold=1e-2", "intersect=yes", "pool=last", "discount=rbp(.8)", "depth=9"),
        *("budget.tokens=1000", "ranking.window=10", "answer.alpha=4", "method=listwise"),
        *("options.trade_off=.7", "prompts.refine=v2", "prompts.answer=v1"),
    )
    assert (read.k, read.threshold, read.intersect, read.pool, read.depth) == (
        *(7, 0.01, True, "last", 9),
    )
    assert (str(read.discount), read.budget.tokens, read.ranking.window) == ("rbp(0.8)", 1000, 10)
    assert (read.answer.alpha, read.options) == (4, {"trade_off": ".7"})
    assert read.prompts == {"refine": "v2", "answer": "v1"}


def test_several_values_are_separated_by_commas_or_repeated() -> None:
    read = answer("attributes=gender, continent", "attributes=field")
    assert read.attributes == ("gender", "continent", "field")
    mixed = answer("target=population:0.5,uniform:0.5", "target=gender=female:0.4,male:0.6").target
    assert mixed.parts == {"population": 0.5, "uniform": 0.5}
    assert mixed.shares == {"gender": {"female": 0.4, "male": 0.6}}


def test_numbers_reach_models_that_take_no_texts() -> None:
    class Strict(BaseModel):
        steps: int | None = Field(None, strict=True)
        windows: tuple[int, ...] = ()

    read = checked(Strict, read_parameters([Strict], ["steps=3", "windows=1,2"]))
    assert (read.steps, read.windows) == (3, (1, 2))


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["window"], "'window' has no value; write NAME=VALUE."),
        (["k="], "'k=' has no value; write NAME=VALUE."),
        (["colour=3"], "There is no parameter 'colour'. '--set help' lists them all."),
        (["windw=3"], "There is no parameter 'windw'; did you mean ranking.window?"),
        (["ranking.windw=3"], "did you mean ranking.window?"),
        (["window=3"], "There is no parameter 'window'; did you mean ranking.window?"),
        (["budget=5"], "did you mean budget.model_calls or budget.tokens or budget.seconds?"),
        (["options=5"], "did you mean options.NAME?"),
        (["k.x=5"], "There is no parameter 'k.x'"),
        (["k=5", "k=6"], "'k' is set twice; set it once."),
        (["k=many"], "The parameter 'k' is wrong: Input should be a valid integer"),
        (["budget.seconds=0"], "The parameter 'budget.seconds' is wrong: Input should be greater"),
        (["target=x:1"], "The target has no part 'x'"),
        (["target=half"], r"male:0.5\.$"),
        (["ranking.window=5"], "names a ranker|name a ranker"),
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
    shown = capsys.readouterr().out.splitlines()
    parameters = [*parameters_of([context])]
    assert {f"  {parameter.label}" for parameter in parameters} <= set(shown)
    assert "  ranking.window" in shown


class SmallModel(BaseModel):
    name: str


class Kind(BaseModel):
    kind: Literal["one"]
    parts: tuple[SmallModel, ...] = ()
    form: Literal["a", "b"] = "a"


def test_what_no_text_can_give_is_no_parameter() -> None:
    assert [parameter.name for parameter in parameters_of([Kind])] == ["form"]


@pytest.mark.filterwarnings("error")
def test_a_field_with_more_than_bounds_is_read_without_a_warning() -> None:
    class Quiet(BaseModel):
        place: str = Field("", repr=False)
        size: int = Field(1, ge=1)

    assert read_parameters([Quiet], ["place=x", "size=2"]) == {"place": "x", "size": 2}
    with pytest.raises(InputError, match="greater than or equal to 1"):
        read_parameters([Quiet], ["size=0"])


def test_an_experiment_lists_and_reads_what_its_file_sets(fairqr: Callable[..., Any]) -> None:
    """It has a --set of its own: which parameters there are depends on the file."""
    run = ("experiment", "run", "llm_pairwise", "--small")
    assert "\n  split\n" in fairqr(*run, "--set", "help").stdout
    told = fairqr(*run, "--set", "split=nothing", "-o", "out").complaint()
    assert "has no judgements 'nothing'" in told
