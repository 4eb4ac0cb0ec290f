"""Sends requests to the endpoint of a source, and limits how it may respond."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from fairqr.base.errors import ConfigError, IndexUnavailableError, QueryError, SourceError, one_line
from fairqr.base.loops import PerLoop
from fairqr.base.retries import with_retries
from fairqr.retrieval.engines.limits import Limits
from fairqr.retrieval.engines.request_template import QUERY, SIZE, fill_template
from fairqr.retrieval.sources.credentials import Credentials
from fairqr.retrieval.sources.source import HttpSource

if TYPE_CHECKING:
    import httpx

_asking = ContextVar("asking", default=False)
"""Whether the current task is sending a request to an endpoint."""


class _WithoutParameters(logging.Filter):
    """Removes the parameters from the addresses that httpx logs, because they may contain keys.

    Log lines of other clients in the process stay as they are.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record, and let it pass."""
        if _asking.get() and isinstance(record.args, tuple):
            import httpx

            record.args = tuple(
                arg.copy_with(query=None) if isinstance(arg, httpx.URL) else arg
                for arg in record.args
            )
        return True


_WITHOUT_PARAMETERS = _WithoutParameters()


@contextmanager
def _logs_without_parameters() -> Iterator[None]:
    logging.getLogger("httpx").addFilter(_WITHOUT_PARAMETERS)  # Adding it again changes nothing.
    before = _asking.set(True)
    try:
        yield
    finally:
        _asking.reset(before)


class Endpoint:
    """The endpoint of a source. We do not trust its responses.

    Args:
        source: Describes the requests.
        credentials: Their headers are sent with each request; redirects are never followed.
    """

    def __init__(self, source: HttpSource, credentials: Credentials) -> None:
        self._source = source
        self._headers = credentials.request_headers()
        self._certificates = _certificates(credentials)
        self._limits = Limits(source.concurrency, source.requests_per_second)
        self._clients: PerLoop[httpx.AsyncClient] = PerLoop()
        self._shown = f"The endpoint {self.location} of the source '{source.name}'"

    @property
    def location(self) -> str:
        """The address, without its parameters, which may hold keys."""
        return _without_parameters(self._source.url)

    async def ask(self, text: str, n: int) -> bytes:
        """Return the endpoint's response.

        Args:
            text: The words to search for.
            n: How many hits to ask for.

        Raises:
            IndexUnavailableError: It cannot be reached, or its response is too long or too late.
            QueryError: The text would change the path of the address.
            SourceError: It refuses the request.
        """
        import httpx

        url = _filled_url(self._source, text, n)
        body = self._source.body and fill_template(self._source.body, text, n)
        client = self._client()

        async def once() -> bytes:
            async with self._limits:
                try:
                    async with (
                        asyncio.timeout(self._source.timeout),
                        client.stream(self._source.method, url, json=body) as response,
                    ):
                        response.raise_for_status()
                        return await self._content(response)
                except TimeoutError:
                    # We do not retry: the user has waited long enough.
                    raise IndexUnavailableError(
                        f"{self._shown} gave no complete answer within {self._source.timeout:g} s; "
                        "try again later, or raise 'timeout' in the source."
                    ) from None

        try:
            with _logs_without_parameters():
                return await with_retries(once)
        except httpx.HTTPStatusError as error:
            raise self._refusal(error.response) from None
        except httpx.ConnectError as error:
            raise IndexUnavailableError(
                f"{self._shown} cannot be reached ({one_line(error, 150)}); check that it is "
                "running and that 'url' is right."
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # The error's text may quote a header, and so a secret.
            raise IndexUnavailableError(
                f"{self._shown} broke off the connection ({type(error).__name__}); try again later."
            ) from None

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if client := self._clients.pop():
            await client.aclose()

    async def _content(self, response: httpx.Response) -> bytes:
        # Never read compressed data: it could unpack to gigabytes.
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise IndexUnavailableError(
                f"{self._shown} sent a compressed answer, although we asked for a plain one; "
                "switch its compression off."
            )
        content = bytearray()
        async for part in response.aiter_raw():
            content += part
            if len(content) > self._source.max_bytes:
                raise IndexUnavailableError(
                    f"{self._shown} sent more than {self._source.max_bytes:,} bytes; make it "
                    "send less, or raise 'max_bytes' in the source."
                )
        return bytes(content)

    def _refusal(self, response: httpx.Response) -> Exception:
        status = response.status_code
        if 300 <= status < 400:
            location = response.headers.get("location", "nowhere")
            target = one_line(_without_parameters(location), 200)
            return SourceError(
                f"{self._shown} redirects to {target}, which we do not follow; if you trust that "
                "address, write it in 'url'."
            )
        if status in (401, 403):
            return IndexUnavailableError(
                f"{self._shown} refused access ({status}); set 'credentials' to an entry that it "
                "accepts."
            )
        if status == 429 or status >= 500:
            return IndexUnavailableError(
                f"{self._shown} answered {status} on every attempt; try again later."
            )
        return SourceError(f"{self._shown} answered {status}; correct 'url', 'method' or 'body'.")

    def _client(self) -> httpx.AsyncClient:
        if client := self._clients.get():
            return client
        import httpx

        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        return self._clients.setdefault(
            httpx.AsyncClient(
                headers={
                    "User-Agent": "fairqr",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                    **self._headers,
                },
                cookies=no_cookies,
                follow_redirects=False,
                limits=httpx.Limits(max_connections=self._source.concurrency),
                timeout=None,  # noqa: S113 - the whole request has a limit above
                verify=self._certificates,
            )
        )


def _without_parameters(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


def _certificates(credentials: Credentials) -> ssl.SSLContext | bool:
    if credentials.ca_certs is None:
        return True
    try:
        return ssl.create_default_context(cafile=credentials.ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"The certificates {credentials.ca_certs} cannot be read ({one_line(error, 150)}); "
            "correct ca_certs in the settings file."
        ) from None


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
