"""Training an adapter on a tiny model: it learns, resumes to the same end, and says what fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.tuning.checkpoints import read_checkpoint, write_adapter
from fairqr.agents.tuning.lora import (
    Encoded,
    LoraOptions,
    Step,
    adapted,
    learning_rate,
    train,
)
from fairqr.base.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

A, B = 5, 6


def tiny() -> Any:
    """Return a Llama of two layers, always with the same weights."""
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()


def encode(example: tuple[int, ...]) -> Encoded:
    """The label follows the first token; prompts differ in length."""
    return Encoded(example, A if example[0] == 1 else B)


BATCHES = [
    [(1, 3, 4), (2, 3, 4, 7, 8), (1, 9), (2, 9, 4, 4)],
    [(1, 8, 4, 3, 3, 3), (2, 8), (1, 7, 7), (2, 7, 7)],
] * 6
OPTIONS = LoraOptions(rank=2, alpha=4, dropout=0.1, learning_rate=0.02, seed=3, checkpoint_every=4)


class StopError(Exception):
    pass


def run(
    folder: Path, options: LoraOptions = OPTIONS, stop_after: int | None = None
) -> tuple[dict[str, Any], list[Step]]:
    """Train in a folder, and return the weights and the steps that were told."""
    steps: list[Step] = []

    def watch(step: Step) -> None:
        steps.append(step)
        if step.number == stop_after:
            raise StopError

    with adapted(tiny(), options) as tuned:
        weights = {name: it for name, it in tuned.named_parameters() if it.requires_grad}
        with contextlib.suppress(StopError):
            train(
                tuned,
                BATCHES,
                encode,
                options,
                checkpoint=folder / "checkpoint.pt",
                training="this one",
                watch=watch,
            )
        return {name: it.detach().clone() for name, it in weights.items()}, steps


def test_the_loss_falls_and_each_step_is_told(tmp_path: Path) -> None:
    _, steps = run(tmp_path)
    assert [step.number for step in steps] == list(range(1, 13))
    assert steps[-1].loss < steps[0].loss - 0.1
    assert (steps[0].examples, steps[0].tokens) == (4, 14)


@pytest.mark.parametrize("stop_after", [1, 4, 6, 11])
def test_resuming_ends_with_the_weights_of_an_uninterrupted_training(
    tmp_path: Path, stop_after: int
) -> None:
    whole, _ = run(tmp_path / "whole")
    run(tmp_path / "stopped", stop_after=stop_after)
    resumed, steps = run(tmp_path / "stopped")
    # Dropout and the optimizer's state come back too; what no checkpoint holds is done again.
    assert steps[0].number == (stop_after - 1) // 4 * 4 + 1
    assert whole.keys() == resumed.keys()
    for name, weight in whole.items():
        assert torch.allclose(weight, resumed[name], atol=1e-6, rtol=0), name


def test_a_training_that_was_killed_goes_on(tmp_path: Path) -> None:
    script = f"""
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("tested", {str(Path(__file__))!r})
tested = importlib.util.module_from_spec(spec)
sys.modules["tested"] = tested
spec.loader.exec_module(tested)
def kill(step):
    if step.number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
from pathlib import Path
with tested.adapted(tested.tiny(), tested.OPTIONS) as tuned:
    tested.train(tuned, tested.BATCHES, tested.encode, tested.OPTIONS,
        checkpoint=Path({str(tmp_path / "killed")!r}) / "checkpoint.pt",
        training="this one", watch=kill)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    resumed, steps = run(tmp_path / "killed")
    whole, _ = run(tmp_path / "whole")
    assert steps[0].number == 5
    for name, weight in whole.items():
        assert torch.allclose(weight, resumed[name], atol=1e-6, rtol=0), name


def test_the_loss_is_that_of_each_prompt_by_itself(tmp_path: Path) -> None:
    # Padding changes nothing: the adapter begins as one that changes nothing.
    model = tiny()
    with torch.inference_mode():
        alone = [
            torch.nn.functional.cross_entropy(
                model(torch.tensor([it])).logits[:, -1], torch.tensor([encode(it).label])
            ).item()
            for it in BATCHES[0]
        ]
    _, steps = run(tmp_path, LoraOptions(), stop_after=1)
    assert steps[0].loss == pytest.approx(sum(alone) / 4, abs=1e-5)


def test_models_with_positions_of_their_own_are_padded_rightly(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=20,
                n_embd=16,
                n_layer=2,
                n_head=2,
                n_positions=32,
                resid_pdrop=0,
                embd_pdrop=0,
                attn_pdrop=0,
            )
        ).eval()
    with torch.inference_mode():
        alone = [
            torch.nn.functional.cross_entropy(
                model(torch.tensor([it])).logits[:, -1], torch.tensor([encode(it).label])
            ).item()
            for it in BATCHES[0]
        ]
    options = LoraOptions(modules=("c_attn",))
    steps: list[Step] = []
    with adapted(model, options) as tuned:
        train(
            tuned,
            BATCHES[:1],
            encode,
            options,
            checkpoint=tmp_path / "c.pt",
            training="",
            watch=steps.append,
        )
    assert steps[0].loss == pytest.approx(sum(alone) / 4, abs=1e-5)


def test_only_the_attention_is_trained_and_the_base_comes_back_as_it_was() -> None:
    model = tiny()
    names = [name for name, _ in model.named_modules()]
    before = {name: it.clone() for name, it in model.state_dict().items()}
    options = LoraOptions(learning_rate=0.05, checkpoint_every=100)
    with adapted(model, options) as tuned:
        trained = {name.split(".")[-4] for name, it in tuned.named_parameters() if it.requires_grad}
        assert trained <= {"q_proj", "k_proj", "v_proj", "o_proj"}
        assert len(trained) == 4
        ranks = {min(it.shape) for it in tuned.parameters() if it.requires_grad}
        assert ranks == {1}
    assert [name for name, _ in model.named_modules()] == names
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


def test_nothing_global_is_drawn_from(tmp_path: Path) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    run(tmp_path, stop_after=3)
    assert torch.equal(torch.rand(3), expected)


def test_the_rate_falls_in_a_line_or_stays() -> None:
    linear = LoraOptions(learning_rate=0.4)
    assert [learning_rate(linear, step, 4) for step in (1, 2, 3, 4)] == pytest.approx(
        [0.4, 0.3, 0.2, 0.1]
    )
    constant = LoraOptions(learning_rate=0.4, schedule="constant")
    assert [learning_rate(constant, step, 4) for step in (1, 4)] == [0.4, 0.4]


def test_a_model_without_such_modules_is_refused_with_some_that_it_has() -> None:
    with (
        pytest.raises(InputError, match=r"no layer 'c_attn'.*q_proj, k_proj"),
        adapted(tiny(), LoraOptions(modules=("q_proj", "c_attn"))),
    ):
        pass


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    run(tmp_path, stop_after=5)
    with pytest.raises(InputError, match="belongs to another training"):
        run(tmp_path, LoraOptions(rank=2, seed=4))
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is damaged"):
        read_checkpoint(path, "this one")


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.model.embed_tokens.weight[3] = float("nan")
    with (
        pytest.raises(InputError, match="lower learning rate"),
        adapted(model, OPTIONS) as tuned,
    ):
        train(
            tuned,
            BATCHES,
            encode,
            OPTIONS,
            checkpoint=tmp_path / "c.pt",
            training="",
            watch=lambda step: None,
        )


def test_the_adapter_says_what_it_was_made_from_and_loads_with_peft(tmp_path: Path) -> None:
    with adapted(tiny(), OPTIONS) as tuned:
        train(
            tuned,
            BATCHES,
            encode,
            OPTIONS,
            checkpoint=tmp_path / "c.pt",
            training="",
            watch=lambda step: None,
        )
        with torch.inference_mode():
            expected = tuned(torch.tensor([[1, 3, 4]])).logits
        (tmp_path / ".adapter.killed").mkdir()
        write_adapter(tuned, tmp_path / "adapter", "some-model", {"prompt": "pairwise=v1"})
    assert not list(tmp_path.glob(".adapter*"))
    about = json.loads((tmp_path / "adapter" / "fairqr.json").read_text())
    assert about == {"base": "some-model", "prompt": "pairwise=v1"}
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "some-model"
    loaded = peft.PeftModel.from_pretrained(tiny(), str(tmp_path / "adapter")).eval()
    with torch.inference_mode():
        assert torch.allclose(loaded(torch.tensor([[1, 3, 4]])).logits, expected, atol=1e-6)
