"""What all tests share."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Nobody's own settings file is read. Set here, so that fixtures of any scope and all child
# processes have it.
os.environ["FAIRQR_CONFIG"] = os.devnull

# Nor anybody's own weights and replies: `dense` stands for another encoder once one is pulled.
os.environ["FAIRQR_CACHE_DIR"] = tempfile.mkdtemp(prefix="fairqr-tests-")
atexit.register(shutil.rmtree, os.environ["FAIRQR_CACHE_DIR"], ignore_errors=True)

# Tests that run side by side would otherwise fight for the processors with the threads of torch,
# MiniLM and llama.cpp, which spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# gRPC, which Ray's client loads, writes a line to stderr whenever a process is started after it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell ignores Ctrl-C for what it runs in the background, and children inherit that. Tests that
# send SIGINT to a child mean a command that somebody started at a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

_SERVERS = {"elasticsearch_url", "secure_elasticsearch", "opensearch_url"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests together that share a server, a file, or what the model replied."""
    for item in items:
        needs = {*getattr(item, "fixturenames", ())}
        group = str(item.path)
        if needs & _SERVERS:
            group = "servers"
        elif "shared_model_cache" in needs:
            group = "replies"
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """End the run where xdist leaves the groups out: each worker would start every server."""
    if getattr(session.config.option, "loadgroup", False):
        apart = [item.nodeid for item in session.items if "@" not in item.nodeid]
        assert not apart, f"This pytest-xdist has no groups with pytest {pytest.__version__}."


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's settings file, which a test may write; no variable of fairqr names a server."""
    for name in list(os.environ):
        if name.startswith("FAIRQR_ELASTICSEARCH_"):
            monkeypatch.delenv(name)
    file = tmp_path / "fairqr.toml"
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))
    return file
