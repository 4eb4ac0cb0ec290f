"""Commands whose options come from their signature, their docstring, and pydantic models.

In a command's function the parameters before ``*`` are arguments, and those after it are options;
their words stand in the section ``Args`` of its docstring. A parameter whose type is a pydantic
model becomes an option for each field, or, with :class:`Fields`, for the fields that it names;
``--set NAME=VALUE`` sets any field, and an option of a field is another way to write that. Name,
meaning, default and range stand in the model only. A command that returns :class:`Printed` has the
option ``--json``.
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
            named |= mark.named
            shown += [_option_of(option, known[it]) for option, it in mark.named.items()]
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
        set_ = [
            f"{it}={text}" for option, it in named.items() for text in _texts(given.pop(option))
        ]
        if models:  # an experiment, whose model the file names, reads its own
            set_ += given.pop("set_", None) or []
        values = read_parameters(models.values(), set_)
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


def _texts(value: Any) -> list[str]:
    """Return what the user wrote for an option."""
    given = value if isinstance(value, list) else [value]
    return ["yes" if each is True else each for each in given if each not in (None, False)]


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
