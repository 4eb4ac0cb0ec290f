"""The engine on a real Ray on loopback: the same records as in one process, whatever dies."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fairqr.base.errors import ModelError, WorkersError
from fairqr.evaluation.experiments import workers as ray_workers
from fairqr.evaluation.experiments.specification import RunFolder, SearchRecord
from fairqr.evaluation.experiments.workers import RunOptions, Tools
from tests.integration.evaluation.test_experiments import collection, write_experiment
from tests.patience import PATIENCE, until
from tests.ports import free_port
from tests.servers.model_server import KEY, Answer, Asked, Command, Main, ModelServer, says

__all__ = ["collection"]

SYSTEMS = [
    {"name": "BM25", "method": "baseline"},
    {"name": "learnt", "method": "deltr", "train": {"folds": 2, "options": {"iterations": 20}}},
    {"name": "ours, feedback", "model": "feedback", "settings": {"ask": "always", "groups": "all"}},
    {"name": "ours", "settings": {"ask": "always", "groups": "all"}},
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray on loopback, with folders of its own as on another machine, and a model to ask."""
    models, port = ModelServer(), free_port()
    # Short, since sockets are made in it.
    place = Path(tempfile.mkdtemp(prefix="ray-"))
    shared = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    for name in ("INITIAL", "MAX"):  # for each of three attempts; a busy machine starts slowly
        shared[f"RAY_CLIENT_{name}_CONNECTION_TIMEOUT_S"] = str(PATIENCE // 4)
    own = {
        "FAIRQR_DATA_DIR": str(place / "data"),
        "FAIRQR_CACHE_DIR": str(place / "cache"),
        "OPENAI_BASE_URL": models.base_url,
        "OPENAI_API_KEY": KEY,
        # gRPC's handlers of fork, which Ray does without, abort its server now and then.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        # It starts a process for each client, which may be slow.
        "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(PATIENCE),
        "TIMEOUT_FOR_SPECIFIC_SERVER_S": str(PATIENCE),
    }
    start = "start --head --block --disable-usage-stats --include-dashboard=false --num-cpus=2"
    places = f"--port={free_port()} --ray-client-server-port={port} --temp-dir={place / 'ray'}"
    head = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), *start.split(), *places.split()],
        env={**os.environ, **own, **shared},
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
        start_new_session=True,
    )
    try:
        with pytest.MonkeyPatch.context() as patch, socket.socket() as probe:
            for name, value in shared.items():
                patch.setenv(name, value)
            until(lambda: head.poll() is not None or not probe.connect_ex(("127.0.0.1", port)))
            assert head.poll() is None
            yield SimpleNamespace(address=f"ray://127.0.0.1:{port}", models=models, pid=head.pid)
    finally:
        head.terminate()
        head.wait(PATIENCE)
        models.close()
        shutil.rmtree(place, ignore_errors=True)


def _keywords(asked: Asked) -> Answer:
    """Keywords that depend on the question alone."""
    words = ("woman", "laboratory", "Asia", "Tokyo", "Africa", "Cairo", "workshop")
    place = hashlib.sha256(asked.last_message.encode()).digest()[0]
    return says({"keywords": [words[place % 7], words[place // 7 % 7]]})


def _records(folder: Path) -> dict[tuple[Any, ...], SearchRecord]:
    """The records of a run, without what is a time."""
    found = RunFolder(folder).lines.read()
    return {it.key: it.model_copy(update={"milliseconds": 0}) for it in found}


def _workers_of(pid: int) -> list[psutil.Process]:
    """The processes of Ray that do jobs and descend from a process."""
    below = psutil.Process(pid).children(recursive=True)
    return [it for it in below if it.is_running() and it.cmdline()[0].startswith("ray::_work")]


@pytest.mark.promise("evaluation")
def test_searches_on_ray_are_those_of_one_process(
    command: Command, quick: Main, collection: Path, cluster: Any
) -> None:
    """Ray's workers change no result.

    The workers have indexes of their own; one is killed while the model is silent.
    """
    asked = write_experiment(collection, systems=SYSTEMS)
    here, there = collection.parent / "here", collection.parent / "there"
    cluster.models.does(_keywords)
    run = quick("experiment", "run", asked, "-o", here, OPENAI_BASE_URL=cluster.models.base_url)
    assert run.code == 0, run
    gate = threading.Event()
    cluster.models.does(lambda asked: dataclasses.replace(_keywords(asked), gate=gate))
    # The command itself could not ask the model.
    workers = ("--workers", cluster.address, "--concurrency", "2")
    child = command.start("experiment", "run", asked, "-o", there, *workers)
    cluster.models.wait_for(2, of=child)
    _workers_of(cluster.pid)[0].kill()
    gate.set()
    out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, out + err
    assert "Traceback" not in err
    found = _records(there)
    assert found == _records(here)
    assert any(record.model_calls for record in found.values())
    assert (there / "measures.csv").read_bytes() == (here / "measures.csv").read_bytes()


def test_an_interrupted_run_ends_its_work(command: Command, collection: Path, cluster: Any) -> None:
    """Ctrl-C, with a Ray that the command has started for itself."""
    asked = write_experiment(collection, systems=SYSTEMS[3:], baseline="ours")
    arguments = ("experiment", "run", asked, "-o", collection.parent / "run")
    cluster.models.does(Answer(never=True))
    own = {
        "OPENAI_BASE_URL": cluster.models.base_url,
        "RAY_AUTH_MODE": None,
        "RAY_AUTH_TOKEN": None,
    }
    child = command.start(*arguments, "--workers", "ray://local", **own)
    cluster.models.wait_for(1, of=child)
    workers = _workers_of(child.pid)
    assert workers
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130, err
    assert err.endswith("fairqr: interrupted\n")
    assert "Traceback" not in err
    psutil.wait_procs(workers, PATIENCE)


async def _dies(tools: Tools) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _fails(tools: Tools) -> None:
    raise ModelError("timeout", "It was slow.")


async def test_what_goes_wrong_on_workers_is_told(
    clean_environment: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that kills its workers, errors of fairqr, other versions, and nobody there."""
    from ray import cloudpickle
    from ray.util.client import worker

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    replies = clean_environment / "replies.sqlite"
    options = RunOptions(clean_environment, workers=cluster.address, at_once=1)
    async with options.tools(replies) as tools:
        with pytest.raises(ModelError, match=r"^It was slow\.$") as failed:
            await tools.do(_fails)
        assert failed.value.status == "timeout"
        with pytest.raises(WorkersError, match=r"The workers failed .*; see Ray's logs"):
            await tools.do(_dies)
    nowhere = f"ray://127.0.0.1:{free_port()}"
    told = f"There is no connection to the workers at {nowhere} "
    with monkeypatch.context() as patch:
        for name in ("INITIAL_TIMEOUT_SEC", "MAX_TIMEOUT_SEC"):  # Ray's own, of half a minute
            patch.setattr(worker, name, 0.2)
        with pytest.raises(WorkersError, match=told):
            async with RunOptions(clean_environment, workers=nowhere).tools(replies):
                pass
    monkeypatch.setattr(ray_workers, "version", lambda _: "0.0.7")
    with pytest.raises(WorkersError, match="The workers have another fairqr"):
        async with options.tools(replies):
            pass
