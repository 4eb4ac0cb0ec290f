"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.shared_servers import FOLDER, SharedServers, ask

# Until the tests are collected: nearly all that imports make stays.
gc.disable()

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

_UNIT = Path(__file__).parent / "unit"

SECONDS_OF_A_UNIT_TEST = 120
"""A unit test that hangs costs two minutes; tests with real servers have longer."""

_SERVERS = ("elasticsearch_url", "opensearch_url", "secure_elasticsearch", "postgres_server")
_SHARED = pytest.StashKey[SharedServers]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put unit tests first, and what takes longest behind them; leave the tests of a file together.

    Other groups than files are those of tests that load torch, so that one worker does, and of
    tests that share what the model replied, or an index.
    """
    for item in items:
        if _UNIT in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_OF_A_UNIT_TEST))
        if item.get_closest_marker("xdist_group") is None:
            named, group = getattr(item, "fixturenames", ()), str(item.path)
            if "shared_model_cache" in named:
                group = "replies"
            elif any(it.startswith("tiny_") for it in named) or _has_torch(item):
                group = "torch"
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_turn)


def _has_torch(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "module", None), "torch")


def _turn(item: pytest.Item) -> int:
    if _UNIT in item.path.parents:
        return 0
    group = item.get_closest_marker("xdist_group")
    long = item.get_closest_marker("timeout") or (group and group.args[0] != str(item.path))
    return 1 if long or item.path.parent.name == "whole" else 2


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ask for the servers that tests name; see that tests stay in their groups."""
    gc.freeze()  # a million objects of libraries and tests, which would be walked again and again
    gc.enable()
    if getattr(session.config.option, "loadgroup", False):
        apart = [item.nodeid for item in session.items if "@" not in item.nodeid]
        assert not apart, f"This pytest-xdist has no groups with pytest {pytest.__version__}."
    needed = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    for name in _SERVERS:
        if name in needed:
            ask(session.config, name)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to ask for servers, which this process, the main one, starts."""
    if _SHARED not in node.config.stash:
        from tests.servers.elasticsearch_server import elasticsearch, secured
        from tests.servers.opensearch_server import opensearch
        from tests.servers.postgres_server import postgres

        starts = dict(zip(_SERVERS, (elasticsearch, opensearch, secured, postgres), strict=True))
        node.config.stash[_SHARED] = SharedServers(starts)
        gc.enable()  # the main process collects no tests
    node.workerinput[FOLDER] = str(node.config.stash[_SHARED].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers that workers have shared."""
    if servers := config.stash.get(_SHARED, None):
        servers.end()


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's settings file, which a test may write; no variable of fairqr names a server."""
    for name in list(os.environ):
        if name.startswith("FAIRQR_ELASTICSEARCH_"):
            monkeypatch.delenv(name)
    file = tmp_path / "fairqr.toml"
    monkeypatch.setenv("FAIRQR_CONFIG", str(file))
    return file
