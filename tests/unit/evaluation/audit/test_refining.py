"""Mending with refined queries: what they find and change, and what a failing model leaves."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from langchain_core.language_models import FakeListChatModel

from fairqr.agents.refiner import Refinement, RefinementRequest
from fairqr.base.errors import InputError
from fairqr.evaluation.audit.asking import Pace, paced
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.exposures import Answer, Choices
from fairqr.evaluation.audit.findings import findings_of
from fairqr.evaluation.audit.finishing import Audit, carry_out, recompute
from fairqr.evaluation.audit.mending import MENDED_WEIGHT, WEIGHTS, Mendable, compared_curves
from fairqr.evaluation.audit.models import AskedModels, open_models
from fairqr.evaluation.audit.running import make_plan
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.audit.verifying import verify
from fairqr.evaluation.reports.text import points
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.tantivy import TantivyEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.target import Target
from tests.unit.engines import WatchedEngine
from tests.unit.evaluation.audit.examples import outcome_of, refined, words_of
from tests.unit.evaluation.watching import Watcher
from tests.unit.retrieval.embedded import built

WORDS = tuple(f"word{number:02}" for number in range(8))
QUERIES = words_of(WORDS)
SPEC = AuditSpec(
    k=4, depth=8, again=0, widen=False, refined=6, target=Target(parts={"uniform": 1.0})
)


class Likely:
    """Says that each document is more likely relevant than not."""

    async def estimate_ids(self, query: str, ids: Sequence[str]) -> FloatArray | None:
        return np.full(len(ids), 0.75)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TantivyEngine]:
    """For each word, ten documents of women behind ten of men; a search finds men alone."""
    folder = tmp_path_factory.mktemp("refined")
    documents = [
        Document(
            f"{word}-{n:02}",
            "",
            " ".join([word] * (2 + (n < 10))) + (" gentleman" if n < 10 else " actress"),
            {"gender": "male" if n < 10 else "female"},
        )
        for word in WORDS
        for n in range(20)
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FAIRQR_CACHE_DIR", str(folder / "cache"))
        yield built(folder / "v1", documents)


@pytest.fixture
def engine(index: TantivyEngine) -> WatchedEngine:
    return WatchedEngine(index)


class Finished(NamedTuple):
    """An audit that feedback refined the queries of, which several tests look at."""

    audit: Audit
    engine: WatchedEngine
    notes: list[str]


@pytest.fixture(scope="module")
def finished(index: TantivyEngine, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    engine, watcher = WatchedEngine(index), Watcher()
    folder = tmp_path_factory.mktemp("finished")
    audit = asyncio.run(audited(engine, folder / "out", feedback(folder), watcher=watcher))
    return Finished(audit, engine, watcher.notes)


async def audited(
    engine: WatchedEngine,
    folder: Path,
    asked: AskedModels | None,
    *,
    watcher: Watcher | None = None,
    redact: bool = False,
    **options: object,
) -> Audit:
    plan = await make_plan(
        SPEC.model_copy(update=options), engine, QUERIES, texts=Likely(), asked=asked
    )
    folder_ = AuditFolder(folder)
    return await carry_out(
        plan, folder_, concurrency=2, watcher=watcher or Watcher(), redact=redact
    )


def feedback(folder: Path) -> AskedModels:
    return open_models("feedback", "overlap", folder / "replies.sqlite")


def test_refined_queries_widen_the_pool_and_both_curves_are_shown(finished: Finished) -> None:
    audit, engine, notes = finished
    cost = "6 queries refined by 'feedback', up to 30 questions to it and 114 requests"
    assert cost in notes
    # It is said before the engine is asked anything, too.
    assert notes[0] == f"8 queries for '{engine.name}', up to 16 requests; then {cost}"
    refined = audit.refined
    assert refined is not None
    assert (refined.queries, refined.refined, refined.failed) == (6, 6, 0)
    assert refined.found >= 6
    cost = refined.costs["gender"]
    nearest, nearest_with = cost.without[-1], cost.refined[-1]
    # Without the model nobody but men is there.
    assert nearest.exposure["female"].value == 0
    assert nearest_with.exposure["female"].value == pytest.approx(0.5, abs=0.1)
    assert cost.changes[-1].divergence.value == pytest.approx(
        nearest_with.divergence.value - nearest.divergence.value
    )
    assert cost.changes[-1].divergence.value < -0.5
    assert [it.divergence.queries for it in cost.refined] == [6] * (1 + len(WEIGHTS))
    # The refined queries went to the audited engine.
    assert any("actress" in query.words for search in engine.searches for query in search)
    said = [sentence for sentence in audit.findings if "feedback" in sentence]
    assert "refine 6 of 6 queries" in said[0]
    assert "change the estimated relevance by 0.0 points" in said[1]
    frame = audit.frames.costs
    assert set(frame["curve"]) == {"all", "without", "refined"}
    assert "With the queries of 'feedback'" in (audit.folder / "report.md").read_text()
    assert not verify(audit.folder, audit.digest, recompute).problems


async def test_a_chat_model_of_langchain_refines(engine: WatchedEngine, tmp_path: Path) -> None:
    reply = {"topic": [], "keywords": ["actress"], "drop": [], "reason": ""}
    chat = FakeListChatModel(responses=[json.dumps(reply)])
    asked = open_models(chat, "overlap", tmp_path / "replies.sqlite")
    audit = await audited(engine, tmp_path / "out", asked)
    assert audit.refined is not None
    assert (audit.refined.refined, audit.refined.failed) == (6, 0)
    assert audit.refined.model_calls >= 6
    assert audit.refined.costs["gender"].changes[-1].divergence.value < -0.5


async def test_what_needs_no_model_is_not_asked(engine: WatchedEngine, tmp_path: Path) -> None:
    # Among 20 documents there are enough women.
    audit = await audited(engine, tmp_path / "out", feedback(tmp_path), depth=20)
    assert audit.refined is not None
    assert (audit.refined.refined, audit.refined.enough) == (0, 6)
    assert not any("actress" in query.words for search in engine.searches for query in search)
    changes = audit.refined.costs["gender"].changes
    assert {(it.divergence.value, it.relevance.value) for it in changes} == {(0.0, 0.0)}
    assert any("change nothing" in sentence for sentence in audit.findings)


async def test_redacted_records_keep_no_words(
    finished: Finished, engine: WatchedEngine, tmp_path: Path
) -> None:
    closed = await audited(engine, tmp_path / "closed", feedback(tmp_path), redact=True)

    def records(audit: Audit) -> str:
        packed = (audit.folder / "raw/refinements.jsonl.gz").read_bytes()
        return gzip.decompress(packed).decode()

    assert '"keywords":["actress"' in records(finished.audit)
    assert "actress" not in records(closed)
    assert '"query":"word' not in records(closed)
    assert not verify(closed.folder, None, recompute).problems


async def test_judged_documents_are_ranked_by_the_engine(
    engine: WatchedEngine, tmp_path: Path
) -> None:
    """A re-ranking cannot know judgements, so what was found goes by the original query."""
    qrels = {word: {f"{word}-{n:02}": 1 for n in (0, 1, 12, 13)} for word in WORDS}
    plan = await make_plan(SPEC, engine, QUERIES, qrels=qrels, asked=feedback(tmp_path))
    await carry_out(plan, AuditFolder(tmp_path / "out"), concurrency=2, watcher=Watcher())
    first = next(AuditFolder(tmp_path / "out").refinements.read())
    observed = next(AuditFolder(tmp_path / "out").observations.read())
    pool = [*observed.pool, *first.ids]
    ranked = [pool[place] for place in first.order]
    men = [id_ for id_ in ranked if int(id_[-2:]) < 10]
    # By the original query all men stand before all women, whatever the refined query said.
    assert ranked[: len(men)] == men
    assert set(observed.ids) < set(ranked)
    relevant = [pool[place] for place, it in enumerate(first.relevance) if it]
    assert sorted(relevant) == [f"{WORDS[0]}-{n:02}" for n in (0, 1, 12, 13)]


class Failing:
    """A refiner whose server is away, from some question on."""

    name = "failing"
    prompt = None

    def __init__(self, answers: int) -> None:
        self.left = answers

    async def start(self) -> None:
        """Nothing has to be made ready."""

    async def refine(self, request: RefinementRequest, deadline: float | None = None) -> Refinement:
        self.left -= 1
        if self.left < 0:
            return Refinement("unavailable", message=f"No answer to '{request.query}'.")
        return Refinement("ok", ("actress",))


@pytest.mark.parametrize("answers", [0, 4])
async def test_a_failing_model_leaves_an_audit_without_that_curve(
    engine: WatchedEngine, tmp_path: Path, answers: int
) -> None:
    asked = feedback(tmp_path)
    model = AskedModels(asked.name, None, asked.attributor, None, Failing(answers))
    watcher = Watcher()
    audit = await audited(engine, tmp_path / "out", model, watcher=watcher)
    assert audit.refined is not None
    assert audit.refined.too_many_failed
    assert audit.refined.failed >= 2
    assert audit.refined.costs == {}
    assert any("What mending would cost with 'failing' is not known" in it for it in audit.findings)
    if not answers:
        assert any("goes on without refined queries" in note for note in watcher.notes)
    found = json.loads((tmp_path / "out/audit.json").read_text())
    assert found["costs"]
    assert found["refined"]["too_many_failed"]
    assert not verify(tmp_path / "out", audit.digest, recompute).problems


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"refined": 0}, "it is to refine no queries"),
        ({"answers": 2}, "Answers need a model"),
    ],
)
async def test_a_model_without_a_task_is_refused(
    engine: WatchedEngine, tmp_path: Path, options: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        await audited(engine, tmp_path / "out", feedback(tmp_path), **options)


async def test_a_run_answers_no_refined_queries(engine: WatchedEngine, tmp_path: Path) -> None:
    run = WatchedEngine(engine, without=["new_queries"])
    with pytest.raises(InputError, match="answers only the queries that it was made with"):
        await audited(run, tmp_path / "out", feedback(tmp_path))


async def test_a_paced_engine_is_asked_no_faster(engine: WatchedEngine) -> None:
    slow = paced(engine, Pace(rate=20.0))
    assert slow.capabilities == engine.capabilities
    begun = time.monotonic()
    await slow.search([Query(WORDS[0], 3)])
    await slow.documents([f"{WORDS[0]}-00"])
    await slow.corpus_shares()
    assert time.monotonic() - begun >= 0.1


def test_a_wider_pool_comes_nearer_at_a_cost_with_its_own_interval() -> None:
    """Today two men are shown; a woman that was found takes the second place."""
    men = np.array([[0.0, 1.0], [0.0, 1.0]])
    wide = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    target = np.array([0.5, 0.5])
    found = [
        (
            Mendable(Answer(men, 2, np.array([0.9, worth])), target, 1.0),
            Answer(wide, 2, np.array([0.9, worth, 0.6])),
        )
        for worth in np.linspace(0.6, 0.8, 10)
    ]
    before, after, changes = compared_curves(found, Choices(k=2), ["female", "male"])
    assert [it.weight for it in before] == [it.weight for it in after] == [None, *WEIGHTS]
    assert before[0].divergence.value == after[0].divergence.value
    assert before[-1].divergence.value > after[-1].divergence.value
    nearest = changes[-1]
    assert nearest.relevance.high < 0
    assert nearest.relevance.value == pytest.approx(
        after[-1].relevance.value - before[-1].relevance.value
    )


def test_the_findings_say_what_a_model_changes_and_how_sure_that_is() -> None:
    outcome = refined(outcome_of(20))
    assert outcome.refined is not None
    change = next(
        it for it in outcome.refined.costs["gender"].changes if it.weight == MENDED_WEIGHT
    )
    asked, gender, _ = (it for it in findings_of(outcome) if "openai:fake" in it)
    assert asked == (
        "'openai:fake' was asked to refine 20 of 20 queries (20 questions, 2,200 tokens). Its "
        "queries found 20 documents that this audit had not looked at."
    )
    assert f"{points(change.relevance.value)} points of today's" in gender
    assert f"between {points(change.relevance.low)} and {points(change.relevance.high)}" in gender
    is_sure = change.relevance.low > 0 or change.divergence.high < 0
    assert is_sure != ("could not be told from chance" in gender)
