"""What tests of the service share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairqr.graph.service.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store of runs with nothing in it."""
    async with Store.opened(f"sqlite:///{tmp_path}/runs.sqlite") as opened:
        yield opened
