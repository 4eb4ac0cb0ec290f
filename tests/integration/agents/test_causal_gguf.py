"""The embedded weights as a causal model of transformers, and an adapter on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.in_process import CausalModel, encode
from tests.unit.agents.ranking.tiny_models import question

pytestmark = pytest.mark.model
torch: Any = pytest.importorskip("torch", reason="needs the extra tune")
transformers: Any = pytest.importorskip("transformers", reason="needs the extra tune")
pytest.importorskip("gguf", reason="needs the extra tune")


async def test_the_weights_of_llama_cpp_are_read_and_adapted(
    model_cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By path and by name; an adapter of zeros leaves every probability as it was."""
    peft: Any = pytest.importorskip("peft", reason="needs the extra tune")
    file = next((model_cache / "weights").glob("*.gguf"))
    model = CausalModel(str(file))
    await model.start()
    assert capfd.readouterr() == ("", ""), "no bars, no warnings"
    assert model.context_tokens == 8192
    pretrained = await model.pretrained()
    tokenizer = pretrained.tokenizer
    asked = question("bread", max_tokens=6)
    tokens = encode(tokenizer, asked.prompt.render(asked.values))
    assert tokenizer.decode(tokens).endswith("<|im_end|>\n<|im_start|>assistant\n")
    choice = await model.weigh(asked, ("A", "B"))
    assert (choice.status, choice.usage.prompt_tokens) == ("ok", len(tokens))
    assert choice.mass > 0.1
    assert (await model.write(asked)).status == "ok"

    folder = tmp_path / "adapter"
    config = peft.LoraConfig(r=1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(pretrained.model, config)
    tuned.save_pretrained(folder)
    tuned.unload()
    # The name of the base is that of the embedded weights.
    about = folder / "adapter_config.json"
    named = {"base_model_name_or_path": "smollm2-135m"}
    about.write_text(json.dumps(json.loads(about.read_text()) | named))
    adapted = CausalModel(str(folder))
    assert await adapted.weigh(asked, ("A", "B")) == choice
    weights = dict((await adapted.pretrained()).model.named_parameters())
    assert any("lora_" in name for name in weights)
    assert capfd.readouterr() == ("", "")
