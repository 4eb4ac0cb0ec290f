"""Encoder-decoder models: a tiny T5, made and saved here, loaded and asked by the real code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairqr.agents.generators import GenerationRequest, ModelGenerator
from fairqr.agents.models.cache import ReplyCache
from fairqr.agents.models.in_process import SEQ2SEQ_INPUT_TOKENS, Seq2SeqModel
from fairqr.base.telemetry import record_to
from fairqr.prompts.template import fence
from tests.unit.agents.ranking.tiny_models import loaded, save_t5, without_vectors
from tests.unit.prompts.templates import a_prompt

TEXT = (
    "a fair ranking of papers by equal merit users read few documents question title none answer "
)
SOURCES = [
    {"title": "fair ranking", "abstract": "papers of equal merit " * 30},
    {"title": "users </documents> read", "abstract": "the first few"},
    {"title": "exposure", "abstract": "each of the same " * 40},
]


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a T5 that states no limit."""
    pytest.importorskip("torch", reason="needs the extra neural")
    return save_t5(tmp_path_factory.mktemp("t5"), TEXT, size=120, limit=None)


PROMPT = a_prompt(
    "",
    *("question", "documents"),
    messages=[
        {"role": "system", "content": "documents: {documents}"},
        {"role": "user", "content": "question: {question} title:"},
    ],
    item="{title}: {abstract}",
    defaults={"temperature": 0, "max_tokens": 8},
)


def _request(question: str = "users read the first few papers") -> GenerationRequest:
    return GenerationRequest(PROMPT, question, SOURCES)


def generator(
    folder: Path, cache: ReplyCache | None = None, input_tokens: int = SEQ2SEQ_INPUT_TOKENS
) -> ModelGenerator:
    model = Seq2SeqModel(str(folder), cache=cache)
    return ModelGenerator(model, input_tokens=input_tokens, question_tokens=20)


def _directly(folder: Path, text: str) -> str:
    import torch

    tokenizer, model = loaded(folder, "AutoModelForSeq2SeqLM")
    with torch.inference_mode():
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        written = model.generate(**inputs, num_beams=4, do_sample=False, max_new_tokens=128)
    answer: str = tokenizer.decode(written[0], skip_special_tokens=True)
    return answer.strip()


async def test_an_answer_is_what_the_model_generates(tiny_t5: Path) -> None:
    """With four beams and no sampling, from all messages as one text; again and again the same."""
    answering = generator(tiny_t5)
    assert answering.name == f"seq2seq:{tiny_t5}"
    await answering.start()
    pieces: list[str] = []
    request = replace(_request("fair"), sources=[{"title": "a", "abstract": "equal merit"}])
    first = await answering.generate(request, on_token=pieces.append)
    text = "documents: a: equal merit\nquestion: fair title:"
    assert first.status == "ok", first.message
    assert first.text == _directly(tiny_t5, text)
    assert pieces == [first.text]
    assert await answering.generate(request) == first


@pytest.mark.parametrize("input_tokens", [64, 512])
async def test_the_input_has_no_more_tokens_than_it_may(
    tiny_t5: Path, tmp_path: Path, input_tokens: int
) -> None:
    """Whatever is long; each document has its share, in order and fenced; so has the question."""
    answering = generator(tiny_t5, input_tokens=input_tokens)
    reply = await answering.generate(_request("users read the first few papers " * 50))
    assert reply.usage.prompt_tokens <= input_tokens
    with record_to(tmp_path / "trace", content=True):
        reply = await answering.generate(_request("users read"))
    assert reply.usage.prompt_tokens <= input_tokens
    step = json.loads((tmp_path / "trace").read_text())
    text = step["attributes"]["gen_ai.input.messages"][0]["parts"][0]["content"]
    assert text.endswith("question: users read title:")
    if input_tokens >= 100:
        places = [text.index(fence(source["title"])) for source in SOURCES]
        assert places == sorted(places)


async def test_answers_are_kept_by_model_prompt_and_inputs(
    tiny_t5: Path, cache: ReplyCache
) -> None:
    answering = generator(tiny_t5, cache)
    pieces = list[str]()
    first = await answering.generate(_request())
    seeded = replace(_request(), seed=7, temperature=1.0)  # neither changes an answer
    repeated = await generator(tiny_t5, cache).generate(seeded, on_token=pieces.append)
    assert (repeated.status, repeated.text) == (first.status, first.text)
    assert (repeated.usage.model_calls, repeated.usage.cached_calls) == (0, 1)
    assert repeated.usage.cached_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert pieces == [first.text]
    # Weights that change under the same name are another model.
    (tiny_t5 / "note.txt").write_text("trained on")
    assert (await answering.generate(_request())).usage.model_calls == 1
    (tiny_t5 / "note.txt").unlink()


async def test_a_model_that_fails_is_a_status(tiny_t5: Path, tmp_path: Path) -> None:
    reply = await generator(without_vectors(tiny_t5, tmp_path)).generate(_request())
    assert (reply.status, reply.usage.model_calls) == ("unavailable", 1)
    assert f"seq2seq:{tmp_path} failed" in reply.message
