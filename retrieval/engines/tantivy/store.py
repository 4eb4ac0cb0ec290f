"""The embedded indexes of a user: one folder for each index, with one folder for each build.

``<name>/current`` is a link to the newest build, such as ``<name>/v3``. We write a build beside the
current one, and switch the link at the end. So a killed build leaves the old index or none, and
whoever reads the old one continues to.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from fairqr.base.errors import BuildInProgressError, IndexNotFoundError, IndexVersionError
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.engines.tantivy.folder import (
    Manifest,
    build_index,
    remove_documents,
    upsert_documents,
)
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import Document, Progress
from fairqr.retrieval.sources.labels import LabelReader

Announce = Callable[[str], Progress]
"""Called with the name of what is being made; returns the callback for the number of documents."""

T = TypeVar("T")

WAIT_SECONDS = 0.1


class _StoppedError(Exception):
    """Nobody is waiting for the build any more."""


class EmbeddedIndexes:
    """The embedded indexes in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of all indexes."""
        return sorted(path.parent.name for path in self._folder.glob("*/current"))

    async def open(self, name: str, shown: str | None = None) -> TantivyEngine:
        """Open an index.

        Args:
            name: The name of the index.
            shown: The name the engine gives itself; the index name by default.

        Raises:
            IndexNotFoundError: There is no such index.
            IndexVersionError: It is damaged, or was written by another version.
        """
        return await asyncio.to_thread(self._open, name, shown or name)

    def version(self, name: str) -> str:
        """Return the current version of an index; each build makes a new one."""
        try:
            return str((self._folder / name / "current").readlink())
        except OSError:  # There is no such index.
            return ""

    async def create(
        self, name: str, corpus: Corpus, source: str, progress: Progress | None = None
    ) -> TantivyEngine:
        """Build an index, replacing one of the same name, and open it.

        Args:
            name: The name of the index.
            corpus: What to index.
            source: Where the documents come from, for users.
            progress: Called with the number of documents written.

        Raises:
            CorpusError: The corpus is empty or wrong; an existing index stays unchanged.
            BuildInProgressError: Another process is writing to the same index.
        """
        manifest = await asyncio.to_thread(_manifest, corpus, source)
        labels = await self._labels(manifest)
        return await self._build(name, name, corpus, manifest, labels, progress)

    async def up_to_date(
        self,
        name: str,
        corpus: Corpus,
        source: str,
        announce: Announce | None = None,
        shown: str | None = None,
    ) -> TantivyEngine:
        """Open the index of a corpus, building it first if it is missing or the corpus changed.

        If another process is building it, this waits and opens the result.
        """
        shown = shown or name
        engine = None
        with contextlib.suppress(IndexNotFoundError, IndexVersionError):
            engine = await self.open(name, shown)
        files = await asyncio.to_thread(corpus.files)
        if engine is not None and files and files == engine.manifest.files:
            return engine
        manifest = await asyncio.to_thread(_manifest, corpus, source)
        if engine is not None and manifest.fingerprint == engine.manifest.fingerprint:
            # Note the files, so that we need not hash them again; a folder may be read-only.
            with contextlib.suppress(OSError):
                noted = engine.manifest.model_copy(update={"files": manifest.files})
                await asyncio.to_thread(noted.write, engine.folder)
            return engine
        labels = await self._labels(manifest, announced(announce, f"labels of {shown}"))
        progress = announced(announce, shown)
        while True:
            try:
                return await self._build(
                    name, shown, corpus, manifest, labels, progress, share=True
                )
            except BuildInProgressError:
                # Not in a thread: many may be waiting, and there are few threads.
                await asyncio.sleep(WAIT_SECONDS)

    async def upsert(
        self, name: str, documents: Iterable[Document], progress: Progress | None = None
    ) -> int:
        """Add documents, replacing those with the same ids, and return how many were written.

        Raises:
            IndexNotFoundError: There is no such index.
            BuildInProgressError: Another process is writing to it.
            CorpusError: A document is wrong; the index stays unchanged.
        """
        labels = await self._labels((await self.open(name)).manifest)
        return await self._locked(
            name,
            lambda: upsert_documents(self._current(name), documents, labels, progress),
        )

    async def remove(self, name: str, ids: Sequence[str]) -> int:
        """Remove documents, and return how many were removed.

        Raises:
            IndexNotFoundError: There is no such index.
            BuildInProgressError: Another process is writing to it.
        """
        await self.open(name)
        return await self._locked(name, lambda: remove_documents(self._current(name), ids))

    async def delete(self, name: str) -> None:
        """Delete an index, or the remains of a damaged one.

        Raises:
            IndexNotFoundError: There is no such index.
            BuildInProgressError: Another process is writing to it.
        """
        if not (self._folder / name).is_dir():
            raise _no_such(name)
        await self._locked(name, lambda: shutil.rmtree(self._folder / name))

    async def _build(
        self,
        name: str,
        shown: str,
        corpus: Corpus,
        manifest: Manifest,
        labels: LabelReader,
        progress: Progress | None,
        *,
        share: bool = False,
    ) -> TantivyEngine:
        """Build an index and open it, or with ``share`` open what another made of this corpus."""
        # With the groups that label files name.
        manifest = manifest.model_copy(update={"corpus_schema": labels.schema})
        stop = threading.Event()

        def documents() -> Iterator[Document]:
            for document in corpus.documents():
                if stop.is_set():
                    raise _StoppedError
                yield document

        def work() -> TantivyEngine:
            if share:
                with contextlib.suppress(IndexNotFoundError, IndexVersionError):
                    made = self._open(name, shown)
                    if made.manifest.fingerprint == manifest.fingerprint:
                        return made
            with self._new_version(name) as folder:
                build_index(folder, manifest, documents(), labels, progress)
            return self._open(name, shown)

        try:
            return await self._locked(name, work)
        except asyncio.CancelledError:
            # The thread continues alone; this makes it leave everything unchanged.
            stop.set()
            raise

    async def _labels(self, manifest: Manifest, progress: Progress | None = None) -> LabelReader:
        return await LabelReader.open(
            manifest.corpus_schema.attributes,
            manifest.labels_folder,
            store=self._folder.parent / "labels",
            progress=progress,
            strict=True,
        )

    def _current(self, name: str) -> Path:
        link = self._folder / name / "current"
        if not link.is_symlink():
            raise _no_such(name)
        return link.resolve()

    def _open(self, name: str, shown: str) -> TantivyEngine:
        while True:
            folder = self._current(name)
            try:
                return TantivyEngine(folder, shown)
            except IndexVersionError:
                # A build may have replaced the version in the meantime.
                if self._current(name) == folder:
                    raise

    async def _locked(self, name: str, work: Callable[[], T]) -> T:
        """Work in a thread under the lock on an index, which ends when the process dies."""

        def locked() -> T:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(self._folder / f".{name}.lock", timeout=0):
                    return work()
            except Timeout:
                raise BuildInProgressError(
                    f"Another process is writing to the index '{name}'; wait until it has finished."
                ) from None

        return await asyncio.to_thread(locked)

    @contextlib.contextmanager
    def _new_version(self, name: str) -> Iterator[Path]:
        """Yield a folder to build in, which becomes the current version at the end."""
        index = self._folder / name
        current, switch = index / "current", index / "next"
        old = current.resolve().name if current.is_symlink() else "v0"
        # Remove what killed builds left behind.
        _remove_versions(index, keep=old)
        new = index / f"v{int(old[1:]) + 1}"
        try:
            yield new
        except BaseException:
            shutil.rmtree(new if current.is_symlink() else index, ignore_errors=True)
            raise
        switch.unlink(missing_ok=True)
        switch.symlink_to(new.name)
        switch.replace(current)
        # Readers of the old version keep their files open.
        _remove_versions(index, keep=new.name)


def announced(announce: Announce | None, name: str) -> Progress | None:
    """Return a progress callback that announces the name when it is first called."""
    if announce is None:
        return None
    announce_once = functools.cache(announce)

    def tell(done: int, /, *total: int | None) -> None:
        announce_once(name)(done, *total)

    return tell


def _manifest(corpus: Corpus, source: str) -> Manifest:
    return Manifest(
        source=source,
        files=corpus.files(),
        fingerprint=corpus.fingerprint(),
        labels_folder=corpus.labels_folder.absolute(),
        corpus_schema=corpus.schema,
    )


def _remove_versions(index: Path, keep: str) -> None:
    for path in index.glob("v*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


def _no_such(name: str) -> IndexNotFoundError:
    return IndexNotFoundError(
        f"There is no index '{name}'; create it with 'fairqr index create {name} PATH'."
    )
