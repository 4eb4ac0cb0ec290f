"""The commands ``fairqr probe …``: does a model, asked to rank, lean toward a group?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from fairqr.base.errors import InputError, ModelError
from fairqr.base.settings import cache_dir, default_model
from fairqr.cli import output as out
from fairqr.cli.common import NOTABLES, RUN, CostlyRunSettings, agree, run
from fairqr.cli.options import Fields, checked, command
from fairqr.cli.output import Printed, Progress, warn
from fairqr.evaluation.probes import specification as specs
from fairqr.graph.documented import Documented
from fairqr.graph.probe.context import ProbeContext

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.graph.probe.result import ProbeResult

app = typer.Typer()


class QueryRunSettings(CostlyRunSettings):
    """How a run that probes one query works.

    Attributes:
        model: The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal:NAME with a
            model of transformers. [default: FAIRQR_MODEL, or the local model]
    """

    model: str | None = None


class ProbeRun(Documented):
    """How a probe of many queries runs; none of it changes the results.

    Attributes:
        prompts_dir: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
        base_url: The URL of an OpenAI-compatible server.
        timeout: How many seconds one request to a model may take.
        concurrency: How many pairs or lists run at a time; use 1 to measure times.
        output: The folder of the run; an interrupted run resumes. [default: in the cache]
        yes: Run even if the model may be asked more than 2,000 times or read more than 1,000,000
            tokens.
    """

    prompts_dir: Path | None = None
    base_url: str | None = None
    timeout: float = Field(60, gt=0)
    concurrency: int = Field(4, ge=1, le=256)
    output: Path | None = None
    yes: bool = False


class Probed(Documented):
    """The groups that a probe compares.

    Attributes:
        attribute: An attribute of the collection's schema, such as gender.
        protected: The protected group: female, not Europe, or 'female vs male'. Defaults to female.
        words: What to call the two groups, PROTECTED/UNPROTECTED, such as women/men.
    """

    attribute: str
    protected: str | None = None
    words: str | None = None

    def source(self, collection: str, split: str | None) -> dict[str, Any]:
        """Return the groups as an experiment's file names them.

        Raises:
            InputError: There is no such attribute, the group has no name, or there are not two
                words.
        """
        from fairqr.evaluation.collections.finding import find_collection
        from fairqr.retrieval.fairness.protected import default_protected

        words = None if self.words is None else self.words.split("/")
        if words is not None and (len(words) != 2 or not all(words)):
            raise InputError("--words takes two words with a slash between, such as women/men.")
        protected = self.protected
        if protected == "":
            raise InputError("--protected needs a group, such as female or 'female vs male'.")
        if protected is None:
            schema = find_collection(collection, split).corpus.schema
            protected = default_protected(schema.attribute(self.attribute))
        return {"attribute": self.attribute, "protected": protected, "words": words}


_ASKED = ("collection", "queries", "seed")
_RUNNING = Fields("base_url", "timeout", "concurrency", "output", "yes", prompts="prompts_dir")


@command(app)
def query(
    query: str,
    *,
    asked: Annotated[
        Mapping[str, Any],
        Fields(
            "k",
            model=ProbeContext,
            attribute="probe.attribute",
            kind="probe.kinds",
            seed="probe.seed",
        ),
    ],
    settings: Annotated[QueryRunSettings, Fields(*RUN, "yes")],
    protected: str = "female",
) -> Printed:
    """Search, and ask a model to rank what was found: does it lean toward a group?

    It compares two documents in both orders, and orders lists for different people who ask.

    Args:
        query: What to search for.
        asked: How to search and to probe.
        settings: How the run works.
        protected: The groups to protect: female, not Europe, or 'female vs male'.
    """
    probe = {"protected": protected, **asked["probe"]}
    context = checked(ProbeContext, {**asked, "probe": probe})

    async def work() -> ProbeResult:
        from fairqr.agents.models.opening import open_language_model
        from fairqr.api import FairSearch
        from fairqr.cli.render import follow

        prompts = settings.prompts_for(context)
        probed = open_language_model(settings.model, **settings.model_options)
        # Report a missing part before a large corpus is indexed.
        await probed.start("text")
        async with settings.opened(context) as engine:
            fair = FairSearch(engine, probed, prompts=prompts)
            result: ProbeResult
            result, _ = await follow(fair, query, context, model=probed.name, yes=settings.yes)
            return result

    result = settings.run(work(), "probe")
    parts = [result.pairwise] if result.pairwise else []
    told = [it.status for it in (*parts, *(result.listwise.askers if result.listwise else ()))]
    error = None
    if told and {*told} == {"failed"}:
        error = ModelError("failed", (*result.warnings, "The model gave no usable reply.")[0])
    for warning in result.warnings[1 if error else 0 :]:
        warn(warning)
    return Printed(result, probe_lines(result), error=error)


@command(app)
def pairwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields(*_ASKED, model=specs.PairwiseExperiment)],
    probed: Probed,
    model: list[str] | None = None,
    running: Annotated[ProbeRun, _RUNNING],
) -> Printed:
    """Ask a model which of two items is more relevant, in both orders, and give a verdict.

    One item belongs to the protected group and the other does not, and both are relevant or both
    are not. By default, at most 10 pairs of each kind per query; --set pairs=N changes that.

    Args:
        changes: What is asked; at most 20 queries by default.
        probed: The groups that are compared.
        model: The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal: with a
            model of transformers or the folder of a tuned adapter. Repeatable. [default:
            FAIRQR_MODEL, or the local model]
        running: How the probe runs.
    """
    usual = {"kind": specs.PAIRWISE_KIND, "title": "A pairwise probe", "queries": 20, "pairs": 10}
    values = {**usual, "models": model or [default_model()], **changes}
    return _probe(specs.PairwiseExperiment, values, probed, running)


@command(app)
def listwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields(*_ASKED, model=specs.ListwiseExperiment)],
    probed: Probed,
    model: list[str] | None = None,
    running: Annotated[ProbeRun, _RUNNING],
) -> Printed:
    """Let a model rank whole lists for different askers, and measure how it exposes the groups.

    Args:
        changes: What is asked; at most 10 queries by default.
        probed: The groups that are compared.
        model: The model to probe, as in 'fairqr probe pairwise', or pairwise:MODEL, monot5,
            monobert or initial. Repeatable. [default: FAIRQR_MODEL, or the local model]
        running: How the probe runs.
    """
    usual = {"kind": specs.LISTWISE_KIND, "title": "A listwise probe", "queries": 10}
    values = {**usual, "rankers": model or [default_model()], **changes}
    return _probe(specs.ListwiseExperiment, values, probed, running)


def _probe(
    spec: type[specs.PairwiseExperiment | specs.ListwiseExperiment],
    values: dict[str, Any],
    probed: Probed,
    running: ProbeRun,
) -> Printed:
    """Run a probe of either kind, and measure it."""
    from fairqr.agents.models.cache import replies_file
    from fairqr.evaluation.experiments import kinds
    from fairqr.evaluation.probes import running as probes
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.evaluation.reports.tables import records_of
    from fairqr.evaluation.workers.choice import Workers
    from fairqr.prompts.library import PromptLibrary

    kinds.check_pandas()
    values.setdefault("collection", NOTABLES)
    source = probed.source(values["collection"], values.get("split"))
    experiment = checked(spec, {**values, "sources": (source,)})
    output = running.output

    async def work(watcher: Progress) -> ProbeStore:
        library = PromptLibrary(running.prompts_dir)
        plan = await probes.make_probe_plan(
            experiment,
            library,
            base_url=running.base_url,
            options={"timeout": running.timeout},
            preparing=watcher.count,
        )
        same = plan.manifest.model_dump_json(include=set(plan.manifest.identity()))
        name = hashlib.sha256(same.encode()).hexdigest()[:24]
        store = ProbeStore(output or cache_dir() / "probes" / name)
        consent = partial(agree, yes=running.yes)
        workers = Workers(at_once=running.concurrency)
        options = kinds.RunOptions(store.folder, watcher, library, workers, agree=consent)
        # Without a folder, replies are kept in the user's cache, as for a search.
        await probes.run_plan(plan, store, options, None if output else replies_file())
        return store

    with Progress() as progress:
        measured = probes.measure(run(work(progress), "probe"))
    manifest = measured.manifest
    data = manifest.model_dump(mode="json", include={"experiment", "collections", "prompts"})
    data |= {name: records_of(frame) for name, frame in measured.frames.items()}
    lines = [*measured_lines(measured)]
    if output:
        lines.append(f"kept: {output}; 'fairqr experiment report {output}' writes the report")
    return Printed({**data, "missing": measured.missing}, lines)


def measured_lines(measured: Any) -> Iterator[RenderableType]:
    """Yield what a probe measured, and how much is missing."""
    is_pairwise = isinstance(measured.manifest.experiment, specs.PairwiseExperiment)
    yield from (_pairwise if is_pairwise else _listwise)(measured)
    what = "pair" if is_pairwise else "list"
    if measured.missing:
        yield f"{out.counted(measured.missing, what)} not asked about yet"


def _pairwise(measured: Any) -> Iterator[RenderableType]:
    """Yield which group a model prefers, and the verdicts in words."""
    prompts = ", ".join(entry.prompt for entry in measured.manifest.prompts)
    entries = {entry.name: entry.built for entry in measured.manifest.collections}
    for (name, model), figures in measured.figures.groupby(["collection", "model"], sort=False):
        by = ", by replies" if figures.votes_of.any() else ""
        by = ", by probabilities" if figures.log_odds_replies.any() else by
        yield f"{model} on {name}, {_queries(figures.queries_in_all.iloc[0])}{by}, {prompts}"
        words = {"protected": entries[name].protected, "unprotected": entries[name].unprotected}
        shown = ("kind", "pairs", *words.values(), "ratio", "ratio_low", "ratio_high", "flips")
        figures = figures.assign(kind=figures.kind.replace("both", "together"))
        yield out.frame_table(figures.rename(columns=words), *shown)
        for row in figures[figures.kind != "relevance"].itertuples():
            yield f"{row.kind}: {row.sentence}"
            if row.without_pairs and row.kind != "together":
                yield f"{_queries(row.without_pairs)} without {row.kind} pairs: a cell is empty"
            if (
                measured.manifest.pairs.by == "probabilities"
                and 2 * row.failures.get("neither", 0) > row.replies
            ):
                yield "Most replies begin with neither A nor B; --set by=reply reads them whole."


def _listwise(measured: Any) -> Iterator[RenderableType]:
    """Yield how relevant lists are, how they expose the groups by who asks, and what failed."""
    shown = ("ranker", "window", "asker", "measure", "mean", "low", "high", "n")
    for entry in measured.manifest.collections:
        yield out.literal(f"{entry.name}, {_queries(entry.built.queries)}", "bold")
        means, tests, events = (
            frame[frame.collection == entry.name]
            for frame in (measured.means_once, measured.tests, measured.events)
        )
        yield out.frame_table(means, *shown)
        if len(events):
            failed = events.groupby(["ranker", "event", "kind"], sort=False)["count"].sum()
            yield from (f"{' '.join(key)}: {count}" for key, count in failed.items())
        if len(tests := tests[tests.test == "askers"]):
            yield f"for {entry.built.protected} less for {entry.built.unprotected} askers:"
            yield out.frame_table(tests, "ranker", "measure", "difference", "n", "p", "p_holm")


def probe_lines(result: ProbeResult) -> Iterator[RenderableType]:
    """Yield how a model ranks what one query retrieved: its verdict on pairs, and its lists."""
    from fairqr.cli.render import origin

    sides = Counter(document.side for document in result.documents)
    undecided = f", {sides['undecided']} undecided" if sides["undecided"] else ""
    yield (
        f"{result.model} on {result.corpus}, '{result.query}', "
        f"{out.counted(len(result.documents), 'document')}: {sides['protected']} "
        f"{result.words[0]}, {sides['unprotected']} {result.words[1]}{undecided}"
    )
    if result.message:
        yield result.message
        return
    if (pairs := result.pairwise) is not None:
        shares = (pairs.protected, pairs.unprotected, pairs.flips, pairs.votes)
        told = [it.count / it.of if it.of else None for it in shares]
        heads = ("pairs", *result.words, "flips", "votes", "ratio", out.number("95 %"))
        ends = out.interval(*(pairs.ratio_interval or (None, None)))
        yield out.table(heads, [(len(pairs.pairs), *told, pairs.ratio, ends)], digits=3)
        yield pairs.sentence
    if (lists := result.listwise) is not None:
        rows: list[Any] = [("as given", lists.initial_ratio, "")]
        for order in lists.askers:
            failed = f"{sum(order.failures.values())} of {order.asked}"
            rows.append((order.words or "nobody", order.exposure_ratio, failed))
        yield out.table(["list for", "exposure", out.number("failed")], rows, digits=3)
    yield result.note
    prompts = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
    yield origin(f"{prompts}; seed {result.seed}", result.usage)


def _queries(count: int) -> str:
    return out.counted(count, "query", "queries")
