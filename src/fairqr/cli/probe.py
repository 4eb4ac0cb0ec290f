"""The commands ``fairqr probe …``: does a model, asked to rank, lean toward a group?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from fairqr.base.errors import InputError, ModelError
from fairqr.cli.common import NOTABLES, RUN, CostlyRunSettings, Probed, agree, as_data, run
from fairqr.cli.options import Fields, command
from fairqr.cli.output import Printed, fact_lines, warn
from fairqr.cli.parameters import checked
from fairqr.cli.progress import Progress
from fairqr.evaluation.probes.specification import (
    LISTWISE_KIND,
    PAIRWISE_KIND,
    ListwiseExperiment,
    PairwiseExperiment,
    ProbeSettings,
    ProbeSource,
)
from fairqr.graph.documented import Documented
from fairqr.graph.probe.context import ProbeContext

if TYPE_CHECKING:
    from fairqr.evaluation.probes.store import ProbeStore
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


_RUNNING = Fields("base_url", "timeout", "concurrency", "output", "yes", prompts="prompts_dir")


@command(app)
def build(
    collection: str = NOTABLES,
    *,
    output: Path,
    probed: Annotated[Probed, Fields("attribute", "protected", "words")],
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
        probed: The attribute, and its groups.
        settings: How it is built.
        titles_only: Keep only the titles, no texts.
    """
    from fairqr.evaluation.probes.building import open_probe_collection
    from fairqr.evaluation.probes.collection import check_folder, write_probe_collection

    if probed.from_ is not None or probed.collection != NOTABLES:
        raise InputError("The collection is the argument of this command; do not set it again.")
    # Report a wrong folder before a large corpus is read.
    check_folder(output)
    how = checked(ProbeSettings, {"order": "shuffled", **settings, "collection": collection})
    with Progress() as progress:
        importing = progress.count(f"importing {collection}")
        source = checked(ProbeSource, probed.source(collection, how.split, progress=importing))
        opening = open_probe_collection(
            source, how, texts=not titles_only, preparing=progress.count
        )
        built = run(opening)
    write_probe_collection(built, output)
    items = sum(len(query.items) for query in built.queries)
    data = {"folder": str(output), "items": items, **built.manifest.model_dump(mode="json")}
    return Printed(data, fact_lines(data))


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
    from fairqr.cli.probe_tables import probe_lines

    probe = {"protected": protected, **asked["probe"]}
    context = checked(ProbeContext, {**asked, "probe": probe})

    async def work() -> ProbeResult:
        from fairqr.agents.models.opening import open_language_model
        from fairqr.api import FairSearch
        from fairqr.cli.render import View

        prompts = settings.prompts_for(context)
        probed = open_language_model(settings.model, **settings.model_options)
        # Report a missing part before a large corpus is indexed.
        await probed.start("text")
        view = View(model=probed.name, budget=context.budget, yes=settings.yes)
        async with settings.opened(context) as engine:
            fair = FairSearch(engine, probed, prompts=prompts)
            result: ProbeResult = await view.follow(fair, query, context)
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
    changes: Annotated[Mapping[str, Any], Fields("queries", "seed", model=PairwiseExperiment)],
    probed: Probed,
    model: list[str] | None = None,
    running: Annotated[ProbeRun, _RUNNING],
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
    values = {**usual, "models": model or _default(), **changes}
    return _probe(probed.experiment(PairwiseExperiment, values), running)


@command(app)
def listwise(
    *,
    changes: Annotated[Mapping[str, Any], Fields("queries", "seed", model=ListwiseExperiment)],
    probed: Probed,
    model: list[str] | None = None,
    running: Annotated[ProbeRun, _RUNNING],
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
    values = {**usual, "rankers": model or _default(), **changes}
    return _probe(probed.experiment(ListwiseExperiment, values), running)


def _default() -> list[str]:
    from fairqr.base.settings import default_model

    return [default_model()]


def _probe(experiment: PairwiseExperiment | ListwiseExperiment, running: ProbeRun) -> Printed:
    """Run a probe of either kind, and measure it."""
    from fairqr.agents.models.cache import replies_file
    from fairqr.base.settings import cache_dir
    from fairqr.cli.probe_tables import measured_lines
    from fairqr.evaluation.experiments import kinds
    from fairqr.evaluation.probes import running as probes
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.evaluation.workers.choice import Workers
    from fairqr.prompts.library import PromptLibrary

    kinds.check_pandas()
    library, output = PromptLibrary(running.prompts_dir), running.output

    async def work(watcher: Progress) -> ProbeStore:
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
    kept = [f"kept: {output}; 'fairqr experiment report {output}' writes the report"]
    return Printed(
        lambda: as_data(measured, ["collections", "prompts"]),
        [*measured_lines(measured), *(kept if output else [])],
    )
