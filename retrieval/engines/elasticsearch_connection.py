"""Where an Elasticsearch or OpenSearch server is, and what is sent along."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from fairqr.base.errors import SourceError
from fairqr.retrieval.credentials import Credentials, credentials_for, default_url
from fairqr.retrieval.source import ElasticsearchSource, check_server

__all__ = ["Connection"]

READING = "'read' and 'view_index_metadata' on the index"


class Connection(BaseModel):
    """Where a server is, and what it wants to see. Secrets show in no message.

    Attributes:
        urls: Addresses of its nodes, without credentials; empty for a cloud deployment.
        cloud_id: The id of an Elastic Cloud deployment.
        credentials: What is sent along.
        credentials_name: The entry of the settings file that they come from, if any.
        timeout: Seconds that one request may take.
        attempts: How often a request is sent that may succeed later.
        concurrency: Requests under way at the same time, at most.
        requests_per_second: At most; no limit by default.
        privileges: What the account needs, for messages.
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
    privileges: str = READING

    @classmethod
    def of(cls, source: ElasticsearchSource) -> Connection:
        """Return the connection that a source describes.

        Raises:
            SourceError: It names no server, and no variable does.
            ConfigError: The credentials may not go there.
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
        """Return a connection with the credentials that may go to a server.

        Args:
            url: Its address or addresses; that in FAIRQR_ELASTICSEARCH_URL if empty.
            credentials: An entry of the settings file.
            cloud_id: The id of an Elastic Cloud deployment, in place of an address.

        Raises:
            SourceError: It names no server, and no variable does; or an address is malformed or
                holds a password.
            ConfigError: The credentials may not go there.
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
        # The nodes share one client, so what may not go to all of them goes to none.
        same = all(one == found[0] for one in found)
        return cls(
            urls=() if cloud_id else urls,
            cloud_id=cloud_id,
            credentials=found[0] if same else Credentials(),
            credentials_name=credentials,
        )

    @property
    def shown(self) -> str:
        """The server as messages name it."""
        return self.urls[0] if self.urls else str(self.cloud_id).partition(":")[0]

    @property
    def remedy(self) -> str:
        """Where the credentials are, for messages."""
        if self.credentials_name:
            return f"[credentials.{self.credentials_name}] of the settings file"
        return (
            "FAIRQR_ELASTICSEARCH_API_KEY, or an entry [credentials.NAME] of the settings file, "
            "for this address"
        )
