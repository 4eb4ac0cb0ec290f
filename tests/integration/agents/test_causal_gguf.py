"""The embedded weights as a causal model of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.agents.models.in_process import CausalModel, encode
from tests.later import later
from tests.unit.agents.ranking.tiny_models import question

pytestmark = pytest.mark.model
torch = later("torch", "tune")
transformers = later("transformers", "tune")
later("gguf", "tune")


async def test_the_weights_of_llama_cpp_are_read(
    model_cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They score labels and write; names of bases and adapters are tested with tiny models."""
    file = next((model_cache / "weights").glob("*.gguf"))
    model = CausalModel(str(file))
    await model.start()
    assert capfd.readouterr() == ("", ""), "no bars, no warnings"
    assert model.context_tokens == 8192
    pretrained = await model.pretrained()
    tokenizer = pretrained.tokenizer
    prompted = question("bread", max_tokens=6)
    tokens = encode(tokenizer, prompted.prompt.render(prompted.values))
    assert tokenizer.decode(tokens).endswith("<|im_end|>\n<|im_start|>assistant\n")
    choice = await model.choice_probabilities(prompted, ("A", "B"))
    assert (choice.status, choice.usage.prompt_tokens) == ("ok", len(tokens))
    assert choice.mass > 0.1
    assert (await model.write(prompted)).status == "ok"
