"""Checkpoints, from which a training resumes, and the folder of the finished adapter."""

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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that the next step depends on, except the examples.

    Attributes:
        training: A hash of the base, the examples and the options; it must match to resume.
        step: How many steps are done.
        adapter: The trained weights, by name.
        optimizer: The state of the optimizer.
        random: The state of torch's generator.
    """

    training: str
    step: int
    adapter: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    random: Any


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint over the last one, completely or not at all."""
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
    """Return the checkpoint of a training, or None if there is none yet.

    Args:
        path: The file.
        training: The hash that it must have.

    Raises:
        InputError: The file is damaged, or belongs to another training.
    """
    import torch

    if not path.exists():
        return None
    try:
        # Tensors and plain values only: a file from elsewhere cannot run anything.
        found = Checkpoint(**torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises all kinds of errors for a damaged file
        raise InputError(
            f"The checkpoint {path} is damaged ({type(error).__name__}); remove it to start the "
            "training again."
        ) from None
    if found.training != training:
        raise InputError(
            f"The checkpoint {path} belongs to another training; remove it to start the training "
            "again."
        )
    return found


def write_adapter(tuned: Any, folder: Path, base: str, about: Mapping[str, Any]) -> None:
    """Write the folder of a trained adapter, completely or not at all.

    Args:
        tuned: A model of peft.
        folder: The folder, which must not exist yet.
        base: The name of the base model, as after ``causal:``.
        about: Further contents of the file :data:`ABOUT`.
    """
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left)  # left by a killed process
    beside = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    for config in tuned.peft_config.values():
        config.base_model_name_or_path = base
    # Otherwise peft asks the hub whether the base's vocabulary has changed.
    tuned.save_pretrained(str(beside), save_embedding_layers=False)
    text = json.dumps({"base": base, **about}, indent=1, ensure_ascii=False)
    write_beside(beside / ABOUT, text + "\n")
    beside.rename(folder)
