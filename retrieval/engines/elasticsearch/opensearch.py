"""OpenSearch servers, through their own client, with their own vector search.

Requests and responses are as for Elasticsearch, except for vectors and the client's errors.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fairqr.base.errors import FairqrError, UnsupportedError
from fairqr.retrieval.engines.elasticsearch.connection import Connection
from fairqr.retrieval.engines.elasticsearch.server import (
    AnotherProductError,
    Server,
    is_elasticsearch,
    refuse_redirects,
    with_port,
)
from fairqr.retrieval.engines.elasticsearch.vectors import VectorSearch
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.documents import value_at

Body = dict[str, Any]


class OpenSearchServer(Server):
    """An OpenSearch server."""

    product: ClassVar[str] = "OpenSearch"
    versions: ClassVar[str] = ""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        try:
            import opensearchpy
        except ModuleNotFoundError:
            raise UnsupportedError(
                "OpenSearch needs its own client; run pip install 'fairqr[opensearch]'."
            ) from None
        self._client_package = opensearchpy
        self.errors = (opensearchpy.OpenSearchException,)

    def _new_client(self) -> Any:
        package, connection = self._client_package, self.connection
        url = self.url

        class NodeConnection(package.AsyncHttpConnection):  # type: ignore[misc, name-defined]
            """The connections to a node. They follow no redirects and refuse Elasticsearch."""

            async def _create_aiohttp_session(self) -> None:
                await super()._create_aiohttp_session()
                refuse_redirects(self.session)

            async def perform_request(self, *args: Any, **options: Any) -> Any:
                status, headers, content = await super().perform_request(*args, **options)
                if is_elasticsearch(headers):
                    raise AnotherProductError(
                        f"The server at {url} is Elasticsearch; write 'engine: elasticsearch' in "
                        "the source."
                    )
                return status, headers, content

        options: dict[str, Any] = {}
        trusted = connection.credentials.ca_certs
        try:
            if trusted and not connection.shown.startswith("http:"):
                options["ssl_context"] = ssl.create_default_context(cafile=trusted)
            return package.AsyncOpenSearch(
                hosts=[with_port(url) for url in connection.urls],
                headers=connection.credentials.request_headers(),
                timeout=connection.timeout,
                max_retries=0,
                retry_on_timeout=False,
                connection_class=NodeConnection,
                **options,
            )
        except (OSError, ValueError) as error:
            raise self.unusable(error) from None

    async def _perform(
        self, client: Any, method: str, path: str, params: Mapping[str, str] | None, body: Any
    ) -> Any:
        lines = body if isinstance(body, Sequence) else () if body is None else (body,)
        kind = "x-ndjson" if isinstance(body, Sequence) else "json"
        written = "".join(json.dumps(line, default=str) + "\n" for line in lines)
        return await client.transport.perform_request(
            method,
            path,
            params=dict(params or {}),
            body=written or None,
            headers={"content-type": f"application/{kind}"},
        )

    def _is_tls(self, error: Exception) -> bool:
        package = self._client_package
        return isinstance(error, package.SSLError) or (
            isinstance(error, package.ConnectionError) and "certificate" in str(error)
        )

    def translated(self, error: Exception) -> FairqrError:
        """Return our error for an error of the client; it says what to do."""
        package = self._client_package
        if isinstance(error, package.TransportError):
            if isinstance(error.status_code, int):
                body = _body_of(error)
                is_ours = isinstance(body, Mapping) or error.status_code in (401, 403, 429)
                if error.status_code < 500 and not is_ours:
                    return self.another_product()
                return self.refusal(error.status_code, body)
            return self.unreachable(
                str(error),
                tls=self._is_tls(error),
                slow=isinstance(error, package.ConnectionTimeout),
            )
        return self.another_product()  # The response cannot be read.


def _body_of(error: Any) -> Any:
    """Return the response in an error of the client; some client versions leave it as text."""
    if error.info is not None:
        return error.info
    try:
        return json.loads(error.error)
    except (TypeError, ValueError):
        return error.error


class OpenSearchVectors(VectorSearch):
    """The server's own nearest neighbours in a field of ``knn_vector``."""

    vector_type = "knn_vector"
    cosine = "cosineSimilarity(params.vector, doc[params.field])"

    def _described(self, settings: Mapping[str, Any]) -> tuple[int, bool, bool]:
        method = settings.get("method", {})
        space = method.get("space_type") or settings.get("space_type") or "l2"
        # The other engines cannot search among given documents.
        can_rescore = method.get("engine") in ("lucene", "faiss")
        return int(settings.get("dimension", 0)), space == "cosinesimil", can_rescore

    @property
    def reading(self) -> Body:
        """The parts of a search that request the vectors of its hits; scripts cannot read them."""
        return {"_source": [self.path]}

    def _vector_of(self, hit: Any) -> list[float]:
        found: list[float] = value_at(hit.get("_source", {}), self.path) or []
        return found

    def _nearest(self, query: Query, vector: list[float], filters: list[Body]) -> Body:
        size = query.n if query.only is None else max(1, len(query.only))
        nearest = self._neighbours(vector, size, filters)
        if query.only is not None:
            nearest = {"bool": {"should": [nearest], "filter": filters}}
        return {"query": nearest}

    def _neighbours(self, vector: list[float], n: int, filters: list[Body]) -> Body:
        knn: Body = {"vector": vector, "k": n}
        if filters and self.can_rescore:
            knn["filter"] = {"bool": {"filter": filters}}
        return {"bool": {"must": [{"knn": {self.field: knn}}], "filter": filters}}
