"""Running a probe: what it costs, what its folder keeps, and what an experiment may say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.running import ProbePlan, make_probe_plan, remaining_cost
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.probes.made import listwise, lora, pairwise, people, write_collection

PROMPTS = PromptLibrary()


@pytest.fixture
def folk(tmp_path: Path) -> dict[str, Any]:
    """What an experiment says to get three queries with 8 items each."""
    people(tmp_path / "people", each=2)
    return {"collection": str(tmp_path / "people"), "size": 8}


async def plan_of(experiment: Any, **options: Any) -> ProbePlan:
    return await make_probe_plan(experiment, PROMPTS, StageWatcher(), **options)


async def test_windows_and_comparisons_of_a_list_cost(folk: dict[str, Any], tmp_path: Path) -> None:
    """Windows at 4, 2 and 0 of eight items, and one of all; a sort takes at most 17 comparisons."""
    rankers = ["initial", "openai:a", "pairwise:openai:b", "monot5"]
    named = {"rankers": rankers, "windows": ["4/2", "8/4"], "personas": ["neutral"]}
    plan = await plan_of(listwise(**folk, **named))
    assert remaining_cost(plan, ProbeStore(tmp_path / "lists")).calls == 3 * (3 + 1 + 2 * 17)
    assert [prompt.partition("=")[0] for prompt in plan.manifest.prompts] == [
        "listwise",
        "pairwise",
    ]
    usage = Usage(1, 2, prompt_tokens=10, completion_tokens=5, cached_tokens=30)
    assert spent(usage) == {"model_calls": 3, "tokens": 45}, "as when it was first asked"


async def test_a_folder_keeps_what_it_was_begun_with(folk: dict[str, Any], tmp_path: Path) -> None:
    """The collections too, so that a report needs nothing else; what was changed is refused."""
    plan = await plan_of(pairwise(**folk))
    store = ProbeStore(tmp_path / "run")
    store.start(plan.manifest, plan.collections)
    assert store.collections() == plan.collections
    store.start(plan.manifest, plan.collections)
    assert store.collections() == plan.collections
    elsewhere = await plan_of(pairwise(**folk), base_url="http://127.0.0.1:1/v1")
    with pytest.raises(InputError, match="another base_url"):
        remaining_cost(elsewhere, store)
    titles = tmp_path / "people" / "documents.jsonl"
    titles.write_text(titles.read_text().replace("Title", "Name"))
    with pytest.raises(InputError, match="another collections"):
        remaining_cost(await plan_of(pairwise(**folk)), store)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("Title af0", "Title"), id="another title"),
        pytest.param(lambda text: text[:-9], id="cut off"),
        pytest.param(lambda text: "", id="empty"),
        pytest.param(lambda text: text + text, id="twice"),
    ],
)
async def test_changed_collections_of_a_folder_are_refused(
    folk: dict[str, Any], tmp_path: Path, change: Callable[[str], str]
) -> None:
    plan = await plan_of(pairwise(**folk))
    store = ProbeStore(tmp_path / "run")
    store.start(plan.manifest, plan.collections)
    path = store.folder / "collections.jsonl"
    path.write_text(change(path.read_text()))

    with pytest.raises(InputError, match="is not the one of the run"):
        store.collections()


@pytest.mark.parametrize(
    ("experiment", "sentence"),
    [
        pytest.param(
            pairwise,
            "has a pair of both groups; take more queries, or choose other groups",
            id="probe",
        ),
        pytest.param(lora, "There is no pair to tune on", id="tuning"),
    ],
)
async def test_too_few_pairs_are_an_error_before_a_model_is_loaded(
    tmp_path: Path, experiment: Callable[..., Any], sentence: str
) -> None:
    """A woman and a man that are relevant for a topic each make no pair."""
    qrels = {"a": {"f": 1}, "b": {"m": 1}}
    write_collection(tmp_path, [("f", "female"), ("m", "male")], qrels)

    with pytest.raises(InputError, match=sentence):
        await plan_of(experiment(collection=str(tmp_path)))


@pytest.mark.parametrize("window", ["", "20", "20/20", "1/1", "5/0", "-5/1", "5/1/1", "5 /1"])
def test_a_wrong_window_is_refused(window: str) -> None:
    with pytest.raises(ValueError, match="windows"):
        listwise(windows=[window])


@pytest.mark.parametrize("size", [0, 10, -4])
def test_a_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="size"):
        listwise(size=size)


def test_words_without_an_attribute_are_refused() -> None:
    with pytest.raises(ValueError, match="words"):
        listwise(words=["a", "b"], attribute=None)


def test_only_a_causal_model_can_be_tuned() -> None:
    with pytest.raises(ValueError, match="only a causal model of transformers can be tuned"):
        lora(model="openai:gpt-4o")
