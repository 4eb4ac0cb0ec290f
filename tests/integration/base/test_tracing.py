"""Spans of real runs: their tree, what they say, and that content stays out unless it is asked for.

The corpus, the query, and what the model says hold words that are nowhere else; every span is
searched for them as it would be sent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import AsyncElasticsearch, BadRequestError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from fairqr import FairSearch
from fairqr.agents.models.chat import ChatModel
from fairqr.base import telemetry
from fairqr.base.exporting import _Delivery
from fairqr.base.telemetry import BUCKETS, DURATIONS, MEASURED
from tests.patience import PATIENCE
from tests.servers.collector import Collector
from tests.servers.model_server import (
    KEY,
    Answer,
    Asked,
    Command,
    ModelServer,
    failure,
    says,
    scores,
    search_arguments,
    write_people,
)
from tests.servers.page_service import MODEL_KEY
from tests.servers.service_client import a_service

pytestmark = pytest.mark.usefixtures("clean_environment")

IN_QUERY, IN_DOCUMENT, IN_REPLY = "zqueryz", "zdocumentz", "zreplyz"
QUERY = f"physicist {IN_QUERY}"
PROBE: dict[str, Any] = {"k": 60, "pairs": 2, "personas": ["neutral"]}
CONTENT = (IN_QUERY, IN_DOCUMENT, IN_REPLY)


def with_words(document: dict[str, Any]) -> dict[str, Any]:
    """Put the query's and the model's words into a text, with one of its own."""
    own = IN_REPLY if document["gender"] == "female" else ""
    text = f"{document['text']} {IN_QUERY} {IN_DOCUMENT} {own}"
    return {**document, "title": f"{document['title']} {IN_DOCUMENT}", "text": text}


@pytest.fixture
def corpus(clean_environment: Path) -> Path:
    return write_people(clean_environment / "people", with_words)


class Exported(InMemorySpanExporter):
    """What was exported so far."""

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [found for found in self.spans if found.name == name]

    def text(self) -> str:
        """All of it, as it would be sent."""
        return encode_spans(self.spans).SerializeToString().decode("utf-8", "replace").lower()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exported]:
    """Gives fairqr a tracer of the SDK, and keeps what it exports in memory."""
    exporter, provider = Exported(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    monkeypatch.setattr("fairqr.base.telemetry._tracer", provider.get_tracer("fairqr"))
    yield exporter
    provider.shutdown()


def replying(asked: Asked) -> Answer:
    """Answers any question, in words of its own where it can have some."""
    if asked.body.get("logprobs"):
        return scores({"A": 0.8, "B": 0.2})
    if asked.wants_schema:
        return says({"topic": [IN_REPLY], "keywords": ["woman", IN_REPLY]})
    if "[1]" in asked.last_message:
        return says(f"[2] > [1] {IN_REPLY}")
    return says(f"It was Person 3, {IN_REPLY}.")


async def run_all(server: ModelServer, corpus: Path) -> None:
    """Search, answer and probe once."""
    chat = ChatModel("openai:fake", base_url=server.base_url, attempts=1)
    async with FairSearch.open(str(corpus), chat) as fair:
        asked: dict[str, Any] = {"attribute": "gender", "k": 10}
        await fair.search(QUERY, ask="always", max_iterations=1, **asked)
        await fair.answer(QUERY, documents=3, samples=1, **asked)
        await fair.probe(QUERY, protected="female", **{**asked, **PROBE})


@pytest.mark.promise("base")
async def test_a_run_is_a_tree_of_steps_by_the_conventions(
    exported: Exported, model_server: ModelServer, corpus: Path
) -> None:
    """A run is a tree of spans by the conventions.

    Names, parents, kinds, attributes and events of a search, an answer and a probe.
    """
    model_server.does(replying)
    await run_all(model_server, corpus)
    run = "invoke_workflow fairqr"
    steps = ["prepare", "retrieve", "measure", "choose_group", "refine", "rerank"]
    steps += ["prepare", "sample", "generate", "attribute", "summarize"]
    steps += ["draw", "ask", "compare"]
    names = {it.context.span_id: it.name for it in exported.spans}
    tree = {(it.name, it.parent and names[it.parent.span_id]) for it in exported.spans}
    assert tree == {
        (run, None),
        *((f"fairqr.{step}", run) for step in steps),
        ("retrieval", "fairqr.retrieve"),
        ("fairqr.refine_topic", "fairqr.refine"),
        ("chat fake", "fairqr.refine_topic"),
        ("fairqr.refine_group", "fairqr.refine"),
        ("chat fake", "fairqr.refine_group"),
        ("chat fake", "fairqr.generate"),
        ("fairqr.judge", "fairqr.attribute"),
        ("chat fake", "fairqr.ask"),
    }
    traces = {found.context.trace_id for found in exported.spans}
    assert len(traces) == len(exported.named(run)) == 3
    assert all(found.status.status_code is StatusCode.UNSET for found in exported.spans)

    # The topic and the groups are asked about at once, so any may end first.
    asked = {
        str((it.attributes or {})["gen_ai.prompt.name"]): it for it in exported.named("chat fake")
    }
    chat = asked["refine"]
    said = dict(chat.attributes or {})
    assert chat.kind is SpanKind.CLIENT
    assert len(str(said["fairqr.prompt.sha256"])) == 64
    conventions = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "fake",
        "fairqr.model": "openai:fake",
        "gen_ai.request.temperature": 0.0,
        "gen_ai.output.type": "json",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.model": "fake",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
        "server.address": "127.0.0.1",
        "gen_ai.prompt.name": "refine",
        "fairqr.status": "ok",
    }
    assert said.items() >= conventions.items()

    events = [(found.name, event) for found in exported.spans for event in found.events]
    assert {event.name for _, event in events} == {"gen_ai.evaluation.result"}
    evaluations = [(step, dict(event.attributes or {})) for step, event in events]
    assert {(step, it["gen_ai.evaluation.name"]) for step, it in evaluations} == {
        ("fairqr.measure", "divergence"),
        ("fairqr.rerank", "divergence"),
        ("fairqr.judge", "attribution"),
    }
    assert 0 < dict(evaluations)["fairqr.measure"]["gen_ai.evaluation.score.value"] < 1


NEWER = {"gen_ai.retrieval.top_k": int, "gen_ai.prompt.version": str}
"""Names that the conventions got after the last release of the package that ships them, with their
types, as the pages of version 0.1.0 state them."""

REQUIRED = {
    "invoke_workflow": {"gen_ai.operation.name", "gen_ai.agent.name"},
    "retrieval": {"gen_ai.operation.name", "gen_ai.data_source.id", "gen_ai.retrieval.top_k"},
    "chat": {
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
        *("gen_ai.prompt.name", "gen_ai.prompt.version", "server.address", "server.port"),
        "gen_ai.response.finish_reasons",
    },
}
"""What our spans of each operation have, of what version 0.1.0 requires or recommends."""

SENT = {
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "temperature": "gen_ai.request.temperature",
}
"""The parameters of a request that the conventions have, and their names there."""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """Gives fairqr histograms of the SDK, and keeps what they measure in memory."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    meter = provider.get_meter("fairqr")
    for name in MEASURED:
        histogram = meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=BUCKETS)
        monkeypatch.setitem(telemetry._histograms, name, histogram)
    yield reader
    provider.shutdown()


@pytest.mark.promise("command")
async def test_names_are_those_of_the_published_conventions(
    exported: Exported,
    measured: InMemoryMetricReader,
    model_server: ModelServer,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names in spans and durations are those of the conventions that the page names.

    No name is our own that begins with gen_ai; kinds and histograms are as they want them.

    The package of OpenTelemetry's names has those of before the conventions for generative AI got a
    repository of their own, whose model no package ships.
    """
    monkeypatch.setenv("FAIRQR_TRACE_CONTENT", "1")
    model_server.does(replying)
    await run_all(model_server, corpus)
    published = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    for it in exported.spans:
        own = dict(it.attributes or {})
        for event in it.events:
            own |= dict(event.attributes or {})
        names = {name for name in own if name.startswith("gen_ai.")}
        assert names <= published | NEWER.keys()
        assert all(isinstance(own[name], NEWER[name]) for name in names & NEWER.keys())
        operation = str(own.get("gen_ai.operation.name", ""))
        if operation:
            assert REQUIRED[operation] <= own.keys()
            assert it.kind is (SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL)
    assert "gen_ai.workflow.name" not in exported.text()
    (first, *_) = exported.named("retrieval")
    assert (first.attributes or {})["gen_ai.retrieval.query.text"] == QUERY

    bodies = [it.body for it in model_server.asked]
    requests = [{SENT[name]: it[name] for name in SENT if name in it} for it in bodies]
    recorded = [
        {name: value for name, value in (it.attributes or {}).items() if name in SENT.values()}
        for it in exported.named("chat fake")
    ]
    assert sorted(map(repr, map(sorted, map(dict.items, requests)))) == sorted(
        map(repr, map(sorted, map(dict.items, recorded)))
    )

    data: Any = measured.get_metrics_data()
    found = {it.name: it for it in data.resource_metrics[0].scope_metrics[0].metrics}
    assert found.keys() == set(DURATIONS.values())
    counted = {name: sum(p.count for p in it.data.data_points) for name, it in found.items()}
    assert counted == {
        "gen_ai.client.inference.duration": len(exported.named("chat fake")),
        "gen_ai.retrieval.duration": len(exported.named("retrieval")),
        "gen_ai.invoke_agent.duration": 3,
    }
    for name, it in found.items():
        assert it.unit == "s"
        for point in it.data.data_points:
            assert point.explicit_bounds == BUCKETS
            assert point.attributes.keys() <= set(MEASURED[name])


async def test_a_failure_is_in_the_durations_though_nothing_is_traced(
    measured: InMemoryMetricReader,
) -> None:
    with (
        pytest.raises(KeyError),
        telemetry.span("retrieval", **{"gen_ai.operation.name": "retrieval"}),
    ):
        raise KeyError
    data: Any = measured.get_metrics_data()
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert dict(point.attributes) == {
        "gen_ai.operation.name": "retrieval",
        "error.type": "KeyError",
    }


def test_the_command_sends_durations_where_it_is_told_to(
    command: Command, model_server: ModelServer, corpus: Path, collector: Collector
) -> None:
    run = command(
        *search_arguments(model_server, corpus, "--json"),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_METRICS_EXPORTER="otlp",
    )
    assert run.code == 0
    sent = b"".join(it.body for it in collector.requests if it.path == "/v1/metrics")
    assert b"gen_ai.invoke_agent.duration" in sent
    assert b"gen_ai.retrieval.duration" in sent


@pytest.mark.promise("base")
@pytest.mark.parametrize("content", [False, True])
async def test_content_is_exported_only_where_it_is_asked_for(
    exported: Exported,
    model_server: ModelServer,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bool,
) -> None:
    """Traces hold no query, document, keyword, prompt or reply unless you ask for it.

    Query, documents, keywords and replies: none without the switch, each with it.
    """
    if content:
        monkeypatch.setenv("FAIRQR_TRACE_CONTENT", "1")
    model_server.does(replying)
    await run_all(model_server, corpus)
    text = exported.text()
    assert {word: word in text for word in CONTENT} == dict.fromkeys(CONTENT, content)
    assert KEY.lower() not in text
    if content:
        chat = dict(exported.named("chat fake")[-1].attributes or {})
        (reply,) = json.loads(str(chat["gen_ai.output.messages"]))
        assert set(reply) == {"role", "parts", "finish_reason"}
        assert json.loads(str(chat["gen_ai.input.messages"]))[0]["parts"][0]["type"] == "text"


FAILING: dict[str, tuple[Answer | Callable[[Asked], Answer], str]] = {
    "echo": (lambda asked: failure(400, f"{asked.body} {IN_REPLY} {KEY}"), "invalid_request"),
    "prose": (says(f"No, {IN_REPLY} {KEY}."), "parse_error"),
    "silence": (Answer(never=True), "timeout"),
}


@pytest.mark.promise("base")
@pytest.mark.parametrize("kind", FAILING)
async def test_a_failing_model_is_an_error_without_a_word_of_content(
    exported: Exported, model_server: ModelServer, corpus: Path, kind: str
) -> None:
    """Traces of a model that fails hold no word of the prompt.

    What a server says of an error, or repeats in it, is in no span; the kind of error is.
    """
    behaviour, status = FAILING[kind]
    model_server.does(behaviour)
    timeout = 0.3 if kind == "silence" else PATIENCE
    chat = ChatModel("openai:fake", base_url=model_server.base_url, attempts=1, timeout=timeout)
    async with FairSearch.open(str(corpus), chat) as fair:
        await fair.search(QUERY, attribute="gender", k=10, ask="always")
    asked = exported.named("chat fake")
    assert {(it.attributes or {})["error.type"] for it in asked} == {status}
    said = {(it.status.status_code, it.status.description) for it in asked}
    assert said == {(StatusCode.ERROR, status)}
    text = exported.text()
    assert not [word for word in (*CONTENT, KEY.lower()) if word in text]


@pytest.mark.promise("base")
async def test_errors_that_quote_the_query_are_not_traced(
    model_server: ModelServer,
) -> None:
    """Traces hold no query, even where an error of Elasticsearch quotes it.

    Its client records them in spans of its own; these lose all texts of errors on the way.
    """
    cause = {"type": "parse_exception", "reason": f"Cannot parse [{QUERY}]"}
    said = {"error": {**cause, "root_cause": [cause]}, "status": 400}
    headers = {"X-Elastic-Product": "Elasticsearch"}
    model_server.does(Answer(400, json.dumps(said).encode(), headers))
    sent, provider = InMemorySpanExporter(), TracerProvider()
    delivery = _Delivery([sent], provider)
    provider.add_span_processor(SimpleSpanProcessor(delivery))  # type: ignore[arg-type]
    url = model_server.base_url.removesuffix("/v1")
    async with AsyncElasticsearch(url) as client:
        client._otel.tracer = provider.get_tracer("elasticsearch-api")
        for delivery.content in (False, True):
            with pytest.raises(BadRequestError):
                await client.search(index="people", query={"match": {"text": QUERY}})
    bare, whole = sent.get_finished_spans()
    assert IN_QUERY in whole.to_json()
    assert IN_QUERY not in bare.to_json()
    assert (bare.name, bare.status.status_code) == ("search", StatusCode.ERROR)
    assert (bare.attributes, bare.parent) == (whole.attributes, whole.parent)
    provider.shutdown()


@pytest.mark.promise("base")
def test_a_backend_that_is_away_costs_a_sentence(
    command: Command, model_server: ModelServer, corpus: Path
) -> None:
    """A tracing backend that is away costs a sentence and never the result.

    The result is there all the same.
    """
    run = command(
        *search_arguments(model_server, corpus, "--json"),
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="0.5",
        OTEL_EXPORTER_OTLP_HEADERS=f"authorization {KEY}",  # = is missing, which is quoted
    )
    assert run.code == 0
    assert run.result["ranking"]
    sentence = "Spans could not be sent to the OpenTelemetry backend"
    assert run.stderr.count(sentence) == 1
    assert "opentelemetry" not in run.stderr.replace(sentence, "").lower()


@pytest.mark.promise("base")
def test_the_service_continues_the_trace_of_who_asks(tmp_path: Path, collector: Collector) -> None:
    """A caller's `traceparent` is continued, also by a run that goes on elsewhere.

    Of a request, and of a run in the background; content, key and arguments stay out.
    """
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    environment["OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"] = "process"
    with a_service(tmp_path, environment=environment, change=with_words) as service:
        service.model.does(replying)
        asked = {"query": QUERY, "attributes": ["gender"], "k": 10}
        first = service.client.post("/v1/search", json=asked, headers=_caller("a"))
        assert first.status_code == 200, first.text
        begun = {"kind": "search", "request": asked}
        second = service.client.post("/v1/runs", json=begun, headers=_caller("b"))
        assert second.status_code == 202, second.text
        events = service.client.get(f"/v1/runs/{second.json()['id']}/events")
        assert "event: end" in events.text
    (process,) = collector.processes
    assert (process["service.name"], "process.pid" in process) == ("fairqr", True)
    spans = {it["spanId"]: it for it in collector.spans}
    runs = [it for it in spans.values() if it["name"] == "invoke_workflow fairqr"]
    asked_by = {_hex(it["traceId"]): spans[it["parentSpanId"]] for it in runs}
    assert {trace: it["name"] for trace, it in asked_by.items()} == {
        "a" * 32: "POST /v1/search",
        "b" * 32: "POST /v1/runs",
    }
    assert {_hex(it["parentSpanId"]) for it in asked_by.values()} == {"a" * 16, "b" * 16}
    assert {it["kind"] for it in asked_by.values()} == {"SPAN_KIND_SERVER"}
    text = repr(collector.requests).lower()
    assert not [word for word in (*CONTENT, MODEL_KEY.lower(), "--port") if word in text]


def _hex(encoded: str) -> str:
    return base64.b64decode(encoded).hex()


def _caller(digit: str) -> dict[str, str]:
    return {"traceparent": f"00-{digit * 32}-{digit * 16}-01", "baggage": f"user={IN_REPLY}"}


@pytest.mark.promise("base")
def test_langsmith_does_not_get_a_repeated_key(
    command: Command, model_server: ModelServer, corpus: Path, collector: Collector
) -> None:
    """Traces hold no key, even where a model server repeats it.

    Neither from the body of a refusal, nor from its headers.
    """
    model_server.does(failure(401, f"{IN_REPLY}: wrong key {KEY}", x_received=KEY))
    run = command(
        *search_arguments(model_server, corpus, "--json"),
        LANGSMITH_TRACING="true",
        LANGSMITH_ENDPOINT=collector.url,
        LANGSMITH_API_KEY="ls-key",
    )
    assert run.code == 0
    assert "refused the API key (401: " in run.stderr
    posted = repr(collector.requests)
    assert f"{IN_REPLY}: wrong key" in posted
    assert KEY not in posted
