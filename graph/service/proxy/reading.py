"""Reads the searches of a request: how each is re-ranked, or why it passes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from fairqr.graph.service.proxy.cluster import addressed, parameters_of
from fairqr.graph.service.proxy.first_pages import FirstPages
from fairqr.graph.service.proxy.json_text import parse_strictly
from fairqr.graph.service.proxy.pages import (
    PassingPage,
    page_in_own_order,
    page_of,
    reaches,
    unpacked,
)
from fairqr.graph.service.proxy.requests import ProxiedSearch, named_by_client, planned
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.graph.service.proxy.worker import Worker

SEARCH = re.compile(
    r"(?:/(?P<index>[^/]+))?/(?P<kind>_search|_msearch|_async_search)(?P<template>/template)?/?"
)
"""The paths of requests for hits."""

JSON = ("application/json", "application/vnd.elasticsearch+json")
"""What the kind of a body in an address may be."""

NO = "false"
"""What a parameter says that is not set."""

MANY = 50
"""More searches in one request are not re-ranked."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request whose searches were read.

    Attributes:
        request: The request; in place of a template, one for the search that it stands for.
        lines: The lines of its body, as JSON.
        searches: Those that can be re-ranked, or are looked at behind their replies.
        pages: Others of our indexes, which pass.
        reasons: Why searches pass, those of other indexes included.
        id: Names this request, and in the log its first search.
    """

    request: Request
    lines: list[Any]
    searches: list[ProxiedSearch] = field(default_factory=list)
    pages: list[PassingPage] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters in its address."""
        return dict(parameters_of(self.request))

    def id_of(self, line: int) -> str:
        """Return the id of the search in a line of the body: from the second on with its number."""
        number = line // 2
        return f"{self.id}-{number + 1}" if number else self.id

    def passing(self, reason: str) -> ParsedRequest:
        """Return the same request where none of its searches is re-ranked, for this reason."""
        pages = [page_in_own_order(search, reason) for search in self.searches]
        return replace(
            self,
            searches=[],
            pages=[*self.pages, *pages],
            reasons=[reason, *self.reasons],
        )

    def with_windows(self) -> list[Any]:
        """Return the lines of the body with whole windows in place of pages."""
        lines = [*self.lines]
        for search in self.searches:
            lines[search.line] = search.body
        return lines


@dataclass(frozen=True, slots=True)
class _ClientSearch:
    """A search as a client asks for it.

    Attributes:
        body: Its body, as JSON.
        line: The line of the request's body that has it.
        name: The index, as the client names it; None if it names none.
        parameters: The parameters in the address and in the line before.
    """

    body: Any
    line: int
    name: str | None
    parameters: Mapping[str, Any]


class Reader:
    """Reads what requests ask for.

    Args:
        settings: Which indexes are re-ranked.
        workers: Re-rank, by index.
        first_pages: In which order first pages went out.
    """

    def __init__(
        self, settings: ProxySettings, workers: Mapping[str, Worker], first_pages: FirstPages
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._first_pages = first_pages

    def reached(self, name: str | None) -> list[str]:
        """Return the indexes of the settings that a name reaches: a list, a pattern, an alias."""
        if name in self._settings.indexes:
            return [name]
        indexes: list[str] = []
        for index, worker in self._workers.items():
            if reaches(name, {index, *worker.names}):
                indexes.append(index)
        return indexes

    def perhaps_reached(self, name: str | None) -> list[str]:
        """Return the indexes that a name may reach as well, since their names are not known yet."""
        reached = self.reached(name)
        if name in reached:
            return []
        unnamed = [index for index, worker in self._workers.items() if not worker.names]
        return [index for index in unnamed if index not in reached]

    def unread(self, name: str | None, reason: str) -> Iterator[PassingPage]:
        """Yield what stands for a request whose body is not read, for each index."""
        return self._pages(_ClientSearch({}, 0, name, {}), reason)

    def body_of(
        self, request: Request, path: re.Match[str], body: bytes
    ) -> tuple[Request, list[Any]]:
        """Return a request and the lines of its body, as JSON, which may be in its address.

        Args:
            request: The request.
            path: Its path, matched by :data:`SEARCH`.
            body: Its body, as it came.

        Raises:
            ValueError: The body is no JSON, or too long.
        """
        packing = request.headers.get("content-encoding", "")
        text = unpacked(body, packing, self._settings.body).strip()
        if path["kind"] == "_msearch":
            return request, [parse_strictly(line or b"{}") for line in text.split(b"\n")]
        if not body and "source" in dict(parameters_of(request)):
            request, text = _body_in_address(request)
        return request, [parse_strictly(text or b"{}")]

    def read(
        self, request: Request, path: re.Match[str], lines: list[Any], reason: str = ""
    ) -> ParsedRequest:
        """Return a request with its searches.

        Args:
            request: The request.
            path: Its path, matched by :data:`SEARCH`.
            lines: The lines of its body.
            reason: Why all pass, if that is known already.
        """
        parsed = ParsedRequest(request, lines)
        in_address = parsed.parameters
        has_heads = path["kind"] == "_msearch"
        heads: Sequence[Any] = lines[::2] if has_heads else [{}]
        if not reason:
            reason = _reason_to_pass(path, in_address, len(heads))
        for number, head in enumerate(heads):
            name = head.get("index", path["index"])
            if isinstance(name, list):
                name = ",".join(name)
            line = 2 * number + 1 if has_heads else 0
            search = _ClientSearch(lines[line], line, name, {**in_address, **head})
            self._add_to(parsed, search, reason)
        return parsed

    def _add_to(self, parsed: ParsedRequest, search: _ClientSearch, reason: str) -> None:
        """Add how to re-rank a search to its request, or why it passes.

        Args:
            parsed: The request.
            search: The search.
            reason: Why it passes, if that is known already.
        """
        id_ = named_by_client(search.body) or parsed.id_of(search.line)
        plan = reason or self._planned(search)
        if isinstance(plan, ProxiedSearch):
            parsed.searches.append(replace(plan, id=id_))
            return
        parsed.reasons.append(plan if self.reached(search.name) else "index")
        for page in self._pages(search, plan):
            parsed.pages.append(replace(page, id=id_))

    def _pages(self, search: _ClientSearch, reason: str) -> Iterator[PassingPage]:
        """Yield what is known of a search that passes, for each index that it may reach."""
        for index in self.reached(search.name):
            yield self._page(search, index, reason)
        for index in self.perhaps_reached(search.name):
            page = self._page(search, index, reason)
            yield replace(page, name=search.name or "")

    def _page(self, search: _ClientSearch, index: str, reason: str) -> PassingPage:
        settings = self._settings.indexes[index]
        return page_of(search.body, search.parameters, settings, index, search.line, reason)

    def _planned(self, search: _ClientSearch) -> ProxiedSearch | str:
        """Return how to re-rank a search, or why it passes."""
        name = search.name
        if name is None or name not in self._settings.indexes:
            return "name"
        index = self._settings.indexes[name]
        worker = self._workers[name]
        labels = worker.label_fields
        plan = planned(search.body, search.parameters, index, name, search.line, labels)
        if not isinstance(plan, ProxiedSearch) or not plan.fair:
            return plan

        if self._first_pages.passed(plan):
            return "from"
        if self._first_pages.were_fair([plan]):
            return plan  # its list is there
        refusal = worker.refusal(self._settings.within)
        if refusal:
            self._first_pages.add(plan, refusal)
            return refusal
        return plan


def _body_in_address(request: Request) -> tuple[Request, bytes]:
    """Return a request without the body in its address, and that body.

    Raises:
        ValueError: Clusters would not read it as JSON.
    """
    parameters = dict(parameters_of(request))
    kind, _, _ = parameters.pop("source_content_type", "").partition(";")
    if kind not in JSON:
        raise ValueError("no JSON")
    body = parameters.pop("source")
    path = request.scope["raw_path"].decode("latin-1")
    return addressed(request, path, urlencode(parameters).encode()), body.encode()


def _is_kept(parameters: Mapping[str, str]) -> bool:
    """Return whether a client comes back for what an asynchronous search found."""
    stays_after_reply = parameters.get("keep_on_completion", NO) != NO
    wait = parameters.get("wait_for_completion_timeout", "1s")
    return stays_after_reply or wait.startswith("0")


def _reason_to_pass(path: re.Match[str], parameters: Mapping[str, str], count: int) -> str:
    """Return why all searches of a request pass; empty if they do not."""
    if path["kind"] == "_async_search" and _is_kept(parameters):
        return "async"  # the cluster would keep the whole window for the page
    return "many" if count > MANY else ""
