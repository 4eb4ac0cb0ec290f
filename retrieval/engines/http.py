"""Any search endpoint that returns JSON, as an engine.

We do not trust its responses: they are bounded in bytes and time, no redirect is followed, and no
cookie is kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import httpx

from fairqr.base.errors import (
    FairqrError,
    IndexUnavailableError,
    QueryError,
    SourceError,
    one_line,
)
from fairqr.base.extras import library
from fairqr.base.loops import PerLoop
from fairqr.base.retries import with_retries
from fairqr.retrieval.engines.engine import EngineInfo, Query
from fairqr.retrieval.engines.limits import RequestLimits
from fairqr.retrieval.engines.report import SourceReport, report_on
from fairqr.retrieval.engines.request_template import QUERY, SIZE, fill_template
from fairqr.retrieval.engines.search_only import ScoredDocuments, SearchOnlyEngine
from fairqr.retrieval.sources.credentials import Credentials, credentials_for
from fairqr.retrieval.sources.documents import Document, identifier
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import HttpSource
from fairqr.retrieval.texts.words import sendable

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SAMPLE_HITS = 100


def _log_without_parameters(record: logging.LogRecord) -> bool:
    """Remove the parameters of requests from httpx's log, because they may contain keys."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            arg.copy_with(query=None) if hasattr(arg, "copy_with") else arg for arg in record.args
        )
    return True


logging.getLogger("httpx").addFilter(_log_without_parameters)


Find = Callable[[Any, str], Any]
"""Finds a part of a response; the second argument says where, for messages."""


class HttpEngine(SearchOnlyEngine):
    """The endpoint of a source; see :func:`open_http`.

    JMESPath expressions of the source find the hits in a response, and the parts of each hit.

    Raises:
        SourceError: An expression is not valid JMESPath, or jmespath is not installed.
    """

    def __init__(self, source: HttpSource, labels: LabelReader, credentials: Credentials) -> None:
        location, fingerprint = _without_parameters(source.url), source.fingerprint
        info = EngineInfo(source.name, "http", None, location, str(source.folder), fingerprint)
        super().__init__(info, labels, "http")
        self.source = source
        self._headers = credentials.request_headers()
        self._certificates = credentials.trusted() or True
        self._limits = RequestLimits(source.concurrency, source.requests_per_second)
        self._clients: PerLoop[httpx.AsyncClient] = PerLoop()
        self._shown = f"The endpoint {location} of the source '{source.name}'"
        self._find_hits = self._finder("hits", source.hits, _list)
        self._id = self._finder("id", source.id, identifier)
        self._score = self._finder("score", source.score, _number) if source.score else None
        # Without an expression, a literal finds the empty text.
        self._title = self._finder("title", source.title or "''", _text)
        self._text = self._finder("text", source.text or "''", _text)
        self._fields = {it.field: self._finder(it.name, it.field) for it in labels.field_attributes}
        if source.link:
            self._fields[source.link] = self._finder("link", source.link)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if client := self._clients.pop():
            await client.aclose()

    async def _answer(self, text: str, n: int) -> ScoredDocuments:
        body = self.source.body and fill_template(self.source.body, text, n)
        url = _filled_url(self.source, text, n)
        try:
            answer = await with_retries(partial(self._request, url, body))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._told(error) from None
        return await asyncio.to_thread(self._read, answer)

    async def _request(self, url: str, body: Any) -> bytes:
        seconds, most = self.source.timeout, self.source.max_bytes
        client, answer = self._client(), bytearray()
        try:
            async with (
                self._limits,
                asyncio.timeout(seconds),
                client.stream(self.source.method, url, json=body) as response,
            ):
                response.raise_for_status()
                async for part in response.aiter_raw():  # Unpacked, it could be gigabytes.
                    answer += part
                    if len(answer) > most:
                        raise IndexUnavailableError(
                            f"{self._shown} sent more than {most:,} bytes; make it send less, or "
                            "raise 'max_bytes' in the source."
                        )
        except TimeoutError:
            # We do not retry: the user has waited long enough.
            raise IndexUnavailableError(
                f"{self._shown} gave no complete answer within {seconds:g} s; try again later, or "
                "raise 'timeout' in the source."
            ) from None
        return bytes(answer)

    def _told(self, error: Exception) -> FairqrError:
        """Return our error for one of the client, whose text may quote a header, and a secret."""
        kind: type[FairqrError] = IndexUnavailableError
        if isinstance(error, httpx.ConnectError):
            said = f"cannot be reached ({one_line(error, 150)}); start it, or check its 'url'"
        elif not isinstance(error, httpx.HTTPStatusError):
            said = f"broke off the connection ({type(error).__name__}); try again later"
        elif (status := error.response.status_code) in (401, 403):
            said = f"refused access ({status}); set 'credentials' to an entry that it accepts"
        elif status == 429 or status >= 500:
            said = f"answered {status} on every attempt; try again later"
        else:
            kind, said = SourceError, f"answered {status}; correct 'url', 'method' or 'body'"
            if error.response.has_redirect_location:
                target = one_line(_without_parameters(error.response.headers["location"]), 200)
                said = f"redirects to {target}, which we do not follow; if you trust it, set 'url'"
        return kind(f"{self._shown} {said}.")

    def _client(self) -> httpx.AsyncClient:
        if client := self._clients.get():
            return client
        plain = {"User-Agent": "fairqr", "Accept": "application/json"}
        client = httpx.AsyncClient(
            headers={**plain, "Accept-Encoding": "identity", **self._headers},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            follow_redirects=False,
            limits=httpx.Limits(max_connections=self.source.concurrency),
            timeout=None,  # noqa: S113 - the whole request has a limit
            verify=self._certificates,
        )
        return self._clients.setdefault(client)

    def _read(self, answer: bytes) -> ScoredDocuments:
        """Return the hits in a response, in its order; labels and links are fields."""
        try:
            data = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{self._shown} answered no valid JSON ({one_line(error, 100)}); correct 'url' and "
                "'body', or ask its operator."
            ) from None
        documents: dict[str, Document] = {}
        scores: list[float] = []
        for rank, hit in enumerate(self._find_hits(data, "the answer"), 1):
            where = f"hit {rank}"
            id_ = self._id(hit, where)
            if id_ in documents:
                raise self._error(f"'id: {self.source.id}' gives two hits the id '{id_}'")
            fields = {field: find(hit, where) for field, find in self._fields.items()}
            documents[id_] = Document(id_, self._title(hit, where), self._text(hit, where), fields)
            scores.append(self._score(hit, where) if self._score else 1 / rank)
        return ScoredDocuments([*documents.values()], scores)

    def _finder(
        self, name: str, expression: str, convert: Callable[[Any], Any] | None = None
    ) -> Find:
        jmespath = library("jmespath", f"The source '{self.name}'", "http", SourceError)
        try:
            compiled = jmespath.compile(expression)
        except ValueError as error:
            reason = one_line(str(error).partition("\n")[0], 150).rstrip(":. ")
            raise self._error(f"'{name}: {expression}' is not JMESPath ({reason})") from None

        def find(data: Any, where: str) -> Any:
            try:
                found = compiled.search(data)
                return convert(found) if convert else found
            except (ValueError, ArithmeticError) as error:
                keys = one_line(", ".join(map(str, data)), 200) if isinstance(data, dict) else ""
                held = f"the keys {keys}" if keys else "no keys"
                raise self._error(
                    f"'{name}: {expression}' fails on {where}, which has {held}: "
                    f"{one_line(error, 150)}"
                ) from None

        return find

    def _error(self, problem: str) -> SourceError:
        return SourceError(f"In the source '{self.name}', {problem}; correct it.")


async def open_http(source: HttpSource, labels: LabelReader) -> HttpEngine:
    """Open an endpoint; nothing is sent yet.

    Raises:
        ConfigError: The credentials are missing, or may not be sent to this address.
        SourceError: An expression is not valid JMESPath.
    """
    # Without a name we send no credentials: those in variables belong to other servers.
    named = source.credentials
    credentials = credentials_for(named, source.url) if named else Credentials()
    return HttpEngine(source, labels, credentials)


async def check(engine: HttpEngine) -> SourceReport:
    """Send a sample query, and report what it finds and its labels.

    Raises:
        SourceError: None of ten or more hits has a label in a group.
    """
    source = engine.source
    sample = source.sample or "new"
    (hits,) = await engine.search([Query(sample, SAMPLE_HITS)])
    documents = await engine.documents(hits.ids)
    remarks = [
        f"'{name}: {expression}' finds nothing in the hits; correct it."
        for name in ("title", "text", "link")
        if (expression := getattr(source, name))
        and not any(getattr(it, name, it.fields.get(expression)) for it in documents)
    ]
    if not documents:
        remarks = ["The sample query found nothing; set 'sample' to a query that finds something."]
    address = urlsplit(source.url)
    if source.credentials and address.scheme == "http" and address.hostname not in LOOPBACK:
        remarks.append("The credentials are sent unencrypted; use an address with https.")
    attributes = engine.labels.reports(engine.labels.in_fields(documents), hits.ids)
    return await report_on(engine, attributes, sample, hits, remarks)


def _without_parameters(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


def _filled_url(source: HttpSource, text: str, n: int) -> str:
    """Return the address with the values percent-encoded."""
    filled = source.url.replace(SIZE, str(n)).replace(QUERY, quote(text, safe=""))
    # Such a part of a path means another folder, and dots cannot be encoded.
    if not {".", ".."}.isdisjoint(urlsplit(filled).path.split("/")):
        raise QueryError(
            f"The source '{source.name}' puts the query into the path of its address, where "
            f"'{one_line(text, 60)}' is not allowed; search for other words."
        )
    return filled


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else _refuse(value, "a list of hits")


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else _refuse(value, "a number")


def _text(value: Any) -> str:
    """Return a text; an endpoint may omit it, or return a list of paragraphs."""
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str | int | float) for text in texts):
        _refuse(value, "a text")
    return sendable("\n".join(map(str, texts)))


def _refuse(value: Any, wanted: str) -> NoReturn:
    raise ValueError(f"it finds {one_line(json.dumps(value), 40)}, but must find {wanted}")
