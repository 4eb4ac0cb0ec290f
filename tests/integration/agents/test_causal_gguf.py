"""The embedded weights as a causal model of transformers, and an adapter on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.in_process import CausalModel, encode, label_tokens
from tests.unit.agents.ranking.tiny_models import question

pytestmark = pytest.mark.model
torch: Any = pytest.importorskip("torch", reason="needs the extra tune")
transformers: Any = pytest.importorskip("transformers", reason="needs the extra tune")
pytest.importorskip("gguf", reason="needs the extra tune")

LETTERS = (("A", "B"), ("Yes", "No"))


async def test_the_weights_of_llama_cpp_are_read_and_adapted(
    model_cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By path and by name; the choice is that of a pass of the model, greedy text its own.

    An adapter of zeros leaves every probability as it was, and one that is not is told apart.
    """
    peft: Any = pytest.importorskip("peft", reason="needs the extra tune")
    file = next((model_cache / "weights").glob("*.gguf"))
    model = CausalModel(str(file))
    await model.start()
    assert capfd.readouterr() == ("", ""), "no bars, no warnings"
    assert model.context_tokens == 8192
    pretrained = await model.pretrained()
    tokenizer = pretrained.tokenizer
    asked = question("bread", max_tokens=6)
    given = torch.tensor([encode(tokenizer, asked.prompt.render(asked.values))])
    assert tokenizer.decode(given[0]).endswith("<|im_end|>\n<|im_start|>assistant\n")
    with torch.inference_mode():
        shares = pretrained.model(given).logits[0, -1].double().softmax(-1)
    for labels in LETTERS:
        choice = await model.weigh(asked, labels)
        assert choice.status == "ok", choice.message
        masses = {}
        for label in labels:
            forms = {space + word for space in ("", " ") for word in (label, label.lower())}
            tokens = {tuple(tokenizer(form)["input_ids"]) for form in forms}
            masses[label] = sum(float(shares[it[0]]) for it in tokens if len(it) == 1)
        for label in labels:
            expected = masses[label] / sum(masses.values())
            assert choice.probabilities[label] == pytest.approx(expected, abs=1e-3)
        assert choice.usage.prompt_tokens == given.shape[1]
    assert tokenizer.batch_decode([[it] for it in label_tokens(tokenizer, ("A", "B"))]) == [
        "A",
        "B",
    ]
    with torch.inference_mode():
        output = pretrained.model.generate(given, do_sample=False, max_new_tokens=6)
    told = tokenizer.decode(output[0, given.shape[1] :], skip_special_tokens=True)
    assert (await model.write(asked)).text == told.strip()

    folder = tmp_path / "adapter"
    config = peft.LoraConfig(
        r=1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=True
    )
    tuned = peft.get_peft_model(pretrained.model, config)
    tuned.save_pretrained(folder)
    tuned.unload()
    # The name of the base is that of the embedded weights.
    file_of_config = folder / "adapter_config.json"
    config_ = json.loads(file_of_config.read_text())
    file_of_config.write_text(json.dumps(config_ | {"base_model_name_or_path": "smollm2-135m"}))
    adapted = CausalModel(str(folder))
    same = await adapted.weigh(asked, ("A", "B"))
    assert same == await model.weigh(asked, ("A", "B"))
    loaded = await adapted.pretrained()
    assert sum(p.numel() for n, p in loaded.model.named_parameters() if "lora_" in n) > 10_000
    assert capfd.readouterr() == ("", "")
