"""The command ``fairqr tune``: a model by LoRA on balanced pairs, probed before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairqr.cli.collection_options import (
    NOTABLES,
    Attribute,
    Built,
    Collection,
    Protected,
    Seed,
    experiment_of,
)
from fairqr.cli.common import AsJson, PromptsFolder, run
from fairqr.cli.parameters import ParameterCommand, Set
from fairqr.cli.progress import Progress

TuneCommand = ParameterCommand.of("fairqr.evaluation.probes.specification:LoraExperiment")


def tune(
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="The folder of the run and of the adapter; an interrupted run resumes.",
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="The model to tune: causal: followed by a hub id, a folder, a GGUF file or the "
            "name of embedded weights."
        ),
    ] = "causal:smollm2-135m",
    attribute: Attribute = None,
    protected: Protected = None,
    collection: Collection = NOTABLES,
    built: Built = None,
    queries: Annotated[int | None, typer.Option(min=1, help="The most queries to use.")] = None,
    seed: Seed = None,
    settings: Set = None,
    prompts: PromptsFolder = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Run even if it takes more than 6,000 passes of the model."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tune a causal model by LoRA, so that neither group is preferred; probe it before and after.

    It learns from pairs that both groups win equally often, in both orders. It is probed with
    queries that it was not trained on. The attribute defaults to gender.
    """
    from fairqr.cli.tuning_tables import print_measured
    from fairqr.evaluation.experiments.kinds import RunOptions, check_pandas
    from fairqr.evaluation.probes import tuning
    from fairqr.evaluation.probes.specification import LORA_KIND, LoraExperiment
    from fairqr.evaluation.probes.store import LoraStore
    from fairqr.evaluation.probes.tuning_measures import measure_lora
    from fairqr.prompts.library import PromptLibrary

    check_pandas()
    experiment = experiment_of(
        LoraExperiment,
        {
            "kind": LORA_KIND,
            "title": f"{model} tuned by LoRA",
            "prompts": {"pairwise": "v2"},
            "model": model,
            "collection": collection,
        },
        settings,
        queries=queries,
        seed=seed,
        built=built,
        attribute=attribute if attribute or built else "gender",
        protected=protected,
    )
    with Progress() as watcher:
        options = RunOptions(output, watcher, PromptLibrary(prompts), yes=yes)
        run(tuning.run(experiment, options))
    print_measured(measure_lora(LoraStore(output)), output, as_json=as_json)
