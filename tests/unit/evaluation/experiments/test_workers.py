"""Who does the work of an experiment: what may be written, and what a worker keeps open."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from fairqr.agents.models.cache import ReplyCache
from fairqr.base.errors import CapError, FairqrError, InputError, ModelError
from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment
from fairqr.evaluation.experiments.workers import Failure, Tools, Workers, parse_workers
from fairqr.prompts.library import PromptLibrary


@pytest.mark.parametrize(
    ("text", "concurrency", "found"),
    [
        (None, None, Workers("", 2)),
        (None, 7, Workers("", 7)),
        ("4", None, Workers("", 4)),
        (4, None, Workers("", 4)),
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
    ("text", "concurrency"),
    [
        ("0", None),
        ("257", None),
        ("many", None),
        ("ray://", None),
        ("ray://host", None),
        ("ray://user:secret@host:1", None),
        ("ray://host:1/../x", None),
        ("http://host:1", None),
        ("4", 4),
    ],
)
def test_workers_that_are_none(text: str, concurrency: int | None) -> None:
    with pytest.raises(InputError):
        parse_workers(text, concurrency)


def test_workers_are_no_part_of_an_experiment(tmp_path: Path) -> None:
    """Otherwise a run could not go on with others."""
    shipped = read_experiment(SHIPPED[0])
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**shipped.values, "workers": "ray"}))
    assert read_experiment(path).workers == "ray"
    assert shipped.workers is None
    assert read_experiment(path).spec() == shipped.spec()
    path.write_text(yaml.safe_dump({**shipped.values, "workers": [1]}))
    with pytest.raises(InputError, match="neither a number nor a text"):
        _ = read_experiment(path).workers


@pytest.mark.parametrize(
    "error", [InputError("Bad."), ModelError("timeout", "Slow."), CapError("k", 100, "Many.")]
)
def test_errors_come_back_as_they_were(error: FairqrError) -> None:
    found = Failure.of(error).error()
    assert type(found) is type(error)
    assert vars(found) == vars(error)
    assert str(found).startswith("On the worker ")
    assert str(found).endswith(str(error))


@dataclass(frozen=True)
class Noted:
    """A thing that notes when it is closed."""

    name: str
    notes: list[str]

    async def aclose(self) -> None:
        self.notes.append(f"{self.name} closed")


async def test_a_worker_opens_each_thing_once_and_closes_the_one_before(tmp_path: Path) -> None:
    tools = Tools(PromptLibrary(), ReplyCache(tmp_path / "replies.sqlite"))
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


async def test_all_kept_replies_are_told_in_batches(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path / "replies.sqlite")
    assert [batch async for batch in cache.batches(2)] == []
    for number in range(5):
        await cache.put_many({f"k{number}": {"value": number}})
    batches = [batch async for batch in cache.batches(2)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert batches[2] == {"k4": {"value": 4}}
