"""The façade: what it opens and closes, and what it runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fairqr import (
    AnswerContext,
    AnswerResult,
    AnswerSettings,
    Context,
    FairSearch,
    ProbeContext,
    ProbeResult,
    ProbeSettings,
    SearchResult,
    StepData,
)
from fairqr.base.errors import IndexNotFoundError, InputError, ModelUnavailableError, QueryError
from fairqr.retrieval.engines.engine import SearchEngine
from tests.golden.record import EchoingGenerator
from tests.patience import PATIENCE
from tests.unit.agents.ranking.fakes import Planted
from tests.unit.engines import WatchedEngine
from tests.unit.graph.corpora import KnownRefiner
from tests.unit.retrieval.vector_encoders import CountingEncoder

CONTEXT = Context(attributes=("gender",), k=5, max_iterations=2, ask="always", patience=5)
PROBE = ProbeContext(k=10, probe=ProbeSettings(attribute="gender", protected="female", pairs=2))


async def test_a_source_is_opened_with_the_retriever_that_is_asked_for(
    engine: SearchEngine, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(corpus.parent / "data"))
    assert "relevance" not in engine.capabilities, "no encoder is pulled, so auto is BM25"
    words = CountingEncoder()
    async with FairSearch.open(str(corpus), "feedback", retriever=words) as search:
        result = await search.search("science", attribute="gender", method="baseline", k=5)
    assert result.retriever == "hybrid-pool:words"


async def test_an_open_engine_takes_no_other_retriever(engine: SearchEngine) -> None:
    with pytest.raises(InputError, match="An open engine has its own retriever"):
        FairSearch.open(engine, "feedback", retriever="bm25")


async def test_an_unknown_retriever_is_refused(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(corpus.parent / "data"))

    with pytest.raises(InputError, match="There is no retriever 'sparse'"):
        async with FairSearch.open(str(corpus), "feedback", retriever="sparse"):
            pass


class Missing(KnownRefiner):
    """A model whose server is down."""

    async def start(self) -> None:
        raise ModelUnavailableError("The model server does not respond; start it.")


class Closing(WatchedEngine):
    """Notes on which threads it was opened, by the name 'people', and closed."""

    def __init__(self, engine: SearchEngine) -> None:
        super().__init__(engine)
        self.threads: list[int] = []

    async def open(self, source: object, **_: object) -> Closing:
        self.threads.append(threading.get_ident())
        return self

    async def aclose(self) -> None:
        self.threads.append(threading.get_ident())
        await super().aclose()


@pytest.fixture
def closing(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> Any:
    closing = Closing(engine)
    monkeypatch.setattr("fairqr.api.open_engine", closing.open)
    return closing


async def test_opening_a_missing_index_leaves_no_thread() -> None:
    before = set(threading.enumerate())

    with pytest.raises(IndexNotFoundError, match="nowhere"), FairSearch.open("nowhere"):
        raise AssertionError
    assert set(threading.enumerate()) <= before


async def test_opening_reports_a_missing_model(engine: SearchEngine) -> None:
    with pytest.raises(ModelUnavailableError, match="does not respond"):
        async with FairSearch.open(engine, Missing()):
            raise AssertionError


async def test_opening_starts_the_model_once(engine: SearchEngine) -> None:
    refiner = KnownRefiner()

    async with FairSearch.open(engine, refiner):
        assert refiner.started == 1


async def test_a_number_is_no_source() -> None:
    with pytest.raises(InputError, match="not int"):
        FairSearch.open(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("search", {"attribut": "gender"}, "There is no parameter 'attribut'; did you mean 'attri"),
        ("search", {"attribute": "gender", "attributes": ["gender"]}, "not both"),
        ("search", {"context": AnswerContext()}, "answer takes the AnswerContext"),
        ("answer", {"answer": {"samples": 2}}, "no parameter 'answer'"),
        ("answer", {"context": AnswerContext(), "samples": 3}, "'samples' is given beside a conte"),
        ("probe", {"context": CONTEXT}, r"must be a fairqr\.ProbeContext, not Context"),
        ("probe", {"protected": "female"}, "'probe.attribute' is wrong: Field required"),
    ],
    ids=["typo", "twice", "context", "settings", "beside a context", "other context", "missing"],
)
async def test_what_a_call_does_not_take_is_refused(
    engine: SearchEngine, method: str, options: dict[str, Any], sentence: str
) -> None:
    search: Any = FairSearch(engine, KnownRefiner())

    with pytest.raises(InputError, match=sentence):
        await getattr(search, method)("science", **options)


@pytest.mark.promise("command")
@pytest.mark.parametrize("blocking", [False, True])
async def test_what_was_opened_is_closed_on_the_loop_that_opened_it(
    closing: Closing, *, blocking: bool
) -> None:
    """The façade closes what it opened, on the event loop that opened it."""

    def block() -> None:
        with FairSearch.open("people", KnownRefiner()) as search:
            assert search.search("science", CONTEXT).ranking

    if blocking:
        await asyncio.to_thread(block)
    else:
        async with FairSearch.open("people", KnownRefiner()) as search:
            assert (await search.search("science", CONTEXT)).ranking
    opened, closed = closing.threads
    assert opened == closed


async def test_a_start_that_fails_leaves_nothing_open(closing: Closing) -> None:
    search = FairSearch("people", model="no such model")
    for _ in range(2):
        with pytest.raises(ModelUnavailableError):
            await search.search("science")
    await search.aclose()
    assert (len(closing.threads), closing.closed) == (2, 1)


@pytest.mark.promise("command")
async def test_an_engine_that_was_given_stays_open(closing: Any) -> None:
    """The façade closes nothing that the caller opened."""
    async with FairSearch.open(closing, KnownRefiner()) as search:
        await search.search("science", CONTEXT)
    assert closing.closed == 0


@pytest.mark.promise("command")
@pytest.mark.parametrize(
    ("kind", "context", "values"),
    [
        (
            "search",
            Context(attributes=("gender",), k=5, method="baseline"),
            {"attribute": "gender", "k": 5, "method": "baseline"},
        ),
        (
            "answer",
            AnswerContext(k=3, seed=1, answer=AnswerSettings(samples=2)),
            {"k": 3, "seed": 1, "samples": 2},
        ),
        ("probe", PROBE, {"k": 10, "pairs": 2, "attribute": "gender", "protected": "female"}),
    ],
    ids=["search", "answer", "probe"],
)
async def test_each_kind_of_run_gives_the_same_without_async(
    engine: SearchEngine, kind: str, context: Context, values: dict[str, Any]
) -> None:
    """The façade works with and without `async`, and gives the same either way.

    And with its values one by one in place of a context.
    """
    parts: Any = {"generator": EchoingGenerator(), "attributor": "overlap"}
    with FairSearch.open(engine, Planted(), **parts) as search:
        by_context = await getattr(search.asynchronous, kind)("science", context)
        by_values = getattr(search, kind)("science", **values)

    assert by_values.model_dump(exclude={"usage"}) == by_context.model_dump(exclude={"usage"})


@pytest.mark.parametrize(
    ("steps", "last"), [(1, "prepare"), (None, "rerank")], ids=["first", "all"]
)
async def test_steps_come_without_async_too(
    engine: SearchEngine, steps: int | None, last: str
) -> None:
    """Where a loop runs as well. Whoever leaves early leaves nothing behind."""
    refiner = KnownRefiner()
    with FairSearch.open(engine, refiner) as search:
        names = []
        with contextlib.closing(search.stream("science", CONTEXT)) as events:
            for event in itertools.islice(events, steps):
                names += [event.step] if isinstance(event, StepData) else []
        assert (await search.asynchronous.search("science", CONTEXT)).ranking
    assert names[0] == "prepare"
    assert names[-1] == last


async def test_a_stream_refuses_an_empty_query(engine: SearchEngine) -> None:
    search = FairSearch(engine, KnownRefiner())

    with pytest.raises(QueryError, match="empty"):
        list(search.sync.stream(" ", CONTEXT))


@pytest.mark.promise("graph")
async def test_a_stream_yields_documented_steps_and_then_the_result(engine: SearchEngine) -> None:
    """A stream yields each step and then the result."""
    search = FairSearch(engine, KnownRefiner(["scholar"]))
    *steps, result = [event async for event in search.stream("science", CONTEXT)]
    assert isinstance(result, SearchResult)
    assert [step.step for step in steps[:4]] == ["prepare", "retrieve", "measure", "choose_group"]
    rounds = [step.round for step in steps if step.step == "measure"]
    assert [each.exposure for each in rounds] == [it.exposure for it in result.iterations]
    assert steps[2].target == result.target
    refined = next(step for step in steps if step.step == "refine")
    assert refined.refinements[0].keywords == ["scholar"]
    assert steps[-1].model_dump(exclude_none=True).keys() <= {"step", "usage", "warnings"}


@pytest.mark.parametrize("context", [AnswerContext(k=5, attributes=("gender",)), PROBE])
async def test_a_stream_of_an_answer_or_a_probe_has_its_search(
    engine: SearchEngine, context: AnswerContext | ProbeContext
) -> None:
    search = FairSearch(engine, Planted(), generator=EchoingGenerator())
    events = [event async for event in search.stream("science", context)]
    assert isinstance(events[-1], AnswerResult | ProbeResult)
    (found,) = [event.search for event in events if isinstance(event, StepData) and event.search]
    assert len(found.ranking) == context.k


@pytest.mark.parametrize("name", ["search", "answer", "probe", "stream", "as_retriever", "aclose"])
def test_what_is_opened_without_with_says_how_to_open_it(engine: SearchEngine, name: str) -> None:
    opening: Any = FairSearch.open(engine, KnownRefiner())

    with pytest.raises(InputError, match=f"with FairSearch.open.* search.{name} there"):
        getattr(opening, name)


def test_what_is_opened_without_with_has_no_other_names(engine: SearchEngine) -> None:
    """As notebooks and debuggers ask."""
    opening = FairSearch.open(engine, KnownRefiner())

    assert not hasattr(opening, "nothing")


@pytest.mark.promise("command")
async def test_results_are_tables_in_a_notebook(engine: SearchEngine) -> None:
    """Results in a notebook are tables.

    With the titles as text, and never as markup.
    """
    search = FairSearch(engine, Planted(), generator=EchoingGenerator(), attributor="overlap")
    plain = Context(attributes=("gender",), k=5, max_iterations=0)
    result = await search.search("science", plain)
    group, share = next(iter(result.exposure["gender"].items()))
    named = result.ranking[0].model_copy(update={"title": "<b>&"})
    html = result.model_copy(update={"ranking": [named], "warnings": ["<i>"]})._repr_html_()
    assert html.count("<table>") == 2
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html
    assert "<p>&lt;i&gt;</p>" in html
    assert f">{group}</td>" in html
    assert f">{share:.1%}</td>" in html

    answer = await search.answer(
        "science", AnswerContext(k=3, attributes=("gender",), max_iterations=0)
    )
    assert answer.distribution[0].text in answer._repr_html_()
    probe = await search.probe("science", PROBE)
    verdict = probe.pairwise.sentence if probe.pairwise else probe.message
    assert f"<p>{verdict}</p>" in probe._repr_html_()
    assert probe._repr_html_().count("<tr>") == 1 + len(probe.documents)


def searched_in_child(search: FairSearch, sending: Any) -> None:
    """Search in a forked child, in both ways, and once more with what it opens itself."""
    engine: Any = search._source
    report: list[str] = []
    try:
        search.sync.search("science", CONTEXT)
    except InputError as error:
        report.append(str(error))
    report.append(asyncio.run(search.search("science", CONTEXT)).ranking[0].id)
    with FairSearch.open(engine, KnownRefiner()) as reopened:
        report.append(reopened.search("science", CONTEXT).ranking[0].id)
    sending.send(report)


@pytest.mark.promise("command")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_a_forked_child_works_or_is_told_to_spawn(engine: SearchEngine) -> None:
    """A forked process that searches works, or is told to spawn.

    Threads of the parent are not in the child, so nothing there may wait for them.
    """
    search = FairSearch(engine, KnownRefiner())
    first = (await asyncio.to_thread(search.sync.search, "science", CONTEXT)).ranking[0].id
    forking = multiprocessing.get_context("fork")
    receiving, sending = forking.Pipe(duplex=False)
    child = forking.Process(target=searched_in_child, args=(search, sending))
    child.start()
    has_answered = await asyncio.to_thread(receiving.poll, PATIENCE)
    if has_answered:
        child.join(PATIENCE)
    else:
        child.kill()
    assert has_answered, "the child hangs"

    refusal, by_async, by_reopened = receiving.recv()
    assert "forked" in refusal
    assert "start processes by 'spawn'" in refusal
    assert by_async == by_reopened == first
    await search.aclose()
