"""Every test of retrieval has a cache of its own, so none sees vectors that another one kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.local_model import minilm_cache, pulled_minilm

__all__ = ["minilm_cache", "own_cache", "pulled_minilm"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
