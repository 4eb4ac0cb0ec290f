"""Which credentials go to which server.

A source file may come from somebody else. It names an entry ``[credentials.NAME]`` of the settings
file and never contains secrets; the entry lists the addresses it may be sent to. So a foreign file
cannot steal a key.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from fairqr.base.errors import ConfigError, first_problem, one_line
from fairqr.base.settings import (
    CREDENTIALS,
    beside,
    config_path,
    file_section,
    find,
    is_web_address,
    path_of,
    text_of,
)
from fairqr.retrieval.sources.schema import validated

SECRETS = ("api_key", "username", "password")
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Credentials(BaseModel):
    """What we send to a server to be let in. Secrets never appear in messages or logs."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    api_key: SecretStr | None = Field(None, description="An API key, as Elasticsearch issues it.")
    username: str | None = None
    password: SecretStr | None = None
    bearer: SecretStr | None = Field(None, description="A token for `Authorization: Bearer`.")
    headers: dict[str, SecretStr] = Field({}, description="Other headers, such as X-Key.")
    ca_certs: Path | None = Field(
        None, description="A file of certificates to trust, if the system's are not enough."
    )

    @field_validator("api_key", "password", "bearer", mode="before")
    @classmethod
    def _has_no_stray_space(cls, value: Any) -> Any:
        """Strip the white space that a file or a paste leaves around a secret."""
        return value.strip() if isinstance(value, str) else value

    @field_validator("headers")
    @classmethod
    def _headers_can_be_sent(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not HEADER_NAME.fullmatch(name) or not value.get_secret_value().isprintable():
                raise ValueError(f"'{one_line(name, 60)}' is not a one-line header")
        return headers

    @model_validator(mode="after")
    def _fits_together(self) -> Credentials:
        if bool(self.username) != bool(self.password):
            raise ValueError("a username needs a password, and a password a username")
        if sum(map(bool, (self.api_key, self.username, self.bearer))) > 1:
            raise ValueError("give one of api_key, bearer, or username and password")
        return self

    def request_headers(self) -> dict[str, str]:
        """Return the headers that carry the credentials."""
        headers = {name: value.get_secret_value() for name, value in self.headers.items()}
        if self.api_key:
            headers["Authorization"] = f"ApiKey {self.api_key.get_secret_value()}"
        elif self.bearer:
            headers["Authorization"] = f"Bearer {self.bearer.get_secret_value()}"
        elif self.username and self.password:
            pair = f"{self.username}:{self.password.get_secret_value()}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers


class NamedCredentials(Credentials):
    """An entry of the settings file, with the addresses it may be sent to."""

    urls: tuple[str, ...] = Field(
        min_length=1, description="Addresses of servers, or ids of Elastic Cloud deployments."
    )

    @field_validator("urls")
    @classmethod
    def _urls_are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if "://" in url and not is_web_address(url):
                raise ValueError(
                    f"'{one_line(_shown(url), 100)}' is not an address such as "
                    "https://search.example.org:9243"
                )
        return urls

    def may_go_to(self, url: str) -> bool:
        """Return whether an address has the scheme, host and port of one in this entry."""
        return any(_server(url) == _server(own) for own in self.urls)


def credentials_for(name: str | None, url: str) -> Credentials:
    """Return the credentials for a server.

    Without a name, the variables such as ``FAIRQR_ELASTICSEARCH_API_KEY`` apply to the server in
    ``FAIRQR_ELASTICSEARCH_URL`` only; any other server gets no credentials.

    Args:
        name: An entry ``[credentials.NAME]`` of the settings file.
        url: The address of the server, or an Elastic Cloud id.

    Raises:
        ConfigError: The entry does not exist, is malformed, or may not be sent to this server.
    """
    if name is None:
        return _of_elasticsearch(url)
    entry = named_credentials().get(name)
    file, section = config_path(), f"[{CREDENTIALS}.{one_line(name, 60)}]"
    if entry is None:
        raise ConfigError(
            f"The settings file {file} has no {section}; add it, and list in urls the addresses "
            "it may be sent to."
        )
    if not entry.may_go_to(url):
        raise ConfigError(
            f"The credentials '{name}' may not be sent to {one_line(_shown(url), 200)}; if you "
            f"trust this address, add it to urls in {section} of {file}."
        )
    return Credentials(**{field: getattr(entry, field) for field in Credentials.model_fields})


def named_credentials() -> dict[str, NamedCredentials]:
    """Return the entries of the settings file, by name.

    Raises:
        ConfigError: An entry is malformed.
    """
    section, file = file_section(CREDENTIALS)
    return {name: _entry(name, data, file) for name, data in section.items()}


def default_url() -> str | None:
    """Return the address in FAIRQR_ELASTICSEARCH_URL, without any credentials in it."""
    url = text_of("elasticsearch.url")
    if url is None:
        return None
    if not is_web_address(url.strip()):
        raise ConfigError(
            "FAIRQR_ELASTICSEARCH_URL must be an address such as http://localhost:9200 or "
            "https://search.example.org:9243; correct it."
        )
    return _shown(url)


def _entry(name: str, data: Any, file: Path) -> NamedCredentials:
    where = f"In the settings file {file}, [{CREDENTIALS}.{one_line(name, 60)}]"
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a section.")
    data = dict(data)
    if isinstance(data.get("ca_certs"), str):
        data["ca_certs"] = beside(file, data["ca_certs"])
    return validated(NamedCredentials, data, where, ConfigError, "the entry")


def _of_elasticsearch(url: str) -> Credentials:
    """Return the credentials from the variables and the ``[elasticsearch]`` section."""
    own = text_of("elasticsearch.url")
    if default_url() is None or own is None or _server(own) != _server(url):
        return Credentials()
    try:
        return Credentials(**_configured(own), ca_certs=path_of("elasticsearch.ca_certs"))
    except ValidationError as error:
        raise ConfigError(
            f"The Elasticsearch credentials are wrong: {first_problem(error)[1]}; correct the "
            "FAIRQR_ELASTICSEARCH_… variables or [elasticsearch] in the settings file."
        ) from None


def _configured(url: str) -> dict[str, Any]:
    """Return the credentials for the server in the settings.

    Credentials in the address win, then the variables, which belong together, then the settings
    file. We do not use the file's when a variable names another server than the file does.
    """
    parts = urlsplit(url.strip())
    if parts.username:
        return {"username": unquote(parts.username), "password": unquote(parts.password or "")}
    found = {name: find(f"elasticsearch.{name}") for name in SECRETS}
    of_variables = {name: it for name, it in found.items() if it.source.kind == "variable"}
    files = find("elasticsearch.url", file_only=True).value
    if not of_variables and files is not None and _server(str(files)) != _server(url):
        return {}
    return {name: it.value for name, it in (of_variables or found).items()}


def _server(url: str) -> tuple[str, str | None, int]:
    """Return scheme, host and port of an address; an Elastic Cloud id is returned as it is."""
    if not is_web_address(url.strip()):
        return url, None, 0
    parts = urlsplit(url.strip())
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _shown(url: str) -> str:
    """Return an address without credentials and parameters."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        return url.strip()
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0].rstrip('/')}"
