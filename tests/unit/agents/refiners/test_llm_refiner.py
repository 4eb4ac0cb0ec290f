"""What a model is asked, for a group and for the topic, and what is read of its reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.refiners.language_model import (
    GROUP_FIELDS,
    LIST_FIELDS,
    TOPIC_FIELDS,
    LLMRefiner,
    read_reply,
    reply_schema,
)
from fairqr.agents.refiners.refiner import (
    GroupRequest,
    LeftOut,
    Refinement,
    TopicRefiner,
    TopicRequest,
)
from fairqr.prompts.library import SHIPPED, PromptLibrary
from tests.servers.model_server import ModelServer, says
from tests.unit.agents.test_replies import json_values

pytestmark = pytest.mark.usefixtures("clean_environment")

FIELDS = sorted({*TOPIC_FIELDS, *GROUP_FIELDS, "drop", "reason"})


def versions(kind: str) -> list[str]:
    return sorted(path.stem for path in (SHIPPED / kind).glob("*.yaml"))


def refiner(server: ModelServer, refine: str = "v4", topic: str = "v1") -> LLMRefiner:
    model = ChatModel("openai:fake", base_url=server.base_url, timeout=10)
    prompts = PromptLibrary()
    return LLMRefiner(model, prompts.get("refine", refine), prompts.get("topic", topic))


async def refined(server: ModelServer, version: str = "v4", **more: Any) -> Refinement:
    request = GroupRequest("physicist", "gender", "female", **more)
    return await refiner(server, refine=version).refine(request)


async def topic_of(server: ModelServer, version: str = "v1", **more: Any) -> Refinement:
    return await refiner(server, topic=version).refine_topic(TopicRequest("physicist", **more))


@given(st.dictionaries(st.sampled_from([*FIELDS, "other"]), json_values))
def test_any_object_is_refused_or_made_into_plain_texts(value: dict[str, Any]) -> None:
    """Of any object come lists of texts, or one sentence that the model is told."""
    if all(value.get(name) is None for name in GROUP_FIELDS):
        with pytest.raises(ValueError, match=r"^it has none of[^\n]+$"):
            read_reply(value, GROUP_FIELDS)
        return
    reply = read_reply(value, GROUP_FIELDS)
    assert all(isinstance(text, str | None) for name in LIST_FIELDS for text in reply[name])
    reply["reason"].encode()
    assert len(reply["reason"]) <= 1000
    again = read_reply(json.loads(json.dumps(reply)), GROUP_FIELDS)
    assert again == reply, "what is cached passes again"


def test_of_a_list_without_end_a_thousand_entries_are_read() -> None:
    assert len(read_reply({"names": [["x"] * 999] * 9}, GROUP_FIELDS)["names"]) == 1000


@pytest.mark.parametrize("version", versions("refine"))
async def test_what_a_prompt_promises_is_what_the_schema_asks_for(
    server: ModelServer, version: str
) -> None:
    """A closed object of its own fields, in order; only keywords in use can be dropped."""
    reply = {
        "reason": "r",
        "topic": ["lab"],
        "keywords": ["woman"],
        "drop": ["she", "physicist"],
        "phrases": ["woman physicist"],
        "names": ["Lise Meitner", "Lise"],
        "passage": "She split the atom.",
        "queries": ["who split the atom"],
    }
    server.does(says(reply))
    refinement = await refined(server, version, keywords=["she"], seed=3, temperature=1.5)
    assert (refinement.topic, refinement.keywords) == (("lab",), ("woman",))
    assert refinement.phrases == ("woman physicist",)
    assert refinement.names == ("Lise Meitner", "Lise")
    assert refinement.passage == "She split the atom."
    assert refinement.queries == (), "they are asked for once a search, with the topic"
    assert (refinement.drop, refinement.reason) == (("she",), "r")
    (asked,) = server.asked
    prompt = PromptLibrary().get("refine", version)
    sent = asked.body["response_format"]["json_schema"]
    assert list(sent["schema"]["properties"]) == list(prompt.output) == sent["schema"]["required"]
    assert (sent["strict"], sent["schema"]["additionalProperties"]) == (True, False)
    assert (asked.body["temperature"], asked.body["seed"]) == (1.5, 3)
    assert "she" in asked.last_message


@pytest.mark.parametrize("version", versions("topic"))
async def test_the_topic_is_asked_about_without_any_group(
    server: ModelServer, version: str
) -> None:
    reply = {
        "topic": ["quantum theory", "Physicist", "lab"],
        "queries": ["Who won the Nobel Prize in Physics?", "physicist"],
        "passage": "Ada Berg was a physicist.",
        "keywords": ["woman"],
    }
    server.does(says(reply))
    refinement = await topic_of(server, version, seed=3, temperature=0.5)
    assert refinement.status == "ok"
    assert refinement.topic == ("quantum theory", "lab")
    assert refinement.queries == ("Who won the Nobel Prize in Physics?",)
    assert refinement.passage == "Ada Berg was a physicist."
    assert refinement.keywords == ()
    assert refinement.left_out == (
        LeftOut("Physicist", "repeats the query"),
        LeftOut("physicist", "repeats the query"),
    )
    assert refinement.usage.model_calls == 1
    (asked,) = server.asked
    assert (asked.body["temperature"], asked.body["seed"]) == (0.5, 3)
    prompt = PromptLibrary().get("topic", version)
    sent = asked.body["response_format"]["json_schema"]["schema"]
    assert list(sent["properties"]) == list(prompt.output)


async def test_a_reply_without_any_asked_field_is_asked_for_once_more(server: ModelServer) -> None:
    server.does(says({"keywords": ["woman"]}), says({"topic": ["lab"]}))
    refinement = await topic_of(server)
    assert (refinement.topic, refinement.usage.model_calls) == (("lab",), 2)
    assert "it has none of the fields topic, queries, passage" in server.asked[1].last_message


async def test_the_papers_prompt_is_asked_at_its_temperature(
    server: ModelServer,
) -> None:
    """What FAIR-QR says of its prompt: keywords are added or modified, at temperature .3."""
    server.does(says({"keywords": ["woman", "Curie"], "drop": ["she"]}))
    refinement = await refined(server, "paper", keywords=["she", "her"])
    assert (refinement.topic, refinement.keywords) == ((), ("woman", "Curie"))
    assert refinement.drop == ("she",)
    (asked,) = server.asked
    assert asked.body["temperature"] == 0.3
    assert "she, her" in asked.last_message


async def test_without_a_topic_prompt_only_groups_are_asked_about(server: ModelServer) -> None:
    model = ChatModel("openai:fake", base_url=server.base_url, timeout=10)
    asks_groups = LLMRefiner(model, PromptLibrary().get("refine"))
    assert isinstance(asks_groups, TopicRefiner)
    assert [prompt.id for prompt in asks_groups.prompts] == ["refine"]
    refinement = await asks_groups.refine_topic(TopicRequest("physicist"))
    assert (refinement.status, server.asked) == ("unsupported", [])
    assert "no topic prompt is given" in refinement.message


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ({"topic": ["physicist"]}, "repeated"),
        ({"topic": ["…"]}, "empty"),
    ],
)
async def test_a_topic_without_new_words_is_said(
    server: ModelServer, reply: dict[str, Any], status: str
) -> None:
    server.does(says(reply))
    refinement = await topic_of(server)
    assert refinement.status == status
    assert refinement.message.endswith("for the query 'physicist'.")
    assert len(refinement.left_out) == 1


def test_bounds_depend_on_the_size_of_the_model() -> None:
    prompts = PromptLibrary()
    for kind, version in (("refine", "v4"), ("topic", "v1")):
        small = reply_schema(prompts.get(kind, version).output)["properties"]["topic"]
        assert (small["minItems"], small["maxItems"], small["items"]["maxLength"]) == (4, 5, 16)
    large = reply_schema(prompts.get("refine", "v5").output)["properties"]
    assert large["names"]["maxItems"] == 40
    assert large["keywords"]["items"]["maxLength"] == 80
    assert large["passage"] == {"type": "string", "maxLength": 1000}
