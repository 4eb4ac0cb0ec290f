"""The parameters that users set by ``--set NAME=VALUE``: the fields of pydantic models."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import typer

from fairqr.base.errors import InputError, first_problem, one_line, parameter_errors

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    M = TypeVar("M", bound=BaseModel)

_LISTS = (list, tuple, set, frozenset, Sequence)

MOST_SUGGESTED = 4
"""How many parameters are named that a user may have meant."""


class Parameter(NamedTuple):
    """A field of a model, or of a model within it.

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

        return any(isinstance(entry, BeforeValidator) for entry in self.field.metadata)

    @property
    def is_model(self) -> bool:
        """Whether its value is a model, whose fields are parameters."""
        return hasattr(self.accepts, "model_fields") and not self.is_parsed

    @property
    def is_settable(self) -> bool:
        """Whether a text can set it, which holds for no constant and no list of models."""
        inner = get_args(self.accepts)
        is_constant = get_origin(self.accepts) is Literal and len(inner) == 1
        if is_constant:
            return False
        is_list_of_models = self.is_list and hasattr(inner[0], "model_fields")
        return self.is_parsed or not is_list_of_models

    @property
    def label(self) -> str:
        """The name as users write it."""
        return f"{self.name}.NAME" if self.is_mapping else self.name

    @property
    def help(self) -> str:
        """The description of the parameter, and its default."""
        description = self.field.description or ""
        default = self.field.get_default(call_default_factory=True)
        has_default = not self.field.is_required() and default not in (None, (), {}, "")
        # A path would be on the machine that writes the help.
        if not has_default or isinstance(default, Path):
            return description
        return f"{description} [default: {self._in_words(default)}]".strip()

    def _in_words(self, default: Any) -> str:
        if isinstance(default, bool):
            return "yes" if default else "no"
        if self.is_list:
            return ",".join(map(str, default))
        return f"{default}"

    def read(self, texts: Sequence[str]) -> Any:
        """Return the value that texts stand for; what the model parses stays as it is.

        Raises:
            InputError: A text is not a value of this parameter, or there are too many.
        """
        if self.is_parsed:
            return texts[0] if len(texts) == 1 else texts
        if self.is_list:
            kind = get_args(self.accepts)[0]
            parts = ",".join(texts).split(",")
            return [self._value_of(part.strip(), kind) for part in parts]
        if len(texts) > 1:
            raise InputError(f"'{self.name}' is set twice; set it once.")
        if self.is_mapping:
            return texts[0]

        kind = self.field.annotation
        # We pass on the bounds alone: pydantic warns of the rest of a field here.
        if self.field.metadata:
            kind = Annotated[(kind, *self.field.metadata)]
        return self._value_of(texts[0], kind)

    def _value_of(self, text: str, kind: Any) -> Any:
        """Return a text as a value of a type."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_strings(text)
        except ValidationError as error:
            reason = first_problem(error)[1]
            raise InputError(f"The parameter '{self.name}' is wrong: {reason}.") from None


def parameters_of(models: Iterable[type[BaseModel]], prefix: str = "") -> Iterator[Parameter]:
    """Yield the parameters that users can set, also those of models within the models."""
    for model in models:
        for name, field in model.model_fields.items():
            parameter = Parameter(f"{prefix}{name}", field, _without_none(field.annotation))
            if parameter.is_model:
                yield from parameters_of([parameter.accepts], f"{parameter.name}.")
            elif parameter.is_settable:
                yield parameter


def _without_none(kind: Any) -> Any:
    """Return the type of an optional value, if it has one; otherwise the type itself."""
    alternatives = get_args(kind)
    if NoneType not in alternatives:
        return kind
    return next(alternative for alternative in alternatives if alternative is not NoneType)


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
    texts_by_name: dict[str, list[str]] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if not (name and text):
            raise InputError(f"'{one_line(assignment, 60)}' has no value; write NAME=VALUE.")
        texts_by_name.setdefault(name, []).append(text)

    parameters = {parameter.name: parameter for parameter in parameters_of(models)}
    values: dict[str, Any] = {}
    for name, texts in texts_by_name.items():
        *groups, key = name.split(".")
        nested = values
        for group in groups:
            nested = nested.setdefault(group, {})
        nested[key] = _parameter_called(name, parameters).read(texts)
    return values


def _parameter_called(name: str, parameters: Mapping[str, Parameter]) -> Parameter:
    """Return the parameter of a name.

    Raises:
        InputError: There is no such parameter.
    """
    parameter = parameters.get(name) or parameters.get(name.partition(".")[0])
    if parameter:
        has_key = parameter.name != name
        if parameter.is_mapping == has_key:
            return parameter._replace(name=name)

    labels = [near.label for near in _similar_parameters(name, parameters)]
    hint = f"; did you mean {' or '.join(labels)}?" if labels else "."
    raise InputError(
        f"There is no parameter '{one_line(name, 60)}'{hint} '--set help' lists them all."
    )


def _similar_parameters(name: str, parameters: Mapping[str, Parameter]) -> list[Parameter]:
    """Return the parameters that a user may have meant: within that name, or written similarly."""
    names = [full for full in parameters if full == name or full.startswith(f"{name}.")]
    by_last_part = {full.rpartition(".")[2]: full for full in parameters}
    last_part = name.rpartition(".")[2]
    for match in difflib.get_close_matches(last_part, by_last_part, cutoff=0.7):
        names.append(by_last_part[match])
    return [parameters[full] for full in dict.fromkeys(names[:MOST_SUGGESTED])]


def checked(model: type[M], values: Mapping[str, Any]) -> M:
    """Return a model with values that a user gave.

    Raises:
        InputError: A value is wrong.
    """
    with parameter_errors():
        return model.model_validate(dict(values))


def explain(models: Iterable[type[BaseModel]]) -> None:
    """Print the parameters of models, what they mean, and their defaults."""
    helps = {parameter.label: parameter.help for parameter in parameters_of(models)}
    typer.echo("Parameters for --set NAME=VALUE:")
    for label, sentences in helps.items():
        paragraph = textwrap.indent(textwrap.fill(sentences, 90), " " * 6)
        typer.echo(f"  {label}\n{paragraph}")


def explain_methods() -> None:
    """Print the methods, the models that re-rank, and the final steps with their options."""
    from fairqr.agents.ranking.rankers import RANKERS
    from fairqr.graph.search.context import METHODS, READS
    from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS, TRAINED

    lines = ["Methods (--method):"]
    for name, strategy in METHODS.items():
        lines.append(f"  {name}: {strategy.about}")

    lines.append("\nModels that re-rank (--method, or --set rerank=NAME), before the final step:")
    for name, about in RANKERS.items():
        lines.append(f"  {name}: {about}; reads {READS[name]} documents")

    lines.append("\nFinal steps (--set final_step=NAME), options (--set options.NAME=VALUE):")
    for step, reranker in RERANKERS.items():
        trained = "; needs weights, see 'fairqr train --help'" if step in TRAINED else ""
        lines.append(f"  {step}: {ABOUT[step]}{trained}")
        for option in parameters_of([reranker]):
            lines.append(f"      {option.name}: {option.help}")
    typer.echo("\n".join(lines))
