"""The command ``fairqr tune``: a model by LoRA on balanced pairs, probed before and after."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fairqr.cli.common import run
from fairqr.cli.options import Fields
from fairqr.cli.output import Printed, frame_table
from fairqr.cli.probed import Probed, as_data
from fairqr.cli.progress import Progress
from fairqr.evaluation.probes.specification import LORA_KIND, LoraExperiment

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.evaluation.probes.tuning_measures import MeasuredLora


def tune(
    *,
    output: Path,
    model: str = "causal:smollm2-135m",
    probed: Probed,
    changes: Annotated[Mapping[str, Any], Fields("queries", "seed", model=LoraExperiment)],
    prompts: Path | None = None,
    yes: bool = False,
) -> Printed:
    """Tune a causal model by LoRA, so that neither group is preferred; probe it before and after.

    It learns from pairs that both groups win equally often, in both orders. It is probed with
    queries that it was not trained on. The attribute defaults to gender.

    Args:
        output: The folder of the run and of the adapter; an interrupted run resumes.
        model: The model to tune: causal: followed by a hub id, a folder, a GGUF file or the name of
            embedded weights.
        probed: What it is trained and probed on.
        changes: How it is tuned.
        prompts: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
        yes: Run even if it takes more than 6,000 passes of the model.
    """
    from fairqr.evaluation.experiments.kinds import RunOptions, check_pandas
    from fairqr.evaluation.probes import tuning
    from fairqr.evaluation.probes.store import LoraStore
    from fairqr.evaluation.probes.tuning_measures import measure_lora
    from fairqr.prompts.library import PromptLibrary

    check_pandas()
    if probed.from_ is None and not probed.attribute:
        probed = probed.model_copy(update={"attribute": "gender"})
    usual = {"kind": LORA_KIND, "title": f"{model} tuned by LoRA", "prompts": {"pairwise": "v2"}}
    experiment = probed.experiment(LoraExperiment, {**usual, "model": model, **changes})
    with Progress() as watcher:
        options = RunOptions(output, watcher, PromptLibrary(prompts), yes=yes)
        run(tuning.run(experiment, options))
    measured, adapter = measure_lora(LoraStore(output)), output / "adapter"
    return Printed(
        lambda: {"adapter": str(adapter), **as_data(measured, ["splits"])},
        _lines(measured, adapter),
    )


def _lines(measured: MeasuredLora, adapter: Path) -> Iterator[RenderableType]:
    """Yield what a tuning changed, where the adapter is, and how to probe it."""
    figures = ("collection", "kind", "when", "pairs", "protected", "unprotected", "ratio", "flips")
    changes = ("collection", "kind", "measure", "pairs", "before", "after", "difference", "verdict")
    yield frame_table(measured.figures, *figures)
    yield frame_table(measured.changes, *changes)
    yield "A difference is above 0 if a share rose, or if a ratio or log-odds came nearer to fair."
    yield ""
    yield f"adapter: {adapter}"
    yield f"next: {_next(measured, adapter)}"
    yield "(this asks about all queries, including those of the training)"


def _next(measured: MeasuredLora, adapter: Path) -> str:
    """Return the command that probes the adapter as it was probed here."""
    manifest = measured.manifest
    experiment, source = manifest.experiment, manifest.experiment.sources[0]
    words = ["fairqr", "probe", "pairwise", "--model", f"causal:{adapter}"]
    if source.folder:
        words += ["--from", source.folder]
    else:
        words += ["--collection", str(experiment.collection)]
        words += ["--attribute", str(source.attribute), "--protected", str(source.protected)]
    words += ["--set", f"shown={experiment.shown}", "--set", f"length={experiment.length}"]
    return shlex.join([*words, "--set", f"prompts.{manifest.prompt}"])
