"""``fairqr answer`` against a real HTTP server, and over real indexes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from fairqr import AnswerResult, build_answer_graph, open_engine
from fairqr.agents.models.chat import ChatModel
from fairqr.graph.answer.context import AnswerContext
from fairqr.retrieval.engines.engine import SearchEngine
from tests.patience import PATIENCE
from tests.servers.model_server import (
    Answer,
    Asked,
    Command,
    Main,
    ModelServer,
    failure,
    says,
    stream,
    write_people,
)


@pytest.fixture
async def engine(people: Path) -> AsyncIterator[SearchEngine]:
    engine = await open_engine(str(people))
    yield engine
    await engine.aclose()


@pytest.fixture
def model(model_server: ModelServer) -> ChatModel:
    return ChatModel("openai:fake", base_url=model_server.base_url)


def arguments(server: ModelServer, corpus: Path | str, *more: str) -> Sequence[str | Path]:
    model = ["--model", "openai:fake", "--base-url", server.base_url]
    return ["answer", "Which physicist?", "--corpus", corpus, *model, *more]


def named(asked: Asked) -> Answer:
    """An answer that names the first person of the documents."""
    found = re.search(r"Person \d+", asked.last_message)
    return says(f"It was {found[0] if found else 'nobody'}.")


@pytest.mark.promise("graph")
def test_one_sample_is_one_call_and_names_the_sources_it_used(
    command: Command, quick: Main, model_server: ModelServer, people: Path
) -> None:
    """Each sample of an answer is one call, and an answer's figures are those of its samples."""
    model_server.does(named)
    seeded = ("--seed", "3", "--set", "answer.temperature=0.7")
    asked = arguments(model_server, people, "--attribute", "gender", *seeded)
    run = command(*asked, "--json")
    assert run.code == 0, run.stderr
    result = AnswerResult.model_validate(run.result)
    (sent,) = model_server.asked
    assert (sent.body["temperature"], sent.body["seed"]) == (0.7, 3)
    (answer,) = result.answers
    assert len(answer.ids) == 5
    titles = {d.id: d.title for d in result.ranking}
    assert answer.text == f"It was {titles[answer.ids[0]]}."
    assert answer.used[0] is True
    prompt = sent.last_message
    places = [prompt.index(titles[id_]) for id_ in answer.ids]
    assert places == sorted(places)
    assert "Which physicist?" in prompt
    assert (result.generator, result.attributor) == ("openai:fake", "overlap")
    assert (result.pool, result.documents, result.seed) == (20, 5, 3)
    assert "never checked" in run.stderr

    again = quick(*asked, "--verbose")  # from the cache, for people
    assert again.code == 0, again.stderr
    assert len(model_server.asked) == 1
    lines = again.stdout.splitlines()
    assert lines[0].startswith("female: 0% of what was read and 0% of what was used")
    place = lines.index("Which physicist?")
    assert lines[place : place + 2] == ["Which physicist?", answer.text]
    assert sum(line.lstrip()[:1].isdigit() for line in lines) == 5
    assert "✓" in again.stdout
    assert "from the cache" in again.stdout

    refined = quick(*asked, "--method", "fair-qr").stdout
    order = [refined.index(part) for part in ("\nround ", "\nEnded: ", "\nWhich physicist?\n")]
    assert order == sorted(order)


@pytest.mark.promise("graph")
def test_samples_that_fail_are_said_and_the_rest_counts(
    quick: Main, model_server: ModelServer, people: Path
) -> None:
    """Failed samples are counted, and the rest counts."""

    def some(asked: Asked) -> Answer:
        answer = named(asked)
        text = json.loads(answer.body)["choices"][0]["message"]["content"]
        if "Person 1." in text:
            return failure(400, "No.")
        return says("  ") if "Person 2." in text else answer

    model_server.does(some)
    more = ["--pool", "3", "-k", "1", "--alpha", "0", "--samples", "60", "--seed", "1"]
    run = quick(*arguments(model_server, people, *more, "--json"))
    assert run.code == 0, run.stderr
    result = AnswerResult.model_validate(run.result)
    lost = Counter[str]()
    for answer in result.answers:
        lost[answer.status] += answer.samples
    assert result.counts.answered == lost.pop("ok")
    assert set(lost) == {"invalid_request", "empty"}
    assert result.counts.failed == lost
    assert f"{lost.total()} of 60 samples have no answer" in run.stderr
    shown = quick(*arguments(model_server, people, *more))
    assert "none (invalid request)" in shown.stdout
    assert "none (empty)" in shown.stdout


@pytest.mark.promise("graph")
@pytest.mark.parametrize("reply", [failure(400, "No."), says("   ")])
def test_without_an_answer_the_command_says_why(
    quick: Main, model_server: ModelServer, people: Path, reply: Answer
) -> None:
    """Only where no answer came is it an error, which says why."""
    model_server.does(reply)
    run = quick(*arguments(model_server, people, "--samples", "2"))
    assert "openai:fake" in run.complaint()


def test_a_small_corpus_takes_part_as_a_whole(
    quick: Main, model_server: ModelServer, clean_environment: Path
) -> None:
    def few(document: dict[str, Any]) -> dict[str, Any] | None:
        return document if document["id"] < "p03" else None

    corpus = write_people(clean_environment / "few", few)
    model_server.does(named)
    run = quick(*arguments(model_server, corpus, "--json"))
    assert run.code == 0, run.stderr
    assert (run.result["pool"], run.result["documents"]) == (3, 3)
    assert "lower --pool" in quick(*arguments(model_server, corpus, "--pool", "9")).complaint()


@pytest.mark.promise("prompts")
def test_more_documents_than_a_prompt_can_show_are_refused(
    quick: Main, model_server: ModelServer, people: Path
) -> None:
    """The model is not asked where a prompt cannot show every document.

    None of them counts as read by an answer; with a longer prompt all are.
    """
    model_server.does(named)
    asked = arguments(model_server, people, "-k", "60")  # a pool is at least what is read
    complaint = quick(*asked, "--set", "input_tokens=600").complaint()
    assert re.search(r"only has room for \d+ of the 60 documents; lower k, raise", complaint)
    assert model_server.asked == []
    run = quick(*asked, "--json")
    assert run.code == 0, run.stderr
    assert run.result["documents"] == model_server.asked[0].last_message.count("Person") == 60


def test_a_context_that_is_too_small_is_one_sentence(
    quick: Main, model_server: ModelServer, people: Path
) -> None:
    reason = "the request exceeds the available context size, try increasing it"
    model_server.does(failure(400, reason, "exceed_context_size_error"))
    complaint = quick(*arguments(model_server, people)).complaint()
    assert f"(400: {reason}); let it read fewer documents, lower input_tokens" in complaint


@pytest.mark.parametrize("given", [False, True])
async def test_the_stream_of_messages_has_the_answer_once(
    model_server: ModelServer, engine: SearchEngine, model: Any, given: bool
) -> None:
    """Keywords are for the program; also with a model of LangChain's that has its own settings."""

    def reply(asked: Asked) -> Answer:
        if asked.body.get("stream"):
            return stream(["It ", "was ", "she."])
        return says({"topic": ["physics"], "keywords": ["laboratory"]})

    model_server.does(reply)
    if given:
        model = ChatOpenAI(model="fake", base_url=model_server.base_url, api_key="none")  # type: ignore[arg-type]
    context = AnswerContext.of(
        attribute="gender", method="fairqr", ask="always", max_iterations=1, k=5, stream=True
    )
    graph = build_answer_graph(engine, model, context=context)
    pieces: list[str] = []
    told: set[str] = set()
    modes: Any = ["messages", "updates"]
    async for _, mode, update in graph.astream(
        {"query": "physicist"}, stream_mode=modes, subgraphs=True
    ):
        if mode == "messages":
            chunk, about = update
            assert about["langgraph_node"] == "generate"
            pieces.append(chunk.text)
        else:
            told |= update.keys()
    assert "".join(pieces) == "It was she."
    assert len(pieces) == 3
    assert {"refine", "sample", "generate", "summarize"} <= told
    # About the topic, about each group, and the question itself.
    streamed = [bool(asked.body.get("stream")) for asked in model_server.asked]
    assert streamed == [False, False, False, True]


@pytest.mark.parametrize("whole", [True, False])
def test_a_terminal_shows_the_answer_while_it_is_written(
    command: Command, model_server: ModelServer, people: Path, whole: bool
) -> None:
    """Below who is read; one that breaks off stays, a sentence below it, and is not begun again."""
    model_server.does(stream(["It ", "was ", "she."], "stop" if whole else None))
    code, shown = on_terminal(command, arguments(model_server, people))
    assert code == (0 if whole else 2), shown
    (asked,) = model_server.asked
    assert asked.body["stream"] is True
    meanwhile, last = (find("It was she.") for find in (shown.index, shown.rindex))
    if whole:
        assert meanwhile < shown.index("of what was read") < last
    else:
        *_, begun, complaint = shown.splitlines()
        assert meanwhile < last
        assert begun.rstrip().endswith("It was she.")
        assert re.fullmatch(r"fairqr: .+\.", complaint)


def on_terminal(command: Command, arguments: Sequence[str | Path]) -> tuple[int, str]:
    """Run the command on a terminal; return its exit code and all that stands there."""
    mine, theirs = pty.openpty()
    run = subprocess.Popen(
        [command.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    while piece := _read(mine):
        shown += piece
    os.close(mine)
    return run.wait(timeout=PATIENCE), shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # so Linux says that the other end is closed
        return b""
