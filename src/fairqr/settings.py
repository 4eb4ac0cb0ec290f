"""Where fairqr keeps its files, and what the environment configures.

Explicit arguments always win over the environment; this module only reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["DEFAULT_MODEL", "cache_dir", "data_dir", "default_model", "environment", "prompts_dir"]

DEFAULT_MODEL = "local:smollm2-135m"


def environment(name: str) -> str | None:
    """Return the environment variable ``FAIRQR_<name>``, or None where it is unset or empty."""
    return os.environ.get(f"FAIRQR_{name}") or None


def data_dir() -> Path:
    """Return the folder of indexes (``FAIRQR_DATA_DIR``, else the platform's user data folder)."""
    return Path(environment("DATA_DIR") or platformdirs.user_data_dir("fairqr", appauthor=False))


def cache_dir() -> Path:
    """Return the folder of weights and replies (``FAIRQR_CACHE_DIR``, else the platform's)."""
    return Path(environment("CACHE_DIR") or platformdirs.user_cache_dir("fairqr", appauthor=False))


def prompts_dir() -> Path | None:
    """Return the folder of the user's own prompts (``FAIRQR_PROMPTS_DIR``), if there is one."""
    folder = environment("PROMPTS_DIR")
    return Path(folder) if folder else None


def default_model() -> str:
    """Return the model that refines when none is named (``FAIRQR_MODEL``, else the local one)."""
    return environment("MODEL") or DEFAULT_MODEL
