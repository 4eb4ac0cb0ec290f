"""Tunes a causal language model, so that its rankings favour no group and no position.

As in "Do Large Language Models Rank Fairly?" (arXiv 2404.03192, §5), a low-rank adapter (LoRA, Hu
et al. 2022) learns to say one of two labels about pairs that the protected item and the other one
win equally often. Each pair is used in both orders, so that both labels are right equally often,
too. The paper does not say whether both orders have the same winner, so that is a choice.

Transformers' ``Trainer`` does the steps and keeps checkpoints; peft keeps the adapter. The loss is
the cross entropy of the label's token right after the prompt. The base model does not change. At
first, the adapter has no effect.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field, PositiveFloat

from fairqr.agents.models.causal_weights import ABOUT
from fairqr.agents.ranking.rankers import RankItem
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.base.extras import library
from fairqr.base.files import write_beside
from fairqr.base.neural import quiet
from fairqr.retrieval.sources.documents import chunks

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""How the names of the attention layers end in Llama, SmolLM2, Mistral, Qwen2 and their like."""

Winners = Literal["pair", "question"]
"""Whether both orders of a pair have the same winner, or each order has one of its own."""


@dataclass(frozen=True, slots=True)
class TuningPair:
    """Two items of one query that are both relevant or both irrelevant.

    Attributes:
        query: The query.
        kind: The kind of the pair, e.g. ``relevant``; winners are balanced within each kind.
        protected: The item of the protected group.
        unprotected: The other item.
    """

    query: str
    kind: str
    protected: RankItem
    unprotected: RankItem


@dataclass(frozen=True, slots=True)
class PairExample:
    """One question about a pair, and its right answer.

    Attributes:
        query: The query.
        first, second: The items in the order in which they are shown.
        winner: The item to prefer.
    """

    query: str
    first: RankItem
    second: RankItem
    winner: Literal["first", "second"]


def draw_winners(pairs: Sequence[TuningPair], random: np.random.Generator) -> list[bool]:
    """Draw who wins each pair.

    Args:
        pairs: Pairs of any kinds.
        random: Draws who wins.

    Returns:
        For each pair, whether its protected item wins. In each kind half of them do; an odd pair is
        decided at random.
    """
    winners = [False] * len(pairs)
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        of_kind = [number for number, pair in enumerate(pairs) if pair.kind == kind]
        # Drawn in any case, so that all other draws stay the same.
        extra = int(random.integers(0, 2))
        remainder = len(of_kind) % 2
        half = len(of_kind) // 2 + extra * remainder
        for row in random.permutation(len(of_kind))[:half]:
            winners[of_kind[row]] = True
    return winners


def both_orders(pair: TuningPair, wins: tuple[bool, bool]) -> tuple[PairExample, PairExample]:
    """Return the examples of a pair: the protected item first, then the other first.

    Args:
        pair: The pair.
        wins: Whether the protected item wins in each of these orders.
    """
    protected = pair.protected
    unprotected = pair.unprotected
    wins_first, wins_second = wins
    return (
        PairExample(pair.query, protected, unprotected, "first" if wins_first else "second"),
        PairExample(pair.query, unprotected, protected, "second" if wins_second else "first"),
    )


def make_batches(
    pairs: Sequence[TuningPair],
    random: np.random.Generator,
    *,
    batch: int = 4,
    epochs: int = 1,
    steps: int | None = None,
    winners: Winners = "pair",
) -> list[tuple[PairExample, ...]]:
    """Return the examples of each step.

    Both orders of a pair are in the same batch. With one winner a pair, both labels are right
    equally often in each step; pairs that the protected item wins alternate with those that the
    other item wins, as far as possible; a batch of 4 has one of each. With one winner a question,
    all this holds over an epoch: in each order both groups win equally often. A question has the
    same winner in each epoch.

    Args:
        pairs: The pairs to train on.
        random: Draws the winners and the order.
        batch: How many examples a step has; even.
        epochs: How often each pair is used, unless ``steps`` is given; the last batch may be
            smaller.
        steps: The number of complete batches; optional. If there are too few pairs, they are used
            again.
        winners: Whether both orders of a pair have the same winner.

    Raises:
        InputError: There is no pair.
    """
    if not pairs:
        raise InputError("There is no pair to tune on; use more queries or larger lists.")
    pairs_in_batch = batch // 2
    count = epochs * len(pairs) if steps is None else steps * pairs_in_batch
    when_first = draw_winners(pairs, random)
    when_second = when_first if winners == "pair" else draw_winners(pairs, random)
    order = itertools.islice(_order(when_first, random), count)
    batches = []
    for numbers in chunks(order, pairs_in_batch):
        examples: list[PairExample] = []
        for number in numbers:
            wins = (when_first[number], when_second[number])
            examples += both_orders(pairs[number], wins)
        batches.append(tuple(examples))
    return batches


def fingerprint(batches: Sequence[Sequence[PairExample]]) -> str:
    """Return a hash of all examples in their order."""
    content = []
    for batch in batches:
        content.append(
            [(example.query, example.first, example.second, example.winner) for example in batch]
        )
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _order(winners: Sequence[bool], random: np.random.Generator) -> Iterator[int]:
    """Yield pairs endlessly, each once per epoch, so that wins are balanced at every point."""
    lead = 0  # the wins of the protected item minus those of the other
    while True:
        # By whether the protected item wins.
        pairs_of: dict[bool, list[int]] = {True: [], False: []}
        for number in random.permutation(len(winners)).tolist():
            pairs_of[winners[number]].append(number)
        while pairs_of[True] or pairs_of[False]:
            side = lead < 0
            if lead == 0:
                side = bool(random.integers(0, 2))
            if not pairs_of[side]:
                side = not side
            lead += 1 if side else -1
            yield pairs_of[side].pop()


class LoraOptions(BaseModel, frozen=True):
    """How an adapter is trained, by AdamW.

    With a learning rate as large as .003, each step moves the model's preference for a position;
    the linear schedule lets that settle.
    """

    rank: int = Field(1, ge=1, strict=True, description="The rank of the adapter.")
    alpha: PositiveFloat = Field(1.0, description="The adapter is scaled by alpha/rank.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on its input.")
    modules: tuple[str, ...] = Field(ATTENTION, description="The layers to adapt.")
    learning_rate: PositiveFloat = Field(0.003, description="The learning rate of the first step.")
    schedule: Literal["linear", "constant"] = Field(
        "linear",
        description="How the rate changes: falling to 0 in a line (linear), or constant.",
    )
    seed: int = Field(0, ge=0, strict=True, description="The seed of all random draws.")


@contextmanager
def adapted(model: Any, options: LoraOptions) -> Iterator[Any]:
    """Give a model an adapter without effect yet, and remove the adapter at the end.

    Args:
        model: A causal model of transformers that nobody else uses meanwhile.
        options: The options of the adapter.

    Raises:
        InputError: The model lacks one of the modules; peft would train fewer or none.
        ModelUnavailableError: peft is not installed.
    """
    torch = library("torch", "Tuning", "tune", ModelUnavailableError)
    peft = library("peft", "Tuning", "tune", ModelUnavailableError)
    layers = _layers_of(model)
    missing = sorted(set(options.modules) - layers)
    if missing:
        names = ", ".join(sorted(layers)[:8]) or "none"
        raise InputError(f"The model has no layer '{missing[0]}' to adapt; modules may be {names}.")
    config = peft.LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=list(options.modules),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(options.seed)
        tuned = peft.get_peft_model(model, config)
    # With a name, peft would ask the hub at each checkpoint whether the vocabulary has changed.
    tuned.peft_config["default"].base_model_name_or_path = None
    # GGUF files are read as plain numbers, but Trainer would refuse them as quantised.
    tuned.is_quantized = False
    try:
        yield tuned
    finally:
        tuned.unload()
        model.eval()


def _layers_of(model: Any) -> set[str]:
    """Return the names of the layers of a model that can be adapted."""
    layers = set()
    for name, module in model.named_modules():
        if type(module).__name__ in ("Linear", "Conv1D"):
            layers.add(name.rpartition(".")[2])
    return layers - {"lm_head"}


def train(
    tuned: Any,
    batches: Sequence[Sequence[Sequence[int]]],
    options: LoraOptions,
    checkpoints: Path,
    watch: Callable[[int, float, float, float], None],
    begun: Callable[[int], None] = lambda step: None,
    checkpoint_every: int = 25,
) -> None:
    """Train an adapter, from the last checkpoint on if there is one.

    A training that was interrupted and resumed ends with the same weights as one that was not. With
    dropout, this only holds on the CPU.

    Args:
        tuned: As :func:`adapted` gives it.
        batches: The examples of each step: the tokens of a prompt, and the label's as the last one.
            All batches but the last have the same size.
        options: The options of the training.
        checkpoints: The folder of the checkpoints of this training.
        watch: Called after each step with its number from 1, the mean loss in nats before it, its
            learning rate, and the norm of all gradients together before clipping.
        begun: Called before the first step with the number of steps already done.
        checkpoint_every: The number of steps between checkpoints.

    Raises:
        InputError: The loss is not a number.
    """
    import torch
    import transformers

    examples: Any = []
    for batch in batches:
        examples += [{"input_ids": torch.tensor(tokens)} for tokens in batch]
    # Only the last token's logits count.
    parameters = inspect.signature(tuned.get_base_model().forward).parameters
    model_options = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}

    class PairTrainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(examples)

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            # An example alone in its row needs no padding.
            tokens = inputs["input_ids"]
            logits = model(input_ids=tokens[:, :-1], use_cache=False, **model_options).logits
            return torch.nn.functional.cross_entropy(logits[:, -1].float(), tokens[:, -1])

    class Watcher(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            begun(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, **entries: Any) -> None:
            logs = entries["logs"]
            if "loss" not in logs:  # the summary at the end
                return
            step = state.global_step
            loss = logs["loss"]
            norm = logs["grad_norm"]
            if not math.isfinite(loss + norm):
                raise InputError(
                    f"The loss of step {step} is not a number; use a lower learning rate."
                )
            watch(step, loss, logs["learning_rate"], norm)

    newest = _newest_checkpoint(checkpoints)
    with torch.random.fork_rng(), quiet():
        arguments = transformers.TrainingArguments(
            str(checkpoints),
            per_device_train_batch_size=1,
            gradient_accumulation_steps=len(batches[0]),
            num_train_epochs=1,
            learning_rate=options.learning_rate,
            lr_scheduler_type=options.schedule,
            seed=options.seed,
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_steps=checkpoint_every,
            save_total_limit=1,
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
        )
        trainer = PairTrainer(tuned, arguments, train_dataset=examples, callbacks=[Watcher()])
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.model_accepts_loss_kwargs = False  # the loss is a mean over its examples
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    tuned.eval()


def _newest_checkpoint(checkpoints: Path) -> Path | None:
    """Return the last complete checkpoint, if there is one."""
    # A killed process may leave half a checkpoint; its state is written last.
    complete = [state.parent for state in checkpoints.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda folder: int(folder.name.partition("-")[2]), default=None)


def write_adapter(tuned: Any, folder: Path, base: str, about: Mapping[str, Any]) -> None:
    """Write the folder of a trained adapter, completely or not at all.

    Args:
        tuned: A model of peft.
        folder: The folder, which must not exist yet.
        base: The name of the base model, as after ``causal:``.
        about: The contents of the file :data:`ABOUT`.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # left by a killed process
    tuned.peft_config["default"].base_model_name_or_path = base
    # Otherwise peft asks the hub whether the base's vocabulary has changed.
    tuned.save_pretrained(str(part), save_embedding_layers=False)
    write_beside(part / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    part.rename(folder)
