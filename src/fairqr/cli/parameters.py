"""Parameters on the command line: ``--set NAME=VALUE``, and help that reads their descriptions.

A parameter is a field of a pydantic model, such as the context of a search. Its name, meaning,
default and range stand there only. A command gives the parameters that most users want an option
of their own, whose help begins with ``{name}``; all others are set by ``--set``.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import typer
from typer.core import TyperCommand

from fairqr.base.errors import InputError, first_problem, one_line, parameter_error
from fairqr.cli.commands import Group

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    M = TypeVar("M", bound=BaseModel)
    N = TypeVar("N", bound=BaseModel)


@dataclass(frozen=True)
class Parameter:
    """A field of a model, or of a model within it, that a user can set.

    Attributes:
        name: The name, with dots between models: ``budget.tokens``.
        field: The field of the model.
    """

    name: str
    field: FieldInfo

    @property
    def accepts(self) -> Any:
        """The type of its values, without None."""
        annotation: Any = self.field.annotation
        if get_origin(annotation) in (Union, UnionType):
            return next(kind for kind in get_args(annotation) if kind is not NoneType)
        return annotation

    @property
    def is_mapping(self) -> bool:
        """Whether users name the keys, as in ``options.trade_off``."""
        return get_origin(self.accepts) in (dict, Mapping)

    @property
    def is_list(self) -> bool:
        """Whether the parameter takes several values."""
        return get_origin(self.accepts) in (list, tuple, set, frozenset, Sequence)

    @property
    def is_settable(self) -> bool:
        """Whether a text can set it: not a constant, and not a list of models."""
        if get_origin(self.accepts) is Literal:
            return len(get_args(self.accepts)) > 1
        return not (self.is_list and hasattr(get_args(self.accepts)[0], "model_fields"))

    @property
    def is_parsed(self) -> bool:
        """Whether its model reads texts itself, as with a target."""
        from pydantic import BeforeValidator

        return any(isinstance(each, BeforeValidator) for each in self.field.metadata)

    @property
    def model(self) -> type[BaseModel] | None:
        """The model whose fields are parameters instead of this one."""
        from pydantic import BaseModel

        kind: Any = self.accepts
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        return cast("type[BaseModel]", kind) if is_model and not self.is_parsed else None

    @property
    def label(self) -> str:
        """The name as users write it."""
        return f"{self.name}.NAME" if self.is_mapping else self.name

    @property
    def help(self) -> str:
        """The description of the parameter, and its default."""
        default = self.field.get_default(call_default_factory=True)
        if self.field.is_required() or default in (None, (), {}, ""):
            return self.field.description or ""
        if isinstance(default, bool):
            default = "yes" if default else "no"
        shown = ",".join(map(str, default)) if self.is_list else default
        return f"{self.field.description or ''} [default: {shown}]".strip()

    def read(self, text: str) -> Any:
        """Return the value that a text stands for; a parameter that its model parses stays a text.

        Raises:
            InputError: The text is not a value of this parameter.
        """
        from pydantic import TypeAdapter, ValidationError

        if self.is_parsed or self.is_mapping:
            return text
        if self.is_list:
            kind, parts = get_args(self.accepts)[0], text.split(",")
        else:
            kind, parts = Annotated[self.field.annotation, self.field], [text]
        try:
            values = [TypeAdapter(kind).validate_strings(part.strip()) for part in parts]
        except ValidationError as error:
            reason = first_problem(error)[1]
            raise InputError(f"The parameter '{self.name}' is wrong: {reason}.") from None
        return values if self.is_list else values[0]


def parameters_of(models: Iterable[type[BaseModel]], prefix: str = "") -> Iterator[Parameter]:
    """Yield the parameters of models, those of the models within them too."""
    for model in models:
        for name, field in model.model_fields.items():
            parameter = Parameter(f"{prefix}{name}", field)
            if inner := parameter.model:
                yield from parameters_of([inner], f"{parameter.name}.")
            elif parameter.is_settable:
                yield parameter


def read_parameters(models: Iterable[type[BaseModel]], texts: Iterable[str]) -> dict[str, Any]:
    """Read texts like ``budget.tokens=1000`` as values of models.

    A parameter that takes several values has them separated by commas, or is set repeatedly.

    Args:
        models: Whose fields the parameters are.
        texts: What the user wrote.

    Returns:
        The values, nested as the models are.

    Raises:
        InputError: A text is not an assignment, a parameter is unknown or set twice, or a value is
            wrong.
    """
    known = {parameter.name: parameter for parameter in parameters_of(models)}
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"'{one_line(text, 60)}' has no value; write NAME=VALUE.")
        parameter = _find(known, name)
        given = parameter.read(value)
        inner, key = _place(values, name)
        if key not in inner:
            inner[key] = given
        elif parameter.is_list:
            inner[key] += given
        elif parameter.is_parsed:
            before = inner[key]
            inner[key] = [*(before if isinstance(before, list) else [before]), given]
        else:
            raise InputError(f"'{name}' is set twice; set it once.")
    return values


def checked(model: type[M], values: Mapping[str, Any]) -> M:
    """Return a model with values that a user gave.

    Raises:
        InputError: A value is wrong.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise parameter_error(error) from None


def explain(models: Iterable[type[BaseModel]]) -> None:
    """Print the parameters of models, what they mean, and their defaults."""
    typer.echo("Parameters for --set NAME=VALUE:")
    for parameter in parameters_of(models):
        typer.echo(f"  {parameter.label}")
        typer.echo(
            textwrap.fill(parameter.help, 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
        )


class _WithParameters:
    """The help of commands and groups with parameters."""

    homes: ClassVar[tuple[str, ...]] = ()
    """The models, such as ``fairqr.graph.search.context:Context``, imported only when needed."""

    params: list[Any]
    get_params: Callable[..., list[Any]]

    @classmethod
    def of(cls, *homes: str) -> type[Self]:
        """Return the class of a command with the parameters of these models."""
        return type(cls.__name__, (cls,), {"homes": homes})

    @property
    def models(self) -> list[type[BaseModel]]:
        """The models, imported."""
        found = [home.split(":") for home in self.homes]
        return [getattr(import_module(module), name) for module, name in found]

    def named(self) -> dict[str, Any]:
        """Return the options that take a parameter, by its name."""
        texts = [(getattr(option, "help", None) or "", option) for option in self.params]
        return {text[1 : text.index("}")]: option for text, option in texts if text[:1] == "{"}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in sections: those without a panel first, then each panel's."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            title = parameter.rich_help_panel or ("Arguments" if is_argument else "Options")
            sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def describe(self) -> None:
        """Put the descriptions of the parameters into the help of their options."""
        named = self.named()
        # The models are slow to import; without such options, help does not need them.
        known = {each.name: each for each in parameters_of(self.models)} if named else {}
        for name, option in named.items():
            option.help = option.help.replace(f"{{{name}}}", known[name].help)


class ParameterCommand(_WithParameters, TyperCommand):
    """A command with parameters; an option whose help begins with ``{name}`` takes one."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the descriptions of the parameters."""
        self.describe()
        super().format_help(ctx, formatter)


class ParameterGroup(_WithParameters, Group):
    """A command with parameters that has commands below it, too."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the descriptions of the parameters."""
        self.describe()
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and the commands below."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def options_of(
    ctx: typer.Context, texts: Iterable[str] | None, first: type[M], second: type[N]
) -> tuple[M, N]:
    """Return the two models of a :class:`ParameterCommand` with what the user gave.

    Args:
        ctx: The context of the command.
        texts: The values of ``--set``.
        first: One of the models.
        second: The other.

    Raises:
        InputError: A name or a value is wrong, or is given by an option and by ``--set``.
    """
    command: Any = ctx.command
    values = read_parameters([first, second], texts or [])
    for name, option in command.named().items():
        given = ctx.params[option.name]
        if given in (None, [], ()):
            continue
        inner, key = _place(values, name)
        if key in inner:
            raise InputError(f"'{name}' is also set by {option.opts[-1]}; set it once.")
        inner[key] = given
    others = {name: values.pop(name) for name in second.model_fields if name in values}
    return checked(first, values), checked(second, others)


def _explain(ctx: typer.Context, texts: list[str] | None) -> list[str] | None:
    if texts and "help" in texts:
        command: Any = ctx.command
        explain(command.models)
        raise typer.Exit
    return texts


Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        callback=_explain,
        is_eager=True,  # '--set help' needs no query
        help="Set any other parameter; '--set help' lists them all. Repeatable.",
    ),
]


def _place(values: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """Return where in nested values a name with dots belongs, and its last part."""
    *groups, key = name.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    return values, key


def _find(known: Mapping[str, Parameter], name: str) -> Parameter:
    """Return the parameter of that name.

    Raises:
        InputError: There is no such parameter.
    """
    start, _, key = name.partition(".")
    found = known.get(name) or (known.get(start) if key else None)
    if found and found.is_mapping == (found.name != name):
        return found
    ends = {each: each.rpartition(".")[2] for each in known}
    close = difflib.get_close_matches(name.rpartition(".")[2], ends.values(), cutoff=0.7)
    near = [each for each in known if each == name or each.startswith(f"{name}.")]
    near += [each for end in close for each in known if ends[each] == end]
    shown = [known[each].label for each in dict.fromkeys(near)][:4]
    hint = f"; did you mean {' or '.join(shown)}?" if shown else "."
    raise InputError(
        f"There is no parameter '{one_line(name, 60)}'{hint} '--set help' lists them all."
    )
