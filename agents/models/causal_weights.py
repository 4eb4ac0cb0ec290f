"""Finds the weights of a causal model: on the hub, in a folder, a GGUF file or an adapter."""

from __future__ import annotations

import json
from pathlib import Path

from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.base.files import sha256_of
from fairqr.base.neural import state_of
from fairqr.base.weights import WEIGHTS, is_pulled, weights_path

ADAPTER = "adapter_config.json"
"""The file that marks the folder of an adapter; peft writes it, with the name of the base."""

ABOUT = "fairqr.json"
"""The file in which an adapter that we tuned states how it was trained."""


def source_of(name: str) -> tuple[str, str, str]:
    """Return the base of a model, its adapter, and a text that changes with their files.

    The base is a hub id, a folder or a GGUF file. The adapter is a folder, or empty for none.

    Args:
        name: A hub id, a folder, the folder of an adapter, a GGUF file, or the name of embedded
            weights, which wins over a folder with the same name.

    Raises:
        ModelUnavailableError: Embedded weights are not pulled, or an adapter does not state its
            base model.
    """
    folder = Path(name)
    if not (folder / ADAPTER).is_file():
        base = _file_of(name)
        return base, "", state_of(Path(base))
    try:
        base = _file_of(json.loads((folder / ADAPTER).read_bytes())["base_model_name_or_path"])
        return base, name, f"{state_of(Path(base))} {state_of(folder)}"
    except (ValueError, KeyError, TypeError):
        raise ModelUnavailableError(
            f"The adapter {name} does not say what it was trained on: {ADAPTER} needs "
            "'base_model_name_or_path', the name of a model."
        ) from None


def _is_embedded(name: str) -> bool:
    return name in WEIGHTS and WEIGHTS[name].kind == "language model"


def _file_of(name: str) -> str:
    """Return the file of embedded weights; return any other name as it is."""
    if not _is_embedded(name):
        return name
    if not is_pulled(name):
        raise ModelUnavailableError(
            f"The embedded model {name} ({WEIGHTS[name].title}) is not pulled: run `pip install "
            f"'fairqr[local,tune]'` and `fairqr models pull {name}`, or name another model."
        )
    return str(weights_path(name))


def lasting_name(name: str) -> str:
    """Return the name of a base model for an adapter's file; a path becomes absolute.

    Args:
        name: The part after ``causal:``.

    Raises:
        InputError: The base is itself an adapter.
    """
    path = Path(name)
    if _is_embedded(name) or not path.exists():
        return name
    if (path / ADAPTER).is_file():
        raise InputError(
            f"{name} is an adapter; tune the model that it was trained on, with another seed or "
            "more steps."
        )
    return str(path.resolve())


def base_sha256(name: str) -> str:
    """Return the SHA-256 of a base model in one GGUF file; empty for others and missing files.

    Args:
        name: The part after ``causal:``.
    """
    path = weights_path(name) if _is_embedded(name) else Path(name)
    return sha256_of(path) if path.is_file() else ""
