"""The service as a server of OpenAI's API, asked by OpenAI's own client and by LangChain's."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletionChunk

from tests.patience import PATIENCE, until
from tests.servers.model_server import Answer, Asked, failure, says, stream, write_people
from tests.servers.service_client import PHYSICIST, Served, a_service

SENTENCE = "He is a man with a workshop."
TEXT = {"type": "text"}
ODD_ID = "p/0 0?x=1#ä%2F"
LINK = "https://people.example/00?a=b"


_numbers = itertools.count()


def question(text: str = "Which physicist has a workshop?") -> list[Any]:
    """Return messages that nobody sent before, because the service keeps replies."""
    return [{"role": "user", "content": f"{text} unlike{next(_numbers)}"}]


def answers(text: str, *pieces: str, **how: Any) -> Any:
    """Play a model that says this, in pieces where it is asked to stream."""

    def answer(asked: Asked) -> Answer:
        streamed = asked.body.get("stream")
        return stream(pieces or [text], **how) if streamed else says(text, **how)

    return answer


def with_links(document: dict[str, Any]) -> dict[str, Any] | None:
    """Give the first document an odd id and a link, and the others what is no link."""
    first = document["id"] == "p00"
    changed = {"id": ODD_ID} if first else {}
    return {**document, **changed, "url": LINK if first else "javascript:alert(1)"}


def linked_source(folder: Path) -> Path:
    """Write a source whose documents have links."""
    path = write_people(folder / "linked", with_links)
    file = folder / "linked.source.yaml"
    attributes = "attributes: {gender: {field: gender, groups: [female, male]}}"
    file.write_text(f"name: linked\nengine: tantivy\ndocuments: {path}\nlink: url\n{attributes}\n")
    return file


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("openai")
    settings = f'sources = ["{linked_source(folder)}"]\nlimits.query_characters = 500'
    with a_service(folder, settings=settings) as running:
        yield running


@pytest.fixture(autouse=True)
def usual(service: Served) -> None:
    service.model.does(answers(SENTENCE, "He is ", SENTENCE[6:]))


def client_of(service: Served, key: str = "sk-theirs") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{service.url.rstrip('/')}/openai/v1",
        api_key=key,
        max_retries=0,
        http_client=httpx.Client(trust_env=False, timeout=PATIENCE),
    )


@pytest.fixture
def client(service: Served) -> Iterator[openai.OpenAI]:
    with client_of(service) as opened:
        yield opened


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def annotations_of(chunks: list[ChatCompletionChunk]) -> list[dict[str, Any]]:
    """Return the annotations, which the client keeps as they came."""
    found = [(c.choices[0].delta.model_extra or {}).get("annotations") for c in chunks if c.choices]
    (annotations,) = [one for one in found if one is not None]
    return list(annotations)


def test_each_source_is_a_model(client: openai.OpenAI) -> None:
    listed = {model.id: model.owned_by for model in client.models.list()}
    assert listed == {"people": "fairqr", "linked": "fairqr"}
    for name in ("gpt-5", "../people", "people.yaml", "notables"):
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(model=name, messages=question())
        assert refused.value.code == "model_not_found"
        assert refused.value.param == "model"
        assert "GET /openai/v1/models" in refused.value.message


def test_one_source_is_a_model_too(client: openai.OpenAI) -> None:
    assert client.models.retrieve("people").id == "people"
    with pytest.raises(openai.NotFoundError, match="There is no model"):
        client.models.retrieve("gpt-5")


@pytest.mark.parametrize(
    ("content", "more"),
    [
        (["Which physicist is it?"], {}),
        ([{"type": "input_text", "text": "Which physicist is it?"}], {}),
        ("Which physicist is it?", {"seed": -1, "response_format": "text", "n": None}),
        ("Which physicist is it?", {"logprobs": False, "tools": None, "stream_options": None}),
    ],
)
def test_questions_come_in_many_forms(service: Served, content: Any, more: dict[str, Any]) -> None:
    asked = {"model": "people", "messages": [{"role": "user", "content": content}], **more}
    found = service.client.post("/openai/v1/chat/completions", json=asked)
    assert found.status_code == 200, found.text
    assert found.json()["choices"][0]["message"]["content"] == SENTENCE


@pytest.mark.parametrize(
    "text",
    [
        "# Task:\nName it.\n<chat>\nUSER: Who won in 1903?\nASSISTANT: Curie.\n</chat>",
        "Write 1-3 tags.\n\n**User:** Who won in 1903?\n\n**Assistant:** Marie Curie.",
        "Provide a title.\nHuman: Who won in 1903?\nAI: Marie Curie",
        "Write queries.\n<chat_history>\nUSER: Who won in 1903?\n</chat_history>",
        '||>User:\n"Who won in 1903?"\n||>Response:\n"Curie."',
        '[{"role": "user", "content": "Who won in 1903?"},\n{"role": "assistant", "content": 1}]',
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_what_a_chat_interface_asks_for_itself_costs_nothing(
    service: Served, client: openai.OpenAI, text: str, streams: bool
) -> None:
    """It wants a name for a conversation: it gets that conversation's first words."""
    service.model.does(failure(500))
    found: Any = client.chat.completions.create(
        model="people", messages=[{"role": "user", "content": text}], stream=streams
    )
    if streams:
        said = text_of(list(found))
    else:
        said = found.choices[0].message.content
        assert found.usage.total_tokens == 0
    assert "Who won in 1903?" in said
    assert service.model.asked == []


def test_a_prompt_to_go_on_with_a_conversation_is_the_last_question(
    service: Served, client: openai.OpenAI
) -> None:
    """As LangChain's chains of conversations write it."""
    text = "Human: Hi there!\nAI: Hello.\nHuman: Which physicist is it?\nAI:"
    found = client.chat.completions.create(
        model="people", messages=[{"role": "user", "content": text}]
    )
    assert found.choices[0].message.content == SENTENCE
    assert "Which physicist is it?" in service.model.asked[-1].last_message
    assert "Hi there" not in service.model.asked[-1].last_message


def test_a_question_with_colons_is_a_question(client: openai.OpenAI) -> None:
    text = "User: is that a word?\nModels: which ones did physicists use"
    found = client.chat.completions.create(
        model="people", messages=[{"role": "user", "content": text}]
    )
    assert found.choices[0].message.content == SENTENCE


def test_the_last_message_of_the_user_is_answered(service: Served, client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "Which physicist"}, {"type": "text", "text": "is it?"}]
    found = client.chat.completions.create(
        model="people",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "An earlier question"},
            {"role": "assistant", "content": "An earlier answer"},
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None},
        ],
        temperature=0.5,
        seed=7,
        user="somebody",
        max_tokens=5,
        # What asks for nothing is no reason to refuse.
        extra_body={"tools": [], "n": 1, "logprobs": False, "response_format": {"type": "text"}},
    )
    assert (found.model, found.object) == ("people", "chat.completion")
    assert found._request_id
    (choice,) = found.choices
    assert (choice.message.content, choice.finish_reason) == (SENTENCE, "stop")
    assert found.usage
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (100, 10)
    assert found.usage.total_tokens == 110
    (asked,) = service.model.asked
    assert "Which physicist is it?" in asked.last_message
    assert "An earlier" not in json.dumps(asked.body)
    assert asked.body["temperature"] == 0.5
    # The same by our own route.
    question = {"question": "Which physicist\nis it?", "corpus": "people", "temperature": 0.5}
    ours = service.client.post("/v1/answer", json={**question, "seed": 7}).json()
    (own,) = ours["answers"]
    titles = {document["id"]: document["title"] for document in ours["ranking"]}
    used = [titles[id_] for id_, was in zip(own["ids"], own["used"], strict=True) if was]
    citations = [one.url_citation for one in choice.message.annotations or []]
    assert [one.title for one in citations] == used
    assert {(one.start_index, one.end_index) for one in citations} == {(0, len(SENTENCE))}


def test_what_was_used_can_be_read_and_a_link_is_cited_if_it_is_one(
    service: Served, client: openai.OpenAI
) -> None:
    service.model.does(answers("A physicist."))
    everything = {"fairqr": {"documents": 20, "k": 60}}
    found = client.chat.completions.create(
        model="linked", messages=question("physicist"), extra_body=everything
    )
    cited = [one.url_citation for one in found.choices[0].message.annotations or []]
    assert len(cited) == 20
    for citation in cited:
        if citation.title == "Person 0":
            assert citation.url == LINK
            continue
        assert citation.url.startswith(f"{service.url.rstrip('/')}/v1/documents/")
        document = service.client.get(citation.url).json()
        assert (document["title"], document["link"]) == (citation.title, None)
        assert "physicist" in document["text"]
        assert sum(document["groups"]["gender"].values()) == 1
    shown = service.client.get(f"/v1/documents/{quote(ODD_ID)}?corpus=linked").json()
    assert (shown["id"], shown["link"]) == (ODD_ID, LINK)
    missing = service.client.get("/v1/documents/p99?corpus=linked")
    assert missing.status_code == 404
    assert missing.json()["type"] == "urn:fairqr:error:document-not-found"
    service.model.does(answers("None of them is a goldsmith from Atlantis."))
    other = client.chat.completions.create(model="people", messages=question())
    assert other.choices[0].message.annotations == []


def test_an_answer_is_streamed_as_it_is_written(service: Served, client: openai.OpenAI) -> None:
    gate = threading.Event()
    pieces = ["He ", *[f"word{number} " for number in range(50)]]
    service.model.does(answers("", *pieces, gate=gate, gate_after=400))
    chunks = []
    for chunk in client.chat.completions.create(
        model="people", messages=question(), stream=True, stream_options={"include_usage": True}
    ):
        chunks.append(chunk)
        if text_of(chunks):
            gate.set()  # the model had more to say when its first word was here
    assert gate.is_set()
    assert text_of(chunks).split() == "".join(pieces).split()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({(chunk.id, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == 110


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    asked: Any = {"model": "people", "messages": question(), "seed": 3}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert text_of(chunks) == whole.choices[0].message.content
    wholes = [one.model_dump() for one in whole.choices[0].message.annotations or []]
    assert annotations_of(chunks) == wholes
    assert not [chunk for chunk in chunks if chunk.usage]
    # Several rankings have several answers, and the commonest comes at once.
    several = {"fairqr": {"samples": 5, "alpha": 0}}
    chunks = list(client.chat.completions.create(**asked, stream=True, extra_body=several))
    assert text_of(chunks) == SENTENCE


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "assistant", "content": "?"}]}, None),
        ({"messages": [{"role": "user", "content": "x" * 501}]}, "query_characters"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "url": "?"}]}]}, None),
        ({"messages": "?"}, "messages"),
        ({"fairqr": {"samples": 1000}}, "samples"),
        ({"fairqr": {"keep": True}}, None),
        ({"fairqr": {"methods": "baseline"}}, None),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_not_offered_is_refused_in_their_form(
    service: Served, client: openai.OpenAI, more: dict[str, Any], param: str | None, streamed: bool
) -> None:
    asked: dict[str, Any] = {"model": "people", "messages": question(), "stream": streamed, **more}
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/chat/completions", cast_to=object, body=asked)
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param == param
    assert refused.value.message
    assert service.model.asked == []


def test_a_model_that_fails_is_an_error_and_no_answer(
    service: Served, client: openai.OpenAI
) -> None:
    service.model.does(failure(400))
    asked: Any = {"model": "people", "messages": question()}
    with pytest.raises(openai.InternalServerError) as failed:
        client.chat.completions.create(**asked)
    assert (failed.value.status_code, failed.value.type) == (502, "server_error")
    with pytest.raises(openai.APIError) as broken:
        list(client.chat.completions.create(**asked, stream=True))
    assert broken.value.code == "model"
    raw = service.client.post("/openai/v1/chat/completions", json={**asked, "stream": True})
    assert raw.status_code == 200
    assert "[DONE]" not in raw.text


def test_hostile_texts_are_only_texts(service: Served, client: openai.OpenAI) -> None:
    text = "\n\ndata: [DONE]\n\nevent: error\ndata: {} \u2028 \u0085 and \x0b\x1c \x00 \x1b[31m"
    service.model.does(answers(text))
    whole = client.chat.completions.create(model="people", messages=question())
    assert whole.choices[0].message.content == text.strip()
    pieces = client.chat.completions.create(model="people", messages=question(), stream=True)
    assert text_of(list(pieces)).strip() == text.strip()
    service.model.does(answers(SENTENCE))
    asking = question(f"physicist {text}".replace("\0", ""))
    found = client.chat.completions.create(model="people", messages=asking)
    assert found.choices[0].message.content == SENTENCE


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"[]", 400), (b"x" * 2_000_000, 413)])
def test_every_error_has_their_form(service: Served, body: bytes, status: int) -> None:
    kind = {"Content-Type": "application/json"}
    found = service.client.post("/openai/v1/chat/completions", content=body, headers=kind)
    assert (found.status_code, found.headers["content-type"]) == (status, "application/json")
    assert found.json()["error"].keys() == {"message", "type", "param", "code"}
    for path, expected in (("/openai/v1/embeddings", 404), ("/openai/v1/chat/completions", 405)):
        found = service.client.get(path)
        assert (found.status_code, *found.json()) == (expected, "error")


def test_langchain_asks_it_as_a_chat_model(service: Served) -> None:
    model = ChatOpenAI(
        model="people",
        base_url=f"{service.url.rstrip('/')}/openai/v1",
        api_key="sk-theirs",  # type: ignore[arg-type]
        max_retries=0,
        stream_usage=True,
        http_client=httpx.Client(trust_env=False),
    )
    message = model.invoke("Which physicist has a workshop?")
    assert message.usage_metadata
    assert message.usage_metadata["total_tokens"] in (0, 110)  # the service may have it cached
    first, *rest = model.stream("Which physicist has a workshop?")
    for said in (message, sum(rest, first)):  # type: ignore[arg-type]
        assert said.content == SENTENCE
        assert said.response_metadata["finish_reason"] == "stop"
    with pytest.raises(openai.BadRequestError):
        model.bind_tools([{"type": "function", "function": {"name": "f"}}]).invoke("Which?")


def test_the_responses_api_gives_the_same_answer(service: Served, client: openai.OpenAI) -> None:
    """Whole and in pieces, with the documents that it used; and by LangChain's client of it."""
    asked = question()
    seeded: Any = {"fairqr": {"seed": 3}}
    chat = client.chat.completions.create(model="people", messages=asked, extra_body=seeded)
    found = client.responses.create(model="people", input=asked[0]["content"], extra_body=seeded)
    assert (found.status, found.model, found.output_text) == ("completed", "people", SENTENCE)
    (message,) = found.output
    (part,) = message.content  # type: ignore[union-attr]
    cited = [one.url_citation.title for one in chat.choices[0].message.annotations or []]
    assert [one.title for one in part.annotations] == cited  # type: ignore[union-attr]
    assert found.usage

    parts: Any = [{"type": "input_text", "text": question()[0]["content"]}]
    messages: Any = [{"role": "developer", "content": "Be brief."}]
    messages.append({"role": "user", "content": parts})
    asking: Any = {"model": "people", "input": messages, "store": True, "text": {"format": TEXT}}
    with client.responses.stream(**asking) as stream:
        events = list(stream)
        whole = stream.get_final_response()
    assert whole.output_text == SENTENCE
    deltas = [it.delta for it in events if it.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == SENTENCE
    assert events[0].type == "response.created"
    assert [it.sequence_number for it in events] == list(range(len(events)))  # type: ignore[union-attr]

    model = ChatOpenAI(
        model="people",
        base_url=f"{service.url.rstrip('/')}/openai/v1",
        api_key="sk-theirs",  # type: ignore[arg-type]
        use_responses_api=True,
        http_client=httpx.Client(trust_env=False),
    )
    assert model.invoke("Which physicist has a workshop?").text == SENTENCE


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "?"}]}, None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"fairqr": {"keep": True}}, None),
    ],
)
def test_what_responses_cannot_have_here_is_refused(
    service: Served, client: openai.OpenAI, more: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/responses", cast_to=object, body={"model": "people", "input": "Who?", **more})
    assert refused.value.param == param
    assert "\n" not in refused.value.message
    assert service.model.asked == []


def test_a_response_whose_model_fails_ends_with_an_error(
    service: Served, client: openai.OpenAI
) -> None:
    service.model.does(failure(400))
    asked: Any = {"model": "people", "input": question()[0]["content"]}
    with pytest.raises(openai.InternalServerError):
        client.responses.create(**asked)
    *_, last = client.responses.create(**asked, stream=True)
    assert (last.type, last.code) == ("error", "model")
    assert last.message


def test_its_runs_are_in_the_figures_and_end_with_their_clients(
    service: Served, client: openai.OpenAI
) -> None:
    gate = threading.Event()
    service.model.does(answers(SENTENCE, gate=gate))
    answering = client.chat.completions.create(model="people", messages=question(), stream=True)
    next(iter(answering))
    answering.close()
    cancelled = 'fairqr_runs_finished_total{kind="answer",status="cancelled"} 1.0'
    until(lambda: cancelled in service.client.get("/metrics").text)
    gate.set()
    assert service.client.get("/v1/runs").json() == {"runs": []}


def test_a_refusal_has_its_status_before_any_stream_and_our_key_is_the_api_key(
    tmp_path: Path,
) -> None:
    gate = threading.Event()
    limits = "concurrency = 1\ntraffic.live = 1"
    with a_service(tmp_path, "--require-keys", settings=limits) as service:
        asked: Any = {"model": "people", "messages": question()}
        with client_of(service) as stranger, pytest.raises(openai.AuthenticationError) as refused:
            stranger.chat.completions.create(**asked)
        assert refused.value.code == "invalid_api_key"
        with client_of(service, service.key["Authorization"].removeprefix("Bearer ")) as client:
            service.model.does(answers(SENTENCE))
            (choice,) = client.chat.completions.create(**asked).choices
            url = (choice.message.annotations or [])[0].url_citation.url
            assert service.client.get(url).status_code == 401
            service.client.headers.update(service.key)
            assert service.client.get(url).status_code == 200

            service.model.does(answers(SENTENCE, gate=gate))
            asked["messages"] = question()
            held = client.chat.completions.create(**asked, stream=True)
            next(iter(held))
            with pytest.raises(openai.RateLimitError) as busy:
                client.chat.completions.create(**asked, stream=True)
            assert (busy.value.status_code, busy.value.code) == (429, "busy")
            assert int(busy.value.response.headers["retry-after"]) >= 1
            service.client.in_background(PHYSICIST)
            for keep in (False, True):
                answer = service.client.post("/v1/search/stream", json={**PHYSICIST, "keep": keep})
                assert answer.status_code == 429
                assert answer.json()["type"] == "urn:fairqr:error:busy"
            gate.set()
            held.close()
