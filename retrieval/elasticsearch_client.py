"""Reaching an Elasticsearch server: credentials, clients, retries, and errors a user can act on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from elastic_transport import ConnectionTimeout, TlsError, TransportError
from elasticsearch import ApiError, AsyncElasticsearch, UnsupportedProductError
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from fairqr.errors import (
    FairqrError,
    IndexNotFoundError,
    IndexUnavailableError,
    InputError,
    QueryError,
    one_line,
)
from fairqr.loops import PerLoop
from fairqr.retries import with_retries
from fairqr.retrieval.elasticsearch_credentials import configured_credentials
from fairqr.settings import is_web_address, text_of

__all__ = ["Connection", "Server", "reason_of", "translated"]

T = TypeVar("T")

URL = "FAIRQR_ELASTICSEARCH_URL"
CREDENTIALS = (
    "FAIRQR_ELASTICSEARCH_API_KEY, or FAIRQR_ELASTICSEARCH_USERNAME and "
    "FAIRQR_ELASTICSEARCH_PASSWORD"
)
CA_CERTS = "FAIRQR_ELASTICSEARCH_CA_CERTS"


class Connection(BaseModel):
    """How to reach a server. The secrets show in no representation and no message.

    Attributes:
        url: ``http://host:port`` or ``https://host:port``, perhaps with a path. Credentials in it
            (``https://user:password@host``) become ``username`` and ``password``.
        api_key: As Elasticsearch gives it, encoded; instead of a username and password.
        username: Goes with ``password``.
        password: Goes with ``username``.
        ca_certs: A file or folder of certificates to trust, where the system's do not suffice.
        verify_certs: False trusts any certificate.
        timeout: Of one request, in seconds.
        attempts: How often a request is made that can heal; see :mod:`fairqr.retries`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str
    api_key: SecretStr | None = None
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = None
    verify_certs: bool = True
    timeout: float = Field(default=30.0, gt=0)
    attempts: int = Field(default=4, ge=1)

    @classmethod
    def from_environment(cls, url: str | None = None) -> Connection:
        """Return the connection that is configured, to this URL if one is given.

        Credentials in the URL win over those of the variables, and any of these over all of the
        settings file's. The file's are sent to no other server than the one that it names, if any.

        Raises:
            InputError: There is no URL, or the parts do not fit together.
        """
        named = url or text_of("elasticsearch.url")
        if not named:
            raise InputError(
                "No Elasticsearch is named; give its URL with --url or in the environment variable "
                f"{URL}."
            )
        settings: dict[str, Any] = {"url": named, "ca_certs": text_of("elasticsearch.ca_certs")}
        if not _split(named).username:
            settings |= configured_credentials(named)
        return cls(**settings)

    @property
    def shown(self) -> str:
        """The URL as it may be shown and stored: without credentials."""
        return self.url

    @model_validator(mode="before")
    @classmethod
    def _credentials_leave_the_url(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("url"), str):
            return data
        parts = _split(data["url"])
        host = parts.netloc.rpartition("@")[2]
        if not parts.port:
            host = f"{host.rstrip(':')}:{443 if parts.scheme == 'https' else 80}"
        cleaned = {**data, "url": f"{parts.scheme}://{host}{parts.path.rstrip('/')}"}
        if parts.username:
            cleaned["username"] = unquote(parts.username)
            cleaned["password"] = unquote(parts.password or "")
        return cleaned

    @field_validator("api_key", "password", mode="before")
    @classmethod
    def _no_stray_space(cls, value: Any) -> Any:
        """Drop what a file or a paste leaves around a secret."""
        return value.strip() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _credentials_fit_together(self) -> Connection:
        if self.api_key and self.username:
            raise InputError(
                "Give Elasticsearch either an API key or a username and password, not both; "
                f"set {CREDENTIALS}."
            )
        if bool(self.username) != bool(self.password):
            raise InputError(
                "A username for Elasticsearch needs a password, and a password a username; "
                f"set {CREDENTIALS}."
            )
        return self

    def client(self) -> AsyncElasticsearch:
        """Return a new client, without retries of its own.

        Raises:
            InputError: The certificates cannot be read.
        """
        options: dict[str, Any] = {}
        if self.api_key:
            options["api_key"] = self.api_key.get_secret_value()
        elif self.username and self.password:
            options["basic_auth"] = (self.username, self.password.get_secret_value())
        if self.url.startswith("https:"):
            options |= {"verify_certs": self.verify_certs, "ssl_show_warn": False}
            if self.ca_certs and self.verify_certs:
                options["ca_certs"] = str(self.ca_certs)
        try:
            return AsyncElasticsearch(
                self.url,
                request_timeout=self.timeout,
                max_retries=0,
                retry_on_timeout=False,
                retry_on_status=(),
                **options,
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"The certificates in {self.ca_certs} cannot be used ({one_line(error)}); name a "
                f"PEM file of the CA in {CA_CERTS}."
            ) from None


def _split(url: str) -> SplitResult:
    """Take a URL apart.

    Raises:
        InputError: It is no URL of a server; what it holds is not shown, since it may be a secret.
    """
    wrong = InputError(
        "The URL of Elasticsearch must look like http://localhost:9200 or "
        f"https://search.example.org:9243; correct --url or {URL}."
    )
    if not is_web_address(url.strip()):
        raise wrong
    parts = urlsplit(url.strip())
    if parts.query or parts.fragment:
        raise wrong
    return parts


class Server:
    """A server, and one client per event loop, since a client cannot leave the loop it began in.

    Close it in each loop that used it, before that loop ends.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._clients: PerLoop[AsyncElasticsearch] = PerLoop()

    @property
    def url(self) -> str:
        """Where the server is, without credentials."""
        return self.connection.shown

    def _client(self) -> AsyncElasticsearch:
        return self._clients.get() or self._clients.setdefault(self.connection.client())

    async def call(self, send: Callable[[AsyncElasticsearch], Awaitable[T]]) -> T:
        """Await ``send(client)``, again where it failed with an error that can heal.

        Raises:
            IndexUnavailableError: The server cannot be reached, or refuses.
            IndexNotFoundError: It has no such index.
            QueryError: The query has more words than it takes.
        """
        client = self._client()

        async def attempt() -> T:
            try:
                return await send(client)
            except TlsError as error:
                # It is a kind of connection error, but waiting does not mend a certificate.
                raise translated(error, self.connection) from None

        try:
            return await with_retries(attempt, attempts=self.connection.attempts)
        except (ApiError, TransportError) as error:
            raise translated(error, self.connection) from None

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        if client := self._clients.pop():
            await client.close()


def translated(error: ApiError | TransportError, connection: Connection) -> FairqrError:
    """Return the error that tells a user what to do about an error of the client."""
    if isinstance(error, ApiError):
        return _refusal(error, connection)
    url = connection.url
    if isinstance(error, TlsError):
        if refused := re.search(r"certificate verify failed:? ?([^(\]]*)", error.message):
            return IndexUnavailableError(
                f"The certificate of {url} is not trusted ({refused[1].strip()}); name the file of "
                f"its CA in {CA_CERTS}."
            )
        return IndexUnavailableError(
            f"The server at {url} does not speak TLS as expected; check whether its URL starts "
            "with http:// or https://."
        )
    if isinstance(error, ConnectionTimeout):
        return IndexUnavailableError(
            f"Elasticsearch at {url} did not answer within {connection.timeout:g} seconds; "
            "try again, or look into its log."
        )
    return IndexUnavailableError(
        f"Elasticsearch cannot be reached at {url}; start it there, or name another with --url "
        f"or {URL}."
    )


def _refusal(error: ApiError, connection: Connection) -> FairqrError:
    """Translate an answer that is not a success."""
    url, status, kind = connection.url, error.status_code, error_type(error.body)
    if status == 401 or (status == 403 and kind != "cluster_block_exception"):
        return IndexUnavailableError(_about_credentials(status, connection))
    if status == 429:
        return IndexUnavailableError(
            f"Elasticsearch at {url} is overloaded (status 429, {connection.attempts} attempts); "
            "try again later."
        )
    if status >= 500:
        return IndexUnavailableError(
            f"Elasticsearch at {url} failed with status {status} ({connection.attempts} attempts); "
            "look into its log, and try again."
        )
    is_elasticsearch = error.meta.headers.get("x-elastic-product") == "Elasticsearch"
    if isinstance(error, UnsupportedProductError) or not is_elasticsearch:
        return IndexUnavailableError(
            f"The server at {url} is not Elasticsearch; name one with --url or {URL}."
        )
    if kind in ("index_not_found_exception", "aliases_not_found_exception"):
        return IndexNotFoundError(
            f"The index is not at {url}; create it with 'fairqr index create'."
        )
    if "maxClauseCount" in str(error.body):
        return QueryError("The query has more words than Elasticsearch takes; shorten it.")
    return IndexUnavailableError(
        f"Elasticsearch at {url} refused the request with status {status} "
        f"({reason_of(error.body)}); look into its log."
    )


def _about_credentials(status: int, connection: Connection) -> str:
    if status == 403:
        return (
            f"Elasticsearch at {connection.url} does not allow this (status 403); give the account "
            f"the privilege 'all' on indices 'fairqr-*', or name another account in {CREDENTIALS}."
        )
    if connection.api_key:
        wrong = "does not accept the API key"
    elif connection.username:
        wrong = "does not accept the username or the password"
    else:
        wrong = "asks for credentials"
    return f"Elasticsearch at {connection.url} {wrong} (status 401); set {CREDENTIALS}."


def error_type(body: Any) -> str:
    """Return the name that Elasticsearch gives to the error of an answer, or an empty text."""
    error = body.get("error") if isinstance(body, Mapping) else None
    return str(error.get("type", "")) if isinstance(error, Mapping) else ""


def reason_of(body: Any) -> str:
    """Return why Elasticsearch refused, on one line, from its answer or a part of a bulk's."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return one_line(error or "no reason given", 200)
    cause = error.get("caused_by")
    parts = [error.get("reason"), cause.get("reason") if isinstance(cause, Mapping) else None]
    return one_line(": ".join(str(part) for part in parts if part) or error.get("type"), 200)
