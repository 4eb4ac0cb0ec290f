"""Talking to a server of Elasticsearch or OpenSearch through its official client.

The clients choose among nodes and repeat requests that a node failed, as their makers made them. We
add what they lack: the wait for a busy server, limits on how much we ask, and errors in sentences.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from elastic_transport import AiohttpHttpNode, HttpHeaders, TransportError
from elastic_transport.client_utils import DEFAULT
from elasticsearch import ApiError, AsyncElasticsearch, __version__

from fairqr.base.errors import (
    FairqrError,
    IndexNotFoundError,
    IndexUnavailableError,
    QueryError,
    SourceError,
    UnsupportedError,
    one_line,
)
from fairqr.base.extras import library
from fairqr.base.loops import PerLoop
from fairqr.base.retries import status_of, with_retries
from fairqr.retrieval.engines.limits import RequestLimits
from fairqr.retrieval.sources.credentials import Credentials, credentials_for, default_url
from fairqr.retrieval.sources.source import ElasticsearchSource, OpenSearchSource

Body = dict[str, Any]

CLIENT = __version__[0]
"""The version of Elasticsearch's client that is installed: 8 or 9."""

REDIRECTED = "the server redirects"
"""What a client says after a redirect, which we refuse."""

CUT_OFF = "broke off its reply; try again, or look at what stands between"
PAGE = re.compile(r"<(!doctype html|html|head|body|h1)\b|text/html", re.IGNORECASE)
"""What shows a page, which a login or a proxy sends in place of the server's reply."""

FORM = re.compile("compatible-with=[0-9]+")
"""What names the version in whose form a client asks, in the headers of a request."""

TOO_OLD = "media_type_header_exception"
"""What a server says to a client that asks in the form of a newer version than its own."""
NODE_FAILED = (502, 503, 504)
"""The statuses after which a client tries another node at once; 429 asks us to wait instead."""

UNREACHABLE = {
    REDIRECTED: "redirects to another address, which we do not follow; use the final address",
    "certificate verify failed": "has a certificate that is not trusted; name the file of its CA "
    "as ca_certs in the settings, or renew the certificate",
    "SSL": "does not speak TLS as expected; check whether its url starts with http:// or https://",
    "payload is not completed": CUT_OFF,
    "ConnectionTimeout": "did not answer in time; try again, or raise 'timeout'",
    "": "cannot be reached; start it, or correct its url",
}
"""What to say of a server without an answer, by what the client says of it."""

ACCOUNT = "FAIRQR_ELASTICSEARCH_API_KEY or an entry [credentials.NAME] of the settings file"
REFUSED = {
    401: f"does not accept the credentials, or asks for some; set {ACCOUNT} for this address",
    403: "does not allow this; give the account the privileges 'read' and 'view_index_metadata' on "
    f"the index, or name another account by {ACCOUNT}",
    429: "is overloaded; try again later",
}


class _Node(AiohttpHttpNode):
    """The connections to a node. They follow no redirects, and log no headers and no queries.

    They ask in the form of version 8, which servers of versions 8 and 9 take; client 9 alone asks
    in the form of version 9, which servers of version 8 refuse.
    """

    async def perform_request(  # type: ignore[override]  # the base class is not asynchronous
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: HttpHeaders | None = None,
        request_timeout: Any = DEFAULT,
    ) -> Any:
        """Send a request, in the form of version 8."""
        if headers is not None:
            changed = {
                name: FORM.sub("compatible-with=8", value) for name, value in headers.items()
            }
            headers = HttpHeaders(changed)
        return await super().perform_request(method, target, body, headers, request_timeout)

    def _log_request(self, *_: Any, **__: Any) -> None:
        """Do nothing: the client would log all headers except one."""

    def _create_aiohttp_session(self) -> None:
        super()._create_aiohttp_session()
        _refuse_redirects(self.session)


class AnotherProductError(IndexUnavailableError):
    """The server is a different product than expected."""


class BusyPartError(Exception):
    """A part of a response may succeed later; its status makes us ask again."""

    def __init__(self, part: Mapping[str, Any]) -> None:
        super().__init__()
        self.status_code = int(part["status"])
        self.body = part


class SearchServer:
    """A server, with one client for each event loop, since a client cannot leave its loop.

    Close it in each loop that used it. A client that the user gave is used as it is, in the loop
    that first asks, and stays open.
    """

    def __init__(self, source: ElasticsearchSource) -> None:
        """Take the server that a source describes.

        Raises:
            SourceError: Neither the source nor a variable names a server.
            ConfigError: The credentials may not be sent there.
            UnsupportedError: The client of OpenSearch is not installed.
        """
        self.product = "OpenSearch" if isinstance(source, OpenSearchSource) else "Elasticsearch"
        self._source = source
        self._clients: PerLoop[Any] = PerLoop()
        # The loop that a client of the user's works in.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limits = RequestLimits(source.concurrency, source.requests_per_second)
        self._errors: tuple[type[Exception], ...] = (BusyPartError, ApiError, TransportError)
        if self.product == "OpenSearch":
            self._errors = (BusyPartError, _opensearch().OpenSearchException)

        self.url = "the address of the given client"
        self.credentials = Credentials()
        if not source.client:
            self._addresses = _addresses_of(source)
            self.url = self._addresses[0]
            if source.cloud_id:
                self.url = source.cloud_id.partition(":")[0]
            self.credentials = _credentials_for_all(source.credentials, self._addresses)

    async def ask(self, function: str, **arguments: Any) -> Any:
        """Call a function of the client, waiting while the server is busy, and return the response.

        Args:
            function: Its name, such as ``indices.get``; both clients have the same.
            arguments: Its arguments.

        Raises:
            IndexUnavailableError: The server cannot be reached, or refuses the request.
            IndexNotFoundError: The server has no such index.
            QueryError: The query has more words than the server accepts.
            SourceError: The client that the user gave was used in another event loop.
        """
        call = attrgetter(function)(self._client())

        async def attempt() -> Any:
            async with self._limits:
                try:
                    answer = await call(**arguments)
                except self._errors as error:
                    if status_of(error) == 429:
                        raise
                    raise self._our_error(error) from None
            answer = getattr(answer, "body", answer)
            self._check_answer(answer, has_parts=function == "msearch")
            return answer

        try:
            return await with_retries(attempt)
        except self._errors as error:
            raise self._our_error(error) from None

    def _check_answer(self, answer: Any, *, has_parts: bool) -> None:
        """Refuse an answer that is no JSON of this product.

        Raises:
            AnotherProductError: It is something else.
            BusyPartError: A part of it may succeed later.
        """
        if not isinstance(answer, Mapping):
            raise self.another_product()
        parts = answer.get("responses")
        if parts is None and has_parts:
            raise self.another_product()
        for part in parts or ():
            if not isinstance(part, Mapping):
                raise self.another_product()
            if part.get("status") in (429, *NODE_FAILED):
                raise BusyPartError(part)

    async def require_product(self) -> None:
        """Refuse an old Elasticsearch that looks like OpenSearch, as it does not tell its name.

        Raises:
            IndexUnavailableError: It is an Elasticsearch before version 8, or cannot be reached.
        """
        if self.product == "OpenSearch":
            version = (await self.ask("info")).get("version", {})
            if "number" in version and "distribution" not in version:
                raise self.too_old(one_line(version["number"], 20))

    async def version(self) -> str | None:
        """Return the server's version, or None if the account may not see it."""
        try:
            return str((await self.ask("info"))["version"]["number"])
        except (FairqrError, KeyError, TypeError):
            return None

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        client = self._clients.pop()
        if client:
            await client.close()

    def _client(self) -> Any:
        """Return the client of the running event loop."""
        if self._source.client is None:
            return self._clients.get() or self._clients.setdefault(self._new_client())
        running = asyncio.get_running_loop()
        self._loop = self._loop or running
        if self._loop is not running:
            raise SourceError(
                "A client of yours works in one event loop only, and another one used it first; "
                "open the engine again here with a new client, or give 'url' and 'credentials'."
            )
        return self._source.client

    def _new_client(self) -> Any:
        """Make a client for the running event loop."""
        timeout = self._source.timeout
        options: dict[str, Any] = {"headers": self.credentials.request_headers()}
        if self._source.cloud_id:
            options["cloud_id"] = self._source.cloud_id
        else:
            options["hosts"] = list(map(_with_port, self._addresses))
        trusted = None if self.url.startswith("http:") else self.credentials.trusted()
        if trusted:
            options["ssl_context"] = trusted
        try:
            if self.product == "OpenSearch":
                return _opensearch_client(timeout=timeout, **options)
            options |= {"node_class": _Node, "retry_on_status": NODE_FAILED}
            return AsyncElasticsearch(request_timeout=timeout, **options)
        except ValueError as error:
            reason = one_line(error, 100)
            raise SourceError(
                f"The server {self.url} cannot be used ({reason}); correct url or cloud_id."
            ) from None

    def another_product(self) -> FairqrError:
        """Return the error for a server that is not the product named in the source."""
        return AnotherProductError(
            f"The server at {self.url} is not {self.product}; correct its url, or its engine."
        )

    def too_old(self, version: str) -> FairqrError:
        """Return the error for a server of an Elasticsearch before version 8."""
        return IndexUnavailableError(
            f"The server at {self.url} is Elasticsearch {version}; upgrade it to 8 or later."
        )

    def too_new(self) -> FairqrError:
        """Return the error for a client of the user's that the server finds too new."""
        return IndexUnavailableError(
            f"Your client is Elasticsearch's version {CLIENT}, whose requests the older server "
            "refuses; give its url in place of the client, or a client of the server's version."
        )

    def no_index(self, index: object) -> FairqrError:
        """Return the error for an index that does not exist."""
        return IndexNotFoundError(
            f"There is no index '{one_line(index, 100)}' at {self.url}; correct 'index'."
        )

    def _our_error(self, error: Any) -> FairqrError:
        """Return our error for an error of a client; it quotes neither headers nor the query."""
        status = status_of(error)
        kind = type(error).__name__
        is_unreadable = "Serialization" in kind
        if status is None and not is_unreadable:
            return self._unreachable(f"{kind} {error}")

        body = getattr(error, "body", None) or getattr(error, "info", None)
        code = int(status or 0)
        if code < 500 and _is_page(body, error):
            return self._unavailable(
                "sends a page of HTML; correct its url, or look at what stands before it"
            )
        if is_unreadable:
            return self._unavailable(CUT_OFF)
        says_why = isinstance(body, Mapping) and "error" in body
        is_refused = code in REFUSED or code >= 500
        if says_why or is_refused:
            return self.refusal(code, body)
        return self.another_product()

    def _unreachable(self, text: str) -> FairqrError:
        """Return the error for a server that did not answer, by what the client says of it."""
        problem = next(UNREACHABLE[sign] for sign in UNREACHABLE if sign in text)
        return self._unavailable(problem)

    def _unavailable(self, problem: str) -> FairqrError:
        return IndexUnavailableError(f"{self.product} at {self.url} {problem}.")

    def refusal(self, status: int, body: Any) -> FairqrError:
        """Return the error for a response, or a part of one, that is not a success."""
        error = body.get("error") if isinstance(body, Mapping) else None
        if not isinstance(error, Mapping):
            error = {"reason": error}
        kind = str(error.get("type"))
        index = error.get("index", "that is named")
        if kind == "index_not_found_exception":
            return self.no_index(index)
        if kind == "index_closed_exception":
            return IndexUnavailableError(
                f"The index '{one_line(index, 100)}' is closed; open it, or name only open ones in "
                "'index'."
            )
        if kind == TOO_OLD:
            return self.too_new() if self._source.client else self.too_old("7")
        if "maxClauseCount" in str(error) or "too_many" in kind:
            return QueryError(f"The query has more words than {self.product} accepts; shorten it.")

        problem = REFUSED.get(status)
        if problem is None or kind == "cluster_block_exception":
            reason = one_line(_reasons_in(error), 300)
            hint = "look into its log, and try again" if status >= 500 else "correct the source"
            problem = f"does not do this ({reason}); {hint}"
        return self._unavailable(f"{problem} (status {status})")


def _addresses_of(source: ElasticsearchSource) -> list[str]:
    """Return the addresses of a source's server, or the id of its deployment.

    Raises:
        SourceError: Neither the source nor a variable names a server.
    """
    address = source.cloud_id or source.url or default_url()
    if address is None:
        raise SourceError("No server is named; give its url, or set FAIRQR_ELASTICSEARCH_URL.")
    return [address] if isinstance(address, str) else [*address]


def _credentials_for_all(name: str | None, addresses: Sequence[str]) -> Credentials:
    """Return the credentials that may be sent to all nodes, since they share one client.

    Raises:
        ConfigError: The entry of that name may not be sent there.
    """
    allowed = [credentials_for(name, address) for address in addresses]
    is_same = all(credentials == allowed[0] for credentials in allowed)
    return allowed[0] if is_same else Credentials()


def _is_page(body: Any, error: Any) -> bool:
    """Return whether a page came in place of the server's reply."""
    return not isinstance(body, Mapping) and PAGE.search(f"{body} {error}") is not None


def _reasons_in(error: Mapping[str, Any]) -> str:
    """Return why a server does not do something, as it says it."""
    root_cause = (error.get("root_cause") or [error])[0]
    reasons = []
    for cause in (root_cause, error.get("caused_by")):
        if isinstance(cause, Mapping) and cause.get("reason"):
            reasons.append(str(cause["reason"]))
    return ": ".join(reasons) or "no reason given"


def _with_port(url: str) -> str:
    """Return an address with the port that it means, which the client of Elasticsearch needs."""
    parts = urlsplit(url)
    if parts.port:
        return parts.geturl()
    port = 443 if parts.scheme == "https" else 80
    return parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{port}").geturl()


def _refuse_redirects(session: aiohttp.ClientSession | None) -> None:
    """Make a session fail on a redirect: keys may only go to the configured address."""

    async def refuse(*_: object) -> None:
        raise aiohttp.ClientError(REDIRECTED)

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    trace.freeze()
    if session is not None:
        session.trace_configs.append(trace)


def _opensearch() -> Any:
    return library("opensearchpy", "OpenSearch", "opensearch", UnsupportedError)


def _opensearch_client(**options: Any) -> Any:
    package = _opensearch()

    class NodeConnection(package.AIOHttpConnection):  # type: ignore[misc, name-defined]
        """The connections to a node, which follow no redirects."""

        async def _create_aiohttp_session(self) -> None:
            await super()._create_aiohttp_session()
            _refuse_redirects(self.session)

    return package.AsyncOpenSearch(connection_class=NodeConnection, **options)
