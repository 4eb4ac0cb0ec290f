"""Where an Elasticsearch or OpenSearch server is, and what we send to be let in."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from fairqr.base.errors import SourceError
from fairqr.retrieval.sources.credentials import Credentials, credentials_for, default_url
from fairqr.retrieval.sources.source import ElasticsearchSource, check_server


class Connection(BaseModel):
    """Where a server is, and our credentials for it. Secrets never appear in messages.

    Attributes:
        urls: Addresses of its nodes, without credentials; empty for a cloud deployment.
        cloud_id: The id of an Elastic Cloud deployment.
        credentials: The credentials to send.
        credentials_name: The settings entry that they come from; optional.
        timeout: Seconds allowed for one request.
        attempts: How often we send a request that may succeed later.
        concurrency: How many requests may run at a time.
        requests_per_second: The most requests a second; no limit by default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    urls: tuple[str, ...] = ()
    cloud_id: str | None = None
    credentials: Credentials = Credentials()
    credentials_name: str | None = None
    timeout: float = 30.0
    attempts: int = 4
    concurrency: int = 8
    requests_per_second: float | None = None

    @classmethod
    def of(cls, source: ElasticsearchSource) -> Connection:
        """Return the connection that a source describes.

        Raises:
            SourceError: Neither the source nor a variable names a server.
            ConfigError: The credentials may not be sent there.
        """
        connection = cls.to(source.url or (), source.credentials, cloud_id=source.cloud_id)
        return connection.model_copy(
            update={
                "timeout": source.timeout,
                "concurrency": source.concurrency,
                "requests_per_second": source.requests_per_second,
            }
        )

    @classmethod
    def to(
        cls,
        url: str | Sequence[str],
        credentials: str | None = None,
        *,
        cloud_id: str | None = None,
    ) -> Connection:
        """Return a connection with the credentials for a server.

        Args:
            url: Its address or addresses; FAIRQR_ELASTICSEARCH_URL if empty.
            credentials: The name of a credentials entry in the settings file.
            cloud_id: The id of an Elastic Cloud deployment, instead of an address.

        Raises:
            SourceError: No server is named, here or in a variable; or an address is malformed or
                contains a password.
            ConfigError: The credentials may not be sent there.
        """
        urls = tuple([url] if isinstance(url, str) else url)
        if not any(urls) and not cloud_id:
            named = default_url()
            if named is None:
                raise SourceError(
                    "No server is named; give its url, or set FAIRQR_ELASTICSEARCH_URL."
                )
            urls = (named,)
        try:
            for one in () if cloud_id else urls:
                check_server(one)
        except ValueError as error:
            raise SourceError(f"The url of the server is wrong: {error}.") from None
        found = [credentials_for(credentials, one) for one in ([cloud_id] if cloud_id else urls)]
        # The nodes share one client, so we send only credentials that may go to all of them.
        same = all(one == found[0] for one in found)
        return cls(
            urls=() if cloud_id else urls,
            cloud_id=cloud_id,
            credentials=found[0] if same else Credentials(),
            credentials_name=credentials,
        )

    @property
    def shown(self) -> str:
        """The server as shown in messages."""
        return self.urls[0] if self.urls else str(self.cloud_id).partition(":")[0]

    @property
    def remedy(self) -> str:
        """Where the credentials are configured, for messages."""
        if self.credentials_name:
            return f"[credentials.{self.credentials_name}] of the settings file"
        return (
            "FAIRQR_ELASTICSEARCH_API_KEY, or an entry [credentials.NAME] of the settings file, "
            "for this address"
        )
