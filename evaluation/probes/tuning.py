"""Tuning a model by LoRA on some queries, and probing it with the others before and after."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any

from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.causal_weights import ABOUT, base_sha256, lasting_name
from fairqr.agents.models.in_process import CausalModel, encode, label_tokens
from fairqr.agents.models.opening import CAUSAL
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.rankers import RankerOptions
from fairqr.agents.ranking.reply_parser import LABELS
from fairqr.agents.statistics import stream
from fairqr.agents.tuning import (
    LoraOptions,
    PairExample,
    TuningPair,
    adapted,
    fingerprint,
    make_batches,
    train,
    write_adapter,
)
from fairqr.base.errors import InputError, one_line
from fairqr.base.neural import PretrainedModel
from fairqr.evaluation.experiments.engine import run_tasks
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.experiments.options import check_prompts
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.building import open_probe_collections
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.pairs import PairTask, group_pairs, planned_pairs, rank_item
from fairqr.evaluation.probes.running import compare_pair
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import (
    CollectionEntry,
    LoraManifest,
    LoraStore,
    SplitEntry,
    StepRecord,
    When,
)
from fairqr.evaluation.probes.tuning_measures import measure_lora
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate

STORE = LoraStore
measure = measure_lora

LARGE_TUNING = 6_000
"""A tuning with more passes of the model needs the user's consent."""

PAIRS_AT_ONCE = 4


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
        query.model_copy(
            update={"items": tuple(item for item in query.items if item.id not in both)}
        )
        for query in queries
    ]
    return kept, len(both)


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """What is to be done.

    Attributes:
        held_out: The pairs to probe with, before and after.
        batches: The examples of each step.
    """

    manifest: LoraManifest
    prompt: PromptTemplate
    held_out: tuple[PairTask, ...]
    batches: tuple[tuple[PairExample, ...], ...]

    @property
    def passes(self) -> int:
        """The most times that the model reads a prompt; a training step counts three times."""
        return 4 * len(self.held_out) + 3 * sum(map(len, self.batches))

    def sentences(self) -> Iterator[str]:
        """Yield what the run will do, for people."""
        yield from self.manifest.notes
        for split in self.manifest.splits:
            yield (
                f"{split.collection}: {len(split.train)} queries to train on with "
                f"{sum(split.training_pairs.values())} pairs, {len(split.held_out)} held out with "
                f"{sum(split.held_out_pairs.values())}; {split.left_out} items of training queries "
                "are left out, because the model is probed with them."
            )
        yield (
            f"{self.manifest.steps:,} steps of {self.manifest.experiment.batch} examples, and "
            f"twice {2 * len(self.held_out):,} questions: {self.passes:,} passes of the model."
        )


async def make_lora_plan(experiment: LoraExperiment, prompts: PromptLibrary) -> LoraPlan:
    """Build the probe collections of an experiment, or read them, and draw all pairs.

    Args:
        experiment: What is tuned, and how.
        prompts: Where prompts come from.

    Raises:
        FairqrError: What it names is not there, or no pair is left to train on or to probe with.
    """
    base = _base(experiment.model)
    check_prompts(experiment.prompts.keys(), {"pairwise"})
    prompt = prompts.get("pairwise", experiment.prompts.get("pairwise"))
    texts = experiment.shown != "title"
    collections, notes = await open_probe_collections(experiment, texts=texts)
    train_on, hold_out = split_queries(
        (query.id for collection in collections for query in collection.queries),
        experiment.train_share,
        experiment.seed,
    )
    held_out = [task for it in collections for task in held_out_tasks(it, hold_out, experiment)]
    probed = {item.id for it in held_out for item in (it.pair.protected, it.pair.unprotected)}
    training: list[TuningPair] = []
    splits = []
    for collection in collections:
        name = collection.manifest.name
        queries, left_out = apart(_of(collection, train_on), probed)
        pairs = [pair for query in queries for pair in _training_pairs(query, experiment)]
        kinds = Counter(it.pair.kind for it in held_out if it.collection == name)
        if not kinds["relevant"] + kinds["irrelevant"]:
            raise InputError(
                f"No held-out query of {one_line(name)} has a pair; take more queries, or a lower "
                "share to train on."
            )
        training += [
            TuningPair(it.query, f"{name}: {it.kind}", it.protected, it.unprotected) for it in pairs
        ]
        splits.append(
            SplitEntry(
                collection=name,
                train=tuple(query.id for query in queries),
                held_out=tuple(query.id for query in _of(collection, hold_out)),
                training_pairs=dict(Counter(pair.kind for pair in pairs)),
                held_out_pairs=dict(kinds),
                left_out=left_out,
            )
        )
    batches = make_batches(
        training,
        stream(experiment.seed, "examples to tune on"),
        batch=experiment.batch,
        epochs=experiment.epochs,
        steps=experiment.steps,
    )
    manifest = LoraManifest(
        experiment=experiment,
        collections=tuple(map(CollectionEntry.of, collections)),
        splits=tuple(splits),
        base=base,
        base_sha256=base_sha256(base),
        prompt=f"{prompt.id}={prompt.version}",
        prompt_sha256=prompt.sha256,
        training=fingerprint(batches),
        steps=len(batches),
        notes=tuple(notes),
    )
    return LoraPlan(manifest, prompt, tuple(held_out), tuple(batches))


def held_out_tasks(
    collection: ProbeCollection, hold_out: Set[str], experiment: LoraExperiment
) -> list[PairTask]:
    """Return the pairs of a collection's held-out queries: relevant, irrelevant and relevance."""
    drawn = (experiment.held_out_pairs, experiment.relevance_pairs, experiment.seed)
    return [
        PairTask(collection.manifest.name, "", query, pair)
        for query in _of(collection, hold_out)
        for pair in planned_pairs(query, *drawn)
    ]


def lora_options(experiment: LoraExperiment) -> LoraOptions:
    """Return how the adapter is trained."""
    named = [field.name for field in fields(LoraOptions)]
    return LoraOptions(**{it: getattr(experiment, it) for it in named if hasattr(experiment, it)})


def _base(model: str) -> str:
    kind, _, name = model.partition(":")
    if kind != CAUSAL or not name:
        raise InputError(
            f"Only a causal model of transformers can be tuned, not '{one_line(model)}'; write it "
            "like causal:smollm2-135m, or causal: and a hub id, a folder or a GGUF file."
        )
    return lasting_name(name)


def _of(collection: ProbeCollection, ids: Set[str]) -> list[ProbeQuery]:
    return [query for query in collection.queries if query.id in ids]


def _training_pairs(query: ProbeQuery, experiment: LoraExperiment) -> list[TuningPair]:
    return [
        TuningPair(query.query, pair.kind, rank_item(pair.protected), rank_item(pair.unprotected))
        for kind in ("relevant", "irrelevant")
        for pair in group_pairs(query, kind, experiment.pairs, experiment.seed)
    ]


async def run(experiment: LoraExperiment, options: RunOptions) -> None:
    """Do all that is not done yet, and say first how much work that is: probe, tune, probe again.

    Raises:
        FairqrError: What it names is not there, the folder holds another run, the model cannot be
            tuned so, or the run is costly and the user did not agree.
    """
    if options.workers.ray:
        raise InputError("A model is tuned in one process; leave the workers on Ray out.")
    plan = await make_lora_plan(experiment, options.prompts)
    store = LoraStore(options.folder)
    store.check(plan.manifest)
    for sentence in plan.sentences():
        options.watcher.note(sentence)
    if plan.passes > LARGE_TUNING and not (options.yes or store.exists()):
        raise InputError(
            f"That is more than {LARGE_TUNING:,} passes; lower pairs or steps, or add --yes to go "
            "on."
        )
    with store.locked():
        store.check(plan.manifest)
        await _probe(plan, store, "before", options.watcher)
        if not store.is_tuned:
            await _tune(plan, store, options.watcher)
        _check_adapter(plan, store)
        await _probe(plan, store, "after", options.watcher)


async def _probe(plan: LoraPlan, store: LoraStore, when: When, watcher: StageWatcher) -> None:
    """Ask about the held-out pairs that were not asked about yet."""
    lines = store.pairs(when)
    name = f"{CAUSAL}:{plan.manifest.base}"
    weights = str(store.adapter) if when == "after" else plan.manifest.base
    judge = judge_of(plan, CausalModel(weights, cache=ReplyCache(store.replies)))

    async def start(_: None) -> None:
        await judge.start()
        # Nothing is written before the model is there.
        store.begin(plan.manifest)

    undone = await run_tasks(
        plan.held_out,
        lambda task: compare_pair(judge, name, task),
        lines,
        title=f"pairs {when} tuning",
        keys=lambda task: [task.key(name)],
        place=lambda _: None,
        start=start,
        model=lambda _: name,
        watcher=watcher,
        at_once=PAIRS_AT_ONCE,
    )
    store.begin(plan.manifest)
    if undone is not None:
        raise undone


async def _tune(plan: LoraPlan, store: LoraStore, watcher: StageWatcher) -> None:
    """Train the adapter on a thread, and write it."""
    model = CausalModel(plan.manifest.base)
    pretrained = await model.pretrained()
    judge = judge_of(plan, model)
    loop = asyncio.get_running_loop()
    stopped = threading.Event()

    def begun(done: int) -> None:
        loop.call_soon_threadsafe(watcher.stage, "training steps", plan.manifest.steps, done)

    def stepped() -> None:
        if stopped.is_set():
            raise _StoppedError
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
    pretrained: PretrainedModel,
    encode: Callable[[PairExample], list[int]],
    begun: Callable[[int], None],
    stepped: Callable[[], None],
) -> None:
    options = lora_options(plan.manifest.experiment)
    batches = [[encode(example) for example in batch] for batch in plan.batches]

    def watch(step: int, loss: float, learning_rate: float, norm: float) -> None:
        batch = batches[step - 1]
        tokens = sum(len(example) - 1 for example in batch)  # the last one is the label
        stepped()
        store.losses.add(
            StepRecord(
                step=step,
                loss=loss,
                learning_rate=learning_rate,
                norm=norm,
                examples=len(batch),
                tokens=tokens,
            )
        )

    with adapted(pretrained.model, options) as tuned, store.losses.writing():
        train(tuned, batches, options, store.checkpoints, watch, begun)
        write_adapter(tuned, store.adapter, plan.manifest.base, _about(plan))
    shutil.rmtree(store.checkpoints, ignore_errors=True)


def encoder_of(
    judge: PairwiseJudge, pretrained: PretrainedModel
) -> Callable[[PairExample], list[int]]:
    """Return what makes an example into the tokens that the judge would ask with, and the label."""
    try:
        first, second = label_tokens(pretrained.tokenizer, LABELS)
    except ValueError as error:
        raise InputError(f"The model cannot be tuned, since {error}; choose another.") from None

    def encoded(example: PairExample) -> list[int]:
        values = judge.values(example.query, (example.first, example.second))
        tokens = encode(pretrained.tokenizer, judge.prompt.render(values))
        return [*tokens, first if example.winner == "first" else second]

    return encoded


def judge_of(plan: LoraPlan, model: CausalModel) -> PairwiseJudge:
    """Return what asks a model about pairs, as a plan says."""
    experiment = plan.manifest.experiment
    options = RankerOptions(shown=experiment.shown, length=experiment.length)
    return PairwiseJudge(model, plan.prompt, options)


def _about(plan: LoraPlan) -> dict[str, Any]:
    manifest = plan.manifest
    return {
        "base": manifest.base,
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
