"""The pages of the reference, written from the code."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args, get_origin

import typer.main
from pydantic import BaseModel

import fairqr
from docs_site.docstrings import lead_of, markdown
from fairqr.base import errors
from fairqr.base.settings import SETTINGS, variable_of
from fairqr.cli.common import RunSettings
from fairqr.cli.main import app
from fairqr.cli.options import parameters_of
from fairqr.cli.search import AnswerRunSettings, SearchRunSettings
from fairqr.evaluation.experiments.kinds import KINDS
from fairqr.evaluation.measures.kinds import KINDS as MEASURE_KINDS
from fairqr.graph.answer.builder import AnswerResult
from fairqr.graph.answer.context import AnswerSettings
from fairqr.graph.documented import documented
from fairqr.graph.probe.builder import ProbeResult
from fairqr.graph.probe.context import ProbeSettings
from fairqr.graph.search.context import METHODS, Context
from fairqr.graph.search.result import SearchResult
from fairqr.graph.service.configuration import Caps, Limits, ServiceSettings
from fairqr.graph.service.http.app import create_app
from fairqr.graph.service.http.parts import Parts
from fairqr.graph.stream import StepData
from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS
from fairqr.retrieval.sources.schema import Attribute
from fairqr.retrieval.sources.source import (
    ElasticsearchSource,
    OpenSearchSource,
    QueryFields,
    Source,
    VectorField,
)


def write_reference(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, page) in PAGES.items():
        text = f"# {title}\n\n" + "\n".join(page())
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def commands() -> Iterator[str]:
    """Write every command, with its arguments and options."""
    yield "`fairqr COMMAND --help` prints the same. Parameters for `--set` are on "
    yield "[a page of their own](parameters.md).\n"
    yield from _command("fairqr", typer.main.get_command(app))


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{markdown(command.help)}\n"
    rows = [_option(each) for each in command.params if not each.hidden]
    yield from _table("option", "meaning", rows=[row for row in rows if row])
    for below, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _command(f"{name} {below}", inner)


def _option(option: Any) -> tuple[str, str] | None:
    if option.param_type_name == "argument":
        return f"`{option.name.upper()}`", markdown(option.help)
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    return names, markdown(option.help)


def parameters() -> Iterator[str]:
    """Write the parameters of searches, answers, probes and experiments."""
    yield "A parameter has one name, one meaning and one default everywhere:\n"
    yield from _table(
        "in",
        "write",
        rows=[
            ("the command", "`--set budget.tokens=1000`; common ones have an option of their own"),
            ("Python", '`search.search("physicist", k=10, budget={"tokens": 1000})`'),
            ("the service", '`{"query": "physicist", "k": 10, "budget": {"tokens": 1000}}`'),
        ],
    )
    yield "On the command line, separate several values by commas. `NAME` stands for a name of your"
    yield "choice. Python's short forms and the service leave out `answer.` and `probe.`.\n"
    yield "## A search\n"
    yield from _parameters([Context])
    yield "### Methods\n"
    yield from _table("`method`", "", rows=[(f"`{n}`", m.about) for n, m in METHODS.items()])
    yield "## An answer\n\nAn answer also has the parameters of a search.\n"
    yield from _parameters([AnswerSettings], "answer.")
    yield "## A probe\n\nA probe also has the parameters of a search.\n"
    yield from _parameters([ProbeSettings], "probe.")
    yield "## Options of the final step\n\nSet them as `options.NAME`.\n"
    for name, entry in RERANKERS.items():
        yield f"### {name}\n\n{ABOUT[name]}.\n"
        yield from _parameters([entry], "options.")
    yield "## The command alone\n"
    yield from _parameters([RunSettings])
    for command, model in (("search", SearchRunSettings), ("answer", AnswerRunSettings)):
        yield f"Only `fairqr {command}`:\n"
        yield from _parameters([model], without=RunSettings)
    yield "## Experiments\n"
    yield "These values stand in the file of an experiment; `fairqr experiment run --set` changes"
    yield "them. `fairqr probe pairwise` and `fairqr probe listwise` take those of"
    yield "`llm_pairwise` and `llm_listwise`.\n"
    for kind in KINDS.values():
        yield f"### {kind.name}\n"
        yield from _parameters([kind.spec])


def _parameters(
    models: Iterable[type[BaseModel]], prefix: str = "", without: type[BaseModel] | None = None
) -> Iterator[str]:
    left_out = without.model_fields if without else {}
    found = parameters_of(models, prefix)
    kept = [each for each in found if each.name.removeprefix(prefix) not in left_out]
    if kept:
        yield from _table("parameter", "meaning", rows=[(f"`{it.label}`", it.help) for it in kept])


def settings() -> Iterator[str]:
    """Write the settings of fairqr and of its service."""
    yield "A setting is looked for in this order: an option of the command, its variable, the"
    yield "settings file, its default. `fairqr config show` prints where that file is, and each"
    yield "value in force and where it comes from. Paths in the file are relative to its folder.\n"
    rows = [
        (f"`{each.name}`", f"`{variable_of(each.name)}`", _shown(each.default), each.about)
        for each in SETTINGS
    ]
    yield from _table("setting", "variable", "default", "meaning", rows=rows)
    yield "## The service\n\nThese stand in the section `[service]`; the variable of `port` is"
    yield "`FAIRQR_SERVICE_PORT`, that of `caps.k` is `FAIRQR_SERVICE_CAPS_K`.\n"
    yield from _fields(ServiceSettings)
    for name, inner in (("caps", Caps), ("limits", Limits)):
        yield f"### {name}\n\n{lead_of(inner.__doc__)}\n"
        yield from _fields(inner, f"{name}.")


def sources() -> Iterator[str]:
    """Write the fields of a source file."""
    yield "[Attach a search engine](../how-to/attach-elasticsearch.md) shows how to use them.\n"
    yield "## Every source\n"
    yield from _fields(Source, leave_out={"folder"})
    yield "## An attribute\n"
    yield from _fields(Attribute, leave_out={"name", "values"})
    for engine, kind in Source.kinds.items():
        if kind is OpenSearchSource:
            continue
        title = "elasticsearch, opensearch" if kind is ElasticsearchSource else engine
        yield f"## {title}\n\n{lead_of(kind.__doc__)}\n"
        yield from _fields(kind, leave_out={*Source.model_fields})
    for part, field in ((QueryFields, "query"), (VectorField, "vectors")):
        yield f"### {field}\n"
        yield from _fields(part, f"{field}.")


def results() -> Iterator[str]:
    """Write the objects that searches, answers and probes return."""
    yield "`--json` prints these objects, the service returns them, and Python has them as classes."
    yield "`null` stands for what was not computed or has no value.\n"
    for model, what in ((SearchResult, "search"), (AnswerResult, "answer"), (ProbeResult, "probe")):
        yield f"## {model.__name__}\n\nOf `fairqr {what}`. {lead_of(model.__doc__)}\n"
        yield from _fields(model)
        for inner in _within(model):
            yield f"### {model.__name__}: {inner.__name__}\n\n{lead_of(inner.__doc__)}\n"
            yield from _fields(inner)
    yield "## StepData\n\nA step in a stream, of the service and of `FairSearch.stream`.\n"
    yield from _fields(StepData)


def _within(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models within a model, each once."""
    seen: dict[type[BaseModel], None] = {}
    waiting = [model]
    for current in waiting:
        for field in current.model_fields.values():
            for kind in _classes(field.annotation):
                if issubclass(kind, BaseModel) and kind not in seen:
                    seen[kind] = None
                    waiting.append(kind)
    yield from seen


def _classes(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def measures() -> Iterator[str]:
    """Write the measures and what they take."""
    yield "Write a measure as `AWRF@20(attribute=gender,unit=bits)`: name, cut-off, parameters."
    yield "[Measures explained](../explanation/measures.md) has formulas and conventions.\n"
    rows = []
    for kind in MEASURE_KINDS.values():
        names = ", ".join(f"`{name}`" for name in (kind.name, *kind.aliases))
        rows.append((names, kind.summary, f"{kind.range}; {kind.best}", ", ".join(kind.takes)))
    yield from _table("measure", "meaning", "range; best or fair", "takes", rows=rows)


def error_classes() -> Iterator[str]:
    """Write the errors, with what the service makes of them."""
    yield "Each error is one sentence that says what to do. The command prints it and exits with 2;"
    yield "Python raises the class; the service answers with the type and the status.\n"
    rows = []
    for name, kind in sorted(vars(errors).items()):
        if isinstance(kind, type) and issubclass(kind, errors.FairqrError):
            about = lead_of(kind.__doc__).split("\n\n")[0]
            rows.append(
                (f"`{name}`", f"`urn:fairqr:error:{kind.slug}`", str(kind.http_status), about)
            )
    yield from _table("class", "type", "status", "when", rows=rows)


def python() -> Iterator[str]:
    """Write the public names of the package."""
    yield "Everything here is imported from `fairqr`. The fields of contexts are on the page of"
    yield "[parameters](parameters.md), those of results on [their own](results.md).\n"
    for name in fairqr.__all__:
        value = getattr(fairqr, name)
        if isinstance(value, types.ModuleType):
            continue
        yield f"## {name}\n"
        yield f"```python\n{name}{_signature(value)}\n```\n"
        yield f"{markdown(inspect.getdoc(value))}\n"
        if isinstance(value, type) and not issubclass(value, BaseModel):
            for method, function in vars(value).items():
                inner = function.__func__ if isinstance(function, classmethod) else function
                if not method.startswith("_") and inspect.isfunction(inner):
                    yield f"### {name}.{method}\n"
                    yield f"```python\n{method}{_signature(inner)}\n```\n"
                    yield f"{markdown(inspect.getdoc(inner))}\n"


def _signature(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, BaseModel):
        return ""
    try:
        found = inspect.signature(value)
    except ValueError:
        return ""
    each = [str(it).replace("'", "") for it in found.parameters.values() if it.name != "self"]
    line = f"({', '.join(each)})"
    return line if len(line) < 80 else "(\n" + "".join(f"    {it},\n" for it in each) + ")"


def http() -> Iterator[str]:
    """Write the operations of the service."""
    yield "The service describes itself in `GET /openapi.json`, with the schemas of requests and"
    yield "answers. Requests take the [parameters](parameters.md); answers are the"
    yield "[results](results.md); errors are [problem documents](errors.md).\n"
    parts = SimpleNamespace(settings=ServiceSettings(), store=None, metrics=None)
    document = create_app(cast("Parts", parts)).openapi()
    operations = [
        (operation.get("tags", ["operation"])[0], method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in document["tags"]:
        yield f"## {tag['name'].capitalize()}\n\n{tag['description']}\n"
        for own, method, path, operation in operations:
            if own == tag["name"]:
                yield f"### {method} {path}\n"
                yield f"{markdown(operation.get('description') or operation.get('summary'))}\n"
                yield from _operation(operation, document)


def _operation(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (f"`{it['name']}`", it["in"], markdown(it.get("description", "")))
        for it in operation.get("parameters", ())
    ]
    content = operation.get("requestBody", {}).get("content", {}).values()
    for schema in (each["schema"] for each in content):
        resolved = _resolved(schema, document)
        rows += [
            (f"`{name}`", "body", markdown(field.get("description", "")))
            for name, field in resolved.get("properties", {}).items()
        ]
    yield from _table("parameter", "in", "meaning", rows=rows)
    statuses = ", ".join(operation["responses"])
    yield f"Answers with {statuses}.\n"


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    if name := schema.get("$ref"):
        found = document["components"]["schemas"][name.rpartition("/")[2]]
        return cast("Mapping[str, Any]", found)
    return schema


def _fields(
    model: type[BaseModel], prefix: str = "", *, leave_out: Iterable[str] = ()
) -> Iterator[str]:
    """Write a table of the fields of a model, from their descriptions or the docstring."""
    _, told = documented(model.__doc__)
    rows = []
    for name, field in model.model_fields.items():
        if name not in leave_out:
            default = "" if field.is_required() else _shown(field.get_default())
            about = markdown(field.description) if field.description else told.get(name, "")
            rows.append((f"`{prefix}{name}`", _kind(field.annotation), default, about))
    yield from _table("field", "type", "default", "meaning", rows=rows)


def _kind(annotation: Any) -> str:
    """Return a type as readers of JSON know it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if it is types.NoneType else _kind(it) for it in inner)
    if origin is typing.Literal:
        return ", ".join(f"`{it}`" for it in inner)
    if origin is typing.Annotated:
        return _kind(inner[0])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{_kind(inner[0])} → {_kind(inner[1])}"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return f"list of {_kind(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.__name__
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
    return names.get(annotation, "") if isinstance(annotation, type) else ""


def _shown(default: Any) -> str:
    if isinstance(default, BaseModel) or default in (None, (), {}, [], ""):
        return ""
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    listed = list(default) if isinstance(default, tuple) else default
    return f"`{listed if isinstance(listed, str) else json.dumps(listed, default=str)}`"


def _table(*heads: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    if lines:
        yield f"| {' | '.join(heads)} |"
        yield f"|{'---|' * len(heads)}"
        yield from (f"| {' | '.join(cells)} |" for cells in lines)
        yield ""


PAGES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "command": ("The command", commands),
    "parameters": ("Parameters", parameters),
    "python": ("Python", python),
    "http": ("HTTP", http),
    "settings": ("Settings", settings),
    "sources": ("Source files", sources),
    "results": ("Results", results),
    "measures": ("Measures", measures),
    "errors": ("Errors", error_classes),
}
"""The pages by file name, each with its title and what writes it."""
