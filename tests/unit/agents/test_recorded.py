"""A model whose replies are in a file: which it finds, what it says of the others, and of files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import ModelGenerator
from fairqr.agents.models.opening import open_generator, open_language_model, open_model
from fairqr.agents.models.recorded import LARGEST, SHIPPED, SHIPPED_NAMES, RecordedModel
from fairqr.agents.models.replies import Question, Usage
from fairqr.agents.ranking.rankers import open_ranker
from fairqr.agents.refiners.language_model import LLMRefiner
from fairqr.agents.refiners.refiner import GroupRequest, Refinement, TopicRequest
from fairqr.base.errors import ModelUnavailableError
from fairqr.prompts.library import PromptLibrary
from tests.unit.prompts.templates import a_prompt

pytestmark = pytest.mark.usefixtures("clean_environment")

REPLIES: dict[str, Any] = {
    "Physicist": {
        "topic": ["quantum", "laboratory"],
        "queries": ["who studied the atom"],
        "passage": "A physicist of the atom.",
        "groups": {
            "gender=female": {
                "keywords": ["she", "her"],
                "phrases": ["woman physicist"],
                "names": ["Lise Meitner"],
                "passage": "She split the atom.",
            },
            "gender=male": {"names": []},
        },
    },
    "physicist  and engineer": {"topic": ["patent"]},
    "été": {"topic": ["soleil"]},
}


def write(folder: Path, content: object, name: str = "replies.json") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path, REPLIES)


def refiner(file: str, refine: str = "v5", topic: str = "v2") -> LLMRefiner:
    model = open_language_model(f"recorded:{file}")
    prompts = PromptLibrary()
    return LLMRefiner(model, prompts.get("refine", refine), prompts.get("topic", topic))


async def topic_of(file: str, query: str) -> Refinement:
    return await refiner(file).refine_topic(TopicRequest(query))


async def group_of(file: str, group: str, version: str = "v5") -> Refinement:
    return await refiner(file, version).refine(GroupRequest("physicist", "gender", group))


@pytest.mark.parametrize(
    ("query", "topic"),
    [
        ("physicist", "quantum"),
        ("PHYSICIST", "quantum"),
        ("physicist atom particle", "quantum"),
        ("physicist, atom", "quantum"),
        ("  Physicist \n AND   engineer of Berlin ", "patent"),
        ("physicist and engineers", "quantum"),
        ("e\u0301te\u0301 1900", "soleil"),
    ],
)
async def test_the_longest_key_that_a_query_begins_with_counts(
    file: str, query: str, topic: str
) -> None:
    """Whole words count; a title with ten keywords begins with it."""
    refinement = await topic_of(file, query)
    assert refinement.status == "ok"
    assert refinement.topic[0] == topic


@pytest.mark.parametrize("query", ["physicists", "a physicist", "chemist"])
async def test_a_query_without_replies_is_a_failure_that_names_it(file: str, query: str) -> None:
    refinement = await topic_of(file, query)
    assert (refinement.status, refinement.usage) == ("invalid_request", Usage())
    assert refinement.message == (
        f"The file replies.json has no replies for the query '{query}'; add them, or name another "
        "model."
    )


async def test_a_prompt_about_a_group_gets_the_fields_that_it_asks_for(file: str) -> None:
    large = await group_of(file, "female")
    assert large.keywords == ("she", "her")
    assert large.phrases == ("woman physicist",)
    assert large.names == ("Lise Meitner",)
    assert large.passage == "She split the atom."
    assert large.topic == ()
    small = await group_of(file, "female", "v4")
    assert (small.topic, small.keywords) == (("quantum", "laboratory"), ("she", "her"))
    assert (small.phrases, small.names, small.passage) == ((), (), "")


async def test_a_topic_prompt_gets_the_fields_that_it_asks_for(file: str) -> None:
    large = await topic_of(file, "physicist")
    assert large.topic == ("quantum", "laboratory")
    assert large.queries == ("who studied the atom",)
    assert large.passage == "A physicist of the atom."
    small = await refiner(file, topic="v1").refine_topic(TopicRequest("physicist"))
    assert (small.topic, small.queries, small.passage) == (large.topic, (), "")
    partial = await topic_of(file, "physicist and engineer")
    assert (partial.status, partial.queries, partial.passage) == ("ok", (), "")


async def test_missing_groups_and_fields_are_named(file: str, tmp_path: Path) -> None:
    unknown = await group_of(file, "other")
    assert unknown.status == "invalid_request"
    assert "no replies for the group gender=other of the query 'physicist'" in unknown.message
    # No name was known, which is a reply; of the other fields nothing was recorded.
    assert (await group_of(file, "male")).status == "empty"
    bare = write(tmp_path, {"physicist": {"groups": {"gender=male": {}}}}, "bare.json")
    nothing = await group_of(bare, "male")
    assert nothing.status == "invalid_request"
    assert "none of the fields keywords, phrases, names, passage for the group" in nothing.message


async def test_a_group_is_found_without_its_attribute(file: str) -> None:
    prompt = a_prompt("{query} {group}", "query", "group", output=("keywords",))
    asks_without_attribute = LLMRefiner(RecordedModel(file), prompt)

    request = GroupRequest("physicist", "gender", "Female")

    assert (await asks_without_attribute.refine(request)).keywords == ("she", "her")


async def test_a_reply_costs_no_calls_and_no_tokens_however_often(file: str) -> None:
    model = RecordedModel(file)
    asks = LLMRefiner(model, PromptLibrary().get("refine"))

    request = GroupRequest("physicist", "gender", "female", seed=3, temperature=1.0)

    for _ in range(2):
        assert (await asks.refine(request)).usage == Usage(cached_calls=1)


async def test_the_fingerprint_follows_the_content(file: str, tmp_path: Path) -> None:
    first = RecordedModel(file)
    assert first.name == "recorded:replies.json"
    assert RecordedModel(file).fingerprint == first.fingerprint
    write(tmp_path, REPLIES | {"chemist": {}})
    second = RecordedModel(file)
    assert second.fingerprint != first.fingerprint
    assert second.profiled_as != first.profiled_as, "what was measured of one holds for one"
    copied = tmp_path / "mine.json"
    copied.write_bytes((SHIPPED / "notables.json").read_bytes())
    assert RecordedModel(str(copied)).profiled_as == "recorded:notables"
    await first.check()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is wrong (Invalid JSON: EOF"),
        (b"\xff\xfe", "is wrong (Invalid JSON"),
        (b"[" * 10_000, "is wrong (Invalid JSON"),
        ([], "is wrong (Input should be an object"),
        ({}, "is empty"),
        ({"physicist": []}, "is wrong at 'physicist'"),
        ({"physicist": {"topic": "quantum"}}, "is wrong at 'physicist.topic'"),
        ({"physicist": {"topic": [1]}}, "is wrong at 'physicist.topic.0'"),
        ({"physicist": {"words": []}}, "is wrong at 'physicist.words' (there is no such"),
        ({"a": {"groups": {"g=b": {"topic": []}}}}, "is wrong at 'a.groups.g=b.topic'"),
        ({" \u200b": {}}, "has an empty query"),
        ({"Physicist": {}, "physicist ": {}}, "has the query 'physicist' twice"),
    ],
)
def test_a_file_of_another_form_is_one_sentence(
    tmp_path: Path, content: object, words: str
) -> None:
    file = write(tmp_path, content)
    with pytest.raises(ModelUnavailableError) as raised:
        open_model(f"recorded:{file}")
    message = str(raised.value)
    assert words in message
    assert message.startswith(f"The file of replies {file} ")
    assert message.endswith("each with topic, queries, passage or groups.")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("./none.json", "cannot be read (No such file or directory)", id="no file"),
        pytest.param("./", "is a folder or no plain file", id="a folder"),
        pytest.param("./pipe", "is a folder or no plain file", id="a pipe"),
        pytest.param(
            "./large.json",
            "has 20,000,001 bytes, more than 20,000,000; split it",
            id="a large file",
        ),
        pytest.param("a\0b", "cannot be read (no file can have this name)", id="no name"),
        pytest.param("x" * 5000, "cannot be read (File name too long)", id="a long name"),
        pytest.param("", "lacks a model; write it like recorded:notables", id="nothing"),
    ],
)
def test_what_is_no_file_is_one_sentence(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", LARGEST + 1)
    os.mkfifo(tmp_path / "pipe")
    # Paths are told from names of shipped files by what they begin with.
    path = f"{tmp_path}{name[1:]}" if name.startswith("./") else name

    with pytest.raises(ModelUnavailableError) as raised:
        open_language_model(f"recorded:{path}")

    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_recorded_replies_only_refine(file: str) -> None:
    """Generators, judges and rankers of them are refused."""
    model = RecordedModel(file)
    refusal = "so it only refines queries; name a chat"

    with pytest.raises(ModelUnavailableError, match=refusal):
        open_generator(f"recorded:{file}")
    with pytest.raises(ModelUnavailableError, match=refusal):
        open_attributor(f"llm:recorded:{file}")
    with pytest.raises(ModelUnavailableError, match=refusal):
        await ModelGenerator(model).start()
    with pytest.raises(ModelUnavailableError, match=refusal):
        await open_ranker("listwise", model).start()


async def test_recorded_replies_answer_no_other_prompt(file: str) -> None:
    model = RecordedModel(file)
    question = Question(a_prompt("{query}", "query", id="answer"), {"query": "physicist"})

    asked = await model.ask(question)
    written = await model.write(question)
    choice = await model.choice_probabilities(question)

    assert asked.status == written.status == choice.status == "unsupported"
    assert "so it only refines queries" in asked.message
    assert "so it only refines queries" in written.message


@pytest.mark.parametrize("name", SHIPPED_NAMES)
async def test_each_query_and_group_of_a_shipped_file_has_replies(name: str) -> None:
    model = open_model(f"recorded:{name}")
    assert isinstance(model, RecordedModel)
    assert model.name == f"recorded:{name}"
    asks = refiner(name)
    recorded = json.loads((SHIPPED / f"{name}.json").read_bytes())
    for query, replies in recorded.items():
        topic = await asks.refine_topic(TopicRequest(f"{query.upper()} and ten keywords"))
        assert topic.status == "ok", query
        for key, reply in replies["groups"].items():
            attribute, _, group = key.partition("=")
            refinement = await asks.refine(GroupRequest(query, attribute, group))
            assert refinement.status == "ok", (query, key)
            assert len(refinement.names) >= len(reply["names"]) - len(refinement.left_out)


def test_the_names_of_shipped_files_are_those_of_the_folder() -> None:
    assert sorted(SHIPPED_NAMES) == sorted(path.stem for path in SHIPPED.glob("*.json"))
