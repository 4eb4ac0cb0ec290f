"""Options and helpers that several commands share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fairqr.retrieval.engines.engine import SearchEngine

T = TypeVar("T")

MODELS, OUTPUT = "Models", "Output"
"""The sections of options in help texts that several commands have."""

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="The URL of an OpenAI-compatible server.", rich_help_panel=MODELS),
]
Corpus = Annotated[
    str | None,
    typer.Option(
        help="What to search: a source, an index or a built-in corpus by name, or the path of a "
        "source file or a corpus. [default: FAIRQR_CORPUS, or notables]"
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Ask the model again what it was asked before.")
]
PromptsFolder = Annotated[
    Path | None,
    typer.Option("--prompts", help="A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]"),
]
Timeout = Annotated[float, typer.Option(help="How many seconds one request to a model may take.")]
TraceContent = Annotated[
    bool,
    typer.Option(
        "--trace-content",
        help="Record queries and replies in the trace too.",
        rich_help_panel=OUTPUT,
    ),
]
LARGE_CALLS, LARGE_TOKENS = 2_000, 1_000_000
"""A run that may cost more needs the user's consent."""

Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Run even if the model may be asked more than "
        f"{LARGE_CALLS:,} times or read more than {LARGE_TOKENS:,} tokens.",
        rich_help_panel=MODELS,
    ),
]
TracePath = Annotated[
    Path | None,
    typer.Option(help="Record the run in this file, as JSON lines.", rich_help_panel=OUTPUT),
]


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


def run_recorded(
    work: Coroutine[Any, Any, T], trace: Path | None, *, content: bool, command: str
) -> T:
    """Run asynchronous work to its end, and record it as :func:`recorded` does."""
    try:
        with recorded(trace, content=content, command=command):
            return run(work)
    finally:
        work.close()  # Without this, work that never started would warn.


@contextlib.contextmanager
def recorded(trace: Path | None = None, *, content: bool = False, command: str) -> Iterator[None]:
    """Record what runs inside, if a file or a folder is named.

    Args:
        trace: The file to record to; defaults to a new one in the configured folder of traces, if
            there is such a folder. If the file could not be written whole, a warning says so.
        content: Record queries and replies too; the setting ``trace_content`` does the same.
        command: The command that runs, for the name of a new file.
    """
    from fairqr.base.settings import is_on, path_of

    folder = path_of("trace_dir")
    content = content or is_on("trace_content")
    if trace is None and folder is not None:
        from fairqr.cli.trace_reading import new_trace

        trace = new_trace(folder, command)
    if trace is None:
        yield
        return
    from fairqr.base.telemetry import record_to

    with record_to(trace, content=content) as recorder:
        yield
    if recorder.failure:
        warn(f"The trace {trace} is incomplete: {recorder.failure}.")


async def open_to_search(
    corpus: str, *, schema: Path | None = None, retriever: str = "bm25"
) -> SearchEngine:
    """Open a search engine; a bar shows what has to be indexed first.

    Args:
        corpus: A source, an index, a built-in corpus, or a path.
        schema: The schema of a corpus that is a path.
        retriever: How to find documents, as :func:`fairqr.open_engine` takes it.
    """
    from fairqr.cli.progress import Progress
    from fairqr.retrieval.sources.catalog import Catalog

    with Progress() as progress:
        return await Catalog().resolve(
            corpus, retriever=retriever, schema=schema, progress=progress.prepare
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
    from fairqr.base.errors import InputError

    if not yes and (calls > LARGE_CALLS or tokens > LARGE_TOKENS):
        raise InputError(
            f"This run may ask the model {calls:,} times and take about {tokens:,} tokens, more "
            f"than {LARGE_CALLS:,} or {LARGE_TOKENS:,}; {instead}, or add --yes to go on."
        )


def print_json(data: object) -> None:
    """Print JSON on one line, as UTF-8 on any terminal.

    Args:
        data: A JSON text, a pydantic model, or anything that ``json`` can write.
    """
    import json

    if not isinstance(data, str):
        to_json = getattr(data, "model_dump_json", None)
        data = to_json() if to_json else json.dumps(data, ensure_ascii=False)
    sys.stdout.buffer.write(data.encode() + b"\n")
    sys.stdout.buffer.flush()


def print_row(*cells: str) -> None:
    """Print a row of a list, with tabs between its cells."""
    typer.echo("\t".join(map(printable, cells)))


def printable(text: str) -> str:
    """Return a text that cannot steer the terminal, which a document could otherwise do."""
    return "".join(character if character.isprintable() else " " for character in text)


def notes() -> Console:
    """Return a console on stderr, for progress and warnings."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def warn(message: str) -> None:
    """Print a warning to stderr."""
    typer.echo(f"fairqr: {message}", err=True)


def pairs(texts: list[str], what: str, example: str) -> dict[str, str]:
    """Read options that are written as ``name=value``.

    Args:
        texts: The options.
        what: The sort of option, for people.
        example: An example of it.

    Raises:
        InputError: An option is written in another form, or a name is given twice.
    """
    from fairqr.base.errors import InputError

    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"'{text}' is not {what}; write {example}.")
        if name in found:
            raise InputError(f"'{name}' is given twice; give it once.")
        found[name] = value
    return found
