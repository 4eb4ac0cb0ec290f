"""The commands ``fairqr probe …``: does a model, asked to rank, lean toward a group?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.base.errors import ModelError
from fairqr.cli.common import NOTABLES, Recording, Searched, agree, run
from fairqr.cli.options import Fields, command
from fairqr.cli.output import Printed, warn
from fairqr.cli.parameters import checked
from fairqr.cli.probed import Probed, ProbeRun, as_data, probe_source
from fairqr.cli.progress import Progress
from fairqr.cli.running import RunSettings
from fairqr.evaluation.probes.specification import (
    LISTWISE_KIND,
    PAIRWISE_KIND,
    ListwiseExperiment,
    PairwiseExperiment,
    ProbeSettings,
    ProbeSource,
)
from fairqr.graph.probe.context import ProbeContext

if TYPE_CHECKING:
    from fairqr.evaluation.probes.collection import ProbeCollection
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.graph.probe.result import ProbeResult

app = typer.Typer()


@command(app)
def build(
    collection: str = NOTABLES,
    *,
    output: Path,
    attribute: str,
    protected: str | None = None,
    words: str | None = None,
    settings: Annotated[
        Mapping[str, Any],
        Fields("size", "order", "seed", "queries", "split", model=ProbeSettings),
    ],
    titles_only: bool = False,
) -> Printed:
    """Build a probe collection: per query, relevant and irrelevant items of both groups.

    Irrelevant items are drawn from the relevant items of other queries.

    Args:
        collection: A collection with judgements: its name or its folder.
        output: The folder to write.
        attribute: An attribute of the collection's schema, such as gender.
        protected: The protected group: female, not Europe, or 'female vs male'. Defaults to female.
        words: What to call the two groups, such as women/men.
        settings: How it is built.
        titles_only: Keep only the titles, no texts.
    """
    from fairqr.evaluation.probes.building import open_probe_collection
    from fairqr.evaluation.probes.collection import check_folder, write_probe_collection

    # Report a wrong folder before a large corpus is read.
    check_folder(output)
    how = checked(ProbeSettings, {"order": "shuffled", **settings, "collection": collection})
    with Progress() as progress:
        importing = progress.count(f"importing {collection}")
        source = probe_source(
            collection, how.split, attribute, protected, words, progress=importing
        )
        built = run(
            open_probe_collection(
                checked(ProbeSource, source),
                how,
                texts=not titles_only,
                preparing=progress.count,
            )
        )
    write_probe_collection(built, output)
    items = sum(len(query.items) for query in built.queries)
    data = {"folder": str(output), "items": items, **built.manifest.model_dump(mode="json")}
    return Printed(data, [*_build_lines(built, items), f"written: {output}"])


def _build_lines(built: ProbeCollection, items: int) -> Iterator[str]:
    """Say what was built, what is missing, and what was left out."""
    manifest = built.manifest
    kept = "titles and texts" if manifest.texts else "titles"
    yield manifest.name
    yield (
        f"{manifest.queries:,} queries, {items:,} items ({kept}); at most {manifest.size:,} items "
        f"a query, {manifest.size // 4:,} a cell"
    )
    yield f"initial order: {manifest.order}; seed {manifest.seed}"
    yield f"protected: {manifest.protected} ({', '.join(manifest.protected_groups)})"
    yield f"unprotected: {manifest.unprotected} ({', '.join(manifest.unprotected_groups)})"
    for cell, lack in manifest.short.items():
        yield (
            f"short: {cell.replace('_', ' ')}, in {lack['queries']:,} of {manifest.queries:,} "
            f"queries, {lack['items']:,} items together"
        )
    for reason, topics in manifest.dropped.items():
        yield f"dropped: {topics:,} topics, {reason.replace('_', ' ')}"
    if manifest.undecided:
        yield f"left out: {manifest.undecided:,} relevant documents of neither side"
    if manifest.missing:
        yield f"left out: {manifest.missing:,} relevant documents that the corpus lacks"


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
    settings: Annotated[RunSettings, Fields()],
    protected: str = "female",
    where: Searched,
    model: str | None = None,
    base_url: str | None = None,
    yes: bool = False,
    recording: Recording,
) -> Printed:
    """Search, and ask a model to rank what was found: does it lean toward a group?

    It compares two documents in both orders, and orders lists for different people who ask.

    Args:
        query: What to search for.
        asked: How to search and to probe.
        settings: How the run works.
        protected: The groups to protect: female, not Europe, or 'female vs male'.
        where: What is searched.
        model: The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal:NAME with a
            model of transformers. [default: FAIRQR_MODEL, or the local model]
        base_url: The URL of an OpenAI-compatible server.
        yes: Run even if the model may be asked more than 2,000 times or read more than 1,000,000
            tokens.
        recording: Where the run is recorded.
    """
    probe = {"protected": protected, **asked["probe"]}
    context = checked(ProbeContext, {**asked, "probe": probe})

    async def work() -> ProbeResult:
        from fairqr.agents.models.opening import open_language_model
        from fairqr.api import FairSearch
        from fairqr.cli.render import View
        from fairqr.graph.probe.result import ProbeResult

        prompts = settings.prompts_for(context)
        probed = open_language_model(
            model, cache=settings.cache, base_url=base_url, timeout=settings.timeout
        )
        # Report a missing part before a large corpus is indexed.
        await probed.start("text")
        async with settings.opened(where, context) as engine:
            fair = FairSearch(engine, probed, prompts=prompts)
            view = View()
            view.expect_cost(probed.name, context.budget, yes=yes)
            return await view.follow(fair, query, context, ProbeResult)

    result = recording.run(work(), "probe")
    _require_answers(result)
    for warning in result.warnings:
        warn(warning)
    from fairqr.cli.probe_tables import probe_lines

    return Printed(result, probe_lines(result))


def _require_answers(result: ProbeResult) -> None:
    """Check that the model answered; any answer is a result.

    Raises:
        ModelError: The model answered no question.
    """
    from fairqr.evaluation.experiments.engine import is_away
    from fairqr.graph.steps import usage_of

    asked, failures = 0, Counter[str]()
    if result.pairwise is not None:
        asked += 2 * len(result.pairwise.pairs)
        failures.update(result.pairwise.failures)
    for order in result.listwise.askers if result.listwise is not None else ():
        asked += order.asked
        failures.update(order.failures)
    usage = usage_of(result.model_dump())
    away = [status for status in failures if is_away(status, usage)]
    if away and sum(failures[status] for status in away) == asked:
        raise ModelError(away[0], result.warnings[0])


@command(app)
def pairwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields("queries", "seed", model=PairwiseExperiment)],
    probed: Probed,
    model: list[str] | None = None,
    running: ProbeRun,
) -> Printed:
    """Ask a model which of two items is more relevant, in both orders, and give a verdict.

    One item belongs to the protected group and the other does not, and both are relevant or both
    are not. By default, at most 10 pairs of each kind per query; --set pairs=N changes that.

    Args:
        changes: What is asked; at most 20 queries by default.
        probed: What the model is asked about.
        model: The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal: with a
            model of transformers or the folder of a tuned adapter. Repeatable. [default:
            FAIRQR_MODEL, or the local model]
        running: How the probe runs.
    """
    usual = {"kind": PAIRWISE_KIND, "title": "A pairwise probe", "queries": 20, "pairs": 10}
    values = {**usual, "models": _models(model), **changes}
    return _probe(probed.experiment(PairwiseExperiment, values), running)


@command(app)
def listwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields("queries", "seed", model=ListwiseExperiment)],
    probed: Probed,
    model: list[str] | None = None,
    running: ProbeRun,
) -> Printed:
    """Let a model rank whole lists for different askers, and measure how it exposes the groups.

    Args:
        changes: What is asked; at most 10 queries by default.
        probed: What the model is asked about.
        model: The model to probe, as in 'fairqr probe pairwise', or pairwise:MODEL, monot5,
            monobert or initial. Repeatable. [default: FAIRQR_MODEL, or the local model]
        running: How the probe runs.
    """
    usual = {"kind": LISTWISE_KIND, "title": "A listwise probe", "queries": 10}
    values = {**usual, "rankers": _models(model), **changes}
    return _probe(probed.experiment(ListwiseExperiment, values), running)


def _models(names: list[str] | None) -> tuple[str, ...]:
    from fairqr.base.settings import default_model

    return tuple(names or [default_model()])


def _probe(experiment: PairwiseExperiment | ListwiseExperiment, running: ProbeRun) -> Printed:
    """Run a probe of either kind, and measure it."""
    from fairqr.agents.models.cache import replies_file
    from fairqr.cli.probe_tables import measured_lines
    from fairqr.evaluation.experiments.kinds import RunOptions, check_pandas
    from fairqr.evaluation.probes.running import make_probe_plan, measure, run_plan
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.evaluation.workers.choice import Workers
    from fairqr.prompts.library import PromptLibrary

    check_pandas()
    library, output = PromptLibrary(running.prompts), running.output
    # Without a folder, replies are kept in the user's cache, as for a search.
    replies = None if output else replies_file()

    async def work(watcher: Progress) -> ProbeStore:
        plan = await make_probe_plan(
            experiment,
            library,
            base_url=running.base_url,
            options={"timeout": running.timeout},
            preparing=watcher.count,
        )
        store = ProbeStore(output or _in_cache(plan.manifest))
        workers = Workers(at_once=running.concurrency)
        consent = partial(agree, yes=running.yes)
        options = RunOptions(store.folder, watcher, library, workers, agree=consent)
        await run_plan(plan, store, options, replies)
        return store

    with Progress() as progress:
        measured = measure(Recording().run(work(progress), "probe"))
    kept = [f"kept: {output}; 'fairqr experiment report {output}' writes the report"]
    return Printed(
        lambda: as_data(measured, ["collections", "prompts"]),
        [*measured_lines(measured), *(kept if output else [])],
    )


def _in_cache(manifest: Any) -> Path:
    """Return the one folder in the cache for runs with these settings."""
    from fairqr.base.settings import cache_dir

    same = manifest.model_dump_json(include=set(manifest.identity()))
    return cache_dir() / "probes" / hashlib.sha256(same.encode()).hexdigest()[:24]
