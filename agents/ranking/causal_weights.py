"""Where the weights of a causal model are: at the hub, in a folder, a GGUF file, an adapter."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.base.files import sha256_of
from fairqr.base.neural import Pretrained, load_causal, state_of
from fairqr.base.weights.cache import is_pulled, weights_path
from fairqr.base.weights.registry import WEIGHTS

__all__ = [
    "ABOUT",
    "ADAPTER",
    "Source",
    "base_sha256",
    "lasting_name",
    "load_source",
    "source_of",
]

ADAPTER = "adapter_config.json"
"""The file by which the folder of an adapter is known; peft writes it."""

ABOUT = "fairqr.json"
"""The file in which an adapter of ``fairqr tune`` says what it was trained on."""


@dataclass(frozen=True, slots=True)
class Source:
    """What has to be loaded.

    Attributes:
        base: A hub id, a folder or a GGUF file.
        adapter: The folder of an adapter that was trained on it; empty for none.
        base_sha256: Of the GGUF file that the adapter was trained on; empty if it is not known.
        state: Changes with the files, so that replies of other weights are told apart.
    """

    base: str
    adapter: str = ""
    base_sha256: str = ""
    state: str = ""


def source_of(name: str) -> Source:
    """Return what a name stands for.

    Args:
        name: A hub id, a folder, the folder of an adapter, a GGUF file, or the name of embedded
            weights, which comes before a folder of the same name.

    Raises:
        ModelUnavailableError: Embedded weights are not pulled, or an adapter does not say what it
            was trained on, or was trained on another adapter.
    """
    if not (Path(name) / ADAPTER).is_file():
        base = _file_of(name)
        return Source(base, state=state_of(Path(base)))
    trained_on, sha256 = _base_of(Path(name))
    base = _file_of(trained_on)
    if (Path(base) / ADAPTER).is_file():
        raise ModelUnavailableError(
            f"The adapter {name} was trained on another adapter, {base}; name one that was trained "
            "on a whole model."
        )
    return Source(base, name, sha256, f"{state_of(Path(base))} {state_of(Path(name))}")


async def load_source(source: Source) -> Pretrained:
    """Load a model; the same one is loaded once.

    Raises:
        ModelUnavailableError: As :func:`fairqr.base.neural.load_causal` raises it, or the base of
            the adapter is another file than the one that it was trained on.
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
    """Return the file of embedded weights; any other name as it is."""
    if not _is_embedded(name):
        return name
    if not is_pulled(name):
        raise ModelUnavailableError(
            f"The embedded model {name} ({WEIGHTS[name].title}) is not pulled: run `pip install "
            f"'fairqr[local,tune]'` and `fairqr models pull {name}`, or name another model."
        )
    return str(weights_path(name))


def _base_of(folder: Path) -> tuple[str, str]:
    """Return the name of what an adapter was trained on, and its hash if that is known."""
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
    """Return the name of a base as an adapter keeps it: a path holds wherever it is read from.

    Args:
        name: As it stands behind ``causal:``.

    Raises:
        InputError: It is an adapter itself.
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
    """Return the SHA-256 of a base that is one GGUF file; empty for others, and what is missing.

    Args:
        name: As it stands behind ``causal:``.
    """
    path = weights_path(name) if _is_embedded(name) else Path(name)
    return sha256_of(path) if path.is_file() else ""
