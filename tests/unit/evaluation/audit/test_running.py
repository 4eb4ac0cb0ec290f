"""Running an audit: what is asked of an engine, what it survives, what ends it, what it keeps."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document as LangChainDocument
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from fairqr.base.errors import IndexUnavailableError, InputError, QueryError, SourceError
from fairqr.evaluation.audit import preparing
from fairqr.evaluation.audit.bundle import AuditFolder, Observation
from fairqr.evaluation.audit.finishing import Audit, make_again
from fairqr.evaluation.audit.observing import LOOKED_UP, WIDENED_BY, Observer
from fairqr.evaluation.audit.preparing import AuditInputs, AuditOptions
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.running import audit_engine
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.verifying import verify
from fairqr.retrieval.engines.engine import EngineOverWords, Hits, Query
from fairqr.retrieval.engines.langchain import from_langchain
from fairqr.retrieval.engines.limits import at_rate
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.fairness.table import decoded
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Attribute, Schema
from tests.unit.engines import hits_of
from tests.unit.evaluation.audit.examples import SCHEMA, WORDS, Breaking, ByRank, words_of
from tests.unit.evaluation.watching import Watcher
from tests.unit.retrieval.embedded import GENDER, built

SPEC = AuditSpec(k=4, depth=12, rerank=5)
UNIFORM = SPEC.model_copy(update={"target": Target(parts={"uniform": 1.0})})


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> TantivyEngine:
    """For each word, ten documents of women behind ten of men; nobody writes to it."""
    documents = [
        Document(
            f"{word}-{n:02}",
            f"Title of {word} {n:02}",
            " ".join(["body", *[word] * (2 + (n < 10))]),
            {"gender": "male" if n < 10 else "female"},
        )
        for word in WORDS
        for n in range(20)
    ]
    return built(tmp_path_factory.mktemp("people") / "v1", documents)


@pytest.fixture
def engine(people: TantivyEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """Without MiniLM, so that there are no estimates."""
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path / "cache"))
    return Breaking(people)


@pytest.fixture
def by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates that need no model."""

    async def opened(*_: object) -> tuple[ByRank, str]:
        return ByRank(), ""

    monkeypatch.setattr(preparing, "open_texts", opened)


async def audited(
    engine: Breaking,
    folder: Path,
    words: Sequence[str] | Queries = WORDS,
    spec: AuditSpec = SPEC,
    watcher: Watcher | None = None,
    concurrency: int = 3,
    **how: Any,
) -> Audit:
    queries = words if isinstance(words, Queries) else words_of(words)
    further = {name: how.pop(name) for name in ("qrels", "pairs", "users") if name in how}
    inputs = AuditInputs(spec, queries, **further)
    options = AuditOptions(concurrency, watcher=watcher or Watcher(), **how)
    return await audit_engine(engine, inputs, AuditFolder(folder), options)


@pytest.mark.promise("audit")
@pytest.mark.usefixtures("by_rank")
async def test_an_audit_says_first_what_it_will_ask(people: TantivyEngine, tmp_path: Path) -> None:
    """An audit says first how much it will ask.

    Searches that go together are counted one by one.
    """
    narrow, said = SPEC.model_copy(update={"widen": False}), "4 queries for 'v1', up to"
    paced = "64 requests, at most 1000 a second, so at least 0 s"
    for name, engine, spec, rate, asked in (
        ("plain", Breaking(people), SPEC, None, "64 requests"),
        ("paced", Breaking(people), SPEC, 1000, paced),
        ("narrow", Breaking(people), narrow, None, "20 requests"),
        ("unable", Breaking(people, without=["within_group"]), SPEC, None, "44 requests"),
    ):
        watcher = Watcher()
        await audited(engine, tmp_path / name, WORDS[:4], spec, watcher, rate=rate)
        assert (watcher.notes[0], watcher.steps) == (f"{said} {asked}", 4)
        at_once = {len(search) for search in engine.searches}
        assert (at_once == {1}) == (rate is not None or name in ("narrow", "unable"))
        is_wide = any(query.within for search in engine.searches for query in search)
        assert is_wide == (name in ("plain", "paced"))


async def test_judged_documents_are_looked_up_first(engine: Breaking, tmp_path: Path) -> None:
    """Many at a time; an audit that goes on looks up those of the queries that are left."""
    few = {word: {f"{word}-00": 1, f"{word}-19": 2, f"{word}-18": 0} for word in WORDS[:8]}
    qrels = few | {"word00": few["word00"] | {f"nowhere{n}": 1 for n in range(LOOKED_UP)}}
    engine.away = frozenset(WORDS[4:])
    with pytest.raises(IndexUnavailableError):
        await audited(engine, tmp_path / "out", qrels=qrels, concurrency=1)
    engine.away, first = frozenset(), len(engine.searches)
    audit = await audited(engine, tmp_path / "out", qrels=qrels)
    looked_up = [[len(query.only or ()) for query in search] for search in engine.searches]
    assert looked_up[:2] == [[LOOKED_UP], [16]]
    assert looked_up[first] == [8]
    assert sum(map(sum, looked_up)) == LOOKED_UP + 16 + 8
    assert (audit.figures.counts.with_relevance, audit.figures.counts.relevance) == (8, "judged")
    female, _ = audit.figures.groups
    assert (female.target.value, female.target.queries) == (0.5, 8)


@pytest.mark.promise("audit")
@pytest.mark.parametrize("failed", [3, 4])
async def test_too_many_refused_queries_leave_no_verdict(
    engine: Breaking, tmp_path: Path, failed: int
) -> None:
    """Too many failures leave no verdict."""
    engine.refused = frozenset(WORDS[:failed])
    audit = await audited(engine, tmp_path / "out", spec=UNIFORM)
    counts = audit.figures.counts
    assert (counts.asked, counts.answered, counts.failed) == (30, 30 - failed, failed)
    assert audit.figures.unanswered == dict.fromkeys(WORDS[:failed], "failed")
    (kept,) = AuditFolder(tmp_path / "out").observed(WORDS[:1])
    assert kept.message == "The query is too long; shorten it."
    assert audit.figures.too_many_failed == (failed == 4)
    assert ({it.verdict for it in audit.figures.groups} == {"cannot_tell"}) == (failed == 4)


@pytest.mark.promise("audit")
async def test_an_engine_that_goes_away_leaves_no_failures(
    engine: Breaking, tmp_path: Path
) -> None:
    """An engine that goes away ends an audit and leaves no failures.

    What was observed before is kept, and the rest is asked when it is back.

    So are the few queries that failed in an audit that was finished without them.
    """
    engine.away = frozenset(WORDS[8:])
    with pytest.raises(IndexUnavailableError, match=r"20 times in a row.*does not answer"):
        await audited(engine, tmp_path / "out", concurrency=1)
    kept = AuditFolder(tmp_path / "out").observations.read()
    assert {it.query for it in kept if it.is_final} == set(WORDS[:8])
    engine.away, watcher = frozenset(WORDS[:2]), Watcher()
    first = await audited(engine, tmp_path / "few", watcher=watcher)
    assert first.figures.counts.failed == 2
    assert watcher.notes[-1] == "Failed queries: 2. Run the same command to ask them again."
    assert (await audited(engine, tmp_path / "few")).digest == first.digest
    engine.away, written = frozenset(), set()
    for name, words in (("out", WORDS[8:]), ("few", WORDS[:2])):
        engine.searches.clear()
        audit = await audited(engine, tmp_path / name)
        assert {query.text for search in engine.searches for query in search} == set(words)
        assert (audit.figures.counts.answered, audit.figures.counts.failed) == (30, 0)
        assert verify(AuditFolder(tmp_path / name), audit.digest, make_again).problems == ()
        written.add((tmp_path / name / "audit.json").read_bytes())
    assert len(written) == 1
    engine.away = frozenset(WORDS)
    with pytest.raises(IndexUnavailableError, match="did not answer any question"):
        await audited(engine, tmp_path / "none", WORDS[:4])


class Killed(BaseException):
    """What ends a test's run at once."""


@pytest.mark.promise("audit")
@pytest.mark.parametrize("redact", [False, True])
async def test_a_killed_audit_goes_on_and_asks_nothing_twice(
    engine: Breaking, tmp_path: Path, redact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit goes on after a kill and asks nothing twice.

    Each run is killed one file later than the one before; half written files go.
    """
    spec, real = SPEC.model_copy(update={"rerank": 0}), Path.replace
    folder = tmp_path / "out"
    engine.refused = frozenset(WORDS[:1])
    for files in range(50):
        left = files

        def replace(path: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                Path(f"{target.parent}/.{target.name}.0123456789abcdef").write_bytes(b"half")
                raise Killed
            left -= 1
            return real(path, target)

        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            patched.setattr(Path, "replace", replace)
            audit = await audited(engine, folder, WORDS[:6], spec, redact=redact)
            break
    assert files > 6
    asked = [query.text for search in engine.searches for query in search]
    assert sorted(asked) == sorted(WORDS[1:6])
    assert (audit.manifest.redacted, audit.figures.counts.answered) == (redact, 5)
    assert verify(AuditFolder(folder), audit.digest, make_again).problems == ()
    assert not list((folder).rglob(".*.0123456789abcdef"))
    lines = (folder / "raw/observations.jsonl").read_text().splitlines()
    assert len(lines) == 6, "the failed query was asked again, and has one line"
    assert (WORDS[0] in "".join(lines)) != redact
    for how in ({"redact": True}, {"layout": "dsa"}):
        with pytest.raises(InputError, match="is finished with another --redact or --layout"):
            await audited(engine, folder, WORDS[:6], spec, **how)


@pytest.mark.promise("audit")
async def test_an_attribute_without_labels_ends_the_audit(
    tmp_path: Path,
) -> None:
    """An error does not vanish when the audit is tried again.

    The last queries alone may show none: labels of an earlier run are labels, too.
    """
    documents = [Document(f"{word}-1", "", word) for word in WORDS]
    bare = built(tmp_path / "v2", documents)
    for words, answered in ((WORDS, 20), (WORDS[:3], 3), (WORDS[:3], 3)):
        with pytest.raises(SourceError, match=f"to {answered} queries has a label of 'gender'"):
            await audited(Breaking(bare), tmp_path / str(answered), words, concurrency=1)
    labelled = Document(f"{WORDS[0]}-1", "", WORDS[0], {"gender": "male"})
    engine = Breaking(built(tmp_path / "v3", [labelled, *documents[1:]]))
    engine.away = frozenset(WORDS[1:])
    with pytest.raises(IndexUnavailableError):
        await audited(engine, tmp_path / "out", concurrency=1)
    engine.away = frozenset()
    assert (await audited(engine, tmp_path / "out")).figures.counts.answered == 30


async def test_what_cannot_be_computed_is_refused_first(tmp_path: Path) -> None:
    kind = Attribute(name="kind", field="kind", groups=("a", "b"))
    schema = Schema(attributes={"gender": SCHEMA.attribute("gender"), "kind": kind})
    documents = [Document("1", "", "word00", {"gender": "female", "kind": "a"})]
    engine = Breaking(built(tmp_path / "v1", documents, schema))
    for spec, problem in (
        ({"target": "relevance:0.5,population:0.5"}, "gives no population for 'kind'"),
        ({"target": ["population:1", "kind=a:0.5,b:0.5"]}, "no population for 'gender×kind'; add"),
        ({"reference": {"gender": "nothing"}}, "'gender=nothing' is no group of this audit"),
        ({"reference": {"nothing": "female"}}, "'nothing=female' is no group of this audit"),
    ):
        with pytest.raises(InputError, match=problem):
            await audited(engine, tmp_path / "out", spec=AuditSpec.model_validate(spec))
        assert engine.searches == []


@pytest.mark.promise("audit")
async def test_many_queries_at_once_keep_to_the_rate(engine: Breaking) -> None:
    """An audit keeps to `--rate`."""
    begun = time.monotonic()
    await at_rate(engine, 200).search([Query(word, 3) for word in WORDS[:21]])
    assert time.monotonic() - begun >= 0.1
    assert [len(batch) for batch in engine.searches] == [1] * 21


@pytest.mark.promise("audit")
@pytest.mark.usefixtures("by_rank")
async def test_the_order_of_answers_changes_no_file(engine: Breaking, tmp_path: Path) -> None:
    """The same observations give the same files."""
    made = []
    for concurrency in (1, 7):
        audit = await audited(engine, tmp_path / str(concurrency), concurrency=concurrency)
        found = AuditFolder(audit.folder).observations.read()
        assert [it.query for it in found] == list(WORDS)
        made.append(audit.manifest.files)
    assert made[0] == made[1]
    assert {"audit.json", "results.csv", "queries.csv", "report.md", "report.html"} < made[0].keys()
    assert {"raw/observations.jsonl", "raw/queries.json", "figures/exposure.svg"} < made[0].keys()


async def test_the_report_names_its_examples_by_their_titles(
    engine: Breaking, tmp_path: Path
) -> None:
    """But where they would tell what was asked: a redacted query, or one that was asked rarely."""
    told, spec = {}, UNIFORM.model_copy(update={"rare": 150})
    rarely = words_of(asks=[200, 200])
    for name, words, how in (
        ("redacted", WORDS, {"redact": True}),
        ("plain", WORDS, {}),
        ("rare", rarely, {}),
    ):
        audit = await audited(engine, tmp_path / name, words, spec, **how)
        raw, text = tmp_path / name / "raw", (tmp_path / name / "report.md").read_text()
        assert json.loads((raw / "titles.json").read_text()) == audit.titles
        assert (raw / "titles.json").stat().st_mode & 0o777 == 0o600
        assert not any(b"body" in it.read_bytes() for it in raw.iterdir())
        assert verify(AuditFolder(audit.folder), audit.digest, make_again).problems == ()
        assert ("Title of" in text) == bool(audit.titles) == (name != "redacted")
        assert not any(f") {id_}" in text for id_ in audit.titles)
        told[name] = (audit.titles, text)
    assert "-00" in told["redacted"][1]
    (plain, _), (rare, text) = told["plain"], told["rare"]
    assert plain == {id_: f"Title of {id_.replace('-', ' ')}" for id_ in engine.reads[0]}
    assert {id_[:6] for id_ in rare} == {"word00", "word01"}
    assert "asked fewer than 150 times" in text


QUERY = AuditQuery("q1", "physics")
GENDERS = (GENDER.attribute("gender"),)
GROUPS = (("gender", "female"), ("gender", "male"))
WIDE: dict[str, Any] = {"texts": ByRank(), "widened": GROUPS}
ALL_LIKELY = ByRank(of=400)


@pytest.fixture(scope="module")
def physics(tmp_path_factory: pytest.TempPathFactory) -> TantivyEngine:
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


async def observed(observer: Observer, *queries: AuditQuery) -> list[Observation]:
    """What is observed of queries, once their relevant documents were looked up."""
    await observer.look_up(observer.to_look_up(queries), lambda done, total=None, /: None)
    return [(await observer.observe(query)).records[0] for query in queries or [QUERY]]


@pytest.mark.promise("audit")
async def test_the_pool_is_widened_for_each_group(
    physics: TantivyEngine,
) -> None:
    """The pool is widened by a search for each group, and compared where every one was looked for.

    What the engine answers comes first, and in its order.
    """
    watched, hits = Breaking(physics), await hits_of(physics, "physics", 10)
    plain, nothing = await observed(Observer(physics, GENDERS, 10), QUERY, AuditQuery("q", "zebra"))
    assert (plain.status, list(plain.ids), plain.pool) == ("ok", hits.ids, plain.ids)
    assert (nothing.status, nothing.pool, plain.relevance) == ("empty", (), None)
    (found,) = await observed(Observer(watched, GENDERS, 10, **WIDE))
    # One search, and one request for all groups.
    assert [[query.within for query in it] for it in watched.searches] == [[None], list(GROUPS)]
    assert (list(found.ids), {id_[0] for id_ in found.ids}) == (hits.ids, {"m"})
    assert sum(id_.startswith("w") for id_ in found.pool) == WIDENED_BY
    assert len(found.pool) == len(set(found.pool))
    # Both searches were cut off at 20 documents; the last ten of each have 10 to 19 in their ids.
    assert found.levels == {"gender": pytest.approx(1 - 14.5 / 25)}
    wide = Observer(physics, GENDERS, 100, texts=ByRank(), widened=(("gender", "male"),))
    assert (await observed(wide, AuditQuery("q", "opera")))[0].levels == {}


NOTHING = [AuditQuery(f"q{number}", "nothing") for number in range(50)]


@pytest.mark.promise("audit")
async def test_an_engine_that_answers_no_more_has_more(
    physics: TantivyEngine,
) -> None:
    """An engine's own limit is found from the whole list of queries, and an audit looks until
    estimated relevance falls.

    Else all 25 women and 30 men are found, of whom the first searches see 20 each.
    """
    for limit, how, asked in (
        *((None, {"widened": it}, []) for it in (GROUPS, GROUPS[:1], ())),
        (None, {"deepens": False}, []),
        # Some engines have a limit, perhaps below the depth; others fail when asked for more.
        ({}, {}, []),
        ({"fails": True}, {}, []),
        # An engine that cuts off where no size ends is found out by the length of several answers:
        # queries of the whole audit tell, not the first ones; below the depth few of them suffice.
        ({}, {"depth": 20, "widened": GROUPS}, NOTHING + [QUERY] * 20),
        ({}, {"depth": 7, "widened": GROUPS}, NOTHING[:20] + [QUERY] * 50),
    ):
        engine = physics if limit is None else Limited(physics, 10, **limit)
        observer = Observer(engine, GENDERS, **{"depth": 10, "texts": ALL_LIKELY, **how})
        await observer.find_limit(asked)
        (found,) = await observed(observer)
        assert (found.status, len(found.ids)) == ("ok", min(observer.depth, 10))
        if limit is None and observer.deepens:
            assert (len(found.pool), found.levels) == (55, {})
        else:
            assert found.levels["gender"] >= LIKELY
        assert observer.deepens or found.levels == {"gender": 1 - 4.5 / 400}


@pytest.mark.promise("audit")
async def test_judgements_bring_relevant_documents(
    physics: TantivyEngine,
) -> None:
    """Judgements bring the relevant documents that were not answered, and leave the estimate as it
    is where there is one.
    """
    qrels = {"q1": {"m00": 1, "w07": 2, "w08": 0, "gone": 1}}
    observer, other = Observer(physics, GENDERS, 5, qrels=qrels), AuditQuery("q2", "physics")
    found, unjudged = await observed(observer, QUERY, other)
    assert found.pool == (*found.ids, "w07")
    assert found.relevance == tuple(float(id_ in ("m00", "w07")) for id_ in found.pool)
    assert (found.levels, found.hidden, found.absent) == ({}, 0, 1), "'gone' is not in the index"
    assert unjudged.relevance is None
    # Beside an estimate they change neither the pool nor what is relevant.
    (estimated,) = await observed(Observer(physics, GENDERS, 5, texts=ByRank()))
    both, without = await observed(replace(observer, texts=ByRank()), QUERY, other)
    assert (both.pool, both.relevance) == (estimated.pool, estimated.relevance)
    assert decoded(both.judged["gender"]).tolist() == [[0, 1], [1, 0]], "m00 and w07"
    assert (both.hidden, both.absent, without.judged) == (0, 0, {})


@pytest.mark.promise("audit")
async def test_judged_documents_do_not_depend_on_other_queries() -> None:
    """Judgements of documents that the engine hides acquit nobody.

    Through LangChain only documents that some query has met can be read.
    """
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    people = [
        LangChainDocument("physics", id=f"p{n}", metadata={"gender": "male"}) for n in range(9)
    ]
    await store.aadd_documents(people)
    engine = from_langchain(store, schema=GENDER.model_dump(mode="json"))
    (met,) = await engine.search([Query("chemistry", 9)])
    assert len(met) == 9
    observer = Observer(engine, GENDERS, 5, qrels={"q1": dict.fromkeys(met.ids, 1)})
    (found,) = await observed(observer, QUERY)
    assert (found.others, found.hidden, found.absent) == ((), 4, 0)
    assert found.levels == {"gender": 1.0}, "so much is hidden that nobody can be acquitted"


async def test_an_id_that_is_refused_costs_no_other_document(physics: TantivyEngine) -> None:
    """Many documents are looked up together, and one of them may be at fault: it counts as hidden.

    Those of the other queries and chunks are known, and only its own chunk is asked again.
    """
    queries = [AuditQuery(f"q{number}", "physics") for number in range(3)]
    absent = {f"x{number}": 1 for number in range(LOOKED_UP)}
    qrels = {"q0": {"w00": 1}, "q1": {"bad": 1, "w01": 1}, "q2": {"w02": 1, **absent}}
    refusing = Breaking(physics)
    refusing.refused = frozenset({"bad"})
    found = await observed(Observer(refusing, GENDERS, 5, qrels=qrels), *queries)
    wanted = [("ok", ("w00",), 0), ("ok", ("w01",), 1), ("ok", ("w02",), 0)]
    assert [(it.status, it.others, it.hidden) for it in found] == wanted
    assert len(refusing.searches) == 1 + (LOOKED_UP - 1) + len(queries)
