"""Lists that others found: ``POST /v1/rerank``, as other software asks it.

Cohere's and LangChain's clients are real here. The requests of LiteLLM, LangChain's ``JinaRerank``
and LibreChat were recorded from their real clients; those of open-webui, Elasticsearch and
OpenSearch are written as their sources build them, from the configurations on our page.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import cohere
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_cohere import CohereRerank
from langchain_core.documents import Document as Passage

from fairqr import Context, FairReranker
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.service.slots import Slots
from fairqr.retrieval.engines.engine import Hits
from tests.servers.attached_people import Server
from tests.servers.model_server import write_people
from tests.servers.service_client import Served, a_service, in_process

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "rerank-a-list.md"
GENDER: dict[str, Any] = {"groups": ["female", "male"], "population": {"female": 0.5, "male": 0.5}}
PLACE = {"field": "continent", "groups": ["Europe", "Asia", "Africa"], "unknown": "group"}
FIELDED = {"gender": {**GENDER, "field": "gender"}, "place": PLACE}
FILED = {"gender": {**GENDER, "labels": "gender.csv"}, "place": PLACE}
JSON = {"Content-Type": "application/json"}


def without_some_labels(document: dict[str, Any]) -> dict[str, Any]:
    number = int(document["id"][1:])
    left_out = set()
    if number % 7 == 0:
        left_out.add("gender")
    if number % 5 == 0:
        left_out.add("continent")
    return {name: field for name, field in document.items() if name not in left_out}


@pytest.fixture(scope="module")
def world(
    elasticsearch_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Two sources of people, some of whom have no label: one is a server's, with a label file."""
    folder = tmp_path_factory.mktemp("rerank")
    path = write_people(folder / "partly", without_some_labels)
    (folder / "partly" / "schema.yaml").unlink()
    people = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [f"{person['id']},{person['gender']}" for person in people if "gender" in person]
    (folder / "gender.csv").write_text("\n".join(["id,group", *rows]))
    server = Server(elasticsearch_url)
    local = {"name": "fielded", "engine": "tantivy", "documents": str(path), "attributes": FIELDED}
    remote = {
        "name": "filed",
        "engine": server.engine,
        "url": server.url,
        "index": "rerank",
        "text": ["title", "text"],
        "attributes": FILED,
    }
    for source in (local, remote):
        (folder / f"{source['name']}.yaml").write_text(yaml.safe_dump(source))
    mapping = {"properties": {"continent": {"type": "keyword"}}}
    by_id = {person["id"]: person for person in people}
    with closing(server.client), server.index("rerank", by_id, mapping):
        yield folder, people


@pytest.fixture(scope="module")
def service(world: tuple[Path, list[dict[str, Any]]]) -> Iterator[Served]:
    files = [str(world[0] / f"{name}.yaml") for name in ("fielded", "filed")]
    settings = f"sources = {json.dumps(files)}\ntraffic.rate = ''"
    with a_service(world[0] / "served", settings=settings) as running:
        yield running


def as_sent(form: str, person: dict[str, Any]) -> Any:
    """Return a document as a client sends it that knows labels in this form."""
    fields = {"gender": person.get("gender"), "continent": person.get("continent")}
    labels = {"gender": person.get("gender"), "place": person.get("continent")}
    documents = {
        "members": {"text": "", **fields},
        "fields": {"fields": fields},
        "labels": {"labels": {name: label for name, label in labels.items() if label}},
        "id": {"id": person["id"]},
        "ids": person["id"],
        "texts": person["text"],
    }
    return documents[form]


def order_of(reply: dict[str, Any]) -> list[int]:
    scores = [result["relevance_score"] for result in reply["results"]]
    assert all(higher > lower for higher, lower in pairwise(scores))
    return [result["index"] for result in reply["results"]]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"attributes": ["gender"]},
    {"attributes": ["gender", "place"], "intersect": True},
    {"target": "gender=female:0.5,male:0.5", "k": 7},
    {"fairness_weight": 4, "discount": "rbp(0.8)", "k": 30},
]
FORMS = ["members", "fields", "labels", "id", "ids", "texts"]


def in_order_of_scores(data: st.DataObject, documents: list[Any]) -> tuple[list[Any], list[int]]:
    """Give documents that are objects scores, or not; return them and the order as it came."""
    order = list(range(len(documents)))
    if not isinstance(documents[0], dict) or not data.draw(st.booleans()):
        return documents, order
    number = len(documents)
    scores = data.draw(st.lists(st.integers(-3, 3), min_size=number, max_size=number))
    order.sort(key=lambda position: -scores[position])
    scored = [{**sent, "score": score} for sent, score in zip(documents, scores, strict=True)]
    return scored, order


def fair_order(people: list[dict[str, Any]], order: list[int], context: Context) -> list[int]:
    """Return the order that the re-ranker of the Python API gives, with what it leaves out."""
    passages = []
    for position in order:
        person = people[position]
        labels = {"gender": person.get("gender"), "continent": person.get("continent")}
        passages.append(Passage("", metadata={**labels, "position": position}))
    ranker = FairReranker(labels={"attributes": FIELDED}, context=context)
    fair = [doc.metadata["position"] for doc in ranker.compress_documents(passages, "any")]
    return [*fair, *(position for position in order if position not in fair)]


@pytest.mark.promise("service")
@settings(max_examples=60)
@given(data=st.data())
def test_the_list_is_that_of_the_re_ranker(
    service: Served, world: tuple[Path, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """A re-ranked list is exactly that of `FairReranker`.

    Exactly, however labels come, with scores and without, whatever is asked for.
    """
    labelled = st.sampled_from(
        [person for person in world[1] if {"gender", "continent"} <= person.keys()]
    )
    people = [data.draw(labelled), *data.draw(st.lists(st.sampled_from(world[1]), max_size=40))]
    form = data.draw(st.sampled_from(FORMS))
    options = data.draw(st.sampled_from(OPTIONS))
    documents, order = in_order_of_scores(data, [as_sent(form, person) for person in people])
    top_n = data.draw(st.none() | st.integers(1, 50))
    context = Context.of(**{"k": top_n or 20, **options})

    model = "fielded" if form in ("members", "fields") else "filed"
    if form in ("ids", "texts"):
        model += f"?documents={form}"
    body = {
        "model": model,
        "query": "physicist",
        "fairqr": options,
        "top_n": top_n,
        "documents": documents,
        "return_documents": True,
    }
    answer = service.client.post("/v1/rerank", json=body)

    assert answer.status_code == 200, answer.text

    reply = answer.json()
    assert order_of(reply) == fair_order(people, order, context)[:top_n]

    sent = [{"text": text} if isinstance(text, str) else text for text in documents]
    returned = [result["document"] for result in reply["results"]]
    assert returned == [sent[position] for position in order_of(reply)]

    missing = {
        "gender": sum(not person.get("gender") for person in people),
        "place": sum(not person.get("continent") for person in people),
    }
    attributes = options.get("attributes", ["gender", "place"])

    assert reply["fairqr"]["unlabelled"] == {name: missing[name] for name in attributes}


IDS = ["p01", "p04", "p08", "p03", "p10", "p06"]
FAIR = [0, 3, 1, 2, 5, 4]
"""The order of these six, of whom the fourth and the sixth are women."""
MODEL = "filed?attributes=gender&k=6&documents=ids"


@pytest.mark.promise("service")
@pytest.mark.parametrize("kind", [cohere.ClientV2, cohere.Client], ids=["v2", "v1"])
def test_the_client_of_cohere(service: Served, kind: Any) -> None:
    """The clients of Cohere, in both versions, re-rank lists with the service."""
    client = kind(api_key="theirs", base_url=service.url.rstrip("/"))
    reply = client.rerank(model=MODEL, query="physicist", documents=IDS)
    assert [result.index for result in reply.results] == FAIR

    unknown = client.rerank(model="filed", query="physicist", documents=["a", "b"])
    assert [result.index for result in unknown.results] == [0, 1]


@pytest.mark.promise("service")
def test_the_client_of_langchain(service: Served) -> None:
    """LangChain's re-ranker of Cohere re-ranks lists with the service."""
    ranker = CohereRerank(
        base_url=service.url.rstrip("/"), cohere_api_key="theirs", model=MODEL, top_n=4
    )
    assert [result["index"] for result in ranker.rerank(IDS, "physicist")] == FAIR[:4]

    by_text = ranker.model_copy(update={"model": "filed?attributes=gender&documents=texts"})
    passages = [Passage(f"A physicist. {id_}") for id_ in IDS]
    assert by_text.compress_documents(passages, "physicist")


OBJECTS = [{"id": id_, "text": "a physicist"} for id_ in IDS]
BY_ID = {"model": MODEL, "query": "physicist", "documents": IDS}
BY_OBJECT = {"model": "filed?attributes=gender&k=6", "query": "physicist", "documents": OBJECTS}
BY_JINA = {**BY_ID, "model": "jina-reranker-v2-base-multilingual"}
WITH_MODEL = f"/v1/rerank?{urlencode({'model': MODEL})}"


@pytest.mark.parametrize(
    "change",
    [{}, {"top_n": 0}, {"documents": [{"text": "a" * 1_000_000}]}, {"documents": None}],
    ids=["list", "nothing", "large", "wrong"],
)
@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_another_path_is_the_same(service: Served, path: str, change: dict[str, Any]) -> None:
    """With what is refused."""
    body = {**BY_ID, **change}
    first = service.client.post("/v1/rerank", json=body)
    other = service.client.post(path, json=body)

    assert other.status_code == first.status_code
    assert other.headers.get("fairqr") == first.headers.get("fairqr")
    assert {**other.json(), "instance": ""} == {**first.json(), "instance": ""}


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_only_one_path_is_described(service: Served, path: str) -> None:
    assert path not in service.client.get("/openapi.json").json()["paths"]
    assert service.client.get(path).status_code == service.client.get("/v1/rerank").status_code


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {**BY_ID, "top_n": 4, "return_documents": True}),
        ("/v1/rerank", {**BY_OBJECT, "top_n": 4, "return_documents": True}),
        ("/v2/rerank", {**BY_OBJECT, "top_n": 4, "return_documents": True}),
        ("/v1/rerank", {**BY_OBJECT, "rank_fields": ["text"], "max_chunks_per_doc": None}),
        ("/v1/rerank", {**BY_OBJECT, "truncate_prompt_tokens": -1, "top_n": 6}),
        ("/v1/rerank", {**BY_ID, "top_n": len(IDS)}),
        ("/rerank", {**BY_OBJECT, "truncate_prompt_tokens": -1, "top_n": 6}),
        ("/rerank", {**BY_ID, "top_n": 4, "return_documents": True, "raw_scores": False}),
        ("/rerank", {**BY_OBJECT, "rank_fields": ["text"], "top_n": 4}),
        (WITH_MODEL, {**BY_JINA, "top_n": 5, "return_documents": True}),
        ("/rerank", {**BY_OBJECT, "top_n": 0, "return_documents": False}),
        (f"/rerank?{urlencode({'model': MODEL})}", {"query": "physicist", "documents": IDS}),
        (WITH_MODEL, {**BY_ID, "model": None, "top_n": -1}),
    ],
    ids=[
        "jina",
        "litellm-jina",
        "litellm-cohere",
        "cohere",
        "vllm",
        "open-webui",
        "vllm-without-version",
        "infinity",
        "together",
        "librechat",
        "infinity-without-texts",
        "llama.cpp",
        "dify",
    ],
)
@pytest.mark.parametrize("token", ["Bearer theirs", "Bearer"], ids=["token", "no token"])
def test_the_requests_of_other_clients(
    service: Served, path: str, body: dict[str, Any], token: str
) -> None:
    """Requests of Jina's, LiteLLM's, vLLM's, Infinity's, open-webui's, LibreChat's, Dify's and
    other clients are served as our page configures them.

    They always send a token of their own, as text and score in the order that we chose.
    """
    reply = service.client.post(path, json=body, headers={"Authorization": token}).json()
    top_n = body.get("top_n") or 0
    expected = FAIR[:top_n] if top_n > 0 else FAIR

    assert order_of(reply) == expected
    assert reply["usage"] == {"prompt_tokens": 0, "total_tokens": 0}

    if body.get("return_documents"):
        texts = [sent if isinstance(sent, str) else sent["text"] for sent in body["documents"]]
        returned = [result["document"]["text"] for result in reply["results"]]
        assert returned == [texts[position] for position in expected]


def configured(title: str) -> Any:
    """Return a configuration that our page gives."""
    block = re.search(rf'```json title="{title}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert block
    return json.loads(block[1])


def filled(template: str, **values: str) -> bytes:
    for name, value in values.items():
        template = template.replace(f"${{{name}}}", value)
    assert "${" not in template
    return template.replace("people?", "filed?attributes=gender&k=6&").encode()


def values_at(path: str, reply: dict[str, Any]) -> list[Any]:
    """Return what a JSON path below the results names."""
    results = "$.results[*]."
    assert path.startswith(results)
    return [result[path.removeprefix(results)] for result in reply["results"]]


@pytest.mark.promise("service")
def test_the_requests_of_elasticsearch(service: Served) -> None:
    """Elasticsearch re-ranks with the service by the configuration of our page.

    As its custom service makes them, which takes every document's score, and sorts by them.
    """
    configuration = configured("inference.json")["service_settings"]
    assert filled(configuration["headers"]["Authorization"], key="fqr_1") == b"Bearer fqr_1"

    body = filled(configuration["request"], query=json.dumps('a "b"'), input=json.dumps(IDS))
    headers = {"Content-Type": configuration["headers"]["Content-Type"]}
    reply = service.client.post("/v1/rerank", content=body, headers=headers).json()
    paths = configuration["response"]["json_parser"]
    indexes = values_at(paths["reranked_index"], reply)
    scores = values_at(paths["relevance_score"], reply)
    score_of = dict(zip(indexes, scores, strict=True))

    assert sorted(range(len(IDS)), key=score_of.__getitem__, reverse=True) == FAIR


@pytest.mark.promise("service")
def test_the_requests_of_opensearch(service: Served) -> None:
    """OpenSearch re-ranks with the service by the configuration of our page.

    As its connector makes them, with Cohere's functions: every document needs a score.
    """
    connector = configured("connector.json")
    (action,) = connector["actions"]
    assert {action["pre_process_function"], action["post_process_function"]} == {
        "connector.pre_process.cohere.rerank",
        "connector.post_process.cohere.rerank",
    }

    values = {"query": "physicist", "documents": json.dumps(IDS), **connector["parameters"]}
    parameters = {f"parameters.{name}": value for name, value in values.items()}
    body = filled(action["request_body"], **parameters)
    reply = service.client.post("/v1/rerank", content=body, headers=JSON).json()
    scores = [0.0] * len(IDS)
    for result in reply["results"]:
        scores[result["index"]] = result["relevance_score"]

    assert sorted(range(len(IDS)), key=lambda position: -scores[position]) == FAIR

    (processor,) = configured("pipeline.json")["response_processors"]
    assert processor["rerank"]["context"]["document_fields"] == ["id"]


WOMAN = {"text": "a", "gender": "female"}
MAN = {"text": "b", "gender": "male"}


@pytest.mark.promise("service")
@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        ({"documents": []}, 422, "'documents' is wrong"),
        ({"documents": [WOMAN, 7]}, 422, "'documents.1' is wrong"),
        ({"documents": [{**WOMAN, "score": "high"}]}, 422, "'documents.0.score' is wrong"),
        ({"documents": [{**WOMAN, "score": 1}, MAN]}, 422, "give all or none"),
        ({"documents": [{"labels": {"gendr": "female"}}]}, 422, "no attribute 'gendr'"),
        ({"query": "a" * 2001}, 422, "length of the query"),
        ({"model": ""}, 422, "Name a source as the 'model', such as 'notables?attributes=gender'."),
        ({"top_n": -2}, 422, "'top_n' is wrong"),
        ({"model": "nobody"}, 403, "The index 'nobody' is not offered"),
        ({"model": "../fielded"}, 404, "There is no index"),
        ({"model": "fielded?attributes=age"}, 422, "no attribute 'age'"),
        ({"model": "fielded?method=mmr"}, 422, "not re-ranked by 'method'; use attributes,"),
        ({"model": "fielded?k=1&k=2"}, 422, "'k' is wrong"),
        ({"model": "fielded?documents=all"}, 422, "not re-ranked by 'documents'"),
        ({"fairqr": {"k": 101}}, 422, "at most 100 (k)"),
        ({"fairqr": {"target": "corpus:1"}}, 422, "so the target cannot have the part 'corpus'"),
        ({"documents": [WOMAN] * 1001}, 422, "The number of documents is 1,001"),
        ({"documents": [{**WOMAN, "more": [0] * 25_000}]}, 422, "more than 25,000 values"),
        ({"documents": [{**WOMAN, "text": "a" * 1_000_000}]}, 413, "more than 1,000,000 bytes"),
    ],
    ids=[
        "no documents",
        "no document",
        "score as text",
        "some scores",
        "label",
        "long query",
        "no model",
        "top_n",
        "unknown source",
        "path",
        "attribute",
        "method",
        "twice",
        "documents",
        "k",
        "target",
        "many documents",
        "many values",
        "many bytes",
    ],
)
def test_a_wrong_list_is_told_in_a_sentence(
    service: Served, change: dict[str, Any], status: int, sentence: str
) -> None:
    """What is wrong with a list that is to be re-ranked is told in a sentence, and never a wrong
    order given in silence.
    """
    right = {"model": "fielded", "query": "physicist", "documents": [MAN, WOMAN]}
    answer = service.client.post("/v1/rerank", json={**right, **change})
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (
            {"query": "a", "texts": ["b", "c"], "raw_scores": False},
            "'query', 'texts', 'raw_scores'",
        ),
        (
            {"model": "fielded", "query": {"text": "a"}, "passages": [{"text": "b"}]},
            "'model', 'query', 'passages'",
        ),
        ({"query": "a", "text_1": "a", "text_2": ["b"]}, "'query', 'text_1', 'text_2'"),
        ({"model": "fielded", "input": "a"}, "'model', 'input'"),
        ({}, "nothing"),
    ],
    ids=["tei", "nvidia", "vllm score", "embeddings", "nothing"],
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_a_list_in_another_form_is_told_what_it_must_have(
    service: Served, path: str, body: dict[str, Any], fields: str
) -> None:
    """They would not understand our answer either."""
    answer = service.client.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "The body is wrong: it needs 'documents', a list of texts or objects, beside 'model' and "
        f"'query', as in Jina's and Cohere's format; it has {fields}."
    )


def reranked(service: Served, **change: Any) -> tuple[dict[str, Any], str]:
    """The answer, and the header that says what was done."""
    right = {"model": "fielded?attributes=gender", "query": "physicist", "documents": [MAN, WOMAN]}
    answer = service.client.post("/v1/rerank", json={**right, **change})
    assert answer.status_code == 200, answer.text
    return answer.json(), answer.headers["fairqr"]


@pytest.mark.parametrize(
    "documents",
    [
        ["Luke, I am your father"],
        ["a", "b", "c"],
        [{"text": "a", "gender": "f"}, {"text": "b", "gender": None}],
        [{"text": "a", "gender": {"female": -1}}, {"text": "b", "gender": [[]]}],
        [{"id": "nobody", "text": "a"}],
    ],
    ids=["one text", "texts", "other labels", "odd labels", "unknown id"],
)
def test_a_list_of_which_nothing_is_known_keeps_its_order(
    service: Served, documents: list[Any]
) -> None:
    """Elasticsearch tries an endpoint with one made-up document before it accepts it."""
    reply, header = reranked(service, documents=documents)
    assert [result["index"] for result in reply["results"]] == list(range(len(documents)))
    assert header == "not re-ranked; no labels"
    assert "No document has a label of gender" in reply["warnings"][0]
    assert reply.get("fairqr") is None


def test_copies_share_a_claim_by_merit_and_that_is_told(service: Served) -> None:
    """The claim of the man is that of the first rank, however often his document comes."""
    documents = [MAN, WOMAN, *[{**MAN, "text": MAN["text"].upper()}] * 8]
    reply, _ = reranked(service, documents=documents, fairqr={"target": "merit:1"})
    assert reply["warnings"] == ["In the target, 9 near duplicates count as 1."]
    assert reply["fairqr"]["estimated"] is False
    assert reply["fairqr"]["target"]["gender"]["male"] == pytest.approx(1 / (1 + 61 / 62))

    other, _ = reranked(service, documents=documents, fairqr={"target": "retrieved:1"})
    assert other["warnings"] == []


@pytest.mark.parametrize(
    "unread",
    ["f", ["x"], {"female": -1}, [{"a": "b"}]],
    ids=["text", "list", "shares", "objects"],
)
def test_one_label_that_cannot_be_read_is_unknown_and_told(service: Served, unread: Any) -> None:
    reply, _ = reranked(service, documents=[MAN, WOMAN, {"text": "c", "gender": unread}])
    assert sorted(result["index"] for result in reply["results"]) == [0, 1, 2]
    assert reply["fairqr"]["unlabelled"] == {"gender": 1}
    assert reply["warnings"][0].startswith("1 of 3 documents have a gender of no group")


@pytest.mark.parametrize(
    "change",
    [
        {"return_documents": None, "top_n": None, "fairqr": None},
        {"documents": [{**MAN, "id": None}, {**WOMAN, "text": None, "fields": None}]},
        {"query": ""},
        {"query": None},
        {"query": {"text": "physicist"}},
        {"documents": [MAN, WOMAN, None], "top_k": 2},
        {"documents": [MAN, {**WOMAN, "labels": {"gender": None}}]},
        {"query": " "},
    ],
    ids=[
        "null options",
        "null fields",
        "empty query",
        "null query",
        "query as object",
        "null document",
        "null label",
        "blank query",
    ],
)
def test_nulls_and_empty_texts_are_what_is_left_out(
    service: Served, change: dict[str, Any]
) -> None:
    reply, header = reranked(service, **change)
    assert len(reply["results"]) == 2
    assert header.startswith("re-ranked; ")


def test_a_client_that_cuts_at_one_half_loses_nothing(service: Served) -> None:
    reply, _ = reranked(service, documents=[MAN, WOMAN] * 50)
    scores = [result["relevance_score"] for result in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert (max(scores), len(set(scores))) == (1.0, 100)
    assert min(scores) > 0.5


def test_a_thousand_documents_with_fields_are_a_list_like_any(service: Served) -> None:
    """Same ids and texts twice are two documents; a list is longer than what k may be."""
    fields = {f"field{number}": number for number in range(15)}
    documents = []
    for number in range(1000):
        gender = "male" if number % 4 else "female"
        document = {"id": number % 500, "text": "x" * 400, "score": -number, "gender": gender}
        documents.append({**document, **fields})
    body = {"model": "fielded?attributes=gender", "query": "physicist", "documents": documents}
    reply = service.client.post("/v1/rerank", json={**body, "top_n": 1000}).json()

    assert sorted(order_of(reply)) == list(range(1000))
    assert reply["fairqr"]["unlabelled"] == {"gender": 0}
    assert reply["fairqr"]["estimated"] is False


async def test_texts_tell_which_documents_are_relevant(minilm_cache: Path) -> None:
    """Only the first 200 are read, and none twice."""
    texts = ["A recipe for onion soup"] * 3 + ["She studied the physics of atoms", " "]
    ids = [str(number) for number in range(300)]
    missing: list[str] = []
    hits = Hits(ids[:5], [1.0] * 5, {})
    known = ListEvidence()
    patient = ListEvidence(encode_later=missing.extend)
    (later,) = await patient.estimated(["physicist"], texts, hits)

    assert later.relevance is None
    assert {"physicist", *texts} == set(missing)  # to be encoded afterwards

    estimated, of_another = await known.estimated(["physicist", "onion soup"], texts, hits)
    assert of_another.relevance is not None
    assert of_another.relevance[:3].min() > of_another.relevance[3]

    probabilities = estimated.relevance
    assert probabilities is not None
    assert probabilities[3] > 0.5 > probabilities[:3].max()

    (again,) = await patient.estimated(["physicist"], texts, hits)
    assert again.relevance is not None
    assert again.relevance.tolist() == probabilities.tolist()

    (long,) = await known.estimated(["physicist"], texts * 60, Hits(ids, [1.0] * 300, {}))
    assert long.relevance is not None
    assert len(long.relevance) == 300

    (blank,) = await known.estimated(["physicist"], [" "] * 5, hits)
    assert blank.relevance is None


async def test_a_short_list_waits_for_no_long_lists_of_another_key(minilm_cache: Path) -> None:
    """Keys take turns after a few texts."""
    encoding = Slots(1, share=1.0)
    evidence = ListEvidence()
    ended: list[str] = []

    async def estimate(key: str, name: str, size: int) -> None:
        texts = [f"{name}: physicist {number}" for number in range(size)]
        hits = Hits([*map(str, range(size))], [1.0] * size, {})
        (estimate_,) = await evidence.estimated(["x"], texts, hits, partial(encoding.hold, key))
        assert estimate_.relevance is not None
        ended.append(name)

    long = [asyncio.create_task(estimate("one", f"long {number}", 100)) for number in range(3)]
    await asyncio.sleep(0.05)
    await estimate("other", "short", 3)

    assert ended == ["short"]

    await asyncio.gather(*long)


async def test_the_lists_of_a_service_are_encoded_in_turns(
    minilm_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path))
    people = [("She studied atoms", "female"), ("He studied stars", "male")]
    documents = [{"text": text, "labels": {"gender": group}} for text, group in people]
    request = {"model": "notables?attributes=gender", "query": "physicist", "documents": documents}
    async with in_process() as client:
        parts = client._transport.app.state.parts  # type: ignore[attr-defined]
        async with parts.encoding.hold("other"):
            asking = asyncio.create_task(client.post("/v1/rerank", json=request))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asking), 1)
        answer = await asking

    assert answer.json()["fairqr"]["estimated"] is True
