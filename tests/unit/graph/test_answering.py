"""Answering over a small index, with a generator and an attributor whose replies are known."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver

from fairqr import AnswerResult, FairSearch, StepData, build_answer_graph
from fairqr.agents.attribution.attributor import Entailment, Pair
from fairqr.agents.generators import GenerationRequest, OnToken
from fairqr.agents.models.replies import Reply, Usage
from fairqr.base.errors import InputError, ModelError, ModelUnavailableError, PromptError
from fairqr.base.telemetry import record_to
from fairqr.graph.answer.context import answer_context
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sampling.plackett_luce import sample_plackett_luce, stream_of
from fairqr.retrieval.sources.catalog import Catalog
from tests.unit.engines import ranked, remove

GENDERS = (
    "attributes: {gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}}"
)
PROMPT = """id: answer
version: v1
description: For tests.
messages:
  - {role: user, content: "{documents} {question}"}
input_variables: [question, documents]
item: "{number} {title} {text}"
defaults: {temperature: 0, max_tokens: 10}
"""

Written = str | Reply


class KnownGenerator:
    """Writes what a function of the titles read says; counts what it is asked, and at once."""

    name = "known"

    def __init__(self, reply: Callable[[list[str]], Reply] = lambda titles: titles[0]) -> None:
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
        usage = Usage(model_calls=1, prompt_tokens=100, completion_tokens=5)
        return Reply("ok", {"text": reply}, usage=usage)


class KnownAttributor:
    """Judges by a function of the premise and the hypothesis."""

    name = "known"

    def __init__(self, used: Callable[[str, str], bool | Entailment] = str.__contains__) -> None:
        self.used = used
        self.asked: list[Pair] = []

    async def start(self) -> None: ...

    async def judge(self, pairs: Sequence[Pair]) -> list[Entailment]:
        self.asked += pairs
        verdicts = (self.used(pair.premise, pair.hypothesis) for pair in pairs)
        usage = Usage(model_calls=1)
        return [
            verdict
            if isinstance(verdict, Entailment)
            else Entailment("ok", verdict, 0.5, usage=usage)
            for verdict in verdicts
        ]


@pytest.fixture
def prompts(tmp_path: Path) -> PromptLibrary:
    (tmp_path / "prompts" / "answer").mkdir(parents=True)
    (tmp_path / "prompts" / "answer" / "v1.yaml").write_text(PROMPT)
    return PromptLibrary(tmp_path / "prompts")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve people in science; every third is a woman, and one has no label and no text."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "schema.yaml").write_text(GENDERS)
    documents: list[dict[str, Any]] = [
        {"id": f"p{i:02}", "title": f"Person-{i}", "text": "science " * (12 - i) + "secret prose"}
        | {"g": "male" if i % 3 else "female"}
        for i in range(11)
    ]
    documents.append({"id": "x", "title": "science Nobody"})
    path = folder / "people.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


@pytest.fixture
async def engine(corpus: Path) -> AsyncIterator[SearchEngine]:
    """Built by the first test, and opened by the others."""
    engine = await Catalog(corpus.parent / "data").resolve(str(corpus))
    yield engine
    await engine.aclose()


Answer = Callable[..., Any]


@pytest.fixture
def answer(engine: SearchEngine, prompts: PromptLibrary) -> Answer:
    """Answers ``science`` from three documents of a pool of eight, unless otherwise said."""

    async def ask(
        generator: KnownGenerator | None = None,
        attributor: KnownAttributor | None = None,
        **options: Any,
    ) -> AnswerResult:
        search = FairSearch(
            engine,
            "feedback",
            generator=generator or KnownGenerator(),
            attributor=attributor,
            prompts=prompts,
        )
        return await search.answer("science", **{"k": 8, "documents": 3, "seed": 1, **options})

    return ask


def third_is_used(premise: str, hypothesis: str) -> bool:
    """Whether the number of the person is one of every second; it depends on the answer too."""
    number = "".join(c for c in premise.split("\n")[0] if c.isdigit())
    return bool(number) and (int(number) + len(hypothesis)) % 2 == 0


async def test_the_figures_are_those_of_the_samples_counted_one_by_one(
    engine: SearchEngine, answer: Answer
) -> None:
    result: AnswerResult = await answer(
        attributor=KnownAttributor(third_is_used), samples=40, alpha=1, k=12
    )
    found = await ranked(engine, "science", 12)
    titles = {d.id: d.title for d in await engine.documents(found.ids)}
    drawn = sample_plackett_luce(found.scores, 1, 40, 3, stream_of(1, "science"))
    samples = [[found.ids[at] for at in row] for row in drawn.tolist()]

    rankings = Counter(map(tuple, samples))
    assert {tuple(a.ids): a.samples for a in result.answers} == rankings
    assert [tuple(a.ids) for a in result.answers] == list(rankings)  # by first draw
    assert all(a.text == titles[a.ids[0]] for a in result.answers)
    texts = Counter(titles[ids[0]] for ids in samples)
    assert {text.text: text.samples for text in result.distribution} == texts
    assert [t.samples for t in result.distribution] == sorted(texts.values(), reverse=True)

    exposure: Counter[str] = Counter()
    attributed: Counter[str] = Counter()
    rates = []
    for ids in samples:
        used = [third_is_used(titles[id_], titles[ids[0]]) for id_ in ids]
        exposure.update(ids)
        attributed.update(id_ for id_, is_used in zip(ids, used, strict=True) if is_used)
        rates.append(sum(used) / 3)
    assert [d.id for d in result.ranking] == found.ids
    for document in result.ranking:
        assert document.exposure == pytest.approx(exposure[document.id] / 40)
        assert document.attributed == pytest.approx(attributed[document.id] / 40)
    assert result.attribution_rate == pytest.approx(sum(rates) / 40)
    assert result.disparity == pytest.approx(sum((n / 40) ** 2 for n in exposure.values()) / 3)
    assert result.attributed_disparity == pytest.approx(
        sum((n / 40) ** 2 for n in attributed.values()) / 3
    )

    (gender,) = result.groups
    groups = {d.id: list(d.groups["gender"]) for d in result.ranking}
    for share, mass in (("exposure", exposure), ("attributed", attributed)):
        known = {id_: n for id_, n in mass.items() if groups[id_]}
        for group in gender.groups:
            own = sum(n for id_, n in known.items() if groups[id_] == [group.group])
            assert getattr(group, share) == pytest.approx(own / sum(known.values()))
    assert gender.unknown == pytest.approx(exposure["x"] / 120)
    assert gender.attributed_unknown == pytest.approx(attributed["x"] / sum(attributed.values()))
    assert result.counts.model_dump() == {
        "samples": 40,
        "rankings": len(rankings),
        "answered": 40,
        "failed": {},
        "judged": 40,
        "unjudged": 0,
    }


@pytest.mark.parametrize("alpha", [0, 1, 4])
@pytest.mark.parametrize("form", ["logits", "worths"])
async def test_the_identities_of_exposure_and_attribution_hold(
    answer: Answer, alpha: float, form: str
) -> None:
    result: AnswerResult = await answer(
        attributor=KnownAttributor(third_is_used), samples=30, alpha=alpha, form=form
    )
    exposure = [d.exposure for d in result.ranking]
    attributed = [d.attributed or 0.0 for d in result.ranking]
    assert sum(exposure) == pytest.approx(3)
    assert result.attribution_rate is not None
    assert sum(attributed) == pytest.approx(3 * result.attribution_rate)
    assert all(a <= e + 1e-12 for a, e in zip(attributed, exposure, strict=True))
    assert 3 / 8 - 1e-12 <= result.disparity <= 1
    assert result.attributed_disparity is not None
    assert result.attributed_disparity <= result.disparity + 1e-12


async def test_equal_rankings_are_answered_once(answer: Answer) -> None:
    generator = KnownGenerator()
    result: AnswerResult = await answer(generator, samples=200, alpha=0, k=3, documents=2)
    assert result.counts.rankings == len(generator.asked) == 6
    assert sum(a.samples for a in result.answers) == 200
    sharp: AnswerResult = await answer(generator, samples=200, alpha=100)
    assert sharp.counts.rankings == 1
    assert sharp.answers[0].ids == [d.id for d in sharp.ranking[:3]]
    assert sharp.disparity == pytest.approx(1)
    assert len(generator.asked) == 7


async def test_the_same_seed_gives_the_same_result_and_a_drawn_one_is_told(answer: Answer) -> None:
    def plain(result: AnswerResult) -> dict[str, Any]:
        return result.model_dump(exclude={"usage"})

    drawn: AnswerResult = await answer(samples=20, seed=None)
    again: AnswerResult = await answer(samples=20, seed=drawn.seed)
    other: AnswerResult = await answer(samples=20, seed=drawn.seed + 1)
    assert plain(again) == plain(drawn)
    assert [a.ids for a in other.answers] != [a.ids for a in drawn.answers]


async def test_the_first_samples_are_the_same_however_many_follow_at_a_time(
    answer: Answer, engine: SearchEngine, prompts: PromptLibrary
) -> None:
    """Neither the concurrency nor the order in which answers come changes the result."""
    generator = KnownGenerator()
    graph = build_answer_graph(engine, generator=generator, prompts=prompts)
    context = answer_context(k=8, seed=1, samples=30, alpha=0)
    results = []
    for limit in (1, 3):
        config: Any = {"max_concurrency": limit}
        generator.most_at_once = 0
        state = await graph.ainvoke({"query": "science"}, context=context, config=config)
        assert generator.most_at_once == limit
        results.append(AnswerResult.model_validate(state["answer"]).model_dump(exclude={"usage"}))
    assert results[0] == results[1]


async def test_the_prompt_gets_the_documents_numbered_and_the_hypothesis_the_answer(
    answer: Answer,
) -> None:
    generator, attributor = KnownGenerator(lambda _: "An  answer."), KnownAttributor()
    result: AnswerResult = await answer(
        generator, attributor, alpha=100, hypothesis="It is said: {answer}", temperature=0.5
    )
    (request,) = generator.asked
    assert request.question == "science"
    assert [source["number"] for source in request.sources] == ["1", "2", "3"]
    assert set(request.sources[0]) == {"number", "title", "text"}
    assert (request.temperature, request.seed) == (0.5, 1)
    assert {pair.hypothesis for pair in attributor.asked} == {"It is said: An answer."}
    titles = {d.id: d.title for d in result.ranking}
    read = [titles[id_] for id_ in result.answers[0].ids]
    assert [pair.premise.split("\n")[0] for pair in attributor.asked] == read
    assert result.prompt.sha256
    assert result.usage.model_calls == 1 + 3


async def test_without_chance_the_generator_is_given_no_seed(answer: Answer) -> None:
    generator = KnownGenerator()
    await answer(generator)
    assert [(r.temperature, r.seed) for r in generator.asked] == [(None, None)]


async def test_samples_without_an_answer_are_counted_and_the_rest_counts(answer: Answer) -> None:
    def reply(titles: list[str]) -> Reply:
        if titles[0] == "Person-0":
            return Reply("timeout", message="No answer in time.", usage=Usage(model_calls=1))
        return Reply("empty", message="Nothing.") if titles[0] == "Person-1" else titles[0]

    attributor = KnownAttributor()
    result: AnswerResult = await answer(KnownGenerator(reply), attributor, samples=60, alpha=1)
    by_status: Counter[str] = Counter()
    for each in result.answers:
        by_status[each.status] += each.samples
    assert set(by_status) == {"ok", "timeout", "empty"}
    counts = result.counts
    assert counts.failed == {status: n for status, n in by_status.items() if status != "ok"}
    assert counts.answered == counts.judged == by_status["ok"]
    lost = 60 - by_status["ok"]
    assert any(w.startswith(f"{lost} of 60 samples have no answer.") for w in result.warnings)
    assert sum(d.exposure for d in result.ranking) == pytest.approx(3)
    assert result.attribution_rate == pytest.approx(1 / 3)  # each uses the one it names
    judged = [a for a in result.answers if a.status == "ok"]
    used = sum(a.samples * sum(u or 0 for u in a.used) for a in judged)
    assert sum(d.attributed or 0 for d in result.ranking) == pytest.approx(used / counts.judged)
    assert all(not a.used for a in result.answers if a.status != "ok")


@pytest.mark.parametrize(
    ("message", "said"),
    [("It declined.", "It declined."), ("", "The model gave no answer (refused).")],
)
async def test_where_every_generation_fails_there_is_no_result(
    answer: Answer, message: str, said: str
) -> None:
    """An answer without any text is no answer, and nothing is left to judge."""
    generator = KnownGenerator(lambda _: Reply("refused", message=message))
    attributor = KnownAttributor()
    with pytest.raises(ModelError) as caught:
        await answer(generator, attributor, samples=5, alpha=0)
    assert (caught.value.status, str(caught.value)) == ("refused", said)
    assert attributor.asked == []


async def test_missing_verdicts_are_left_out_of_the_rate_and_counted(answer: Answer) -> None:
    def used(premise: str, hypothesis: str) -> bool | Entailment:
        if premise.startswith("Person-0"):
            return Entailment("timeout", message="The judge took too long.")
        return premise.startswith("Person-1")

    result: AnswerResult = await answer(
        attributor=KnownAttributor(used), alpha=100, samples=2, documents=3
    )
    (only,) = result.answers
    place = only.ids.index("p00")
    assert only.used[place] is None
    assert only.verdicts[place] == "timeout"
    assert result.attribution_rate == pytest.approx(1 / 2)
    assert sum(d.attributed or 0 for d in result.ranking) == 1
    assert (result.counts.judged, result.counts.unjudged) == (2, 2)
    assert any("The judge took too long." in warning for warning in result.warnings)


async def test_without_an_attributor_nothing_is_said_of_use(answer: Answer) -> None:
    result: AnswerResult = await answer(samples=3, alpha=0)
    assert result.attributor is None
    assert result.attribution_rate is None
    assert all(a.used == [] and a.status == "ok" for a in result.answers)
    assert result.warnings == []


async def test_a_document_without_text_is_read_and_judged_by_its_title(answer: Answer) -> None:
    generator, attributor = KnownGenerator(), KnownAttributor()
    await answer(generator, attributor, k=12, documents=12)
    (nobody,) = [s for s in generator.asked[0].sources if s["title"] == "science Nobody"]
    assert nobody["text"] == ""
    assert "science Nobody" in [pair.premise for pair in attributor.asked]


async def test_a_document_that_is_deleted_meanwhile_is_neither_read_nor_judged(
    corpus: Path, tmp_path: Path, prompts: PromptLibrary
) -> None:
    engine = await Catalog(tmp_path / "data").resolve(str(corpus))
    attributor = KnownAttributor()
    search = FairSearch(
        engine, "feedback", generator=KnownGenerator(), attributor=attributor, prompts=prompts
    )
    gone = ""
    async for step in search.stream(
        "science", answer_context(k=8, documents=3, alpha=100, stream=True)
    ):
        if isinstance(step, StepData) and step.sampled:
            gone = step.sampled[0].ids[1]
            await remove(engine, [gone])
        elif isinstance(step, AnswerResult):
            result = step
    assert len(attributor.asked) == 2
    await engine.aclose()
    assert result.answers[0].verdicts == ["ok", "empty_document", "ok"]
    assert result.answers[0].used[1] is None


async def test_a_pool_smaller_than_what_is_read_is_read_whole_with_a_word(answer: Answer) -> None:
    generator = KnownGenerator()
    result: AnswerResult = await answer(generator, k=4, documents=9)
    assert (result.pool, result.documents) == (4, 4)
    assert len(generator.asked[0].sources) == 4
    assert any("9 documents, but only 4" in warning for warning in result.warnings)


async def test_a_fair_reranking_counts_by_its_places(answer: Answer) -> None:
    """The scores of its documents do not fall with their places; the places are what is worth."""
    plain: AnswerResult = await answer(alpha=100)
    wanted = {"final_step": "exposure-aware", "target": "gender=female:0.1,male:0.9"}
    fair: AnswerResult = await answer(alpha=100, **wanted)
    ids = [d.id for d in fair.ranking]
    assert ids != [d.id for d in plain.ranking]
    assert fair.answers[0].ids == ids[:3]
    assert fair.groups[0].groups[0].target == 0.1


async def test_what_is_out_of_range_is_refused_in_a_sentence(answer: Answer) -> None:
    for wrong, named in (
        ({"samples": 0}, "answer.samples"),
        ({"alpha": -1}, "answer.alpha"),
        ({"alpha": float("inf")}, "answer.alpha"),
        ({"alpha": float("nan")}, "answer.alpha"),
        ({"alpha": 1e6}, "answer.alpha"),
        ({"documents": 0}, "answer.documents"),
        ({"form": "softmax"}, "answer.form"),
        ({"temperature": 3}, "answer.temperature"),
        ({"hypothesis": "no place for it"}, "answer.hypothesis"),
    ):
        with pytest.raises(InputError, match=f"parameter '{named}' is wrong") as error:
            await answer(**wrong)
        assert "\n" not in str(error.value)
    with pytest.raises(PromptError, match="answer/v9"):
        await answer(prompts={"answer": "v9"})


async def test_an_answer_needs_a_generator(engine: SearchEngine, prompts: PromptLibrary) -> None:
    graph = build_answer_graph(engine, prompts=prompts)
    with pytest.raises(ModelUnavailableError, match="No model is given to answer with"):
        await graph.ainvoke({"query": "science"}, context=answer_context(k=5))


async def test_a_state_holds_no_text_of_documents_and_stays_small(
    engine: SearchEngine, prompts: PromptLibrary
) -> None:
    saver = InMemorySaver()
    graph = build_answer_graph(
        engine,
        generator=KnownGenerator(),
        attributor=KnownAttributor(),
        prompts=prompts,
        checkpointer=saver,
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    context = answer_context(k=8, seed=1, samples=100, alpha=0)
    await graph.ainvoke({"query": "science"}, config=config, context=context)
    state = (await graph.aget_state(config)).values
    written = json.dumps(state)
    assert len(state["generated"]) == len(state["judged"]) > 50
    assert "secret prose" not in written
    everything = [*saver.storage.values(), *saver.writes.values(), *saver.blobs.values()]
    assert "secret prose" not in repr(everything)
    assert len(written) < 200_000
    # A thread forgets its last answer.
    again = await graph.ainvoke({"query": "science"}, config=config, context=context)
    assert again["answer"] is not None
    assert sum(a["samples"] for a in again["answer"]["answers"]) == 100  # type: ignore[index,attr-defined]


async def test_the_pieces_of_an_answer_come_before_its_end(
    engine: SearchEngine, prompts: PromptLibrary
) -> None:
    search = FairSearch(
        engine,
        "feedback",
        generator=KnownGenerator(lambda _: "one two three"),
        attributor=None,
        prompts=prompts,
    )
    events = [e async for e in search.stream("science", answer_context(k=5, stream=True))]
    names = [e.step if isinstance(e, StepData) else e.text for e in events[:-1]]
    assert names == [
        "prepare",
        "begin",
        "measure",
        "rerank",
        "sample",
        "one",
        "two",
        "three",
        "generate",
        "collect",
        "summarise",
    ]
    several = [
        e
        async for e in search.stream(
            "science", answer_context(k=5, samples=20, alpha=0, stream=True)
        )
    ]
    assert not any(isinstance(e, AIMessageChunk) for e in several)


async def test_the_budget_of_time_is_the_deadline_of_answers(answer: Answer) -> None:
    generator = KnownGenerator()
    await answer(generator, budget={"seconds": 30})
    await answer(generator)
    first, second = generator.deadlines
    assert first is not None
    assert 0 < first <= 30
    assert second is None


def test_the_synchronous_answer_is_the_same(engine: SearchEngine, prompts: PromptLibrary) -> None:
    with FairSearch.open(
        engine, "feedback", generator=KnownGenerator(), attributor="overlap", prompts=prompts
    ) as search:
        result = search.answer("science", attribute="gender", k=8, documents=3, alpha=100)
    assert result.answers[0].text == "Person-0"
    assert result.attributor == "overlap"
    assert any("was never checked" in warning for warning in result.warnings)


async def test_the_steps_are_traced_and_answers_only_as_content(
    engine: SearchEngine, prompts: PromptLibrary, tmp_path: Path
) -> None:
    search = FairSearch(
        engine,
        "feedback",
        generator=KnownGenerator(lambda titles: f"It is {titles[0]}"),
        attributor=KnownAttributor(),
        prompts=prompts,
    )

    async def traced(content: bool) -> tuple[list[Mapping[str, Any]], str]:
        path = tmp_path / f"trace-{content}.jsonl"
        with record_to(path, content=content):
            await search.answer("science", k=8, documents=2, samples=10, alpha=0, seed=1)
        return [json.loads(line) for line in path.read_text().splitlines()], path.read_text()

    spans, text = await traced(content=False)
    names = [span["name"] for span in spans if span["parent"] == spans[-1]["span"]]
    assert names[0] == "fairqr.prepare"
    assert names[4] == "fairqr.sample"
    assert Counter(names[5:]) == {
        "fairqr.generate": names.count("fairqr.attribute"),
        "fairqr.collect": 1,
        "fairqr.attribute": names.count("fairqr.generate"),
        "fairqr.summarise": 1,
    }
    assert names[-1] == "fairqr.summarise"
    (one, *_) = [span for span in spans if span["name"] == "fairqr.generate"]
    assert one["attributes"]["fairqr.prompt.sha256"] == prompts.get("answer").sha256
    assert one["attributes"]["fairqr.status"] == "ok"
    assert "It is" not in text
    assert "It is Person-" in (await traced(content=True))[1]


async def test_the_budget_of_time_bounds_judging_too(answer: Answer) -> None:
    class Slow(KnownAttributor):
        async def judge(self, pairs: Any) -> Any:
            await asyncio.sleep(60)

    result = await answer(attributor=Slow(), budget={"seconds": 0.3})
    assert result.answers[0].verdicts == ["timeout"] * len(result.answers[0].ids)
    assert any("time of the budget was spent" in warning for warning in result.warnings)
    assert result.usage.milliseconds < 10_000
