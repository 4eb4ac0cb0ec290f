"""What several commands share: options, consent, and how work is run and recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, Field

from fairqr.base.errors import InputError
from fairqr.cli.output import warn

if TYPE_CHECKING:
    from fairqr.retrieval.engines.engine import SearchEngine

T = TypeVar("T")

NOTABLES = "notables"
"""The built-in corpus and collection."""

LARGE_CALLS, LARGE_TOKENS = 2_000, 1_000_000
"""A run that may cost more needs the user's consent."""


class Searched(BaseModel):
    """What is searched, and how."""

    corpus: str | None = Field(
        None,
        description="What to search: a source, an index or a built-in corpus by name, or the path "
        "of a source file or a corpus. [default: FAIRQR_CORPUS, or notables]",
    )
    retriever: str | None = Field(
        None,
        description="How to find documents: bm25 by words; dense by vectors; hybrid by words and "
        "vectors. Write dense:ENCODER or hybrid:ENCODER for another encoder. Defaults to hybrid "
        "for an index once MiniLM is pulled, and otherwise to the engine's own ranking.",
    )

    @property
    def name(self) -> str:
        """The corpus, by default the configured one."""
        from fairqr.base.settings import default_corpus

        return default_corpus() if self.corpus is None else self.corpus


class Recording(BaseModel):
    """Whether a run is recorded, and where.

    A run is recorded if a file or a folder of traces is named. If the file could not be written
    whole, a warning says so.
    """

    trace: Path | None = Field(None, description="Record the run in this file, as JSON lines.")
    trace_content: bool = Field(False, description="Record queries and replies in the trace too.")

    def run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Run asynchronous work to its end, and record it.

        Args:
            work: What to run.
            what: The command that runs, for the name of a new file in the folder of traces.
        """
        try:
            with self._on(what):
                return run(work)
        finally:
            work.close()  # Without this, work that never started would warn.

    @contextlib.contextmanager
    def _on(self, what: str) -> Iterator[None]:
        from fairqr.base.settings import is_on, path_of

        trace = self.trace
        if trace is None and (folder := path_of("trace_dir")) is not None:
            from fairqr.cli.trace import new_trace

            trace = new_trace(folder, what)
        if trace is None:
            yield
            return
        from fairqr.base.telemetry import record_to

        with record_to(trace, content=self.trace_content or is_on("trace_content")) as recorder:
            yield
        if recorder.failure:
            warn(f"The trace {trace} is incomplete: {recorder.failure}.")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run asynchronous work to its end, with spans sent where OpenTelemetry's variables say."""
    # Not for --help: asyncio takes a quarter of the time to start.
    import asyncio

    from fairqr.base.exporting import exporting

    try:
        with exporting(warn):
            return asyncio.run(work)
    finally:
        work.close()  # Without this, work that never started would warn.


async def open_to_search(
    corpus: str, *, schema: Path | None = None, retriever: str | None = None
) -> SearchEngine:
    """Open a search engine; a bar shows what has to be indexed first.

    Args:
        corpus: A source, an index, a built-in corpus, or a path.
        schema: The schema of a corpus that is a path.
        retriever: How to find documents, as :func:`fairqr.open_engine` takes it.
    """
    from fairqr.cli.progress import Progress
    from fairqr.retrieval.encoders.opening import AUTO
    from fairqr.retrieval.sources.catalog import Catalog

    with Progress() as progress:
        return await Catalog().resolve(
            corpus, retriever=retriever or AUTO, schema=schema, progress=progress.prepare
        )


def agree(calls: int, tokens: int, *, yes: bool, instead: str = "make it smaller") -> None:
    """Go on only if a run is small, or the user agreed to it with ``--yes``.

    Args:
        calls: How often the model may be asked.
        tokens: How many tokens that may take.
        yes: Whether the user agreed.
        instead: How to make the run smaller.

    Raises:
        InputError: The run is large, and nobody agreed.
    """
    if not yes and (calls > LARGE_CALLS or tokens > LARGE_TOKENS):
        raise InputError(
            f"This run may ask the model {calls:,} times and take about {tokens:,} tokens, more "
            f"than {LARGE_CALLS:,} or {LARGE_TOKENS:,}; {instead}, or add --yes to go on."
        )
