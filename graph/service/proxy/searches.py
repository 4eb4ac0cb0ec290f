"""The lists of ``searches.yaml``: what may stand in a search that is re-ranked."""

from __future__ import annotations

from pathlib import Path

import yaml

_LISTS = yaml.safe_load(Path(__file__).with_name("searches.yaml").read_text(encoding="utf-8"))


def names_of(kind: str) -> frozenset[str]:
    """Return the names in a list."""
    return frozenset(_LISTS[kind].split())
