"""The command ``fairqr tune``: a model by LoRA on balanced pairs, probed before and after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.cli.common import AsJson, PromptsFolder, pairs, run, warn
from fairqr.cli.progress import Progress
from fairqr.cli.tuning_tables import print_measured

if TYPE_CHECKING:
    from fairqr.evaluation.probes.specification import LoraExperiment
    from fairqr.evaluation.probes.tuning_plan import LoraPlan
    from fairqr.evaluation.probes.tuning_records import MeasuredLora

__all__ = ["agree", "tune", "tune_here"]

LARGE = 6_000
"""A run of more passes of the model than these has to be agreed to."""


def tune(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder of the run and of the adapter.")
    ],
    model: Annotated[
        str,
        typer.Option(help="causal: and a hub id, a folder, a GGUF file or embedded weights."),
    ] = "causal:smollm2-135m",
    collection: Annotated[
        str, typer.Option(help="A collection with judgements, or its folder.")
    ] = "notables",
    split: Annotated[
        str | None, typer.Option(help="The judgements, where a collection has several.")
    ] = None,
    attribute: Annotated[str, typer.Option(help="Of the collection's schema.")] = "gender",
    protected: Annotated[
        str, typer.Option(help="The protected group: female; not Europe; 'female vs male'.")
    ] = "female",
    built: Annotated[
        Path | None,
        typer.Option("--from", help="A folder of 'fairqr probe build' instead of a collection."),
    ] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="The first so many.")] = None,
    size: Annotated[int, typer.Option(min=4, help="Items of a query, a multiple of 4.")] = 200,
    train_share: Annotated[float, typer.Option(help="Of the queries; others are held out.")] = 0.8,
    pairs_: Annotated[
        int, typer.Option("--pairs", min=1, help="Of each kind a training query, at most.")
    ] = 50,
    held_out_pairs: Annotated[
        int, typer.Option(min=1, help="Of each kind a held-out query, at most.")
    ] = 50,
    relevance_pairs: Annotated[
        int, typer.Option(min=0, help="Relevant against irrelevant, a held-out query.")
    ] = 10,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of training; as the epochs need where not given.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often each pair is trained on.")] = 1,
    batch: Annotated[int, typer.Option(min=2, help="Examples a step; even.")] = 4,
    rank: Annotated[int, typer.Option(min=1, help="Of the adapter.")] = 1,
    alpha: Annotated[float, typer.Option(help="The adapter is scaled by alpha/rank.")] = 1.0,
    dropout: Annotated[float, typer.Option(help="Of what the adapter reads.")] = 0.0,
    modules: Annotated[
        str, typer.Option(help="The layers that are adapted, with commas between.")
    ] = "q_proj,k_proj,v_proj,o_proj",
    learning_rate: Annotated[float, typer.Option(help="Of the first step.")] = 0.003,
    schedule: Annotated[
        str, typer.Option(help="The rate falls to 0 in a line (linear), or is constant.")
    ] = "linear",
    shown: Annotated[str, typer.Option(help="title, text or title_text.")] = "title",
    length: Annotated[
        int, typer.Option(min=1, help="At most so many characters of an item.")
    ] = 2000,
    prompt: Annotated[
        str, typer.Option(help="The version of the prompt; v2 has two examples, for small models.")
    ] = "pairwise=v2",
    prompts: PromptsFolder = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Go on where it takes more than 6,000 passes of the model."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tune a causal model by LoRA, so that neither group is preferred; probe it before and after.

    It learns from pairs that both groups win equally often, in both orders. It is probed with
    queries that it was not trained on. The same command goes on with a run that was stopped.
    """
    from fairqr.base.errors import InputError
    from fairqr.evaluation.probes.specification import LORA_KIND, LoraExperiment

    versions = pairs([prompt], "a version of a prompt", "pairwise=v2")
    source: dict[str, Any] = (
        {"folder": str(built)} if built else {"attribute": attribute, "protected": protected}
    )
    experiment = _checked(
        LoraExperiment,
        {
            "kind": LORA_KIND,
            "title": f"{model} tuned by LoRA",
            "collection": None if built else collection,
            "split": split,
            "sources": [source],
            "queries": queries,
            "size": size,
            "train_share": train_share,
            "pairs": pairs_,
            "held_out_pairs": held_out_pairs,
            "relevance_pairs": relevance_pairs,
            "steps": steps,
            "epochs": epochs,
            "batch": batch,
            "rank": rank,
            "alpha": alpha,
            "dropout": dropout,
            "modules": [name.strip() for name in modules.split(",") if name.strip()],
            "learning_rate": learning_rate,
            "schedule": schedule,
            "shown": shown,
            "length": length,
            "prompts": versions,
            "seed": seed,
            "model": model,
        },
    )
    if not experiment.modules:
        raise InputError("--modules names no layer; name some, such as q_proj,v_proj.")
    measured = tune_here(experiment, output, prompts=prompts, yes=yes)
    print_measured(measured, output, as_json=as_json)


def tune_here(
    experiment: LoraExperiment, folder: Path, *, prompts: Path | None = None, yes: bool = False
) -> MeasuredLora:
    """Tune into a folder; a bar shows how far it is.

    Args:
        experiment: What is tuned, and how.
        folder: Where everything goes.
        prompts: The user's own.
        yes: Go on, however long it will take.

    Raises:
        FairqrError: As :func:`fairqr.evaluation.probes.tuning_run.run_lora` raises it.
        typer.Exit: It is large, and nobody agreed.
    """
    from fairqr.evaluation.probes.tuning_plan import make_lora_plan
    from fairqr.evaluation.probes.tuning_records import LoraStore
    from fairqr.evaluation.probes.tuning_run import tune_plan
    from fairqr.prompts.library import PromptLibrary

    plan = run(make_lora_plan(experiment, PromptLibrary(prompts)))
    store = LoraStore(folder)
    store.check(plan.manifest)
    agree(plan, yes=yes or store.exists())
    with Progress() as watcher:
        return run(tune_plan(plan, store, watcher))


def agree(plan: LoraPlan, *, yes: bool) -> None:
    """Say what a run does, and end it where it is large and nobody agreed."""
    manifest = plan.manifest
    for split in manifest.splits:
        warn(
            f"{split.collection}: {len(split.train)} queries to train on with "
            f"{sum(split.training_pairs.values())} pairs, {len(split.held_out)} held out with "
            f"{sum(split.held_out_pairs.values())}; {split.left_out} items of training queries are "
            "left out, since they are probed with."
        )
    warn(
        f"{manifest.steps:,} steps of {manifest.experiment.batch} examples, and twice "
        f"{2 * len(plan.held_out):,} questions: {plan.passes:,} passes of the model."
    )
    if plan.passes > LARGE and not yes:
        warn(f"That is more than {LARGE:,} passes; say --yes to go on, or lower pairs or steps.")
        raise typer.Exit(2)


def _checked(kind: type[LoraExperiment], values: Mapping[str, Any]) -> LoraExperiment:
    """Return the experiment that the options describe.

    Raises:
        InputError: One is out of its range.
    """
    from pydantic import ValidationError

    from fairqr.base.errors import InputError, first_problem, one_line

    try:
        # As a file of settings would be read.
        return kind.model_validate_json(json.dumps(dict(values)))
    except ValidationError as error:
        where, reason = first_problem(error)
        raise InputError(f"The option '{where}' is wrong: {one_line(reason)}.") from None
