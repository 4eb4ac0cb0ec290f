"""Tuning a model by LoRA on some queries; it is probed with the others before and after."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, cast

from fairqr.agents import tuning as lora
from fairqr.agents.models.causal_weights import ABOUT, base_sha256
from fairqr.agents.models.in_process import encode, label_tokens
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.reply_parser import LABELS
from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError
from fairqr.base.neural import PretrainedModel
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.collection import (
    GROUP_KINDS,
    ProbeCollection,
    crossed_pairs,
    planned_pairs,
)
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import (
    ProbeRunManifest,
    ProbeStore,
    StepRecord,
    TuningEntry,
)

Batches = Sequence[Sequence[lora.PairExample]]

AS_QUESTIONS = 3
"""To learn from an example takes as long as so many questions."""


def split_queries(ids: Iterable[str], train_share: float, seed: int) -> tuple[set[str], set[str]]:
    """Deal queries at random.

    A query that stands in several probe collections is on one side in all of them.

    Args:
        ids: The queries. Order and repetitions do not matter.
        train_share: The share to train on, in (0, 1); rounded, at least one query is on each side
            if there are two.
        seed: The seed of the draw.

    Returns:
        The ids of those to train on, and of those that are held out.
    """
    unique = sorted(set(ids))
    order = stream(seed, "split of the queries").permutation(len(unique))
    shuffled = [unique[position] for position in order]
    size = min(max(round(train_share * len(unique)), 1), len(unique) - 1)
    return set(shuffled[:size]), set(shuffled[size:])


def draw_tuning(
    experiment: LoraExperiment,
    base: str,
    collections: Sequence[ProbeCollection],
    watcher: StageWatcher,
) -> tuple[list[ProbeCollection], TuningEntry, Batches]:
    """Split the queries of collections, and draw the pairs to train on.

    Irrelevant items are drawn from other queries, so an item of a query to train on may be one of a
    held-out query too. We leave out those that are probed with.

    Args:
        experiment: What is tuned, and on how much.
        base: The model, as it stands behind ``causal:``.
        collections: The collections that the experiment names.
        watcher: Is told where there are fewer pairs to train on than asked for.

    Returns:
        The collections with the queries that are held out; what the settings of the run say; and
        the examples of each step. No held-out query is trained on, and no item of its pairs.

    Raises:
        InputError: No pair is left to train on.
    """
    ids: list[str] = []
    for collection in collections:
        ids += [query.id for query in collection.queries]
    train_on, hold_out = split_queries(ids, experiment.train_share, experiment.seed)
    held_out = [_with_queries(collection, hold_out) for collection in collections]
    probed = _probed_items(held_out, experiment)
    training: list[lora.TuningPair] = []
    left_out: set[str] = set()
    for collection in collections:
        for query in _with_queries(collection, train_on).queries:
            left_out |= {item.id for item in query.items} & probed
            items = tuple(item for item in query.items if item.id not in probed)
            unprobed = query.model_copy(update={"items": items})
            for kind in GROUP_KINDS:
                name = f"{collection.manifest.name}: {kind}"
                pairs = crossed_pairs(unprobed, kind, experiment.pairs, experiment.seed)
                for pair in pairs:
                    first, second = pair.items
                    training.append(lora.TuningPair(query.query, name, first.shown, second.shown))
    wanted = len(train_on) * len(collections) * len(GROUP_KINDS) * experiment.pairs
    if len(training) < wanted:
        watcher.note(
            f"only {len(training):,} of {wanted:,} pairs to train on are there, since some queries "
            "have too few items of a kind; a larger size may have more"
        )
    random = stream(experiment.seed, "examples to tune on")
    batches = lora.make_batches(
        training,
        random,
        batch=experiment.batch,
        epochs=experiment.epochs,
        steps=experiment.steps,
        winners=experiment.winners,
    )
    entry = TuningEntry(
        train=tuple(sorted(train_on)),
        held_out=tuple(sorted(hold_out)),
        pairs=Counter(pair.kind for pair in training),
        left_out=len(left_out),
        base=base,
        base_sha256=base_sha256(base),
        training=lora.fingerprint(batches),
        steps=len(batches),
    )
    return held_out, entry, batches


def _with_queries(collection: ProbeCollection, ids: Container[str]) -> ProbeCollection:
    """Return a collection with some of its queries."""
    queries = tuple(query for query in collection.queries if query.id in ids)
    return collection.model_copy(update={"queries": queries})


def _probed_items(collections: Sequence[ProbeCollection], experiment: LoraExperiment) -> set[str]:
    """Return the ids of all items that the model is asked about."""
    limit = experiment.held_out_pairs
    ids: set[str] = set()
    for collection in collections:
        for query in collection.queries:
            pairs = planned_pairs(query, limit, experiment.relevance_pairs, experiment.seed)
            for pair in pairs:
                ids |= {item.id for item in pair.items}
    return ids


async def tune(
    folder: ProbeStore,
    manifest: ProbeRunManifest,
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
    about = manifest.model_dump(mode="json", include={"experiment", "versions", "prompts"})
    entry: Any = manifest.tuning
    about |= entry.model_dump(exclude={"train", "held_out"})
    options = cast("LoraExperiment", manifest.experiment)
    if not folder.adapter.is_dir():
        model: Any = judge.model
        pretrained: PretrainedModel = await model.pretrained()
        encoded = encoder_of(judge, pretrained)
        steps = [[encoded(example) for example in batch] for batch in batches]
        tell = asyncio.get_running_loop().call_soon_threadsafe
        stopped = threading.Event()

        def watch(step: int, loss: float, learning_rate: float, norm: float) -> None:
            if stopped.is_set():
                raise _StoppedError
            tell(watcher.advance)
            examples = steps[step - 1]
            record = StepRecord(
                step=step,
                loss=loss,
                learning_rate=learning_rate,
                norm=norm,
                examples=len(examples),
                # The last token of an example is its label.
                tokens=sum(len(example) - 1 for example in examples),
            )
            folder.losses.add(record)

        def start(done: int) -> None:
            tell(watcher.stage, "training steps", len(steps), done)

        def work() -> None:
            with lora.adapted(pretrained.model, options) as tuned, folder.losses.writing():
                lora.train(tuned, steps, options, folder.checkpoints, watch, start)
                # It is written last, and whole.
                lora.write_adapter(tuned, folder.adapter, about["base"], about)
            shutil.rmtree(folder.checkpoints, ignore_errors=True)

        try:
            await asyncio.to_thread(work)
        finally:
            # A thread cannot be ended from outside; it ends itself at the next step.
            stopped.set()
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        if json.loads((folder.adapter / ABOUT).read_bytes())["training"] == entry.training:
            return
    raise InputError(
        f"{folder.adapter} is not the adapter of this run; remove it, and it is trained again."
    )


def encoder_of(
    judge: PairwiseJudge, pretrained: PretrainedModel
) -> Callable[[lora.PairExample], list[int]]:
    """Return what makes an example into the tokens that the judge would ask with, and the label.

    Raises:
        InputError: The model has no token for a label, or the prompt asks for none.
    """
    if judge.asks_for_order:
        raise InputError(
            f"A tuning learns one label, but the prompt {judge.prompt.name} asks for an order; use "
            "another version, such as prompts=pairwise=v1."
        )
    try:
        first, second = label_tokens(pretrained.tokenizer, LABELS)
    except ValueError as error:
        raise InputError(f"The model cannot be tuned, since {error}; choose another.") from None

    def encoded(example: lora.PairExample) -> list[int]:
        values = judge.values(example.query, (example.first, example.second))
        tokens = encode(pretrained.tokenizer, judge.prompt.render(values))
        label = first if example.winner == "first" else second
        return [*tokens, label]

    return encoded


class _StoppedError(Exception):
    """Nobody waits for the training any more."""
