"""Fixtures that bring the real weights of the embedded models, once per machine.

They are kept in ``$FAIRQR_TEST_CACHE``, else in ``~/.cache/fairqr-tests``, beside the vectors of
texts that tests share. ``FAIRQR_SKIP_MODEL=1`` skips the tests that need them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from fairqr.base.weights import lookup, missing, pull

MODEL = "smollm2-135m"
ENCODER = "minilm"
VECTORS = "vectors.sqlite"
"""The file of a cache folder with the vectors of texts."""
HOME = Path(os.environ.get("FAIRQR_TEST_CACHE") or Path.home() / ".cache" / "fairqr-tests")
"""The folder that outlives the tests, some of which have another home."""


def pulled(name: str) -> Path:
    """Return the place of a model's real weights, checked; pulling holds a lock."""
    if os.environ.get("FAIRQR_SKIP_MODEL") == "1":
        pytest.skip("FAIRQR_SKIP_MODEL=1: the embedded models are not tested")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRQR_CACHE_DIR", str(HOME))
        path = pull(name)
        assert not missing(name), f"{path} is damaged: remove it"
    return path


def linked(name: str, path: Path, folder: Path) -> None:
    """Link the weights of a model into a cache folder."""
    for file in lookup(name).files:
        link = folder / "weights" / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.with_name(Path(file).name))


def share_vectors(folder: Path) -> None:
    """Let a cache folder have the vectors of texts that tests on this machine encoded before.

    For tests that encode thousands of texts on the way to what they prove. A vector is known by its
    text and its encoder; tests of encoding itself have empty caches.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VECTORS).symlink_to(HOME / VECTORS)


@pytest.fixture(scope="session")
def pulled_weights() -> Path:
    """Return the path of the language model's real weights."""
    return pulled(MODEL)


@pytest.fixture(scope="session")
def pulled_minilm() -> Path:
    """Return the path of MiniLM's real weights; the tokenizer is beside them."""
    return pulled(ENCODER)


@pytest.fixture
def model_cache(pulled_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new cache folder that has the language model and nothing else; fairqr uses it.

    The weights are linked, and servers are shared by the file behind the link, so a model is
    loaded once a session, while no test sees the replies that another one cached.
    """
    folder = tmp_path / "model-cache"
    linked(MODEL, pulled_weights, folder)
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def shared_model_cache(
    pulled_weights: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return a cache folder that has the language model and the replies of this session.

    For tests that ask the model the same as each other: what one asked, the others need not. A
    reply depends on nothing but the question, as other tests prove.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / "shared-model-cache"
    with FileLock(root / "shared-model-cache.lock"):
        if not folder.exists():
            linked(MODEL, pulled_weights, folder)
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def minilm_cache(pulled_minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new cache folder that has MiniLM and nothing else; fairqr uses it."""
    folder = tmp_path / "minilm-cache"
    linked(ENCODER, pulled_minilm, folder)
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(folder))
    return folder
