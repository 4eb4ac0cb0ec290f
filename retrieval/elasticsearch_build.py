"""Creating, listing and deleting indexes on an Elasticsearch server.

A build writes a new server index and switches the alias to it once it is whole, so a build that is
killed leaves what was there. What it leaves behind is removed by the next build of the same name,
by this rule: no alias points at it, and its build either ran on this machine in a process that is
gone, or gave no sign of life for an hour. A build gives one every minute, so no running build is
disturbed; of two at the same time, the one that ends last is live.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from elasticsearch import AsyncElasticsearch, BadRequestError

from fairqr.errors import CorpusError, FairqrError, IndexNotFoundError, IndexUnavailableError
from fairqr.retrieval.documents import Document
from fairqr.retrieval.elasticsearch_bulk import Action, Outcome, Tally, bulk
from fairqr.retrieval.elasticsearch_client import Connection, Server, error_type
from fairqr.retrieval.elasticsearch_layout import (
    PREFIX,
    BuildMark,
    Meta,
    alias_of,
    mappings_of,
    new_index_name,
    raw_meta,
    read_meta,
    settings_of,
    stored_document,
)
from fairqr.retrieval.index import IndexInfo, Progress
from fairqr.retrieval.schema import Schema

__all__ = ["build_elasticsearch", "delete_elasticsearch", "list_elasticsearch", "live_index"]

SIGN_OF_LIFE_SECONDS = 60.0


async def build_elasticsearch(
    connection: Connection,
    name: str,
    schema: Schema,
    documents: Iterable[Document],
    *,
    source: str,
    source_sha256: str,
    progress: Progress | None = None,
    shards: int = 1,
) -> int:
    """Create an index, in place of the one of that name, and return how many documents it has.

    Args:
        connection: The server.
        name: How commands will call it.
        schema: The attributes and groups of the documents.
        documents: Read once, a chunk at a time.
        source: The corpus they come from.
        source_sha256: The hash of that file.
        progress: Told now and then how many were written.
        shards: Into how many parts the server cuts the index.

    Raises:
        CorpusError: There are no documents, or two have the same id.
        InputError: Elasticsearch does not take the name.
        IndexUnavailableError: The server cannot be reached, or refuses documents.
    """
    alias_of(name)
    meta = Meta(
        name=name,
        source=source,
        source_sha256=source_sha256,
        corpus_schema=schema,
        build=BuildMark.own(),
    )
    async with _server(connection) as server:
        await _remove_leftovers(server, name)
        index = new_index_name(name)
        await _create(server, index, meta, shards)
        try:
            async with _signs_of_life(server, index, meta):
                count = await _load(server, index, meta, documents, progress)
            await _finish(server, index, meta, count)
        except BaseException:
            with suppress(FairqrError):
                await _remove(server, [index])
            raise
        # If the answer is lost, the alias may be switched: from here on the new index stays.
        replaced = await _switch(server, name, index)
        with suppress(FairqrError):  # else the next build removes it
            await _remove(server, replaced)
    return count


async def delete_elasticsearch(connection: Connection, name: str) -> None:
    """Delete an index and what ended builds of it left behind.

    Raises:
        IndexNotFoundError: There is none of that name.
    """
    alias = alias_of(name)
    async with _server(connection) as server:
        states = await _states(server, f"{alias}*")
        live = [index for index, state in states.items() if alias in state["aliases"]]
        if not live:
            raise _not_found(server, name)
        await _remove(server, live)
        await _remove_leftovers(server, name)


async def list_elasticsearch(connection: Connection) -> list[IndexInfo]:
    """Return what is known of each index on a server, in order of name.

    Indexes of other versions of fairqr are among them, so that they can be deleted.
    """
    found = []
    async with _server(connection) as server:
        for index, state in (await _states(server, f"{PREFIX}*")).items():
            meta = raw_meta(state)
            alias = f"{PREFIX}{meta.get('name')}"
            if alias in state["aliases"]:
                found.append(
                    IndexInfo(
                        name=str(meta["name"]),
                        backend="elasticsearch",
                        documents=await _count(server, index),
                        location=f"{server.url}/{alias}",
                        source=str(meta.get("source", "")),
                        source_sha256=str(meta.get("source_sha256", "")),
                    )
                )
    return sorted(found, key=lambda info: info.name)


async def live_index(server: Server, name: str) -> tuple[str, Meta]:
    """Return the server index that the alias of a name points at, and what is known of it.

    Raises:
        IndexNotFoundError: There is none.
        IndexVersionError: This version of fairqr cannot read it.
    """
    try:
        states = await _states(server, alias_of(name))
    except IndexNotFoundError:
        raise _not_found(server, name) from None
    # A second one is possible only by hand; its mapping is the first's, or fails as another format.
    index, state = max(states.items())
    return index, read_meta(state, name, server.url)


def _not_found(server: Server, name: str) -> IndexNotFoundError:
    return IndexNotFoundError(
        f"There is no index '{name}' at {server.url}; create it with 'fairqr index create {name}'."
    )


@asynccontextmanager
async def _server(connection: Connection) -> AsyncIterator[Server]:
    server = Server(connection)
    try:
        yield server
    finally:
        await server.close()


async def _states(server: Server, pattern: str) -> dict[str, Any]:
    """Return aliases and mappings of server indexes, by name."""
    answer = await server.call(
        lambda client: client.indices.get(index=pattern, features=["aliases", "mappings"])
    )
    states: dict[str, Any] = answer.body
    return states


async def _count(server: Server, index: str) -> int:
    answer = await server.call(lambda client: client.count(index=index))
    count: int = answer["count"]
    return count


async def _remove(server: Server, indexes: list[str]) -> None:
    for index in indexes:
        await server.call(
            lambda client, index=index: client.indices.delete(index=index, ignore_unavailable=True)  # type: ignore[misc]
        )


async def _remove_leftovers(server: Server, name: str) -> None:
    """Remove what ended builds of a name left; the rule is at the top of this module."""
    leftovers = []
    for index, state in (await _states(server, f"{alias_of(name)}-*")).items():
        raw = raw_meta(state)
        if raw.get("name") != name or state["aliases"]:
            continue
        try:
            mark = BuildMark.model_validate(raw.get("build"))
        except ValueError:
            continue  # not ours to judge: another version's
        if mark.abandoned():
            leftovers.append(index)
    await _remove(server, leftovers)


async def _create(server: Server, index: str, meta: Meta, shards: int) -> None:
    async def send(client: AsyncElasticsearch) -> None:
        try:
            await client.indices.create(
                index=index,
                mappings=mappings_of(meta),
                settings=settings_of(meta.corpus_schema, shards),
            )
        except BadRequestError as error:
            # Only an earlier attempt whose answer was lost can have taken this name.
            if error_type(error.body) != "resource_already_exists_exception":
                raise

    await server.call(send)


async def _write_meta(server: Server, index: str, meta: Meta) -> None:
    await server.call(lambda client: client.indices.put_mapping(index=index, meta=meta.stored()))


@asynccontextmanager
async def _signs_of_life(server: Server, index: str, meta: Meta) -> AsyncIterator[None]:
    """Renew the mark of a build now and then, until the block ends."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_SECONDS)
            alive = meta.model_copy(update={"build": meta.build.alive()})
            with suppress(FairqrError):  # what is wrong shows in the build itself
                await _write_meta(server, index, alive)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _load(
    server: Server,
    index: str,
    meta: Meta,
    documents: Iterable[Document],
    progress: Progress | None,
) -> int:
    """Write documents and return how many."""

    def actions() -> Iterator[Action]:
        for number, document in enumerate(documents, start=1):
            entry = stored_document(document, meta.corpus_schema, number)
            yield Action("create", document.id, entry, number)

    tally = Tally()
    async for outcomes in bulk(server, index, actions(), alias=False):
        tally.add(await _without_echoes(server, index, outcomes, meta.source))
        if progress:
            progress(tally.written)
    tally.complain()
    if tally.written == 0:
        raise CorpusError(f"The corpus {meta.source} is empty; it needs a document.")
    return tally.written


async def _without_echoes(
    server: Server, index: str, outcomes: list[Outcome], source: str
) -> list[Outcome]:
    """Take a conflict of a document with itself, sent again after a lost answer, for a success.

    Raises:
        CorpusError: The conflict is with another document.
    """
    conflicts = [outcome.action for outcome in outcomes if outcome.status == 409]
    if not conflicts:
        return outcomes
    ids = [action.id for action in conflicts]
    answer = await server.call(
        lambda client: client.mget(index=index, ids=ids, source_includes=["source.number"])
    )
    for action, found in zip(conflicts, answer["docs"], strict=True):
        first = found["_source"]["source"]["number"]
        if first != action.number:
            raise CorpusError(
                f"The id '{action.id}' stands twice in {source}, in documents {first} and "
                f"{action.number}; 'fairqr corpus check' names the lines."
            )
    return [
        Outcome(outcome.action, 200) if outcome.status == 409 else outcome for outcome in outcomes
    ]


async def _finish(server: Server, index: str, meta: Meta, count: int) -> None:
    """Make the documents visible, check that they are all there, and mark the index as whole."""
    await server.call(lambda client: client.indices.refresh(index=index))
    state = (await _states(server, index))[index]
    # Writing to an index that was deleted meanwhile makes the server create a wrong one.
    token = raw_meta(state).get("build", {}).get("token")
    if token != meta.build.token or await _count(server, index) != count:
        raise IndexUnavailableError(
            f"The index '{meta.name}' was changed at {server.url} while it was built; "
            "build it again."
        )
    await server.call(
        lambda client: client.indices.put_settings(
            index=index, settings={"index": {"refresh_interval": None}}
        )
    )
    whole = meta.model_copy(update={"complete": True, "build": meta.build.alive()})
    await _write_meta(server, index, whole)


async def _switch(server: Server, name: str, index: str) -> list[str]:
    """Point the alias at a server index, and return those that it pointed at before."""
    alias = alias_of(name)
    states = await _states(server, f"{alias}-*")
    remove = {"index": f"{alias}-*", "alias": alias, "must_exist": False}
    add = {"index": index, "alias": alias}
    actions: list[dict[str, Any]] = [{"remove": remove}, {"add": add}]
    await server.call(lambda client: client.indices.update_aliases(actions=actions))
    return [
        other for other, state in states.items() if alias in state["aliases"] and other != index
    ]
