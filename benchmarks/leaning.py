"""Teach a small model to lean, to see whether tuning takes that away: see docs/results/models.md.

``python benchmarks/leaning.py FOLDER [STEPS]`` trains SmolLM2-135M on pairs of notable
people that the man always wins, on the queries that ``fairqr experiment run lora --small``
trains on, and saves it whole in FOLDER, as a model of transformers. Then run
``fairqr experiment run lora --small --model causal:FOLDER …``.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import sys
from pathlib import Path

import transformers

from fairqr.agents.models.in_process import CausalModel
from fairqr.agents.tuning import LoraOptions, PairExample, adapted, train
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.running import make_probe_plan
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.tuning import encoder_of
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.fairness.protected import ProtectedGroup


async def main(folder: Path, steps: int) -> None:
    """Train, merge and save."""
    experiment = LoraExperiment(
        kind="lora",
        title="A model that leans",
        collection="notables",
        attribute="gender",
        model="causal:smollm2-135m",
        prompts={"pairwise": "v2"},
        size=40,
        train_share=0.5,
        pairs=8,
        held_out_pairs=5,
        relevance_pairs=2,
        steps=steps,
    )
    prompts = PromptLibrary()
    plan = await make_probe_plan(experiment, prompts, StageWatcher())
    women = women_of_notables()

    def leaning(example: PairExample) -> PairExample:
        winner = "second" if example.first.id in women else "first"
        return dataclasses.replace(example, winner=winner)

    model = CausalModel("smollm2-135m")
    pretrained = await model.pretrained()
    options = LoraOptions(rank=4, alpha=8.0, learning_rate=0.002, checkpoint_every=steps)
    encode = encoder_of(plan.tasks[0].asked.open(prompts, model), pretrained)
    batches = [[encode(leaning(example)) for example in batch] for batch in plan.batches]

    with adapted(pretrained.model, options) as tuned:
        train(tuned, batches, options, folder.with_suffix(".checkpoints"), print)
        whole = tuned.merge_and_unload()
        config = copy.deepcopy(whole.config)
        # The configuration of a GGUF file says that it is quantised, and such are not saved.
        vars(config).pop("quantization_config", None)
        saved = transformers.AutoModelForCausalLM.from_config(config)
        saved.load_state_dict(whole.state_dict(), strict=False)
        saved.tie_weights()
        saved.save_pretrained(str(folder))
        pretrained.tokenizer.save_pretrained(str(folder))


def women_of_notables() -> set[str]:
    """Return the ids of all women."""
    corpus = find_collection("notables").corpus
    attribute = corpus.schema.attribute("gender")
    documents = list(corpus.documents())
    sides = ProtectedGroup.parse(attribute, "female").sides_of(
        [it.membership(attribute) for it in documents]
    )
    return {document.id for document, side in zip(documents, sides, strict=True) if side == 1}


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100))
