"""The commands ``fairqr probe …``: does a model, asked to rank, lean toward a group?"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.cli.collection_options import (
    NOTABLES,
    Attribute,
    Built,
    Collection,
    Protected,
    Seed,
    Words,
    experiment_of,
)
from fairqr.cli.common import (
    AsJson,
    BaseUrl,
    PromptsFolder,
    Timeout,
    Yes,
    agree,
    print_json,
    recorded,
    run,
)
from fairqr.cli.parameters import ParameterCommand, Set
from fairqr.cli.probe_build import build
from fairqr.cli.probe_query import ProbeCommand, query
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.probes.listwise_measures import MeasuredListwise
    from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise
    from fairqr.evaluation.probes.store import ProbeRunManifest, ProbeStore

app = typer.Typer()
app.command("build")(build)
app.command("query", cls=ProbeCommand)(query)

SPECIFICATIONS = "fairqr.evaluation.probes.specification"
DEFAULTS: dict[str, dict[str, Any]] = {
    "pairwise": {
        "kind": "llm_pairwise",
        "title": "A pairwise probe",
        "queries": 20,
        "pairs": 10,
    },
    "listwise": {"kind": "llm_listwise", "title": "A listwise probe", "queries": 10},
}


def probe(
    ctx: typer.Context,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal: with a "
            "model of transformers or the folder of a tuned adapter. Lists can also be ranked by "
            "pairwise:MODEL, monot5, monobert or initial. Repeatable. [default: FAIRQR_MODEL, or "
            "the local model]"
        ),
    ] = None,
    attribute: Attribute = None,
    protected: Protected = None,
    words: Words = None,
    collection: Collection = NOTABLES,
    built: Built = None,
    queries: Annotated[
        int | None,
        typer.Option(min=1, help="The most queries to use. [default: 20 for pairs, 10 for lists]"),
    ] = None,
    seed: Seed = None,
    settings: Set = None,
    prompts: PromptsFolder = None,
    base_url: BaseUrl = None,
    timeout: Timeout = 60.0,
    concurrency: Annotated[
        int,
        typer.Option(
            min=1, max=256, help="How many pairs or lists run at a time; use 1 to measure times."
        ),
    ] = 4,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The folder of the run; an interrupted run resumes. [default: in the cache]",
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run a probe of one of the two kinds, and print what it measured."""
    from fairqr.agents.models.cache import replies_file
    from fairqr.base.settings import default_model
    from fairqr.evaluation.experiments.kinds import KINDS, RunOptions, check_pandas
    from fairqr.evaluation.probes.running import make_probe_plan, measure, run_plan
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.evaluation.workers.choice import Workers
    from fairqr.prompts.library import PromptLibrary

    check_pandas()
    command: Any = ctx.command
    (spec,) = command.models
    defaults = DEFAULTS[command.name]
    experiment = experiment_of(
        spec,
        {
            **defaults,
            "collection": collection,
            KINDS[defaults["kind"]].models: tuple(model or [default_model()]),
        },
        settings,
        queries=queries,
        seed=seed,
        built=built,
        attribute=attribute,
        protected=protected,
        words=words,
    )
    library = PromptLibrary(prompts)
    # Without a folder, replies are kept in the user's cache, as for a search.
    replies = None if output else replies_file()

    async def work(watcher: Progress) -> ProbeStore:
        plan = await make_probe_plan(
            experiment,
            library,
            base_url=base_url,
            options={"timeout": timeout},
            preparing=watcher.count,
        )
        store = ProbeStore(output or _in_cache(plan.manifest))
        options = RunOptions(
            store.folder,
            watcher,
            library,
            Workers(at_once=concurrency),
            agree=partial(agree, yes=yes),
        )
        await run_plan(plan, store, options, replies)
        return store

    with recorded(command="probe"), Progress() as progress:
        store = run(work(progress))
    measured = measure(store)
    if as_json:
        print_json(_as_dict(measured))
        return
    from fairqr.cli.probe_tables import print_measured

    print_measured(measured)
    if output:
        typer.echo(f"kept: {output}; 'fairqr experiment report {output}' writes the report")


app.command(
    "pairwise",
    cls=ParameterCommand.of(f"{SPECIFICATIONS}:PairwiseExperiment"),
    help="Ask a model which of two items is more relevant, in both orders, and give a verdict.\n\n"
    "One item belongs to the protected group and the other does not, and both are relevant or both "
    "are not. By default, at most 10 pairs of each kind per query; --set pairs=N changes that.",
)(probe)
app.command(
    "listwise",
    cls=ParameterCommand.of(f"{SPECIFICATIONS}:ListwiseExperiment"),
    help="Let a model rank whole lists for different askers, and measure how it exposes the "
    "groups.",
)(probe)


def _in_cache(manifest: ProbeRunManifest) -> Path:
    """Return the one folder in the cache for runs with these settings."""
    from fairqr.base.settings import cache_dir

    same = manifest.model_dump_json(include=set(manifest.identity()))
    return cache_dir() / "probes" / hashlib.sha256(same.encode()).hexdigest()[:24]


def _as_dict(measured: MeasuredListwise | MeasuredPairwise) -> dict[str, Any]:
    from fairqr.evaluation.reports.tables import records_of

    manifest = measured.manifest
    return {
        "experiment": manifest.experiment.model_dump(mode="json"),
        "collections": [entry.model_dump(mode="json") for entry in manifest.collections],
        "prompts": [entry.model_dump(mode="json") for entry in manifest.prompts],
        **{name: records_of(frame) for name, frame in measured.frames.items()},
        "missing": measured.missing,
    }
