"""Running lists: what is written, what is not done again, and care for a model that goes away."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.workers import Pool
from fairqr.evaluation.probes.collection import write_probe_collection
from fairqr.evaluation.probes.running import ProbePlan, make_probe_plan, measure, run_probe
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.probes.written_out import collection_of, listwise, query_of
from tests.unit.evaluation.watching import Watcher


async def make_plan(tmp_path: Path, *rankers: str) -> ProbePlan:
    collection = collection_of(*(query_of(f"q{number}", 2, 2, 2, 2) for number in range(3)))
    folder = tmp_path / "built"
    write_probe_collection(collection, folder)
    experiment = listwise(sources=({"folder": str(folder)},), rankers=rankers)
    return await make_probe_plan(experiment, PromptLibrary())


def here(store: ProbeStore) -> Pool:
    return Pool.here(PromptLibrary(), store.replies)


async def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """A half line at the end is cut off, and that one list is ranked again."""
    plan = await make_plan(tmp_path, "initial")
    store = ProbeStore(tmp_path / "run")
    first = Watcher()
    await run_probe(plan, store, here(store), watcher=first)
    assert first.stages == [("lists", 9, 0)]
    assert first.steps == 9
    records = store.rankings.read()
    assert {record.key for record in records} == {
        ("small, gender", "initial", "", asker, f"q{number}")
        for asker in ("neutral", "protected", "unprotected")
        for number in range(3)
    }
    assert all(record.order == tuple(range(8)) for record in records)
    path = store.folder / "rankings.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    second = Watcher()
    await run_probe(plan, store, here(store), watcher=second)
    assert (second.stages, second.steps) == ([("lists", 9, 8)], 1)
    assert {record.key for record in store.rankings.read()} == {it.key for it in records}
    third = Watcher()
    await run_probe(plan, store, here(store), watcher=third)
    assert third.stages == []
    measured = measure(store)
    assert measured.missing == 0


async def test_nothing_is_written_where_the_first_model_is_not_there(tmp_path: Path) -> None:
    plan = await make_plan(tmp_path, "nothing:fake", "initial")
    store = ProbeStore(tmp_path / "run")
    with pytest.raises(ModelUnavailableError):
        await run_probe(plan, store, here(store), watcher=Watcher())
    assert not store.exists()
    assert store.rankings.read() == []


async def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    plan = await make_plan(tmp_path, "initial")
    store = ProbeStore(tmp_path / "run")
    await run_probe(plan, store, here(store), watcher=Watcher())
    path = store.folder / "rankings.jsonl"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(InputError, match="line 1, is damaged or of another version; remove"):
        await run_probe(plan, store, here(store), watcher=Watcher())


def test_what_the_cache_answered_costs_what_it_did_first() -> None:
    usage = Usage(
        model_calls=1, cached_calls=2, prompt_tokens=10, completion_tokens=5, cached_tokens=30
    )
    assert spent(usage) == {"model_calls": 3, "tokens": 45}
