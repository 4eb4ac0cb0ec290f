"""Any endpoint that re-ranks, as a real HTTP server that answers as their documentation shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.ranking.endpoint import Endpoint
from fairqr.agents.ranking.rankers import ItemRanker, RankerOptions, RankItem, open_ranker
from fairqr.base.errors import InputError
from tests.servers.http_servers import Answer, Received, answering, of_json

pytestmark = pytest.mark.usefixtures("clean_environment")

ITEMS = [RankItem(id_, f"Title {id_}", f"Text {id_}.") for id_ in "abc"]

# As docs.cohere.com/reference/rerank, api.jina.ai/redoc, docs.vllm.ai (serving, Re-rank API) and
# huggingface.github.io/text-embeddings-inference (POST /rerank) show them.
COHERE = {
    "results": [
        {"index": 2, "relevance_score": 0.999071},
        {"index": 0, "relevance_score": 0.7867867},
        {"index": 1, "relevance_score": 0.32713068},
    ],
    "id": "07734bd2-2473-4f07-94e1-0d9f0e6843cf",
    "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
}
JINA = {
    "model": "jina-reranker-v2-base-multilingual",
    "usage": {"total_tokens": 815},
    "results": [
        {"index": 2, "document": {"text": "c"}, "relevance_score": 0.8783142566680908},
        {"index": 0, "document": {"text": "a"}, "relevance_score": 0.7624675869941711},
        {"index": 1, "document": {"text": "b"}, "relevance_score": 0.2},
    ],
}
VLLM = {
    "id": "rerank-fae51b2b664d4ed38f5969b612edff77",
    "model": "BAAI/bge-reranker-base",
    "usage": {"total_tokens": 56},
    "results": [
        {"index": 2, "document": {"text": "c"}, "relevance_score": 0.99853515625},
        {"index": 0, "document": {"text": "a"}, "relevance_score": 0.0005860328674316406},
        {"index": 1, "document": {"text": "b"}, "relevance_score": 0.0001},
    ],
}
TEI = [{"index": 2, "score": 0.9976}, {"index": 0, "score": 0.1}, {"index": 1, "score": 0.0012}]


def ranker(address: str, **options: Any) -> ItemRanker:
    return open_ranker("rerank", options=RankerOptions(weights=address, **options))


def sent(request: Received) -> Any:
    return json.loads(request.body)


@pytest.mark.parametrize("reply", [COHERE, JINA, VLLM], ids=["cohere", "jina", "vllm"])
async def test_documented_replies_are_read(reply: Any) -> None:
    """The request has what all of them take; a persona stands before the query."""
    with answering(lambda number, request: of_json(200, reply)) as (url, asked):
        found = await ranker(f"some/model@{url}/v1/rerank", shown="title").rank(
            "q", ITEMS, "female"
        )
    assert found.order == (2, 0, 1)
    assert found.scores is not None
    assert found.scores[2] == max(found.scores)
    assert (found.asked, found.failures, found.repairs) == (1, {}, {})
    assert asked[0].path == "/v1/rerank"
    assert sent(asked[0]) == {
        "model": "some/model",
        "query": "female q",
        "documents": ["Title a", "Title b", "Title c"],
        "top_n": 3,
    }


async def test_text_embeddings_inference_is_asked_in_its_own_form() -> None:
    """It refuses the first request, and every later one is in its form at once."""

    def answer(number: int, request: Received) -> Answer:
        if "texts" in sent(request):
            return of_json(200, TEI)
        return 422, {}, b"Failed to deserialize the JSON body: missing field `texts`"

    with answering(answer) as (url, asked):
        tei = ranker(f"{url}/rerank", length=6)
        for _ in range(2):
            assert (await tei.rank("q", ITEMS)).order == (2, 0, 1)
    assert [sorted(sent(it)) for it in asked[1:]] == 2 * [["query", "texts", "truncate"]]
    assert sent(asked[1])["texts"] == 3 * ["Title "]


@pytest.mark.parametrize(
    ("results", "order", "repairs"),
    [
        ([(1, 0.5), (0, 0.9)], (0, 1, 2), {"missing": 1}),  # the scores decide
        ([(2, 0.1), (2, 0.9), (7, 1)], (2, 0, 1), {"duplicate": 1, "stranger": 1, "missing": 2}),
        ([(1, 0.5), (2, 0.5), (0, 0.5)], (1, 2, 0), {}),
    ],
)
async def test_incomplete_replies_are_repaired_and_counted(
    results: list[tuple[int, float]], order: tuple[int, ...], repairs: dict[str, int]
) -> None:
    listed = [{"index": index, "relevance_score": score} for index, score in results]
    with answering(lambda number, request: of_json(200, {"results": listed})) as (url, _):
        found = await ranker(url).rank("q", ITEMS)
    assert (found.order, found.repairs) == (order, repairs)


@pytest.mark.parametrize(
    ("status", "content", "failure", "words"),
    [
        (200, "<html>", "parse_error", "answered no JSON"),
        (200, {"data": []}, "parse_error", "answered without a list of results"),
        (200, [{"index": "0", "score": 1}], "parse_error", "without an index or a score"),
        (200, {"results": [{"index": 0, "score": None}]}, "parse_error", "or a score"),
        (401, {}, "denied", "add an entry [credentials.NAME]"),
        (413, {"error": "batch size 200 > 32"}, "invalid_request", "batch size 200 > 32"),
    ],
)
async def test_what_is_no_ranking_leaves_the_order_and_is_one_sentence(
    status: int, content: Any, failure: str, words: str
) -> None:
    page: Answer = (status, {}, b"<html>") if content == "<html>" else of_json(status, content)
    with answering(lambda number, request: page) as (url, _):
        found = await ranker(f"{url}/rerank?key=secret").rank("q", ITEMS)
    assert (found.order, found.failures, found.failed) == ((0, 1, 2), {failure: 1}, True)
    assert words in found.message
    assert "secret" not in found.message


async def test_an_endpoint_that_is_away_or_late_is_named() -> None:
    with answering(lambda number, request: of_json(200, TEI)) as (url, _):
        pass
    gone = await ranker(url).rank("q", ITEMS, deadline=0.2)
    assert [*gone.failures] in (["unavailable"], ["timeout"])
    assert url in gone.message


async def test_keys_go_to_the_server_that_their_entry_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(lambda number, request: of_json(200, TEI)) as (url, asked):
        (tmp_path / "own.toml").write_text(
            f'[credentials.hosted]\nbearer = "k3y"\nurls = ["{url}"]\n'
        )
        await ranker(url).rank("q", ITEMS)
        monkeypatch.setenv("FAIRQR_CONFIG", str(tmp_path / "own.toml"))
        await ranker(url).rank("q", ITEMS)
    assert [it.headers.get("authorization") for it in asked] == [None, "Bearer k3y"]


@pytest.mark.parametrize("text", ["", "jina", "http://", "ftp://x/rerank", "http://u:pw@x/rerank"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no endpoint that re-ranks; write its whole address"):
        Endpoint.parse(text)
