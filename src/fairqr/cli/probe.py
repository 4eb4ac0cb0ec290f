"""The commands ``fairqr probe …``: does a model, asked to rank, favour a group?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from fairqr.base.errors import ModelError
from fairqr.base.extras import library
from fairqr.base.settings import cache_dir, default_model
from fairqr.cli.common import RUN_OPTIONS, ModelSettings, RunSettings, agree, run
from fairqr.cli.options import Fields, command
from fairqr.cli.output import (
    Printed,
    frame_table,
    interval,
    literal,
    number,
    quantity,
    table,
)
from fairqr.cli.parameters import checked
from fairqr.cli.progress import Progress
from fairqr.evaluation.probes.specification import (
    LISTWISE_KIND,
    PAIRWISE_KIND,
    ListwiseExperiment,
    PairwiseExperiment,
)
from fairqr.graph.probe.context import ProbeContext

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import RenderableType
    from rich.text import Text

    from fairqr.graph.probe.result import ListwiseProbe, PairwiseProbe, ProbeResult

    Words = Mapping[str, str]  # of the protected and of the unprotected side

app = typer.Typer()


class QueryRunSettings(RunSettings):
    """Says how a run that probes one query works."""

    model: str | None = Field(
        None,
        description=(
            "The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal:NAME with a "
            "model of transformers. [default: FAIRQR_MODEL, or the local model]"
        ),
    )


class ProbeRunSettings(ModelSettings):
    """Says how a probe of many queries runs."""

    concurrency: int = Field(
        4,
        ge=1,
        le=256,
        description="How many pairs or lists run at a time; use 1 to measure times.",
    )
    output: Path | None = Field(
        None,
        description="The folder of the run; an interrupted run resumes. [default: in the cache]",
    )


_EXPERIMENT_OPTIONS = (
    "--collection",
    "--attribute",
    "--protected",
    "--words",
    "--queries",
    "--seed",
)
_RUN_OPTIONS = Fields(
    "--base-url",
    "--timeout",
    "--concurrency",
    "--output",
    "--yes",
    ("--prompts", "prompts_dir"),
)
_FAVOURED = {
    "above": "expose {unprotected} items less",
    "below": "expose {protected} items less",
    "none": "show no clear difference of exposure",
    "too_few": "are too few to tell whom they expose less",
    "untested": "have no ratio of exposure",
}
"""What a verdict about the exposure of lists means for people."""


@command(app)
def query(
    query: Annotated[str, typer.Argument(help="What to search for.")],
    *,
    context: Annotated[
        ProbeContext,
        Fields(
            "-k",
            ("--attribute", "probe.attribute"),
            ("--protected", "probe.protected"),
            ("--words", "probe.words"),
            ("--kind", "probe.kinds"),
            ("--seed", "probe.seed"),
        ),
    ],
    settings: Annotated[QueryRunSettings, Fields(*RUN_OPTIONS)],
) -> Printed:
    """Search, and ask a model to rank what was found: does it favour a group?

    It compares two documents in both orders, and orders lists for different people who ask.
    """
    result = run(_probe_query(query, context, settings), "probe", settings.trace)
    lines = probe_lines(result, verbose=settings.verbose)
    if not _has_failed(result):
        return Printed(result, lines, warnings=result.warnings)
    # The first warning says what is wrong, so it becomes the error.
    reason, *warnings = result.warnings or ["The model gave no usable reply."]
    error = ModelError("failed", reason)
    return Printed(result, lines, warnings=warnings, error=error)


async def _probe_query(
    query: str, context: ProbeContext, settings: QueryRunSettings
) -> ProbeResult:
    """Search, and probe the model on the results."""
    from fairqr.agents.models.opening import open_language_model
    from fairqr.api import FairSearch
    from fairqr.cli.following import follow

    prompts = settings.prompts_for(context)
    model = open_language_model(settings.model, **settings.model_options)
    # Report a missing part before a large corpus is indexed.
    await model.start("text")
    async with settings.open_engine(context) as engine:
        search = FairSearch(engine, model, prompts=prompts)
        result, _ = await follow(search, query, context, settings, quiet=False, model=model.name)
        return result  # type: ignore[no-any-return]


def _has_failed(result: ProbeResult) -> bool:
    """Return whether no part of a probe has a usable reply."""
    statuses: list[str] = []
    if result.pairwise:
        statuses.append(result.pairwise.status)
    if result.listwise:
        statuses += [order.status for order in result.listwise.personas]
    return set(statuses) == {"failed"}


@command(app)
def pairwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields(*_EXPERIMENT_OPTIONS, model=PairwiseExperiment)],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help=(
                "The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal: "
                "with a model of transformers or the folder of a tuned adapter. Repeatable. "
                "[default: FAIRQR_MODEL, or the local model]"
            ),
        ),
    ] = None,
    settings: Annotated[ProbeRunSettings, _RUN_OPTIONS],
) -> Printed:
    """Ask a model which of two items is more relevant, in both orders, and give a verdict.

    One item belongs to the protected group and the other does not, and both are relevant or both
    are not. By default, at most 10 pairs of each kind per query; --set pairs=N changes that.
    """
    values = {
        "kind": PAIRWISE_KIND,
        "queries": 20,
        "pairs": 10,
        "models": model or [default_model()],
        **changes,
    }
    return _run_experiment(PairwiseExperiment, values, settings, _pairwise_lines)


@command(app)
def listwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields(*_EXPERIMENT_OPTIONS, model=ListwiseExperiment)],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help=(
                "The model to probe, as in 'fairqr probe pairwise', or pairwise:MODEL, "
                "monot5, monobert or initial. Repeatable. [default: FAIRQR_MODEL, or the "
                "local model]"
            ),
        ),
    ] = None,
    settings: Annotated[ProbeRunSettings, _RUN_OPTIONS],
) -> Printed:
    """Let a model rank lists for different personas, and measure how it exposes the groups."""
    values = {
        "kind": LISTWISE_KIND,
        "queries": 10,
        "rankers": model or [default_model()],
        **changes,
    }
    return _run_experiment(ListwiseExperiment, values, settings, _listwise_lines)


def _run_experiment(
    kind: type[PairwiseExperiment | ListwiseExperiment],
    values: Mapping[str, Any],
    settings: ProbeRunSettings,
    figure_lines: Callable[..., Iterator[RenderableType]],
) -> Printed:
    """Run a probe of many queries, measure it, and show the figures.

    Args:
        kind: The kind of experiment.
        values: What the user chose, and our defaults.
        settings: How it runs.
        figure_lines: Yields the figures of a collection as lines.
    """
    from fairqr.evaluation.experiments.workers import RunOptions
    from fairqr.evaluation.probes import running
    from fairqr.evaluation.reports.text import records_of
    from fairqr.prompts.library import PromptLibrary

    library("pandas", "A probe")
    experiment = checked(kind, {"title": "A probe", **values})
    folder = settings.output
    with Progress() as watcher:
        options = RunOptions(
            folder or cache_dir() / "probes",
            watcher,
            PromptLibrary(settings.prompts_dir),
            at_once=settings.concurrency,
            agree=partial(agree, yes=settings.yes),
        )
        work = running.run(experiment, options, shared=folder is None, **settings.model_options)
        store = run(work, "probe")
        measured = running.measure(store.folder)

    manifest = measured.manifest
    data = manifest.model_dump(mode="json", include={"experiment", "collections", "prompts"})
    for name, frame in measured.frames.items():
        data[name] = records_of(frame)
    data["missing"] = measured.missing

    lines: list[RenderableType] = []
    for entry in manifest.collections:
        frames = {}
        for name, frame in measured.frames.items():
            frames[name] = frame[frame.collection == entry.name]
        words = dict(zip(("protected", "unprotected"), entry.sides.words, strict=True))
        lines += figure_lines(words, **frames)
        about = (entry.name, _queries(entry.queries), *manifest.prompts)
        lines.append(literal(", ".join(about), "dim"))
    if folder:
        lines.append(f"kept: {folder}; 'fairqr experiment report {folder}' writes the report")
    return Printed(data, lines)


def _pairwise_lines(words: Words, figures: DataFrame) -> Iterator[RenderableType]:
    """Yield which group each model prefers: the verdicts, and how often."""
    columns = ("kind", "pairs", *words.values(), "ratio", "ratio_low", "ratio_high", "flips")
    named = figures.replace({"kind": {"both": "together"}})
    for model, rows in named.groupby("model", sort=False):
        for row in rows[rows.kind != "relevance"].itertuples():
            yield literal(f"{model}, {row.kind}: {row.sentence}", "bold")
            if row.without_pairs and row.kind != "together":
                yield f"{_queries(row.without_pairs)} without {row.kind} pairs: a cell is empty"
            is_unread = 2 * row.failures.get("neither", 0) > row.replies
            if is_unread:
                yield "Most replies begin with neither A nor B; --set by=reply reads them whole."
        yield frame_table(rows.rename(columns=words), *columns)
        if rows.votes_of.any():
            basis = "probabilities" if rows.log_odds_replies.any() else "replies"
            yield literal(f"{model} was read by {basis}", "dim")


def _listwise_lines(
    words: Words, lists: DataFrame, means: DataFrame, tests: DataFrame
) -> Iterator[RenderableType]:
    """Yield which group lists expose less, the measures by who asks, and what failed."""
    yield from _exposure_verdicts(words, tests[tests.test == "exposure_difference"])
    yield frame_table(means, "ranker", "window", "persona", "measure", "mean", "low", "high", "n")
    for ranker, rows in lists.groupby("ranker", sort=False):
        for column in ("failures", "repairs"):
            counts: Counter[str] = Counter()
            for row_counts in rows[column]:
                counts += Counter(row_counts)
            for kind, count in counts.items():
                yield f"{ranker} {column}: {count} {kind}"
        yield from rows.warnings.explode().dropna().unique()

    differences = tests[tests.test == "personas"]
    if len(differences):
        yield "for {protected} less for {unprotected} personas:".format(**words)
        yield frame_table(differences, "ranker", "measure", "difference", "n", "p", "p_holm")


def _exposure_verdicts(words: Words, tests: DataFrame) -> Iterator[Text]:
    """Yield which group the lists of each ranker expose less; personas of one verdict share a line.

    Args:
        words: The words for the two sides.
        tests: The tests of differences of exposure.
    """
    personas = {side: f"{word} personas" for side, word in words.items()}
    groups = tests.groupby(["ranker", "window", "verdict"], sort=False)
    for (ranker, window, verdict), rows in groups:
        askers = ", ".join(personas.get(side, "neutral personas") for side in rows.persona)
        about = ", ".join(filter(None, (ranker, window)))
        exposure = _FAVOURED[verdict].format(**words)
        yield literal(f"{about}: lists for {askers} {exposure}.", "bold")


def probe_lines(result: ProbeResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Yield how a model ranks what one query retrieved: its verdict on pairs, and its lists.

    Args:
        result: What to show.
        verbose: Also show the prompts, and what the model cost.
    """
    from fairqr.cli.render import origin

    about = _about(result)
    if result.message:
        yield literal(result.message, "bold")
        yield about
        return

    if result.pairwise is not None:
        yield literal(result.pairwise.sentence, "bold")
        yield _pair_shares(result, result.pairwise)
    if result.listwise is not None:
        headline = _exposure_headline(result, result.listwise)
        if result.pairwise is None and headline:
            yield literal(headline, "bold")
        yield _list_exposure(result.listwise)
    yield result.note

    about += f"; seed {result.seed}"
    if not verbose:
        yield literal(about, "dim")
        return
    prompts = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
    yield origin(f"{about}; {prompts}", result.usage)


def _about(result: ProbeResult) -> str:
    """Say what was probed on which documents."""
    counts = Counter(document.side for document in result.documents)
    protected, unprotected = result.words
    undecided = f", {counts['undecided']} undecided" if counts["undecided"] else ""
    documents = quantity(len(result.documents), "document")
    return (
        f"{result.model} on {result.corpus}, '{result.query}', {documents}: "
        f"{counts['protected']} {protected}, {counts['unprotected']} {unprotected}{undecided}"
    )


def _pair_shares(result: ProbeResult, probe: PairwiseProbe) -> RenderableType:
    """Draw how often the model preferred each side, and how often it changed its mind."""
    proportions = (probe.protected, probe.unprotected, probe.flips, probe.votes)
    shares = [proportion.share for proportion in proportions]
    ends = interval(*(probe.ratio_interval or (None, None)))
    row = (len(probe.pairs), *shares, probe.ratio, ends)
    heads = ("pairs", *result.words, "flips", "votes", "ratio", number("95 %"))
    return table(heads, [row], digits=3)


def _exposure_headline(result: ProbeResult, probe: ListwiseProbe) -> str:
    """Return the sentence about the first list; empty if it has no ratio of exposure."""
    first_list = probe.personas[0]
    if first_list.exposure_ratio is None:
        return ""
    protected, unprotected = result.words
    lists = f" in lists for {first_list.words}" if first_list.words else ""
    return (
        f"{protected} get {first_list.exposure_ratio:.0%} of the exposure of {unprotected}{lists}; "
        f"as given, {probe.initial_ratio:.0%}."
    )


def _list_exposure(probe: ListwiseProbe) -> RenderableType:
    """Draw the ratio of exposure in the list of each persona."""
    rows: list[Any] = [("as given", probe.initial_ratio, "")]
    for order in probe.personas:
        failures = sum(order.failures.values())
        name = order.words or "nobody"
        rows.append((name, order.exposure_ratio, f"{failures} of {order.asked}"))
    return table(["list for", "exposure", number("failed")], rows, digits=3)


def _queries(count: int) -> str:
    return quantity(count, "query", "queries")
