"""The embedded model, for real: weights pulled, llama.cpp in process, asked over HTTP."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import openai
import pytest

from fairqr.agents.generators import GenerationRequest, ModelGenerator
from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.local import CONTEXT_TOKENS, local_turn, start_local
from fairqr.agents.models.replies import Question
from fairqr.agents.refiners.language_model import LLMRefiner
from fairqr.agents.refiners.refiner import GroupRequest
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.weights import WEIGHTS, weights_path
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from tests.patience import PATIENCE
from tests.servers.local_model import MODEL

BOTH_COMMANDS = (
    r"The embedded model smollm2-135m .* is not installed: run `pip install 'fairqr\[local\]'` "
    r"and `fairqr models pull smollm2-135m`"
)


DOCUMENTS = [
    {"title": "Marie Curie", "text": "A physicist and chemist from Warsaw, who studied rays."},
    {"title": "Frans Hals", "text": "A painter from Antwerp, who painted people of Haarlem."},
    {"title": "Alan Turing", "text": "A mathematician from London, who thought of machines."},
    {"title": "Frida Kahlo", "text": "A painter from Coyoacán, who painted herself."},
]


def short(id_: str, max_tokens: int) -> PromptTemplate:
    """Return a shipped prompt that asks for a shorter answer."""
    prompt = PromptLibrary().get(id_)
    defaults = prompt.defaults.model_copy(update={"max_tokens": max_tokens})
    return prompt.model_copy(update={"defaults": defaults})


@pytest.mark.promise("agents")
@pytest.mark.model
async def test_a_reply_depends_on_no_other_question(
    model_cache: Path,
) -> None:
    """The local model's reply depends on nothing that was asked before or beside it.

    One after the other, and all at once in another order: each question has one answer.

    With keywords, with what is written from documents by prompts that begin alike, and scored.
    """
    model, library = ChatModel(f"local:{MODEL}", timeout=PATIENCE), PromptLibrary()
    refiner, generator = LLMRefiner(model, library.get("refine")), ModelGenerator(model)

    async def keywords(query: str, group: str) -> object:
        return (await refiner.refine(GroupRequest(query, "gender", group))).keywords

    async def text(first: int, question: str) -> object:
        sources = DOCUMENTS[first : first + 2]
        written = await generator.generate(GenerationRequest(short("names", 12), question, sources))
        pair = {"premise": sources[0]["text"], "hypothesis": question}
        scored = await model.choice_probabilities(Question(library.get("attribute"), pair))
        return written.text, scored.probabilities

    asked = [partial(keywords, "sculptor", group) for group in ("female", "male")]
    asked += [partial(text, *it) for it in ((0, "physicist"), (0, "painter"), (1, "physicist"))]
    first = [await ask() for ask in asked]
    backwards = await asyncio.gather(*(ask() for ask in reversed(asked)))
    assert backwards[::-1] == first
    assert any(first[:2])
    assert any(text for text, _ in first[2:])


@pytest.mark.model
async def test_long_documents_fit_into_the_window(model_cache: Path) -> None:
    """Also where the estimate of their tokens is too low, as for other languages than English."""
    text = "Das Parlament hat gestern über die Haushaltsmittel beraten und vertagt. " * 300
    sources = [{"title": f"Sitzung {n}", "text": text} for n in range(4)]
    generator = ModelGenerator(ChatModel(f"local:{MODEL}", timeout=PATIENCE))
    answered = await generator.generate(
        GenerationRequest(short("answer", 4), "Was war gestern? " * 200, sources)
    )
    assert answered.status in ("ok", "empty"), answered.message
    assert 1200 < answered.usage.prompt_tokens < CONTEXT_TOKENS


@pytest.mark.model
async def test_one_question_is_answered_after_the_other(model_cache: Path) -> None:
    """Who waits for its turn has asked nothing yet, and may leave at its deadline."""
    model = ChatModel(f"local:{MODEL}", timeout=PATIENCE)
    values = {"premise": "All is well.", "hypothesis": "It is well."}
    question = Question(PromptLibrary().get("attribute"), values)
    async with local_turn():
        waiting = asyncio.create_task(model.choice_probabilities(question))
        hurried = await model.choice_probabilities(question, deadline=0.1)
        assert hurried.status == "timeout"
        assert not waiting.done()
    choice = await waiting
    assert choice.status == "ok", choice.message
    assert sum(choice.probabilities.values()) == pytest.approx(1)


@pytest.mark.promise("agents")
@pytest.mark.model
async def test_a_stranger_without_the_key_is_refused(model_cache: Path) -> None:
    """The local model's server refuses strangers.

    The one server that all share, however many start it, on loopback alone.
    """
    server, *others = await asyncio.gather(*(start_local(MODEL) for _ in range(8)))
    assert all(other is server for other in others)
    assert server.base_url.startswith("http://127.0.0.1:")
    assert server.api_key not in repr(server)
    stranger = openai.AsyncOpenAI(base_url=server.base_url, api_key="guess", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await stranger.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )


# Asks for a reply that takes many seconds, and says how long its first twenty pieces took.
ASKING = """
import asyncio, sys, time
import openai
from fairqr.agents.models.local import start_local

async def ask(begun):
    server = await start_local("smollm2-135m")
    story = await openai.AsyncOpenAI(
        base_url=server.base_url, api_key=server.api_key
    ).chat.completions.create(
        model="smollm2-135m", messages=[{"role": "user", "content": "Tell a long story."}],
        max_tokens=1900, stream=True, extra_body={"ignore_eos": True})
    began, number = time.monotonic(), 0
    async for _ in story:
        number += 1
        if number == 20:
            print(time.monotonic() - began, flush=True)
            begun.set()

async def main():
    begun = asyncio.Event()
    asking = asyncio.create_task(ask(begun))
    await begun.wait()
    if sys.argv[1] == "waits":
        await asking

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.model
@pytest.mark.parametrize(
    ("sent", "code"), [(None, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)]
)
def test_the_process_ends_at_once_and_says_nothing(
    model_cache: Path, sent: signal.Signals | None, code: int
) -> None:
    command = [sys.executable, "-c", ASKING, "waits" if sent else "ends"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        rest = float(child.stdout.readline()) / 20 * 1880
        begun = time.monotonic()
        if sent is not None:
            child.send_signal(sent)
        said = child.communicate(timeout=PATIENCE)
        took = time.monotonic() - begun
    assert (said, child.returncode) == (("", ""), code)
    assert took < rest / 4, "the reply would take longer"


@pytest.mark.model
async def test_damaged_weights_are_one_sentence(
    pulled_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path))
    path = weights_path(MODEL)
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(WEIGHTS[MODEL].size)
    with pytest.raises(ModelUnavailableError, match=f"run `fairqr models pull {MODEL}`"):
        await start_local(MODEL)


@pytest.mark.promise("base")
@pytest.mark.parametrize("missing", ["weights", "extra"])
async def test_missing_weights_are_not_fetched_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """No weights are downloaded silently.

    Nor the extra; an unknown name is answered with the names.
    """
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path))
    if missing == "extra":
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ModelUnavailableError, match=BOTH_COMMANDS):
        await start_local(MODEL)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ModelUnavailableError, match=r"'gpt-9'.*smollm2-135m"):
        await start_local("gpt-9")


async def test_a_proxy_does_not_stand_between_us_and_the_local_model(
    model_cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    model = ChatModel(f"local:{MODEL}", timeout=PATIENCE)
    question = Question(short("answer", 4), {"question": "Who?", "documents": "none"})
    assert (await model.write(question)).status == "ok"
    assert capfd.readouterr() == ("", "")
