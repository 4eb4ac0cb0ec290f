"""What several commands share: the settings of runs, consent, and how work is run and recorded.

Help reads this module too, so it imports nothing heavy at its head.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel, Field, model_validator

from fairqr.base.errors import FairqrError, InputError
from fairqr.base.request_members import RequestMembers
from fairqr.base.settings import DEFAULT_TIMEOUT, REASONING_TOKENS, default_model
from fairqr.cli.output import warn
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from fairqr.graph.search.context import Context
    from fairqr.prompts.library import PromptLibrary
    from fairqr.retrieval.engines.engine import SearchEngine

T = TypeVar("T")

NOTABLES = "notables"
"""The built-in corpus and collection."""

LARGE_CALLS = 2_000
LARGE_TOKENS = 1_000_000
"""A run that may cost more than either needs the user's consent."""

WITHOUT_SERVER = ("local", "feedback", "recorded", "causal", "seq2seq")
"""The models in this process, which have no address."""

WITHOUT_REQUESTS = frozenset(WITHOUT_SERVER) - {"local"}
"""The models that are sent no requests; the embedded model has a server of its own."""

CORPUS_OPTIONS = ("--corpus", "--retriever")
RUN_OPTIONS = (*CORPUS_OPTIONS, "--model", "--base-url", "--trace", "--yes", "--verbose")
"""The fields of our settings that have options of their own; ``--set`` sets the others."""


class CorpusSettings(BaseModel):
    """Says what to search, and how to find documents there."""

    corpus: str | None = Field(
        None,
        description=(
            "What to search: a source, an index or a built-in corpus by name, or the path of a "
            "source file or a corpus. [default: FAIRQR_CORPUS, or notables]"
        ),
    )
    retriever: str | None = Field(
        None,
        description=(
            "How to find documents: bm25 by words; dense by vectors; hybrid by words and vectors. "
            "Write dense:ENCODER or hybrid:ENCODER for another encoder. Defaults to hybrid for an "
            "index once MiniLM is pulled, and otherwise to the engine's own ranking."
        ),
    )
    corpus_schema: Path | None = Field(
        None,
        description="The schema of a corpus that is a path; by default the file beside the corpus.",
    )

    @contextlib.asynccontextmanager
    async def open_engine(self, context: Context | None = None) -> AsyncIterator[SearchEngine]:
        """Open the search engine, and close it at the end; a bar shows what is indexed first.

        Args:
            context: The context whose method chooses the retriever that ``auto`` means.
        """
        from fairqr.base.settings import default_corpus
        from fairqr.retrieval.encoders.opening import AUTO
        from fairqr.retrieval.sources.catalog import Catalog

        corpus = default_corpus() if self.corpus is None else self.corpus
        retriever = self.retriever or AUTO
        if context is not None:
            retriever = context.strategy.searched_by(retriever)

        with Progress() as progress:
            engine = await Catalog().resolve(
                corpus,
                retriever=retriever,
                schema=self.corpus_schema,
                progress=progress.prepare,
            )
        async with contextlib.aclosing(engine):
            yield engine


class ModelSettings(BaseModel):
    """Says how to send requests to models; none of it changes the results."""

    base_url: str | None = Field(None, description="The URL of an OpenAI-compatible server.")
    prompts_dir: Path | None = Field(
        None, description="A folder with your own prompts; FAIRQR_PROMPTS_DIR by default."
    )
    timeout: float = Field(
        DEFAULT_TIMEOUT, gt=0, description="How many seconds one request to a model may take."
    )
    reasoning_tokens: int = Field(
        REASONING_TOKENS,
        ge=0,
        description="How many tokens a model that thinks before it answers may use for that.",
    )
    extra_body: RequestMembers = Field(
        {},
        description=(
            "More parameters for each request to a model, as a JSON object, such as "
            '{"chat_template_kwargs": {"enable_thinking": false}}.'
        ),
    )
    yes: bool = Field(
        False,
        description=(
            "Run even if the model may be asked more than 2,000 times or read more than 1,000,000 "
            "tokens."
        ),
    )

    @property
    def model_options(self) -> dict[str, Any]:
        """The options with which to open the model."""
        options: dict[str, Any] = {
            "base_url": self.base_url,
            "timeout": self.timeout,
            "reasoning_tokens": self.reasoning_tokens,
        }
        if self.extra_body:
            options["extra_body"] = self.extra_body
        return options


class RunSettings(CorpusSettings, ModelSettings):
    """Says how a run works; its context says what it does."""

    model: str | None = Field(
        None,
        description=(
            "The language model, such as local:smollm2-135m or openai:gpt-4o. causal:NAME only "
            "ranks; recorded:FILE only refines, from recorded replies; feedback refines without a "
            "model. A hosted model is sent your queries. [default: FAIRQR_MODEL, or the local "
            "model]"
        ),
    )
    trace: Path | None = Field(
        None,
        description=(
            "Record the run in this file, as JSON lines; FAIRQR_TRACE_CONTENT=true adds queries "
            "and replies."
        ),
    )
    cache: bool = Field(
        True, description="Keep replies of models on disk, so that no question is asked twice."
    )
    verbose: bool = Field(
        False,
        description=(
            "Also show how the result came about: rounds, prompts, tokens, how texts begin."
        ),
    )

    @model_validator(mode="after")
    def _address_is_of_the_model(self) -> Self:
        name = self.model_name
        kind = name.partition(":")[0]
        if self.base_url and kind in WITHOUT_SERVER:
            raise InputError(
                f"--base-url is the address of a model's server, which {name} has not; name the "
                "model with --model, such as openai:NAME."
            )
        if self.extra_body and kind in WITHOUT_REQUESTS:
            raise InputError(f"extra_body is for a model's server, which {name} has not.")
        return self

    @property
    def model_name(self) -> str:
        """The name of the model, also if it is the default one."""
        return self.model or default_model()

    @property
    def model_options(self) -> dict[str, Any]:
        """The options with which to open the model."""
        return {**super().model_options, "cache": self.cache}

    def prompts_for(self, context: Context) -> PromptLibrary:
        """Return the prompts, after checking that they have the versions that the context names."""
        from fairqr.prompts.library import PromptLibrary

        library = PromptLibrary(self.prompts_dir)
        for id_, version in context.prompts.items():
            library.get(id_, version)
        return library

    async def passages_of(self, engine: SearchEngine, ids: Iterable[str]) -> Mapping[str, str]:
        """Return how the text of each document begins, by id; empty unless details are shown."""
        from fairqr.graph.search.explanation import passage_of

        distinct = [*dict.fromkeys(ids)]
        if not self.verbose or not distinct:
            return {}
        try:
            documents = await engine.documents(distinct)
        except FairqrError as error:
            # The run itself succeeded, and may have cost money.
            warn(f"The texts of the documents could not be read: {error}")
            return {}
        return {document.id: passage_of(document.text) for document in documents}


def run(
    work: Coroutine[Any, Any, T],
    command: str = "",
    trace: Path | None = None,
    *,
    loop: Callable[[], AbstractEventLoop] | None = None,
) -> T:
    """Run asynchronous work to its end, with spans sent where OpenTelemetry's variables say.

    Args:
        work: What to run.
        command: The command that runs, for the name of a new file in the folder of traces; without
            it, nothing is recorded there.
        trace: The file to record the run in. If it could not be written whole, a warning says so.
        loop: Makes the event loop; defaults to asyncio's.
    """
    # Not for --help: asyncio takes a quarter of the time to start.
    import asyncio
    import signal

    from fairqr.base.exporting import exporting

    try:
        runner = asyncio.Runner(loop_factory=loop)
        with _recording(command, trace), exporting(warn), runner:
            # Windows has no such signal, and needs none.
            with contextlib.suppress(AttributeError):
                # With a handler for any signal, the loop wakes up for all of them. Otherwise, it
                # can miss a Ctrl-C until a thread ends, such as one that builds an index.
                runner.get_loop().add_signal_handler(signal.SIGURG, lambda: None)
            return runner.run(work)
    finally:
        # Without this, work that never started would warn.
        work.close()


@contextlib.contextmanager
def _recording(command: str, trace: Path | None) -> Iterator[None]:
    """Record what happens inside, in a given file or in a new one in the folder of traces."""
    if trace is None and command:
        trace = _new_trace(command)
    if trace is None:
        yield
        return
    from fairqr.base.telemetry import record_to

    with record_to(trace) as recorder:
        yield
    if recorder.failure:
        warn(f"The trace {trace} is incomplete: {recorder.failure}.")


def _new_trace(command: str) -> Path | None:
    """Return the path of a new file in the folder of traces, if the user has set one."""
    from secrets import token_hex

    from fairqr.base.settings import path_of

    folder = path_of("trace_dir")
    if folder is None:
        return None
    # What is recorded may be private.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{datetime.now():%Y%m%d-%H%M%S}-{command}-{token_hex(3)}.jsonl"


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
    is_large = calls > LARGE_CALLS or tokens > LARGE_TOKENS
    if is_large and not yes:
        raise InputError(
            f"This run may ask the model {calls:,} times and take about {tokens:,} tokens, more "
            f"than {LARGE_CALLS:,} or {LARGE_TOKENS:,}; {instead}, or add --yes to go on."
        )
