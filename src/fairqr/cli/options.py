"""Commands whose options come from their signature, their docstring, and pydantic models.

In a command's function the parameters before ``*`` are arguments, and those after it are options;
their words stand in the section ``Args`` of its docstring. A parameter whose type is a pydantic
model becomes an option for each field, or, with :class:`Fields`, for the fields that it names, and
``--set`` for all others. A command that returns :class:`Printed` has the option ``--json``.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer
from typer.models import OptionInfo

from fairqr.base.errors import InputError
from fairqr.cli.output import Printed, show
from fairqr.cli.parameters import (
    Parameter,
    checked,
    explain,
    parameters_of,
    place_of,
    read_parameters,
)
from fairqr.graph.documented import documented

Count = Annotated[int, typer.Option(min=1)]
"""An option that is a whole number of at least 1."""

_REQUIRED: Any = inspect.Parameter.empty
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Fields:
    """Names the fields of a model that have an option of their own; the others take ``--set``.

    Args:
        same: Fields whose option has their name.
        model: The model, if the command takes the values as a mapping.
        named: Other fields by the name of their option, with dots between models.
    """

    def __init__(self, *same: str, model: Any = None, **named: str) -> None:
        self.model = model
        self.named = {**dict(zip(same, same, strict=True)), **named}


class _Group(NamedTuple):
    """The options of one parameter of a command.

    Attributes:
        model: The model.
        options: The parameter of the model that each option sets.
        is_settable: Whether its other parameters take ``--set``.
        is_mapping: Whether the command takes the values as a mapping, and not the model.
    """

    model: Any
    options: Mapping[str, Parameter]
    is_settable: bool
    is_mapping: bool


def command(app: typer.Typer, name: str | None = None) -> Callable[[Any], Any]:
    """Return a decorator that adds a function to an application as a command."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        app.command(name or function.__name__.strip("_"))(readable(function))
        return function

    return add


def readable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command as Typer reads it: each option with its words.

    Its attribute ``settable`` has the models whose parameters take ``--set``.
    """
    about, words = documented(function.__doc__)
    own = inspect.signature(function, eval_str=True)
    options: dict[str, Any] = {}
    groups: dict[str, _Group] = {}
    for name, each in own.parameters.items():
        marked = get_origin(each.annotation) is Annotated
        kind, *marks = get_args(each.annotation) if marked else [each.annotation]
        fields = next((mark for mark in marks if isinstance(mark, Fields)), None)
        model = fields.model if fields and fields.model else kind
        if hasattr(model, "model_fields"):
            named = fields.named if fields else {it: it for it in model.model_fields}
            known = {it.name: it for it in parameters_of([model])}
            found = {option: known[it] for option, it in named.items()}
            groups[name] = _Group(model, found, fields is not None, model is not kind)
            options |= {option: _option_of(option, it) for option, it in found.items()}
        elif each.kind is each.KEYWORD_ONLY:
            mark = next((it for it in marks if isinstance(it, OptionInfo)), None)
            options[name] = _option(name, kind, each.default, words.get(name, ""), mark)
        elif kind is typer.Context:
            options[name] = (kind, each.default)
        else:
            argument = typer.Argument(
                help=words.get(name, ""), metavar=name.strip("_").upper(), show_default=False
            )
            options[name] = (Annotated[kind, argument], each.default)
    if settable := [group.model for group in groups.values() if group.is_settable]:
        options["set_"] = _set_option(settable)
    if Printed in (own.return_annotation, *get_args(own.return_annotation)):
        options["as_json"] = _option("json", bool, False, "Print one JSON object.")
    reads_json = "as_json" in own.parameters

    @functools.wraps(function)
    def run(**given: Any) -> None:
        as_json = given.get("as_json", False) if reads_json else given.pop("as_json", False)
        result = function(**_values(groups, given), **given)
        if result is not None:
            show(result, as_json=as_json)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, _KEYWORD, annotation=annotation, default=default)
            for name, (annotation, default) in options.items()
        ]
    )
    run.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    run.__doc__ = about
    run.settable = settable  # type: ignore[attr-defined]
    return run


def _values(groups: Mapping[str, _Group], given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of models out of what is given, and return the models.

    Raises:
        InputError: A name or a value is wrong, or is given by an option and by ``--set``.
    """
    settable = [group.model for group in groups.values() if group.is_settable]
    values = read_parameters(settable, (given.pop("set_") or []) if settable else [])
    found = {}
    for name, group in groups.items():
        for option, parameter in group.options.items():
            value = given.pop(option)
            if value is None or value is False or value == []:
                continue
            inner, key = place_of(values, parameter.name)
            if key in inner:
                told = _written(option)
                raise InputError(f"'{parameter.name}' is also set by {told}; set it once.")
            inner[key] = value
        own = {it: values.pop(it) for it in group.model.model_fields if it in values}
        found[name] = own if group.is_mapping else checked(group.model, own)
    return found


def _option_of(name: str, parameter: Parameter) -> tuple[Any, Any]:
    """Return the option that sets a parameter of a model."""
    accepts = parameter.accepts
    if get_origin(accepts) is Annotated:
        accepts = get_args(accepts)[0]
    kind: Any = accepts if accepts in (int, float, bool) else str
    if parameter.is_list or name == "target":
        kind = list[str]
    if parameter.field.is_required():
        return _option(name, kind, _REQUIRED, parameter.help)
    if kind is bool:
        return _option(name, kind, False, parameter.help)
    given = typer.Option(callback=_explain_methods, is_eager=True) if name == "method" else None
    return _option(name, kind | None, None, parameter.help, given)


def _explain_methods(method: str | None) -> str | None:
    """Explain the methods and end, if the user asks for ``help``; that needs no query."""
    if method != "help":
        return method
    from fairqr.cli.methods import explain_methods

    explain_methods()
    raise typer.Exit


def _option(
    name: str, kind: Any, default: Any, words: str, like: OptionInfo | None = None
) -> tuple[Any, Any]:
    """Return an option as Typer reads it: its type with its names and words, and its default."""
    names = ["-o", "--output"] if name == "output" else [_written(name)]
    hides = default in (None, "", False, _REQUIRED)
    option = copy.copy(like or typer.Option())
    option.param_decls, option.help, option.show_default = names, words, not hides
    option.metavar = None if kind is bool else name.strip("_").upper()
    return Annotated[kind, option], default


def _written(name: str) -> str:
    """Return an option as users write it: ``-k``, ``--max-iterations``."""
    text = name.strip("_").replace("_", "-")
    return f"-{text}" if len(text) == 1 else f"--{text}"


def _set_option(models: Iterable[Any]) -> tuple[Any, Any]:
    """Return the option ``--set``; ``--set help`` explains the parameters and ends."""

    def explained(texts: list[str] | None) -> list[str] | None:
        if texts and "help" in texts:
            explain(models)
            raise typer.Exit
        return texts

    option = typer.Option(
        "--set",
        metavar="NAME=VALUE",
        callback=explained,
        is_eager=True,  # '--set help' needs no query
        help="Set any other parameter; '--set help' lists them all. Repeatable.",
    )
    return Annotated[list[str] | None, option], None
