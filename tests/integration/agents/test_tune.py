"""``fairqr experiment run lora --small`` as a user runs it, on a tiny model that is made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairqr.evaluation.probes.store import ProbeStore
from tests.later import later
from tests.patience import PATIENCE, until
from tests.servers.model_server import Main
from tests.unit.agents.ranking.tiny_models import save_causal

torch = later("torch", "tune")
transformers = later("transformers", "tune")
later("peft", "tune")

SIZES = "queries=10 size=16 train_share=0.5 pairs=3 held_out_pairs=3 relevance_pairs=2"
SIZES += " steps=6 batch=4 prompts.pairwise=v1"
RUN = ["experiment", "run", "lora", "--small", "--report"]
RUN += [f"--set={each}" for each in SIZES.split()]
MAIN = "from fairqr.cli.main import main; main()"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that says A or B whatever it reads."""
    folder = save_causal(tmp_path_factory.mktemp("model"), context=4096)
    llama = transformers.AutoModelForCausalLM.from_pretrained(folder)
    vocabulary = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    with torch.no_grad():
        # A part that all tokens have in common makes both letters likely.
        llama.model.embed_tokens.weight[:, 0] = 5.0
        for letter in "AB":
            llama.lm_head.weight[vocabulary[letter], 0] = 20
    llama.save_pretrained(folder)
    return folder


def command(*arguments: str | Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *RUN, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAIRQR_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"},
    )


def tuned(*arguments: str | Path, cache: Path) -> tuple[int, str, str]:
    process = command(*arguments, cache=cache)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(folder / "adapter" / "adapter_model.safetensors")
    return found


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run that nothing disturbed, and what it printed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    cache = tmp_path_factory.mktemp("cache")
    code, out, err = tuned("--model", f"causal:{model}", "-o", folder, cache=cache)
    assert code == 0, err
    return folder, out, err


def test_it_trains_and_probes_both_times(whole: tuple[Path, str, str], model: Path) -> None:
    folder, out, err = whole
    store = ProbeStore(folder)
    manifest = store.manifest()
    assert manifest.tuning.base == str(model.resolve())
    assert [it.step for it in store.losses.read()] == [1, 2, 3, 4, 5, 6]
    asked = len(store.lines("before").read())
    assert len(store.lines("after").read()) == asked > 0
    assert not {*manifest.tuning.train} & {*manifest.tuning.held_out}
    assert not (folder / "checkpoints").exists()
    assert f"written: {folder / 'report.md'}" in out
    assert f"at most {4 * asked + 3 * 6 * 4} questions" in err
    about = json.loads((folder / "adapter" / "fairqr.json").read_text())
    assert about["base"] == str(model.resolve())
    before, after = (
        {it.key: it.log_odds for it in store.lines(when).read()} for when in ("before", "after")
    )
    assert before.keys() == after.keys()
    assert before != after, "the adapter changes what the model says"


def test_the_same_command_again_trains_nothing(
    whole: tuple[Path, str, str], model: Path, quick: Main
) -> None:
    folder, out, _ = whole
    kept = [*folder.glob("*.jsonl"), *(folder / "adapter").iterdir()]
    before = {it: it.stat().st_mtime_ns for it in kept}
    again = quick(*RUN, "--model", f"causal:{model}", "-o", folder)
    assert (again.code, again.stdout) == (0, out)
    assert {it: it.stat().st_mtime_ns for it in kept} == before


@pytest.mark.promise("agents")
def test_a_run_that_was_killed_ends_as_one_that_was_not(
    whole: tuple[Path, str, str], model: Path, tmp_path: Path, quick: Main
) -> None:
    """A tuning that was killed ends with the same adapter."""
    folder = tmp_path / "run"
    arguments = ("--model", f"causal:{model}", "-o", folder)
    killed = command(*arguments, cache=tmp_path / "cache")
    lines = folder / "losses.jsonl"
    until(lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 2)
    killed.kill()
    killed.communicate()
    ended = quick(*RUN, *arguments, FAIRQR_CACHE_DIR=str(tmp_path / "cache"))
    assert ended.code == 0, ended.stderr
    expected, found = weights_of(whole[0]), weights_of(folder)
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        assert torch.allclose(weight, found[name], atol=1e-6, rtol=0), name
    assert ended.stdout.replace(str(folder), "") == whole[1].replace(str(whole[0]), "")
