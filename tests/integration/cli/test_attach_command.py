"""An index that fairqr did not make: attached by a file, searched, and left as it was."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from fairqr import FairSearch
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.encoders.encoder import encode_documents, text_of
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import find_corpus
from fairqr.retrieval.sources.source import load_source
from tests.integration.filled_elasticsearch import fill, write_source
from tests.integration.model_server import (
    Command,
    Main,
    ModelServer,
    clean_environment,
    command,
    model_server,
    quick,
    write_people,
)
from tests.integration.page_service import run_command, served, settings_for
from tests.integration.service_client import answers_all
from tests.patience import PATIENCE

__all__ = ["clean_environment", "command", "model_server", "quick"]

pytestmark = [pytest.mark.elasticsearch, pytest.mark.usefixtures("clean_environment")]

INDEX = "hr-people-v3"
MAPPING = {
    "properties": {
        "headline": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "bio": {"type": "text", "analyzer": "english"},
        "person": {"properties": {"sex": {"type": "keyword"}}},
        "born": {"type": "integer"},
        "published": {"type": "boolean"},
    }
}
SEARCH = ("--model", "feedback", "--attribute", "gender", "-k", "10", "--json")


def source_text(url: str, **changes: str) -> str:
    """Return a source file; a change replaces the line that begins with its name, or adds it."""
    lines = {
        "name": "people",
        "engine": "elasticsearch",
        "url": url,
        "index": INDEX,
        "title": "headline",
        "text": "[bio]",
        "query": '{fields: ["headline^2", bio]}',
        "filter": "{term: {published: true}}",
        "attributes": (
            "\n  gender: {field: person.sex, groups: {female: [F, f], male: M},"
            " population: {female: 0.5, male: 0.5}}"
            "\n  era: {field: born, groups: {older: {lt: 1930}, younger: {gte: 1930}}}"
            "\n  continent: {labels: continents.csv}"
        ),
    } | changes
    return "".join(f"{name}: {value}\n" for name, value in lines.items() if value)


@pytest.fixture(scope="module")
def index(elasticsearch_url: str) -> Iterator[httpx.Client]:
    """A client of a server with an index of 61 people, one of whom is not published."""
    with httpx.Client(base_url=elasticsearch_url, timeout=PATIENCE, trust_env=False) as client:
        client.delete(f"/{INDEX}")
        client.put(f"/{INDEX}", json={"mappings": MAPPING}).raise_for_status()
        lines = []
        for person in [*_people(), {"id": "hidden", "title": "x", "text": "physicist"}]:
            number = int(person["id"][1:]) if person["id"] != "hidden" else 0
            lines.append(json.dumps({"index": {"_id": person["id"]}}))
            sex = {"female": "F" if number % 2 else "f", "male": "M"}.get(person.get("gender", ""))
            document = {
                "headline": person["title"],
                "bio": person["text"],
                # One has a value that belongs to no group.
                "person": {"sex": "X" if number == 59 else sex},
                "born": 1900 + number,
                "published": person["id"] != "hidden",
            }
            lines.append(json.dumps(document))
        headers = {"Content-Type": "application/x-ndjson"}
        body = "\n".join(lines) + "\n"
        client.post(f"/{INDEX}/_bulk?refresh=true", content=body, headers=headers)
        assert client.get(f"/{INDEX}/_count").json()["count"] == 61
        yield client
        client.delete(f"/{INDEX}")


def _people() -> list[dict[str, Any]]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = write_people(Path(folder)).read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def source(clean_environment: Path, index: httpx.Client) -> Path:
    """The file that describes the index, with a file of labels beside."""
    rows = "".join(f"{person['id']},{person['continent']}\n" for person in _people())
    (clean_environment / "continents.csv").write_text("id,group\n" + rows)
    path = clean_environment / "people.source.yaml"
    path.write_text(source_text(str(index.base_url)))
    return path


def state(index: httpx.Client) -> dict[str, Any]:
    """Return all that would change if anything were written, or left open."""
    stats = index.get(f"/{INDEX}/_stats").json()["_all"]["primaries"]
    indexing = {key: stats["indexing"][key] for key in ("index_total", "delete_total")}
    return {
        "mapping": index.get(f"/{INDEX}/_mapping").json(),
        "settings": index.get(f"/{INDEX}/_settings").json(),
        "count": index.get(f"/{INDEX}/_count").json()["count"],
        "indexing": indexing,
        "open": stats["search"]["open_contexts"],
        "scrolls": stats["search"]["scroll_current"],
        "indices": sorted(index.get("/_cat/indices?format=json&h=index").text),
    }


def test_an_index_is_attached_searched_everywhere_and_left_as_it_was(
    command: Command,
    source: Path,
    index: httpx.Client,
    model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By command, by Python and by the service: the same documents, and nothing is written."""
    before = state(index)
    attached = command("attach", source)
    assert attached.code == 0, attached
    assert "people: attached" in attached.stdout

    by_name = command("search", "physicist", "--corpus", "people", *SEARCH)
    by_file = command("search", "physicist", "--corpus", source, *SEARCH)
    assert by_name.code == by_file.code == 0, by_name
    result = SearchResult.model_validate(by_name.result)
    assert result.corpus == "people"
    assert len(result.ranking) == 10
    assert result.divergence < result.baseline.divergence
    ids = [document.id for document in result.ranking]
    assert "hidden" not in ids
    assert [one["id"] for one in by_file.result["ranking"]] == ids

    monkeypatch.chdir(source.parent)
    for named in ("people.source.yaml", "people", load_source(source)):
        with FairSearch.open(named, "feedback") as fair:
            found = fair.search("physicist", attribute="gender", k=10)
        assert [document.id for document in found.ranking] == ids

    target = ("--target", "retrieved:0.5,uniform:0.5")
    options = ("--model", "feedback", "-k", "10", "--json")
    all_three = command("search", "physicist", "--corpus", "people", *target, *options)
    assert set(all_three.result["exposure"]) == {"gender", "era", "continent"}

    model_server.does(answers_all)
    variables = settings_for(model_server, source.parent / "service")
    run_command(variables, "attach", source)
    with served(variables, "--corpus", "people") as address:
        asked = {"query": "physicist", "attributes": ["gender"], "k": 10, "model": "feedback"}
        answer = httpx.post(f"{address}/v1/search", json=asked, timeout=PATIENCE, trust_env=False)
        assert answer.status_code == 200, answer.text
        assert [document["id"] for document in answer.json()["ranking"]] == ids
        (described,) = httpx.get(f"{address}/v1/indexes", timeout=PATIENCE, trust_env=False).json()[
            "indexes"
        ]
        assert described["name"] == "people"
        assert described["engine"] == "elasticsearch"
        assert described["documents"] == 60
        assert described["attributes"]["continent"]["groups"] == ["Africa", "Asia", "Europe"]
        assert httpx.get(f"{address}/readyz", timeout=PATIENCE, trust_env=False).status_code == 200
    assert state(index) == before


def test_the_check_says_what_is_there(quick: Main, source: Path) -> None:
    """Server, documents, fields, each value with its count, and which belong to no group."""
    run = quick("attach", source)
    assert run.code == 0, run
    assert "8.12.2" in run.stdout
    assert "documents: 60" in run.stdout
    assert "gender, from person.sex: 59 of 60 documents have a group" in run.stdout
    assert "belongs to no group" in run.stdout
    assert "continent, from continents.csv: 60 of" in run.stdout
    assert "sample query" in run.stdout
    report = quick("source", "check", "people", "--json").result
    assert report == quick("source", "check", source, "--json").result
    assert report["documents"] == 60
    (gender,) = [one for one in report["attributes"] if one["name"] == "gender"]
    values = {one["value"]: (one["documents"], one["group"]) for one in gender["values"]}
    assert values == {
        "M": (39, "male"),
        "F": (10, "female"),
        "f": (10, "female"),
        "X": (1, None),
    }
    assert report["sample"]


def test_sources_are_listed_and_removed(quick: Main, source: Path, index: httpx.Client) -> None:
    """Only the name is forgotten; the file and the index stay."""
    assert quick("source", "list").stdout == ""
    assert quick("attach", source, "--json").result["name"] == "people"
    assert quick("source", "list").stdout == f"people\telasticsearch\t{source}\n"
    listed = quick("source", "list", "--json").result
    assert listed == {
        "sources": [{"name": "people", "file": str(source), "engine": "elasticsearch"}]
    }
    assert "people\telasticsearch\t60 documents" in quick("index", "list").stdout
    info = quick("index", "info", "people").stdout
    assert "gender: female 3" in info
    refused = quick("index", "delete", "people").complaint()
    assert "fairqr source remove people" in refused
    assert quick("source", "remove", "people").stdout == "people: no longer attached\n"
    assert source.exists()
    assert index.get(f"/{INDEX}/_count").json()["count"] == 61
    assert "'people'" in quick("search", "x", "--corpus", "people", *SEARCH).complaint()
    assert "'people'" in quick("source", "remove", "people").complaint()


def test_edits_of_the_file_take_effect_and_a_file_that_is_gone_is_one_sentence(
    quick: Main, source: Path, index: httpx.Client
) -> None:
    """The file stays where it is."""
    assert quick("attach", source).code == 0
    source.write_text(source_text(str(index.base_url), filter="{range: {born: {gte: 1930}}}"))
    result = quick("search", "physicist", "--corpus", "people", *SEARCH).result
    assert all(int(document["id"][1:]) >= 30 for document in result["ranking"])
    source.unlink()
    complaint = quick("search", "physicist", "--corpus", "people", *SEARCH).complaint()
    assert "people.source.yaml" in complaint
    assert "fairqr source remove people" in complaint
    assert "people" in quick("source", "list").stdout
    assert quick("source", "remove", "people").code == 0


def test_a_draft_can_be_attached(command: Command, source: Path, index: httpx.Client) -> None:
    """What is written from the mapping is a source, and says which values there are."""
    before = state(index)
    where = ("--url", str(index.base_url), "--index", INDEX)
    file = source.parent / "drafted.source.yaml"
    drafted = command("attach", "--draft", *where, "-o", file)
    assert drafted.code == 0, drafted
    assert command("attach", "--draft", *where).stdout == file.read_text()
    described = load_source(file)
    assert "person.sex" in {one.field for one in described.attributes.values()}
    attached = command("attach", file)
    assert attached.code == 0, attached
    # A mapping does not know the population.
    target = ("--target", "retrieved:0.5,uniform:0.5")
    arguments = (*target, "--model", "feedback", "-k", "5", "--json")
    found = command("search", "physicist", "--corpus", described.name, *arguments)
    assert len(found.result["ranking"]) == 5
    assert state(index) == before


def test_an_index_without_text_has_no_draft(quick: Main, index: httpx.Client) -> None:
    """No source could search it, so no file is written."""
    numbers = {"properties": {"year": {"type": "integer"}, "code": {"type": "keyword"}}}
    index.put("/hr-codes", json={"mappings": numbers}).raise_for_status()
    try:
        url = str(index.base_url)
        drafted = quick("attach", "--draft", "--url", url, "--index", "hr-codes", "-o", "a.yaml")
        assert "The index 'hr-codes' has no text field" in drafted.complaint()
        assert not Path("a.yaml").exists()
    finally:
        index.delete("/hr-codes")


GENDER = "\n  gender: {field: person.sex, groups: {female: [F, f], male: M}}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": "nothing-like-it"}, "nothing-like-it"),
        ({"title": "nohead", "query": ""}, "nohead"),
        ({"attributes": "\n  gender: {field: person.gender, groups: [f, m]}"}, "person.gender"),
        ({"attributes": "\n  gender: {field: headline, groups: [f, m]}"}, "headline.raw"),
        ({"attributes": "\n  gender: {labels: none.csv}"}, "none.csv"),
        ({"attributes": "\n  gender: {field: person.sex, groups: {a: [F], b: [F]}}"}, "'F'"),
        ({"attributes": "\n  gender: {field: person.sex, groups: [woman, man]}"}, "person.sex"),
        ({"query": "", "body": "{query: {match: {bio: x}}}"}, "{{query}}"),
        ({"query": "", "body": '{query: {nomatch: {bio: "{{query}}"}}}'}, "nomatch"),
        ({"filter": "{term: {nowhere: {}}}"}, "filter"),
        ({"credentials": "nobody"}, "credentials.nobody"),
        ({"url": "http://127.0.0.1:9"}, "127.0.0.1:9"),
        ({"url": "ftp://x"}, "at url"),
        ({"engine": "lucene"}, "engine must be one of"),
        ({"name": "notables"}, "notables"),
        ({"attributes": ""}, "attributes"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_registers_nothing(
    quick: Main,
    source: Path,
    index: httpx.Client,
    changes: dict[str, str],
    said: str,
) -> None:
    """It ends with exit code 2, and names what is wrong."""
    source.write_text(source_text(**{"url": str(index.base_url), **changes}))
    assert said in quick("attach", source).complaint()
    assert Catalog().sources() == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: [", "not valid YAML"),
        ("- a\n", "mapping"),
        ("", "mapping"),
        ("name: people\nname: people\n", "twice"),
    ],
)
def test_a_file_that_is_no_source_is_refused(
    quick: Main, source: Path, text: str, said: str
) -> None:
    """As is one that is not there."""
    source.write_text(text)
    assert said in quick("attach", source).complaint()
    assert "missing.yaml" in quick("attach", "missing.yaml").complaint()
    assert "missing.yaml" in quick("search", "x", "--corpus", "missing.yaml", *SEARCH).complaint()


def test_a_name_stands_for_one_thing(
    quick: Main, source: Path, index: httpx.Client, clean_environment: Path
) -> None:
    """A source cannot take the name of an index, nor an index that of a source."""
    corpus = write_people(clean_environment / "corpus")
    assert quick("index", "create", "people", corpus).code == 0
    assert "'people'" in quick("attach", source).complaint()
    assert quick("index", "delete", "people").code == 0
    assert quick("attach", source).code == 0
    assert quick("attach", source).code == 0, "attaching the same file again is no clash"
    assert "'people'" in quick("index", "create", "people", corpus).complaint()
    other = source.with_name("other.source.yaml")
    other.write_text(source.read_text())
    assert "'people'" in quick("attach", other).complaint()


class _Endpoint(BaseHTTPRequestHandler):
    """A search endpoint over the people: it counts the words of the query in the texts."""

    people: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        """Answer a search."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = asked["q"].lower().split()

        def score(person: dict[str, Any]) -> int:
            return sum(person["text"].lower().count(word) for word in words)

        found = sorted((one for one in self.people if score(one)), key=score, reverse=True)
        hits = [{"key": one["id"], "score": score(one), "doc": one} for one in found[: asked["n"]]]
        body = json.dumps({"results": hits}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def endpoint(clean_environment: Path) -> Iterator[Path]:
    """A source file of an HTTP endpoint."""
    _Endpoint.people = _people()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = clean_environment / "web.source.yaml"
    path.write_text(
        f"name: web\nengine: http\nurl: http://127.0.0.1:{server.server_port}/search\n"
        'body: {q: "{{query}}", n: "{{size}}"}\n'
        "hits: results\nid: key\nscore: score\ntitle: doc.title\ntext: doc.text\n"
        "attributes:\n  gender: {field: doc.gender, groups: [female, male],"
        " population: {female: 0.5, male: 0.5}}\n"
    )
    yield path
    server.shutdown()
    server.server_close()


def test_an_http_endpoint_is_attached_and_searched(
    command: Command, endpoint: Path, model_server: ModelServer
) -> None:
    """By command, and by a service that was given the file, which no request can name."""
    attached = command("attach", endpoint)
    assert attached.code == 0, attached
    model_server.does(answers_all)
    asked = ("--attribute", "gender", "-k", "10", "--json")
    model = ("--model", "openai:fake", "--base-url", model_server.base_url)
    found = command("search", "physicist", "--corpus", "web", *asked, *model)
    assert found.code == 0, found
    assert len(found.result["ranking"]) == 10

    variables = settings_for(model_server, endpoint.parent / "service")
    with (
        served(variables, "--corpus", endpoint) as address,
        httpx.Client(base_url=address, timeout=PATIENCE, trust_env=False) as client,
    ):
        request = {"query": "physicist", "attributes": ["gender"], "k": 10}
        for corpus in (None, "web"):
            body = request | ({"corpus": corpus} if corpus else {})
            answer = client.post("/v1/search", json=body, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["ranking"]) == 10
        for corpus in (str(endpoint), endpoint.name, "../web", "notables"):
            answer = client.post("/v1/search", json={**request, "corpus": corpus}, timeout=PATIENCE)
            assert answer.status_code in (403, 404), answer.text
        inline = client.post("/v1/search", json={**request, "corpus": {"engine": "http"}})
        assert inline.status_code == 422


def test_groups_of_a_run_come_from_a_source(
    quick: Main, source: Path, clean_environment: Path
) -> None:
    """``evaluate --corpus`` asks the engine for the labels of the documents that a run ranks."""
    run_file = clean_environment / "some.run"
    run_file.write_text(
        "".join(f"q1 Q0 p{number:02} {number + 1} {60 - number} some\n" for number in range(20))
    )
    assert quick("attach", source).code == 0
    measured = ("--measures", "AWRF@20", "--attribute", "gender", "--target", "population:1")
    for corpus in ("people", source):
        run = quick("evaluate", run_file, "--corpus", corpus, *measured, "--json")
        assert run.code == 0, run
        (one,) = run.result["runs"]
        assert "AWRF@20" in json.dumps(one)


def test_an_index_with_vectors_is_estimated_by_them(
    quick: Main,
    elasticsearch_url: str,
    clean_environment: Path,
    minilm_cache: Path,
) -> None:
    """The source names the encoder that made them."""
    corpus = find_corpus(write_people(clean_environment / "corpus"))
    documents = list(corpus.documents())
    rows = asyncio.run(encode_documents(open_encoder("minilm"), [text_of(d) for d in documents]))
    vectors = {d.id: row.tolist() for d, row in zip(documents, rows, strict=True)}
    own = {"field": "vector", "embeddings": "minilm"}
    with ExitStack() as stack:
        source = fill(stack, elasticsearch_url, "made", corpus, vectors, vectors=own)
        assert quick("attach", write_source(source, clean_environment)).code == 0
        run = quick("search", "physicist", "--corpus", "made", "--retriever", "dense", *SEARCH)
        assert (run.code, "only ranks in its own way; leave" in run.stderr) == (2, True)
        both = quick("search", "physicist", "--corpus", "made", "--retriever", "hybrid", *SEARCH)
        assert both.result["retriever"] == "hybrid:minilm"
        assert both.result["relevance"] is not None
