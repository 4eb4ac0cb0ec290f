"""An endpoint is asked as its source says, and whatever it does wrong ends in one sentence."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fairqr.base.errors import (
    ConfigError,
    DocumentNotFoundError,
    IndexUnavailableError,
    QueryError,
    SourceError,
    UnsupportedError,
)
from fairqr.graph.service.execution.engines import links_of, read_document
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.engines.http import HttpEngine, check, open_http
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.source import HttpSource
from tests.servers.model_server import Answer, Asked, ModelServer

pytestmark = pytest.mark.usefixtures("clean_environment")

GENDER = {"field": "person.sex", "groups": {"female": ["F"], "male": ["M"]}}
SECRET = "s3cret-of-this-endpoint"


def hit(number: int, **more: Any) -> dict[str, Any]:
    return {
        "key": f"d{number}",
        "relevance": 10.0 - number,
        "person": {"sex": "FM"[number % 2], "name": f"Person {number}"},
        "paragraphs": [f"About {number}.", "More."],
        **more,
    }


def answer(*hits: Any, **how: Any) -> Answer:
    return Answer(body=json.dumps({"result": {"items": hits}}).encode(), **how)


class Endpoint:
    """A server, and engines over it."""

    def __init__(self, server: ModelServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.does, self.url = server.does, f"{server.base_url}/search"

    @property
    def asked(self) -> list[Asked]:
        return self.server.asked

    async def engine(self, **changes: Any) -> HttpEngine:
        """An engine whose source has these changes."""
        described: dict[str, Any] = {
            "name": "people",
            "engine": "http",
            "url": self.url,
            "body": {"q": "{{query}}", "size": "{{size}}"},
            "hits": "result.items",
            "id": "key",
            "score": "relevance",
            "title": "person.name",
            "text": "paragraphs",
            "attributes": {"gender": GENDER},
            **changes,
        }
        source = HttpSource.model_validate({k: v for k, v in described.items() if v is not None})
        labels = await LabelReader.open(source.attributes, self.folder, store=self.folder / "kept")
        return await open_http(source, labels)

    async def search(self, text: str = "a", n: int = 5, **changes: Any) -> Hits:
        (hits,) = await (await self.engine(**changes)).search([Query(text, n)])
        return hits


@pytest.fixture
def endpoint(model_server: ModelServer, tmp_path: Path) -> Endpoint:
    return Endpoint(model_server, tmp_path)


async def test_hits_come_best_first_with_labels_titles_and_texts(endpoint: Endpoint) -> None:
    endpoint.does(answer(hit(1), hit(0), hit(2), hit(3, relevance=9)))
    people = await endpoint.engine()
    (hits,) = await people.search([Query("physicist", 3)])
    assert hits.ids == ["d0", "d1", "d3"]  # equal scores in order of id
    assert hits.scores == [10, 9, 9]
    assert hits.memberships["gender"].tolist() == [[1, 0], [0, 1], [0, 1]]
    assert endpoint.asked[0].body == {"q": "physicist", "size": 3}

    documents = await people.documents(["d3", "unknown", "d0"])
    assert [(d.id, d.title, d.text) for d in documents] == [
        ("d3", "Person 3", "About 3.\nMore."),
        ("d0", "Person 0", "About 0.\nMore."),
    ]
    assert [d.label(people.schema.attribute("gender")) for d in documents] == ["M", "F"]
    info = await people.info()
    assert (info.engine, info.documents, info.location) == ("http", None, people.source.url)
    await people.aclose()
    await people.aclose()


async def test_a_document_is_read_with_its_groups_and_link(
    endpoint: Endpoint,
) -> None:
    homes = ["https://people.example/0", "javascript:alert(1)", None, 7, "http://", "x" * 3000]
    hits = [hit(number, person={"sex": "F", "home": home}) for number, home in enumerate(homes)]
    endpoint.does(answer(*hits))
    people = await endpoint.engine(link="person.home")
    with pytest.raises(DocumentNotFoundError, match="'people' has no document 'd0' that a search"):
        await read_document(people, "d0", "person.home")
    await people.search([Query("physicist", 10)])
    read = [await read_document(people, f"d{number}", "person.home") for number in range(6)]
    assert [document.link for document in read] == [homes[0], *[None] * 5]
    assert (read[0].text, read[0].groups) == ("About 0.\nMore.", {"gender": {"female": 1.0}})
    links = await links_of(people, ["d0", "d1", "unknown"], "person.home")
    assert links == {"d0": homes[0]}


async def test_a_missing_score_is_made_from_the_rank(
    endpoint: Endpoint,
) -> None:
    (endpoint.folder / "sexes.csv").write_text("id,group\nd3,m\nd5,f\n")
    endpoint.does(answer(hit(5), hit(3), hit(4)))
    people = await endpoint.engine(score=None, attributes={"gender": {"labels": "sexes.csv"}})
    (hits,) = await people.search([Query("physicist woman laboratory", 3)])
    assert endpoint.asked[0].body["q"] == "physicist woman laboratory"
    assert (hits.ids, hits.scores) == (["d5", "d3", "d4"], [1, 1 / 2, 1 / 3])
    assert hits.memberships["gender"].tolist() == [[1, 0], [0, 1], [0, 0]]


HOSTILE = [
    'say "hi"',
    '"}, "size": 1000, "x": {"',
    "{{query}} {{size}}",
    "a&size=9#x?y=%20+/../",
    "Zoë 東京 𝄞",
    "\\",
    "two\nlines",
    "half \ud800",
]


@pytest.mark.promise("engines")
@pytest.mark.parametrize("text", HOSTILE)
async def test_a_query_arrives_as_itself(endpoint: Endpoint, text: str) -> None:
    """A query is text: for an endpoint it changes nothing in a request but its value."""
    endpoint.does(answer())
    await endpoint.search(text, 3)
    url = f"{endpoint.url}?q={{{{query}}}}&size={{{{size}}}}"
    await endpoint.search(text, 3, url=url, body=None, method="GET")
    in_body, in_url = endpoint.asked
    text = text.replace("\ud800", "?")
    assert in_body.body == {"q": text, "size": 3}
    assert parse_qs(urlsplit(in_url.path).query) == {"q": [text], "size": ["3"]}


async def test_a_query_in_a_path_is_one_part_of_it(endpoint: Endpoint) -> None:
    endpoint.does(answer())
    people = await endpoint.engine(url=f"{endpoint.server.base_url}/find/{{{{query}}}}", body=None)
    await people.search([Query("a/b c", 3)])
    assert endpoint.asked[0].path == "/v1/find/a%2Fb%20c"
    with pytest.raises(QueryError, match="puts the query into the path"):
        await people.search([Query("..", 3)])
    assert len(endpoint.asked) == 1


ZIPPED = {"Content-Encoding": "gzip"}
FIRST = "fails on hit 1, which has"
HERE, AWAY = SourceError, IndexUnavailableError


@pytest.mark.promise("engines")
async def test_an_endpoint_that_misbehaves_ends_in_one_sentence(endpoint: Endpoint) -> None:
    """An endpoint that misbehaves, by size, time or form, ends in one sentence."""
    for behaviour, kind, sentence in (
        (Answer(body=b"<html>Sign in</html>"), HERE, "answered no valid JSON"),
        (Answer(body=gzip.compress(b"[]"), headers=ZIPPED), HERE, "answered no valid JSON"),
        (Answer(body=b'{"results": []}'), HERE, "the answer, which has the keys results"),
        (Answer(body=b'{"result": {"items": 1}}'), HERE, "finds 1, but must find a list of hits;"),
        (answer("text"), HERE, f"'id: key' {FIRST} no keys: it has no id"),
        (answer({"ID": 1, "score": 2}), HERE, f"'id: key' {FIRST} the keys ID, score: it has no"),
        (answer(hit(1, key="\ud800")), HERE, "its id has half a surrogate pair"),
        (answer(hit(1), hit(1)), HERE, "'id: key' gives two hits the id 'd1'"),
        (answer(hit(1, relevance="9")), HERE, 'it finds "9", but must find a number; correct it.'),
        (answer(hit(1, relevance=float("nan"))), HERE, "but must find a number"),
        (answer(hit(1, relevance=10**400)), HERE, "int too large to convert to float"),
        (answer(hit(1, person={"name": {}})), HERE, "it finds {}, but must find a text"),
        (Answer(302, headers={"Location": "/elsewhere"}), HERE, "redirects to /elsewhere,"),
        (Answer(400), HERE, "answered 400; correct 'url', 'method' or 'body'."),
        (answer(hit(1), cut_after=20), AWAY, "broke off the connection (Remote"),
        (Answer(never=True), AWAY, "gave no complete answer within 0.4 s; try again"),
        (answer(hit(1), drip=0.05), AWAY, "gave no complete answer within 0.4 s"),
        (Answer(body=b" " * 5000), AWAY, "sent more than 4,000 bytes; make"),
        (Answer(401), AWAY, "refused access (401); set 'credentials'"),
        (Answer(503, headers={"Retry-After": "0"}), AWAY, "answered 503 on every attempt"),
    ):
        endpoint.does(behaviour)
        seconds = 0.4 if "0.4 s" in sentence else 30
        with pytest.raises(kind) as failed:
            await endpoint.search(timeout=seconds, max_bytes=4000)
        message = str(failed.value)
        assert sentence in message
        assert "people" in message or "person" in message
        assert "\n" not in message
        assert message.endswith(".")


async def test_parameters_stay_out_of_messages_and_logs(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """A key is often one of them."""
    target = {"Location": f"https://other.example/search?api_key={SECRET}&q=a#{SECRET}"}
    endpoint.does(Answer(307, headers=target))
    url = f"{endpoint.url}?key={SECRET}&q={{{{query}}}}"
    with caplog.at_level("INFO"), pytest.raises(SourceError) as failed:
        await endpoint.search(url=url, body=None, method="GET")
    assert endpoint.asked[0].path.endswith(f"/search?key={SECRET}&q=a")
    assert "redirects to https://other.example/search, which" in str(failed.value)
    assert f"GET {endpoint.url} " in caplog.text
    assert SECRET not in f"{failed.value} {caplog.text}"


async def test_passing_failures_are_retried_and_lasting_ones_named(
    endpoint: Endpoint,
) -> None:
    retry = Answer(429, headers={"Retry-After": "0"})
    endpoint.does(retry, Answer(503), answer(hit(1)))
    people = await endpoint.engine()
    (hits,) = await people.search([Query("a", 5)])
    assert hits.ids == ["d1"]
    assert len(endpoint.asked) == 3
    assert endpoint.asked[2].at - endpoint.asked[1].at >= 0.4  # it waits before it asks
    endpoint.server.close()
    await people.aclose()
    with pytest.raises(IndexUnavailableError, match=r"cannot be reached .*; start it"):
        await people.search([Query("a", 1)])


@pytest.mark.promise("engines")
async def test_what_an_endpoint_lacks_is_refused_before_a_request(endpoint: Endpoint) -> None:
    """What an endpoint lacks is refused before it is asked."""
    people = await endpoint.engine()
    for query, sentence in (
        (Query("a", 5, only=("d1",)), "Ranking given documents needs an engine that can score"),
        (Query("a", 0), "Counting the documents with a word needs an engine that can count"),
        (Query("a", 5, every_word=True), "Counting the documents with a word needs"),
        (Query("a", 5, within=("gender", "female")), "A query within a group needs an engine that"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            await people.search([Query("a", 5), query])
    with pytest.raises(UnsupportedError, match="The share of each group in all documents needs"):
        await people.corpus_shares()
    assert people.capabilities == {"new_queries"}
    assert endpoint.asked == []


@pytest.fixture
def other() -> Iterator[ModelServer]:
    """Another server than the one that the source names."""
    server = ModelServer()
    yield server
    server.close()


@pytest.fixture
def settings(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that may go to one address; another entry trusts a file that is not there."""
    path = endpoint.folder / "fairqr.toml"
    path.write_text(
        f'[credentials.production]\nurls = ["{endpoint.url}"]\nbearer = "{SECRET}"\n'
        f'headers = {{X-Tenant = "{SECRET}-too"}}\n'
        f'[credentials.lost]\nurls = ["{endpoint.url}"]\nca_certs = "none.pem"\n'
    )
    path.chmod(0o600)
    monkeypatch.setenv("FAIRQR_CONFIG", str(path))


@pytest.mark.promise("engines")
async def test_credentials_are_sent_to_their_own_address_alone(
    endpoint: Endpoint, settings: None, other: ModelServer
) -> None:
    """Credentials go only to their own address: an endpoint's redirect is not followed, and no
    cookie is kept.
    """
    target = {"Location": f"{other.base_url}/search"}
    endpoint.does(answer(hit(1)), Answer(307, headers=target))
    named = await endpoint.engine(credentials="production")
    await named.search([Query("a", 1)])
    headers = endpoint.asked[0].headers
    sent = headers["authorization"], headers["x-tenant"]
    assert sent == (f"Bearer {SECRET}", f"{SECRET}-too")
    with pytest.raises(SourceError, match="which we do not follow") as failed:
        await named.search([Query("a", 1)])
    with pytest.raises(ConfigError, match="may not be sent to") as refused:
        await endpoint.engine(url=f"{other.base_url}/search", credentials="production")
    assert SECRET not in f"{failed.value} {refused.value}"
    assert other.asked == []
    with pytest.raises(ConfigError, match=r"none\.pem cannot be read .*; correct ca_certs"):
        await endpoint.engine(credentials="lost")


@pytest.mark.promise("engines")
async def test_without_a_name_no_credentials_are_sent(
    endpoint: Endpoint, settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint whose source names no credentials gets none.

    Those of Elasticsearch are for Elasticsearch, even on the same address; no cookie is kept.
    """
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_URL", endpoint.server.base_url)
    monkeypatch.setenv("FAIRQR_ELASTICSEARCH_API_KEY", SECRET)
    endpoint.does(answer(hit(1), headers={"Set-Cookie": "session=abc"}), answer(hit(1)))
    people = await endpoint.engine()
    for _ in "12":
        await people.search([Query("a", 1)])
    for asked in endpoint.asked:
        assert SECRET not in json.dumps(asked.headers)
        assert "cookie" not in asked.headers


async def test_an_expression_that_is_none_or_does_not_fit_is_refused(endpoint: Endpoint) -> None:
    endpoint.does(answer(hit(1)))
    for changes, sentence in (
        ({"hits": "result["}, "'hits: result[' is not JMESPath"),
        ({"id": ""}, "'id: ' is not JMESPath"),
        ({"attributes": {"gender": {**GENDER, "field": "a..b"}}}, "'gender: a..b' is not JMESPath"),
        ({"score": "abs(key)"}, "'score: abs(key)' fails on hit 1"),
    ):
        with pytest.raises(SourceError, match=re.escape(sentence)):
            await endpoint.search(**changes)
    assert len(endpoint.asked) == 1, "those that are none are refused before anything is sent"


async def test_a_check_says_what_a_sample_query_finds(
    endpoint: Endpoint,
) -> None:
    endpoint.does(answer(*map(hit, range(10)), hit(11, person={"sex": "X"})))
    report = await check(await endpoint.engine(title="person.nam", link="person.home"))
    (gender,) = report.attributes
    assert (gender.documents, gender.labelled) == (11, 10)
    assert [value.value for value in gender.without_group] == ["X"]
    assert report.sample[0].groups == {"gender": {"female": 1.0}}
    for nothing in ("title: person.nam", "link: person.home"):
        assert f"'{nothing}' finds nothing in the hits; correct it." in report.remarks

    endpoint.does(answer())
    report = await check(await endpoint.engine(sample="tennis"))
    assert [asked.body["q"] for asked in endpoint.asked] == ["tennis"]
    assert "to a query that finds something" in report.remarks[0]

    nobody = hit(0, person={"sex": "X", "name": "Somebody"})
    endpoint.does(answer(*({**nobody, "key": n} for n in range(12))), answer(nobody))
    said = "'person.sex' of the attribute 'gender' contains X, none of which is in a group; correct"
    with pytest.raises(SourceError, match=said):
        await check(await endpoint.engine())
    # Few hits may lack it by chance.
    assert said in " ".join((await check(await endpoint.engine())).remarks)
