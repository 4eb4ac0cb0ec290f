"""The named indexes of a user: where they are, how they are built, and how they are opened.

An embedded index is a folder ``<data>/indexes/<name>`` with one folder for each version and a
symlink ``current``. A build writes a new version beside the current one and switches the symlink at
the end, so a build that is killed leaves the old index or none. An index on an Elasticsearch server
is a file ``<data>/elasticsearch/<name>.json`` that names the server; credentials are never written
down.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fairqr.errors import (
    BuildInProgressError,
    IndexNotFoundError,
    IndexVersionError,
    InputError,
)
from fairqr.retrieval.corpus import BUILT_IN, Corpus, find_corpus, holds_documents
from fairqr.retrieval.documents import Document
from fairqr.retrieval.files import write_beside
from fairqr.retrieval.index import Index, IndexInfo, Progress
from fairqr.settings import data_dir

if TYPE_CHECKING:
    from fairqr.retrieval.tantivy_index import TantivyIndex

__all__ = ["Backend", "Catalog", "Choice"]

Backend = Literal["tantivy", "elasticsearch"]

WAIT_SECONDS = 0.1

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Choice:
    """Where an index is to be: the backend, and the server where it is on one."""

    backend: Backend = "tantivy"
    url: str | None = None


class Catalog:
    """The indexes in a folder.

    Args:
        folder: The user's data folder where None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        root = folder or data_dir()
        self._local = root / "indexes"
        self._remote = root / "elasticsearch"

    def names(self) -> list[tuple[str, Backend]]:
        """Return the names of all indexes, each with its backend."""
        local = [path.parent.name for path in self._local.glob("*/current")]
        remote = [path.stem for path in self._remote.glob("*.json")]
        entries: list[tuple[str, Backend]] = [(name, "tantivy") for name in local]
        entries += [(name, "elasticsearch") for name in remote]
        return sorted(entries)

    async def create(
        self,
        name: str,
        corpus: Corpus,
        choice: Choice = Choice(),
        progress: Progress | None = None,
        shown_source: str | None = None,
    ) -> Index:
        """Build an index from a corpus, in place of one of the same name, and open it.

        Args:
            name: Lower-case letters, digits, dots, dashes and underscores.
            corpus: What to index.
            choice: Where.
            progress: Told how many documents are written.
            shown_source: What stands as the source; the file's path where None.

        Raises:
            InputError: The name is not a name, or that of a built-in corpus and this is another.
            CorpusError: The corpus is empty or wrong; the index is then as it was.
            BuildInProgressError: Another process builds the same index.
        """
        check_name(name)
        await asyncio.to_thread(_refuse_built_in, name, corpus)
        return await self._create(name, corpus, choice, progress, shown_source)

    async def _create(
        self,
        name: str,
        corpus: Corpus,
        choice: Choice,
        progress: Progress | None,
        shown_source: str | None,
        *,
        share: bool = False,
    ) -> Index:
        """Do what :meth:`create` says; ``share`` waits for another's build and takes the result."""
        source = shown_source or str(corpus.path.resolve())
        fingerprint = await asyncio.to_thread(corpus_fingerprint, corpus)
        if choice.backend == "elasticsearch":
            from fairqr.retrieval import elasticsearch_index as es

            connection = es.Connection.from_environment(choice.url)
            await es.build_elasticsearch(
                connection,
                name,
                corpus.schema,
                corpus.documents(),
                source=source,
                source_sha256=fingerprint,
                progress=progress,
            )
            note = json.dumps({"url": connection.shown})
            await asyncio.to_thread(write_beside, self._remote / f"{name}.json", note)
            return await es.ElasticsearchIndex.open(connection, name)
        stop = threading.Event()
        build = functools.partial(
            self._build_local, name, corpus, source, fingerprint, progress, stop, share=share
        )
        while True:
            try:
                return await asyncio.to_thread(build)
            except asyncio.CancelledError:
                # The thread goes on by itself; this makes it leave everything as it was.
                stop.set()
                raise
            except BuildInProgressError:
                if not share:
                    raise
            # Not in the thread: many may wait, and the threads are few.
            await asyncio.sleep(WAIT_SECONDS)

    async def open(self, name: str, choice: Choice | None = None) -> Index:
        """Open an index.

        Args:
            name: Of the index.
            choice: Where it is; where None, the embedded index of that name, or else the one on a
                server.

        Raises:
            IndexNotFoundError: There is none.
            IndexVersionError: It was written by another version.
        """
        check_name(name)
        known = await asyncio.to_thread(self._backends_of, name)
        if choice is None:
            if not known:
                raise await asyncio.to_thread(self._no_such, name)
            choice = Choice("tantivy" if "tantivy" in known else "elasticsearch")
        if choice.backend == "elasticsearch":
            from fairqr.retrieval import elasticsearch_index as es

            url = choice.url or await asyncio.to_thread(self._url_of, name)
            return await es.ElasticsearchIndex.open(es.Connection.from_environment(url), name)
        if "tantivy" not in known:
            raise await asyncio.to_thread(self._no_such, name)
        return await asyncio.to_thread(self._open_local, name)

    async def resolve(
        self,
        corpus: str,
        choice: Choice | None = None,
        progress: Callable[[str], Progress] | None = None,
        schema: Path | None = None,
    ) -> Index:
        """Open what a user calls a corpus, and index it first where that is not done yet.

        Where another process indexes it just now, this waits and opens what that one made.

        Args:
            corpus: The name of an index or of a built-in corpus, or a path; a folder of the same
                name as an index is taken for the index.
            choice: Where the index is or is to be.
            progress: Called with the name of what is being indexed, once, if anything is.
            schema: Of the corpus at a path.

        Raises:
            IndexNotFoundError: There is nothing of that name.
        """
        found = await asyncio.to_thread(_named_corpus, corpus, schema)
        if found is None:
            try:
                return await self.open(corpus, choice)
            except (IndexNotFoundError, InputError):
                if not corpus or not holds_documents(Path(corpus)):
                    raise
            found = await asyncio.to_thread(find_corpus, Path(corpus), schema)
        name = corpus if corpus in BUILT_IN else _name_of(found.path)
        try:
            index = await self.open(name, choice)
            built_from = (await index.info()).source_sha256
            if built_from == await asyncio.to_thread(corpus_fingerprint, found):
                return index
            await index.close()
        except (IndexNotFoundError, IndexVersionError):
            pass
        return await self._create(
            name,
            found,
            choice or Choice(),
            progress(name) if progress else None,
            corpus if corpus in BUILT_IN else None,
            share=True,
        )

    async def delete(self, name: str, choice: Choice | None = None) -> None:
        """Delete an index.

        Args:
            name: Of the index.
            choice: Where it is; where None, wherever there is one of that name. One on a server is
                deleted there even if it was made on another machine.

        Raises:
            IndexNotFoundError: There is none.
            InputError: There are two, one on each backend, and none is named.
        """
        check_name(name)
        if choice is None:
            choice = Choice(await asyncio.to_thread(self._only_backend_of, name))
        if choice.backend == "elasticsearch":
            from fairqr.retrieval import elasticsearch_index as es

            noted = await asyncio.to_thread(self._url_of, name)
            connection = es.Connection.from_environment(choice.url or noted)
            note = self._remote / f"{name}.json"
            # What is noted of another server's index of that name stays.
            ours = note.exists() and noted in (None, connection.shown)
            try:
                await es.delete_elasticsearch(connection, name)
            except IndexNotFoundError:
                if not ours:
                    raise
                note.unlink(missing_ok=True)
                raise IndexNotFoundError(
                    f"The index '{name}' was no longer on {connection.shown}; "
                    "it is now off the list here too."
                ) from None
            if ours:
                note.unlink(missing_ok=True)
            return
        await asyncio.to_thread(self._delete_local, name)

    async def infos(
        self, choice: Choice | None = None
    ) -> list[IndexInfo | tuple[str, Backend, str]]:
        """Return what is known of each index; for one that cannot be opened, why.

        Args:
            choice: Of one backend only; for Elasticsearch all of fairqr's indexes on the server,
                wherever they were made.
        """
        if choice is not None and choice.backend == "elasticsearch":
            from fairqr.retrieval import elasticsearch_index as es

            return [*await es.list_elasticsearch(es.Connection.from_environment(choice.url))]
        found: list[IndexInfo | tuple[str, Backend, str]] = []
        for name, backend in await asyncio.to_thread(self.names):
            if choice is not None and backend != choice.backend:
                continue
            try:
                index = await self.open(name, Choice(backend))
                found.append(await index.info())
                await index.close()
            except Exception as error:
                found.append((name, backend, str(error)))
        return found

    def _backends_of(self, name: str) -> list[Backend]:
        return [backend for entry, backend in self.names() if entry == name]

    def _only_backend_of(self, name: str) -> Backend:
        known = self._backends_of(name)
        if len(known) > 1:
            raise InputError(
                f"There is an index '{name}' on each backend; name one with --backend."
            )
        return known[0] if known else "tantivy"

    def _delete_local(self, name: str) -> None:
        # What is left of a damaged index is deleted too, so it need not open.
        if not (self._local / name).is_dir():
            raise self._no_such(name)
        with self._building(name):
            shutil.rmtree(self._local / name)

    def _open_local(self, name: str) -> TantivyIndex:
        from fairqr.retrieval.tantivy_index import TantivyIndex

        while True:
            folder = (self._local / name / "current").resolve()
            try:
                return TantivyIndex(folder)
            except IndexVersionError:
                # A build may have put another version in its place meanwhile.
                if (self._local / name / "current").resolve() == folder:
                    raise

    def _url_of(self, name: str) -> str | None:
        try:
            url: str = json.loads((self._remote / f"{name}.json").read_text("utf-8"))["url"]
        except (OSError, ValueError, KeyError):
            return None
        return url

    def _no_such(self, name: str) -> IndexNotFoundError:
        known = ", ".join(
            [*BUILT_IN, *(entry for entry, _ in self.names() if entry not in BUILT_IN)]
        )
        return IndexNotFoundError(
            f"There is no index '{name}'; there are {known}, and "
            "'fairqr index create NAME PATH' makes one."
        )

    def _build_local(
        self,
        name: str,
        corpus: Corpus,
        source: str,
        fingerprint: str,
        progress: Progress | None,
        stop: threading.Event,
        *,
        share: bool,
    ) -> Index:
        from fairqr.retrieval.tantivy_index import TantivyIndex
        from fairqr.retrieval.tantivy_layout import FORMAT, Manifest

        folder = self._local / name
        manifest = Manifest(
            format=FORMAT,
            name=name,
            source=source,
            source_sha256=fingerprint,
            corpus_schema=corpus.schema,
        )
        with self._building(name):
            current = folder / "current"
            if share and current.exists():
                with contextlib.suppress(IndexVersionError):
                    made = self._open_local(name)
                    if made.manifest.source_sha256 == fingerprint:
                        return made
            old = current.resolve().name if current.exists() else "v0"
            # What a killed build left behind is in nobody's way, and removed here.
            _remove_versions(folder, keep=old)
            version = f"v{int(old[1:]) + 1}"
            try:
                documents = _until(stop, corpus.documents())
                TantivyIndex.build(folder / version, manifest, documents, progress)
            except BaseException:
                _remove_versions(folder, keep=old)
                if old == "v0":
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            switch = folder / "next"
            switch.unlink(missing_ok=True)
            switch.symlink_to(version)
            switch.replace(current)
            # Readers of the old version keep their open files.
            _remove_versions(folder, keep=version)
        return TantivyIndex(folder / version)

    @contextlib.contextmanager
    def _building(self, name: str) -> Iterator[None]:
        """Hold the lock on an index; the system lets go of it when the process dies."""
        self._local.mkdir(parents=True, exist_ok=True)
        with (self._local / f".{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BuildInProgressError(
                    f"Another process is building the index '{name}'; wait until it has finished."
                ) from None
            (self._local / name).mkdir(exist_ok=True)
            yield


def _named_corpus(corpus: str, schema: Path | None) -> Corpus | None:
    """Return the corpus that a path or the name of a built-in one stands for."""
    if corpus in BUILT_IN:
        return find_corpus(BUILT_IN[corpus])
    path = Path(corpus)
    if "/" in corpus or path.suffix in (".jsonl", ".gz") or path.is_file():
        return find_corpus(path, schema)
    return None


def _refuse_built_in(name: str, corpus: Corpus) -> None:
    """Refuse the name of a built-in corpus for another, which the next search would replace."""
    if name not in BUILT_IN:
        return
    own = find_corpus(BUILT_IN[name])
    if corpus.path.resolve() != own.path.resolve() or corpus.schema != own.schema:
        raise InputError(
            f"'{name}' is the name of a built-in corpus; choose another one for this index."
        )


def corpus_fingerprint(corpus: Corpus) -> str:
    """Return a hash of the documents and the schema together."""
    schema = corpus.schema.model_dump_json()
    return hashlib.sha256((corpus.sha256() + schema).encode()).hexdigest()


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a folder and of an Elasticsearch index.

    Raises:
        InputError: It is not a name.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"'{name}' cannot be the name of an index; use lower-case letters, digits, dots, "
            "dashes and underscores."
        )


def _name_of(path: Path) -> str:
    """Return the name of the index that is made of a file: its own, and a hash of where it is."""
    stem = re.sub(r"[^a-z0-9_-]+", "-", path.name.lower().split(".")[0]).strip("-_")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    return f"{stem[:80] or 'corpus'}-{place}"


def _until(stop: threading.Event, documents: Iterator[Document]) -> Iterator[Document]:
    for document in documents:
        if stop.is_set():
            raise CancelledBuildError
        yield document


class CancelledBuildError(Exception):
    """Whoever waited for the build no longer does."""


def _remove_versions(folder: Path, keep: str) -> None:
    for path in folder.glob("v*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)
