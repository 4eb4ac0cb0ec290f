"""Running an audit: what is asked of an engine, what it survives, what ends it, what it keeps."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
RARE = UNIFORM.model_copy(update={"rare": 150})


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
    **options: Any,
) -> Audit:
    """Audit an engine with these words as queries."""
    queries = words if isinstance(words, Queries) else words_of(words)
    names = {"qrels", "pairs", "users"} & options.keys()
    inputs = AuditInputs(spec, queries, **{name: options.pop(name) for name in names})
    run = AuditOptions(concurrency, watcher=watcher or Watcher(), **options)
    return await audit_engine(engine, inputs, AuditFolder(folder), run)


class Announced(NamedTuple):
    """What an audit says first that it will ask, and what it then asks.

    Attributes:
        says: The end of its first note.
        without: What the engine cannot do.
        widen: Whether the audit may widen the pool.
        rate: How many requests it may send a second.
        is_wide: Whether it searches within groups.
        is_single: Whether each request is one search.
    """

    says: str
    without: tuple[str, ...] = ()
    widen: bool = True
    rate: float | None = None
    is_wide: bool = False
    is_single: bool = True


@pytest.mark.promise("audit")
@pytest.mark.usefixtures("by_rank")
@pytest.mark.parametrize(
    "announced",
    [
        Announced("64 requests", is_wide=True, is_single=False),
        Announced("64 requests, at most 1000 a second, so at least 0 s", rate=1000, is_wide=True),
        Announced("20 requests", widen=False),
        Announced("44 requests", without=("within_group",)),
    ],
    ids=["plain", "at a rate", "not widened", "no search in a group"],
)
async def test_an_audit_says_first_what_it_will_ask(
    people: TantivyEngine, tmp_path: Path, announced: Announced
) -> None:
    """An audit says first how much it will ask.

    Searches that go together are counted one by one, and the pool is widened only by engines that
    search within a group.
    """
    engine = Breaking(people, without=announced.without)
    watcher = Watcher()

    spec = SPEC.model_copy(update={"widen": announced.widen})
    await audited(engine, tmp_path / "out", WORDS[:4], spec, watcher, rate=announced.rate)

    assert watcher.notes[0] == f"4 queries for 'v1', up to {announced.says}"
    assert watcher.steps == 4
    sizes = {len(search) for search in engine.searches}
    assert (sizes == {1}) is announced.is_single
    searched_within = [query.within for search in engine.searches for query in search]
    assert any(searched_within) is announced.is_wide


async def test_judged_documents_are_looked_up_first(engine: Breaking, tmp_path: Path) -> None:
    """Many are looked up at a time; an audit that goes on looks up those of remaining queries."""
    judged = {word: {f"{word}-00": 1, f"{word}-19": 2, f"{word}-18": 0} for word in WORDS[:8]}
    qrels = judged | {"word00": judged["word00"] | {f"nowhere{n}": 1 for n in range(LOOKED_UP)}}
    engine.away = frozenset(WORDS[4:])
    with pytest.raises(IndexUnavailableError):
        await audited(engine, tmp_path / "out", qrels=qrels, concurrency=1)
    engine.away = frozenset()
    first = len(engine.searches)
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
    (observation,) = AuditFolder(tmp_path / "out").observed(WORDS[:1])
    assert observation.message == "The query is too long; shorten it."
    assert audit.figures.too_many_failed == (failed == 4)
    assert ({group.verdict for group in audit.figures.groups} == {"cannot_tell"}) == (failed == 4)


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
    observations = AuditFolder(tmp_path / "out").observations.read()
    assert {observation.query for observation in observations if observation.is_final} == set(
        WORDS[:8]
    )
    engine.away = frozenset(WORDS[:2])
    watcher = Watcher()
    first = await audited(engine, tmp_path / "few", watcher=watcher)
    assert first.figures.counts.failed == 2
    assert watcher.notes[-1] == "Failed queries: 2. Run the same command to ask them again."
    assert (await audited(engine, tmp_path / "few")).digest == first.digest
    engine.away = frozenset()
    written = set()
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
    spec = SPEC.model_copy(update={"rerank": 0})
    real = Path.replace
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
    texts = [query.text for search in engine.searches for query in search]
    assert sorted(texts) == sorted(WORDS[1:6])
    assert (audit.manifest.redacted, audit.figures.counts.answered) == (redact, 5)
    assert verify(AuditFolder(folder), audit.digest, make_again).problems == ()
    assert not list((folder).rglob(".*.0123456789abcdef"))
    lines = (folder / "raw/observations.jsonl").read_text().splitlines()
    assert len(lines) == 6, "the failed query was asked again, and has one line"
    assert (WORDS[0] in "".join(lines)) != redact
    with pytest.raises(InputError, match="is finished with another --redact or --layout"):
        await audited(engine, folder, WORDS[:6], spec, redact=True)
    with pytest.raises(InputError, match="is finished with another --redact or --layout"):
        await audited(engine, folder, WORDS[:6], spec, layout="dsa")


@pytest.mark.promise("audit")
async def test_an_attribute_without_labels_ends_the_audit(tmp_path: Path) -> None:
    """An error does not vanish when the audit is tried again."""
    documents = [Document(f"{word}-1", "", word) for word in WORDS]
    engine = Breaking(built(tmp_path / "v2", documents))

    with pytest.raises(SourceError, match="to 20 queries has a label of 'gender'"):
        await audited(engine, tmp_path / "many", WORDS, concurrency=1)
    with pytest.raises(SourceError, match="to 3 queries has a label of 'gender'"):
        await audited(engine, tmp_path / "few", WORDS[:3], concurrency=1)
    with pytest.raises(SourceError, match="to 3 queries has a label of 'gender'"):
        await audited(engine, tmp_path / "few", WORDS[:3], concurrency=1)


async def test_labels_of_an_earlier_run_are_labels_too(tmp_path: Path) -> None:
    """The last queries alone may show none."""
    documents = [Document(f"{word}-1", "", word) for word in WORDS[1:]]
    labelled = Document(f"{WORDS[0]}-1", "", WORDS[0], {"gender": "male"})
    engine = Breaking(built(tmp_path / "v3", [labelled, *documents]))
    engine.away = frozenset(WORDS[1:])
    with pytest.raises(IndexUnavailableError):
        await audited(engine, tmp_path / "out", concurrency=1)

    engine.away = frozenset()
    audit = await audited(engine, tmp_path / "out")

    assert audit.figures.counts.answered == 30


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        pytest.param(
            {"target": "relevance:0.5,population:0.5"},
            "gives no population for 'kind'",
            id="no population",
        ),
        pytest.param(
            {"target": ["population:1", "kind=a:0.5,b:0.5"]},
            "no population for 'gender×kind'; add",
            id="no population of a combination",
        ),
        pytest.param(
            {"reference": {"gender": "nothing"}},
            "'gender=nothing' is no group of this audit",
            id="unknown group",
        ),
        pytest.param(
            {"reference": {"nothing": "female"}},
            "'nothing=female' is no group of this audit",
            id="unknown attribute",
        ),
    ],
)
async def test_what_cannot_be_computed_is_refused_first(
    tmp_path: Path, spec: dict[str, Any], sentence: str
) -> None:
    """The engine is asked nothing."""
    kind = Attribute(name="kind", field="kind", groups=("a", "b"))
    schema = Schema(attributes={"gender": SCHEMA.attribute("gender"), "kind": kind})
    documents = [Document("1", "", "word00", {"gender": "female", "kind": "a"})]
    engine = Breaking(built(tmp_path / "v1", documents, schema))

    with pytest.raises(InputError, match=sentence):
        await audited(engine, tmp_path / "out", spec=AuditSpec.model_validate(spec))

    assert engine.searches == []


@pytest.mark.promise("audit")
async def test_many_queries_at_once_keep_to_the_rate(engine: Breaking) -> None:
    """An audit keeps to `--rate`."""
    start = time.monotonic()
    await at_rate(engine, 200).search([Query(word, 3) for word in WORDS[:21]])

    assert time.monotonic() - start >= 0.1
    assert [len(batch) for batch in engine.searches] == [1] * 21


@pytest.mark.promise("audit")
@pytest.mark.usefixtures("by_rank")
async def test_the_order_of_answers_changes_no_file(engine: Breaking, tmp_path: Path) -> None:
    """The same observations give the same files."""
    single = await audited(engine, tmp_path / "1", concurrency=1)
    seven = await audited(engine, tmp_path / "7", concurrency=7)

    for audit in (single, seven):
        observations = AuditFolder(audit.folder).observations.read()
        assert [observation.query for observation in observations] == list(WORDS)
    files = single.manifest.files
    assert files == seven.manifest.files
    assert {"audit.json", "results.csv", "queries.csv", "report.md", "report.html"} < files.keys()
    assert {"raw/observations.jsonl", "raw/queries.json", "figures/exposure.svg"} < files.keys()


@pytest.mark.parametrize(
    ("counts", "redact"),
    [
        pytest.param((), True, id="redacted"),
        pytest.param((), False, id="plain"),
        pytest.param((200, 200), False, id="rarely asked"),
    ],
)
async def test_titles_are_kept_for_their_owner(
    engine: Breaking, tmp_path: Path, counts: Sequence[int], redact: bool
) -> None:
    """``raw/titles.json`` holds them, and nothing holds the text of a document."""
    audit = await audited(engine, tmp_path / "out", words_of(asks=counts), RARE, redact=redact)

    raw = tmp_path / "out/raw"
    assert json.loads((raw / "titles.json").read_text()) == audit.titles
    assert (raw / "titles.json").stat().st_mode & 0o777 == 0o600
    assert not any(b"body" in path.read_bytes() for path in raw.iterdir())
    assert verify(AuditFolder(audit.folder), audit.digest, make_again).problems == ()


async def test_a_report_names_its_examples_by_their_titles(
    engine: Breaking, tmp_path: Path
) -> None:
    audit = await audited(engine, tmp_path / "out", WORDS, RARE)

    ids = engine.reads[0]
    assert audit.titles == {id_: f"Title of {id_.replace('-', ' ')}" for id_ in ids}
    report = (tmp_path / "out/report.md").read_text()
    assert "Title of" in report
    assert not any(f") {id_}" in report for id_ in audit.titles)


async def test_a_redacted_report_names_no_title(engine: Breaking, tmp_path: Path) -> None:
    """It would tell what was asked."""
    audit = await audited(engine, tmp_path / "out", WORDS, RARE, redact=True)

    assert not audit.titles
    report = (tmp_path / "out/report.md").read_text()
    assert "Title of" not in report
    assert "-00" in report


async def test_examples_of_rare_queries_are_not_named(engine: Breaking, tmp_path: Path) -> None:
    """Of thirty queries two were asked often."""
    audit = await audited(engine, tmp_path / "out", words_of(asks=[200, 200]), RARE)

    assert {id_[:6] for id_ in audit.titles} == {"word00", "word01"}
    report = (tmp_path / "out/report.md").read_text()
    assert "Title of" in report
    assert not any(f") {id_}" in report for id_ in audit.titles)
    assert "asked fewer than 150 times" in report


QUERY = AuditQuery("q1", "physics")
GENDERS = (GENDER.attribute("gender"),)
GROUPS = (("gender", "female"), ("gender", "male"))
WIDE: dict[str, Any] = {"texts": ByRank(), "widened": GROUPS}
ALL_LIKELY = ByRank(of=400)
UNJUDGED = AuditQuery("q2", "physics")
SOME_JUDGED = {"q1": {"m00": 1, "w07": 2, "w08": 0, "gone": 1}}


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

    def __init__(self, engine: TantivyEngine, limit: int, *, fails: bool = False) -> None:
        super().__init__(engine)
        self.retriever = engine.retriever
        self.capabilities = engine.capabilities
        self.most = limit
        self.fails = fails

    async def search(self, queries: Sequence[Query]) -> list[Hits]:
        if self.fails and any(query.n > self.most for query in queries):
            raise QueryError("The page is too large.")
        return await self.lexical.search(
            [replace(query, n=min(query.n, self.most)) for query in queries]
        )


async def observed(observer: Observer, *queries: AuditQuery) -> list[Observation]:
    """Return what is observed of queries, once their relevant documents were looked up."""
    await observer.look_up(observer.to_look_up(queries), lambda done, total=None, /: None)
    return [(await observer.observe(query)).records[0] for query in queries or [QUERY]]


@pytest.mark.promise("audit")
async def test_the_pool_is_widened_for_each_group(physics: TantivyEngine) -> None:
    """The pool is widened by a search for each group, and compared where every one was looked for.

    What the engine answers comes first, and in its order.
    """
    hits = await hits_of(physics, "physics", 10)
    watched = Breaking(physics)

    (observation,) = await observed(Observer(watched, GENDERS, 10, **WIDE))

    # One search, and one request for all groups.
    within = [[query.within for query in search] for search in watched.searches]
    assert within == [[None], list(GROUPS)]
    assert list(observation.ids) == hits.ids
    assert {id_[0] for id_ in observation.ids} == {"m"}
    assert sum(id_.startswith("w") for id_ in observation.pool) == WIDENED_BY
    assert len(observation.pool) == len(set(observation.pool))
    # Both searches were cut off at 20 documents; the last ten of each have 10 to 19 in their ids.
    assert observation.levels == {"gender": pytest.approx(1 - 14.5 / 25)}


async def test_without_estimates_the_pool_is_what_was_answered(physics: TantivyEngine) -> None:
    hits = await hits_of(physics, "physics", 10)

    answered, empty = await observed(
        Observer(physics, GENDERS, 10), QUERY, AuditQuery("q", "zebra")
    )

    assert (answered.status, list(answered.ids)) == ("ok", hits.ids)
    assert answered.pool == answered.ids
    assert answered.relevance is None
    assert (empty.status, empty.pool) == ("empty", ())


async def test_a_search_that_was_not_cut_off_saw_all(physics: TantivyEngine) -> None:
    observer = Observer(physics, GENDERS, 100, texts=ByRank(), widened=(("gender", "male"),))

    (observation,) = await observed(observer, AuditQuery("q", "opera"))

    assert observation.levels == {}


NOTHING = [AuditQuery(f"q{number}", "nothing") for number in range(50)]


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    "widened",
    [
        pytest.param(GROUPS, id="for both groups"),
        pytest.param(GROUPS[:1], id="for one group"),
        pytest.param((), id="for no group"),
    ],
)
async def test_an_engine_is_asked_until_nothing_more_is_likely(
    physics: TantivyEngine, widened: tuple[tuple[str, str], ...]
) -> None:
    """An audit looks until estimated relevance falls.

    All 25 women and 30 men are found, of whom the first searches see 20 each.
    """
    observer = Observer(physics, GENDERS, depth=10, texts=ALL_LIKELY, widened=widened)
    await observer.find_limit([])

    (observation,) = await observed(observer)

    assert observer.deepens
    assert (observation.status, len(observation.ids)) == ("ok", 10)
    assert (len(observation.pool), observation.levels) == (55, {})


async def test_an_engine_that_is_not_asked_again_has_more(physics: TantivyEngine) -> None:
    observer = Observer(physics, GENDERS, depth=10, texts=ALL_LIKELY, deepens=False)
    await observer.find_limit([])

    (observation,) = await observed(observer)

    assert (observation.status, len(observation.ids)) == ("ok", 10)
    assert observation.levels == {"gender": 1 - 4.5 / 400}
    assert observation.levels["gender"] >= LIKELY


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("fails", "options", "first_queries"),
    [
        # Some engines have a limit, perhaps below the depth; others fail when asked for more.
        pytest.param(False, {}, [], id="cuts off"),
        pytest.param(True, {}, [], id="fails"),
        # An engine that cuts off where no size ends is found out by the length of several answers:
        # queries of the whole audit tell, not the first ones; below the depth few of them suffice.
        pytest.param(
            False,
            {"depth": 20, "widened": GROUPS},
            NOTHING + [QUERY] * 20,
            id="cuts off below the depth",
        ),
        pytest.param(
            False, {"depth": 7}, NOTHING[:20] + [QUERY] * 50, id="cuts off above the depth"
        ),
    ],
)
async def test_an_engine_that_answers_no_more_has_more(
    physics: TantivyEngine, fails: bool, options: dict[str, Any], first_queries: list[AuditQuery]
) -> None:
    """An engine's own limit is found from the whole list of queries, so that an audit does not take
    what it saw for all that there is.
    """
    engine = Limited(physics, 10, fails=fails)
    observer = Observer(engine, GENDERS, **{"depth": 10, "texts": ALL_LIKELY, **options})
    await observer.find_limit(first_queries)

    (observation,) = await observed(observer)

    assert observer.deepens
    assert (observation.status, len(observation.ids)) == ("ok", min(observer.depth, 10))
    assert observation.levels["gender"] >= LIKELY


@pytest.mark.promise("audit")
async def test_judgements_bring_relevant_documents(physics: TantivyEngine) -> None:
    """Judgements bring the relevant documents that were not answered."""
    observer = Observer(physics, GENDERS, 5, qrels=SOME_JUDGED)

    judged, unjudged = await observed(observer, QUERY, UNJUDGED)

    assert judged.pool == (*judged.ids, "w07")
    assert judged.relevance == tuple(float(id_ in ("m00", "w07")) for id_ in judged.pool)
    assert (judged.levels, judged.hidden) == ({}, 0)
    assert judged.absent == 1, "'gone' is not in the index"
    assert unjudged.relevance is None


@pytest.mark.promise("audit")
async def test_judgements_beside_an_estimate_change_no_pool(physics: TantivyEngine) -> None:
    """Judgements of some queries leave the estimate of relevance as it is, so that it can be
    compared with them.
    """
    observer = Observer(physics, GENDERS, 5, texts=ByRank())

    (estimated,) = await observed(observer)
    both, unjudged = await observed(replace(observer, qrels=SOME_JUDGED), QUERY, UNJUDGED)

    assert (both.pool, both.relevance) == (estimated.pool, estimated.relevance)
    assert decoded(both.judged["gender"]).tolist() == [[0, 1], [1, 0]], "m00 and w07"
    assert (both.hidden, both.absent) == (0, 0)
    assert unjudged.judged == {}


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

    (observation,) = await observed(observer, QUERY)

    assert (observation.others, observation.hidden, observation.absent) == ((), 4, 0)
    assert observation.levels == {"gender": 1.0}, "so much is hidden that nobody can be acquitted"


async def test_an_id_that_is_refused_costs_no_other_document(physics: TantivyEngine) -> None:
    """Many documents are looked up together, and one of them may be at fault: it counts as hidden.

    Those of the other queries and chunks are known, and only its own chunk is asked again.
    """
    queries = [AuditQuery(f"q{number}", "physics") for number in range(3)]
    absent = {f"x{number}": 1 for number in range(LOOKED_UP)}
    qrels = {"q0": {"w00": 1}, "q1": {"bad": 1, "w01": 1}, "q2": {"w02": 1, **absent}}
    refusing = Breaking(physics)
    refusing.refused = frozenset({"bad"})

    observations = await observed(Observer(refusing, GENDERS, 5, qrels=qrels), *queries)

    expected = [("ok", ("w00",), 0), ("ok", ("w01",), 1), ("ok", ("w02",), 0)]
    assert [(it.status, it.others, it.hidden) for it in observations] == expected
    assert len(refusing.searches) == 1 + (LOOKED_UP - 1) + len(queries)
