"""The model that an adapter is trained on, so that it is found again and is the same one."""

from __future__ import annotations

from pathlib import Path

from fairqr.agents.embedded import WEIGHTS
from fairqr.agents.ranking.causal_weights import ADAPTER
from fairqr.agents.weights import weights_path
from fairqr.base.errors import InputError
from fairqr.retrieval.files import sha256_of

__all__ = ["base_sha256", "lasting_name"]


def lasting_name(name: str) -> str:
    """Return the name of a base as an adapter keeps it: a path holds wherever it is read from.

    Args:
        name: As it stands behind ``causal:``.

    Raises:
        InputError: It is an adapter itself.
    """
    path = Path(name)
    if name in WEIGHTS or not path.exists():
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
    path = weights_path(name) if name in WEIGHTS else Path(name)
    return sha256_of(path) if path.is_file() else ""
