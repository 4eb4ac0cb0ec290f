"""LangChain's retrievers and vector stores as engines: ids, labels, order, and what is refused."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
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
    UnsupportedError,
)
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.engines.langchain import check, from_langchain

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
    """Ranks a list of documents by how many words of the query they have, and then as listed."""

    documents: list[Document]
    k: int = 4
    asked: list[str] = Field(default_factory=list)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        self.asked.append(query)
        words = set(query.split())
        counts = [len(words & set(d.page_content.split())) for d in self.documents]
        order = sorted(range(len(counts)), key=lambda row: -counts[row])
        return [self.documents[row] for row in order if counts[row]][: self.k]


class CallingRetriever(BaseRetriever):
    """Does what it is given; how many documents it returns is its own matter."""

    call: Callable[[str], list[Document]]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.call(query)


class DistanceStore(InMemoryVectorStore):
    """Gives distances as scores, smaller being better, and no relevance."""

    def similarity_search_with_score(
        self, *args: Any, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        found = super().similarity_search_with_score(*args, **kwargs)
        return [(document, 1 - score) for document, score in found]

    async def asimilarity_search_with_score(
        self, *args: Any, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        return self.similarity_search_with_score(*args, **kwargs)


class RelevanceStore(DistanceStore):
    """Turns its distances into relevance, as Chroma and FAISS do."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda distance: 1 - distance


class WrongRelevanceStore(RelevanceStore):
    """Has its relevance the wrong way round, as some stores with inner products do."""

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda distance: distance


def stored(count: int, kind: type[InMemoryVectorStore] = InMemoryVectorStore) -> Any:
    store = kind(DeterministicFakeEmbedding(size=16))
    store.add_documents([player(number) for number in range(count)])
    return store


async def search(engine: SearchEngine, text: str, n: int = 10, **more: Any) -> Any:
    (hits,) = await engine.search([Query(text, n, **more)])
    return hits


def test_stores_in_memory_are_known() -> None:
    """Any other may ask another system, and so may a retriever over it."""
    store = stored(3)
    opened = [fairqr.from_langchain(it, schema=SCHEMA) for it in (store, store.as_retriever())]
    assert all(engine.in_process for engine in opened)
    retriever = WordRetriever(documents=[player(1)])
    assert not fairqr.from_langchain(retriever, schema=SCHEMA).in_process


async def test_a_retriever_is_an_engine_with_labels_and_titles_from_the_metadata() -> None:
    retriever = WordRetriever(documents=[player(n) for n in range(1, 8)])
    engine: SearchEngine = fairqr.from_langchain(
        retriever, schema=SCHEMA, name="club", title="headline"
    )
    hits = await search(engine, "player 3", 3)
    assert hits.ids == ["p0003", "p0001", "p0002"]
    assert hits.scores == [1.0, 1 / 2, 1 / 3]
    assert hits.memberships["gender"].tolist() == [[1, 0], [0, 1], [0, 1]]
    assert (hits.total, hits.warnings) == (None, ())
    found = await engine.documents(["p0002", "nobody", "p0003"])
    assert [(d.id, d.title) for d in found] == [("p0002", "Player 2"), ("p0003", "Player 3")]
    assert found[0].text == "tennis player 2 of the club"
    info = await engine.info()
    assert (info.name, info.engine, info.documents) == ("club", "langchain", None)
    assert engine.retriever == "langchain:WordRetriever"
    assert engine.capabilities == {"new_queries"}
    await engine.aclose()
    await engine.aclose()


async def test_a_thousand_results_come_from_a_copy_and_the_object_stays_as_it_is() -> None:
    retriever = WordRetriever(documents=[player(n) for n in range(1500)])
    engine = from_langchain(retriever, schema=SCHEMA)
    hits = await search(engine, "tennis", 1000)
    assert hits.ids == [f"p{n:04}" for n in range(1000)]
    assert retriever.k == 4

    of_store = stored(1500).as_retriever(search_kwargs={"k": 2, "filter": lambda d: d.id < "p1200"})
    hits = await search(from_langchain(of_store, schema=SCHEMA), "tennis", 1000)
    assert len(set(hits.ids)) == 1000
    assert max(hits.ids) < "p1200"
    assert of_store.search_kwargs["k"] == 2


async def test_a_diverse_retriever_has_enough_to_choose_from() -> None:
    retriever = stored(60).as_retriever(search_type="mmr")
    assert len(await search(from_langchain(retriever, schema=SCHEMA), "tennis", 50)) == 50
    assert retriever.search_kwargs == {}


async def test_of_a_retriever_with_a_number_of_its_own_the_first_n_are_taken() -> None:
    retriever = CallingRetriever(call=lambda query: [player(n) for n in range(7)])
    engine = from_langchain(retriever, schema=SCHEMA)
    assert (await search(engine, "x", 3)).ids == ["p0000", "p0001", "p0002"]
    assert len(await search(engine, "x", 100)) == 7


async def test_a_store_keeps_its_order_and_its_distances_are_no_scores() -> None:
    store = stored(50, DistanceStore)
    expected = [d.id for d in store.similarity_search("tennis", k=20)]
    hits = await search(from_langchain(store, schema=SCHEMA), "tennis", 20)
    assert hits.ids == expected
    assert hits.scores == [1 / rank for rank in range(1, 21)]


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

    wrong = stored(50, WrongRelevanceStore)
    hits = await search(from_langchain(wrong, schema=SCHEMA), "tennis", 50)
    assert hits.ids == [document.id for document, _ in expected]
    assert hits.scores[:2] == [1.0, 0.5]


async def test_scores_may_stand_in_the_metadata() -> None:
    found = [player(1, metadata={"rank": {"score": 7}}), player(2, metadata={"rank": {"score": 7}})]
    retriever = CallingRetriever(call=lambda query: found[::-1])
    hits = await search(from_langchain(retriever, schema=SCHEMA, score="rank.score"), "x")
    assert (hits.ids, hits.scores) == (["p0001", "p0002"], [7.0, 7.0])
    hits = await search(from_langchain(retriever, schema=SCHEMA, score="rank.none"), "x")
    assert (hits.ids, hits.scores) == (["p0002", "p0001"], [1.0, 0.5])


async def test_ids_come_from_the_metadata_if_it_is_named_and_from_the_document_otherwise() -> None:
    found = [player(1, metadata={"doi": 10}), player(2, metadata={})]
    retriever = CallingRetriever(call=lambda query: found)
    assert (await search(from_langchain(retriever, schema=SCHEMA, id="doi"), "x")).ids == [
        "10",
        "p0002",
    ]
    assert (await search(from_langchain(retriever, schema=SCHEMA), "x")).ids == ["p0001", "p0002"]


async def test_documents_without_id_and_metadata_are_known_by_their_text() -> None:
    found = [Document("one"), Document("two"), Document("one")]
    engine = from_langchain(CallingRetriever(call=lambda query: found), schema=SCHEMA)
    hits = await search(engine, "x")
    assert len(hits) == len(set(hits.ids)) == 2
    assert hits.memberships["gender"].tolist() == [[0, 0], [0, 0]]
    assert hits.warnings == (
        "Some documents have no id, so we use a hash of their text; two documents with the same "
        "text count as one.",
        "None of the 2 documents found has 'person.sex' in its metadata, which 'gender' reads; "
        "correct the field if there should be one.",
    )
    assert [d.text for d in await engine.documents(hits.ids)] == ["one", "two"]
    assert (await search(engine, "x")).ids == hits.ids


async def test_of_documents_with_the_same_id_the_first_is_kept() -> None:
    found = [player(1), player(2), player(1, page_content="another text")]
    engine = from_langchain(CallingRetriever(call=lambda query: found), schema=SCHEMA)
    hits = await search(engine, "x")
    assert (hits.ids, hits.scores) == (["p0001", "p0002"], [1.0, 0.5])
    assert (await engine.documents(["p0001"]))[0].text == "tennis player 1 of the club"
    assert hits.warnings == (
        "Some documents with different texts have the same id, so only the first of them counts; "
        "set 'id' to a field that differs.",
    )
    found.pop()
    found.append(player(1))
    assert (await search(engine, "x")).warnings == ()


async def test_named_fields_that_no_document_has_are_told() -> None:
    found = [player(1), player(2, metadata={"doi": 2, "person": {"sex": "F"}})]
    retriever = CallingRetriever(call=lambda query: found)
    engine = from_langchain(retriever, schema=SCHEMA, id="doi", title="nose", score="nosuch")
    hits = await search(engine, "x")
    assert (hits.ids, hits.scores) == (["p0001", "2"], [1.0, 0.5])
    assert hits.warnings == tuple(
        f"None of the documents found has '{field}' in its metadata, which '{option}' names; "
        "correct it, or remove it."
        for option, field in (("title", "nose"), ("score", "nosuch"))
    )
    engine = from_langchain(retriever, schema=SCHEMA, id="nosuch")
    (warning,) = (await search(engine, "x")).warnings
    assert "has 'nosuch' in its metadata, which 'id' names" in warning


async def test_a_retriever_of_other_things_than_documents_is_one_sentence() -> None:
    retriever = CallingRetriever(call=lambda query: ["a text"])  # type: ignore[list-item]
    engine = from_langchain(retriever, schema=SCHEMA, name="club")
    told = r"'club' \(CallingRetriever\) returns str objects; make it return LangChain's Document"
    with pytest.raises(InputError, match=told):
        await search(engine, "x")


async def test_words_that_boost_are_read_after_the_text() -> None:
    retriever = WordRetriever(documents=[player(1)])
    engine = from_langchain(retriever, schema=SCHEMA)
    await search(engine, "tennis", boost="court serve")
    assert retriever.asked == ["tennis court serve"]


async def test_what_langchain_cannot_do_is_refused() -> None:
    engine = from_langchain(stored(3), schema=SCHEMA)
    for query in (Query("x", 3, only=("p0001",)), Query("x", 0, every_word=True)):
        with pytest.raises(UnsupportedError, match="neither score given documents nor count"):
            await engine.search([query])
    with pytest.raises(UnsupportedError, match="count the documents of each group"):
        await engine.corpus_shares()
    within = ("gender", engine.schema.attribute("gender").groups[0])
    with pytest.raises(UnsupportedError, match="engine that can search within a group"):
        await engine.search([Query("x", 3, within=within)])
    assert len(await search(engine, "x", 0)) == 0


async def test_groups_of_documents_that_were_met_can_be_looked_up() -> None:
    engine = from_langchain(stored(9), schema=SCHEMA)
    await search(engine, "x", 9)
    hits = await search(engine, "", 9, only=("p0004", "nobody", "p0003"))
    assert hits.ids == ["p0003", "p0004"]
    assert hits.memberships["gender"].tolist() == [[1, 0], [0, 1]]


async def test_a_store_reads_documents_that_another_process_has_met() -> None:
    engine = from_langchain(stored(9), schema=SCHEMA)
    assert [d.id for d in await engine.documents(["p0005", "nobody"])] == ["p0005"]
    other = from_langchain(WordRetriever(documents=[player(1)]), schema=SCHEMA)
    assert await other.documents(["p0001"]) == []


async def test_a_retriever_that_fails_is_one_sentence() -> None:
    def fail(query: str) -> list[Document]:
        raise ZeroDivisionError("no\nscore")

    engine = from_langchain(CallingRetriever(call=fail), schema=SCHEMA, name="club")
    with pytest.raises(IndexUnavailableError) as caught:
        await search(engine, "x")
    assert str(caught.value) == (
        "The retriever 'club' (CallingRetriever) failed with ZeroDivisionError: no score."
    )

    def nothing(query: str) -> list[Document]:
        raise NotImplementedError

    engine = from_langchain(CallingRetriever(call=nothing), schema=SCHEMA)
    with pytest.raises(IndexUnavailableError, match="NotImplementedError: no message"):
        await search(engine, "x")


async def test_a_store_whose_search_fails_is_one_sentence() -> None:
    store = stored(3, RelevanceStore)
    del store.store["p0001"]["vector"]
    with pytest.raises(IndexUnavailableError, match=r"\(RelevanceStore\) failed with KeyError"):
        await search(from_langchain(store, schema=SCHEMA), "x")


async def test_one_failed_query_changes_no_score_of_later_ones() -> None:
    class Choosy(RelevanceStore):
        async def asimilarity_search_with_score(
            self, *args: Any, **kwargs: Any
        ) -> list[tuple[Document, float]]:
            if args[0] == "bad":
                raise ValueError("no such words")
            return await super().asimilarity_search_with_score(*args, **kwargs)

        async def asimilarity_search(self, *args: Any, **kwargs: Any) -> list[Document]:
            return [found for found, _ in await self.asimilarity_search_with_score(*args, **kwargs)]

    engine = from_langchain(stored(5, Choosy), schema=SCHEMA)
    before = await search(engine, "tennis")
    with pytest.raises(IndexUnavailableError, match="ValueError: no such words"):
        await search(engine, "bad")
    assert (
        (await search(engine, "tennis")).scores == before.scores != [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    )


async def test_a_failed_query_ends_the_others() -> None:
    ended: list[str] = []

    class Waiting(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun
        ) -> list[Document]:
            raise AssertionError("the asynchronous way is there")

        async def _aget_relevant_documents(self, query: str, **more: Any) -> list[Document]:
            if query == "bad":
                raise ZeroDivisionError("no score")
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(query)
            return []

    engine = from_langchain(Waiting(), schema=SCHEMA)
    with pytest.raises(IndexUnavailableError, match="no score") as failed:
        await engine.search([Query("good", 1), Query("bad", 1), Query("good", 1)])
    assert ended == ["good", "good"]
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


async def test_half_a_surrogate_pair_is_replaced() -> None:
    found = [player(1, page_content="a \ud800", metadata={"headline": "\udfff b"})]
    retriever = WordRetriever(documents=found)
    engine = from_langchain(retriever, schema=SCHEMA, title="headline")
    hits = await search(engine, "a \ud800")
    assert retriever.asked == ["a ?"]
    (document,) = await engine.documents(hits.ids)
    assert (document.title, document.text) == ("? b", "a ?")


async def test_a_connection_that_heals_is_tried_again() -> None:
    attempts: list[str] = []

    def unstable(query: str) -> list[Document]:
        attempts.append(query)
        if len(attempts) == 1:
            raise ConnectionError("reset")
        return [player(1)]

    engine = from_langchain(CallingRetriever(call=unstable), schema=SCHEMA)
    assert (await search(engine, "x")).ids == ["p0001"]
    assert len(attempts) == 2


async def test_queries_run_at_the_same_time_and_only_a_few() -> None:
    running, most = 0, 0

    class Counting(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun
        ) -> list[Document]:
            raise AssertionError("the asynchronous way is there")

        async def _aget_relevant_documents(self, query: str, **more: Any) -> list[Document]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(20):
                await asyncio.sleep(0)
            running -= 1
            return [player(int(query))]

    engine = from_langchain(Counting(), schema=SCHEMA)
    hits = await engine.search([Query(str(number), 1) for number in range(40)])
    assert [found.ids[0] for found in hits] == [f"p{number:04}" for number in range(40)]
    assert 2 <= most <= 8


def test_several_event_loops_use_one_engine() -> None:
    engine = from_langchain(stored(9), schema=SCHEMA)
    first = asyncio.run(search(engine, "tennis"))
    assert asyncio.run(search(engine, "tennis")).ids == first.ids


async def test_labels_may_stand_in_a_file_of_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "origins.csv").write_text("id,group\np0001,Asia\np0002,Europe\n")
    (tmp_path / "club.schema.yaml").write_text(
        json.dumps({"attributes": {"gender": GENDER, "origin": {"labels": "origins.csv"}}})
    )
    # Inside a running event loop, and by a path as text.
    engine = from_langchain(stored(4), schema=str(tmp_path / "club.schema.yaml"))
    assert engine.schema.attribute("origin").groups == ("Asia", "Europe")
    hits = await search(engine, "x")
    rows = dict(zip(hits.ids, hits.memberships["origin"].tolist(), strict=True))
    assert rows == {"p0000": [0, 0], "p0001": [1, 0], "p0002": [0, 1], "p0003": [0, 0]}
    report = await check(engine, "tennis")
    assert [(a.name, a.origin, a.labelled) for a in report.attributes] == [
        ("gender", "person.sex", 4),
        ("origin", "origins.csv", 2),
    ]
    (tmp_path / "origins.csv").unlink()
    with pytest.raises(SourceError, match=r"origins\.csv cannot be read"):
        from_langchain(stored(4), schema=tmp_path / "club.schema.yaml")


async def test_the_check_tells_what_a_query_finds() -> None:
    found = [player(1), player(3), player(5, id=None, metadata={"person": {"sex": "?"}})]
    retriever = CallingRetriever(call=lambda query: found)
    report = await check(from_langchain(retriever, schema=SCHEMA, title="headline"), "tennis")
    (gender,) = report.attributes
    assert (gender.documents, gender.labelled) == (3, 2)
    assert [(v.value, v.group) for v in gender.without_group] == [("?", None)]
    assert report.sample[0].title == "Player 1"
    assert report.sample[1].groups == {"gender": {"female": 1.0}}
    assert len(report.remarks) == 2
    assert report.remarks[0].startswith("Some documents have no id")
    assert report.remarks[1] == (
        "The query found 3 documents instead of 100; if there are more, raise the number that "
        "the retriever returns."
    )


def test_what_is_no_retriever_or_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes a BaseRetriever or a VectorStore, not str"):
        from_langchain("club", schema=SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not CallingRetriever; from_langchain wraps a retriever"):
        fairqr.FairSearch(CallingRetriever(call=lambda query: []))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"takes an open engine, or the name, .* not int;"):
        fairqr.FairSearch(5)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="attributes: a schema needs at least one"):
        from_langchain(stored(1), schema={})
    with pytest.raises(SchemaError, match="cannot be read"):
        from_langchain(stored(1), schema=tmp_path / "none.yaml")


def test_the_fingerprint_follows_the_description() -> None:
    def fingerprint(**more: Any) -> str:
        return asyncio.run(from_langchain(stored(1), **more).info()).fingerprint

    assert fingerprint(schema=SCHEMA) == fingerprint(schema=SCHEMA)
    other = {"attributes": {"sex": GENDER}}
    assert len({fingerprint(schema=s) for s in (SCHEMA, other)}) == 2
    assert fingerprint(schema=SCHEMA, id="doi") != fingerprint(schema=SCHEMA)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, "", "a", "b", "c"]),
            st.sampled_from(["one", "two", ""]),
            st.sampled_from([None, "F", "M", ["F", "M"], {"F": 3, "M": 1}, "?"]),
        ),
        max_size=12,
    ),
    st.integers(0, 14),
)
async def test_any_answer_keeps_its_order_and_has_each_document_once(
    found: list[tuple[str | None, str, Any]], n: int
) -> None:
    documents = [Document(text, id=id_, metadata={"sex": sex}) for id_, text, sex in found]
    engine = from_langchain(
        CallingRetriever(call=lambda query: documents),
        schema={"attributes": {"gender": {**GENDER, "field": "sex"}}},
    )
    hits = await search(engine, "x", n)
    keys = [(None, text) if id_ in (None, "") else (id_, "") for id_, text, _ in found[:n]]
    firsts = {key: row for row, key in reversed(list(enumerate(keys)))}
    expected = sorted(firsts.values())
    assert len(hits) == len(set(hits.ids)) == len(expected)
    rows = {"F": [1, 0], "M": [0, 1]}
    for place, row in enumerate(expected):
        label = found[row][2]
        wanted = rows.get(label, [0, 0]) if isinstance(label, str | None) else None
        if isinstance(label, list):
            wanted = [0.5, 0.5]
        if isinstance(label, dict):
            wanted = [0.75, 0.25]
        assert hits.memberships["gender"][place].tolist() == wanted
        if keys[row][0] is not None:
            assert hits.ids[place] == keys[row][0]
