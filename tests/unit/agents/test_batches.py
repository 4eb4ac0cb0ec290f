"""Questions answered several at a time get the answers that they get one at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.models.in_process import CausalModel, InProcessModel, Seq2SeqModel
from fairqr.agents.models.opening import open_generator, require_model
from fairqr.agents.models.replies import Question, Reply
from fairqr.base.errors import ModelUnavailableError
from tests.later import later
from tests.unit.agents.ranking.tiny_models import question, save_t5

torch = later("torch", "neural")

TEXT = "the river runs past a quiet town where people read fair papers of equal merit"
WORDS = TEXT.split()
QUESTIONS = 24


def asked(number: int) -> Question:
    """Return one of the questions, which have many lengths."""
    words = [WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 11)]
    return question(" ".join(words), max_tokens=8)


async def answers_of(model: InProcessModel) -> list[Reply]:
    """Return the replies to all questions, which are asked together."""
    return await asyncio.gather(*(model.write(asked(number)) for number in range(QUESTIONS)))


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("t5"), TEXT, size=120, limit=None)


@pytest.fixture
def batch_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompts are generated together, each time."""
    sizes: list[int] = []
    generate = later("transformers", "neural").GenerationMixin.generate

    def counting(self: Any, *, input_ids: Any, **options: Any) -> Any:
        sizes.append(len(input_ids))
        return generate(self, input_ids=input_ids, **options)

    monkeypatch.setattr("transformers.GenerationMixin.generate", counting)
    return sizes


@pytest.mark.parametrize("batch", [5, 64])
@pytest.mark.parametrize("kind", [CausalModel, Seq2SeqModel])
async def test_texts_are_equal_to_the_token(
    kind: type[CausalModel | Seq2SeqModel],
    batch: int,
    tiny_causal: Path,
    tiny_t5: Path,
    batch_sizes: list[int],
) -> None:
    folder = tiny_causal if kind is CausalModel else tiny_t5
    alone = await answers_of(kind(str(folder)))
    assert batch_sizes == [1] * QUESTIONS
    batch_sizes.clear()
    together = await answers_of(kind(f"{folder}?batch={batch}"))
    assert max(batch_sizes) > 1
    assert sum(batch_sizes) == QUESTIONS
    assert max(batch_sizes) <= batch
    for single, batched in zip(alone, together, strict=True):
        assert single.status == "ok", single.message
        assert (batched.text, batched.usage) == (single.text, single.usage)


async def test_probabilities_are_equal(tiny_causal: Path, batch_sizes: list[int]) -> None:
    """But for rounding."""
    labels = ("A", "B")

    async def chosen(model: CausalModel) -> list[Any]:
        questions = [asked(number) for number in range(QUESTIONS)]
        return await asyncio.gather(
            *(model.choice_probabilities(each_question, labels) for each_question in questions)
        )

    alone = await chosen(CausalModel(str(tiny_causal)))
    batch_sizes.clear()
    together = await chosen(CausalModel(f"{tiny_causal}?batch=8"))
    assert max(batch_sizes) > 1
    for single, batched in zip(alone, together, strict=True):
        assert batched.probabilities == pytest.approx(single.probabilities, rel=1e-5)


async def test_a_question_that_is_too_long_does_not_spoil_the_others(tiny_causal: Path) -> None:
    model = CausalModel(f"{tiny_causal}?batch=8")
    long = question("the river " * 1000, max_tokens=8)

    replies = await asyncio.gather(
        *(model.write(each_question) for each_question in (asked(1), long, asked(2)))
    )

    assert [reply.status for reply in replies] == ["ok", "invalid_request", "ok"]


async def test_who_leaves_does_not_keep_others_waiting(tiny_causal: Path) -> None:
    model = CausalModel(f"{tiny_causal}?batch=2")
    await model.start()
    asking = [asyncio.create_task(model.write(asked(number))) for number in range(QUESTIONS)]
    await asyncio.sleep(0)
    for task in asking[::2]:
        task.cancel()

    replies = await asyncio.gather(*asking, return_exceptions=True)

    assert all(isinstance(reply, asyncio.CancelledError) for reply in replies[::2])
    assert all(isinstance(reply, Reply) and reply.status == "ok" for reply in replies[1::2])


@pytest.mark.parametrize(
    ("options", "dtype"),
    [("", "float32"), ("?dtype=bfloat16", "bfloat16"), ("?device_map=auto", "float32")],
)
async def test_weights_are_kept_as_the_name_says(
    tiny_causal: Path, options: str, dtype: str
) -> None:
    model = CausalModel(f"{tiny_causal}{options}")
    pretrained = await model.pretrained()

    assert pretrained.model.dtype is getattr(torch, dtype)
    assert (await model.write(asked(3))).status == "ok"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("seq2seq:some/model?batch=0", "at batch"),
        ("causal:some/model?dtype=int3", "at dtype"),
        ("causal:some/model?batches=2", "at batches"),
        ("causal:some/model?16", "at 16"),
        ("causal:some/model?device_map=", "at device_map"),
    ],
)
def test_unknown_options_are_refused_at_once(name: str, sentence: str) -> None:
    with pytest.raises(ModelUnavailableError, match=sentence):
        open_generator(name)
    with pytest.raises(ModelUnavailableError, match=sentence):
        require_model(name)
