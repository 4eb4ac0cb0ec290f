"""Training an adapter on a tiny model: it learns, resumes to the same end, and says what fails."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.tuning import LoraOptions, adapted, train, write_adapter
from fairqr.base.errors import InputError
from tests.later import later
from tests.unit.agents.ranking.tiny_models import tiny_llama

torch = later("torch", "tune")
later("transformers", "tune")
peft = later("peft", "tune")


A, B = 5, 6
PROMPTS = [
    [(1, 3, 4), (2, 3, 4, 7, 8), (1, 9), (2, 9, 4, 4)],
    [(1, 8, 4, 3, 3, 3), (2, 8), (1, 7, 7), (2, 7, 7)],
]
# The label follows the first token; prompts differ in length, and the last step is smaller.
BATCHES = [[[*it, A if it[0] == 1 else B] for it in batch] for batch in PROMPTS] * 6
BATCHES[-1] = BATCHES[-1][:2]
OPTIONS = LoraOptions(rank=2, alpha=4, dropout=0.1, learning_rate=0.02, seed=3)

Step = tuple[int, float, float, float]


class StopError(Exception):
    pass


def run(
    folder: Path,
    options: LoraOptions = OPTIONS,
    stop_after: int | None = None,
    model: Any = None,
) -> tuple[dict[str, Any], list[Step]]:
    """Train in a folder, and return the weights and the steps that were told."""
    steps: list[Step] = []

    def watch(*step: Any) -> None:
        steps.append(step)
        if step[0] == stop_after:
            raise StopError

    with adapted(model or tiny_llama(), options) as tuned:
        with contextlib.suppress(StopError):
            train(tuned, BATCHES, options, folder, watch, checkpoint_every=4)
        weights = {name: it for name, it in tuned.named_parameters() if it.requires_grad}
        return {name: it.detach().clone() for name, it in weights.items()}, steps


def test_the_loss_falls_with_the_rate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    _, steps = run(tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert steps[-1][1] < steps[0][1] - 0.1
    assert [step[2] for step in steps] == pytest.approx([0.02 * n / 12 for n in range(12, 0, -1)])
    assert capfd.readouterr() == ("", "")


@pytest.mark.promise("agents")
@pytest.mark.parametrize("stop_after", [1, 6])
def test_a_resumed_training_ends_with_the_same_weights(tmp_path: Path, stop_after: int) -> None:
    """A training that was killed and resumed ends with the weights of one that was not."""
    whole, told = run(tmp_path / "whole")
    run(tmp_path / "stopped", stop_after=stop_after)
    # A process that is killed while it writes leaves a checkpoint without a state.
    (tmp_path / "stopped" / "checkpoint-99").mkdir()
    resumed, steps = run(tmp_path / "stopped")
    # Dropout and the optimizer's state come back too; what no checkpoint holds is done again.
    assert steps == list(map(pytest.approx, told[(stop_after - 1) // 4 * 4 :]))
    assert whole.keys() == resumed.keys()
    for name, weight in whole.items():
        assert torch.allclose(weight, resumed[name], atol=1e-6, rtol=0), name


def test_the_loss_is_that_of_each_prompt_by_itself(tmp_path: Path) -> None:
    model, options = tiny_llama(), LoraOptions()
    with torch.inference_mode():
        alone = [
            torch.nn.functional.cross_entropy(
                model(torch.tensor([it[:-1]])).logits[:, -1], torch.tensor(it[-1:])
            ).item()
            for it in BATCHES[0]
        ]
    _, steps = run(tmp_path, options, stop_after=1, model=model)
    assert steps[0][1] == pytest.approx(sum(alone) / 4, abs=1e-5)


def test_only_the_attention_is_trained(tmp_path: Path) -> None:
    model = tiny_llama()
    model.is_quantized = True  # as transformers calls what it read from a GGUF file
    before = {name: it.clone() for name, it in model.state_dict().items()}
    constant = LoraOptions(learning_rate=0.05, schedule="constant")
    weights, steps = run(tmp_path, constant, stop_after=3, model=model)
    assert [step[2] for step in steps] == [0.05] * 3
    assert {name.split(".")[-4] for name in weights} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(it, before[name]) for name, it in model.state_dict().items())


def test_what_cannot_be_trained_is_said(tmp_path: Path) -> None:
    """A module that the model lacks, with some that it has; and a loss that is no number."""
    with pytest.raises(InputError, match=r"no layer 'norm' to adapt; modules may be .*q_proj"):
        run(tmp_path, LoraOptions(modules=("q_proj", "norm")))
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[3] = float("nan")
    with pytest.raises(InputError, match="lower learning rate"):
        run(tmp_path, model=model)


def test_an_adapter_says_what_it_was_made_from(tmp_path: Path) -> None:
    given = torch.tensor([[1, 3, 4]])
    with adapted(tiny_llama(), OPTIONS) as tuned:
        train(tuned, BATCHES[:2], OPTIONS, tmp_path / "checkpoints", lambda *step: None)
        with torch.inference_mode():
            expected = tuned(given).logits
        (tmp_path / ".adapter.part").mkdir()
        write_adapter(tuned, tmp_path / "adapter", "some-model", {"prompt": "pairwise=v1"})
    assert not list(tmp_path.glob(".adapter*"))
    folder = tmp_path / "adapter"
    assert json.loads((folder / "fairqr.json").read_text()) == {"prompt": "pairwise=v1"}
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "some-model"
    loaded = peft.PeftModel.from_pretrained(tiny_llama(), str(folder)).eval()
    with torch.inference_mode():
        assert torch.allclose(loaded(given).logits, expected, atol=1e-6)
