"""From a model's reply to keywords, and to a status that says why there are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.refiner import (
    MAX_KEYWORDS,
    LLMRefiner,
    Refinement,
    RefinementRequest,
    refinement_from,
    reply_schema,
    validated,
)
from fairqr.prompts.library import SHIPPED, PromptLibrary
from tests.integration.model_server import (
    ModelServer,
    clean_environment,
    failure,
    model_server,
    says,
)

__all__ = ["clean_environment", "model_server"]

pytestmark = pytest.mark.usefixtures("clean_environment")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3)
    ),
    max_leaves=5,
)
REQUEST = RefinementRequest("physicist", "gender", "female")


async def refined(server: ModelServer, version: str = "v1", **request: Any) -> Refinement:
    model = ChatModel("openai:fake", base_url=server.base_url, timeout=10)
    refiner = LLMRefiner(model, PromptLibrary().get("refine", version))
    asked = {"query": "physicist", "attribute": "gender", "group": "female", **request}
    return await refiner.refine(RefinementRequest(**asked))


@given(
    st.dictionaries(st.sampled_from(["topic", "keywords", "drop", "reason", "other"]), json_values)
)
def test_any_object_is_refused_or_made_into_plain_texts(value: dict[str, Any]) -> None:
    """Of any object come lists of texts, or one sentence that the model is told."""
    if not isinstance(value.get("keywords"), list):
        with pytest.raises(ValueError, match=r"^'(?:topic|keywords|drop|reason)': [^\n]+$"):
            validated(value)
        return
    try:
        kept = validated(value)
    except ValueError:
        return
    for name in ("topic", "keywords", "drop"):
        assert all(isinstance(text, str) for text in kept[name])
    kept["reason"].encode()
    assert len(kept["reason"]) <= 1000
    assert validated(json.loads(json.dumps(kept))) == kept, "what is cached passes again"


@given(st.lists(st.text(max_size=20), max_size=20), st.lists(st.text(max_size=20), max_size=4))
def test_a_status_says_whether_there_are_keywords(proposed: list[str], used: list[str]) -> None:
    """``ok`` with keywords, anything else without and with a sentence."""
    request = RefinementRequest("physicist", "gender", "female", keywords=used)
    refinement = refinement_from(proposed, request, who="The model")
    assert (refinement.status == "ok") is bool(refinement.keywords)
    assert (refinement.status == "ok") is not bool(refinement.message)
    assert len(refinement.keywords) <= MAX_KEYWORDS
    assert set(refinement.drop) <= set(used)


@pytest.mark.parametrize(
    ("proposed", "used", "status"),
    [
        (["woman"], (), "ok"),
        ([], (), "empty"),
        (["…", "123"], (), "empty"),
        (["Physicist"], (), "repeated"),
        (["woman", "she"], ("she", "woman"), "repeated"),
        (["woman", "she"], ("she",), "ok"),
    ],
)
def test_statuses(proposed: list[str], used: tuple[str, ...], status: str) -> None:
    """Nothing usable, nothing new, and something new are told apart."""
    request = RefinementRequest("physicist", "gender", "female", keywords=used)
    assert refinement_from(proposed, request, who="The model").status == status


def test_only_keywords_in_use_are_dropped() -> None:
    """A model cannot take out what it did not put in, such as the query's own terms."""
    request = RefinementRequest("physicist", "gender", "female", keywords=("she", "lab"))
    refinement = refinement_from(["woman"], request, who="", drop=["physicist", "lab", "x"])
    assert refinement.drop == ("lab",)


@pytest.mark.parametrize("version", sorted(p.stem for p in (SHIPPED / "refine").glob("*.yaml")))
async def test_what_a_prompt_promises_is_what_the_schema_asks_for(
    model_server: ModelServer, version: str
) -> None:
    """Each shipped prompt asks for a closed object of its own output fields, in their order."""
    reply = {"reason": "r", "topic": ["lab"], "keywords": ["woman"], "drop": ["she", "he"]}
    model_server.does(says(reply))
    refinement = await refined(model_server, version, keywords=["she"], seed=3, temperature=1.5)
    assert set(refinement.keywords) >= {"lab", "woman"}
    assert (refinement.drop, refinement.reason) == (("she",), "r")
    (asked,) = model_server.asked
    prompt = PromptLibrary().get("refine", version)
    sent = asked.body["response_format"]["json_schema"]
    assert list(sent["schema"]["properties"]) == list(prompt.output) == sent["schema"]["required"]
    assert (sent["strict"], sent["schema"]["additionalProperties"]) == (True, False)
    assert (asked.body["temperature"], asked.body["seed"]) == (1.5, 3)
    assert "she" in asked.last_message


async def test_no_keywords_in_use_are_written_as_none(model_server: ModelServer) -> None:
    """An empty list would leave a hole in the sentence."""
    model_server.does(says({"keywords": ["woman"]}))
    await refined(model_server)
    assert "none" in model_server.asked[0].last_message


async def test_a_failure_is_passed_on_with_its_cost(model_server: ModelServer) -> None:
    """The refiner never raises for what a model does wrong."""
    model_server.does(failure(400))
    refinement = await refined(model_server)
    assert (refinement.status, refinement.keywords) == ("invalid_request", ())
    assert refinement.message.startswith("The model openai:fake ")
    assert refinement.usage.model_calls == 1


def test_the_schema_bounds_every_list_and_text() -> None:
    """A small model that cannot stop is stopped by the grammar."""

    def unbounded(schema: dict[str, Any]) -> bool:
        if schema["type"] == "array":
            return "maxItems" not in schema or unbounded(schema["items"])
        return schema["type"] == "string" and "maxLength" not in schema

    schema = reply_schema(["reason", "topic", "keywords", "drop"])
    assert not any(unbounded(field) for field in schema["properties"].values())
