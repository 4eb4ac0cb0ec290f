"""Commands whose options come from their signature, their docstring, and pydantic models.

In a command's function the parameters before ``*`` are arguments, and those after it are options;
their words stand in the section ``Args`` of its docstring. A parameter whose type is a pydantic
model becomes an option for each field, or, with :class:`Fields`, for the fields that it names;
``--set`` sets any field. A command that returns :class:`Printed` has the option ``--json``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin

import typer

from fairqr.cli.output import Printed, show
from fairqr.cli.parameters import (
    Parameter,
    checked,
    explain,
    explain_methods,
    parameters_of,
    read_parameters,
)

Count = Annotated[int, {"min": 1}]
"""An option that is a whole number of at least 1."""

_REQUIRED: Any = inspect.Parameter.empty
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Fields:
    """Names the fields of a model that have an option of their own.

    Args:
        same: Fields whose option has their name.
        model: The model, if the command takes the values as a mapping.
        named: Other fields by the name of their option, with dots between models.
    """

    def __init__(self, *same: str, model: Any = None, **named: str) -> None:
        self.model = model
        self.named = {**dict(zip(same, same, strict=True)), **named}


def command(app: typer.Typer, name: str | None = None) -> Callable[[Any], Any]:
    """Return a decorator that adds a function to an application as a command."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        run = readable(function)
        first = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        app.command(name or function.__name__.strip("_"), short_help=first)(run)
        return function

    return add


def readable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command as Typer reads it: each option with its words.

    Its attribute ``models`` has the models whose parameters take ``--set``.
    """
    from fairqr.graph.documented import documented

    about, words = documented(function.__doc__)
    own = inspect.signature(function, eval_str=True)
    shown: list[inspect.Parameter] = []
    models: dict[str, Any] = {}
    mappings: set[str] = set()
    named: dict[str, str] = {}
    for name, each in own.parameters.items():
        kind, mark = _parts(each.annotation)
        if isinstance(mark, Fields) and mark.model:
            mappings.add(name)
            kind = mark.model
        if hasattr(kind, "model_fields"):
            models[name] = kind
            known = {it.name: it for it in parameters_of([kind])}
            fields = mark.named if mark else {it: it for it in known}
            named |= fields
            shown += [_option_of(option, known[it]) for option, it in fields.items()]
        elif name != "as_json":
            shown.append(_shown(each, words.get(name, "")))
    if models:
        about_set = "Set any other parameter; '--set help' lists them all. Repeatable."
        more = _explained(lambda: explain(models.values()))
        shown.append(
            _option("set_", list[str] | None, None, about_set, metavar="NAME=VALUE", **more)
        )
    if Printed in (own.return_annotation, *get_args(own.return_annotation)):
        shown.append(_option("as_json", bool, False, "Print one JSON object."))

    @functools.wraps(function)
    def run(**given: Any) -> None:
        as_json = given.pop("as_json", False)
        if "as_json" in own.parameters:
            given["as_json"] = as_json
        texts = [(it, text) for option, it in named.items() for text in _texts(given.pop(option))]
        assignments = given.pop("set_") or [] if models else []
        values = read_parameters(models.values(), assignments, texts)
        for name, model in models.items():
            mine = {it: values.pop(it) for it in model.model_fields if it in values}
            given[name] = mine if name in mappings else checked(model, mine)
        result = function(**given)
        if result is not None:
            show(result, as_json=as_json)

    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    run.__doc__ = about
    run.models = [*models.values()]  # type: ignore[attr-defined]
    return run


def _parts(annotation: Any) -> tuple[Any, Any]:
    """Return the type of a parameter, and its mark if it has one."""
    return get_args(annotation) if get_origin(annotation) is Annotated else (annotation, None)


def _texts(value: Any) -> Iterator[str]:
    """Yield what the user wrote for an option."""
    for each in value if isinstance(value, list) else [value]:
        if each is True:
            yield "yes"
        elif each is not None and each is not False:
            yield each


def _shown(each: inspect.Parameter, words: str) -> inspect.Parameter:
    """Return a parameter of a command's function as an option or an argument."""
    kind, more = _parts(each.annotation)
    if each.kind is _KEYWORD:
        return _option(each.name, kind, each.default, words, **more or {})
    if kind is not typer.Context:
        title = each.name.strip("_").upper()
        kind = Annotated[kind, typer.Argument(help=words, metavar=title, show_default=False)]
    return each.replace(kind=_KEYWORD, annotation=kind)


def _option_of(option: str, parameter: Parameter) -> inspect.Parameter:
    """Return an option for a parameter, which takes texts, as ``--set`` does."""
    if parameter.accepts is bool:
        return _option(option, bool, False, parameter.help)
    kind: Any = list[str] if parameter.is_list or parameter.name == "target" else str
    if parameter.field.is_required():
        return _option(option, kind, _REQUIRED, parameter.help)
    more = _explained(explain_methods) if option == "method" else {}
    return _option(option, kind | None, None, parameter.help, **more)


def _explained(explains: Callable[[], None]) -> dict[str, Any]:
    """Return what makes an option explain and end if its value is ``help``; that needs no query."""

    def callback(value: Any) -> Any:
        if value == "help" or (isinstance(value, list) and "help" in value):
            explains()
            raise typer.Exit
        return value

    return {"callback": callback, "is_eager": True}


def _option(name: str, kind: Any, default: Any, words: str, **more: Any) -> inspect.Parameter:
    """Return an option as Typer reads it: its type with its names and words, and its default."""
    text = {"as_json": "json"}.get(name, name.strip("_").replace("_", "-"))
    names = (
        ["-o", "--output"] if name == "output" else [f"-{text}" if len(text) == 1 else f"--{text}"]
    )
    more.setdefault("metavar", None if kind is bool else name.strip("_").upper())
    hides = default in (None, "", False, _REQUIRED)
    option = typer.Option(*names, help=words, show_default=not hides, **more)
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[kind, option])
