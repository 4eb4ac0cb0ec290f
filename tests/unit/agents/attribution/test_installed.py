"""Which attributors are offered without being named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.agents.attribution.nli import DEFAULT_NLI_MODEL
from fairqr.agents.attribution.opening import installed_attributors
from fairqr.graph.service.configuration import ServiceSettings
from tests.later import later

later("huggingface_hub.constants", "neural")
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of what was downloaded from the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_without_the_papers_model_words_are_compared(downloads: Path) -> None:
    assert installed_attributors() == ("overlap",)
    assert ServiceSettings().attributors == ("overlap",)


def test_the_papers_model_judges_where_it_was_downloaded(downloads: Path) -> None:
    """In the folders that the hub's own library makes."""
    model = downloads / f"models--{DEFAULT_NLI_MODEL.replace('/', '--')}"
    files = model / "snapshots" / REVISION
    files.mkdir(parents=True)
    (files / "config.json").write_text("{}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(REVISION)

    assert installed_attributors() == ("transformers", "overlap")
    assert ServiceSettings().attributors == ("transformers", "overlap")
