"""A model server and tiny models for all tests of agents, and a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.agents.models.cache import ReplyCache
from tests.servers.model_server import ModelServer, clean_environment, model_server
from tests.unit.agents.attribution.tiny_nli import tiny_nli
from tests.unit.agents.ranking.tiny_models import tiny_causal, tiny_monobert, tiny_monot5

__all__ = [
    "clean_environment",
    "model_server",
    "tiny_causal",
    "tiny_monobert",
    "tiny_monot5",
    "tiny_nli",
]


@pytest.fixture
def server(model_server: ModelServer, clean_environment: Path) -> ModelServer:
    """A server of the test's own, and nothing that is configured outside."""
    return model_server


@pytest.fixture
def cache(tmp_path: Path) -> ReplyCache:
    return ReplyCache(tmp_path / "replies.sqlite")
