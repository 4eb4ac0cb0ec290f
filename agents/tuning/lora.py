"""Trains low-rank adapters (LoRA, Hu et al. 2022) to say one of two labels.

The loss is the cross entropy of the label's token right after the prompt. The base model does not
change. At first, the adapter's own weights have no effect.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from fairqr.agents.tuning.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from fairqr.base.errors import InputError, ModelUnavailableError

T = TypeVar("T")

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""The names of the attention layers in Llama, SmolLM2, Mistral, Qwen2 and similar models."""

NAMED = 8
"""How many names of layers an error lists if the model has none of the modules."""


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """How an adapter is trained.

    Attributes:
        rank: The rank of the two matrices of each module.
        alpha: The output of the adapter is scaled by alpha/rank.
        dropout: The dropout of the adapter's input, in [0, 1).
        modules: The last parts of the names of the layers that get an adapter.
        learning_rate: The learning rate of AdamW in the first step.
        schedule: Whether the learning rate falls linearly to 0 or stays constant. With a rate as
            large as .003, each step moves the model's preference for a position; the linear
            schedule lets that settle.
        clip: The largest norm of all gradients together.
        seed: The seed of the adapter's first weights and of dropout.
        checkpoint_every: The number of steps between checkpoints.
    """

    rank: int = 1
    alpha: float = 1.0
    dropout: float = 0.0
    modules: tuple[str, ...] = ATTENTION
    learning_rate: float = 0.003
    schedule: Literal["linear", "constant"] = "linear"
    clip: float = 1.0
    seed: int = 0
    checkpoint_every: int = 25


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as a model reads it.

    Attributes:
        tokens: The tokens of the whole prompt.
        label: The token that should come next.
    """

    tokens: Sequence[int]
    label: int


@dataclass(frozen=True, slots=True)
class Step:
    """The figures of a training step.

    Attributes:
        number: Counted from 1.
        loss: The mean cross entropy in nats, before the step.
        learning_rate: The learning rate of the step.
        norm: The norm of all gradients together, before clipping.
        examples: The number of examples in the batch.
        tokens: The number of tokens in the batch.
    """

    number: int
    loss: float
    learning_rate: float
    norm: float
    examples: int
    tokens: int


@contextmanager
def adapted(model: Any, options: LoraOptions) -> Iterator[Any]:
    """Give a model an adapter without effect yet, and remove the adapter at the end.

    Args:
        model: A causal model of transformers that nobody else uses meanwhile.
        options: The options of the adapter.

    Raises:
        InputError: The model has none of the modules.
        ModelUnavailableError: peft is not installed.
    """
    try:
        import peft
        import torch
    except ImportError:
        raise ModelUnavailableError(
            "Tuning needs torch and peft: run `pip install 'fairqr[tune]'`."
        ) from None
    _check_modules(model, options.modules)
    config = peft.LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]  # it is only divided
        lora_dropout=options.dropout,
        target_modules=list(options.modules),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft and transformers warn about each other
        torch.manual_seed(options.seed)
        tuned = peft.get_peft_model(model, config)
    try:
        yield tuned
    finally:
        tuned.unload()
        model.eval()


def train(
    tuned: Any,
    batches: Sequence[Sequence[T]],
    encode: Callable[[T], Encoded],
    options: LoraOptions,
    *,
    checkpoint: Path,
    training: str,
    watch: Callable[[Step], None],
    begun: Callable[[int], None] = lambda step: None,
) -> None:
    """Train an adapter, from the last checkpoint on if there is one.

    A training that was interrupted and resumed ends with the same weights as one that was not. With
    dropout, this only holds on the CPU.

    Args:
        tuned: As :func:`adapted` gives it.
        batches: The examples of each step.
        encode: Turns an example into tokens.
        options: The options of the training.
        checkpoint: The file of the checkpoint.
        training: A hash of the base and the batches; the checkpoint must have the same.
        watch: Called after each step.
        begun: Called before the first step with the number of steps already done.

    Raises:
        InputError: The checkpoint is damaged or belongs to another training, or the loss is not a
            number.
    """
    import torch

    key = hashlib.sha256(repr((training, asdict(options), len(batches))).encode()).hexdigest()
    weights = {name: it for name, it in tuned.named_parameters() if it.requires_grad}
    optimizer = torch.optim.AdamW(weights.values(), lr=options.learning_rate, weight_decay=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        done = 0
        if found := read_checkpoint(checkpoint, key):
            done = found.step
            with torch.no_grad():
                for name, weight in weights.items():
                    weight.copy_(found.adapter[name])
            optimizer.load_state_dict(dict(found.optimizer))
            torch.set_rng_state(found.random)
        begun(done)
        tuned.train()
        for number, batch in enumerate(batches[done:], start=done + 1):
            rate = learning_rate(options, number, len(batches))
            for group in optimizer.param_groups:
                group["lr"] = rate
            encoded = [encode(example) for example in batch]
            loss = _loss(tuned, encoded)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(weights.values(), options.clip)
            step = Step(
                number,
                loss.item(),
                rate,
                norm.item(),
                len(batch),
                sum(len(it.tokens) for it in encoded),
            )
            if not (math.isfinite(step.loss) and math.isfinite(step.norm)):
                raise InputError(
                    f"The loss of step {number} is not a number; use a lower learning rate."
                )
            optimizer.step()
            optimizer.zero_grad()
            watch(step)
            if number % options.checkpoint_every == 0 or number == len(batches):
                adapter = {name: weight.detach().clone() for name, weight in weights.items()}
                write_checkpoint(
                    checkpoint,
                    Checkpoint(key, number, adapter, optimizer.state_dict(), torch.get_rng_state()),
                )
        tuned.eval()


def learning_rate(options: LoraOptions, number: int, steps: int) -> float:
    """Return the learning rate of a step.

    Args:
        options: The options, with the first learning rate and the schedule.
        number: The number of the step, from 1.
        steps: The number of all steps.
    """
    if options.schedule == "constant":
        return options.learning_rate
    return options.learning_rate * (1 - (number - 1) / steps)


def _loss(model: Any, batch: Sequence[Encoded]) -> Any:
    """Return the mean cross entropy of the labels, each right after its prompt."""
    import torch

    longest = max(len(it.tokens) for it in batch)
    # Pad on the left, so that all prompts end at the last position. Masked positions are not read.
    tokens = torch.zeros((len(batch), longest), dtype=torch.long)
    mask = torch.zeros((len(batch), longest), dtype=torch.long)
    for row, it in enumerate(batch):
        tokens[row, longest - len(it.tokens) :] = torch.tensor(it.tokens)
        mask[row, longest - len(it.tokens) :] = 1
    inputs = {
        "input_ids": tokens,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        "logits_to_keep": 1,
    }
    taken = inspect.signature(model.get_base_model().forward).parameters
    inputs = {name: value for name, value in inputs.items() if name in taken}
    device = next(model.parameters()).device
    inputs = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
    logits = model(**inputs, use_cache=False).logits[:, -1, :].float()
    labels = torch.tensor([it.label for it in batch], device=device)
    return torch.nn.functional.cross_entropy(logits, labels)


def _check_modules(model: Any, modules: Sequence[str]) -> None:
    """Check that the model has all modules; peft would silently train fewer or none."""
    layers = {
        name.rpartition(".")[2]: None
        for name, layer in model.named_modules()
        if type(layer).__name__ in ("Linear", "Conv1D") and not name.endswith("lm_head")
    }
    if lacking := [name for name in modules if name not in layers]:
        known = ", ".join(list(layers)[:NAMED]) or "none that can be adapted"
        raise InputError(
            f"The model has no layer '{lacking[0]}' to adapt; name some of its own with --modules: "
            f"{known}."
        )
