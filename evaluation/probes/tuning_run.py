"""Tuning a model by LoRA, and probing it with held-out queries before and after."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairqr.agents.cache import ReplyFile
from fairqr.agents.models import CAUSAL
from fairqr.agents.ranking.causal import CausalModel
from fairqr.agents.ranking.causal_weights import ABOUT
from fairqr.agents.ranking.decoding import encode, label_tokens
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.pairwise_reply import LABELS
from fairqr.agents.tuning.checkpoints import write_adapter
from fairqr.agents.tuning.examples import Example
from fairqr.agents.tuning.lora import Encoded, Step, adapted, train
from fairqr.base.errors import InputError
from fairqr.base.neural import Pretrained
from fairqr.evaluation.experiments.engine import Keep, Stage, run_stages
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.records import PairRecord
from fairqr.evaluation.probes.running import compare_pair
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.tasks import PairTask
from fairqr.evaluation.probes.tuning_measures import MeasuredLora, measure_lora
from fairqr.evaluation.probes.tuning_plan import LoraPlan, lora_options, make_lora_plan
from fairqr.evaluation.probes.tuning_records import (
    LoraStore,
    StepRecord,
    When,
)
from fairqr.prompts.library import PromptLibrary

__all__ = ["encoder_of", "judge_of", "run_lora", "tune_plan"]


async def run_lora(
    experiment: LoraExperiment,
    folder: Path,
    watcher: StageWatcher,
    *,
    prompts: PromptLibrary | None = None,
    at_once: int = 4,
) -> MeasuredLora:
    """Do all that is not done yet: draw pairs, probe, tune, probe again.

    Args:
        experiment: What is tuned, and how.
        folder: Where everything goes; the adapter is in ``adapter``.
        watcher: Told of each pair and each step.
        prompts: Where prompts come from.
        at_once: How many pairs may be under way at the same time.

    Raises:
        FairqrError: What it names is not there, the folder holds another run, or the model cannot
            be tuned so.
    """
    plan = await make_lora_plan(experiment, prompts or PromptLibrary())
    store = LoraStore(folder)
    await tune_plan(plan, store, watcher, at_once=at_once)
    return measure_lora(store)


async def tune_plan(
    plan: LoraPlan, store: LoraStore, watcher: StageWatcher, *, at_once: int = 4
) -> None:
    """Do what :func:`run_lora` does with a plan that is made already."""
    with store.locked():
        store.check(plan.manifest)
        await _probe(plan, store, "before", watcher, at_once)
        if not store.is_tuned:
            await _tune(plan, store, watcher)
        _check_adapter(plan, store)
        await _probe(plan, store, "after", watcher, at_once)


async def _probe(
    plan: LoraPlan, store: LoraStore, when: When, watcher: StageWatcher, at_once: int
) -> None:
    """Ask about the held-out pairs that were not asked about yet."""
    lines = store.pairs(when)
    name = f"{CAUSAL}:{plan.manifest.base}"
    weights = str(store.adapter) if when == "after" else plan.manifest.base
    judge = judge_of(plan, CausalModel(weights, cache=ReplyFile(store.replies)))

    async def start() -> None:
        await judge.start()
        # Nothing is written before the model is there.
        store.begin(plan.manifest)

    async def compare(task: PairTask, keep: Keep[PairRecord]) -> None:
        keep(await compare_pair(judge, name, task))

    async def stages() -> AsyncIterator[Stage[PairTask, PairRecord]]:
        yield Stage(
            title=f"pairs {when} tuning",
            model=name,
            tasks=plan.held_out,
            keys=lambda task: [task.key(name)],
            done={record.key for record in lines.read() if record.is_final},
            start=start,
            do=compare,
            lines=lines,
            pace=name,
        )

    await run_stages(stages, watcher=watcher, at_once=at_once)
    store.begin(plan.manifest)


async def _tune(plan: LoraPlan, store: LoraStore, watcher: StageWatcher) -> None:
    """Train the adapter on a thread, and write it."""
    model = CausalModel(plan.manifest.base)
    pretrained = await model.pretrained()
    judge = judge_of(plan, model)
    loop = asyncio.get_running_loop()
    stopped = threading.Event()

    def begun(done: int) -> None:
        loop.call_soon_threadsafe(watcher.stage, "training steps", plan.manifest.steps, done)

    def stepped(step: Step) -> None:
        if stopped.is_set():
            raise _StoppedError
        store.losses.add(_record(step))
        loop.call_soon_threadsafe(watcher.advance)

    try:
        await asyncio.to_thread(
            _train, plan, store, pretrained, encoder_of(judge, pretrained), begun, stepped
        )
    finally:
        # A thread cannot be ended from outside; it ends itself at the next step.
        stopped.set()


def _train(
    plan: LoraPlan,
    store: LoraStore,
    pretrained: Pretrained,
    encode: Callable[[Example], Encoded],
    begun: Callable[[int], None],
    stepped: Callable[[Step], None],
) -> None:
    manifest = plan.manifest
    options = lora_options(manifest.experiment)
    with adapted(pretrained.model, options) as tuned, store.losses.writing():
        train(
            tuned,
            plan.batches,
            encode,
            options,
            checkpoint=store.checkpoint,
            training=f"{manifest.base} {manifest.base_sha256} {manifest.training}",
            watch=stepped,
            begun=begun,
        )
        write_adapter(tuned, store.adapter, manifest.base, _about(plan))
    store.checkpoint.unlink(missing_ok=True)


def encoder_of(judge: PairwiseJudge, pretrained: Pretrained) -> Callable[[Example], Encoded]:
    """Return what makes an example into the tokens that the judge would ask with."""
    try:
        first, second = label_tokens(pretrained.tokenizer, LABELS)
    except ValueError as error:
        raise InputError(f"The model cannot be tuned, since {error}; choose another.") from None

    def encoded(example: Example) -> Encoded:
        values = judge.values(example.query, example.first, example.second, "")
        tokens = encode(pretrained.tokenizer, judge.prompt.render(values))
        return Encoded(tokens, first if example.winner == "first" else second)

    return encoded


def judge_of(plan: LoraPlan, model: CausalModel) -> PairwiseJudge:
    """Return what asks a model about pairs, as a plan says."""
    experiment = plan.manifest.experiment
    return PairwiseJudge(model, plan.prompt, shown=experiment.shown, length=experiment.length)


def _record(step: Step) -> StepRecord:
    values = asdict(step)
    return StepRecord(step=values.pop("number"), **values)


def _about(plan: LoraPlan) -> dict[str, Any]:
    manifest = plan.manifest
    return {
        "base_sha256": manifest.base_sha256,
        "prompt": manifest.prompt,
        "prompt_sha256": manifest.prompt_sha256,
        "shown": manifest.experiment.shown,
        "length": manifest.experiment.length,
        "steps": manifest.steps,
        "training": manifest.training,
        "experiment": manifest.experiment.model_dump(mode="json"),
        "versions": manifest.versions,
    }


def _check_adapter(plan: LoraPlan, store: LoraStore) -> None:
    """Refuse an adapter that was put into the folder from elsewhere."""
    try:
        about = json.loads((store.adapter / ABOUT).read_bytes())
        same = about["training"] == plan.manifest.training
    except (OSError, ValueError, KeyError, TypeError):
        same = False
    if not same:
        raise InputError(
            f"{store.adapter} is not the adapter of this run; remove it, and it is trained again."
        )


class _StoppedError(Exception):
    """Nobody waits for the training any more."""
