"""What is still to be done and what it costs; names that are wrong are said before anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.ranking.rankers import Cost, group_of
from fairqr.base.errors import (
    InputError,
    ModelUnavailableError,
    PromptError,
    UnknownAttributeError,
)
from fairqr.cli.options import read_parameters
from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment
from fairqr.evaluation.probes.collection import write_probe_collection
from fairqr.evaluation.probes.pairs import tasks_of
from fairqr.evaluation.probes.rankers import parse_ranker, windows_of
from fairqr.evaluation.probes.running import (
    ProbePlan,
    cost_in_words,
    make_probe_plan,
    remaining_cost,
)
from fairqr.evaluation.probes.specification import ListwiseExperiment, LoraExperiment, Window
from fairqr.evaluation.probes.store import PairRecord, ProbeStore, RankingRecord
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.probes.small_collections import people
from tests.unit.evaluation.probes.written_out import collection_of, listwise, pairwise, query_of


@pytest.fixture
def built(tmp_path: Path) -> dict[str, Any]:
    """A folder of three queries with 8 items each, as the sources of an experiment."""
    collection = collection_of(*(query_of(f"q{number}", 2, 2, 2, 2) for number in range(3)))
    write_probe_collection(collection, tmp_path / "built")
    return {"sources": ({"folder": str(tmp_path / "built")},)}


async def plan_of(experiment: Any) -> ProbePlan:
    return await make_probe_plan(experiment, PromptLibrary())


async def test_pairs_cost_a_question_for_each_order(built: dict[str, Any], tmp_path: Path) -> None:
    """What the folder holds does not count."""
    plan = await plan_of(pairwise(**built, models=("openai:a", "openai:b"), pairs=2))
    store = ProbeStore(tmp_path / "run")
    whole = remaining_cost(plan, store)
    # Two models, three queries, two kinds, two pairs, two orders.
    assert whole.calls == 2 * 3 * 2 * 2 * 2
    assert whole.tokens > 50 * whole.calls
    assert not store.folder.exists()
    tasks = tasks_of(plan.manifest.pairs, plan.collections)
    said = [("protected", "protected"), ("protected", "refused")]
    store.folder.mkdir()
    store.start(plan.manifest, plan.collections)
    with store.pairs.writing():
        for task, (one, other) in zip(tasks, said, strict=False):
            names = ("collection", "model", "query", "kind", "protected", "unprotected")
            key = dict(zip(names, task.key("openai:a"), strict=True))
            record = {**key, "protected_first": one, "unprotected_first": other}
            store.pairs.add(PairRecord.model_validate(record))
    assert remaining_cost(plan, store).calls == whole.calls - 2 * 2


async def test_lists_cost_a_question_for_each_window(built: dict[str, Any], tmp_path: Path) -> None:
    experiment = listwise(
        **built, rankers=("initial", "openai:a"), windows=("4/2", "8/4"), askers=("neutral",)
    )
    plan = await plan_of(experiment)
    store = ProbeStore(tmp_path / "run")
    # Windows at 4, 2 and 0 of eight items; and one of all.
    assert remaining_cost(plan, store).calls == 3 * 3 + 3 * 1
    store.folder.mkdir()
    store.start(plan.manifest, plan.collections)
    done = tasks_of(plan.manifest.rankings, plan.collections)[0]
    with store.rankings.writing():
        store.rankings.add(
            RankingRecord(
                collection=done.collection,
                ranker="openai:a",
                window="4/2",
                query=done.query.id,
                order=tuple(range(8)),
            )
        )
    assert remaining_cost(plan, store).calls == 2 * 3 + 3 * 1


async def test_a_folder_keeps_what_it_was_begun_with(built: dict[str, Any], tmp_path: Path) -> None:
    """The collections too, so that a report needs nothing else; one that was changed is refused."""
    plan = await plan_of(pairwise(**built))
    store = ProbeStore(tmp_path / "run")
    store.folder.mkdir()
    store.start(plan.manifest, plan.collections)
    store.start(plan.manifest, plan.collections)
    assert store.collections() == list(plan.collections)
    other = await plan_of(pairwise(**built, seed=1))
    with pytest.raises(InputError, match=r"another experiment \(seed\)"):
        remaining_cost(other, store)
    elsewhere = await make_probe_plan(
        plan.manifest.pairs, PromptLibrary(), base_url="http://127.0.0.1:1/v1"
    )
    with pytest.raises(InputError, match="another base_url"):
        remaining_cost(elsewhere, store)
    changed = collection_of(*(query_of(f"x{number}", 2, 2, 2, 2) for number in range(3)))
    (kept,) = (store.folder / "collections").iterdir()
    for path in kept.iterdir():
        path.unlink()
    write_probe_collection(changed, kept)
    with pytest.raises(InputError, match="is not the one of the run"):
        store.collections()


async def test_a_collection_that_is_not_whole_is_written_again(
    built: dict[str, Any], tmp_path: Path
) -> None:
    plan = await plan_of(pairwise(**built))
    store = ProbeStore(tmp_path / "run")
    store.folder.mkdir()
    store.start(plan.manifest, plan.collections)
    (kept,) = (store.folder / "collections").iterdir()
    queries = kept / "queries.jsonl"
    queries.write_bytes(queries.read_bytes()[:-100])
    again = ProbeStore(store.folder)
    again.start(plan.manifest, plan.collections)
    assert again.collections() == list(plan.collections)


async def test_what_an_experiment_names_has_to_be_there(built: dict[str, Any]) -> None:
    with pytest.raises(PromptError, match="no prompt pairwise/v77"):
        await plan_of(pairwise(**built, prompts={"pairwise": "v77"}))
    with pytest.raises(InputError, match="'listwise' is not used; the prompts here are pairwise"):
        await plan_of(pairwise(**built, prompts={"listwise": "v1"}))
    with pytest.raises(InputError, match="'listwise' is not used; there are none here"):
        await plan_of(listwise(**built, prompts={"listwise": "v1"}))
    with pytest.raises(InputError, match="holds no probe collection"):
        await plan_of(pairwise(sources=({"folder": "nowhere"},)))
    twice = (*built["sources"], {"folder": built["sources"][0]["folder"] + "/"})
    with pytest.raises(InputError, match="are called 'small, gender'"):
        await plan_of(pairwise(sources=twice))


async def test_names_of_models_are_checked_before_anything_is_asked(
    built: dict[str, Any], tmp_path: Path
) -> None:
    for model in ("nothing", "causal:"):
        plan = await plan_of(pairwise(**built, models=("openai:a", model)))
        with pytest.raises(ModelUnavailableError):
            remaining_cost(plan, ProbeStore(tmp_path / "run"))
    with pytest.raises(InputError, match="'initial' takes no model"):
        await plan_of(listwise(**built, rankers=("initial:x",)))


async def test_prompts_stand_in_the_manifest_with_those_who_are_asked(
    built: dict[str, Any],
) -> None:
    names = ("initial", "openai:a", "pairwise:openai:b", "openai:c")
    plan = await plan_of(listwise(**built, rankers=names))
    asked = {entry.prompt.partition("=")[0]: entry.asked for entry in plan.manifest.prompts}
    assert asked == {"listwise": ("openai:a", "openai:c"), "pairwise": ("pairwise:openai:b",)}
    assert all(len(entry.sha256) == 64 for entry in plan.manifest.prompts)


def test_a_cost_is_said_in_words() -> None:
    assert cost_in_words(Cost()) == "no question to a language model is left"
    assert "1,234 questions" in cost_in_words(Cost(1234, 10))


def test_names_of_rankers() -> None:
    assert parse_ranker("openai:gpt-4o").kind == "listwise"
    assert parse_ranker("causal:folder").model == "causal:folder"
    assert parse_ranker("monot5").model == ""
    assert parse_ranker("monot5:castorini/x").model == "castorini/x"
    assert parse_ranker("pairwise:openai:gpt-4o").model == "openai:gpt-4o"
    for wrong in ("pairwise:", "pairwise", "initial:x"):
        with pytest.raises(InputError):
            parse_ranker(wrong)
    experiment = listwise(rankers=("initial", "openai:a"), windows=("4/2", "8/4"))
    assert windows_of(experiment, "initial") == windows_of(experiment, "monot5") == ("",)
    assert windows_of(experiment, "openai:a") == ("4/2", "8/4")
    words = ("female", "male")
    askers = [group_of("neutral", words), group_of("protected", words)]
    assert [*askers, group_of("unprotected", words)] == ["", "female", "male"]


@pytest.mark.parametrize("text", ["", "20", "20/20", "1/1", "5/0", "-5/1", "5/1/1", "a/b", "5 /1"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a window"):
        Window.parse(text)
    assert str(Window.parse("10/3")) == "10/3"


def test_the_shipped_experiments_on_rankers_can_be_read() -> None:
    """And those of the paper ask with its settings."""
    files = {name: read_experiment(name) for name in SHIPPED}
    read = {
        name: file.spec()
        for name, file in files.items()
        if file.kind.name.startswith(("llm", "lora"))
    }
    assert len(read) == 4
    assert read["window_size"].windows == ("5/1", "10/5", "10/3", "20/10")
    tuned = read["lora"]
    assert isinstance(tuned, LoraExperiment)
    assert (tuned.rank, tuned.batch, tuned.learning_rate, tuned.train_share) == (1, 4, 0.003, 0.8)


async def test_sources_are_texts_and_what_the_collection_lacks_is_left_out(
    tmp_path: Path, built: dict[str, Any]
) -> None:
    """The shipped experiments name attributes that a collection of one's own may not have."""
    folder = str(built["sources"][0]["folder"])
    people(tmp_path / "people")
    named = ["gender=female", "continent=not Europe", folder]
    values = read_parameters([ListwiseExperiment], [f"sources={it}" for it in named])
    experiment = listwise(**values, collection=str(tmp_path / "people"), rankers=("initial",))
    assert [(it.attribute, it.protected, it.folder) for it in experiment.sources] == [
        ("gender", "female", None),
        ("continent", "not Europe", None),
        (None, None, folder),
    ]
    plan = await plan_of(experiment)
    assert len(plan.collections) == 2
    (note,) = plan.manifest.notes
    assert note.startswith("Left out is 'continent', which 'people' lacks; ")
    with pytest.raises(UnknownAttributeError, match="continent"):
        await plan_of(experiment.model_copy(update={"sources": experiment.sources[1:2]}))
