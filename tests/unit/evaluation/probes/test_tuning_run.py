"""A tiny model with a planted lean: tuning takes it away in queries that it never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.agents.models.in_process import CausalModel
from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.kinds import RunOptions
from fairqr.evaluation.probes.collection import (
    ProbeCollection,
    ProbeItem,
    ProbeManifest,
    ProbeQuery,
    write_probe_collection,
)
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import LoraStore
from fairqr.evaluation.probes.tuning import make_lora_plan, run
from fairqr.evaluation.probes.tuning_measures import measure_lora
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.watching import Watcher

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

CELLS = [(relevant, protected) for relevant in (True, False) for protected in (True, False)]
WORDS = 6
QUERIES = 40


def word(relevant: bool, protected: bool, number: int) -> str:
    return f"{'r' if relevant else 'i'}{'p' if protected else 'u'}{number}"


VOCABULARY = [
    "<s>",
    "</s>",
    "A",
    "B",
    "q",
    "|",
    "?",
    *(word(*c, n) for c in CELLS for n in range(WORDS)),
]
MERITS = dict(zip(VOCABULARY, np.random.default_rng(0).normal(0, 1, len(VOCABULARY)), strict=True))


def merit(title: str) -> float:
    """What the base is taught: relevance, a lean toward the protected group, and taste."""
    return float(1.5 * (title[0] == "r") + 1.6 * (title[1] == "p") + MERITS[title])


@pytest.fixture(scope="module")
def leaning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers that prefers protected items, and otherwise judges by merit."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("leaning")
    known = {it: place for place, it in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    wrapped.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    wrapped.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(known),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
    )
    random = np.random.default_rng(1)
    titles = VOCABULARY[7:]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
        for _ in range(250):
            couples = random.choice(titles, (64, 2))
            rows = [[known[it] for it in ("q", one, "|", other, "?")] for one, other in couples]
            odds = torch.tensor([merit(one) - merit(other) for one, other in couples])
            target = torch.zeros(len(rows), len(known))
            target[:, known["A"]] = torch.sigmoid(odds)
            target[:, known["B"]] = torch.sigmoid(-odds)
            logits = model(torch.tensor(rows)).logits[:, -1]
            loss = torch.nn.functional.cross_entropy(logits, target)
            loss.backward()
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


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries with four items in each cell; one document stands in all lists."""
    random = np.random.default_rng(2)
    queries = []
    for number in range(QUERIES):
        items = [
            ProbeItem(
                id=f"{number}-{cell}-{place}",
                title=word(*CELLS[cell], int(which)),
                relevant=CELLS[cell][0],
                protected=CELLS[cell][1],
            )
            for cell in range(4)
            for place, which in enumerate(random.permutation(WORDS)[:4])
        ]
        items[-1] = items[-1].model_copy(update={"id": "everywhere"})
        queries.append(ProbeQuery(id=f"t{number:02}", query="q", items=tuple(items)))
    manifest = ProbeManifest(
        name="tiny",
        source="made",
        source_fingerprint="0",
        attribute="side",
        protected="p",
        unprotected="u",
        protected_groups=("p",),
        unprotected_groups=("u",),
        size=16,
        order="discriminatory",
        seed=0,
        texts=False,
        queries=len(queries),
    )
    folder = tmp_path_factory.mktemp("probes") / "tiny"
    write_probe_collection(ProbeCollection(manifest=manifest, queries=tuple(queries)), folder)
    return folder


def experiment(model: Path, probes: Path, **more: Any) -> LoraExperiment:
    settings: dict[str, Any] = {
        "kind": "lora",
        "title": "Tiny",
        "sources": ({"folder": str(probes)},),
        "prompts": {"pairwise": "tiny"},
        "model": f"causal:{model}",
        "train_share": 0.5,
        "relevance_pairs": 4,
        "steps": 200,
        "batch": 8,
    }
    return LoraExperiment.model_validate({**settings, **more})


async def test_a_planted_lean_is_mended_in_held_out_queries(
    leaning: Path, prompts: PromptLibrary, probes: Path, tmp_path: Path
) -> None:
    told = Watcher()
    options = RunOptions(tmp_path / "run", told, prompts)
    await run(experiment(leaning, probes), options)
    measured = measure_lora(LoraStore(options.folder))
    figures = measured.figures.set_index(["kind", "when"])
    changes = measured.changes.set_index(["kind", "measure"])
    before = figures.loc["both", "before"]
    assert before.verdict == "favours_protected"
    assert before.ratio > 3
    assert changes.loc["both", "ratio"].verdict == "up"
    assert changes.loc["both", "log_odds"].low > 0
    # The document that stands in all lists is probed with, and so was not trained on.
    split = measured.manifest.splits[0]
    assert split.left_out == 1
    asked = sum(split.held_out_pairs.values())
    stages = [(title, whole) for title, whole, _ in told.stages if not title.endswith(", timed")]
    assert stages == [
        ("pairs before tuning", asked),
        ("training steps", 200),
        ("pairs after tuning", asked),
    ]
    assert told.steps == 2 * asked + 200
    # It was not for nothing: what became of relevance and of consistent answers is told.
    assert changes.loc["both", "consistent"].verdict == "down"
    assert changes.loc["relevance", "both_orders"].verdict == "down"
    assert changes.loc["relevance", "averaged"].difference < 0
    assert measured.missing == 0


async def test_what_is_trained_on_is_what_the_judge_asks(
    leaning: Path, prompts: PromptLibrary, probes: Path, tmp_path: Path
) -> None:
    """Each example has the tokens of the question that the model is probed with."""
    from fairqr.evaluation.probes.tuning import encoder_of, judge_of

    plan = await make_lora_plan(experiment(leaning, probes), prompts)
    model = CausalModel(str(leaning))
    pretrained = await model.pretrained()
    encode = encoder_of(judge_of(plan, model), pretrained)
    for example in plan.batches[0]:
        encoded = encode(example)
        words = pretrained.tokenizer.convert_ids_to_tokens(encoded)
        label = "A" if example.winner == "first" else "B"
        assert words == ["q", example.first.title, "|", example.second.title, "?", label]


async def test_no_held_out_item_or_query_is_trained_on(
    leaning: Path, prompts: PromptLibrary, probes: Path
) -> None:
    plan = await make_lora_plan(experiment(leaning, probes), prompts)
    trained = {it.id for batch in plan.batches for e in batch for it in (e.first, e.second)}
    probed = {
        it.id for task in plan.held_out for it in (task.pair.protected, task.pair.unprotected)
    }
    assert not trained & probed
    split = plan.manifest.splits[0]
    assert not set(split.train) & {task.query.id for task in plan.held_out}
    assert plan.passes == 4 * len(plan.held_out) + 3 * 200 * 8


async def test_a_model_that_is_not_there_leaves_no_folder_behind(
    prompts: PromptLibrary, probes: Path, tmp_path: Path
) -> None:
    from fairqr.base.errors import ModelUnavailableError

    lacking = experiment(tmp_path / "nowhere", probes)
    with pytest.raises(ModelUnavailableError):
        await run(lacking, RunOptions(tmp_path / "run", Watcher(), prompts))
    assert not LoraStore(tmp_path / "run").exists()


async def test_an_adapter_from_elsewhere_is_refused(
    leaning: Path, prompts: PromptLibrary, probes: Path, tmp_path: Path
) -> None:
    few = experiment(leaning, probes, steps=1, held_out_pairs=1, relevance_pairs=0)
    store = LoraStore(tmp_path / "run")
    await run(few, RunOptions(store.folder, Watcher(), prompts))
    (store.adapter / "fairqr.json").write_text('{"training": "another"}')
    store.pairs("after").path.unlink()
    with pytest.raises(InputError, match="is not the adapter of this run"):
        await run(few, RunOptions(store.folder, Watcher(), prompts))
