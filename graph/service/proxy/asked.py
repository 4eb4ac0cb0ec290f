"""The searches of a request: how each is re-ranked, or why it passes."""

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
from fairqr.graph.service.proxy.pages import PassingPage, page_of, reaches, unpacked
from fairqr.graph.service.proxy.requests import ProxiedSearch, named_by_client, planned, read_once
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
class Asked:
    """The searches of a request.

    Attributes:
        request: The request; in place of a template, one for the search that it stands for.
        lines: The lines of its body, as JSON.
        searches: Those that can be re-ranked, or are looked at behind their replies.
        pages: Others of our indexes, which pass.
        whys: Why searches pass, those of other indexes included.
        id: Names this request, and in the log its first search.
    """

    request: Request
    lines: list[Any]
    searches: list[ProxiedSearch] = field(default_factory=list)
    pages: list[PassingPage] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def id_of(self, place: int) -> str:
        """Return the id of the search in a line of the body: from the second on with its number."""
        number = place // 2
        return f"{self.id}-{number + 1}" if number else self.id

    def with_windows(self) -> list[Any]:
        """Return the lines of the body with whole windows in place of pages."""
        lines = [*self.lines]
        for search in self.searches:
            lines[search.place] = search.body
        return lines


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
        return [
            index
            for index, worker in self._workers.items()
            if reaches(name, {index, *worker.names})
        ]

    def perhaps_reached(self, name: str | None) -> list[str]:
        """Return the indexes that a name may reach as well, since their names are not known yet."""
        reached = self.reached(name)
        if name in reached:
            return []
        unnamed = [index for index, worker in self._workers.items() if not worker.names]
        return [index for index in unnamed if index not in reached]

    def unread(self, name: str | None, why: str) -> Iterator[PassingPage]:
        """Yield what stands for a request whose body is not read, for each index."""
        return self._pages({}, name, 0, {}, why)

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
            return request, [read_once(line or b"{}") for line in text.split(b"\n")]
        if not body and "source" in dict(parameters_of(request)):
            request, text = _out_of_address(request)
        return request, [read_once(text or b"{}")]

    def read(self, request: Request, path: re.Match[str], lines: list[Any], why: str = "") -> Asked:
        """Return the searches of a request.

        Args:
            request: The request.
            path: Its path, matched by :data:`SEARCH`.
            lines: The lines of its body.
            why: Why all pass, if that is known already.
        """
        asked = Asked(request, lines)
        parameters = dict(parameters_of(request))
        is_alone = path["kind"] != "_msearch"
        heads: Sequence[Any] = [{}] if is_alone else lines[::2]
        why = why or _refused(path, parameters, len(heads))
        for number, head in enumerate(heads):
            given = head.get("index", path["index"])
            name = ",".join(given) if isinstance(given, list) else given
            place = 0 if is_alone else 2 * number + 1
            self._plan(asked, name, place, {**parameters, **head}, why)
        return asked

    def _plan(
        self, asked: Asked, name: str | None, place: int, how: Mapping[str, Any], why: str
    ) -> None:
        """Say how to re-rank a search, or why it passes.

        Args:
            asked: Takes what is said.
            name: The index, as the client names it.
            place: The line of the body that has the search.
            how: The parameters in the address and in the line before.
            why: Why it passes, if that is known already.
        """
        body = asked.lines[place]
        id_ = named_by_client(body) or asked.id_of(place)
        plan = self._planned(body, name, place, how, why)
        if isinstance(plan, ProxiedSearch):
            asked.searches.append(replace(plan, id=id_))
            return
        asked.whys.append(plan if self.reached(name) else "index")
        pages = self._pages(body, name, place, how, plan)
        asked.pages.extend(replace(page, id=id_) for page in pages)

    def _pages(
        self, body: Any, name: str | None, place: int, how: Mapping[str, Any], why: str
    ) -> Iterator[PassingPage]:
        """Yield what is known of a search that passes, for each index that it may reach."""
        indexes = self._settings.indexes
        for index in self.reached(name):
            yield page_of(body, how, indexes[index], index, place, why)
        for index in self.perhaps_reached(name):
            page = page_of(body, how, indexes[index], index, place, why)
            yield replace(page, name=name or "")

    def _planned(
        self, body: Any, name: str | None, place: int, how: Mapping[str, Any], why: str
    ) -> ProxiedSearch | str:
        """Return how to re-rank a search, or why it passes."""
        if why:
            return why
        if name is None or name not in self._settings.indexes:
            return "name"
        worker = self._workers[name]
        index = self._settings.indexes[name]
        plan = planned(body, how, index, name, place, worker.label_fields)
        if not isinstance(plan, ProxiedSearch) or not plan.fair:
            return plan
        if self._first_pages.passed(plan):
            return "from"
        if self._first_pages.were_fair([plan]):
            return plan  # its list is there
        if refusal := worker.refusal(self._settings.within):
            self._first_pages.add(plan, refusal)
            return refusal
        return plan


def _out_of_address(request: Request) -> tuple[Request, bytes]:
    """Return a request without the body in its address, and that body.

    Raises:
        ValueError: It is none that clusters read as JSON.
    """
    parameters = dict(parameters_of(request))
    if parameters.pop("source_content_type", "").partition(";")[0] not in JSON:
        raise ValueError("no JSON")
    body = parameters.pop("source")
    path = request.scope["raw_path"].decode("latin-1")
    return addressed(request, path, urlencode(parameters).encode()), body.encode()


def _is_kept(parameters: Mapping[str, str]) -> bool:
    """Return whether a client comes back for what an asynchronous search found."""
    wait = parameters.get("wait_for_completion_timeout", "1s")
    return parameters.get("keep_on_completion", NO) != NO or wait.startswith("0")


def _refused(path: re.Match[str], parameters: Mapping[str, str], count: int) -> str:
    """Return why all searches of a request pass; empty if they do not."""
    if path["kind"] == "_async_search" and _is_kept(parameters):
        return "async"  # the cluster would keep the whole window for the page
    return "many" if count > MANY else ""
