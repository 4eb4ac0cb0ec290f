"""The searches of a request: how each is re-ranked, or why it passes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from starlette.requests import Request

from fairqr.graph.service.proxy.cluster import parameters_of
from fairqr.graph.service.proxy.pages import Page, page_of, unpacked
from fairqr.graph.service.proxy.requests import Search, planned
from fairqr.graph.service.proxy.settings import ProxySettings
from fairqr.graph.service.proxy.worker import Worker

SEARCH = re.compile(
    r"(?:/(?P<index>[^/]+))?/(?P<kind>_search|_msearch|_async_search)(?P<template>/template)?/?"
)
"""The paths of requests for hits."""

JSON = ("application/json", "application/vnd.elasticsearch+json")
"""What the kind of a body in an address may be."""

MANY = 50
"""More searches in one request are not re-ranked."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The searches of a request.

    Attributes:
        lines: The lines of its body, as JSON.
        searches: Those that can be re-ranked, or are looked at behind their replies.
        pages: Others of our indexes, which pass.
        whys: Why searches pass, those of other indexes included.
    """

    lines: list[Any]
    searches: list[Search] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    whys: list[str] = field(default_factory=list)

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
    """

    def __init__(self, settings: ProxySettings, workers: Mapping[str, Worker]) -> None:
        self._settings = settings
        self._workers = workers

    def reached(self, name: str | None) -> list[str]:
        """Return the indexes of the settings that a name reaches: a list, a pattern, an alias."""
        if name in self._settings.indexes:
            return [name]
        patterns = ["*" if it == "_all" else it for it in (name or "*").split(",")]
        return [
            index
            for index, worker in self._workers.items()
            if any(fnmatchcase(it, own) for own in patterns for it in {index, *worker.names})
        ]

    def unread(self, reached: Sequence[str], why: str) -> Iterator[Page]:
        """Yield what stands for a request whose body is not read, for each index."""
        for index in reached:
            yield page_of({}, {}, self._settings.indexes[index], index, 0, why)

    def read(self, request: Request, path: re.Match[str], body: bytes) -> Asked:
        """Return the searches of a request.

        Args:
            request: The request.
            path: Its path, matched by :data:`SEARCH`.
            body: Its body.

        Raises:
            ValueError: The body is no JSON, or too long.
        """
        packing = request.headers.get("content-encoding", "")
        text = unpacked(body, packing, self._settings.body).strip()
        is_alone = path["kind"] != "_msearch"
        parameters = dict(parameters_of(request))
        if is_alone and not body and "source" in parameters:
            text = _body_in(parameters)
        written = [text] if is_alone else text.split(b"\n")
        asked = Asked([json.loads(it or b"{}", object_pairs_hook=_once) for it in written])
        heads: Sequence[Any] = [{}] if is_alone else asked.lines[::2]
        why = _kind(path, len(heads))
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
        plan = self._planned(body, name, place, how, why)
        if isinstance(plan, Search):
            asked.searches.append(plan)
            return
        reached = self.reached(name)
        asked.whys.append(plan if reached else "index")
        for index in reached:
            own = self._settings.indexes[index]
            asked.pages.append(page_of(body, how, own, index, place, plan))

    def _planned(
        self, body: Any, name: str | None, place: int, how: Mapping[str, Any], why: str
    ) -> Search | str:
        """Return how to re-rank a search, or why it passes."""
        if why:
            return why
        if name is None or name not in self._settings.indexes:
            return "name"
        worker = self._workers[name]
        index = self._settings.indexes[name]
        plan = planned(body, how, index, name, place, worker.label_fields)
        if isinstance(plan, Search) and plan.fair:
            return worker.refusal(self._settings.within) or plan
        return plan


def _body_in(parameters: dict[str, str]) -> bytes:
    """Take the body of a search out of the parameters in its address.

    Raises:
        ValueError: It is none that clusters read as JSON.
    """
    if parameters.pop("source_content_type", "").partition(";")[0] not in JSON:
        raise ValueError("no JSON")
    return parameters.pop("source").encode()


def _kind(path: re.Match[str], count: int) -> str:
    """Return why all searches of a request pass; empty if they do not."""
    if path["template"]:
        return "template"
    if path["kind"] == "_async_search":
        return "async"
    return "many" if count > MANY else ""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, unless it has a member twice, which clusters refuse."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("twice")
    return found
