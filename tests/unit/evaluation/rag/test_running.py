"""A run of Fair RAG: what is drawn, what is asked and judged, and what is asked again."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr.base.errors import InputError, ModelError, PromptError
from fairqr.evaluation.rag import running as rag
from fairqr.evaluation.rag.answering import Answerer, draw_rankings
from fairqr.evaluation.rag.labels import read_labels
from fairqr.evaluation.rag.measured import measure_fair_rag
from fairqr.evaluation.rag.running import RagPlan
from fairqr.evaluation.rag.specification import Draw
from fairqr.evaluation.rag.store import PolicyRecord, RagStore
from fairqr.evaluation.rag.targets import aim_of
from fairqr.retrieval.sources.schema import Schema
from tests.unit.evaluation.rag import small_rag
from tests.unit.evaluation.rag.small_rag import LetterJudge, Namer, plan_of, query_of
from tests.unit.evaluation.watching import Watcher

pytestmark = pytest.mark.usefixtures("plain_jobs")
HEADER = "qid\tpid\trelevance_label\n"


@dataclasses.dataclass
class Running:
    """Runs a plan into one folder, as often as it is asked."""

    folder: Path
    plan: RagPlan
    watcher: Watcher = dataclasses.field(default_factory=Watcher)

    @property
    def store(self) -> RagStore:
        return RagStore(self.folder / "run")

    async def run(
        self, namer: Namer, judge: LetterJudge | None = None, at_once: int = 1
    ) -> dict[tuple[Any, ...], PolicyRecord]:
        """Run it, and return all records without their times."""
        opened = {"generator": namer, **({"attributor": judge} if judge else {})}
        tools = await small_rag.tools_with(**opened)
        tools.at_once = at_once
        await rag.run_fair_rag(self.plan, self.store, tools, self.watcher)
        return self.records

    @property
    def records(self) -> dict[tuple[Any, ...], PolicyRecord]:
        found = self.store.lines.read()
        return {it.key: it.model_copy(update={"milliseconds": 0.0}) for it in found}

    @property
    def labels(self) -> list[PolicyRecord]:
        return [record for record in self.records.values() if record.policy == "labels"]


async def test_the_gain_is_over_the_answer_without_documents(tmp_path: Path) -> None:
    """The answer without documents says "nothing", which one of the queries has as its gold."""
    silent = dataclasses.replace(query_of("q1"), golds=("nothing",))
    running = Running(tmp_path, plan_of(query_of("q0"), silent))
    await running.run(Namer({"c": "empty", "d": "cached"}))
    first, second = running.labels
    assert [answer.utility for answer in first.answers] == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert (first.useful, first.model_calls, first.tokens) == ((0, 1), 6, 60)
    assert [answer.utility for answer in second.answers][:3] == [1.0, 0.0, 0.0]
    assert second.why_dropped(2) == "fewer than 2 useful documents"
    assert len(running.records) == 1 + len(small_rag.experiment_of().draws) + 1


async def test_what_it_refuses_is_a_result(tmp_path: Path) -> None:
    """Of a label, of a query without a baseline, and of a policy; nobody asks again."""
    running = Running(tmp_path, plan_of(query_of("q0"), query_of("q1"), k=2, generated=3))
    namer = Namer({"e": "refuses", "a b": "refuses", "b a": "empty"})
    records = await running.run(namer)
    assert [answer.status for answer in running.labels[0].answers] == [*["ok"] * 5, "refused"]
    answers = {it.ranking: it for record in records.values() for it in record.answers}
    assert (answers[0, 1].status, answers[0, 1].utility) == ("refused", None)
    assert (answers[1, 0].status, answers[1, 0].utility) == ("empty", 0.0)
    asked = len(namer.asked)
    assert await running.run(namer) == records
    assert len(namer.asked) == asked
    silent = Running(tmp_path / "silent", running.plan)
    namer = Namer({"": "refuses"})
    await silent.run(namer)
    assert [titles for _, titles in namer.asked] == ["", ""]
    assert {it.why_dropped(2) for it in silent.labels} == {"the answer without documents failed"}


@pytest.mark.promise("evaluation")
async def test_what_failed_for_now_is_no_result_and_is_asked_again(tmp_path: Path) -> None:
    """What failed for now in a Fair RAG run is no result and is asked again; a model that goes away
    ends the run with a sentence.

    A label of each query times out first, then a ranking that chance shows.
    """
    plan = plan_of(query_of("q0"), query_of("q1"), k=2, generated=3)
    running = Running(tmp_path, plan)

    async def run(**ends: str) -> list[tuple[str, str]]:
        namer = Namer({name.replace("_", " "): end for name, end in ends.items()})
        with pytest.raises(ModelError, match="run again") if ends else nullcontext():
            await running.run(namer)
        return namer.asked

    assert len(await run(c="times out")) == 2 * 4
    assert not running.records
    asked = await run(b_a="times out")
    assert [titles for _, titles in asked if len(titles) < 2] == ["", *"abcde"] * 2
    letters = {"letters": small_rag.collection_of(*(query for _, query in plan.tasks))}
    measured = measure_fair_rag(plan.manifest, running.records.values(), letters)
    assert "oracle" not in set(measured.values.kind)
    kept = {(it.query, answer.ranking) for it in running.records.values() for answer in it.answers}
    again = {
        (question[8:10], tuple(map("abcde".index, it.split()))) for question, it in await run()
    }
    assert ("q0", (1, 0)) in again
    assert not again & kept
    assert len(running.records) == 2 * (1 + len(plan.manifest.experiment.draws))
    assert not await run()


@pytest.mark.promise("evaluation")
async def test_concurrency_and_where_it_stopped_change_nothing(tmp_path: Path) -> None:
    """Neither the concurrency of a Fair RAG run nor where it was killed changes its results, and no
    model is asked twice.
    """
    plan = plan_of(*(query_of(f"q{n}", 4 + n, n) for n in range(5)), attributor="letters")
    whole = await Running(tmp_path / "one", plan).run(Namer(), LetterJudge())
    first, second = Namer(), Namer()
    running = Running(tmp_path / "two", plan._replace(tasks=plan.tasks[:3]))
    await running.run(first, LetterJudge(), at_once=8)
    running.plan = plan
    with running.store.locked(), pytest.raises(InputError, match="Another process runs"):
        await running.run(second)
    assert await running.run(second, LetterJudge(), at_once=8) == whole
    assert running.watcher.stages[1] == ("questions about queries", 115, 66)
    assert {question for question, _ in second.asked} == {"What of q3?", "What of q4?"}


async def test_equal_rankings_are_answered_once(tmp_path: Path) -> None:
    namer, judge = Namer(), LetterJudge()
    plan = plan_of(query_of("q0"), attributor="letters", seeds=[0, 1], generated=20)
    records = (await Running(tmp_path, plan).run(namer, judge)).values()
    policies = [record for record in records if record.policy != "labels"]
    said = {it.ranking: it.text for record in policies for it in record.answers}
    titles = {ranking: " ".join("abcde"[place] for place in ranking) for ranking in said}
    assert said == titles
    assert len(namer.asked) == 6 + len(said)
    assert {it for _, it in namer.asked[6:]} == {*titles.values()}
    assert len(judge.pairs) == sum(map(len, said))
    assert {*judge.pairs} == {(f"Text {it}.", said) for said in titles.values() for it in said[::2]}
    assert sum(record.model_calls for record in policies) == len(said)
    used = (True, False, True, True, None)
    for answer in (answer for record in policies for answer in record.answers):
        assert answer.used == tuple(used[place] for place in answer.ranking)


async def test_scores_without_numbers_fail_one_policy_alone() -> None:
    ((part, query),) = plan_of(query_of("q0")).tasks
    answerer, scores = Answerer(part, query, Namer(), None), np.array([1, math.nan, 3, 4, 5])
    failed = await answerer.follow(Draw("bm25", "plackett-luce", 1.0, 0), scores, (0, 1))
    assert "finite" in failed.failure
    assert (failed.samples, failed.answers) == ((), ())
    oracle = await answerer.follow(Draw("", "oracle", None, 0), scores, (0, 1))
    assert not oracle.failure
    assert {answer.used for answer in oracle.answers} == {()}, "nothing judged"


def test_seeds_queries_and_policies_have_streams_of_their_own() -> None:
    """What is drawn from the streams is tested where they are."""
    changes = {"retrievers": ["bm25", "dense"], "alphas": [1, 2], "seeds": [0, 1]}
    drawn = [
        draw_rankings(part, query, draw, np.zeros(8), ())
        for part, query in plan_of(*(query_of(f"q{n}", 8) for n in range(3)), **changes).tasks
        for draw in part.experiment.draws
        if draw.policy != "deterministic"
    ]
    assert {len(rankings) for rankings in drawn} == {30}
    assert len(set(drawn)) == len(drawn) == 3 * 2 * (2 * 2 + 1)


def test_a_policy_that_minds_groups_gives_them_their_target() -> None:
    """The population's, as far as a pool reaches, or the pool's; whatever is retrieved first."""
    for population, k, expected in (((0.6, 0.4), 2, 0.6), ((), 2, 0.2), ((0.9, 0.1), 3, 2 / 3)):
        stated = {"population": dict(zip(("women", "men"), population, strict=False))}
        query = query_of("q", 10)
        groups = [{"gender": {"women" if place >= 8 else "men": 1.0}} for place in range(10)]
        pool = tuple(dataclasses.replace(it, groups=groups[i]) for i, it in enumerate(query.pool))
        described = {"field": "gender", "groups": ["women", "men"]} | (stated if population else {})
        schema = {"schema": Schema.model_validate({"attributes": {"gender": described}})}
        asked, changes = (
            dataclasses.replace(query, pool=pool),
            {"samples": 4000, "k": k, "alphas": [2]},
        )
        ((part, _),) = plan_of(asked, of=schema, group_aware="gender", **changes).tasks
        share = {}
        for draw in part.experiment.draws:
            drawn = np.array(draw_rankings(part, asked, draw, np.linspace(1, 0, 10), ()))
            share[draw.policy] = (drawn >= 8).mean()
        members = np.array([[place >= 8, place < 8] for place in range(10)], dtype=float)
        aim = aim_of(part.groups, members, k)
        assert aim / k == pytest.approx([expected, 1 - expected])
        assert share["group-aware"] == pytest.approx(expected, abs=0.03)
        assert share["plackett-luce"] < 0.1
        with pytest.raises(InputError, match="have no attribute 'age'"):
            plan_of(asked, of=schema, group_aware="age")


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize("generated", [1, 3, 30])
async def test_the_cost_that_is_printed_is_never_exceeded(tmp_path: Path, generated: int) -> None:
    """The cost that a run prints is never exceeded."""
    query, other = query_of("q0", size=4), query_of("q1", size=4, useful=1)
    changes = {"generated": generated, "seeds": [0, 1], "k": 2}
    plan = plan_of(query, other, attributor="letters", **changes)
    running = Running(tmp_path, plan)
    cost = rag.cost_of(plan, running.store)
    assert cost["labels"] == 2 * 5
    assert cost["rankings"] <= 2 * math.perm(4, 2)
    namer, judge = Namer(), LetterJudge()
    running.plan = plan._replace(tasks=plan.tasks[1:])
    await running.run(namer, judge)
    assert len(namer.asked) == 5, "it is dropped"
    running.plan = plan
    left = rag.cost_of(plan, running.store)
    assert (left["labels"], 2 * left["rankings"]) == (5, cost["rankings"])
    await running.run(namer, judge)
    assert len(namer.asked) <= 10 + left["rankings"]
    assert len(judge.pairs) <= left["attributions"]
    assert not rag.cost_of(plan, running.store).total()


async def test_the_authors_labels_are_taken(tmp_path: Path) -> None:
    """A query that they left out has no useful document; a document that they lack has no label."""
    table = tmp_path / "5_relevance_mapping.tsv"
    table.write_text(HEADER + "".join(f"q0\tq0-{it}\t{int(it in 'bd')}\n" for it in "abcdx"))
    plan = plan_of(query_of("q0"), query_of("q1"))
    running = Running(tmp_path, plan._replace(labels=read_labels(table, plan.tasks)))
    assert not rag.cost_of(running.plan, running.store)["labels"]
    namer = Namer()
    records = await running.run(namer)
    kept, dropped = running.labels
    assert kept.useful == (1, 3)
    assert [answer.utility for answer in kept.answers] == [0.0, 0.0, 1.0, 0.0, 1.0, None]
    assert dropped.why_dropped(2) == "fewer than 2 useful documents"
    assert not [titles for _, titles in namer.asked if len(titles) < 2]
    assert {it.useful for it in records.values() if it.query == "q0"} == {(1, 3)}
    # Given again, they change nothing.
    size = running.store.lines.path.stat().st_size
    assert await running.run(Namer({"": "fails"})) == records
    assert running.store.lines.path.stat().st_size == size


@pytest.mark.promise("evaluation")
def test_labels_of_something_else_are_refused(tmp_path: Path) -> None:
    """A Fair RAG run refuses labels of other queries or settings."""
    table = tmp_path / "labels.tsv"
    for rows, generators, what in (
        ("z\tz-a\t1", ["namer"], "are of another collection"),
        ("q0\tq0-a\t1", ["namer", "other"], "is of one generator; name one"),
        ("q0\tq0-a\tyes", ["namer"], "holds no labels"),
    ):
        table.write_text(HEADER + rows)
        with pytest.raises(InputError, match=what):
            read_labels(table, plan_of(query_of("q0"), generators=generators).tasks)


def test_the_plan_names_what_was_asked_with() -> None:
    """Versions of prompts that are not asked with play no part, but have to be there."""
    manifest = plan_of(query_of("q0"), prompts={"lamp5": "v2", "answer": "v1"}).manifest
    assert (manifest.collections, [*manifest.prompts]) == ({"letters": "f0"}, ["answer=v1"])
    with pytest.raises(PromptError, match="There is no prompt"):
        plan_of(query_of("q0"), prompts={"limp5": "v1"})
