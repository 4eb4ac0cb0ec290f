"""Parameters on the command line: ``--set NAME=VALUE``.

A parameter is a field of a pydantic model, such as the context of a search. Its name, meaning,
default and range stand there only. :mod:`fairqr.cli.options` gives the most common ones an option
of their own, which is another way to write ``--set``.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import typer

from fairqr.base.errors import InputError, first_problem, one_line, parameter_error

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    M = TypeVar("M", bound=BaseModel)

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
        return get_origin(self.accepts) in (dict, Mapping)

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
        if self.field.is_required() or default in (None, (), {}, ""):
            return self.field.description or ""
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
            elif not (parameter.is_list and hasattr(inner[0], "model_fields")):
                yield parameter


def read_parameters(
    models: Iterable[type[BaseModel]],
    assignments: Iterable[str],
    options: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Read texts like ``budget.tokens=1000`` as values of models.

    A parameter that takes several values has them separated by commas, or is set repeatedly.

    Args:
        models: Whose fields the parameters are.
        assignments: What the user wrote for ``--set``.
        options: The names and texts of parameters that the user set by options of their own.

    Returns:
        The values, nested as the models are.

    Raises:
        InputError: A text is not an assignment, a parameter is unknown or set twice, or a value is
            wrong.
    """
    known = {parameter.name: parameter for parameter in parameters_of(models)}
    texts: dict[str, list[str]] = {}
    for name, text in options:
        texts.setdefault(name, []).append(text)
    by_option = {*texts}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if not (name and text):
            raise InputError(f"'{one_line(assignment, 60)}' has no value; write NAME=VALUE.")
        if name in by_option:
            raise InputError(f"'{name}' is set twice; set it once.")
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
    from pydantic import ValidationError

    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise parameter_error(error) from None


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
        if strategy.refines:
            names = ("ask", "groups", "pool", "rerank", "final_step", "depth")
            told = ", ".join(f"{it}={getattr(strategy, it) or 'k'}" for it in names)
            lines.append(f"      {told}")
    lines.append("\nModels that re-rank (--method, or --set rerank=NAME), before the final step:")
    lines += [f"  {name}: {it}; reads {READS[name]} documents" for name, it in RANKERS.items()]
    lines.append("\nFinal steps (--set final_step=NAME), options (--set options.NAME=VALUE):")
    for step, entry in RERANKERS.items():
        trained = "; needs weights, see 'fairqr train --help'" if step in TRAINED else ""
        lines.append(f"  {step}: {ABOUT[step]}{trained}")
        lines += [f"      {option.name}: {option.help}" for option in parameters_of([entry])]
    typer.echo("\n".join(lines))
