"""What a tuning trains on and what it probes with, drawn from probe collections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairqr.agents.models import CAUSAL
from fairqr.agents.ranking.causal_weights import base_sha256, lasting_name
from fairqr.agents.tuning.examples import Example, TuningPair, fingerprint, make_batches
from fairqr.agents.tuning.lora import LoraOptions
from fairqr.base.errors import InputError, one_line
from fairqr.base.statistics import stream
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.pairs import group_pairs, rank_item, relevance_pairs
from fairqr.evaluation.probes.sources import open_probe_collections
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import CollectionEntry
from fairqr.evaluation.probes.tasks import PairTask
from fairqr.evaluation.probes.tuning_records import LoraManifest, SplitEntry
from fairqr.evaluation.probes.tuning_split import Split, apart, split_queries
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate

__all__ = ["LoraPlan", "held_out_tasks", "lora_options", "make_lora_plan"]


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """What is to be done.

    Attributes:
        manifest: What it is done with.
        prompt: Which asks about pairs.
        held_out: The pairs to probe with, before and after.
        batches: The examples of each step.
    """

    manifest: LoraManifest
    prompt: PromptTemplate
    held_out: tuple[PairTask, ...]
    batches: tuple[tuple[Example, ...], ...]

    @property
    def passes(self) -> int:
        """How often the model reads a prompt, at the most; a training step counts three times."""
        return 4 * len(self.held_out) + 3 * sum(map(len, self.batches))

    def sentences(self) -> Iterator[str]:
        """Yield what the run will do, for people."""
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
    if unused := sorted(experiment.prompts.keys() - {"pairwise"}):
        raise InputError(
            f"Tuning asks not with the prompt '{one_line(unused[0])}' but with pairwise; leave it "
            "out."
        )
    prompt = prompts.get("pairwise", experiment.prompts.get("pairwise"))
    collections = await open_probe_collections(experiment, texts=experiment.shown != "title")
    split = split_queries(
        (query.id for collection in collections for query in collection.queries),
        experiment.train_share,
        experiment.seed,
    )
    held_out = [task for it in collections for task in held_out_tasks(it, split, experiment)]
    probed = {item.id for it in held_out for item in (it.pair.protected, it.pair.unprotected)}
    training: list[TuningPair] = []
    splits = []
    for collection in collections:
        name = collection.manifest.name
        queries, left_out = apart(_of(collection, split.train), probed)
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
                held_out=tuple(query.id for query in _of(collection, split.held_out)),
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
    )
    return LoraPlan(manifest, prompt, tuple(held_out), tuple(batches))


def held_out_tasks(
    collection: ProbeCollection, split: Split, experiment: LoraExperiment
) -> list[PairTask]:
    """Return the pairs of a collection's held-out queries: relevant, irrelevant and relevance."""
    most, seed = experiment.held_out_pairs, experiment.seed
    return [
        PairTask(collection.manifest.name, "", query, pair)
        for query in _of(collection, split.held_out)
        for pair in (
            *group_pairs(query, "relevant", most, seed),
            *group_pairs(query, "irrelevant", most, seed),
            *relevance_pairs(query, experiment.relevance_pairs, seed),
        )
    ]


def lora_options(experiment: LoraExperiment) -> LoraOptions:
    """Return how the adapter is trained."""
    return LoraOptions(
        rank=experiment.rank,
        alpha=experiment.alpha,
        dropout=experiment.dropout,
        modules=experiment.modules,
        learning_rate=experiment.learning_rate,
        schedule=experiment.schedule,
        seed=experiment.seed,
    )


def _base(model: str) -> str:
    kind, _, name = model.partition(":")
    if kind != CAUSAL or not name:
        raise InputError(
            f"Only a causal model of transformers can be tuned, not '{one_line(model)}'; write it "
            "like causal:smollm2-135m, or causal: and a hub id, a folder or a GGUF file."
        )
    return lasting_name(name)


def _of(collection: ProbeCollection, ids: Sequence[str]) -> list[ProbeQuery]:
    wanted = frozenset(ids)
    return [query for query in collection.queries if query.id in wanted]


def _training_pairs(query: ProbeQuery, experiment: LoraExperiment) -> list[TuningPair]:
    return [
        TuningPair(query.query, pair.kind, rank_item(pair.protected), rank_item(pair.unprotected))
        for kind in ("relevant", "irrelevant")
        for pair in group_pairs(query, kind, experiment.pairs, experiment.seed)
    ]
