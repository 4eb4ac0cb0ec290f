"""The tools of MCP; each call is an ephemeral run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastmcp import Context
from fastmcp.exceptions import ToolError
from fastmcp.tools.base import ToolResult
from pydantic import BaseModel, BeforeValidator, Field

from fairqr.base.errors import parameter_errors
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.search.explanation import passage_lines, quoted, search_lines
from fairqr.graph.search.result import Place, SearchResult
from fairqr.graph.service.execution.checking import CheckedRequest
from fairqr.graph.service.execution.executor import Executor
from fairqr.graph.service.execution.requests import AuditRequest, parsed
from fairqr.graph.service.records import NOBODY, Kind
from fairqr.graph.service.runs.manager import EphemeralRuns
from fairqr.graph.service.starting import start_checked
from fairqr.prompts.template import fence

SHOWN = 10
"""How many documents a tool shows by default."""

READ = 5
"""How many documents an answer rests on by default."""

SECONDS = 60.0
"""The time limit of a call by default."""

# What an agent does not need of a result; it would have to read it all.
_LONG: Any = {
    "iterations": True,
    "unused_refinements": True,
    "answers": True,
    "usage": True,
    "baseline": {"ranking"},
}


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """The caller of a tool.

    Attributes:
        key: The id of the access key.
        carrier: The headers of the caller's trace.
        gone: Done when the client disconnects.
    """

    key: str = NOBODY
    carrier: Mapping[str, str] = field(default_factory=dict)
    gone: asyncio.Future[None] = field(default_factory=asyncio.Future)


NO_NAMES = ("", "null", "none")
"""What models write if they name nothing."""


def _as_list(value: object) -> object:
    """Return what a model may write for a list as a list: one text, JSON, or null."""
    if value is None:
        return []
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return [value]


_Texts = Annotated[list[str], BeforeValidator(_as_list)]


def _as_names(value: object) -> object:
    """Return names as a list; null, and a text such as none, name nothing."""
    names = _as_list(value)
    if not isinstance(names, list):
        return names
    return [name for name in names if not _names_nothing(name)]


def _names_nothing(name: object) -> bool:
    return name is None or str(name).strip().lower() in NO_NAMES


def _as_name(value: object) -> object:
    """Return one name, empty if a model names nothing."""
    is_name_or_null = value is None or isinstance(value, str)
    if is_name_or_null and _names_nothing(value):
        return ""
    return value


_Names = Annotated[list[str], BeforeValidator(_as_names)]
_Name = Annotated[str, BeforeValidator(_as_name)]
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]


def tools_of(calls: ToolCalls) -> list[Callable[..., Any]]:
    """Return the functions of all tools that the service can offer."""
    tools = [_make_fair_search(calls)]
    if calls.executor.capabilities.default_model_writes:
        tools.append(_make_fair_answer(calls))
    tools.append(_make_list_sources(calls))
    if calls.executor.auditor is not None:
        tools.append(_make_audit(calls))
    return tools


class ToolCalls:
    """Does the runs that tools need.

    Args:
        executor: Checks and runs what a tool is asked for.
        runs: The ephemeral runs of this process.
        tool_caller: Returns the caller of the current call.

    Attributes:
        shown: How many documents a tool shows by default.
        read: How many documents an answer rests on by default.
    """

    def __init__(
        self, executor: Executor, runs: EphemeralRuns, tool_caller: Callable[[], ToolCaller]
    ) -> None:
        self.executor = executor
        self._runs = runs
        self._tool_caller = tool_caller
        self._limits = executor.settings.limits
        self.shown = min(SHOWN, self._limits.k, self._limits.depth)
        self.read = min(READ, self._limits.documents)

    async def run(
        self, kind: Kind, options: dict[str, Any], seconds: float, context: Context
    ) -> Any:
        """Run the graph, and return the result."""
        options["budget"] = {"seconds": min(seconds, self._limits.seconds)}
        checked = self.executor.check(kind, parsed(kind, options))
        return await self.follow(checked, context)

    async def follow(
        self,
        checked: CheckedRequest,
        context: Context,
        total: int | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Run a checked request, report each step to the client, and return the result."""
        caller = self._tool_caller()
        run = await start_checked(
            self.executor,
            self._runs,
            checked,
            key=caller.key,
            carrier=caller.carrier,
            seconds=seconds,
        )
        caller.gone.add_done_callback(lambda _: run.stop())

        steps = 0
        async with run as events:
            async for event in events:
                if event.name == "step":
                    steps += 1
                    await context.report_progress(steps, total, event.data["step"])
        if event.name == "error":
            raise ToolError(detail_of(event.data))
        return event.data["result"]

    async def passages(self, corpus: str, places: Sequence[Place]) -> list[str]:
        """Return the passages of documents, numbered, and without markup."""
        async with self.executor.lend_engine(corpus) as engine:
            documents = await engine.documents([document.id for document in places])
        return list(passage_lines(places, documents))


def _make_fair_search(calls: ToolCalls) -> Callable[..., Any]:
    """Return the tool that searches; its defaults fit the limits."""

    async def fair_search(
        query: str,
        context: Context,
        source: _Name = "",
        attributes: _Names = [],  # noqa: B006
        k: _Count = calls.shown,
        seconds: _Seconds = SECONDS,
    ) -> ToolResult:
        """Search documents so that groups get a fair share of what is shown.

        Returns numbered passages, and how the exposure of each group changed.

        Args:
            query: What to search for, in a few words.
            context: The call.
            source: The source to search: a name that list_sources returns.
            attributes: Attributes whose groups get a fair share; by default all of the source.
            k: How many results to show.
            seconds: The time limit in seconds.
        """
        options = {"query": query, "k": k, "corpus": source or None, "attributes": attributes}
        content = await calls.run("search", options, seconds, context)
        result = SearchResult.model_validate(content)
        passages = await calls.passages(result.corpus, result.ranking)
        return _reply(search_lines(result, passages), result, passages)

    return fair_search


def _make_fair_answer(calls: ToolCalls) -> Callable[..., Any]:
    """Return the tool that answers; its defaults fit the limits."""

    async def fair_answer(
        question: str,
        context: Context,
        source: _Name = "",
        attributes: _Names = [],  # noqa: B006
        documents: _Count = calls.read,
        seconds: _Seconds = SECONDS,
    ) -> ToolResult:
        """Answer a question from documents of a fair ranking.

        Returns the answer, the documents that it used, and whose documents were read.

        Args:
            question: The question, as a whole sentence.
            context: The call.
            source: The source to search: a name that list_sources returns.
            attributes: Attributes whose groups get a fair share; by default all of the source.
            documents: How many documents the answer may rest on.
            seconds: The time limit in seconds.
        """
        options: dict[str, Any] = {
            "question": question,
            "corpus": source or None,
            "attributes": attributes,
            "documents": documents,
            "method": "fairqr",
        }
        content = await calls.run("answer", options, seconds, context)
        result = AnswerResult.model_validate(content)
        passages = await calls.passages(result.corpus, _used_places(result))
        return _reply(_answer_lines(result, passages), result, passages)

    return fair_answer


def _used_places(result: AnswerResult) -> list[Place]:
    """Return the documents that the answers used; without an attributor, those that were read."""
    if result.attributor is None:
        return [document for document in result.ranking if document.exposure]
    return [document for document in result.ranking if document.attributed]


def _answer_lines(result: AnswerResult, passages: Sequence[str]) -> list[str]:
    """Return the text about an answer for a model."""
    answer = ""
    if result.distribution:
        answer = result.distribution[0].text
    is_judged = result.attributor is not None
    lines = [
        f"Answer: {fence(answer) or 'none'}",
        "It used:" if is_judged else "It read:",
        *quoted(passages),
    ]
    for attribute_result in result.groups:
        shares = [f"{group.group} {_percent(group.exposure)}" for group in attribute_result.groups]
        lines.append(f"Exposure by {attribute_result.attribute}: {', '.join(shares)}.")
    lines += result.warnings
    return lines


def _make_audit(calls: ToolCalls) -> Callable[..., Any]:
    """Return the tool that audits; its defaults fit the limits."""

    async def audit(
        queries: _Texts,
        context: Context,
        source: _Name = "",
        attributes: _Names = [],  # noqa: B006
        k: _Count = calls.shown,
        seconds: _Seconds = SECONDS,
    ) -> ToolResult:
        """Measure who gets seen in the results of a source for a list of queries.

        Returns findings in sentences, with the exposure of each group. More queries make the
        findings more certain.

        Args:
            queries: Queries that people ask.
            context: The call.
            source: The source to search: a name that list_sources returns.
            attributes: Attributes whose groups are compared; by default all of the source.
            k: How many results count as shown.
            seconds: The seconds after which the audit fails.
        """
        options = {
            "corpus": source or None,
            "queries": queries,
            "attributes": attributes,
            "k": k,
            "intersections": False,
        }
        checked = await calls.executor.check_audit(_audit_request(options))
        result = await calls.follow(checked, context, len(queries) + 1, seconds)

        findings = result["findings"]
        figures = {name: result["figures"][name] for name in ("queries", "groups")}
        lines = [
            f"{figures['queries']['answered']} of {len(queries)} queries were answered.",
            *findings,
            *map(_group_line, figures["groups"]),
        ]
        return _content(lines, {"findings": findings, "figures": figures})

    return audit


def _group_line(group: Mapping[str, Any]) -> str:
    """Return the line about a group of an audit."""
    exposure = _percent(group["exposure"]["value"])
    target = _percent(group["target"]["value"])
    name = f"{group['attribute']} {group['group']}"
    return f"{name}: exposure {exposure}, target {target} ({group['verdict']})"


def _make_list_sources(calls: ToolCalls) -> Callable[..., Any]:
    """Return the tool that lists the sources."""

    async def list_sources() -> ToolResult:
        """List the sources that can be searched, with their attributes and groups."""
        sources = await list_of_sources(calls.executor)
        lines = []
        for source in sources:
            attributes = []
            for name, groups in source["attributes"].items():
                attributes.append(f"{name} ({', '.join(groups)})")
            lines.append(f"{source['name']}: {'; '.join(attributes)}")
        return _content(lines, {"sources": sources})

    return list_sources


async def list_of_sources(executor: Executor) -> list[dict[str, Any]]:
    """Return the sources that can be searched now, the default first, with their groups."""
    sources = []
    for engine, info in await executor.infos():
        attributes = engine.schema.attributes
        groups = {name: [*attribute.listed] for name, attribute in attributes.items()}
        sources.append({"name": info.name, "documents": info.documents, "attributes": groups})
    return sources


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"


def _audit_request(options: Mapping[str, Any]) -> AuditRequest:
    """Return a request for an audit; raises InputError with a sentence if it is wrong."""
    with parameter_errors():
        return AuditRequest.model_validate(options)


def _reply(lines: Iterable[str], result: BaseModel, passages: list[str]) -> ToolResult:
    """Return the text for a model, and the result for programs, with the same passages."""
    content = result.model_dump(mode="json", exclude=_LONG)
    return _content(lines, {**content, "passages": passages})


def _content(lines: Iterable[str], content: dict[str, Any]) -> ToolResult:
    return ToolResult("\n".join(lines), structured_content=_without_none(content))


def _without_none(value: Any) -> Any:
    """Leave out the members of objects that are None, at any depth."""
    if isinstance(value, list):
        return [*map(_without_none, value)]
    if not isinstance(value, dict):
        return value
    return {name: _without_none(member) for name, member in value.items() if member is not None}


def detail_of(problem: Mapping[str, Any]) -> str:
    """Return the sentence of a problem document, as a caller of tools can follow it."""
    return str(problem["detail"]).replace("GET /v1/indexes", "list_sources")
