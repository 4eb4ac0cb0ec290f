"""Talking to an Elasticsearch server: a client for each event loop, retries, and clear errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
from elastic_transport import AiohttpHttpNode, ConnectionTimeout, TlsError, TransportError
from elasticsearch import ApiError, AsyncElasticsearch, JsonSerializer, UnsupportedProductError

from fairqr.base.errors import (
    FairqrError,
    IndexNotFoundError,
    IndexUnavailableError,
    QueryError,
    SourceError,
    one_line,
)
from fairqr.base.loops import PerLoop
from fairqr.base.retries import with_retries
from fairqr.retrieval.engines.elasticsearch.connection import Connection
from fairqr.retrieval.engines.limits import Limits

REDIRECTED = "the server redirects"
PRIVILEGES = "'read' and 'view_index_metadata' on the index"


class _Node(AiohttpHttpNode):
    """The connections to a node. They follow no redirects and log neither headers nor queries."""

    def _log_request(self, *_: Any, **__: Any) -> None:
        """Do nothing: the client would log all headers except one."""

    def _create_aiohttp_session(self) -> None:
        super()._create_aiohttp_session()
        refuse_redirects(self.session)


class _Json(JsonSerializer):
    """Reads JSON. An HTML page that claims to be JSON stays text, so that we keep its status."""

    def json_loads(self, data: bytes) -> Any:
        return data.decode(errors="replace") if data[:1] == b"<" else super().json_loads(data)


def refuse_redirects(session: aiohttp.ClientSession | None) -> None:
    """Make a session fail on a redirect: keys may only go to the configured address."""

    async def refuse(*_: object) -> None:
        raise aiohttp.ClientError(REDIRECTED)

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    trace.freeze()
    if session is not None:
        session.trace_configs.append(trace)


class AnotherProductError(IndexUnavailableError):
    """The server is a different product than expected."""


class BusyServer(Exception):  # noqa: N818 - it leaves this module only as another error
    """Part of a response may succeed later; the status makes us retry it."""

    def __init__(self, status: int, body: Any = None) -> None:
        super().__init__()
        self.status_code, self.body = status, body


class Server:
    """A server, with one client for each event loop, since a client cannot leave its loop.

    Close it in each loop that used it, before that loop ends.
    """

    product: ClassVar[str] = "Elasticsearch"
    versions: ClassVar[str] = " 8 or newer"

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.errors: tuple[type[Exception], ...] = (ApiError, TransportError)
        self._limits = Limits(connection.concurrency, connection.requests_per_second)
        self._clients: PerLoop[Any] = PerLoop()

    @property
    def url(self) -> str:
        """The server's address, without credentials."""
        return self.connection.shown

    @property
    def client(self) -> Any:
        """The client of the running event loop."""
        return self._clients.get() or self._clients.setdefault(self._new_client())

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        judge: Callable[[Any], None] | None = None,
        total: float = math.inf,
    ) -> Any:
        """Send a request, retrying errors that may heal, and return the response.

        Args:
            method: GET or POST.
            path: The path, with quoted names.
            params: The URL parameters.
            body: An object; or several, which are sent one per line.
            judge: Inspects each response, and may raise :class:`BusyServer`.
            total: Start no further attempt after this many seconds.

        Raises:
            IndexUnavailableError: The server cannot be reached, or refuses the request.
            IndexNotFoundError: The server has no such index.
            QueryError: The query has more words than the server accepts.
        """
        client = self.client

        async def attempt() -> Any:
            async with self._limits:
                try:
                    answer = await self._perform(client, method, path, params, body)
                except self.errors as error:
                    # Waiting fixes neither a certificate nor a redirect.
                    if self._is_tls(error) or REDIRECTED in message_of(error):
                        raise self.translated(error) from None
                    raise
            if not isinstance(answer, Mapping):
                raise self.another_product()
            if judge:
                judge(answer)
            return answer

        try:
            return await with_retries(attempt, attempts=self.connection.attempts, total=total)
        except self.errors as error:
            raise self.translated(error) from None
        except BusyServer as error:
            raise self.refusal(error.status_code, error.body) from None

    async def version(self) -> str | None:
        """Return the server's version, or None if the account may not see it."""
        try:
            answer = await self.request("GET", "/")
            return str(answer["version"]["number"])
        except (FairqrError, KeyError, TypeError):
            return None

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if client := self._clients.pop():
            await client.close()

    def _new_client(self) -> AsyncElasticsearch:
        connection = self.connection
        options: dict[str, Any] = {"hosts": [with_port(url) for url in connection.urls]}
        if connection.cloud_id:
            options = {"cloud_id": connection.cloud_id}
        if connection.credentials.ca_certs and not str(connection.shown).startswith("http:"):
            options["ca_certs"] = str(connection.credentials.ca_certs)
        try:
            return AsyncElasticsearch(
                headers=connection.credentials.request_headers(),
                request_timeout=connection.timeout,
                max_retries=0,
                retry_on_timeout=False,
                retry_on_status=(),
                node_class=_Node,
                serializers={_Json.mimetype: _Json()},
                **options,
            )
        except (OSError, ValueError) as error:
            raise self.unusable(error) from None

    async def _perform(
        self, client: Any, method: str, path: str, params: Mapping[str, str] | None, body: Any
    ) -> Any:
        kind = "x-ndjson" if isinstance(body, Sequence) else "json"
        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = f"application/{kind}"
        answer = await client.perform_request(
            method, path, params=params, headers=headers, body=body
        )
        return answer.body

    def _is_tls(self, error: Exception) -> bool:
        return isinstance(error, TlsError)

    def translated(self, error: Exception) -> FairqrError:
        """Return our error for an error of the client; it says what to do."""
        if isinstance(error, UnsupportedProductError):
            return self.another_product()
        if isinstance(error, ApiError):
            if not is_elasticsearch(error.meta.headers) and (
                error.status_code not in (401, 403, 429) and error.status_code < 500
            ):
                return self.another_product()
            return self.refusal(error.status_code, error.body)
        return self.unreachable(
            message_of(error),
            tls=isinstance(error, TlsError),
            slow=isinstance(error, ConnectionTimeout),
        )

    def another_product(self) -> FairqrError:
        """Return the error for a server that is not the product named in the source."""
        return AnotherProductError(
            f"The server at {self.url} is not {self.product}{self.versions}; correct its url, or "
            "name its engine: elasticsearch, opensearch or http."
        )

    def unusable(self, error: Exception) -> FairqrError:
        """Return the error for a client that cannot be created."""
        if self.connection.credentials.ca_certs:
            return SourceError(
                f"The certificates in {self.connection.credentials.ca_certs} cannot be used "
                f"({one_line(error, 100)}); name a PEM file of the CA in ca_certs."
            )
        return SourceError(
            f"The server {self.url} cannot be used ({one_line(error, 100)}); correct url or "
            "cloud_id."
        )

    def unreachable(self, message: str, *, tls: bool, slow: bool) -> FairqrError:
        """Return the error for a server that did not respond."""
        if tls:
            if refused := re.search(r"certificate verify failed:? ?([^(\]]*)", message):
                return IndexUnavailableError(
                    f"The certificate of {self.url} is not trusted ({refused[1].strip()}); name "
                    "the file of its CA as ca_certs in the settings."
                )
            return IndexUnavailableError(
                f"The server at {self.url} does not speak TLS as expected; check whether its url "
                "starts with http:// or https://."
            )
        if REDIRECTED in message:
            return IndexUnavailableError(
                f"The server at {self.url} redirects to another address, which we do not follow; "
                "use the final address."
            )
        if slow:
            return IndexUnavailableError(
                f"{self.product} at {self.url} did not answer any attempt within "
                f"{self.connection.timeout:g} seconds; try again, or raise 'timeout'."
            )
        return IndexUnavailableError(
            f"{self.product} cannot be reached at {self.url}; start it there, or correct its url."
        )

    def refusal(self, status: int, body: Any) -> FairqrError:
        """Return the error for a response that is not a success."""
        here, kind = f"{self.product} at {self.url}", error_type(body)
        if status == 401:
            sent = self.connection.credentials.request_headers()
            wrong = "does not accept the credentials" if sent else "asks for credentials"
            return IndexUnavailableError(
                f"{here} {wrong} (status 401); set {self.connection.remedy}."
            )
        if status == 403 and kind != "cluster_block_exception":
            return IndexUnavailableError(
                f"{here} does not allow this (status 403); give the account the privileges "
                f"{PRIVILEGES}, or name another account in "
                f"{self.connection.remedy}."
            )
        if status == 429:
            return IndexUnavailableError(
                f"{here} is overloaded (status 429, {self.connection.attempts} attempts); "
                "try again later."
            )
        if status >= 500 and str(body).lstrip().startswith("<"):
            return IndexUnavailableError(
                f"Something in front of {here} answered with a web page and status {status} "
                f"({self.connection.attempts} attempts); check that it reaches the server, and try "
                "again."
            )
        if status >= 500:
            return IndexUnavailableError(
                f"{here} failed with status {status} ({reason_of(body)}, "
                f"{self.connection.attempts} attempts); look into its log, then try again."
            )
        if kind == "media_type_header_exception" or status == 406:
            return IndexUnavailableError(
                f"{here} is older than version 8; use a server of version 8 or 9."
            )
        if kind in ("index_not_found_exception", "aliases_not_found_exception"):
            return self.no_index(str(body["error"].get("index") or "that is named"))
        if kind == "index_closed_exception":
            return IndexUnavailableError(
                f"The index '{one_line(body['error'].get('index'), 100)}' at {self.url} is closed; "
                "open it there, or name another in 'index'."
            )
        if "maxClauseCount" in str(body) or "too_many" in kind:
            return QueryError(f"The query has more words than {self.product} accepts; shorten it.")
        return IndexUnavailableError(
            f"{here} refused the request with status {status} ({reason_of(body)})."
        )

    def no_index(self, index: str) -> FairqrError:
        """Return the error for an index that does not exist."""
        return IndexNotFoundError(
            f"There is no index '{one_line(index, 100)}' at {self.url}; correct 'index' in the "
            "source."
        )


def is_elasticsearch(headers: Mapping[str, str]) -> bool:
    """Return whether a response comes from Elasticsearch, which says so since version 7.14.

    Args:
        headers: The headers of the response, in any case.
    """
    return headers.get("x-elastic-product") == "Elasticsearch"


def message_of(error: Exception) -> str:
    """Return a client's message about a failed connection."""
    return str(getattr(error, "message", error))


def with_port(url: str) -> str:
    """Return an address with an explicit port, which the client requires."""
    scheme, _, rest = url.strip().rstrip("/").partition("://")
    host, slash, path = rest.partition("/")
    if not re.search(r":\d+$", host):
        host = f"{host.rstrip(':')}:{443 if scheme == 'https' else 80}"
    return f"{scheme}://{host}{slash}{path}"


def error_type(body: Any) -> str:
    """Return the type of the error in a response, or an empty string."""
    error = body.get("error") if isinstance(body, Mapping) else None
    return str(error.get("type", "")) if isinstance(error, Mapping) else ""


def reason_of(body: Any) -> str:
    """Return on one line why the server refused, from its response or a part of one."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return one_line(error or "no reason given", 200)
    causes = error.get("root_cause") or [error]
    causes = [*causes[:1], causes[0].get("caused_by") or error.get("caused_by")]
    reasons = [str(cause["reason"]) for cause in causes if cause and cause.get("reason")]
    return one_line(": ".join(dict.fromkeys(reasons)) or error.get("type") or "no reason", 300)


def warnings_of(answer: Mapping[str, Any], index: str) -> list[str]:
    """Return warnings about a search response that is only partial."""
    shards = answer.get("_shards", {})
    if shards.get("failed"):
        return [f"{shards['failed']} of {shards['total']} shards of '{index}' did not answer."]
    if answer.get("timed_out"):
        return [f"The search of '{index}' hit its time limit before it was complete."]
    return []
