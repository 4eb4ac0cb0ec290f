"""What results depend on besides their settings: versions of libraries, and the time."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterable
from datetime import UTC, datetime

__all__ = ["now", "versions_of"]

NEURAL = ("onnxruntime", "torch", "transformers")
MODELS = ("fairqr", "langchain", "numpy", "openai", "rouge-score", "scipy", "tantivy", "xllamacpp")


def versions_of(libraries: Iterable[str] = (*MODELS, *NEURAL)) -> dict[str, str]:
    """Return the versions of Python and of those libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in libraries:
        # Some come with an extra, and are needed by some experiments alone.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def now() -> str:
    """Return the time in ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
