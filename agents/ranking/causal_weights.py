"""Finds the weights of a causal model: on the hub, in a folder, a GGUF file or an adapter."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.base.files import sha256_of
from fairqr.base.neural import Pretrained, load_causal, state_of
from fairqr.base.weights import WEIGHTS, is_pulled, weights_path

ADAPTER = "adapter_config.json"
"""The file that marks the folder of an adapter; peft writes it."""

ABOUT = "fairqr.json"
"""The file in which an adapter of ``fairqr tune`` states its base model."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a model.

    Attributes:
        base: A hub id, a folder or a GGUF file.
        adapter: The folder of an adapter that was trained on the base; empty for none.
        base_sha256: The hash of the GGUF file that the adapter was trained on; empty if unknown.
        state: A text that changes with the files, to distinguish replies of different weights.
    """

    base: str
    adapter: str = ""
    base_sha256: str = ""
    state: str = ""


def source_of(name: str) -> Source:
    """Return the files of the model with this name.

    Args:
        name: A hub id, a folder, the folder of an adapter, a GGUF file, or the name of embedded
            weights, which wins over a folder with the same name.

    Raises:
        ModelUnavailableError: Embedded weights are not pulled, or an adapter does not state its
            base model, or was trained on another adapter.
    """
    if not (Path(name) / ADAPTER).is_file():
        base = _file_of(name)
        return Source(base, state=state_of(Path(base)))
    trained_on, sha256 = _base_of(Path(name))
    base = _file_of(trained_on)
    if (Path(base) / ADAPTER).is_file():
        raise ModelUnavailableError(
            f"The adapter {name} was trained on another adapter, {base}; name an adapter that was "
            "trained on a complete model."
        )
    return Source(base, name, sha256, f"{state_of(Path(base))} {state_of(Path(name))}")


async def load_source(source: Source) -> Pretrained:
    """Load a model; the same one is loaded once.

    Raises:
        ModelUnavailableError: As :func:`fairqr.base.neural.load_causal` raises it, or the base is
            not the file that the adapter was trained on.
    """
    if await asyncio.to_thread(_is_another, source):
        raise ModelUnavailableError(
            f"The adapter {source.adapter} was trained on other weights than {source.base} has "
            "now; bring back the file that it was trained on, or tune again."
        )
    return await load_causal(source.base, source.adapter)


def _is_another(source: Source) -> bool:
    path = Path(source.base)
    known = bool(source.base_sha256) and path.is_file()
    return known and sha256_of(path) != source.base_sha256


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


def _base_of(folder: Path) -> tuple[str, str]:
    """Return the name of an adapter's base model, and its hash if known."""
    ours = folder / ABOUT
    file, key = (ours, "base") if ours.is_file() else (folder / ADAPTER, "base_model_name_or_path")
    try:
        about: dict[str, Any] = json.loads(file.read_bytes())
        base, sha256 = about[key], about.get("base_sha256") or ""
        if not (isinstance(base, str) and base and isinstance(sha256, str)):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelUnavailableError(
            f"The adapter {folder} does not say what it was trained on: {file.name} needs '{key}', "
            "the name of a model."
        ) from None
    return base, sha256


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
