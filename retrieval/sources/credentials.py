"""Which credentials go to which server.

A source file may come from somebody else. It names an entry ``[credentials.NAME]`` of the settings
file and never contains secrets; the entry lists the addresses it may be sent to. So a foreign file
cannot steal a key.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field, SecretStr, model_validator

from fairqr.base import settings
from fairqr.base.errors import ConfigError, one_line
from fairqr.base.settings import CREDENTIALS, is_web_address
from fairqr.retrieval.sources.schema import validated

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Credentials(
    BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True
):
    """What we send to a server to be let in. Secrets never appear in messages or logs."""

    api_key: SecretStr | None = Field(None, description="An API key, as Elasticsearch issues it.")
    username: str | None = None
    password: SecretStr | None = None
    bearer: SecretStr | None = Field(None, description="A token for `Authorization: Bearer`.")
    headers: dict[str, SecretStr] = Field({}, description="Other headers, such as X-Key.")
    ca_certs: Path | None = Field(
        None, description="A file of certificates to trust, if the system's are not enough."
    )

    @model_validator(mode="after")
    def _can_be_sent(self) -> Credentials:
        for name, value in self.headers.items():
            is_header = HEADER_NAME.fullmatch(name) and value.get_secret_value().isprintable()
            if not is_header:
                raise ValueError(f"'{one_line(name, 60)}' is not a one-line header")
        if bool(self.username) != bool(self.password):
            raise ValueError("a username needs a password, and a password a username")
        ways = [self.api_key, self.username, self.bearer]
        if sum(map(bool, ways)) > 1:
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

    def trusted(self) -> ssl.SSLContext | None:
        """Return what a server's certificate is checked by; None means the system's own.

        Raises:
            ConfigError: The file of certificates cannot be read.
        """
        if self.ca_certs is None:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_certs)
        except OSError as error:
            raise ConfigError(
                f"The certificates {self.ca_certs} cannot be read ({one_line(error, 150)}); "
                "correct ca_certs in the settings file: it names a PEM file."
            ) from None


class NamedCredentials(Credentials):
    """An entry of the settings file, with the addresses it may be sent to."""

    urls: tuple[str, ...] = Field(
        min_length=1, description="Addresses of servers, or ids of Elastic Cloud deployments."
    )


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
    file = settings.config_path()
    section = f"[{CREDENTIALS}.{one_line(name, 60)}]"
    if entry is None:
        raise ConfigError(f"The settings file {file} has no {section}; add it, with its urls.")
    if not _may_be_sent(entry, url):
        raise ConfigError(
            f"The credentials '{name}' may not be sent to {one_line(_public(url), 200)}; if you "
            f"trust this address, add it to urls in {section} of {file}."
        )
    return entry


def _may_be_sent(entry: NamedCredentials, url: str) -> bool:
    """Return whether scheme, host and port are those of one of the entry's addresses."""
    return _server(url) in map(_server, entry.urls)


def credentials_at(url: str) -> Credentials:
    """Return the credentials whose ``urls`` name a server, or empty ones if there are none.

    Raises:
        ConfigError: An entry of the settings file is malformed.
    """
    for entry in named_credentials().values():
        if _may_be_sent(entry, url):
            return entry
    return Credentials()


def named_credentials() -> dict[str, NamedCredentials]:
    """Return the entries of the settings file, by name.

    Raises:
        ConfigError: An entry is malformed.
    """
    section, file = settings.file_section(CREDENTIALS)
    entries = {}
    for name, data in section.items():
        subject = f"The section [{CREDENTIALS}.{one_line(name, 60)}] of the settings file {file}"
        if isinstance(data, Mapping) and isinstance(data.get("ca_certs"), str):
            data = {**data, "ca_certs": settings.beside(file, data["ca_certs"])}
        entries[name] = validated(NamedCredentials, data, subject, ConfigError)
    return entries


def default_url() -> str | None:
    """Return the address in FAIRQR_ELASTICSEARCH_URL, without any credentials in it."""
    url = settings.text_of("elasticsearch.url")
    if url is None:
        return None
    if not is_web_address(url.strip()):
        raise ConfigError("FAIRQR_ELASTICSEARCH_URL must be an address like http://host:9200.")
    return _public(url)


def _of_elasticsearch(url: str) -> Credentials:
    """Return the credentials from the variables and the ``[elasticsearch]`` section.

    Credentials in the address win, then the variables, which belong together, then the settings
    file. We do not use the file's when a variable names another server than the file does.
    """
    stated_url = settings.text_of("elasticsearch.url")
    if default_url() is None or stated_url is None or _server(stated_url) != _server(url):
        return Credentials()

    names = ("api_key", "username", "password")
    effective = {name: settings.find(f"elasticsearch.{name}") for name in names}
    variables = {
        name: setting for name, setting in effective.items() if setting.source.kind == "variable"
    }
    url_in_file, _ = settings.file_section("elasticsearch.url")
    is_server_of_file = url_in_file is None or _server(url_in_file) == _server(stated_url)

    values: dict[str, Any] = {"ca_certs": settings.path_of("elasticsearch.ca_certs")}
    parts = urlsplit(stated_url.strip())
    if parts.username:
        values["username"] = unquote(parts.username)
        values["password"] = unquote(parts.password or "")
    elif variables:
        values |= {name: setting.value for name, setting in variables.items()}
    elif is_server_of_file:
        values |= {name: setting.value for name, setting in effective.items()}
    subject = "What FAIRQR_ELASTICSEARCH_… or [elasticsearch] in the settings file gives"
    return validated(Credentials, values, subject, ConfigError)


def _server(url: str) -> tuple[str, str | None, int]:
    """Return scheme, host and port of an address; an Elastic Cloud id is returned as it is."""
    if not is_web_address(url.strip()):
        return url, None, 0
    parts = urlsplit(url.strip())
    default_port = 443 if parts.scheme == "https" else 80
    return parts.scheme, parts.hostname, parts.port or default_port


def _public(url: str) -> str:
    """Return an address without credentials and parameters."""
    scheme, separator, address = url.strip().partition("://")
    without_credentials = address.rpartition("@")[2]
    without_parameters = without_credentials.partition("?")[0]
    return f"{scheme}{separator}{without_parameters.rstrip('/')}"
