"""Commands for Typer, some of whose options are the fields of pydantic models.

A command is a function with Typer's own arguments and options. A parameter whose type is a pydantic
model has an option for each field that its mark :class:`Fields` names; what an option means, its
default and its range stand in the model only. ``--set NAME=VALUE`` sets any field, and an option of
a field is another way to write that. A command that returns :class:`Printed` has the option
``--json``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

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

if TYPE_CHECKING:
    from pydantic import BaseModel

_REQUIRED: Any = inspect.Parameter.empty
_HIDDEN_DEFAULTS = (None, "", False, _REQUIRED)


class Fields:
    """Marks a parameter whose type is a pydantic model: its fields that have options.

    Args:
        *options: The options, such as ``--target`` for the field ``target``; or an option with the
            field that it sets, with dots between models: ``("--alpha", "answer.alpha")``.
        model: The model, if the command takes the values as a mapping.
    """

    def __init__(self, *options: str | tuple[str, str], model: Any = None) -> None:
        self.model = model
        self.field_of: dict[str, str] = {}
        for entry in options:
            option, field = (entry, _name_of(entry)) if isinstance(entry, str) else entry
            self.field_of[option] = field


def command(app: typer.Typer, name: str | None = None) -> Callable[[Any], Any]:
    """Return a decorator that adds a function to an application as a command."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        run = readable(function)
        summary = (run.__doc__ or "").partition("\n\n")[0]
        command_name = name or function.__name__.strip("_")
        app.command(command_name, short_help=" ".join(summary.split()))(run)
        return function

    return add


def readable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command as Typer reads it: with an option for each named field.

    Its attribute ``models`` has the models whose fields ``--set`` sets.
    """
    signature = inspect.signature(function, eval_str=True)
    model_parameters = _ModelParameters()
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        kind, mark = _type_and_mark(parameter.annotation)
        if isinstance(mark, Fields):
            parameters += model_parameters.add(parameter.name, mark.model or kind, mark)
        else:
            parameters.append(_for_typer(parameter, kind, mark))

    models = list(model_parameters.models.values())
    if models:
        parameters.append(_set_option(models))
    returns = signature.return_annotation
    is_printed = Printed in (returns, *get_args(returns))
    takes_json = "as_json" in signature.parameters
    if is_printed and not takes_json:
        parameters.append(_option("as_json", bool, False, "Print one JSON object.", "--json"))

    @functools.wraps(function)
    def run(**values: Any) -> None:
        as_json = values.get("as_json", False)
        if not takes_json:
            values.pop("as_json", None)
        outcome = function(**model_parameters.read(values))
        if outcome is not None:
            show(outcome, as_json=as_json)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.models = models  # type: ignore[attr-defined]
    return run


class _ModelParameters:
    """The parameters of a command whose types are pydantic models.

    Attributes:
        models: The models by the name of the parameter.
    """

    def __init__(self) -> None:
        self.models: dict[str, type[BaseModel]] = {}
        self._mappings: set[str] = set()
        self._field_of: dict[str, str] = {}

    def add(self, name: str, model: Any, mark: Fields) -> Iterator[inspect.Parameter]:
        """Add a parameter, and yield the options that its fields have."""
        self.models[name] = model
        if mark.model:
            self._mappings.add(name)
        settable = {parameter.name: parameter for parameter in parameters_of([model])}
        for option, field in mark.field_of.items():
            self._field_of[_name_of(option)] = field
            yield _option_of(option, settable[field])

    def read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return what the function takes, given what the user wrote for the options.

        Raises:
            InputError: A value is wrong.
        """
        # The file of an experiment names its model, so its command reads its own --set.
        if not self.models:
            return values
        assignments = []
        for name, field in self._field_of.items():
            assignments += [f"{field}={text}" for text in _texts(values.pop(name))]
        assignments += values.pop("set_") or []

        settings = read_parameters(self.models.values(), assignments)
        for name, model in self.models.items():
            fields = [field for field in model.model_fields if field in settings]
            changes = {field: settings.pop(field) for field in fields}
            values[name] = changes if name in self._mappings else checked(model, changes)
        return values


def _name_of(option: str) -> str:
    """Return the name of the parameter that an option sets, such as ``max_iterations``."""
    return option.strip("-").replace("-", "_")


def _type_and_mark(annotation: Any) -> tuple[Any, Any]:
    """Return the type of a parameter, and its mark if it has one."""
    if get_origin(annotation) is Annotated:
        kind, mark = get_args(annotation)
        return kind, mark
    return annotation, None


def _texts(value: Any) -> list[str]:
    """Return what the user wrote for an option, as texts that ``--set`` takes."""
    values = value if isinstance(value, list) else [value]
    texts = []
    for entry in values:
        if entry is True:
            texts.append("yes")
        elif entry not in (None, False):
            texts.append(entry)
    return texts


def _for_typer(parameter: inspect.Parameter, kind: Any, mark: Any) -> inspect.Parameter:
    """Return a parameter whose help has its value in capitals, and no default that is empty."""
    if mark is not None:
        if not mark.metavar and kind is not bool:
            mark.metavar = parameter.name.strip("_").upper()
        is_argument = isinstance(mark, typer.models.ArgumentInfo)
        has_default = parameter.default not in _HIDDEN_DEFAULTS
        mark.show_default = has_default and not is_argument
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _set_option(models: Iterable[type[BaseModel]]) -> inspect.Parameter:
    """Return the option ``--set``, which sets any field of models."""
    about = "Set any other parameter; '--set help' lists them all. Repeatable."
    extras = _explaining(lambda: explain(models))
    return _option("set_", list[str] | None, None, about, "--set", metavar="NAME=VALUE", **extras)


def _option_of(option: str, parameter: Parameter) -> inspect.Parameter:
    """Return an option for a field, which takes texts, as ``--set`` does."""
    name = _name_of(option)
    names = ["-o", "--output"] if option == "--output" else [option]
    if parameter.accepts is bool:
        return _option(name, bool, False, parameter.help, *names)

    takes_several = parameter.is_list or parameter.name == "target"
    kind: Any = list[str] if takes_several else str
    if parameter.field.is_required():
        return _option(name, kind, _REQUIRED, parameter.help, *names)
    extras = _explaining(explain_methods) if option == "--method" else {}
    return _option(name, kind | None, None, parameter.help, *names, **extras)


def _explaining(explanation: Callable[[], None]) -> dict[str, Any]:
    """Return what makes an option explain and end if its value is ``help``; that needs no query."""

    def callback(value: Any) -> Any:
        values = value if isinstance(value, list) else [value]
        if "help" in values:
            explanation()
            raise typer.Exit
        return value

    return {"callback": callback, "is_eager": True}


def _option(
    name: str, kind: Any, default: Any, about: str, *names: str, **extras: Any
) -> inspect.Parameter:
    """Return an option as Typer reads it: its type with its names and words, and its default."""
    extras.setdefault("metavar", None if kind is bool else name.upper())
    mark = typer.Option(*names, help=about, show_default=False, **extras)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, mark]
    )
