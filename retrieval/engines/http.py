"""Any search endpoint that returns JSON, as an engine.

We do not trust its responses: they are bounded in bytes and time, no redirect is followed, and no
cookie is kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Sequence
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
"""How many hits of the sample query the check looks at."""


def _log_without_parameters(record: logging.LogRecord) -> bool:
    """Remove the parameters of requests from httpx's log, because they may contain keys."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_without_query, record.args))
    return True


def _without_query(argument: object) -> object:
    """Return an address of httpx's without its parameters, and anything else as it is."""
    if hasattr(argument, "copy_with"):
        return argument.copy_with(query=None)
    return argument


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
        location = _without_parameters(source.url)
        info = EngineInfo(
            name=source.name,
            engine="http",
            documents=None,
            location=location,
            source=str(source.folder),
            fingerprint=source.fingerprint,
        )
        super().__init__(info, labels, "http")
        self.source = source
        self._subject = f"The endpoint {location} of the source '{source.name}'"
        self._headers = credentials.request_headers()
        self._certificates = credentials.trusted() or True
        self._limits = RequestLimits(source.concurrency, source.requests_per_second)
        self._clients: PerLoop[httpx.AsyncClient] = PerLoop()

        self._find_hits = self._finder("hits", source.hits, _list)
        self._id = self._finder("id", source.id, identifier)
        self._score = self._finder("score", source.score, _number) if source.score else None
        # Without an expression, a literal finds the empty text.
        self._title = self._finder("title", source.title or "''", _text)
        self._text = self._finder("text", source.text or "''", _text)
        self._fields = {}
        for attribute in labels.field_attributes:
            self._fields[attribute.field] = self._finder(attribute.name, attribute.field)
        if source.link:
            self._fields[source.link] = self._finder("link", source.link)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        client = self._clients.pop()
        if client:
            await client.aclose()

    async def _answer(self, text: str, n: int) -> ScoredDocuments:
        body = self.source.body and fill_template(self.source.body, text, n)
        url = _filled_url(self.source, text, n)
        try:
            content = await with_retries(partial(self._request, url, body))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._our_error(error) from None
        return await asyncio.to_thread(self._read, content)

    async def _request(self, url: str, body: Any) -> bytes:
        """Send a request, and return the content of the response."""
        seconds = self.source.timeout
        content = bytearray()
        try:
            async with (
                self._limits,
                asyncio.timeout(seconds),
                self._client().stream(self.source.method, url, json=body) as response,
            ):
                response.raise_for_status()
                async for part in response.aiter_raw():  # Unpacked, it could be gigabytes.
                    content += part
                    self._check_size(content)
        except TimeoutError:
            # We do not retry: the user has waited long enough.
            raise IndexUnavailableError(
                f"{self._subject} gave no complete answer within {seconds:g} s; try again later, "
                "or raise 'timeout' in the source."
            ) from None
        return bytes(content)

    def _check_size(self, content: bytearray) -> None:
        limit = self.source.max_bytes
        if len(content) > limit:
            raise IndexUnavailableError(
                f"{self._subject} sent more than {limit:,} bytes; make it send less, or raise "
                "'max_bytes' in the source."
            )

    def _our_error(self, error: Exception) -> FairqrError:
        """Return our error for one of the client, whose text may quote a header, and a secret."""
        if isinstance(error, httpx.HTTPStatusError):
            return self._error_of_status(error.response)
        if isinstance(error, httpx.ConnectError):
            reason = one_line(error, 150)
            problem = f"cannot be reached ({reason}); start it, or check its 'url'"
        else:
            problem = f"broke off the connection ({type(error).__name__}); try again later"
        return IndexUnavailableError(f"{self._subject} {problem}.")

    def _error_of_status(self, response: httpx.Response) -> FairqrError:
        """Return our error for a response that is no success."""
        status = response.status_code
        kind: type[FairqrError] = IndexUnavailableError
        if status in (401, 403):
            problem = f"refused access ({status}); set 'credentials' to an entry that it accepts"
        elif status == 429 or status >= 500:
            problem = f"answered {status} on every attempt; try again later"
        elif response.has_redirect_location:
            kind = SourceError
            target = one_line(_without_parameters(response.headers["location"]), 200)
            problem = f"redirects to {target}, which we do not follow; if you trust it, set 'url'"
        else:
            kind = SourceError
            problem = f"answered {status}; correct 'url', 'method' or 'body'"
        return kind(f"{self._subject} {problem}.")

    def _client(self) -> httpx.AsyncClient:
        """Return the client of the running event loop."""
        client = self._clients.get()
        if client:
            return client
        headers = {
            "User-Agent": "fairqr",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            **self._headers,
        }
        client = httpx.AsyncClient(
            headers=headers,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            follow_redirects=False,
            limits=httpx.Limits(max_connections=self.source.concurrency),
            timeout=None,  # noqa: S113 - the whole request has a limit
            verify=self._certificates,
        )
        return self._clients.setdefault(client)

    def _read(self, content: bytes) -> ScoredDocuments:
        """Return the hits in a response, in its order; labels and links are fields."""
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{self._subject} answered no valid JSON ({one_line(error, 100)}); correct 'url' "
                "and 'body', or ask its operator."
            ) from None

        documents: dict[str, Document] = {}
        scores: list[float] = []
        for rank, hit in enumerate(self._find_hits(data, "the answer"), 1):
            subject = f"hit {rank}"
            id_ = self._id(hit, subject)
            if id_ in documents:
                raise self._error(f"'id: {self.source.id}' gives two hits the id '{id_}'")
            fields = {name: find(hit, subject) for name, find in self._fields.items()}
            title = self._title(hit, subject)
            text = self._text(hit, subject)
            documents[id_] = Document(id_, title, text, fields)
            scores.append(self._score(hit, subject) if self._score else 1 / rank)
        return ScoredDocuments([*documents.values()], scores)

    def _finder(
        self, name: str, expression: str, convert: Callable[[Any], Any] | None = None
    ) -> Find:
        """Return what finds a part of a response.

        Args:
            name: The entry of the source with the expression, for messages.
            expression: JMESPath.
            convert: Checks and converts what it finds; may raise ValueError.

        Raises:
            SourceError: The expression is not JMESPath.
        """
        jmespath = library("jmespath", f"The source '{self.name}'", "http", SourceError)
        try:
            compiled = jmespath.compile(expression)
        except ValueError as error:
            reason = one_line(str(error).partition("\n")[0], 150).rstrip(":. ")
            raise self._error(f"'{name}: {expression}' is not JMESPath ({reason})") from None

        def find(data: Any, subject: str) -> Any:
            try:
                value = compiled.search(data)
                return convert(value) if convert else value
            except (ValueError, ArithmeticError) as error:
                raise self._error(
                    f"'{name}: {expression}' fails on {subject}, which has {_keys_of(data)}: "
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
    credentials = Credentials()
    if source.credentials:
        credentials = credentials_for(source.credentials, source.url)
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

    if documents:
        remarks = _remarks_on_expressions(source, documents)
    else:
        remarks = ["The sample query found nothing; set 'sample' to a query that finds something."]
    address = urlsplit(source.url)
    is_unencrypted = address.scheme == "http" and address.hostname not in LOOPBACK
    if source.credentials and is_unencrypted:
        remarks.append("The credentials are sent unencrypted; use an address with https.")
    attributes = engine.labels.reports(engine.labels.in_fields(documents), hits.ids)
    return await report_on(engine, attributes, sample, hits, remarks)


def _remarks_on_expressions(source: HttpSource, documents: Sequence[Document]) -> list[str]:
    """Return a remark on each expression that finds nothing in any hit."""
    values: dict[str, list[Any]] = {"title": [], "text": [], "link": []}
    for document in documents:
        values["title"].append(document.title)
        values["text"].append(document.text)
        values["link"].append(document.fields.get(source.link or ""))

    remarks = []
    for name in values:
        expression = getattr(source, name)
        if expression and not any(values[name]):
            remarks.append(f"'{name}: {expression}' finds nothing in the hits; correct it.")
    return remarks


def _without_parameters(url: str) -> str:
    without_fragment = url.partition("#")[0]
    return without_fragment.partition("?")[0]


def _keys_of(data: Any) -> str:
    """Return in words which keys an object of a response has."""
    keys = one_line(", ".join(map(str, data)), 200) if isinstance(data, dict) else ""
    return f"the keys {keys}" if keys else "no keys"


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
    """Return a list of hits, and refuse anything else."""
    if not isinstance(value, list):
        _refuse(value, "a list of hits")
    return value


def _number(value: Any) -> float:
    """Return a finite number, and refuse anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        _refuse(value, "a number")
    return float(value)


def _text(value: Any) -> str:
    """Return a text; an endpoint may omit it, or return a list of paragraphs."""
    if value is None:
        return ""
    paragraphs = value if isinstance(value, list) else [value]
    if not all(isinstance(paragraph, str | int | float) for paragraph in paragraphs):
        _refuse(value, "a text")
    return sendable("\n".join(map(str, paragraphs)))


def _refuse(value: Any, expected: str) -> NoReturn:
    raise ValueError(f"it finds {one_line(json.dumps(value), 40)}, but must find {expected}")
