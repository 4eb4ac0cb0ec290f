"""What tests of the service share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairqr.graph.service.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store of runs with nothing in it."""
    opened = await Store.open(f"sqlite:///{tmp_path}/runs.sqlite")
    yield opened
    await opened.close()
