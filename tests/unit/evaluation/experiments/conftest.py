"""What tests of experiments share."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.evaluation.collections.collection import Collection
from tests.unit.evaluation.experiments.small import write_collection


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """A collection of the test's own."""
    return write_collection(tmp_path / "collection")
