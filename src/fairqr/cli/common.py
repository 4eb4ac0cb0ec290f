"""What several commands share."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fairqr.retrieval.catalog import Choice
    from fairqr.retrieval.index import Index

__all__ = [
    "AsJson",
    "BackendOption",
    "BaseUrl",
    "Corpus",
    "NoCache",
    "PromptsFolder",
    "SchemaPath",
    "Timeout",
    "TraceContent",
    "TracePath",
    "UrlOption",
    "Yes",
    "choice",
    "indexing_bar",
    "notes",
    "open_to_search",
    "pairs",
    "print_json",
    "recorded",
    "run",
    "run_recorded",
    "warn",
]

T = TypeVar("T")

BackendOption = typer.Option(
    help="Where the index is: tantivy (embedded) or elasticsearch.", metavar="BACKEND"
)
UrlOption = typer.Option(
    help="The Elasticsearch server; FAIRQR_ELASTICSEARCH_URL where not given.", metavar="URL"
)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
BaseUrl = Annotated[str | None, typer.Option(help="Of an OpenAI-compatible server.")]
Corpus = Annotated[
    str | None,
    typer.Option(
        help="A built-in corpus, an index, or the path of a corpus; FAIRQR_CORPUS where not given. "
        "[default: notables]"
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Ask the model even what it was asked before.")
]
PromptsFolder = Annotated[
    Path | None,
    typer.Option("--prompts", help="A folder of your own prompts; FAIRQR_PROMPTS_DIR."),
]
SchemaPath = Annotated[Path | None, typer.Option(help="The schema of a corpus that is a path.")]
Timeout = Annotated[float, typer.Option(help="Seconds that one model request may take.")]
TraceContent = Annotated[
    bool, typer.Option("--trace-content", help="Record queries and replies too.")
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        help="Go on where more than 2,000 questions or 1,000,000 tokens are to be paid for.",
    ),
]
TracePath = Annotated[Path | None, typer.Option(help="Record the run, as JSON lines.")]


def run(work: Coroutine[Any, Any, T], *, serving: bool = False) -> T:
    """Run asynchronous work to its end, with spans sent where OpenTelemetry's variables say.

    Args:
        work: What to run.
        serving: It has no end to wait for, so that spans that cannot be sent are told of at once.
    """
    from fairqr.exporting import exporting

    try:
        with exporting(warn, at_once=serving):
            return asyncio.run(work)
    finally:
        work.close()  # for where it was not begun


def run_recorded(
    work: Coroutine[Any, Any, T], trace: Path | None, *, content: bool, command: str
) -> T:
    """Run asynchronous work to its end, and record it where that is asked for; see `recorded`."""
    try:
        with recorded(trace, content=content, command=command):
            return run(work)
    finally:
        work.close()  # for where it was not begun


@contextlib.contextmanager
def recorded(trace: Path | None = None, *, content: bool = False, command: str) -> Iterator[None]:
    """Record what runs inside, where that is asked for.

    Args:
        trace: The file to record to; where None, one in the configured folder of traces, if there
            is one. A file that could not be written whole is warned of.
        content: Record queries and replies too, as the setting ``trace_content`` may ask as well.
        command: That runs it, for the name of a file in the folder.
    """
    from fairqr.settings import is_on, path_of

    folder = path_of("trace_dir")
    content = content or is_on("trace_content")
    if trace is None and folder is not None:
        from fairqr.cli.trace_reading import new_trace

        trace = new_trace(folder, command)
    if trace is None:
        yield
        return
    from fairqr.recording import record_to

    with record_to(trace, content=content) as recorder:
        yield
    if recorder.failure:
        warn(f"The trace {trace} is not whole: {recorder.failure}.")


async def open_to_search(
    corpus: str,
    where: Choice | None,
    schema: Path | None,
    retriever: str,
) -> Index:
    """Open an index, made first where it has to be; a bar shows that.

    Args:
        corpus: A built-in corpus, an index, or a path.
        where: The index is; None where nothing was said.
        schema: Of a corpus that is a path.
        retriever: ``bm25``, ``dense`` or ``dense:ENCODER``.
    """
    from fairqr.retrieval.catalog import Catalog
    from fairqr.retrieval.vectors.open import open_retriever

    with indexing_bar() as bar:
        index = await Catalog().resolve(corpus, where, bar, schema)
        return await open_retriever(index, retriever, bar(f"vectors of {index.name}"))


def print_json(text: str) -> None:
    """Print a JSON text as UTF-8, as JSON is, whatever the terminal takes."""
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


def notes() -> Console:
    """Return the console for what is no result: progress, warnings. It writes to stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def warn(message: str) -> None:
    """Print a warning to stderr."""
    typer.echo(f"fairqr: {message}", err=True)


def choice(backend: str | None, url: str | None) -> Choice | None:
    """Return where an index is to be, or None where nothing was said.

    Raises:
        InputError: There is no such backend, or a server is given for the embedded one.
    """
    from fairqr.errors import InputError
    from fairqr.retrieval.catalog import Choice

    if backend is None:
        return Choice("elasticsearch", url) if url else None
    if backend not in ("tantivy", "elasticsearch"):
        raise InputError(f"There is no backend '{backend}'; choose tantivy or elasticsearch.")
    if backend == "tantivy" and url:
        raise InputError("The embedded index needs no --url; leave it out or choose elasticsearch.")
    return Choice(backend, url)  # type: ignore[arg-type]


@contextlib.contextmanager
def indexing_bar() -> Iterator[Callable[[str], Callable[[int], None]]]:
    """Show how many documents are indexed, if anybody watches.

    Yields a function that starts the bar for an index and returns what tells it the number.
    """
    if not sys.stderr.isatty():
        yield lambda name: lambda count: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("indexing {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} documents"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=notes(), transient=True) as progress:

        def start(name: str) -> Callable[[int], None]:
            task = progress.add_task(name, total=None)
            return lambda count: progress.update(task, completed=count)

        yield start


def pairs(texts: list[str], what: str, example: str) -> dict[str, str]:
    """Read options that are written as ``name=value``.

    Args:
        texts: The options.
        what: What each is, for people.
        example: One of them.

    Raises:
        InputError: One is not written so, or a name stands twice.
    """
    from fairqr.errors import InputError

    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"'{text}' is not {what}; write {example}.")
        if name in found:
            raise InputError(f"'{name}' is given twice; give it once.")
        found[name] = value
    return found
