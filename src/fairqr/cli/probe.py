"""The commands ``fairqr probe …``: does a model, asked to rank, lean toward a group?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairqr.cli.common import AsJson, BaseUrl, PromptsFolder, Timeout, Yes, pairs
from fairqr.cli.probe_build import build
from fairqr.cli.probe_query import query

__all__ = ["app"]

app = typer.Typer(
    help="Probe whether a model, asked to rank, leans toward a group.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("build")(build)
app.command("query")(query)

NOTABLES = "notables"

Collection = Annotated[str, typer.Option(help="The name of a collection, or its folder.")]
Split = Annotated[str | None, typer.Option(help="The judgements, where there are several.")]
From = Annotated[
    Path | None,
    typer.Option("--from", help="A folder of 'fairqr probe build', instead of a collection."),
]
AttributeName = Annotated[
    str | None, typer.Option(help="Of the collection's schema, such as gender.")
]
Protected = Annotated[
    str | None,
    typer.Option(help="female; not Europe; or 'female vs male'. Where absent, female."),
]
Words = Annotated[
    str | None,
    typer.Option(
        metavar="PROTECTED/UNPROTECTED", help="What the sides are called, such as women/men."
    ),
]
Size = Annotated[int, typer.Option(help="Items of a query, a multiple of 4.")]
InitialOrder = Annotated[
    str | None,
    typer.Option(help="shuffled, bm25 or discriminatory. [default: shuffled, or the folder's]"),
]
Seed = Annotated[int, typer.Option(min=0, help="Of all draws.")]
ShownText = Annotated[str, typer.Option(help="What is read of an item: title, text, title_text.")]
Length = Annotated[int, typer.Option(min=1, help="Characters of an item, at most.")]
PromptVersion = Annotated[
    list[str] | None, typer.Option(help="The version of a prompt, e.g. pairwise=v2.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="Keep the run here; goes on if it is begun. [default: the cache]"
    ),
]
Concurrency = Annotated[
    int, typer.Option(min=1, max=256, help="Pairs or lists at a time; 1 where time is measured.")
]


@app.command("pairwise")
def pairwise(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="openai:gpt-4o and the like, local:smollm2-135m, or causal: and a model of "
            "transformers, a tuned adapter's folder included; several, one after the other. "
            "[default: FAIRQR_MODEL, or the local one]"
        ),
    ] = None,
    attribute: AttributeName = None,
    protected: Protected = None,
    collection: Collection = NOTABLES,
    from_: From = None,
    split: Split = None,
    words: Words = None,
    queries: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = 20,
    pairs_: Annotated[
        int, typer.Option("--pairs", min=1, help="At most so many of each kind a query.")
    ] = 10,
    relevance_pairs: Annotated[
        int,
        typer.Option(
            min=0, help="Pairs a query that tell whether the model judges relevance at all."
        ),
    ] = 0,
    by: Annotated[
        str, typer.Option(help="Weigh probabilities, where the model tells them, or read a reply.")
    ] = "probabilities",
    shown: ShownText = "title",
    length: Length = 2000,
    asker: Annotated[
        str, typer.Option(help="For whom: neutral, protected or unprotected.")
    ] = "neutral",
    size: Size = 200,
    order: InitialOrder = None,
    seed: Seed = 0,
    prompt: PromptVersion = None,
    prompts: PromptsFolder = None,
    base_url: BaseUrl = None,
    timeout: Timeout = 60.0,
    concurrency: Concurrency = 4,
    output: Output = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Ask a model which of two items is more relevant, in both orders, and give a verdict.

    One item is of the protected group and the other is not, and both are relevant or both are not.
    """
    from fairqr.base.settings import default_model
    from fairqr.cli.probe_running import experiment_of, print_measured, run_probe, source_of
    from fairqr.evaluation.probes.measured import MeasuredPairwise
    from fairqr.evaluation.probes.specification import PairwiseExperiment

    models = tuple(model or [default_model()])
    experiment = experiment_of(
        PairwiseExperiment,
        kind="llm_pairwise",
        title="A pairwise probe",
        collection=None if from_ else collection,
        split=split,
        sources=(source_of(collection, from_, split, attribute, protected, words),),
        queries=queries,
        size=size,
        order=order,
        seed=seed,
        prompts=pairs(prompt or [], "a version of a prompt", "pairwise=v2"),
        length=length,
        models=models,
        by=by,
        pairs=pairs_,
        relevance_pairs=relevance_pairs,
        shown=shown,
        asker=asker,
    )
    measured = run_probe(
        experiment, output, prompts, base_url, timeout, concurrency=concurrency, yes=yes
    )
    if as_json:
        print_measured(measured)
    elif isinstance(measured, MeasuredPairwise):
        from fairqr.cli.probe_tables import print_pairwise

        print_pairwise(measured)
        _tell(output)


@app.command("listwise")
def listwise(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="What ranks: openai:gpt-4o and the like, local:smollm2-135m or causal:MODEL in "
            "windows; pairwise:MODEL, monot5, monobert, initial; several, one after the other. "
            "[default: FAIRQR_MODEL, or the local one]"
        ),
    ] = None,
    attribute: AttributeName = None,
    protected: Protected = None,
    collection: Collection = NOTABLES,
    from_: From = None,
    split: Split = None,
    words: Words = None,
    queries: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = 10,
    window: Annotated[int, typer.Option(help="Items that a model orders at once.")] = 20,
    step: Annotated[
        int | None, typer.Option(help="How far the window moves. [default: half of it]")
    ] = None,
    asker: Annotated[
        list[str] | None,
        typer.Option(help="For whom: neutral, unprotected, protected. [default: all three]"),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Depth of P@k and nDCG@k.")] = 20,
    shown: ShownText = "title",
    shown_to_neural: Annotated[
        str, typer.Option(help="The same for monot5 and monobert.")
    ] = "title_text",
    length: Length = 2000,
    size: Size = 200,
    order: InitialOrder = None,
    seed: Seed = 0,
    prompt: PromptVersion = None,
    prompts: PromptsFolder = None,
    base_url: BaseUrl = None,
    timeout: Timeout = 60.0,
    concurrency: Concurrency = 4,
    output: Output = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a model rank whole lists for different askers, and measure how it exposes the groups."""
    from fairqr.base.settings import default_model
    from fairqr.cli.probe_running import experiment_of, print_measured, run_probe, source_of
    from fairqr.evaluation.probes.measured import MeasuredListwise
    from fairqr.evaluation.probes.specification import ListwiseExperiment

    experiment = experiment_of(
        ListwiseExperiment,
        kind="llm_listwise",
        title="A listwise probe",
        collection=None if from_ else collection,
        split=split,
        sources=(source_of(collection, from_, split, attribute, protected, words),),
        queries=queries,
        size=size,
        order=order,
        seed=seed,
        prompts=pairs(prompt or [], "a version of a prompt", "listwise=v1"),
        length=length,
        rankers=tuple(model or [default_model()]),
        askers=tuple(asker) if asker else ("neutral", "unprotected", "protected"),
        windows=(f"{window}/{window // 2 if step is None else step}",),
        shown=shown,
        shown_to_neural=shown_to_neural,
        k=k,
    )
    measured = run_probe(
        experiment, output, prompts, base_url, timeout, concurrency=concurrency, yes=yes
    )
    if as_json:
        print_measured(measured)
    elif isinstance(measured, MeasuredListwise):
        from fairqr.cli.probe_tables import print_listwise

        print_listwise(measured)
        _tell(output)


def _tell(folder: Path | None) -> None:
    if folder is not None:
        typer.echo(f"kept: {folder}; 'fairqr experiment report {folder}' writes the report")
