"""What does the work of an experiment: which workers may be named, and what one keeps open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.workers import RunOptions, Tools
from fairqr.prompts.library import PromptLibrary


@pytest.mark.parametrize("text", ["4", "ray://host", "ray://user:secret@host:1", "http://h:1"])
async def test_workers_that_are_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Workers are ray://local or ray://HOST:PORT, not '"):
        async with RunOptions(tmp_path, workers=text).tools(tmp_path / "replies.sqlite"):
            pass


async def test_a_worker_opens_each_thing_once_and_closes_the_one_before() -> None:
    tools, notes = Tools(PromptLibrary()), list[str]()

    async def use(place: str, name: str) -> Any:
        async def close() -> None:
            notes.append(f"{name} closed")

        async def opening() -> Any:
            await asyncio.sleep(0)
            notes.append(f"{place} {name}")
            return SimpleNamespace(name=name, aclose=close)

        return (await tools.keep(place, name, opening)).name

    assert await asyncio.gather(*(use("model", "a") for _ in range(3))) == ["a"] * 3
    assert [await use(*it) for it in (("index", "b"), ("model", "c"), ("model", "a"))] == [*"bca"]
    assert notes == ["model a", "index b", "a closed", "model c", "c closed", "model a"]
    await tools.aclose()
    assert sorted(notes[6:]) == ["a closed", "b closed"]
