"""What several commands share: the settings of runs, consent, and how work is run and recorded.

Help reads this module too, so it imports nothing heavy at its head.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.cli.output import warn
from fairqr.cli.parameters import checked
from fairqr.graph.documented import Documented

if TYPE_CHECKING:
    from fairqr.evaluation.experiments.measured import Measured
    from fairqr.evaluation.probes.specification import ProbeExperiment
    from fairqr.graph.search.context import Context
    from fairqr.prompts.library import PromptLibrary
    from fairqr.retrieval.engines.engine import SearchEngine
    from fairqr.retrieval.sources.documents import ProgressFunction
    from fairqr.retrieval.sources.source import Source

    Experiment = TypeVar("Experiment", bound=ProbeExperiment)

T = TypeVar("T")

NOTABLES = "notables"
"""The built-in corpus and collection."""

LARGE_CALLS, LARGE_TOKENS = 2_000, 1_000_000
"""A run that may cost more needs the user's consent."""

SEARCHED = ("corpus", "retriever")
RUN = (*SEARCHED, "model", "base_url", "trace", "trace_content")
"""The fields of :class:`Searched` and :class:`RunSettings` that have an option of their own."""


class Searched(Documented):
    """What is searched, and how.

    Attributes:
        corpus: What to search: a source, an index or a built-in corpus by name, or the path of a
            source file or a corpus. [default: FAIRQR_CORPUS, or notables]
        retriever: How to find documents: bm25 by words; dense by vectors; hybrid by words and
            vectors. Write dense:ENCODER or hybrid:ENCODER for another encoder. Defaults to hybrid
            for an index once MiniLM is pulled, and otherwise to the engine's own ranking.
        corpus_schema: The schema of a corpus that is a path; by default the file beside the corpus.
    """

    corpus: str | None = None
    retriever: str | None = None
    corpus_schema: Path | None = None

    @contextlib.asynccontextmanager
    async def opened(
        self, context: Context | None = None, source: Source | None = None
    ) -> AsyncIterator[SearchEngine]:
        """Open what is searched, and close it at the end.

        Args:
            context: The context whose method chooses the retriever that ``auto`` means.
            source: Opened instead of the corpus.
        """
        from fairqr.base.settings import default_corpus
        from fairqr.retrieval.encoders.opening import AUTO

        corpus = source or (default_corpus() if self.corpus is None else self.corpus)
        retriever = self.retriever or AUTO
        if context is not None:
            retriever = context.strategy.searched_by(retriever)
        engine = await open_to_search(corpus, schema=self.corpus_schema, retriever=retriever)
        async with contextlib.aclosing(engine):
            yield engine


class RunSettings(Searched):
    """How a run works; its context says what it does.

    Attributes:
        model: The language model, such as local:smollm2-135m or openai:gpt-4o. causal:NAME only
            ranks; feedback refines without a model. [default: FAIRQR_MODEL, or the local model]
        base_url: The URL of an OpenAI-compatible server.
        trace: Record the run in this file, as JSON lines.
        trace_content: Record queries and replies in the trace too.
        prompts_dir: A folder with your own prompts; FAIRQR_PROMPTS_DIR by default.
        timeout: How many seconds one request to a model may take.
        cache: Keep replies of models on disk, so that no question is asked twice.
        passages: Show how the text of each document begins.
    """

    model: str | None = None
    base_url: str | None = None
    trace: Path | None = None
    trace_content: bool = False
    prompts_dir: Path | None = None
    timeout: float = Field(60, gt=0)
    cache: bool = True
    passages: bool = True

    @property
    def model_options(self) -> dict[str, Any]:
        """How to open the model."""
        return {"cache": self.cache, "base_url": self.base_url, "timeout": self.timeout}

    def prompts_for(self, context: Context) -> PromptLibrary:
        """Return the prompts, after checking that they have the versions that the context names."""
        from fairqr.prompts.library import PromptLibrary

        library = PromptLibrary(self.prompts_dir)
        for id_, version in context.prompts.items():
            library.get(id_, version)
        return library

    async def passages_of(self, engine: SearchEngine, ids: Iterable[str]) -> Mapping[str, str]:
        """Return how the text of each document begins, by id; empty if that is not wanted."""
        from fairqr.graph.search.explanation import passage_of

        wanted = [*dict.fromkeys(ids)] if self.passages else []
        try:
            documents = await engine.documents(wanted) if wanted else []
        except FairqrError as error:  # the run succeeded, and may have cost money
            warn(f"The texts of the documents could not be read: {error}")
            return {}
        return {document.id: passage_of(document.text) for document in documents}

    def run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Run asynchronous work to its end, and record it; see :func:`run`."""
        return run(work, what, self.trace, content=self.trace_content)


class CostlyRunSettings(RunSettings):
    """How a run works that a model's ranking, or a probe, can make costly.

    Attributes:
        yes: Run even if the model may be asked more than 2,000 times or read more than 1,000,000
            tokens.
    """

    yes: bool = False


def run(
    work: Coroutine[Any, Any, T],
    what: str = "",
    trace: Path | None = None,
    *,
    content: bool = False,
) -> T:
    """Run asynchronous work to its end, with spans sent where OpenTelemetry's variables say.

    Args:
        work: What to run.
        what: The command that runs, for the name of a new file in the folder of traces; without it,
            nothing is recorded there.
        trace: The file to record the run in. If it could not be written whole, a warning says so.
        content: Record queries and replies too.
    """
    # Not for --help: asyncio takes a quarter of the time to start.
    import asyncio

    from fairqr.base.exporting import exporting

    try:
        with _recording(what, trace, content), exporting(warn):
            return asyncio.run(work)
    finally:
        work.close()  # Without this, work that never started would warn.


@contextlib.contextmanager
def _recording(what: str, trace: Path | None, content: bool) -> Iterator[None]:
    from fairqr.base.settings import is_on, path_of

    if trace is None and what and (folder := path_of("trace_dir")) is not None:
        from fairqr.cli.trace import new_trace

        trace = new_trace(folder, what)
    if trace is None:
        yield
        return
    from fairqr.base.telemetry import record_to

    with record_to(trace, content=content or is_on("trace_content")) as recorder:
        yield
    if recorder.failure:
        warn(f"The trace {trace} is incomplete: {recorder.failure}.")


async def open_to_search(
    corpus: str | Source, *, schema: Path | None = None, retriever: str | None = None
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


class Probed(Documented):
    """A probe collection: one that is built from a collection, or a folder of one.

    Attributes:
        attribute: An attribute of the collection's schema, such as gender.
        protected: The protected group: female, not Europe, or 'female vs male'. Defaults to female.
        words: What to call the two groups, PROTECTED/UNPROTECTED, such as women/men.
        collection: A collection with judgements: its name or its folder.
        from_: A folder that 'fairqr probe build' wrote, instead of a collection.
    """

    attribute: str | None = None
    protected: str | None = None
    words: str | None = None
    collection: str = NOTABLES
    from_: str | None = None

    def experiment(self, spec: type[Experiment], values: Mapping[str, Any]) -> Experiment:
        """Return an experiment on this collection.

        Args:
            spec: The class of the experiment.
            values: All other values.

        Raises:
            FairqrError: An option is missing or wrong, or there is no such collection or attribute.
        """
        name, split = values.get("collection", self.collection), values.get("split")
        if self.from_ is None:
            source = self.source(name, split)
            return checked(spec, {**values, "collection": name, "sources": (source,)})
        own = {**self.model_dump(include={"attribute", "protected", "words"}), "split": split}
        for option, value in own.items():
            if value is not None:
                raise InputError(
                    f"The folder of --from has its own {option}; leave out --{option}."
                )
        return checked(spec, {**values, "collection": None, "sources": ({"folder": self.from_},)})

    def source(
        self, collection: str, split: str | None, *, progress: ProgressFunction | None = None
    ) -> dict[str, Any]:
        """Return the probe collection to build, as an experiment file describes it.

        Raises:
            InputError: There is no attribute, the group has no name, or there are not two words.
        """
        from fairqr.evaluation.collections.finding import find_collection
        from fairqr.retrieval.fairness.protected import default_protected

        if not self.attribute:
            raise InputError(
                "A probe needs an attribute; name one with --attribute, such as gender."
            )
        words = None if self.words is None else tuple(self.words.split("/"))
        if words is not None and len(words) != 2:
            raise InputError(
                f"'{one_line(self.words, 100)}' is not a pair of words; write "
                "PROTECTED/UNPROTECTED, such as women/men."
            )
        protected = self.protected
        if protected is None:
            schema = find_collection(collection, split, progress=progress).corpus.schema
            protected = default_protected(schema.attribute(self.attribute))
        if not protected.strip():
            raise InputError("The protected group has no name; write it as --protected female.")
        return {"attribute": self.attribute, "protected": protected, "words": words}


def as_data(measured: Measured, parts: Iterable[str]) -> dict[str, Any]:
    """Return what was measured for ``--json``.

    Args:
        measured: The results.
        parts: The lists of the manifest to show.
    """
    from fairqr.evaluation.reports.tables import records_of

    manifest: Any = measured.manifest  # type: ignore[attr-defined]
    return {
        "experiment": manifest.experiment.model_dump(mode="json"),
        **{it: [each.model_dump(mode="json") for each in getattr(manifest, it)] for it in parts},
        **{name: records_of(frame) for name, frame in measured.frames.items()},
        "missing": measured.missing,  # type: ignore[attr-defined]
    }
