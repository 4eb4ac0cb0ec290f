"""LangChain's retrievers and vector stores as engines: ids, labels, order, and what is refused."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import Field

import fairqr
from fairqr.base.errors import (
    IndexUnavailableError,
    InputError,
    SchemaError,
    SourceError,
)
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.engines.langchain import LangChainEngine, from_langchain
from fairqr.retrieval.engines.search_only import OVERHEAD, SeenDocuments
from fairqr.retrieval.sources import documents

GENDER = {"field": "person.sex", "groups": {"female": ["F"], "male": ["M"]}}
SCHEMA = {"attributes": {"gender": GENDER}}


def player(number: int, **changes: Any) -> Document:
    sex = "F" if number % 3 == 0 else "M"
    found: dict[str, Any] = {
        "id": f"p{number:04}",
        "page_content": f"tennis player {number} of the club",
        "metadata": {"headline": f"Player {number}", "person": {"sex": sex}},
        **changes,
    }
    return Document(**found)


class WordRetriever(BaseRetriever):
    """Ranks documents by how often their text has the words of the query, and then as listed."""

    documents: list[Document]
    k: int = 4
    asked: list[str] = Field(default_factory=list)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        self.asked.append(query)
        words = query.lower().split()
        counts = [sum(d.page_content.lower().count(word) for word in words) for d in self.documents]
        order = sorted(range(len(counts)), key=lambda row: -counts[row])
        return [self.documents[row] for row in order if counts[row]][: self.k]


class CallingRetriever(BaseRetriever):
    """Does what it is given; how many documents it returns is its own matter."""

    call: Callable[[str], Awaitable[list[Document]]]

    def _get_relevant_documents(self, query: str, **more: Any) -> list[Document]:
        raise AssertionError("the asynchronous way is there")

    async def _aget_relevant_documents(self, query: str, **more: Any) -> list[Document]:
        return await self.call(query)


class DistanceStore(InMemoryVectorStore):
    """Gives distances as scores, smaller being better, and no relevance."""

    async def asimilarity_search_with_score(
        self, *args: Any, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        found = super().similarity_search_with_score(*args, **kwargs)
        return [(document, 1 - score) for document, score in found]

    async def asimilarity_search(self, *args: Any, **kwargs: Any) -> list[Document]:
        return [found for found, _ in await self.asimilarity_search_with_score(*args, **kwargs)]


class RelevanceStore(DistanceStore):
    """Turns its distances into relevance, as Chroma and FAISS do."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda distance: 1 - distance


def stored(count: int, kind: type[InMemoryVectorStore] = InMemoryVectorStore) -> Any:
    store = kind(DeterministicFakeEmbedding(size=16))
    store.add_documents([player(number) for number in range(count)])
    return store


def over(*found: Any, **options: Any) -> LangChainEngine:
    """An engine over a retriever that always finds these."""

    async def call(query: str) -> list[Any]:
        return list(found)

    return from_langchain(CallingRetriever(call=call), **{"schema": SCHEMA, **options})


async def search(engine: SearchEngine, text: str = "x", n: int = 10, **more: Any) -> Hits:
    (hits,) = await engine.search([Query(text, n, **more)])
    return hits


async def test_labels_and_titles_come_from_the_metadata() -> None:
    retriever = WordRetriever(documents=[player(n) for n in range(1, 8)])
    engine = from_langchain(retriever, schema=SCHEMA, name="club", title="headline")
    hits = await search(engine, "player 3 court \ud800 serve", 3)
    assert retriever.asked == ["player 3 court ? serve"]
    assert hits.ids == ["p0003", "p0001", "p0002"]
    assert hits.scores == [1.0, 1 / 2, 1 / 3]
    assert hits.memberships["gender"].tolist() == [[1, 0], [0, 1], [0, 1]]
    assert (hits.total, hits.warnings) == (None, ())
    found = await engine.documents(["p0002", "nobody", "p0003"])
    assert [(d.id, d.title) for d in found] == [("p0002", "Player 2"), ("p0003", "Player 3")]
    assert found[0].text == "tennis player 2 of the club"
    known = await search(engine, "", 9, only=("p0002", "nobody", "p0003"))
    assert known.ids == ["p0002", "p0003"]
    assert known.memberships["gender"].tolist() == [[0, 1], [1, 0]]
    info = await engine.info()
    assert (info.name, info.engine, info.documents) == ("club", "langchain", None)
    assert (engine.retriever, engine.capabilities) == ("langchain:WordRetriever", {"new_queries"})


async def test_a_callers_retriever_stays_as_it_is() -> None:
    retriever = WordRetriever(documents=[player(n) for n in range(1500)])
    hits = await search(from_langchain(retriever, schema=SCHEMA), "tennis", 1000)
    assert hits.ids == [f"p{n:04}" for n in range(1000)]
    assert retriever.k == 4

    of_store = stored(1500).as_retriever(search_kwargs={"k": 2, "filter": lambda d: d.id < "p1200"})
    hits = await search(from_langchain(of_store, schema=SCHEMA), "tennis", 1000)
    assert len(set(hits.ids)) == 1000
    assert max(hits.ids) < "p1200"
    assert of_store.search_kwargs["k"] == 2

    diverse = stored(60).as_retriever(search_type="mmr")
    assert len(await search(from_langchain(diverse, schema=SCHEMA), "tennis", 50)) == 50
    assert diverse.search_kwargs == {}


async def test_relevance_scores_are_taken_if_they_fit_the_order(
    recwarn: pytest.WarningsRecorder,
) -> None:
    store = stored(50, RelevanceStore)
    expected = await store.asimilarity_search_with_relevance_scores("tennis", k=50)
    recwarn.clear()
    with warnings.catch_warnings():
        hits = await search(from_langchain(store, schema=SCHEMA), "tennis", 50)
    assert not recwarn.list  # one would print the texts of all documents
    assert hits.ids == [document.id for document, _ in expected]
    assert hits.scores == [score for _, score in expected]
    for kind in (DistanceStore, InMemoryVectorStore):
        hits = await search(from_langchain(stored(50, kind), schema=SCHEMA), "tennis", 50)
        assert hits.ids == [document.id for document, _ in expected]
        assert hits.scores == [1 / rank for rank in range(1, 51)]


@pytest.mark.promise("engines")
async def test_documents_without_an_id_are_known_by_their_text() -> None:
    """LangChain's documents without an id are known by a hash of their text, and the result says
    so.
    """
    engine = over(Document("one"), Document("two"), Document("one"))
    hits = await search(engine)
    assert len(hits) == len(set(hits.ids)) == 2
    assert hits.memberships["gender"].tolist() == [[0, 0], [0, 0]]
    (no_id,) = hits.warnings
    assert "have no id, so we use a hash of their text; two documents with the same" in no_id
    assert [d.text for d in await engine.documents(hits.ids)] == ["one", "two"]
    assert (await search(engine)).ids == hits.ids


async def test_ids_may_stand_in_the_metadata() -> None:
    named = [player(1, metadata={"doi": 10}), player(2, metadata={}), player(2, page_content="x")]
    hits = await search(over(*named, id="doi"))
    assert hits.ids == ["10", "p0002"]
    assert "with different texts have the same id, so only the first" in hits.warnings[0]
    assert (await search(over(player(1), player(2), player(1)))).warnings == ()


@pytest.mark.parametrize("error", [ZeroDivisionError("no\nscore"), NotImplementedError()])
async def test_a_failed_query_is_one_sentence_and_ends_the_others(error: Exception) -> None:
    ended, healed = list[str](), list[str]()

    async def call(query: str) -> list[Document]:
        if query == "bad" and not healed:
            healed.append(query)
            raise ConnectionError("reset")  # This one heals.
        if query == "bad":
            raise error
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(query)
        return []

    engine = from_langchain(CallingRetriever(call=call), schema=SCHEMA, name="club")
    with pytest.raises(IndexUnavailableError) as failed:
        await engine.search([Query("good", 1), Query("bad", 1), Query("good", 1)])
    why = f"{type(error).__name__}: {str(error).replace(chr(10), ' ') or 'no message'}."
    assert str(failed.value) == f"The retriever 'club' (CallingRetriever) failed with {why}"
    assert failed.value.__cause__ is error
    assert ended == ["good", "good"]


async def test_labels_may_stand_in_a_file_of_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "origins.csv").write_text("id,group\np0001,Asia\np0002,Europe\n")
    schema = tmp_path / "club.schema.yaml"
    schema.write_text("attributes: {origin: {labels: origins.csv}}")
    # Inside a running event loop, and by a path as text.
    hits = await search(from_langchain(stored(4), schema=str(schema)))
    rows = dict(zip(hits.ids, hits.memberships["origin"].tolist(), strict=True))
    assert rows == {"p0000": [0, 0], "p0001": [1, 0], "p0002": [0, 1], "p0003": [0, 0]}
    (tmp_path / "origins.csv").unlink()
    with pytest.raises(SourceError, match=r"origins\.csv cannot be read"):
        from_langchain(stored(4), schema=schema)


def test_what_is_no_retriever_or_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes a BaseRetriever or a VectorStore, not str"):
        from_langchain("club", schema=SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not WordRetriever; from_langchain wraps a retriever"):
        fairqr.FairSearch(WordRetriever(documents=[]))  # type: ignore[arg-type]
    for schema, said in (({}, "at attributes: "), (tmp_path / "no", "cannot be read")):
        with pytest.raises(SchemaError, match=said):
            from_langchain(stored(1), schema=schema)


@pytest.mark.promise("engines")
@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, "", "a", "b", "c"]),
            st.sampled_from(["one", "two", ""]),
            st.sampled_from([None, "F", "M", ["F", "M"], {"F": 3, "M": 1}, "?"]),
        ),
        max_size=12,
    ),
    st.integers(1, 14),
)
async def test_any_answer_keeps_its_order_and_has_each_document_once(
    found: list[tuple[str | None, str, Any]], n: int
) -> None:
    """LangChain's order is kept, and each document comes once."""
    documents = [Document(text, id=id_, metadata={"sex": sex}) for id_, text, sex in found]
    engine = over(*documents, schema={"attributes": {"gender": {**GENDER, "field": "sex"}}})
    hits = await search(engine, "x", n)
    keys = [(id_, "") if id_ else (None, text) for id_, text, _ in found[:n]]
    expected = sorted({key: row for row, key in reversed(list(enumerate(keys)))}.values())
    assert len(hits) == len(set(hits.ids)) == len(expected)
    wanted = {"None": [0, 0], "?": [0, 0], "F": [1, 0], "M": [0, 1], "['F', 'M']": [0.5, 0.5]}
    for place, row in enumerate(expected):
        label = wanted.get(str(found[row][2]), [0.75, 0.25])
        assert hits.memberships["gender"][place].tolist() == label
        assert keys[row][0] in (None, hits.ids[place])


def test_large_documents_make_room_for_each_other() -> None:
    seen = SeenDocuments(2 * OVERHEAD + 100)
    seen.add([documents.Document("a", "", "x" * 40), documents.Document("b", "", "x" * 40)])
    seen.add([documents.Document("a", "", "x" * 50)])
    assert len(seen.get("ab")) == 2
    seen.add([documents.Document("c", "xx", "x", {"sex": ["x" * 30, {"of": 1}]})])
    assert [it.id for it in seen.get("abc")] == ["c"]
    seen.add([documents.Document("d", "", "x" * 10 * OVERHEAD)])
    assert [it.id for it in seen.get("abcd")] == ["d"]
