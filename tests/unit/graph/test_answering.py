"""Answering over a small index, with a generator and an attributor whose replies are known."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from fairqr import AnswerResult, FairSearch, StepData, build_answer_graph
from fairqr.agents.attribution.attributor import Entailment, Pair
from fairqr.agents.generators import GenerationRequest, OnToken
from fairqr.agents.models.replies import Reply, Usage
from fairqr.base.errors import ModelUnavailableError, PromptError
from fairqr.graph.answer.context import AnswerContext
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sampling.plackett_luce import sample_plackett_luce, stream_of
from tests.unit.engines import ranked
from tests.unit.graph.corpora import write_corpus


class KnownGenerator:
    """Writes what a function of the titles read says; counts what it is asked, and at once."""

    name = "known"

    def __init__(self, reply: Callable[[list[str]], str | Reply] = lambda titles: titles[0]):
        self.reply = reply
        self.asked: list[GenerationRequest] = []
        self.deadlines: list[float | None] = []
        self.at_once = self.most_at_once = 0

    async def start(self) -> None: ...

    async def generate(
        self,
        request: GenerationRequest,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> Reply:
        self.asked.append(request)
        self.deadlines.append(deadline)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        self.at_once -= 1
        reply = self.reply([source["title"] for source in request.sources])
        if isinstance(reply, Reply):
            return reply
        for word in reply.split(" ") if on_token else ():
            on_token(word)  # type: ignore[misc]
        return Reply("ok", {"text": reply}, usage=Usage(model_calls=1, prompt_tokens=100))


class KnownAttributor:
    """Judges by a function of the premise and the hypothesis."""

    name = "known"

    def __init__(self, used: Callable[[str, str], bool | Entailment] = str.__contains__) -> None:
        self.used = used
        self.asked: list[Pair] = []

    async def start(self) -> None: ...

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        self.asked += pairs
        verdicts = [self.used(pair.premise, pair.hypothesis) for pair in pairs]
        usage = Usage(model_calls=1)
        return [
            it if isinstance(it, Entailment) else Entailment("ok", it, 0.5, usage=usage)
            for it in verdicts
        ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve people in science: every third is a woman, one is both, one has no label or text."""
    documents: list[dict[str, Any]] = [
        {"id": f"p{i:02}", "title": f"Person-{i}", "text": "science " * (12 - i)}
        | {"g": "male" if i % 3 else "female"}
        for i in range(11)
    ]
    documents[5]["g"] = ["female", "male"]
    documents.append({"id": "x", "title": "science Nobody"})
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents)


def answering(engine: SearchEngine, generator: Any = None, attributor: Any = None) -> FairSearch:
    given: Any = {"generator": generator or KnownGenerator(), "attributor": attributor}
    return FairSearch(engine, "feedback", **given)


@pytest.fixture
def answer(engine: SearchEngine) -> Callable[..., Any]:
    """Answers ``science`` from three documents of a pool of eight, unless otherwise said."""

    async def ask(generator: Any = None, attributor: Any = None, **options: Any) -> AnswerResult:
        asked = {"k": 8, "documents": 3, "seed": 1, **options}
        return await answering(engine, generator, attributor).answer("science", **asked)

    return ask


def third_is_used(premise: str, hypothesis: str) -> bool:
    """Whether the number of the person is one of every second; it depends on the answer too."""
    number = "".join(c for c in premise.split("\n")[0] if c.isdigit())
    return bool(number) and (int(number) + len(hypothesis)) % 2 == 0


@pytest.mark.promise("graph")
@pytest.mark.parametrize(("alpha", "form"), [(1, "logits"), (0, "logits"), (4, "worths")])
async def test_the_figures_are_those_of_the_samples_counted_one_by_one(
    engine: SearchEngine, answer: Any, alpha: float, form: Any
) -> None:
    """An answer's figures are those of its samples, counted one by one."""
    result: AnswerResult = await answer(
        attributor=KnownAttributor(third_is_used), samples=40, alpha=alpha, form=form, k=12
    )
    found = await ranked(engine, "science", 12)
    titles = {d.id: d.title for d in await engine.documents(found.ids)}
    drawn = sample_plackett_luce(found.scores, alpha, 40, 3, stream_of(1, "science"), form)
    samples = [tuple(found.ids[at] for at in row) for row in drawn.tolist()]
    rankings = Counter(samples)  # by first draw
    assert [(tuple(a.ids), a.samples) for a in result.answers] == list(rankings.items())
    assert all(a.text == titles[a.ids[0]] for a in result.answers)
    texts = Counter(titles[ids[0]] for ids in samples)
    assert [(text.text, text.samples) for text in result.distribution] == texts.most_common()

    exposure = Counter[str]()
    attributed = Counter[str]()
    for ids in samples:
        exposure.update(ids)
        attributed.update(id_ for id_ in ids if third_is_used(titles[id_], titles[ids[0]]))
    assert [d.id for d in result.ranking] == found.ids
    for document in result.ranking:
        assert document.exposure == pytest.approx(exposure[document.id] / 40)
        assert document.attributed == pytest.approx(attributed[document.id] / 40)
    assert result.attribution_rate == pytest.approx(attributed.total() / 120)
    assert result.disparity == pytest.approx(sum((n / 40) ** 2 for n in exposure.values()) / 3)
    assert result.attributed_disparity == pytest.approx(
        sum((n / 40) ** 2 for n in attributed.values()) / 3
    )

    (gender,) = result.groups
    groups = {d.id: d.groups["gender"] for d in result.ranking}
    assert groups["p05"] == {"female": 0.5, "male": 0.5}
    for field, mass in (("exposure", exposure), ("attributed", attributed)):
        labelled = sum(count for id_, count in mass.items() if groups[id_])
        for group in gender.groups:
            shares = [count * groups[id_].get(group.group, 0) for id_, count in mass.items()]
            assert getattr(group, field) == pytest.approx(sum(shares) / labelled)
    assert gender.unknown == pytest.approx(exposure["x"] / 120)
    assert gender.attributed_unknown == pytest.approx(attributed["x"] / attributed.total())
    counts = {"samples": 40, "answered": 40, "failed": {}, "judged": 40, "unjudged": 0}
    assert result.counts.model_dump() == {**counts, "rankings": len(rankings)}


async def test_equal_rankings_are_answered_once(answer: Any) -> None:
    generator = KnownGenerator()
    result: AnswerResult = await answer(generator, samples=200, alpha=0, k=3, documents=2)
    assert result.counts.rankings == len(generator.asked) == 6


async def test_sharp_sampling_draws_the_ranking_itself(answer: Any) -> None:
    generator = KnownGenerator()
    result: AnswerResult = await answer(generator, samples=200, alpha=100)

    assert result.answers[0].ids == [document.id for document in result.ranking[:3]]
    assert result.disparity == pytest.approx(1)
    assert len(generator.asked) == 1


@pytest.mark.promise("graph")
async def test_the_same_seed_gives_the_same_result(
    engine: SearchEngine,
) -> None:
    """The same seed draws the same rankings, and a seed that was drawn is reported.

    However many are asked at a time, and in whatever order answers come.
    """

    async def drawn(concurrency: int, seed: int | None) -> AnswerResult:
        generator = KnownGenerator()
        parts: Any = {"generator": generator, "attributor": None, "concurrency": concurrency}
        search = FairSearch(engine, **parts)
        result = await search.answer("science", k=8, seed=seed, samples=30, alpha=0)
        assert generator.most_at_once == concurrency
        return result

    first = await drawn(1, None)
    same_seed = await drawn(3, first.seed)
    other_seed = await drawn(3, first.seed + 1)

    assert same_seed.model_dump(exclude={"usage"}) == first.model_dump(exclude={"usage"})
    first_ids = [answer.ids for answer in first.answers]
    assert [answer.ids for answer in other_seed.answers] != first_ids
    # Without an attributor nothing is said of use.
    assert (first.attributor, first.attribution_rate, first.warnings) == (None, None, [])


async def test_prompts_have_numbered_documents_and_the_answer(
    answer: Any,
) -> None:
    generator, attributor = KnownGenerator(lambda _: "An  answer."), KnownAttributor()
    result: AnswerResult = await answer(
        generator, attributor, alpha=100, hypothesis="It is said: {answer}", temperature=0.5
    )
    (request,) = generator.asked
    assert (request.question, request.temperature, request.seed) == ("science", 0.5, 1)
    assert [source["number"] for source in request.sources] == ["1", "2", "3"]
    assert {pair.hypothesis for pair in attributor.asked} == {"It is said: An answer."}
    titles = {d.id: d.title for d in result.ranking}
    read = [titles[id_] for id_ in result.answers[0].ids]
    assert [pair.premise.split("\n")[0] for pair in attributor.asked] == read
    assert result.usage.model_calls == 1 + 3


@pytest.mark.promise("graph")
async def test_missing_verdicts_are_left_out_of_the_rate_and_counted(answer: Any) -> None:
    """Missing verdicts are counted and left out of the rates."""

    def used(premise: str, hypothesis: str) -> bool | Entailment:
        if premise.startswith("Person-0"):
            return Entailment("timeout", message="The judge took too long.")
        return premise.startswith("Person-1")

    result: AnswerResult = await answer(attributor=KnownAttributor(used), alpha=100, samples=2)
    (only,) = result.answers
    position = only.ids.index("p00")
    assert (only.used[position], only.verdicts[position]) == (None, "timeout")
    assert result.attribution_rate == pytest.approx(1 / 2)
    assert sum(document.attributed or 0 for document in result.ranking) == 1
    assert (result.counts.judged, result.counts.unjudged) == (2, 2)
    assert any("The judge took too long." in warning for warning in result.warnings)


async def test_where_nothing_is_used_groups_have_no_shares_of_use(answer: Any) -> None:
    result: AnswerResult = await answer(attributor=KnownAttributor(lambda *_: False))

    assert (result.attribution_rate, result.groups[0].attributed_unknown) == (0, None)
    assert [group.attributed for group in result.groups[0].groups] == [None, None]


async def test_a_fair_reranking_counts_by_its_places(answer: Any) -> None:
    """The scores of its documents do not fall with their places; the places are what is worth."""
    plain: AnswerResult = await answer(alpha=100)
    wanted = {"final_step": "exposure-aware", "target": "gender=female:0.1,male:0.9"}
    fair: AnswerResult = await answer(alpha=100, **wanted)
    ids = [d.id for d in fair.ranking]
    assert ids != [d.id for d in plain.ranking]
    assert fair.answers[0].ids == ids[:3]
    assert fair.groups[0].groups[0].target == 0.1


async def test_an_answer_needs_a_generator(engine: SearchEngine) -> None:
    graph = build_answer_graph(engine)

    with pytest.raises(ModelUnavailableError, match="No model is given to answer with"):
        await graph.ainvoke({"query": "science"}, context=AnswerContext.of(k=5))


async def test_an_answer_needs_a_prompt(answer: Any) -> None:
    with pytest.raises(PromptError, match="answer/v9"):
        await answer(prompts={"answer": "v9"})


async def test_the_pieces_of_an_answer_come_before_its_end(engine: SearchEngine) -> None:
    search = answering(engine, KnownGenerator(lambda _: "one two three"))
    context = AnswerContext.of(k=5, stream=True)
    events: list[Any] = [event async for event in search.stream("science", context)]

    names = [event.step if isinstance(event, StepData) else event.text for event in events[:-1]]
    steps = "prepare prepare retrieve measure rerank sample one two three generate summarize"
    assert " ".join(names) == steps


async def test_several_answers_come_without_pieces(engine: SearchEngine) -> None:
    search = answering(engine, KnownGenerator(lambda _: "one two three"))
    context = AnswerContext.of(k=5, samples=20, alpha=0, stream=True)

    async for event in search.stream("science", context):
        assert not isinstance(event, AIMessageChunk)


async def test_a_time_budget_bounds_answers_and_judging(
    answer: Any,
) -> None:
    class Slow(KnownAttributor):
        async def judge(self, pairs: Any) -> Any:
            await asyncio.sleep(60)

    generator = KnownGenerator()
    result = await answer(generator, Slow(), budget={"seconds": 0.3})
    (deadline,) = generator.deadlines
    assert deadline is not None
    assert deadline <= 0.3
    assert result.answers[0].verdicts == ["timeout"] * 3
    assert any("time of the budget was spent" in warning for warning in result.warnings)
    assert result.usage.milliseconds < 10_000
