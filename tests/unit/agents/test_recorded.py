"""A model whose replies are in a file: which it finds, what it says of the others, and of files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import ModelGenerator
from fairqr.agents.models.cache import ReplyCache
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
    """By whole words; as a title with ten keywords does."""
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


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.touch()
    os.truncate(large, LARGEST + 1)
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        str(tmp_path / "none.json"): "cannot be read (No such file or directory)",
        str(tmp_path): "is a folder or no plain file",
        str(tmp_path / "pipe"): "is a folder or no plain file",
        str(large): "has 20,000,001 bytes, more than 20,000,000; split it",
        "a\0b": "cannot be read (no file can have this name)",
        "x" * 5000: "cannot be read (File name too long)",
        "": "lacks a model; write it like recorded:notables",
    }.items():
        with pytest.raises(ModelUnavailableError) as raised:
            open_language_model(f"recorded:{name}")
        assert words in str(raised.value)
        assert str(raised.value).count("\n") == 0


async def test_it_only_refines(file: str, cache: ReplyCache) -> None:
    """Whoever asks it for anything else is told so, before and while it is asked."""
    name = f"recorded:{file}"
    model = RecordedModel(file)
    for opened in (lambda: open_generator(name), lambda: open_attributor(f"llm:{name}")):
        with pytest.raises(ModelUnavailableError, match="so it only refines queries; name a chat"):
            opened()
    for started in (ModelGenerator(model), open_ranker("listwise", model)):
        with pytest.raises(ModelUnavailableError, match="so it only refines queries; name a chat"):
            await started.start()
    question = Question(a_prompt("{query}", "query", id="answer"), {"query": "physicist"})
    for reply in (await model.ask(question), await model.write(question)):
        assert reply.status == "unsupported"
        assert "so it only refines queries" in reply.message
    assert (await model.choice_probabilities(question)).status == "unsupported"


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
