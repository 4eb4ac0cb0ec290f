"""Commands for Typer, some of whose options are the fields of pydantic models.

A command is a function with Typer's own arguments and options. A parameter whose type is a pydantic
model has an option for each field that its mark :class:`Fields` names; what an option means, its
default and its range stand in the model only. ``--set NAME=VALUE`` sets any field, and an option of
a field is another way to write that. A command that returns :class:`Printed` has the option
``--json``.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import typer

from fairqr.base.errors import InputError, first_problem, one_line, parameter_errors
from fairqr.cli.output import Printed, show

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    M = TypeVar("M", bound=BaseModel)

_REQUIRED: Any = inspect.Parameter.empty
_UNSHOWN_DEFAULTS = (None, "", False, _REQUIRED)


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
    own = inspect.signature(function, eval_str=True)
    of_models = _ModelParameters()
    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        kind, mark = _parts(parameter.annotation)
        if isinstance(mark, Fields):
            parameters += of_models.add(parameter.name, mark.model or kind, mark)
        else:
            parameters.append(_shown(parameter, kind, mark))
    if of_models.models:
        parameters.append(_set_option(of_models.models.values()))
    prints = Printed in (own.return_annotation, *get_args(own.return_annotation))
    if prints and "as_json" not in own.parameters:
        parameters.append(_option("as_json", bool, False, "Print one JSON object.", "--json"))

    @functools.wraps(function)
    def run(**values: Any) -> None:
        as_json = values.get("as_json", False)
        if "as_json" not in own.parameters:
            values.pop("as_json", None)
        result = function(**of_models.read(values))
        if result is not None:
            show(result, as_json=as_json)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.models = list(of_models.models.values())  # type: ignore[attr-defined]
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
        known = {setting.name: setting for setting in parameters_of([model])}
        for option, field in mark.field_of.items():
            self._field_of[_name_of(option)] = field
            yield _option_of(option, known[field])

    def read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return what the function takes, given what the user wrote for the options.

        Raises:
            InputError: A value is wrong.
        """
        if not self.models:  # an experiment, whose model the file names, reads its own --set
            return values
        assignments = []
        for name, field in self._field_of.items():
            assignments += [f"{field}={text}" for text in _texts(values.pop(name))]
        assignments += values.pop("set_") or []
        settings = read_parameters(self.models.values(), assignments)
        for name, model in self.models.items():
            fields = [field for field in model.model_fields if field in settings]
            of_model = {field: settings.pop(field) for field in fields}
            values[name] = of_model if name in self._mappings else checked(model, of_model)
        return values


def _name_of(option: str) -> str:
    """Return the name of the parameter that an option sets, such as ``max_iterations``."""
    return option.strip("-").replace("-", "_")


def _parts(annotation: Any) -> tuple[Any, Any]:
    """Return the type of a parameter, and its mark if it has one."""
    if get_origin(annotation) is Annotated:
        kind, mark = get_args(annotation)
        return kind, mark
    return annotation, None


def _texts(value: Any) -> list[str]:
    """Return what the user wrote for an option."""
    values = value if isinstance(value, list) else [value]
    return ["yes" if text is True else text for text in values if text not in (None, False)]


def _shown(parameter: inspect.Parameter, kind: Any, mark: Any) -> inspect.Parameter:
    """Return a parameter as Typer shows it: its value in capitals, and no default that is empty."""
    if mark is not None:
        is_switch = kind is bool
        mark.metavar = mark.metavar or (None if is_switch else parameter.name.strip("_").upper())
        is_argument = isinstance(mark, typer.models.ArgumentInfo)
        mark.show_default = not is_argument and parameter.default not in _UNSHOWN_DEFAULTS
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _set_option(models: Iterable[type[BaseModel]]) -> inspect.Parameter:
    """Return the option ``--set``, which sets any field of models."""
    about = "Set any other parameter; '--set help' lists them all. Repeatable."
    explains = _explained(lambda: explain(models))
    return _option("set_", list[str] | None, None, about, "--set", metavar="NAME=VALUE", **explains)


def _option_of(option: str, setting: Parameter) -> inspect.Parameter:
    """Return an option for a field, which takes texts, as ``--set`` does."""
    name = _name_of(option)
    names = ["-o", "--output"] if option == "--output" else [option]
    if setting.accepts is bool:
        return _option(name, bool, False, setting.help, *names)
    kind: Any = list[str] if setting.is_list or setting.name == "target" else str
    if setting.field.is_required():
        return _option(name, kind, _REQUIRED, setting.help, *names)
    explains = _explained(explain_methods) if option == "--method" else {}
    return _option(name, kind | None, None, setting.help, *names, **explains)


def _explained(explains: Callable[[], None]) -> dict[str, Any]:
    """Return what makes an option explain and end if its value is ``help``; that needs no query."""

    def callback(value: Any) -> Any:
        if value == "help" or (isinstance(value, list) and "help" in value):
            explains()
            raise typer.Exit
        return value

    return {"callback": callback, "is_eager": True}


def _option(
    name: str, kind: Any, default: Any, about: str, *options: str, **more: Any
) -> inspect.Parameter:
    """Return an option as Typer reads it: its type with its names and words, and its default."""
    more.setdefault("metavar", None if kind is bool else name.upper())
    mark = typer.Option(*options, help=about, show_default=False, **more)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, mark]
    )


_LISTS = (list, tuple, set, frozenset, Sequence)


class Parameter(NamedTuple):
    """A field of a model, or of a model within it, that a user can set.

    Attributes:
        name: The name, with dots between models: ``budget.tokens``.
        field: The field of the model.
        accepts: The type of its values, without None.
    """

    name: str
    field: FieldInfo
    accepts: Any

    @property
    def is_mapping(self) -> bool:
        """Whether users name the keys, as in ``options.trade_off``."""
        return get_origin(self.accepts) in (dict, Mapping) and not self.is_parsed

    @property
    def is_list(self) -> bool:
        """Whether the parameter takes several values."""
        return get_origin(self.accepts) in _LISTS

    @property
    def is_parsed(self) -> bool:
        """Whether its model reads texts itself, one or several, as with a target."""
        from pydantic import BeforeValidator

        return any(isinstance(each, BeforeValidator) for each in self.field.metadata)

    @property
    def label(self) -> str:
        """The name as users write it."""
        return f"{self.name}.NAME" if self.is_mapping else self.name

    @property
    def help(self) -> str:
        """The description of the parameter, and its default."""
        default = self.field.get_default(call_default_factory=True)
        if isinstance(default, Path) or default in (None, (), {}, "") or self.field.is_required():
            return self.field.description or ""  # a path would be the reader's own
        if isinstance(default, bool):
            default = "yes" if default else "no"
        shown = ",".join(map(str, default)) if self.is_list else default
        return f"{self.field.description or ''} [default: {shown}]".strip()

    def read(self, texts: Sequence[str]) -> Any:
        """Return the value that texts stand for; what the model parses stays as it is.

        Raises:
            InputError: A text is not a value of this parameter, or there are too many.
        """
        from pydantic import TypeAdapter, ValidationError

        if self.is_parsed:
            return texts[0] if len(texts) == 1 else texts
        if len(texts) > 1 and not self.is_list:
            raise InputError(f"'{self.name}' is set twice; set it once.")
        if self.is_mapping:
            return texts[0]
        kind: Any = self.field.annotation
        if self.field.metadata:  # bounds, and no more: pydantic warns of the rest of a field here
            kind = Annotated[(kind, *self.field.metadata)]
        if self.is_list:
            kind = get_args(self.accepts)[0]
            texts = [part.strip() for text in texts for part in text.split(",")]
        try:
            values = [TypeAdapter(kind).validate_strings(text) for text in texts]
        except ValidationError as error:
            reason = first_problem(error)[1]
            raise InputError(f"The parameter '{self.name}' is wrong: {reason}.") from None
        return values if self.is_list else values[0]


def parameters_of(models: Iterable[type[BaseModel]], prefix: str = "") -> Iterator[Parameter]:
    """Yield the parameters of models, those of the models within them too.

    Constants, and lists of models, are none: no text can set them.
    """
    for model in models:
        for name, field in model.model_fields.items():
            kind: Any = field.annotation
            if NoneType in get_args(kind):
                kind = next(each for each in get_args(kind) if each is not NoneType)
            parameter = Parameter(f"{prefix}{name}", field, kind)
            inner = get_args(kind)
            if hasattr(kind, "model_fields") and not parameter.is_parsed:
                yield from parameters_of([kind], f"{parameter.name}.")
            elif get_origin(kind) is Literal and len(inner) == 1:
                continue
            elif parameter.is_parsed or not (
                parameter.is_list and hasattr(inner[0], "model_fields")
            ):
                yield parameter


def read_parameters(
    models: Iterable[type[BaseModel]], assignments: Iterable[str]
) -> dict[str, Any]:
    """Read texts like ``budget.tokens=1000`` as values of models.

    A parameter that takes several values has them separated by commas, or is set repeatedly.

    Args:
        models: Whose fields the parameters are.
        assignments: What the user wrote for ``--set``, or by an option of its own.

    Returns:
        The values, nested as the models are.

    Raises:
        InputError: A text is not an assignment, a parameter is unknown or set twice, or a value is
            wrong.
    """
    known = {parameter.name: parameter for parameter in parameters_of(models)}
    texts: dict[str, list[str]] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if not (name and text):
            raise InputError(f"'{one_line(assignment, 60)}' has no value; write NAME=VALUE.")
        texts.setdefault(name, []).append(text)
    values: dict[str, Any] = {}
    for name, given in texts.items():
        *groups, key = name.split(".")
        inner = values
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[key] = _find(known, name).read(given)
    return values


def _find(known: Mapping[str, Parameter], name: str) -> Parameter:
    """Return the parameter of that name.

    Raises:
        InputError: There is no such parameter.
    """
    found = known.get(name) or known.get(name.partition(".")[0])
    if found and found.is_mapping == (found.name != name):
        return found._replace(name=name)
    last = name.rpartition(".")[2]
    ends = {each.rpartition(".")[2]: each for each in known}
    near = [each for each in known if each == name or each.startswith(f"{name}.")]
    near += [ends[end] for end in difflib.get_close_matches(last, ends, cutoff=0.7)]
    shown = " or ".join(known[each].label for each in dict.fromkeys(near[:4]))
    hint = f"; did you mean {shown}?" if shown else "."
    raise InputError(
        f"There is no parameter '{one_line(name, 60)}'{hint} '--set help' lists them all."
    )


def checked(model: type[M], values: Mapping[str, Any]) -> M:
    """Return a model with values that a user gave.

    Raises:
        InputError: A value is wrong.
    """
    with parameter_errors():
        return model.model_validate(dict(values))


def explain(models: Iterable[type[BaseModel]]) -> None:
    """Print the parameters of models, what they mean, and their defaults."""
    typer.echo("Parameters for --set NAME=VALUE:")
    for label, words in {it.label: it.help for it in parameters_of(models)}.items():
        typer.echo(f"  {label}\n{textwrap.indent(textwrap.fill(words, 90), ' ' * 6)}")


def explain_methods() -> None:
    """Print the methods, the models that re-rank, and the final steps with their options."""
    from fairqr.agents.ranking.rankers import RANKERS
    from fairqr.graph.search.context import METHODS, READS
    from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS, TRAINED

    lines = ["Methods (--method):"]
    for name, strategy in METHODS.items():
        lines.append(f"  {name}: {strategy.about}")
    lines.append("\nModels that re-rank (--method, or --set rerank=NAME), before the final step:")
    lines += [f"  {name}: {it}; reads {READS[name]} documents" for name, it in RANKERS.items()]
    lines.append("\nFinal steps (--set final_step=NAME), options (--set options.NAME=VALUE):")
    for step, entry in RERANKERS.items():
        trained = "; needs weights, see 'fairqr train --help'" if step in TRAINED else ""
        lines.append(f"  {step}: {ABOUT[step]}{trained}")
        lines += [f"      {option.name}: {option.help}" for option in parameters_of([entry])]
    typer.echo("\n".join(lines))
