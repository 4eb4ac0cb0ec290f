"""What a training is gone on from, and what is left of it in the end: the adapter's folder."""

from __future__ import annotations

import io
import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.agents.ranking.causal_weights import ABOUT
from fairqr.base.errors import InputError
from fairqr.base.files import write_beside

__all__ = ["Checkpoint", "read_checkpoint", "write_adapter", "write_checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that the next step depends on, but for the examples.

    Attributes:
        training: A hash over what is trained, on what and how; another training cannot go on.
        step: How many steps are done.
        adapter: The weights that are trained, by name.
        optimizer: Its state.
        random: The state of torch's generator.
    """

    training: str
    step: int
    adapter: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    random: Any


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in place of the last one, whole or not at all."""
    import torch

    content = io.BytesIO()
    torch.save(
        {
            "training": checkpoint.training,
            "step": checkpoint.step,
            "adapter": dict(checkpoint.adapter),
            "optimizer": dict(checkpoint.optimizer),
            "random": checkpoint.random,
        },
        content,
    )
    write_beside(path, content.getvalue())


def read_checkpoint(path: Path, training: str) -> Checkpoint | None:
    """Return where a training stopped, or None where it has not come so far.

    Args:
        path: The file.
        training: The hash that it must have.

    Raises:
        InputError: The file is damaged, or is of another training.
    """
    import torch

    if not path.exists():
        return None
    try:
        # Tensors and plain values only: a file from elsewhere cannot run anything.
        found = Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises what unpickling a damaged file happens to raise
        raise InputError(
            f"The checkpoint {path} is damaged ({type(error).__name__}); remove it, and training "
            "begins anew."
        ) from None
    if found.training != training:
        raise InputError(
            f"The checkpoint {path} is of another training; remove it, and training begins anew."
        )
    return found


def write_adapter(tuned: Any, folder: Path, base: str, about: Mapping[str, Any]) -> None:
    """Write the folder of a trained adapter, whole or not at all.

    Args:
        tuned: A model of peft.
        folder: Where there is none yet.
        base: The model that it was trained on, as it stands behind ``causal:``.
        about: What else :data:`ABOUT` says of it.
    """
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left)  # of a process that was killed
    beside = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    for config in tuned.peft_config.values():
        config.base_model_name_or_path = base
    # Peft would else ask the hub whether the base's vocabulary has changed.
    tuned.save_pretrained(str(beside), save_embedding_layers=False)
    text = json.dumps({"base": base, **about}, indent=1, ensure_ascii=False)
    write_beside(beside / ABOUT, text + "\n")
    beside.rename(folder)
