"""Whoever lists one document many times claims no more by merit, in searches and in given lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document as LangChainDocument

from fairqr import Context, FairReranker, FairSearch
from fairqr.graph.integrations.order import Given, fair_list
from fairqr.graph.search.result import Place, SearchResult
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine, VectorEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.relevance import probability_by_rank, relevance_by_rank
from tests.unit.graph.corpora import indexed
from tests.unit.retrieval.vector_encoders import CountingEncoder

SCHEMA = "attributes: {seller: {field: seller, groups: any}}"
COPIES = 50
COUNTED = f"{COPIES + 1} near duplicates count as 1"


def offers(copies: int = COPIES) -> list[dict[str, Any]]:
    """Offers of two sellers; one of them is listed again, so many times."""
    words = ["red canvas", "blue leather", "green rubber", "white cotton"]
    listed = [
        {"id": f"{number}", "text": f"shoe {word}", "seller": "ab"[number % 2]}
        for number, word in enumerate(words)
    ]
    again = [{**listed[0], "id": f"again {copy}"} for copy in range(copies)]
    return [*listed, *again]


def by_merit(texts: Sequence[str], sellers: Sequence[str], values: Sequence[float]) -> Any:
    """The shares of sellers where each text claims the highest of its probabilities, once."""
    highest: dict[tuple[str, str], float] = defaultdict(float)
    for text, seller, value in zip(texts, sellers, values, strict=True):
        highest[text, seller] = max(value, highest[text, seller])
    shares: dict[str, float] = defaultdict(float)
    for (_, seller), value in highest.items():
        shares[seller] += value / sum(highest.values())
    return pytest.approx(shares)


async def search_all(engine: SearchEngine, target: str = "merit:1") -> SearchResult:
    """All documents, since the page has as many."""
    async with FairSearch(engine, None) as search:
        return await search.search("shoe", Context(target=target, ask="never", k=100))


async def index_of(folder: Path, kind: type[VectorEngine] | None) -> SearchEngine:
    lexical = await indexed(folder, offers(), SCHEMA)
    assert isinstance(lexical, TantivyEngine)
    return lexical if kind is None else await kind.open(lexical, CountingEncoder())


@pytest.mark.promise("graph")
@pytest.mark.parametrize("kind", [VectorEngine, HybridEngine])
async def test_copies_in_an_index_share_a_claim_and_the_result_says_so(
    tmp_path: Path, kind: type[VectorEngine]
) -> None:
    """Copies of a document in an index, edited ones by vectors, share one claim, and the result
    counts them.
    """
    result = await search_all(await index_of(tmp_path, kind))
    places: list[Place] = result.baseline.ranking
    assert len(places) == len(offers())
    values = probability_by_rank(len(places)).tolist()
    if kind is HybridEngine:
        values = [place.relevance for place in places]
    offered = {offer["id"]: offer for offer in offers()}
    texts = [offered[place.id]["text"] for place in places]
    sellers = [offered[place.id]["seller"] for place in places]
    expected = by_merit(texts, sellers, values)
    shares = {group: share for group, share in result.target["seller"].items() if share}
    assert shares == expected
    of_all = sum(values[row] for row, seller in enumerate(sellers) if seller == "a") / sum(values)
    assert shares["a"] < of_all - 0.05
    assert result.target_origin["seller"].endswith(f"; {COUNTED}")
    assert any(COUNTED in sentence for sentence in result.explanation)


async def test_where_nothing_was_compared_each_document_has_a_claim(tmp_path: Path) -> None:
    result = await search_all(await index_of(tmp_path, None))
    assert result.target["seller"]["a"] > 0.9
    assert "near duplicates" not in str(result.model_dump())


async def test_other_targets_compare_nothing(tmp_path: Path) -> None:
    result = await search_all(await index_of(tmp_path, HybridEngine), "retrieved:0.5,uniform:0.5")
    assert "near duplicates" not in str(result.model_dump())


def test_a_re_ranker_compares_the_texts_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    documents = [
        LangChainDocument(page_content=offer["text"], metadata={"seller": offer["seller"]})
        for offer in offers()
    ]
    context = Context(target="merit:1", k=10)
    result = FairReranker(labels=tmp_path / "schema.yaml", context=context).rank(documents)
    texts = [offer["text"] for offer in offers()]
    sellers = [offer["seller"] for offer in offers()]
    values = probability_by_rank(len(documents)).tolist()
    shares = {group: share for group, share in result.target["seller"].items() if share}
    assert shares == by_merit(texts, sellers, values)
    assert COUNTED in result.target_origin["seller"]


@pytest.mark.parametrize(
    ("texts", "claims"),
    [
        ([offer["text"] for offer in offers()], [offer["text"] for offer in offers()]),
        ([""] * len(offers()), [*map(str, range(len(offers())))]),
    ],
    ids=["texts", "no texts"],
)
async def test_a_given_list_is_compared_by_its_texts(
    tmp_path: Path, texts: list[str], claims: list[str]
) -> None:
    """The proxy and ``/v1/rerank`` give such lists. Without texts, no documents are compared."""
    engine = await index_of(tmp_path, None)
    sellers = [offer["seller"] for offer in offers()]
    given = [
        Given(position, "", texts[position], "", lambda _, seller=seller: seller)
        for position, seller in enumerate(sellers)
    ]
    result, hits, _ = await fair_list(engine, Context(target="merit:1", k=10), "shoe", given, None)

    values = relevance_by_rank(len(texts)).tolist()
    shares = {group: share for group, share in result.target["seller"].items() if share}
    assert shares == by_merit(claims, sellers, values)
    assert hits.claims is not None
