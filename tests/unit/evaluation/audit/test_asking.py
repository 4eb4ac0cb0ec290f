"""Asking an engine: what it answers, and what it could have answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.documents import Document as LangChainDocument
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ValidationError

from fairqr.base.errors import QueryError
from fairqr.evaluation.audit.bundle import Observation
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.running import LOOKED_UP, WIDENED_BY, Asker
from fairqr.retrieval.engines.engine import EngineOverWords, Hits, Query
from fairqr.retrieval.engines.langchain import from_langchain
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.fairness.table import decoded
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import hits_of
from tests.unit.evaluation.audit.examples import Breaking, ByRank
from tests.unit.retrieval.embedded import GENDER, built

QUERY = AuditQuery("q1", "physics")
GENDERS = (GENDER.attribute("gender"),)
GROUPS = (("gender", "female"), ("gender", "male"))
WIDE: dict[str, Any] = {"texts": ByRank(), "widened": GROUPS}
ALL_LIKELY = ByRank(of=400)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TantivyEngine:
    """Thirty men in physics, and 25 women whose texts are longer, so that they stand lower."""
    documents = [Document(f"m{i:02}", f"Man {i}", "physics", {"gender": "male"}) for i in range(30)]
    documents += [
        Document(f"w{i:02}", f"Woman {i}", f"physics atom x{i}", {"gender": "female"})
        for i in range(25)
    ]
    documents.append(Document("s00", "A singer", "opera", {"gender": "female"}))
    return built(tmp_path_factory.mktemp("physics") / "v1", documents)


class Limited(EngineOverWords):
    """Returns at most so many hits, or fails if asked for more."""

    def __init__(self, engine: TantivyEngine, most: int, *, fails: bool = False) -> None:
        super().__init__(engine)
        self.retriever, self.capabilities = engine.retriever, engine.capabilities
        self.most, self.fails = most, fails

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        if self.fails and any(query.n > self.most for query in queries):
            raise QueryError("The page is too large.")
        return await self.lexical.search(
            [replace(query, n=min(query.n, self.most)) for query in queries]
        )


async def observed(asker: Asker, *queries: AuditQuery) -> list[Observation]:
    """What is observed of queries, once their relevant documents were looked up."""
    await asker.look_up(asker.to_look_up(queries), lambda done, total=None, /: None)
    return [(await asker.observe(query)).records[0] for query in queries or [QUERY]]


async def test_the_pool_is_widened_for_each_group_and_compared_where_all_were_looked_for(
    engine: TantivyEngine,
) -> None:
    """What the engine answers comes first, and in its order."""
    watched, hits = Breaking(engine), await hits_of(engine, "physics", 10)
    plain, nothing = await observed(Asker(engine, GENDERS, 10), QUERY, AuditQuery("q", "zebra"))
    assert (plain.status, list(plain.ids), plain.pool) == ("ok", hits.ids, plain.ids)
    assert (nothing.status, nothing.pool, plain.relevance) == ("empty", (), None)
    (found,) = await observed(Asker(watched, GENDERS, 10, **WIDE))
    # One search, and one request for all groups.
    assert [[query.within for query in it] for it in watched.searches] == [[None], list(GROUPS)]
    assert (list(found.ids), {id_[0] for id_ in found.ids}) == (hits.ids, {"m"})
    assert sum(id_.startswith("w") for id_ in found.pool) == WIDENED_BY
    assert len(found.pool) == len(set(found.pool))
    # Both searches were cut off at 20 documents; the last ten of each have 10 to 19 in their ids.
    assert found.levels == {"gender": pytest.approx(1 - 14.5 / 25)}
    wide = Asker(engine, GENDERS, 100, texts=ByRank(), widened=(("gender", "male"),))
    assert (await observed(wide, AuditQuery("q", "opera")))[0].levels == {}


@pytest.mark.parametrize("widened", [GROUPS, GROUPS[:1], ()])
async def test_searches_go_on_where_all_that_they_found_is_likely_relevant(
    engine: TantivyEngine, widened: Any
) -> None:
    """All 25 women and 30 men are found, of whom the first searches see 20 each."""
    asker = Asker(engine, GENDERS, 10, texts=ALL_LIKELY, widened=widened)
    (found,) = await observed(asker)
    assert (len(found.pool), found.levels) == (55, {})
    if not widened:
        (shallow,) = await observed(replace(asker, deepens=False))
        assert (len(shallow.pool), shallow.levels) == (10, {"gender": 1 - 4.5 / 400})


@pytest.mark.parametrize(
    ("fails", "depth", "queries"),
    [
        (False, 10, []),
        (True, 10, []),
        # An engine that cuts off where no size ends is found out by the length of several answers:
        # queries of the whole audit tell, not the first ones; below the depth few of them suffice.
        (False, 20, [AuditQuery(f"q{n}", "nothing") for n in range(50)] + [QUERY] * 20),
        (False, 7, [AuditQuery(f"q{n}", "nothing") for n in range(20)] + [QUERY] * 50),
    ],
)
async def test_an_engine_that_answers_no_more_has_more_than_was_looked_at(
    engine: TantivyEngine, fails: bool, depth: int, queries: list[AuditQuery]
) -> None:
    """Some engines have a limit, perhaps below the depth; others fail when asked for more."""
    widened = GROUPS if queries else ()
    limited = Limited(engine, 10, fails=fails)
    asker = Asker(limited, GENDERS, depth, texts=ALL_LIKELY, widened=widened)
    await asker.find_limit(queries)
    (found,) = await observed(asker)
    assert (found.status, len(found.ids)) == ("ok", min(depth, 10))
    assert found.levels["gender"] >= LIKELY


async def test_judgements_bring_the_relevant_documents_that_were_not_answered(
    engine: TantivyEngine,
) -> None:
    qrels = {"q1": {"m00": 1, "w07": 2, "w08": 0, "gone": 1}}
    asker, other = Asker(engine, GENDERS, 5, qrels=qrels), AuditQuery("q2", "physics")
    found, unjudged = await observed(asker, QUERY, other)
    assert found.pool == (*found.ids, "w07")
    assert found.relevance == tuple(float(id_ in ("m00", "w07")) for id_ in found.pool)
    assert (found.levels, found.hidden, found.absent) == ({}, 0, 1), "'gone' is not in the index"
    assert unjudged.relevance is None
    # Beside an estimate they change neither the pool nor what is relevant.
    (estimated,) = await observed(Asker(engine, GENDERS, 5, texts=ByRank()))
    both, without = await observed(replace(asker, texts=ByRank()), QUERY, other)
    assert (both.pool, both.relevance) == (estimated.pool, estimated.relevance)
    assert decoded(both.judged["gender"]).tolist() == [[0, 1], [1, 0]], "m00 and w07"
    assert (both.hidden, both.absent, without.judged) == (0, 0, {})


async def test_what_is_known_of_judged_documents_depends_on_no_other_query() -> None:
    """Through LangChain only documents that some query has met can be read."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    people = [
        LangChainDocument("physics", id=f"p{n}", metadata={"gender": "male"}) for n in range(9)
    ]
    await store.aadd_documents(people)
    engine = from_langchain(store, schema=GENDER.model_dump(mode="json"))
    (met,) = await engine.search([Query("chemistry", 9)])
    assert len(met) == 9
    asker = Asker(engine, GENDERS, 5, qrels={"q1": dict.fromkeys(met.ids, 1)})
    (found,) = await observed(asker, QUERY)
    assert (found.others, found.hidden, found.absent) == ((), 4, 0)
    assert found.levels == {"gender": 1.0}, "so much is hidden that nobody can be acquitted"


async def test_an_id_that_is_refused_costs_no_other_document(engine: TantivyEngine) -> None:
    """Many documents are looked up together, and one of them may be at fault: it counts as hidden.

    Those of the other queries and chunks are known, and only its own chunk is asked again.
    """
    queries = [AuditQuery(f"q{number}", "physics") for number in range(3)]
    absent = {f"x{number}": 1 for number in range(LOOKED_UP)}
    qrels = {"q0": {"w00": 1}, "q1": {"bad": 1, "w01": 1}, "q2": {"w02": 1, **absent}}
    refusing = Breaking(engine)
    refusing.refused = frozenset({"bad"})
    found = await observed(Asker(refusing, GENDERS, 5, qrels=qrels), *queries)
    wanted = [("ok", ("w00",), 0), ("ok", ("w01",), 1), ("ok", ("w02",), 0)]
    assert [(it.status, it.others, it.hidden) for it in found] == wanted
    assert len(refusing.searches) == 1 + (LOOKED_UP - 1) + len(queries)


WHOLE: dict[str, Any] = {
    "query": "q1",
    "status": "ok",
    "ids": ("a", "b"),
    "others": ("c",),
    "relevance": (0.5, 0.0, 1.0),
    "groups": {"gender": {"patterns": [[1.0, 0.0], [0.5, 0.5]], "rows": [0, 1, 0]}},
}


NONE = float("nan")


def labelled(patterns: Any, *rows: int) -> Any:
    return {"gender": {"patterns": patterns, "rows": [*rows]}}


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("query", [""], "at least 1 character"),
        ("status", ["lost"], "'ok', 'empty' or 'failed'"),
        ("status", ["empty"], "the status is 'empty' with 2 ids"),
        ("ids", [()], "the status is 'ok' with 0 ids"),
        ("levels", [{"g": NONE}], "finite number"),
        ("others", [("a",), ("c", "c")], "has an id twice"),
        ("relevance", [(0.5, 0.5), (0.5, 0.5, 1.5)], "one number from 0 to 1"),
        ("groups", [labelled([[1]], *it) for it in ((0, 0), (0, 0, 1), (0, 0, -1))], "of the pool"),
        ("groups", [labelled([[2]], 0, 0, 0), labelled([[1], [0, 1]], 0, 0, 1)], "not shares"),
        ("groups", [labelled([[1, NONE]], 0, 0, 0)], "finite number"),
        ("hidden", [-1], "greater than or equal to 0"),
        ("strange", [1], "not permitted"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    name: str, values: Sequence[Any], words: str
) -> None:
    for value in values:
        with pytest.raises(ValidationError, match=words):
            Observation.model_validate({**WHOLE, name: value})
