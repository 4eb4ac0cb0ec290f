"""Tiny models of the real architectures with random weights, made and saved on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.replies import Question
from tests.unit.prompts.templates import a_prompt

TEXT = (
    "a fair ranking of papers gives each of equal merit the same exposure and users read the first "
    "few titles of an abstract passage A or B yes no true false which is more relevant to a query "
    "female physicist who studied the river and the old stone house Query: Document: Relevant: "
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 256
LIMIT = 48
"""Tokens that the tiny monoT5 and monoBERT read."""


MESSAGES = [
    {"role": "system", "content": "which passage is more relevant"},
    {"role": "user", "content": "query: a fair ranking"},
]


def question(query: str = "a fair ranking", *, max_tokens: int = 8, **options: Any) -> Question:
    messages = [MESSAGES[0], {"role": "user", "content": "query: {query}"}]
    defaults = {"temperature": 0, "max_tokens": max_tokens}
    prompt = a_prompt("", "query", messages=messages, defaults=defaults)
    return Question(prompt, {"query": query}, **options)


def loaded(folder: Path, kind: str) -> tuple[Any, Any]:
    """Return the tokenizer and the model in a folder, loaded by a class of transformers."""
    import transformers

    model = getattr(transformers, kind).from_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder), model.eval()


def tiny_llama(words: int = 20, width: int = 16, heads: int = 2, **settings: Any) -> Any:
    """Return a Llama of two layers, always with the same weights."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        **{"max_position_embeddings": 32} | settings,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()


def save_causal(folder: Path, *, context: int = CONTEXT) -> Path:
    """Save a Llama of two layers with a byte-level tokenizer.

    Args:
        folder: Where.
        context: How many tokens it reads and writes.
    """
    import tokenizers
    import transformers

    pieces = tokenizers.Tokenizer(tokenizers.models.BPE())
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator([TEXT] * 3, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        bos_token="<|begin|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    more = {"initializer_range": 0.6, "bos_token_id": 0, "eos_token_id": 2}
    llama = tiny_llama(len(tokenizer), 32, 4, max_position_embeddings=context, **more)
    llama.save_pretrained(folder)
    return folder


def with_adapter(base: Path, folder: Path, *, scale: float = 0.0) -> Path:
    """Save an adapter of LoRA for a model; one that changes nothing where the scale is 0."""
    import torch
    import transformers

    peft = pytest.importorskip("peft", reason="needs the extra tune")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        config = peft.LoraConfig(
            r=1, lora_alpha=1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        )
        tuned = peft.get_peft_model(model, config)
        with torch.no_grad():
            for name, weight in tuned.named_parameters():
                if "lora_B" in name:
                    weight.copy_(torch.randn_like(weight) * scale)
    tuned.save_pretrained(folder)
    return folder


def save_t5(folder: Path, text: str = TEXT, size: int = 400, limit: int | None = LIMIT) -> Path:
    """Save a T5 of two layers whose tokenizer is trained on a text; so it can be a monoT5.

    Args:
        folder: Where.
        text: Of :data:`TEXT` it has the pieces ``▁true`` and ``▁false``.
        size: The most pieces of the tokenizer.
        limit: How many tokens it reads; None for no limit.
    """
    import tokenizers
    import torch
    import transformers

    pieces = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    pieces.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False
    )
    pieces.train_from_iterator([text] * 3, trainer)
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=limit,
    ).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = transformers.T5Config(
            vocab_size=pieces.get_vocab_size(),
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            initializer_factor=4.0,
            decoder_start_token_id=0,
            eos_token_id=1,
            pad_token_id=0,
        )
        transformers.T5ForConditionalGeneration(config).eval().save_pretrained(folder)
    return folder


def without_vectors(t5: Path, folder: Path) -> Path:
    """Save a T5 with fewer vectors than its tokenizer has pieces: it fails."""
    import transformers

    transformers.AutoTokenizer.from_pretrained(t5).save_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(t5)
    config.vocab_size = 10
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def without_numbers(bert: Path, folder: Path) -> Path:
    """Save a BERT again whose scores are no numbers."""
    import torch
    import transformers

    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(bert)
    with torch.no_grad():
        model.classifier.bias.fill_(float("nan"))
    model.save_pretrained(folder)
    return folder


def save_bert(folder: Path, kind: str, text: str = TEXT, **more: Any) -> Path:
    """Save a BERT of two layers that knows the words of a text, as a class of transformers."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(text.lower().split()))]
    words += [letter for letter in letters if letter not in words]
    words += [f"##{letter}" for letter in letters]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(
        str(folder / "vocab.txt"), do_lower_case=True, model_max_length=LIMIT
    ).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        size = {"hidden_size": 16, "intermediate_size": 32, "initializer_range": 0.8}
        config = transformers.BertConfig(
            vocab_size=len(words),
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LIMIT,
            **size | more,
        )
        getattr(transformers, kind)(config).eval().save_pretrained(folder)
    return folder


def save_monobert(folder: Path, *, classes: int = 2) -> Path:
    """Save a BERT that classifies pairs."""
    return save_bert(folder, "BertForSequenceClassification", num_labels=classes)


@pytest.fixture(scope="session")
def tiny_causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama, not to be changed."""
    pytest.importorskip("torch", reason="needs the extra neural")
    return save_causal(tmp_path_factory.mktemp("causal") / "tiny")


@pytest.fixture(scope="session")
def tiny_monot5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a monoT5, not to be changed."""
    pytest.importorskip("torch", reason="needs the extra neural")
    return save_t5(tmp_path_factory.mktemp("monot5") / "tiny")


@pytest.fixture(scope="session")
def tiny_monobert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a monoBERT, not to be changed."""
    pytest.importorskip("torch", reason="needs the extra neural")
    return save_monobert(tmp_path_factory.mktemp("monobert") / "tiny")
