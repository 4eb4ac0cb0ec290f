"""Parameters on the command line: ``--set NAME=VALUE``.

A parameter is a field of a pydantic model, such as the context of a search. Its name, meaning,
default and range stand there only. :mod:`fairqr.cli.options` gives the most common ones an option
of their own; all others are set by ``--set``.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer

from fairqr.base.errors import InputError, first_problem, one_line, parameter_error

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    M = TypeVar("M", bound=BaseModel)


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
        kind: Any = self.field.annotation
        if get_origin(kind) in (Union, UnionType):
            kind = next(each for each in get_args(kind) if each is not NoneType)
        return kind

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
        kind: Any = Annotated[self.field.annotation, self.field]
        if self.is_list:
            kind = get_args(self.accepts)[0]
        parts = text.split(",") if self.is_list else [text]
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
            if hasattr(parameter.accepts, "model_fields") and not parameter.is_parsed:
                yield from parameters_of([parameter.accepts], f"{parameter.name}.")
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
        inner, key = place_of(values, name)
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
        typer.echo(textwrap.indent(textwrap.fill(parameter.help, 90), " " * 6))


def place_of(values: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
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
