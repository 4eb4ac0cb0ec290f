"""Tuning a model by LoRA on some queries; it is probed with the others before and after."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any

from fairqr.agents import tuning as lora
from fairqr.agents.models.causal_weights import ABOUT, base_sha256
from fairqr.agents.models.in_process import encode, label_tokens
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.reply_parser import LABELS
from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, one_line
from fairqr.base.neural import PretrainedModel
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes import store
from fairqr.evaluation.probes.collection import (
    GROUP_KINDS,
    ProbeCollection,
    ProbeQuery,
    group_pairs,
    planned_pairs,
)
from fairqr.evaluation.probes.specification import LoraExperiment

Batches = Sequence[Sequence[lora.PairExample]]

AS_QUESTIONS = 3
"""To learn from an example takes as long as so many questions."""


def split_queries(ids: Iterable[str], train_share: float, seed: int) -> tuple[set[str], set[str]]:
    """Deal queries at random.

    A query that stands in several probe collections is on one side in all of them.

    Args:
        ids: The queries. Order and repetitions do not matter.
        train_share: The share to train on, in (0, 1); rounded, at least one query is on each side.
        seed: The seed of the draw.

    Returns:
        The ids of those to train on, and of those that are held out.

    Raises:
        InputError: There are fewer than two queries.
    """
    known = sorted(set(ids))
    if len(known) < 2:
        raise InputError(
            "Some queries are held out, so there must be two or more; the collection has "
            f"{len(known)}."
        )
    order = stream(seed, "split of the queries").permutation(len(known))
    train = min(max(round(train_share * len(known)), 1), len(known) - 1)
    names = [known[place] for place in order]
    return set(names[:train]), set(names[train:])


def apart(queries: Sequence[ProbeQuery], held_out: Collection[str]) -> tuple[list[ProbeQuery], int]:
    """Leave out items that are probed with.

    Irrelevant items are drawn from other queries, so that an item of a query to train on may be one
    of a held-out query too.

    Args:
        queries: The queries to train on.
        held_out: The ids of the items of the pairs that are probed with.

    Returns:
        The queries with the items that are left, and how many different items were left out.
    """
    both = {item.id for query in queries for item in query.items if item.id in held_out}
    kept = [
        query.model_copy(update={"items": tuple(it for it in query.items if it.id not in both)})
        for query in queries
    ]
    return kept, len(both)


def draw_tuning(
    experiment: LoraExperiment, base: str, collections: Sequence[ProbeCollection]
) -> tuple[list[ProbeCollection], store.TuningEntry, Batches]:
    """Split the queries of collections, and draw the pairs to train on.

    Args:
        experiment: What is tuned, and on how much.
        base: The model, as it stands behind ``causal:``.
        collections: Those that the experiment names.

    Returns:
        The collections with the queries that are held out; what the settings of the run tell; and
        the examples of each step. No held-out query is trained on, and no item of its pairs.

    Raises:
        InputError: There are fewer than two queries, or no pair is left to train on or to probe a
            collection with.
    """
    ids = [query.id for it in collections for query in it.queries]
    train_on, hold_out = split_queries(ids, experiment.train_share, experiment.seed)
    held_out = [
        ProbeCollection.of(it.manifest, [query for query in it.queries if query.id in hold_out])
        for it in collections
    ]
    drawn = (experiment.held_out_pairs, experiment.relevance_pairs, experiment.seed)
    asked = [
        [it for query in each.queries for it in planned_pairs(query, *drawn)] for each in held_out
    ]
    probed = {item.id for pairs in asked for pair in pairs for item in pair.items}
    training, splits = list[lora.TuningPair](), []
    for collection, others, pairs in zip(collections, held_out, asked, strict=True):
        name, kinds = others.manifest.name, Counter(pair.kind for pair in pairs)
        if not any(kinds[kind] for kind in GROUP_KINDS):
            raise InputError(
                f"No held-out query of {one_line(name)} has a pair; take more queries, or a lower "
                "share to train on."
            )
        own = [query for query in collection.queries if query.id in train_on]
        queries, left_out = apart(own, probed)
        trained = Counter[str]()
        for query, kind in ((query, kind) for query in queries for kind in GROUP_KINDS):
            for pair in group_pairs(query, kind, experiment.pairs, experiment.seed):
                items = (item.shown for item in pair.items)
                training.append(lora.TuningPair(query.query, f"{name}: {kind}", *items))
                trained[kind] += 1
        splits.append(
            store.SplitEntry(
                collection=name,
                train=tuple(query.id for query in queries),
                held_out=tuple(query.id for query in others.queries),
                training_pairs=trained,
                held_out_pairs=kinds,
                left_out=left_out,
            )
        )
    random = stream(experiment.seed, "examples to tune on")
    sizes = {name: getattr(experiment, name) for name in ("batch", "epochs", "steps")}
    batches = lora.make_batches(training, random, **sizes)
    entry = store.TuningEntry(
        splits=tuple(splits),
        base=base,
        base_sha256=base_sha256(base),
        training=lora.fingerprint(batches),
        steps=len(batches),
    )
    return held_out, entry, batches


async def tune(
    folder: store.ProbeStore,
    manifest: store.ProbeRunManifest,
    batches: Batches,
    judge: PairwiseJudge,
    watcher: StageWatcher,
) -> None:
    """Train the adapter on a thread, and write it, unless the folder has it.

    Args:
        folder: Where checkpoints, losses and the adapter go.
        manifest: What is trained, and how.
        batches: The examples of each step.
        judge: Asks the base, which nobody else uses meanwhile.
        watcher: Receives each step.

    Raises:
        InputError: The model cannot be tuned so, or the folder has another adapter.
        ModelUnavailableError: An extra is missing.
    """
    about = _about(manifest)
    # It is written last, and whole.
    if not folder.adapter.is_dir():
        await _train(folder, manifest.experiment, about, batches, judge, watcher)
    try:
        trained = json.loads((folder.adapter / ABOUT).read_bytes())["training"]
    except (OSError, ValueError, KeyError, TypeError):
        trained = None
    if trained != about["training"]:
        raise InputError(
            f"{folder.adapter} is not the adapter of this run; remove it, and it is trained again."
        )


def _about(manifest: store.ProbeRunManifest) -> dict[str, Any]:
    """Return what an adapter says of itself."""
    found = manifest.model_dump(mode="json", include={"experiment", "versions"})
    found |= manifest.model_dump(include={"tuning"}, exclude={"tuning": {"splits"}})["tuning"]
    (prompt,) = manifest.prompts
    shown = manifest.experiment.model_dump(include={"shown", "length"})
    return {**found, **shown, "prompt": prompt.prompt, "prompt_sha256": prompt.sha256}


async def _train(
    folder: store.ProbeStore,
    experiment: store.AnyProbe,
    about: dict[str, Any],
    batches: Batches,
    judge: PairwiseJudge,
    watcher: StageWatcher,
) -> None:
    """Train the adapter, and write it."""
    model: Any = judge.model
    named = [field.name for field in fields(lora.LoraOptions) if hasattr(experiment, field.name)]
    options = lora.LoraOptions(**{name: getattr(experiment, name) for name in named})
    pretrained: PretrainedModel = await model.pretrained()
    encoded = encoder_of(judge, pretrained)
    tell = asyncio.get_running_loop().call_soon_threadsafe
    stopped = threading.Event()

    def work() -> None:
        steps = [[encoded(example) for example in batch] for batch in batches]

        def watch(step: int, loss: float, learning_rate: float, norm: float) -> None:
            if stopped.is_set():
                raise _StoppedError
            tell(watcher.advance)
            # The last token of an example is its label.
            tokens = sum(len(example) - 1 for example in steps[step - 1])
            told = {"loss": loss, "learning_rate": learning_rate, "norm": norm, "tokens": tokens}
            folder.losses.add(store.StepRecord(step=step, examples=len(steps[step - 1]), **told))

        def begun(done: int) -> None:
            tell(watcher.stage, "training steps", len(steps), done)

        with lora.adapted(pretrained.model, options) as tuned, folder.losses.writing():
            lora.train(tuned, steps, options, folder.checkpoints, watch, begun)
            lora.write_adapter(tuned, folder.adapter, about["base"], about)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)

    try:
        await asyncio.to_thread(work)
    finally:
        # A thread cannot be ended from outside; it ends itself at the next step.
        stopped.set()


def encoder_of(
    judge: PairwiseJudge, pretrained: PretrainedModel
) -> Callable[[lora.PairExample], list[int]]:
    """Return what makes an example into the tokens that the judge would ask with, and the label.

    Raises:
        InputError: The model has no token for a label.
    """
    try:
        labels = dict(
            zip(("first", "second"), label_tokens(pretrained.tokenizer, LABELS), strict=True)
        )
    except ValueError as error:
        raise InputError(f"The model cannot be tuned, since {error}; choose another.") from None

    def encoded(example: lora.PairExample) -> list[int]:
        values = judge.values(example.query, (example.first, example.second))
        tokens = encode(pretrained.tokenizer, judge.prompt.render(values))
        return [*tokens, labels[example.winner]]

    return encoded


class _StoppedError(Exception):
    """Nobody waits for the training any more."""
