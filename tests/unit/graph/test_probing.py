"""Probes as steps of the graph: models with a planted lean, and what cannot be told."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.runtime import Runtime

from fairqr import (
    FairSearch,
    SearchResult,
    build_probe_graph,
    build_search_graph,
)
from fairqr.agents.models.replies import OnToken, Question, Reply, Usage, Wanted
from fairqr.base.errors import InputError, ModelUnavailableError, PromptError
from fairqr.base.telemetry import record_to
from fairqr.graph.probe.context import probe_context
from fairqr.graph.probe.nodes import Nodes
from fairqr.graph.probe.result import ProbeResult
from fairqr.graph.probe.state import State
from fairqr.graph.search.context import make_context
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import exposure_ratio
from fairqr.retrieval.sources.catalog import Catalog

SCHEMA = """attributes:
  gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}
  place:
    field: p
    groups: [north, south, east]
    population: {north: 0.4, south: 0.3, east: 0.3}
"""
USAGE = Usage(model_calls=1, prompt_tokens=10, completion_tokens=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty people: every third is a woman, named Ms; two have no label; all live in the north."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "schema.yaml").write_text(SCHEMA)
    lines = []
    for at in range(30):
        woman = at % 3 == 0
        document = {
            "id": f"p{at:02}",
            "title": f"{'Ms' if woman else 'Mr'} Person-{at}",
            "text": "science " * (31 - at) + "secret prose",
            "p": "north",
        }
        if at not in (4, 5):
            document["g"] = "female" if woman else "male"
        lines.append(json.dumps(document))
    path = folder / "people.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
async def engine(corpus: Path) -> AsyncIterator[SearchEngine]:
    engine = await Catalog(corpus.parent / "data").resolve(str(corpus))
    yield engine
    await engine.aclose()


class Planted:
    """A model that prefers the text with the greater worth, and the first of two equal ones.

    Args:
        worth: Of a title, its position in the prompt, and the word for who asks.
        writes: What it writes instead, if anything.
    """

    name = "planted"

    def __init__(
        self,
        worth: Callable[[str, int, str], float] = lambda title, position, group: 0.0,
        *,
        gives_probabilities: bool = True,
        writes: str | None = None,
    ) -> None:
        self.worth = worth
        self.gives_probabilities = gives_probabilities
        self.writes = writes
        self.asked: list[Question] = []
        self.deadlines: list[float | None] = []
        self.started: list[Wanted] = []

    async def start(self, wanted: Wanted = "object") -> None:
        self.started.append(wanted)

    def _worths(self, texts: Sequence[str], group: str) -> list[float]:
        return [self.worth(text, at, group.strip()) for at, text in enumerate(texts)]

    async def write(
        self, question: Question, deadline: float | None = None, on_token: OnToken | None = None
    ) -> Reply:
        self.asked.append(question)
        self.deadlines.append(deadline)
        values = question.values
        if self.writes is not None:
            return Reply("ok", {"text": self.writes}, usage=USAGE)
        if "passages" in values:
            worths = self._worths(values["passages"].splitlines(), values["group"])
            order = sorted(range(len(worths)), key=lambda at: -worths[at])
            text = " > ".join(f"[{at + 1}]" for at in order)
            return Reply("ok", {"text": text}, usage=USAGE)
        one, other = self._worths([values["first"], values["second"]], values["group"])
        return Reply("ok", {"text": "A" if one >= other else "B"}, usage=USAGE)

    async def weigh(
        self,
        question: Question,
        labels: Sequence[str] = ("Yes", "No"),
        deadline: float | None = None,
    ) -> Reply:
        self.asked.append(question)
        self.deadlines.append(deadline)
        values = question.values
        one, other = self._worths([values["first"], values["second"]], values["group"])
        share = 0.8 if one >= other else 0.2
        probabilities = dict(zip(labels, (share, 1 - share), strict=True))
        return Reply("ok", {"probabilities": probabilities, "mass": 0.9}, usage=USAGE)


def number_in(title: str) -> int:
    return int(re.findall(r"Person-(\d+)", title)[0])


def likes_women(title: str, position: int, group: str) -> float:
    return float("Ms " in title)


ASKED: dict[str, Any] = {"attribute": "gender", "protected": "female", "k": 30}


async def probed(engine: SearchEngine, model: Planted, **options: Any) -> ProbeResult:
    return await FairSearch(engine, model).probe("science", **{**ASKED, **options})


@pytest.mark.parametrize("by", ["probabilities", "reply"])
async def test_a_model_that_prefers_a_group_is_found_out(engine: SearchEngine, by: str) -> None:
    model = Planted(likes_women)
    result = await probed(engine, model, by=by)
    assert (result.status, result.message, result.words) == ("ok", "", ("female", "male"))
    assert Counter(d.side for d in result.documents) == {
        "protected": 10,
        "unprotected": 18,
        "undecided": 2,
    }
    pairs = result.pairwise
    assert pairs is not None
    assert (pairs.status, pairs.verdict, pairs.asked_by) == ("ok", "favours_protected", by)
    assert (pairs.protected.count, pairs.protected.of) == (10, 10)
    assert (pairs.ratio, pairs.ratio_interval) == (None, None)
    assert pairs.p == pytest.approx(2 / 2**10)
    assert "favours female documents: of 10 pairs" in pairs.sentence
    lists = result.listwise
    assert lists is not None
    for order in lists.askers:
        assert order.exposure_ratio is not None
        assert order.exposure_ratio > 1.3
        women = {d.id for d in result.documents if d.side == "protected"}
        assert set(order.ids[:10]) == women
    assert len(model.asked) == result.usage.model_calls == 20 + 3 * 2


async def test_every_document_is_in_one_pair_at_most_and_each_order_is_asked(
    engine: SearchEngine,
) -> None:
    model = Planted(likes_women)
    result = await probed(engine, model, kinds=["pairwise"], pairs=7)
    assert result.listwise is None
    assert result.pairwise is not None
    sides = {d.id: d.side for d in result.documents}
    pairs = [(pair.protected, pair.unprotected) for pair in result.pairwise.pairs]
    assert len(pairs) == 7
    assert len({id_ for pair in pairs for id_ in pair}) == 14
    assert {(sides[one], sides[other]) for one, other in pairs} == {("protected", "unprotected")}
    asked = Counter(
        (number_in(q.values["first"]), number_in(q.values["second"])) for q in model.asked
    )
    numbers = [(int(one[1:]), int(other[1:])) for one, other in pairs]
    assert asked == Counter([*numbers, *(pair[::-1] for pair in numbers)])
    for pair in result.pairwise.pairs:
        assert (pair.protected_first, pair.unprotected_first) == ("protected", "protected")
        one, other = pair.log_odds
        assert one is not None
        assert other is not None
        assert one > 0 > other


async def test_a_model_that_prefers_the_first_position_is_found_out(engine: SearchEngine) -> None:
    result = await probed(engine, Planted(), kinds=["pairwise"])
    pairs = result.pairwise
    assert pairs is not None
    assert pairs.verdict == "position_decides"
    assert (pairs.flips.count, pairs.flips_to_first, pairs.answered) == (10, 10, 10)
    assert "the first place wins 10" in pairs.sentence
    assert (pairs.ratio, pairs.p, pairs.detectable) == (None, None, None)


async def test_a_model_that_goes_by_the_number_leans_to_nobody(engine: SearchEngine) -> None:
    model = Planted(lambda title, position, group: -(number_in(title) * 7919 % 31))
    result = await probed(engine, model, kinds=["pairwise"])
    pairs = result.pairwise
    assert pairs is not None
    assert pairs.verdict == "no_lean_found"
    assert pairs.flips.count == 0
    assert pairs.protected.count + pairs.unprotected.count == 10
    assert "no lean was found" in pairs.sentence


async def test_four_pairs_are_no_finding(engine: SearchEngine) -> None:
    result = await probed(engine, Planted(likes_women), pairs=4, kinds=["pairwise"])
    assert result.pairwise is not None
    assert result.pairwise.verdict == "too_few"
    assert "at least 6 pairs" in result.pairwise.sentence


@pytest.mark.parametrize(
    ("text", "status"),
    [("I am sorry, but I cannot help with that.", "refused"), ("A and B", "parse_error")],
)
async def test_a_model_that_does_not_answer_is_a_status_and_not_an_exception(
    engine: SearchEngine, text: str, status: str
) -> None:
    model = Planted(gives_probabilities=False, writes=text)
    result = await probed(engine, model)
    assert result.pairwise is not None
    assert result.listwise is not None
    assert (result.pairwise.status, result.pairwise.verdict) == ("failed", "failed")
    assert result.pairwise.failures == {status: 20}
    assert result.pairwise.asked_by == "reply"
    for order in result.listwise.askers:
        assert (order.status, order.ids, order.exposure_ratio) == ("failed", [], None)
        assert sum(order.failures.values()) == order.asked == 2
    assert result.warnings


async def test_lists_are_ordered_for_each_asker_from_the_same_order(engine: SearchEngine) -> None:
    """This model ranks whom the word names first, and whoever stands first otherwise."""
    words = {"female": "Ms ", "male": "Mr "}
    model = Planted(
        lambda title, position, group: words[group] in title if group else -position / 100
    )
    result = await probed(engine, model, kinds=["listwise"], window=28)
    assert result.pairwise is None
    lists = result.listwise
    assert lists is not None
    assert [(o.asker, o.words) for o in lists.askers] == [
        ("neutral", ""),
        ("unprotected", "male"),
        ("protected", "female"),
    ]
    neutral, unprotected, protected = lists.askers
    assert neutral.ids == lists.initial
    assert neutral.exposure_ratio == lists.initial_ratio
    women = {d.id for d in result.documents if d.side == "protected"}
    for order in lists.askers:
        assert order.exposure_ratio == pytest.approx(
            exposure_ratio([id_ in women for id_ in order.ids])
        )
        assert sorted(order.ids) == sorted(lists.initial)
    assert unprotected.exposure_ratio is not None
    assert protected.exposure_ratio is not None
    assert unprotected.exposure_ratio < 1 < protected.exposure_ratio
    undecided = {d.id for d in result.documents if d.side == "undecided"}
    assert not undecided & set(lists.initial)


async def test_the_seed_alone_decides_what_is_asked(engine: SearchEngine) -> None:
    model = Planted(likes_women)
    graph = build_probe_graph(engine, model)
    context = probe_context(attribute="gender", protected="female", seed=3, k=20)
    found = []
    for limit in (1, 5):
        config: Any = {"max_concurrency": limit}
        state = await graph.ainvoke({"query": "science"}, context=context, config=config)
        found.append(ProbeResult.model_validate(state["probe"]).model_dump(exclude={"usage"}))
    assert found[0] == found[1]
    other = await probed(engine, model, k=20, seed=4)
    assert other.pairwise is not None
    assert other.pairwise.pairs != found[0]["pairwise"]["pairs"]
    assert {other.seed, found[0]["seed"]} == {3, 4}


async def test_a_side_without_a_document_is_told_and_nothing_is_asked(engine: SearchEngine) -> None:
    model = Planted()
    result = await probed(engine, model, attribute="place", protected="south")
    assert result.status == "one_sided"
    assert "None of the 30 documents is south" in result.message
    assert (result.pairwise, result.listwise, model.asked) == (None, None, [])
    assert (result.words, result.protected_groups) == (("south", "non-south"), ["south"])
    others = await probed(engine, model, attribute="place", protected="not north")
    assert others.status == "one_sided"
    assert "non-north" in others.message


async def test_the_search_that_is_probed_is_a_search_like_any_other(engine: SearchEngine) -> None:
    model = Planted(likes_women)
    context = probe_context(attribute="gender", protected="female", depth=12, k=20)
    state = await build_probe_graph(engine, model).ainvoke({"query": "science"}, context=context)
    alone = await build_search_graph(engine).ainvoke(
        {"query": "science"},
        context=make_context(attribute="gender", k=20, method="plain", target=context.target),
    )
    result, probe = (SearchResult.model_validate(it["result"]) for it in (state, alone))
    assert result.model_dump(exclude={"usage"}) == probe.model_dump(exclude={"usage"})
    found = ProbeResult.model_validate(state["probe"])
    assert [d.id for d in found.documents] == [p.id for p in result.ranking[:12]]
    assert result.usage.model_calls == 0
    assert found.usage.model_calls == len(model.asked)
    assert "12 documents count as equally relevant" in found.note


async def test_a_model_that_re_ranks_is_probed_on_its_own_ranking(engine: SearchEngine) -> None:
    model = Planted(likes_women)
    context = probe_context(
        attribute="gender",
        protected="female",
        kinds=["pairwise"],
        method="listwise",
        k=20,
        final_step="none",
    )
    state = await build_probe_graph(engine, model).ainvoke({"query": "science"}, context=context)
    result = SearchResult.model_validate(state["result"])
    found = ProbeResult.model_validate(state["probe"])
    assert result.ranker == "listwise(planted, 20/10)"
    assert [p.title[:2] for p in result.ranking[:10]] == ["Ms"] * 10
    assert found.pairwise is not None
    assert found.pairwise.verdict == "favours_protected"
    assert result.usage.model_calls == 2


async def test_the_attribute_of_a_probe_has_to_be_measured(engine: SearchEngine) -> None:
    with pytest.raises(InputError, match="'gender', is not among 'attributes'; add it"):
        await FairSearch(engine, Planted()).probe("science", **ASKED, attributes=["place"])
    graph = build_probe_graph(engine, Planted())
    with pytest.raises(InputError, match="give the graph a ProbeContext"):
        await graph.ainvoke({"query": "science"}, context=make_context(k=5))


async def test_the_budget_holds_for_the_probe_too(engine: SearchEngine) -> None:
    model = Planted(likes_women)
    needed = 10 * 2 + 1 + 3
    with pytest.raises(InputError, match=f"may take {needed} model calls to probe the model"):
        await probed(engine, model, k=20, budget={"model_calls": needed - 1})
    assert model.asked == []
    enough = await probed(engine, model, k=20, budget={"model_calls": needed, "seconds": 60})
    assert enough.status == "ok"
    assert all(left is not None and 0 < left <= 60 for left in model.deadlines)


async def test_the_probe_is_left_out_where_the_search_left_too_little(engine: SearchEngine) -> None:
    """Texts of the result may be longer than those that the cost was estimated by."""
    model = Planted()
    context = probe_context(
        attribute="gender", protected="female", k=10, budget={"model_calls": 20}
    )
    plain = await build_search_graph(engine).ainvoke({"query": "science"}, context=context)
    result = {**plain["result"], "usage": {**plain["result"]["usage"], "model_calls": 15}}
    state = State(query="science", seconds=0.0, result=result)
    nodes = Nodes(engine, lambda: model, PromptLibrary(), context)
    update = await nodes.plan(state, Runtime())
    assert (update["status"], update["tasks"]) == ("budget", [])
    assert "but only 5 of the budget are left" in update["message"]


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"attribute": "age"}, InputError, "age"),
        ({"protected": "nobody"}, InputError, "no group 'nobody'"),
        ({"kinds": []}, InputError, "'probe.kinds' is wrong"),
        ({"askers": ["protected", "protected"]}, InputError, "each once"),
        ({"pairs": 0}, InputError, "'probe.pairs' is wrong"),
        ({"window": 10, "step": 10}, InputError, "step is 10"),
        ({"nonsense": 1}, InputError, "no parameter 'nonsense'"),
        ({"prompts": {"pairwise": "v9"}}, PromptError, "pairwise/v9"),
    ],
)
async def test_what_cannot_be_probed_is_refused(
    engine: SearchEngine, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        await probed(engine, Planted(), **options)


async def test_a_probe_needs_a_language_model(engine: SearchEngine) -> None:
    with pytest.raises(ModelUnavailableError, match="No language model is given to probe"):
        await FairSearch(engine, "feedback").probe("science", **ASKED)


async def test_the_states_hold_no_text_and_a_second_run_knows_nothing_of_the_first(
    engine: SearchEngine,
) -> None:
    graph = build_probe_graph(engine, Planted(likes_women), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    asked = probe_context(attribute="gender", protected="female", k=20)
    await graph.ainvoke({"query": "science"}, context=asked, config=config)
    state = (await graph.aget_state(config)).values
    kept = {name: value for name, value in state.items() if name not in ("result", "probe")}
    written = json.dumps(kept)
    assert "secret" not in written
    assert "Person" not in written
    again = await graph.ainvoke({"query": "science"}, context=asked, config=config)
    assert len(again["probe"]["pairwise"]["pairs"]) == len(state["probe"]["pairwise"]["pairs"])


async def test_the_steps_are_traced_and_answers_follow(
    engine: SearchEngine, tmp_path: Path
) -> None:
    search = FairSearch(engine, Planted(likes_women))
    path = tmp_path / "trace.jsonl"
    with record_to(path):
        await search.probe("science", **ASKED)
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    names = [span["name"] for span in spans if span["parent"] == spans[-1]["span"]]
    assert names[-1] == "fairqr.conclude"
    assert Counter(names)["fairqr.probe"] == 2 + 3
    assert "science" not in path.read_text()
    assert spans[-2]["attributes"]["fairqr.verdict"] == "favours_protected"


def test_the_synchronous_probe_is_the_same(engine: SearchEngine) -> None:
    with FairSearch.open(engine, Planted(likes_women)) as search:
        assert search.probe("science", **ASKED).status == "ok"
