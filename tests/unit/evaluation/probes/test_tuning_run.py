"""A tiny model with a planted bias: tuning takes it away in queries that it never saw."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.agents.models.in_process import CausalModel
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.evaluation.experiments.workers import RunOptions
from fairqr.evaluation.probes import running
from fairqr.evaluation.probes.running import make_probe_plan, remaining_cost, run
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import ProbeStore
from fairqr.evaluation.probes.tuning import encoder_of
from fairqr.prompts.library import PromptLibrary
from tests.later import later
from tests.unit.agents.ranking.tiny_models import tiny_llama
from tests.unit.evaluation.probes.made import collection_of, lora, query_of
from tests.unit.evaluation.watching import Watcher

torch = later("torch", "tune")
transformers = later("transformers", "tune")
later("peft", "tune")

pytestmark = pytest.mark.usefixtures("plain_jobs")

WORDS, QUERIES = 6, 40
TITLES = [f"{it[0]}{it[1]}{it[2]}" for it in product("ri", "pu", range(WORDS))]
"""Of relevant and irrelevant, protected and unprotected items."""

VOCABULARY = ["<s>", "</s>", "A", "B", "q", "|", "?", *TITLES]
MERITS = dict(zip(VOCABULARY, np.random.default_rng(0).normal(0, 1, len(VOCABULARY)), strict=True))


def merit(title: str) -> float:
    """What the base is taught: relevance, a bias toward the protected group, and taste."""
    return float(1.5 * (title[0] == "r") + 1.6 * (title[1] == "p") + MERITS[title])


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers that prefers protected items, and otherwise judges by merit."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("biased")
    known = {it: place for place, it in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    wrapped.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    wrapped.save_pretrained(folder)
    random, model = np.random.default_rng(1), tiny_llama(len(known), width=32, heads=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(250):
        couples = random.choice(TITLES, (64, 2))
        rows = [[known[it] for it in ("q", one, "|", other, "?")] for one, other in couples]
        odds = torch.tensor([merit(one) - merit(other) for one, other in couples])
        target = torch.zeros(len(rows), len(known))
        target[:, known["A"]] = torch.sigmoid(odds)
        target[:, known["B"]] = torch.sigmoid(-odds)
        logits = model(torch.tensor(rows)).logits[:, -1]
        torch.nn.functional.cross_entropy(logits, target).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> PromptLibrary:
    folder = tmp_path_factory.mktemp("prompts")
    (folder / "pairwise").mkdir()
    (folder / "pairwise" / "tiny.yaml").write_text(
        "id: pairwise\nversion: tiny\ndescription: Five words.\n"
        "input_variables: [group, query, first, second]\n"
        "messages:\n  - {role: user, content: '{group}{query} {first} | {second} ?'}\n"
    )
    return PromptLibrary(folder)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection of all experiments: four items in each cell; one document is in all lists."""
    random = np.random.default_rng(2)
    queries = []
    for number in range(QUERIES):
        query = query_of(f"t{number:02}", 4, 4, 4, 4)
        which = np.concatenate([random.permutation(WORDS)[:4] for _ in range(4)])
        items = [
            item.model_copy(update={"title": f"{'ir'[item.relevant]}{'up'[item.protected]}{own}"})
            for item, own in zip(query.items, which, strict=True)
        ]
        items[-1] = items[-1].model_copy(update={"id": "everywhere"})
        queries.append(query.model_copy(update={"query": "q", "items": tuple(items)}))
    made = [collection_of(*queries, name="tiny")]
    monkeypatch.setattr(running.collection, "open_probe_collections", lambda *_, **__: made)


def experiment(model: Path, **more: Any) -> LoraExperiment:
    settings = {"prompts": {"pairwise": "tiny"}, "model": f"causal:{model}", "train_share": 0.5}
    return lora(**{**settings, "steps": 200, "batch": 8, "held_out_pairs": 50, **more})


async def test_a_planted_bias_is_reduced_in_held_out_queries(
    biased: Path, prompts: PromptLibrary, tmp_path: Path
) -> None:
    told = Watcher()
    options = RunOptions(tmp_path / "run", told, prompts)
    measured: Any = running.measure((await run(experiment(biased), options)).folder)
    figures = measured.figures.set_index(["kind", "when"])
    changes = measured.changes.set_index(["kind", "measure"])
    before = figures.loc["both", "before"]
    assert before.verdict == "favours_protected"
    assert before.ratio > 3
    assert changes.loc["both", "ratio nearer to 1"].verdict == "above"
    # The document that stands in all lists is probed with, and so was not trained on.
    assert measured.manifest.tuning.left_out == 1
    # A pair is asked about in both orders.
    asked = 2 * (before.planned + figures.loc["relevance", "before"].planned)
    pairs = "questions about pairs {} tuning".format
    titles = [pairs("before"), "training steps", pairs("after")]
    assert [it[:2] for it in told.stages] == [*zip(titles, (asked, 200, asked), strict=True)]
    assert told.steps == 2 * asked + 200
    # It was not for nothing: what became of relevance and of consistent answers is told.
    assert changes.loc["both", "consistent"].verdict == "below"
    assert changes.loc["relevance", "both orders"].verdict == "below"
    assert measured.missing == 0


@pytest.mark.promise("agents")
async def test_no_held_out_item_or_query_is_trained_on(
    biased: Path, prompts: PromptLibrary, tmp_path: Path
) -> None:
    """No held-out item or query is trained on.

    What is trained on has the tokens of the question that the model is probed with.
    """
    plan = await make_probe_plan(experiment(biased), prompts, Watcher())
    trained = {it.id for batch in plan.batches for e in batch for it in (e.first, e.second)}
    assert not trained & {item.id for task in plan.tasks for item in task.items}
    tuned = plan.manifest.tuning
    assert tuned
    assert not {*tuned.train} & {*tuned.held_out}
    assert len(tuned.train) == len(tuned.held_out) == QUERIES / 2
    assert {task.key[2] for task in plan.tasks} == {*tuned.held_out}
    # Both orders before and after; to learn counts three times.
    assert remaining_cost(plan, ProbeStore(tmp_path)).calls == 4 * len(plan.tasks) + 3 * 200 * 8
    model = CausalModel(str(biased))
    pretrained, judge = await model.pretrained(), plan.tasks[0].entrant.open(prompts, model)
    encode = encoder_of(judge, pretrained)
    for example in plan.batches[0]:
        words = pretrained.tokenizer.convert_ids_to_tokens(encode(example))
        label = "A" if example.winner == "first" else "B"
        assert words == ["q", example.first.title, "|", example.second.title, "?", label]


async def test_an_adapter_from_elsewhere_is_refused(
    biased: Path, prompts: PromptLibrary, tmp_path: Path
) -> None:
    """And a model that is not there leaves no folder behind."""
    options = RunOptions(tmp_path / "run", Watcher(), prompts)
    with pytest.raises(ModelUnavailableError):
        await run(experiment(tmp_path / "nowhere"), options)
    assert not ProbeStore(options.folder).exists()
    few = experiment(biased, steps=1, held_out_pairs=1, relevance_pairs=0)
    store = await run(few, options)
    (store.adapter / "fairqr.json").write_text('{"training": "another"}')
    store.lines("after").path.unlink()
    with pytest.raises(InputError, match="is not the adapter of this run"):
        await run(few, options)
