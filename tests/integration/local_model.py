"""Fixtures that bring the real weights of the embedded model, once per machine.

They are kept in ``$FAIRQR_TEST_CACHE``, else in ``~/.cache/fairqr-tests``. ``FAIRQR_SKIP_MODEL=1``
skips the tests that need them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairqr.agents.weights import pull, verify

__all__ = ["MODEL", "model_cache", "pulled_weights"]

MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def pulled_weights() -> Path:
    """Return the path of the real weights, checked; pulling holds a lock, so workers may share."""
    if os.environ.get("FAIRQR_SKIP_MODEL") == "1":
        pytest.skip("FAIRQR_SKIP_MODEL=1: the embedded model is not tested")
    home = os.environ.get("FAIRQR_TEST_CACHE") or Path.home() / ".cache" / "fairqr-tests"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRQR_CACHE_DIR", str(home))
        path = pull(MODEL)
        assert verify(MODEL), f"{path} is damaged: remove it"
    return path


@pytest.fixture
def model_cache(pulled_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new cache folder that has the weights and nothing else; fairqr uses it.

    The weights are linked, and servers are shared by the file behind the link, so a model is
    loaded once a session, while no test sees the replies that another one cached.
    """
    folder = tmp_path / "model-cache"
    (folder / "weights").mkdir(parents=True)
    (folder / "weights" / pulled_weights.name).symlink_to(pulled_weights)
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(folder))
    return folder
