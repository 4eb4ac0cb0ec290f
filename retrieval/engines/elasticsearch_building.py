"""Making an index on an Elasticsearch server, for users who only have documents.

The documents of ``people`` go to a new index ``fairqr-people-<time>-<token>``. Once all are in, we
point the alias ``fairqr-people`` at it, and delete the index that the alias pointed at before. So a
failed or killed build changes nothing that existed. What it leaves behind has our name and no
alias; the next build of that name deletes it. If two builds of one name overlap, the one that
started later wins, and the other ends with an error.

The result is an index with plain fields, and a source that describes it, attached like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import quote

from elasticsearch.helpers import async_streaming_bulk

from fairqr.base.errors import FairqrError, IndexNotFoundError, IndexUnavailableError
from fairqr.retrieval.corpus import Corpus
from fairqr.retrieval.documents import Document, Progress
from fairqr.retrieval.encoders.encoder import Encoder, EncoderMark, encode_documents, text_of
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.elasticsearch_connection import Connection
from fairqr.retrieval.engines.elasticsearch_documents import (
    DocumentForm,
    mappings_of,
    stored_form,
    survey,
)
from fairqr.retrieval.engines.elasticsearch_mapping import path_of, read_mapping
from fairqr.retrieval.engines.elasticsearch_server import BusyServer, Server, reason_of
from fairqr.retrieval.source import ElasticsearchSource, QueryFields, VectorField

__all__ = ["create_on_elasticsearch", "delete_on_elasticsearch", "remove", "upsert"]

PREFIX = "fairqr-"
PRIVILEGES = "'all' on indices 'fairqr-*'"
DOCUMENTS_AT_ONCE = 500
BUSY = frozenset({429, 502, 503, 504})


async def create_on_elasticsearch(
    name: str,
    corpus: Corpus,
    *,
    url: str | None = None,
    credentials: str | None = None,
    encoder: Encoder | None = None,
    progress: Progress | None = None,
) -> ElasticsearchSource:
    """Make an index, replacing ours of that name, and return the source that describes it.

    The corpus is read twice: once to see what its labels look like, once to send it.

    Args:
        name: Lower-case letters, digits, dots, dashes and underscores.
        corpus: The documents.
        url: The server; FAIRQR_ELASTICSEARCH_URL by default.
        credentials: The name of a credentials entry in the settings.
        encoder: Makes a vector for each document; optional.
        progress: Called with the number of documents written.

    Raises:
        SourceError: The address of the server is malformed or contains a password.
        CorpusError: The corpus is empty or wrong, or two documents have the same id.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
    """
    connection = _connection(url, credentials)
    attributes = {
        key: one.model_copy(update={"labels": str((corpus.labels_folder / one.labels).absolute())})
        if one.labels
        else one
        for key, one in corpus.schema.attributes.items()
    }
    alias = PREFIX + name
    # Made first, so that an invalid description fails before we send anything.
    source = ElasticsearchSource(
        name=name,
        url=connection.shown,
        credentials=credentials,
        index=alias,
        id="id",
        title="title",
        text=("text",),
        query=QueryFields(fields=("body",)),
        vectors=VectorField(field="vector", embeddings=encoder.name) if encoder else None,
        attributes=attributes,
    )
    form = await asyncio.to_thread(survey, corpus)
    mark = await EncoderMark.of(encoder) if encoder else None
    async with _server(connection) as server:
        await _delete_leftovers(server, alias)
        index = f"{alias}-{datetime.now(UTC):%Y%m%d%H%M%S}-{secrets.token_hex(4)}"
        mappings = mappings_of(form, mark.dimensions if mark else None)
        settings = {"number_of_shards": 1, "refresh_interval": "-1"}
        body = {"mappings": mappings, "settings": settings}
        await server.request("PUT", path_of(index), body=body)
        try:
            made = await _identity(server, index)
            documents = corpus.documents()
            written = await _write(server, index, documents, form, encoder, progress)
            await server.request("POST", f"{path_of(index)}/_refresh")
            there = (await server.request("GET", f"{path_of(index)}/_count"))["count"]
            # Another build may have deleted it; the server then created a new one for our bulk.
            if there != written or await _identity(server, index) != made:
                raise IndexUnavailableError(
                    f"The index '{name}' at {server.url} was changed by someone else during the "
                    "build; build it again."
                )
            usual = {"index": {"refresh_interval": None}}
            await server.request("PUT", f"{path_of(index)}/_settings", body=usual)
        except BaseException:
            with contextlib.suppress(FairqrError):
                await server.request("DELETE", path_of(index))
            raise
        replaced = await _switch(server, alias, index)
        with contextlib.suppress(FairqrError):  # If this fails, the next build deletes it.
            await _delete(server, replaced)
    return source


async def delete_on_elasticsearch(source: ElasticsearchSource) -> None:
    """Delete an index that we made, and what builds of it left behind.

    Raises:
        IndexNotFoundError: The index no longer exists.
    """
    async with _server(_connection_of(source)) as server:
        await _delete(server, list(await _live(server, source)))
        await _delete_leftovers(server, source.index)


async def upsert(
    source: ElasticsearchSource, documents: Iterable[Document], progress: Progress | None = None
) -> int:
    """Add documents, replacing those with the same ids, and return how many were written.

    On an error, what was written before stays.

    Raises:
        IndexNotFoundError: The index no longer exists.
        CorpusError: A label does not fit the index.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
    """
    async with _server(_connection_of(source)) as server:
        form = stored_form(read_mapping(await _live(server, source)), source.attributes)
        named = source.vectors.embeddings if source.vectors else None
        encoder = open_encoder(named) if named else None
        written = await _write(
            server, source.index, documents, form, encoder, progress, require_alias=True
        )
        await server.request("POST", f"{path_of(source.index)}/_refresh")
        return written


async def remove(source: ElasticsearchSource, ids: Sequence[str]) -> int:
    """Remove documents, and return how many were removed.

    Raises:
        IndexNotFoundError: The index no longer exists.
        IndexUnavailableError: The server cannot be reached, or refuses the request.
    """
    async with _server(_connection_of(source)) as server:
        await _live(server, source)
        removed = 0
        for start in range(0, len(ids), DOCUMENTS_AT_ONCE):
            some = ids[start : start + DOCUMENTS_AT_ONCE]
            actions = [{"_op_type": "delete", "_id": id_} for id_ in some]
            removed += await _send(server, source.index, actions, removed)
        await server.request("POST", f"{path_of(source.index)}/_refresh")
        return removed


async def _write(
    server: Server,
    index: str,
    documents: Iterable[Document],
    form: DocumentForm,
    encoder: Encoder | None,
    progress: Progress | None,
    *,
    require_alias: bool = False,
) -> int:
    iterator = iter(documents)
    written = 0
    # Read the documents in threads, a chunk at a time, since they come from a file.
    while some := await asyncio.to_thread(lambda: list(islice(iterator, DOCUMENTS_AT_ONCE))):
        entries = [form.entry(document) for document in some]
        if encoder is not None:
            vectors = await encode_documents(encoder, [text_of(document) for document in some])
            for entry, vector in zip(entries, vectors, strict=True):
                if vector.any():
                    entry["vector"] = vector.tolist()
        actions = [{"_id": entry["id"], "_source": entry} for entry in entries]
        written += await _send(server, index, actions, written, require_alias=require_alias)
        if progress:
            progress(written)
    return written


async def _send(
    server: Server,
    index: str,
    actions: Sequence[dict[str, Any]],
    before: int,
    *,
    require_alias: bool = False,
) -> int:
    """Send a chunk, retrying while the server is busy, and return how many documents it wrote.

    Sending a document twice is the same as sending it once.

    Raises:
        IndexUnavailableError: The server refused a document.
    """
    done: dict[str, int] = {}

    async def attempt(client: Any) -> None:
        refused: list[tuple[str, int, Any]] = []
        options: dict[str, Any] = {"require_alias": True} if require_alias else {}
        results = async_streaming_bulk(
            client, actions, index=index, raise_on_error=False, max_retries=0, **options
        )
        async for ok, result in results:
            ((verb, item),) = result.items()
            if ok:
                done[item["_id"]] = 1
            elif not (verb == "delete" and item["status"] == 404):
                refused.append((item["_id"], item["status"], item.get("error")))
        if not refused:
            return
        if all(status in BUSY for _, status, _ in refused):
            raise BusyServer(refused[0][1], {"error": refused[0][2]})
        id_, status, why = refused[0]
        raise IndexUnavailableError(
            f"{server.product} at {server.url} refused {len(refused)} of {len(actions)} documents "
            f"after {before:,} others; the first is '{id_}', status {status} ({reason_of(why)}); "
            "fix the cause and send them again."
        )

    await server.call(attempt)
    return len(done)


async def _live(server: Server, source: ElasticsearchSource) -> dict[str, Any]:
    """Return the server's information about the index behind our alias.

    Raises:
        IndexNotFoundError: There is no such index.
    """
    if source.index.startswith(PREFIX):
        with contextlib.suppress(IndexNotFoundError):
            states = await server.request("GET", path_of(source.index))
            live = {i: s for i, s in states.items() if source.index in s.get("aliases", {})}
            if live:
                return live
    raise IndexNotFoundError(
        f"There is no index '{source.name}' at {server.url}; create it with 'fairqr index create'."
    )


async def _delete(server: Server, indices: Iterable[str]) -> None:
    for index in indices:
        with contextlib.suppress(IndexNotFoundError):
            await server.request("DELETE", path_of(index))


async def _delete_leftovers(server: Server, alias: str) -> None:
    ours = re.compile(re.escape(alias) + r"-\d{14}-[0-9a-f]{8}")
    pattern = f"/{quote(alias)}-*"
    states = await server.request("GET", pattern, params={"filter_path": "*.aliases"})
    left = [index for index, state in states.items() if not state.get("aliases")]
    await _delete(server, [index for index in left if ours.fullmatch(index)])


async def _identity(server: Server, index: str) -> Any:
    """Return the UUID that distinguishes an index from another one of the same name."""
    uuid = "*.settings.index.uuid"
    states = await server.request("GET", path_of(index), params={"filter_path": uuid})
    return states[index]["settings"]["index"]["uuid"]


async def _switch(server: Server, alias: str, index: str) -> list[str]:
    """Point the alias at an index, and return the indices it pointed at before."""
    pattern = f"/{quote(alias)}-*"
    states = await server.request("GET", pattern, params={"filter_path": "*.aliases"})
    replaced = [other for other, state in states.items() if alias in state.get("aliases", {})]
    actions: list[dict[str, Any]] = [
        {"remove": {"index": other, "alias": alias, "must_exist": False}} for other in replaced
    ]
    actions.append({"add": {"index": index, "alias": alias}})
    await server.request("POST", "/_aliases", body={"actions": actions})
    return replaced


def _connection(url: str | None, credentials: str | None) -> Connection:
    found = Connection.to(url or (), credentials)
    return found.model_copy(update={"privileges": PRIVILEGES})


def _connection_of(source: ElasticsearchSource) -> Connection:
    return Connection.of(source).model_copy(update={"privileges": PRIVILEGES})


@asynccontextmanager
async def _server(connection: Connection) -> AsyncIterator[Server]:
    server = Server(connection)
    try:
        yield server
    finally:
        await server.aclose()
