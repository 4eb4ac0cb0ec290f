"""Who does the work of an experiment: what may be written, and what a worker keeps open."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fairqr.base.errors import CapError, FairqrError, InputError, ModelError
from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment
from fairqr.evaluation.experiments.workers import Tools, Workers, parse_workers
from fairqr.prompts.library import PromptLibrary


@pytest.mark.parametrize(
    ("text", "concurrency", "found"),
    [
        (None, None, Workers("", 2)),
        (None, 7, Workers("", 7)),
        ("4", None, Workers("", 4)),
        (4, 3, Workers("", 3)),
        ("ray", None, Workers("ray", None)),
        ("ray://local", 8, Workers("ray://local", 8)),
        ("ray://head.example:10001", None, Workers("ray://head.example:10001", None)),
        ("ray://[::1]:10001", None, Workers("ray://[::1]:10001", None)),
    ],
)
def test_workers_as_they_are_written(
    text: str | int | None, concurrency: int | None, found: Workers
) -> None:
    assert parse_workers(text, concurrency) == found


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "257",
        "many",
        "ray://",
        "ray://host",
        "ray://user:secret@host:1",
        "ray://host:1/../x",
        "http://h:1",
    ],
)
def test_workers_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_workers(text)


def test_workers_are_no_part_of_an_experiment(tmp_path: Path) -> None:
    """Otherwise a run could not go on with others."""
    shipped = read_experiment(SHIPPED[0])
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**shipped.values, "workers": "ray"}))
    assert read_experiment(path).spec() == shipped.spec()


@pytest.mark.parametrize(
    "error", [InputError("Bad."), ModelError("timeout", "Slow."), CapError("k", 100, "Many.")]
)
def test_errors_come_back_from_another_process(error: FairqrError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


@dataclass(frozen=True)
class Noted:
    """A thing that notes when it is closed."""

    name: str
    notes: list[str]

    async def aclose(self) -> None:
        self.notes.append(f"{self.name} closed")


async def test_a_worker_opens_each_thing_once_and_closes_the_one_before() -> None:
    tools = Tools(PromptLibrary())
    notes: list[str] = []

    async def use(place: str, name: str) -> str:
        async def opening() -> Noted:
            await asyncio.sleep(0)
            notes.append(f"{place} {name}")
            return Noted(name, notes)

        return (await tools.keep(place, name, opening)).name

    assert await asyncio.gather(*(use("model", "a") for _ in range(3))) == ["a"] * 3
    assert await use("index", "b") == "b"
    assert await use("model", "c") == "c"
    assert await use("model", "a") == "a"
    assert notes == ["model a", "index b", "a closed", "model c", "c closed", "model a"]
    await tools.aclose()
    assert sorted(notes[6:]) == ["a closed", "b closed"]
