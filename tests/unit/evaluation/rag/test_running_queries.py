"""One query of an experiment: what is drawn, what is asked, and what is judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.attribution.attributor import Entailment, Pair
from fairqr.base.errors import ModelError, PromptError
from fairqr.evaluation.experiments.catalogue import read_experiment
from fairqr.evaluation.experiments.workers import Pool
from fairqr.evaluation.rag import running
from fairqr.evaluation.rag.answering import (
    Asked,
    Draw,
    Policies,
    PolicyTask,
    answer_policy,
    draw_rankings,
    draws_of,
)
from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.measuring import measure_fair_rag
from fairqr.evaluation.rag.running import cost_of, make_rag_plan, open_collections, run_fair_rag
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord, RagStore
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.fairness.exposure import FloatArray
from tests.unit.evaluation.rag.small_rag import (
    PROMPT,
    Namer,
    collection_of,
    experiment_of,
    query_of,
    tools_with,
)
from tests.unit.evaluation.watching import Watcher


class LetterJudge:
    """An answer used the documents whose letter it has; a document that says so is no document.

    Attributes:
        pairs: What it was asked.
    """

    name = "letters"

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    async def start(self) -> None:
        """Nothing is needed."""

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        self.pairs += [(pair.premise, pair.hypothesis) for pair in pairs]
        return [self._one(pair) for pair in pairs]

    def _one(self, pair: Pair) -> Entailment:
        letter = pair.premise.removeprefix("Text ").removesuffix(".")
        if letter == "e":
            return Entailment("empty_document")
        return Entailment("ok", letter in pair.hypothesis.split())


class Work:
    """Does the policies of a query one after the other, as a run does.

    Attributes:
        known: The answers until now.
    """

    def __init__(
        self,
        query: RagQuery,
        namer: Namer,
        judge: LetterJudge | None,
        experiment: FairRagExperiment | None = None,
        hypothesis: str = "{answer}",
    ) -> None:
        self._query = query
        self._opened = {"generator": namer, **({"attributor": judge} if judge else {})}
        self._policies = Policies(
            experiment=experiment or experiment_of(),
            collection="letters",
            asked=Asked("namer", collection_of(query).task, PROMPT),
            attributor="letters" if judge else "",
            hypothesis=hypothesis,
        )
        self.known: dict[tuple[int, ...], AnswerRecord] = {}

    async def record(self, draw: Draw, scores: dict[str, FloatArray]) -> PolicyRecord:
        tools = await tools_with(Path(), **self._opened)
        known = tuple(self.known.values())
        task = PolicyTask(self._query, (0, 1), draw, scores.get(draw.retriever), known)
        record = await answer_policy(tools, self._policies, task)
        self.remember([record])
        return record

    def remember(self, records: Sequence[PolicyRecord]) -> None:
        self.known |= {answer.ranking: answer for it in records for answer in it.answers}


SCORES: dict[str, FloatArray] = {"bm25": np.array([1.0, 5.0, 3.0, 4.0, 2.0])}


async def _records(work: Work, experiment: FairRagExperiment) -> list[PolicyRecord]:
    return [await work.record(draw, SCORES) for draw in draws_of(experiment)]


async def test_equal_rankings_of_all_policies_are_answered_and_judged_once() -> None:
    namer, judge, experiment = Namer(), LetterJudge(), experiment_of(seeds=[0, 1], generated=20)
    records = await _records(Work(query_of("q0"), namer, judge, experiment), experiment)
    rankings = {answer.ranking for record in records for answer in record.answers}
    assert len(namer.asked) == len(rankings)
    assert set(namer.asked) == {
        ("What of q0?", " ".join("abcde"[place] for place in ranking)) for ranking in rankings
    }
    assert len(set(judge.pairs)) == len(judge.pairs) - sum(
        count - 1 for count in _counts(judge.pairs).values()
    )
    repeated = [pair for pair, count in _counts(judge.pairs).items() if count > 1]
    assert {premise for premise, _ in repeated} <= {"Text e."}, "what failed may be judged again"
    assert sum(record.model_calls for record in records) == len(rankings)
    for record in records:
        for answer in record.answers:
            assert answer.used == tuple(None if place == 4 else True for place in answer.ranking)
            assert answer.text == " ".join("abcde"[place] for place in answer.ranking)


def _counts(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    return {pair: pairs.count(pair) for pair in set(pairs)}


async def test_what_was_recorded_before_is_not_asked_again() -> None:
    experiment = experiment_of()
    whole = await _records(Work(query_of("q0"), Namer(), LetterJudge(), experiment), experiment)
    namer, judge = Namer(), LetterJudge()
    work = Work(query_of("q0"), namer, judge, experiment)
    work.remember(whole[:2])
    again = [await work.record(draw, SCORES) for draw in draws_of(experiment)[2:]]
    assert _timeless(again) == _timeless(whole[2:])
    judged = {pair for pair in judge.pairs if not pair[0].startswith("Text e")}
    assert not judged & {
        (f"Text {'abcde'[place]}.", answer.text)
        for record in whole[:2]
        for answer in record.answers
        for place in answer.ranking
    }
    known = {answer.ranking for record in whole[:2] for answer in record.answers}
    new = {answer.ranking for record in whole[2:] for answer in record.answers} - known
    assert len(namer.asked) == len(new)


def _timeless(records: Sequence[PolicyRecord]) -> list[PolicyRecord]:
    return [record.model_copy(update={"milliseconds": 0.0}) for record in records]


async def test_failures_and_empty_answers_are_told_apart() -> None:
    namer, judge = Namer({"b d c": "refuses"}), LetterJudge()
    fixed = Draw("bm25", "deterministic", None, 0)
    failed = (await Work(query_of("q0"), namer, judge).record(fixed, SCORES)).answers
    assert [(a.status, a.text, a.utility, a.used) for a in failed] == [("refused", "", None, ())]
    assert not judge.pairs
    namer = Namer({"b d c": "empty"})
    (empty,) = (await Work(query_of("q0"), namer, judge).record(fixed, SCORES)).answers
    assert (empty.status, empty.utility) == ("empty", 0.0)
    assert [hypothesis for _, hypothesis in judge.pairs] == ["", "", ""]


async def test_what_failed_for_now_is_no_result_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label of each query times out first, then a ranking that chance shows."""
    monkeypatch.setattr(running, "open_generator", lambda *arguments, **options: None)
    experiment = experiment_of(attributor="none", k=2, generated=3)
    collection = collection_of(query_of("q0"), query_of("q1"))
    plan = make_rag_plan(experiment, [collection], PromptLibrary(), "")
    store = RagStore(tmp_path / "run")

    async def run(**ends: str) -> list[str]:
        namer = Namer({name.replace("_", " "): end for name, end in ends.items()})
        pool = Pool(await tools_with(tmp_path, generator=namer), 1)
        with pytest.raises(ModelError, match="run again") if ends else nullcontext():
            await run_fair_rag(plan, store, pool, watcher=Watcher())
        return [titles for _, titles in namer.asked]

    assert len(await run(c="times out")) == 2 * 4
    assert not any(store.all_labels().values())
    assert not store.lines.read()
    asked = await run(b_a="times out")
    assert [titles for titles in asked if len(titles) < 2] == ["", *"abcde"] * 2
    found = store.lines.read()
    by_name = {collection.name: collection}
    measured = measure_fair_rag(plan.manifest, found, store.all_labels(), by_name)
    assert len(measured.values)
    assert "oracle" not in set(measured.values.kind)
    assert "b a" in await run()
    assert len(store.lines.read()) == 2 * len(plan.draws)
    assert not await run()


async def test_what_is_refused_is_a_result_of_its_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generator has read the question, and asking again would not change its mind."""
    monkeypatch.setattr(running, "open_generator", lambda *arguments, **options: None)
    experiment = experiment_of(attributor="none", k=2, generated=3)
    plan = make_rag_plan(experiment, [collection_of(query_of("q0"))], PromptLibrary(), "")
    store = RagStore(tmp_path / "run")
    pool = Pool(await tools_with(tmp_path, generator=Namer({"a b": "refuses", "b a": "refuses"})))
    await run_fair_rag(plan, store, pool, watcher=Watcher())
    records = store.lines.read()
    assert len(records) == len(plan.draws)
    assert "refused" in {answer.status for record in records for answer in record.answers}


async def test_the_hypothesis_is_the_answer_or_a_sentence_of_it() -> None:
    judge, fixed = LetterJudge(), Draw("bm25", "deterministic", None, 0)
    work = Work(query_of("q0"), Namer(), judge, hypothesis="The letter is {answer}.")
    await work.record(fixed, SCORES)
    assert {hypothesis for _, hypothesis in judge.pairs} == {"The letter is b d c."}
    record = await Work(query_of("q0"), Namer(), None).record(fixed, SCORES)
    assert record.answers[0].used == ()


async def test_scores_that_are_no_numbers_are_a_failure_of_that_policy_alone() -> None:
    scores = {"bm25": np.array([1.0, math.nan, 3.0, 4.0, 2.0])}
    work = Work(query_of("q0"), Namer(), None)
    failed = await work.record(Draw("bm25", "plackett-luce", 1.0, 0), scores)
    assert "finite" in failed.failure
    assert (failed.samples, failed.answers) == ((), ())
    oracle = await work.record(Draw("", "oracle", None, 0), scores)
    assert not oracle.failure


@given(
    size=st.integers(1, 12),
    k=st.integers(1, 15),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_rankings_are_distinct_documents_and_as_many_as_asked(
    size: int, k: int, seed: int, data: st.DataObject
) -> None:
    useful = data.draw(st.lists(st.integers(0, size - 1), unique=True))
    scores = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=size, max_size=size)))
    experiment = experiment_of(k=k, samples=7, generated=None, alphas=[0, 2], seeds=[seed])
    for draw in draws_of(experiment):
        given_scores = scores if draw.retriever else None
        drawn = draw_rankings(draw, given_scores, useful, size, experiment, ("c", "q"))
        assert len(drawn) == (1 if draw.policy == "deterministic" else experiment.samples)
        for ranking in drawn:
            assert len(ranking) == len(set(ranking)) == min(k, size)
            assert set(ranking) <= set(range(size))
            if draw.policy == "oracle":
                first = ranking[: min(k, len(useful))]
                assert set(first) <= set(useful)
            if draw.policy == "deterministic":
                assert [scores[place] for place in ranking] == sorted(scores, reverse=True)[:k]
        again = draw_rankings(draw, given_scores, useful, size, experiment, ("c", "q"))
        assert again == drawn


def test_exposure_is_the_less_equal_the_greater_alpha_is() -> None:
    """From α = 8 to α = 1, on the samples alone, as the shipped experiment's report shows."""
    rng = np.random.default_rng(0)
    experiment = experiment_of(alphas=[1, 2, 4, 8], samples=100)
    disparity: dict[float | None, list[float]] = {}
    for query in range(20):
        scores = rng.gamma(2.0, size=8)
        for draw in draws_of(experiment)[1:-1]:
            samples = draw_rankings(draw, scores, (), 8, experiment, ("c", f"q{query}"))
            exposure = np.bincount(np.ravel(samples), minlength=8) / len(samples)
            disparity.setdefault(draw.alpha, []).append(float(exposure @ exposure))
    means = [float(np.mean(disparity[alpha])) for alpha in (1, 2, 4, 8)]
    assert means == sorted(means)
    assert means[0] < 0.75 * means[3]


def test_seeds_queries_and_policies_have_streams_of_their_own() -> None:
    scores = np.zeros(8)
    experiment = experiment_of(alphas=[1, 2], seeds=[0, 1], retrievers=["bm25", "dense"])
    drawn = [
        draw_rankings(draw, scores, (), 8, experiment, names)
        for draw in draws_of(experiment)
        if draw.policy == "plackett-luce"
        for names in (("c", "q0"), ("c", "q1"), ("d", "q0"))
    ]
    assert len(set(drawn)) == 2 * 2 * 2 * 3


async def test_the_cost_that_is_printed_is_never_exceeded() -> None:
    query = query_of("q0", size=4)
    for generated in (1, 3, 30):
        experiment = experiment_of(generated=generated, seeds=[0, 1], k=2)
        namer, judge = Namer(), LetterJudge()
        work = Work(query, namer, judge, experiment)
        scores = {"bm25": np.array([1.0, 5.0, 3.0, 4.0])}
        for draw in draws_of(experiment):
            await work.record(draw, scores)
        plan = make_rag_plan(experiment, [collection_of(query)], PromptLibrary(), "letters")
        cost = cost_of(plan.parts[0], experiment, labelled=["q0"], kept=["q0"], done=())
        assert cost["labels"] == 0
        assert len(namer.asked) <= cost["rankings"] <= math.perm(4, 2)
        assert len(judge.pairs) <= cost["attributions"] <= 2 * math.perm(4, 2)
    new = cost_of(plan.parts[0], experiment, labelled=(), kept=(), done=())
    assert (new["labels"], new["rankings"]) == (5, 12)
    dropped = cost_of(plan.parts[0], experiment, labelled=["q0"], kept=(), done=())
    assert not dropped.total()


@pytest.mark.parametrize("form", ["raw", "task"])
def test_the_plan_names_what_was_asked_with(form: str) -> None:
    experiment = experiment_of(hypothesis=form, attributor="none", k=5)
    collection = collection_of(query_of("q0", 4), query_of("q1", 6))
    plan = make_rag_plan(experiment, [collection], PromptLibrary(), "")
    (entry,) = plan.manifest.collections
    assert entry.hypothesis == ("{answer}" if form == "raw" else "The letter is {answer}.")
    assert (entry.documents, entry.queries) == (10, ("q0", "q1"))
    assert entry.prompt == "answer=v1"
    first, second = plan.manifest.notes
    assert first.startswith("1 of 2 queries of 'letters' have fewer than 5 documents")
    assert second.startswith("Nothing judged what answers used")


def test_versions_of_prompts_that_are_not_asked_with_play_no_part() -> None:
    """So one file serves several collections; a version that does not exist is still refused."""
    collection = collection_of(query_of("q0"))
    experiment = experiment_of(prompts={"lamp5": "v2", "answer": "v1"})
    plan = make_rag_plan(experiment, [collection], PromptLibrary(), "")
    assert plan.manifest.collections[0].prompt == "answer=v1"
    for wrong in ({"lamp5": "v99"}, {"limp5": "v1"}):
        with pytest.raises(PromptError, match="There is no prompt"):
            make_rag_plan(experiment_of(prompts=wrong), [collection], PromptLibrary(), "")


def test_the_shipped_experiments_are_the_papers_and_one_for_a_laptop() -> None:
    paper = read_experiment("fair_rag").spec()
    assert paper.retrievers == ("bm25", "splade", "contriever")
    assert paper.alphas == (1, 2, 4, 8)
    assert (paper.samples, paper.answered, paper.k, paper.queries) == (100, 100, 5, 1000)
    assert len(paper.seeds) > 1, "the paper repeats its sampling"
    assert len(draws_of(paper)) == (3 * 5 + 1) * len(paper.seeds)
    small = read_experiment("fair_rag").spec(small=True)
    plan = make_rag_plan(small, open_collections(small), PromptLibrary(), "overlap")
    assert [entry.name for entry in plan.manifest.collections] == ["notables"]
    assert len(plan.parts[0].collection.queries) == small.queries
    assert {len(query.pool) for query in plan.parts[0].collection.queries} == {small.pool}
