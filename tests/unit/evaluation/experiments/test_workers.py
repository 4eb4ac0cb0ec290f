"""What does the work of an experiment: which workers may be named, and what one keeps open."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairqr.base.errors import CapError, FairqrError, InputError, ModelError
from fairqr.evaluation.experiments.workers import RunOptions, Tools
from fairqr.prompts.library import PromptLibrary


@pytest.mark.parametrize(
    "text",
    ["4", "ray", "ray://host", "ray://user:secret@host:1", "ray://host:1/../x", "http://h:1"],
)
async def test_workers_that_are_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write ray://local or ray://HOST:PORT"):
        async with RunOptions(tmp_path, workers=text).tools(tmp_path / "replies.sqlite"):
            pass


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
