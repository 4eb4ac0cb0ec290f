"""Running a probe: what it costs, what is not done again, and what is refused before anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelUnavailableError, PromptError
from fairqr.cli.options import read_parameters
from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.workers import RunOptions
from fairqr.evaluation.probes import running
from fairqr.evaluation.probes.running import ProbePlan, make_probe_plan, remaining_cost, run_probe
from fairqr.evaluation.probes.specification import (
    ListwiseExperiment,
    LoraExperiment,
    parse_ranker,
    parse_window,
)
from fairqr.evaluation.probes.store import PairRecord, ProbeStore
from fairqr.prompts.library import PromptLibrary
from tests.unit.agents.ranking.fakes import WeighingModel
from tests.unit.evaluation.probes.made import listwise, lora, pairwise, people, write_collection
from tests.unit.evaluation.watching import Watcher

pytestmark = pytest.mark.usefixtures("plain_jobs")
PROMPTS = PromptLibrary()


@pytest.fixture
def folk(tmp_path: Path) -> dict[str, Any]:
    """What an experiment says to get three queries with 8 items each."""
    people(tmp_path / "people", each=2)
    return {"collection": str(tmp_path / "people"), "size": 8}


async def plan_of(experiment: Any, **options: Any) -> ProbePlan:
    return await make_probe_plan(experiment, PROMPTS, StageWatcher(), **options)


async def run(plan: ProbePlan, store: ProbeStore) -> Watcher:
    watcher = Watcher()
    async with RunOptions(store.folder).tools(store.replies) as tools:
        await run_probe(plan, store, tools, watcher=watcher)
    return watcher


async def test_each_question_costs_and_what_is_kept_does_not(
    folk: dict[str, Any], tmp_path: Path
) -> None:
    """Two orders for each pair; a list has its windows."""
    plan = await plan_of(pairwise(**folk, models=("openai:a", "openai:b"), pairs=2))
    store = ProbeStore(tmp_path / "run")
    whole = remaining_cost(plan, PROMPTS, store)
    # Two models, three queries, two kinds, two pairs, two orders.
    assert whole.calls == 2 * 3 * 2 * 2 * 2
    assert whole.tokens > 50 * whole.calls
    assert not store.folder.exists()
    store.start(plan.manifest, plan.collections)
    lines = store.lines("pairs")
    with lines.writing():
        for task in plan.tasks[:2]:
            key = dict(zip(PairRecord.keys, task.key, strict=True))
            lines.add(PairRecord(**key, protected_first="protected", unprotected_first="refused"))
    assert remaining_cost(plan, PROMPTS, store).calls == whole.calls - 2 * 2
    named = {"rankers": ["initial", "openai:a"], "windows": ["4/2", "8/4"], "askers": ["neutral"]}
    # Windows at 4, 2 and 0 of eight items; and one of all.
    plan = await plan_of(listwise(**folk, **named))
    assert remaining_cost(plan, PROMPTS, ProbeStore(tmp_path / "lists")).calls == 3 * 3 + 3 * 1
    usage = Usage(1, 2, prompt_tokens=10, completion_tokens=5, cached_tokens=30)
    assert spent(usage) == {"model_calls": 3, "tokens": 45}, "as when it was first asked"


async def test_a_folder_keeps_what_it_was_begun_with(folk: dict[str, Any], tmp_path: Path) -> None:
    """The collections too, so that a report needs nothing else; what was changed is refused."""
    plan = await plan_of(pairwise(**folk))
    store = ProbeStore(tmp_path / "run")
    for _ in range(2):
        store.start(plan.manifest, plan.collections)
        assert store.collections() == plan.collections
    other = await plan_of(pairwise(**folk, seed=1))
    with pytest.raises(InputError, match=r"another experiment \(seed\)"):
        remaining_cost(other, PROMPTS, store)
    elsewhere = await plan_of(pairwise(**folk), base_url="http://127.0.0.1:1/v1")
    with pytest.raises(InputError, match="another base_url"):
        remaining_cost(elsewhere, PROMPTS, store)
    path = store.folder / "collections.jsonl"
    whole = path.read_text()
    for changed in (whole.replace("Title af0", "Title"), whole[:-9], "", whole + whole, None):
        path.unlink()
        if changed is not None:
            path.write_text(changed)
        with pytest.raises(InputError, match="is not the one of the run"):
            store.collections()
        path.write_text(whole)
    titles = tmp_path / "people" / "documents.jsonl"
    titles.write_text(titles.read_text().replace("Title", "Name"))
    with pytest.raises(InputError, match="another collections"):
        remaining_cost(await plan_of(pairwise(**folk)), PROMPTS, store)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"prompts": {"pairwise": "v77"}}, PromptError, "no prompt pairwise/v77"),
        ({"prompts": {"listwise": "v1"}}, InputError, "'listwise' is not used; the prompts here"),
        ({"collection": "nowhere"}, InputError, "There is no collection 'nowhere'"),
        ({"models": ["openai:a", "nothing"]}, ModelUnavailableError, "nothing"),
        ({"models": ["openai:a", "causal:"]}, ModelUnavailableError, "lacks a model"),
    ],
)
async def test_what_an_experiment_names_has_to_be_there(
    folk: dict[str, Any],
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    """That is said before anything is asked or written."""
    store = ProbeStore(tmp_path / "run")
    with pytest.raises(error, match=said):
        remaining_cost(await plan_of(pairwise(**{**folk, **changes})), PROMPTS, store)
    assert not store.folder.exists()


@pytest.mark.parametrize(
    ("experiment", "said"),
    [
        (pairwise, "has a pair of both groups; take more queries, or choose other groups"),
        (lora, "There is no pair to tune on"),
    ],
)
async def test_too_few_pairs_are_said_before_a_model_is_loaded(
    tmp_path: Path, experiment: Any, said: str
) -> None:
    """A woman and a man that are relevant for a topic each make no pair."""
    qrels = {"a": {"f": 1}, "b": {"m": 1}}
    write_collection(tmp_path, [("f", "female"), ("m", "male")], qrels)
    with pytest.raises(InputError, match=said):
        await plan_of(experiment(collection=str(tmp_path)))


async def test_prompts_stand_in_the_manifest(folk: dict[str, Any]) -> None:
    names = ["initial", "openai:a", "pairwise:openai:b", "openai:c", "monot5"]
    plan = await plan_of(listwise(**folk, rankers=names, windows=["4/2", "8/4"]))
    prompts = plan.manifest.prompts
    assert [prompt.partition("=")[0] for prompt in prompts] == ["listwise", "pairwise"]
    assert all(len(sha256) == 64 for sha256 in prompts.values())


async def test_what_is_done_is_not_done_again(
    folk: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half line at the end is cut off, and that one pair is asked about again."""
    model = WeighingModel()
    monkeypatch.setattr(running, "open_language_model", lambda *_, **__: model)
    plan = await plan_of(pairwise(**folk, pairs=2))
    store = ProbeStore(tmp_path / "run")
    first = await run(plan, store)
    assert (first.stages, first.steps) == ([("pairs", 12, 0)], 12)
    keys = {record.key for record in store.lines("pairs").read()}
    assert keys == {task.key for task in plan.tasks}
    path = store.folder / "pairs.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    second = await run(plan, store)
    assert (second.stages, second.steps) == ([("pairs", 12, 11)], 1)
    assert {record.key for record in store.lines("pairs").read()} == keys
    assert (await run(plan, store)).stages == []
    assert len(model.asked) == 2 * 13
    assert running.measure(store.folder).missing == 0
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(InputError, match="line 1, is damaged or of another version; remove"):
        await run(plan, store)


async def test_nothing_is_written_where_the_first_model_is_not_there(
    folk: dict[str, Any], tmp_path: Path
) -> None:
    plan = await plan_of(listwise(**folk, rankers=["nothing:fake", "initial"]))
    store = ProbeStore(tmp_path / "run")
    with pytest.raises(ModelUnavailableError):
        await run(plan, store)
    assert not store.exists()


def test_names_of_rankers_and_windows() -> None:
    assert parse_ranker("openai:gpt-4o") == ("listwise", "openai:gpt-4o")
    assert parse_ranker("monot5") == ("monot5", "")
    assert parse_ranker("monot5:castorini/x") == ("monot5", "castorini/x")
    assert parse_ranker("pairwise:openai:gpt-4o") == ("pairwise", "openai:gpt-4o")
    assert parse_window("10/3") == (10, 3)
    experiment = listwise(rankers=["initial", "openai:a"], windows=["4/2", "8/4"])
    assert experiment.windows_of("initial") == experiment.windows_of("monot5") == ("",)
    assert experiment.windows_of("openai:a") == ("4/2", "8/4")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"windows": [it]} for it in ("", "20", "20/20", "1/1", "5/0", "-5/1", "5/1/1", "5 /1")),
        *({"rankers": [it]} for it in ("pairwise:", "pairwise", "initial:x")),
        *({"size": size} for size in (0, 10, -4)),
        *({"seed": -1}, {"queries": 0}, {"order": "random"}),
    ],
)
def test_what_is_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        listwise(**wrong)


def test_a_protected_group_needs_its_attribute() -> None:
    for lone in ({"protected": "male"}, {"words": ["women", "men"]}):
        with pytest.raises(ValueError, match="add attribute=NAME"):
            listwise(**lone)


def test_the_shipped_experiments_on_rankers_can_be_read() -> None:
    """And those of the paper ask with its settings; sources are texts, too."""
    specs = {name: read_experiment(name).spec() for name in SHIPPED}
    read = {name: it for name, it in specs.items() if it.kind.startswith(("llm", "lora"))}
    assert len(read) == 4
    assert read["window_size"].windows == ("5/1", "10/5", "10/3", "20/10")
    tuned = read["lora"]
    assert isinstance(tuned, LoraExperiment)
    assert (tuned.rank, tuned.batch, tuned.learning_rate, tuned.train_share) == (1, 4, 0.003, 0.8)
    named = ["gender=female", "continent=not Europe"]
    values = read_parameters([ListwiseExperiment], [f"sources={it}" for it in named])
    found = [(it.attribute, it.protected) for it in listwise(**values).sources]
    assert found == [("gender", "female"), ("continent", "not Europe")]
