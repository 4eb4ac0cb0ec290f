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
from fairqr.cli import output as out
from fairqr.cli.common import RUN, ModelSettings, RunSettings, agree, run
from fairqr.cli.options import Fields, command
from fairqr.cli.output import Printed
from fairqr.cli.parameters import checked
from fairqr.cli.progress import Progress
from fairqr.evaluation.probes import specification as specs
from fairqr.graph.probe.context import ProbeContext

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import RenderableType

    from fairqr.graph.probe.result import ProbeResult

    Words = Mapping[str, str]  # of the protected and of the unprotected side

app = typer.Typer()


class QueryRunSettings(RunSettings):
    """How a run that probes one query works."""

    model: str | None = Field(
        None,
        description=(
            "The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal:NAME with a "
            "model of transformers. [default: FAIRQR_MODEL, or the local model]"
        ),
    )


class ProbeRun(ModelSettings):
    """How a probe of many queries runs."""

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


_ASKED = ("--collection", "--attribute", "--protected", "--words", "--queries", "--seed")
_RUNNING = Fields(
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
    settings: Annotated[QueryRunSettings, Fields(*RUN)],
) -> Printed:
    """Search, and ask a model to rank what was found: does it favour a group?

    It compares two documents in both orders, and orders lists for different people who ask.
    """

    async def work() -> Any:
        from fairqr.agents.models.opening import open_language_model
        from fairqr.api import FairSearch
        from fairqr.cli.following import follow

        prompts = settings.prompts_for(context)
        probed = open_language_model(settings.model, **settings.model_options)
        # Report a missing part before a large corpus is indexed.
        await probed.start("text")
        async with settings.opened(context) as engine:
            fair = FairSearch(engine, probed, prompts=prompts)
            return (await follow(fair, query, context, settings, quiet=False, model=probed.name))[0]

    result: ProbeResult = run(work(), "probe", settings.trace)
    parts = [
        *filter(None, [result.pairwise]),
        *(result.listwise.personas if result.listwise else ()),
    ]
    error = None
    if {it.status for it in parts} == {"failed"}:
        error = ModelError("failed", (*result.warnings, "The model gave no usable reply.")[0])
    warnings = result.warnings[1 if error else 0 :]
    lines = probe_lines(result, verbose=settings.verbose)
    return Printed(result, lines, warnings=warnings, error=error)


@command(app)
def pairwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields(*_ASKED, model=specs.PairwiseExperiment)],
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
    running: Annotated[ProbeRun, _RUNNING],
) -> Printed:
    """Ask a model which of two items is more relevant, in both orders, and give a verdict.

    One item belongs to the protected group and the other does not, and both are relevant or both
    are not. By default, at most 10 pairs of each kind per query; --set pairs=N changes that.
    """
    usual = {"kind": specs.PAIRWISE_KIND, "queries": 20, "pairs": 10}
    values = {**usual, "models": model or [default_model()], **changes}
    return _probe(specs.PairwiseExperiment, values, running, _pairwise)


@command(app)
def listwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields(*_ASKED, model=specs.ListwiseExperiment)],
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
    running: Annotated[ProbeRun, _RUNNING],
) -> Printed:
    """Let a model rank lists for different personas, and measure how it exposes the groups."""
    usual = {"kind": specs.LISTWISE_KIND, "queries": 10, "rankers": model or [default_model()]}
    return _probe(specs.ListwiseExperiment, {**usual, **changes}, running, _listwise)


def _probe(
    spec: type[specs.PairwiseExperiment | specs.ListwiseExperiment],
    values: Mapping[str, Any],
    running: ProbeRun,
    shown: Callable[..., Iterator[RenderableType]],
) -> Printed:
    """Run a probe of either kind, measure it, and show what was measured."""
    from fairqr.evaluation.experiments.workers import RunOptions
    from fairqr.evaluation.probes import running as probes
    from fairqr.evaluation.reports.text import records_of
    from fairqr.prompts.library import PromptLibrary

    library("pandas", "A probe")
    experiment = checked(spec, {"title": "A probe", **values})
    output = running.output
    with Progress() as watcher:
        options = RunOptions(
            output or cache_dir() / "probes",
            watcher,
            PromptLibrary(running.prompts_dir),
            at_once=running.concurrency,
            agree=partial(agree, yes=running.yes),
        )
        work = probes.run(experiment, options, shared=output is None, **running.model_options)
        measured = probes.measure(run(work, "probe").folder)
    told = {"experiment", "collections", "prompts"}
    data = measured.manifest.model_dump(mode="json", include=told)
    data |= {name: records_of(frame) for name, frame in measured.frames.items()}
    lines: list[RenderableType] = []
    for entry in measured.manifest.collections:
        own = {name: it[it.collection == entry.name] for name, it in measured.frames.items()}
        words = dict(zip(("protected", "unprotected"), entry.sides.words, strict=True))
        lines += shown(words, **own)
        made = (entry.name, _queries(entry.queries), *measured.manifest.prompts)
        lines.append(out.literal(", ".join(made), "dim"))
    if output:
        lines.append(f"kept: {output}; 'fairqr experiment report {output}' writes the report")
    return Printed({**data, "missing": measured.missing}, lines)


def _pairwise(words: Words, figures: DataFrame) -> Iterator[RenderableType]:
    """Yield which group each model prefers: the verdicts, and how often."""
    shown = ("kind", "pairs", *words.values(), "ratio", "ratio_low", "ratio_high", "flips")
    for model, own in figures.replace({"kind": {"both": "together"}}).groupby("model", sort=False):
        for row in own[own.kind != "relevance"].itertuples():
            yield out.literal(f"{model}, {row.kind}: {row.sentence}", "bold")
            if row.without_pairs and row.kind != "together":
                yield f"{_queries(row.without_pairs)} without {row.kind} pairs: a cell is empty"
            if 2 * row.failures.get("neither", 0) > row.replies:
                yield "Most replies begin with neither A nor B; --set by=reply reads them whole."
        yield out.frame_table(own.rename(columns=words), *shown)
        if own.votes_of.any():
            by = "probabilities" if own.log_odds_replies.any() else "replies"
            yield out.literal(f"{model} was read by {by}", "dim")


def _listwise(
    words: Words, lists: DataFrame, means: DataFrame, tests: DataFrame
) -> Iterator[RenderableType]:
    """Yield which group lists expose less, the measures by who asks, and what failed."""
    personas = {side: f"{word} personas" for side, word in words.items()}
    differences = tests[tests.test == "exposure_difference"].groupby(
        ["ranker", "window", "verdict"], sort=False
    )
    for (*ranker, verdict), found in differences:
        whose = ", ".join(personas.get(it, "neutral personas") for it in found.persona)
        told = f"lists for {whose} {_FAVOURED[verdict].format(**words)}."
        yield out.literal(f"{', '.join(filter(None, ranker))}: {told}", "bold")
    yield out.frame_table(
        means, "ranker", "window", "persona", "measure", "mean", "low", "high", "n"
    )
    for ranker, own in lists.groupby("ranker", sort=False):
        for what in ("failures", "repairs"):
            for kind, count in sum(map(Counter, own[what]), Counter[str]()).items():
                yield f"{ranker} {what}: {count} {kind}"
        yield from own.warnings.explode().dropna().unique()
    if len(between := tests[tests.test == "personas"]):
        yield "for {protected} less for {unprotected} personas:".format(**words)
        yield out.frame_table(between, "ranker", "measure", "difference", "n", "p", "p_holm")


def probe_lines(result: ProbeResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Yield how a model ranks what one query retrieved: its verdict on pairs, and its lists.

    Args:
        result: What to show.
        verbose: Also show the prompts, and what the model cost.
    """
    from fairqr.cli.render import origin

    sides, (first, other) = Counter(it.side for it in result.documents), result.words
    undecided = f", {sides['undecided']} undecided" if sides["undecided"] else ""
    about = (
        f"{result.model} on {result.corpus}, '{result.query}', "
        f"{out.quantity(len(result.documents), 'document')}: {sides['protected']} {first}, "
        f"{sides['unprotected']} {other}{undecided}"
    )
    if result.message:
        yield from (out.literal(result.message, "bold"), about)
        return
    if (pairs := result.pairwise) is not None:
        yield out.literal(pairs.sentence, "bold")
        shares = [it.share for it in (pairs.protected, pairs.unprotected, pairs.flips, pairs.votes)]
        heads = ("pairs", *result.words, "flips", "votes", "ratio", out.number("95 %"))
        ends = out.interval(*(pairs.ratio_interval or (None, None)))
        yield out.table(heads, [(len(pairs.pairs), *shares, pairs.ratio, ends)], digits=3)
    if (lists := result.listwise) is not None:
        of = lists.personas[0]
        if pairs is None and of.exposure_ratio is not None:
            whose = f" in lists for {of.words}" if of.words else ""
            got = f"{of.exposure_ratio:.0%} of the exposure of {other}{whose}"
            yield out.literal(f"{first} get {got}; as given, {lists.initial_ratio:.0%}.", "bold")
        rows: list[Any] = [("as given", lists.initial_ratio, "")]
        for order in lists.personas:
            failed = f"{sum(order.failures.values())} of {order.asked}"
            rows.append((order.words or "nobody", order.exposure_ratio, failed))
        yield out.table(["list for", "exposure", out.number("failed")], rows, digits=3)
    yield result.note
    about += f"; seed {result.seed}"
    prompts = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
    yield origin(f"{about}; {prompts}", result.usage) if verbose else out.literal(about, "dim")


def _queries(count: int) -> str:
    return out.quantity(count, "query", "queries")
