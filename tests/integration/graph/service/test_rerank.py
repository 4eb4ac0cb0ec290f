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
    every = {"gender": 7, "continent": 5}
    return {it: value for it, value in document.items() if it not in every or number % every[it]}


@pytest.fixture(scope="module")
def world(
    elasticsearch_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Two sources of people, some of whom have no label: one is a server's, with a label file."""
    folder = tmp_path_factory.mktemp("rerank")
    path = write_people(folder / "partly", without_some_labels)
    (folder / "partly" / "schema.yaml").unlink()
    known = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [f"{it['id']},{it['gender']}" for it in known if "gender" in it]
    (folder / "gender.csv").write_text("\n".join(["id,group", *rows]))
    server, fields = Server(elasticsearch_url), ["title", "text"]
    at = {"engine": server.engine, "url": server.url, "index": "rerank", "text": fields}
    local = {"engine": "tantivy", "documents": str(path), "attributes": FIELDED}
    for name, parts in (("fielded", local), ("filed", {**at, "attributes": FILED})):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **parts}))
    mapping = {"properties": {"continent": {"type": "keyword"}}}
    with closing(server.client), server.index("rerank", {it["id"]: it for it in known}, mapping):
        yield folder, known


@pytest.fixture(scope="module")
def service(world: tuple[Path, list[dict[str, Any]]]) -> Iterator[Served]:
    files = [str(world[0] / f"{name}.yaml") for name in ("fielded", "filed")]
    settings = f"sources = {json.dumps(files)}\ntraffic.rate = ''"
    with a_service(world[0] / "served", settings=settings) as running:
        yield running


def as_sent(how: str, person: dict[str, Any]) -> Any:
    """Return a document as a client sends it that knows labels in this way."""
    own = {"gender": person.get("gender"), "place": person.get("continent")}
    return {
        "members": {"text": "", **{it: person.get(it) for it in ("gender", "continent")}},
        "fields": {"fields": {it: person.get(it) for it in ("gender", "continent")}},
        "labels": {"labels": {it: label for it, label in own.items() if label}},
        "id": {"id": person["id"]},
        "ids": person["id"],
        "texts": person["text"],
    }[how]


def order_of(reply: dict[str, Any]) -> list[int]:
    scores = [one["relevance_score"] for one in reply["results"]]
    assert all(one > other for one, other in pairwise(scores))
    return [one["index"] for one in reply["results"]]


@settings(max_examples=60)
@given(data=st.data())
def test_the_list_is_that_of_the_re_ranker(
    service: Served, world: tuple[Path, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """Exactly, however labels come, with scores and without, whatever is asked for."""
    labelled = st.sampled_from([it for it in world[1] if {"gender", "continent"} <= it.keys()])
    people = [data.draw(labelled), *data.draw(st.lists(st.sampled_from(world[1]), max_size=40))]
    how = data.draw(st.sampled_from(["members", "fields", "labels", "id", "ids", "texts"]))
    source = "fielded" if how in ("members", "fields") else "filed"
    options: dict[str, Any] = data.draw(
        st.sampled_from(
            [
                {},
                {"attributes": ["gender"]},
                {"attributes": ["gender", "place"], "intersect": True},
                {"target": "gender=female:0.5,male:0.5", "k": 7},
                {"fairness_weight": 4, "discount": "rbp(0.8)", "k": 30},
            ]
        )
    )
    documents = [as_sent(how, person) for person in people]
    first = list(range(len(people)))
    if data.draw(st.booleans()) and isinstance(documents[0], dict):
        scores = data.draw(st.lists(st.integers(-3, 3), min_size=len(first), max_size=len(first)))
        documents = [{**one, "score": it} for one, it in zip(documents, scores, strict=True)]
        first.sort(key=lambda place: -scores[place])
    top_n = data.draw(st.none() | st.integers(1, 50))
    own = [(people[place].get("gender"), people[place].get("continent")) for place in first]
    passages = [
        Passage("", metadata={"gender": gender, "continent": place, "place": first[number]})
        for number, (gender, place) in enumerate(own)
    ]
    context = Context.of(**{"k": top_n or 20, **options})
    ranker = FairReranker(labels={"attributes": FIELDED}, context=context)
    fair = [it.metadata["place"] for it in ranker.compress_documents(passages, "any")]
    query = {"model": source, "query": "physicist", "fairqr": options, "top_n": top_n}
    query["model"] += f"?documents={how}" if how in ("ids", "texts") else ""
    body = {**query, "documents": documents, "return_documents": True}
    answer = service.client.post("/v1/rerank", json=body)
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert order_of(reply) == [*fair, *(it for it in first if it not in fair)][:top_n]
    sent = [{"text": one} if isinstance(one, str) else one for one in documents]
    assert [one["document"] for one in reply["results"]] == [sent[it] for it in order_of(reply)]
    told, named = reply["fairqr"], options.get("attributes", ["gender", "place"])
    missing = {"gender": sum(not it for it, _ in own), "place": sum(not it for _, it in own)}
    assert told["unlabelled"] == {name: missing[name] for name in named}


IDS = ["p01", "p04", "p08", "p03", "p10", "p06"]
FAIR = [0, 3, 1, 2, 5, 4]
"""The order of these six, of whom the fourth and the sixth are women."""
MODEL = "filed?attributes=gender&k=6&documents=ids"


@pytest.mark.parametrize("kind", [cohere.ClientV2, cohere.Client])
def test_the_client_of_cohere(service: Served, kind: Any) -> None:
    client = kind(api_key="theirs", base_url=service.url.rstrip("/"))
    found = client.rerank(model=MODEL, query="physicist", documents=IDS)
    assert [it.index for it in found.results] == FAIR
    unknown = client.rerank(model="filed", query="physicist", documents=["a", "b"])
    assert [it.index for it in unknown.results] == [0, 1]


def test_the_client_of_langchain(service: Served) -> None:
    ranker = CohereRerank(
        base_url=service.url.rstrip("/"), cohere_api_key="theirs", model=MODEL, top_n=4
    )
    assert [it["index"] for it in ranker.rerank(IDS, "physicist")] == FAIR[:4]
    by_text = ranker.model_copy(update={"model": "filed?attributes=gender&documents=texts"})
    passages = [Passage(f"A physicist. {it}") for it in IDS]
    assert by_text.compress_documents(passages, "physicist")


OBJECTS = [{"id": it, "text": "a physicist"} for it in IDS]
BY_ID = {"model": MODEL, "query": "physicist", "documents": IDS}
BY_OBJECT = {"model": "filed?attributes=gender&k=6", "query": "physicist", "documents": OBJECTS}
BY_JINA = {**BY_ID, "model": "jina-reranker-v2-base-multilingual"}
FOR_IT = f"/v1/rerank?{urlencode({'model': MODEL})}"


@pytest.mark.parametrize("path", ["/v2/rerank", "/rerank"])
def test_another_path_is_the_same(service: Served, path: str) -> None:
    """With what is refused; only one path is described."""
    large = [{**WOMAN, "text": "a" * 1_000_000}]
    for body in (BY_ID, {**BY_ID, "top_n": 0}, {**BY_ID, "documents": large}, {}):
        first = service.client.post("/v1/rerank", json=body)
        other = service.client.post(path, json=body)
        assert other.status_code == first.status_code
        assert other.headers.get("fairqr") == first.headers.get("fairqr")
        assert {**other.json(), "instance": ""} == {**first.json(), "instance": ""}
    assert path not in service.client.get("/openapi.json").json()["paths"]
    assert service.client.get(path).status_code == service.client.get("/v1/rerank").status_code


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
        (FOR_IT, {**BY_JINA, "top_n": 5, "return_documents": True}),
        ("/rerank", {**BY_OBJECT, "top_n": 0, "return_documents": False}),
        (f"/rerank?{urlencode({'model': MODEL})}", {"query": "physicist", "documents": IDS}),
        (FOR_IT, {**BY_ID, "model": None, "top_n": -1}),
    ],
    ids=[
        *("jina", "litellm-jina", "litellm-cohere", "cohere", "vllm", "open-webui"),
        *("vllm-without-version", "infinity", "together", "librechat"),
        *("infinity-without-texts", "llama.cpp", "dify"),
    ],
)
def test_the_requests_of_other_clients(service: Served, path: str, body: dict[str, Any]) -> None:
    """They always send a token of their own, as text and score in the order that we chose."""
    for token in ("Bearer theirs", "Bearer"):
        headers = {"Authorization": token}
        reply = service.client.post(path, json=body, headers=headers).json()
        returned = body.get("top_n") or 0
        assert order_of(reply) == (FAIR[:returned] if returned > 0 else FAIR)
        assert reply["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    if body.get("return_documents"):
        texts = [it if isinstance(it, str) else it["text"] for it in body["documents"]]
        assert [one["document"]["text"] for one in reply["results"]] == [texts[i] for i in FAIR][
            : body["top_n"]
        ]


def configured(title: str) -> Any:
    """Return a configuration that our page gives."""
    found = re.search(rf'```json title="{title}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


def filled(template: str, **values: str) -> bytes:
    for name, value in values.items():
        template = template.replace(f"${{{name}}}", value)
    assert "${" not in template
    return template.replace("people?", "filed?attributes=gender&k=6&").encode()


def test_the_requests_of_elasticsearch(service: Served) -> None:
    """As its custom service makes them, which takes every document's score, and sorts by them."""
    told = configured("inference.json")["service_settings"]
    assert filled(told["headers"]["Authorization"], key="fqr_1") == b"Bearer fqr_1"
    body = filled(told["request"], query=json.dumps('a "b"'), input=json.dumps(IDS))
    headers = {"Content-Type": told["headers"]["Content-Type"]}
    reply = service.client.post("/v1/rerank", content=body, headers=headers).json()
    paths = {name: path.split(".") for name, path in told["response"]["json_parser"].items()}
    found = {name: [it[last] for it in reply["results"]] for name, (_, _, last) in paths.items()}
    assert {tuple(path[:2]) for path in paths.values()} == {("$", "results[*]")}
    by_place = dict(zip(found["reranked_index"], found["relevance_score"], strict=True))
    assert sorted(range(len(IDS)), key=by_place.__getitem__, reverse=True) == FAIR


def test_the_requests_of_opensearch(service: Served) -> None:
    """As its connector makes them, with Cohere's functions: every document needs a score."""
    told = configured("connector.json")
    (action,) = told["actions"]
    assert {action["pre_process_function"], action["post_process_function"]} == {
        "connector.pre_process.cohere.rerank",
        "connector.post_process.cohere.rerank",
    }
    given = {"query": "physicist", "documents": json.dumps(IDS), **told["parameters"]}
    body = filled(action["request_body"], **{f"parameters.{it}": v for it, v in given.items()})
    reply = service.client.post("/v1/rerank", content=body, headers=JSON).json()
    scores = [0.0] * len(IDS)
    for one in reply["results"]:
        scores[one["index"]] = one["relevance_score"]
    assert sorted(range(len(IDS)), key=lambda place: -scores[place]) == FAIR
    (processor,) = configured("pipeline.json")["response_processors"]
    assert processor["rerank"]["context"]["document_fields"] == ["id"]


WOMAN, MAN = {"text": "a", "gender": "female"}, {"text": "b", "gender": "male"}


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
)
def test_a_wrong_list_is_told_in_a_sentence(
    service: Served, change: dict[str, Any], status: int, sentence: str
) -> None:
    """Never a wrong order in silence."""
    right = {"model": "fielded", "query": "physicist", "documents": [MAN, WOMAN]}
    answer = service.client.post("/v1/rerank", json={**right, **change})
    assert (answer.status_code, sentence in answer.json()["detail"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("body", "there"),
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
    ],
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_a_list_in_the_form_of_other_servers_is_told_what_the_body_must_have(
    service: Served, path: str, body: dict[str, Any], there: str
) -> None:
    """They would not understand our answer either."""
    answer = service.client.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "The body is wrong: it needs 'documents', a list of texts or objects, beside 'model' and "
        f"'query', as in Jina's and Cohere's format; it has {there}."
    )
    empty = service.client.post(path, json={})
    assert (empty.status_code, "it has nothing" in empty.json()["detail"]) == (422, True)


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
)
def test_a_list_of_which_nothing_is_known_keeps_its_order(
    service: Served, documents: list[Any]
) -> None:
    """Elasticsearch tries an endpoint with one made-up document before it accepts it."""
    found, said = reranked(service, documents=documents)
    assert [it["index"] for it in found["results"]] == list(range(len(documents)))
    assert said == "not re-ranked; no labels"
    assert "No document has a label of gender" in found["warnings"][0]
    assert found.get("fairqr") is None


def test_copies_share_a_claim_by_merit_and_that_is_told(service: Served) -> None:
    """The claim of the man is that of the first rank, however often his document comes."""
    documents = [MAN, WOMAN, *[{**MAN, "text": MAN["text"].upper()}] * 8]
    found, _ = reranked(service, documents=documents, fairqr={"target": "merit:1"})
    assert found["warnings"] == ["In the target, 9 near duplicates count as 1."]
    assert found["fairqr"]["estimated"] is False
    assert found["fairqr"]["target"]["gender"]["male"] == pytest.approx(1 / (1 + 61 / 62))
    other, _ = reranked(service, documents=documents, fairqr={"target": "retrieved:1"})
    assert other["warnings"] == []


@pytest.mark.parametrize("unread", ["f", ["x"], {"female": -1}, [{"a": "b"}]])
def test_one_label_that_cannot_be_read_is_unknown_and_told(service: Served, unread: Any) -> None:
    found, _ = reranked(service, documents=[MAN, WOMAN, {"text": "c", "gender": unread}])
    assert sorted(it["index"] for it in found["results"]) == [0, 1, 2]
    assert found["fairqr"]["unlabelled"] == {"gender": 1}
    assert found["warnings"][0].startswith("1 of 3 documents have a gender of no group")


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
)
def test_nulls_and_empty_texts_are_what_is_left_out(
    service: Served, change: dict[str, Any]
) -> None:
    found, said = reranked(service, **change)
    assert len(found["results"]) == 2
    assert said.startswith("re-ranked; ")


def test_a_client_that_cuts_at_one_half_loses_nothing(service: Served) -> None:
    found, _ = reranked(service, documents=[MAN, WOMAN] * 50)
    scores = [it["relevance_score"] for it in found["results"]]
    assert scores == sorted(scores, reverse=True)
    assert (max(scores), len(set(scores))) == (1.0, 100)
    assert min(scores) > 0.5


def test_a_thousand_documents_with_fields_are_a_list_like_any(service: Served) -> None:
    """Same ids and texts twice are two documents; a list is longer than what k may be."""
    documents = [
        {"id": number % 500, "text": "x" * 400, "score": -number, "gender": ("female", "male")[it]}
        | {f"field{more}": more for more in range(15)}
        for number, it in enumerate(number % 4 > 0 for number in range(1000))
    ]
    body = {"model": "fielded?attributes=gender", "query": "physicist", "documents": documents}
    reply = service.client.post("/v1/rerank", json={**body, "top_n": 1000}).json()
    assert sorted(order_of(reply)) == list(range(1000))
    assert reply["fairqr"]["unlabelled"] == {"gender": 0}
    assert reply["fairqr"]["estimated"] is False


async def test_texts_tell_which_documents_are_relevant(minilm_cache: Path) -> None:
    """Only the first 200 are read, and none twice."""
    texts = ["A recipe for onion soup"] * 3 + ["She studied the physics of atoms", " "]
    ids = [str(place) for place in range(300)]
    missing: list[str] = []
    hits, known = Hits(ids[:5], [1.0] * 5, {}), ListEvidence()
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
        (found,) = await evidence.estimated(["x"], texts, hits, partial(encoding.hold, key))
        assert found.relevance is not None
        ended.append(name)

    long = [asyncio.create_task(estimate("one", f"long {it}", 100)) for it in range(3)]
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
    asked = {"model": "notables?attributes=gender", "query": "physicist", "documents": documents}
    async with in_process() as client:
        parts = client._transport.app.state.parts  # type: ignore[attr-defined]
        async with parts.encoding.hold("other"):
            asking = asyncio.create_task(client.post("/v1/rerank", json=asked))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asking), 1)
        answer = await asking
    assert answer.json()["fairqr"]["estimated"] is True
