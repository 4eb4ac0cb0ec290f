"""Probes as steps of the graph: models with a planted bias, and what cannot be told."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairqr import FairSearch, SearchResult, build_probe_graph, build_search_graph
from fairqr.base.errors import BudgetError, InputError, ModelUnavailableError, PromptError
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.probe.result import PairwiseProbe, ProbeResult
from fairqr.graph.search.context import Context
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import exposure_ratio
from tests.unit.agents.ranking.fakes import Planted
from tests.unit.graph.corpora import write_corpus

SCHEMA = """attributes:
  gender: {field: g, groups: [female, male], population: {female: 0.5, male: 0.5}}
  place: {field: p, groups: [north, south, east], population: {north: 0.4, south: 0.3, east: 0.3}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty people: every third is a woman, named Ms; two have no label; all live in the north."""
    documents = [
        {
            "id": f"p{at:02}",
            "title": f"{'Mr' if at % 3 else 'Ms'} Person-{at}",
            "text": "science " * (31 - at),
            "p": "north",
        }
        | ({} if at in (4, 5) else {"g": "male" if at % 3 else "female"})
        for at in range(30)
    ]
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, SCHEMA)


def number_in(title: str) -> int:
    return int(re.findall(r"Person-(\d+)", title)[0])


def likes_women(title: str, position: int, group: str) -> float:
    return float("Ms " in title)


GENDER_PROBE: dict[str, Any] = {"attribute": "gender", "protected": "female", "k": 30}


async def probed(engine: SearchEngine, model: Planted, **options: Any) -> ProbeResult:
    return await FairSearch(engine, model).probe("science", **{**GENDER_PROBE, **options})


@pytest.mark.parametrize("by", ["probabilities", "reply"])
async def test_a_model_that_prefers_a_group_is_found_out(engine: SearchEngine, by: str) -> None:
    """By pairs that share no document, asked about in both orders, and by lists."""
    model = Planted(likes_women)
    result = await probed(engine, model, by=by)
    assert (result.status, result.message, result.words) == ("ok", "", ("female", "male"))
    sides = Counter(document.side for document in result.documents)
    assert sides == {"protected": 10, "unprotected": 18, "undecided": 2}
    pairs, lists = result.pairwise, result.listwise
    assert pairs is not None
    assert lists is not None
    assert (pairs.status, pairs.verdict, pairs.asked_by) == ("ok", "favours_protected", by)
    assert (pairs.protected.count, pairs.protected.of) == (10, 10)
    assert (pairs.ratio, pairs.ratio_interval) == (None, None)
    assert pairs.p == pytest.approx(2 / 2**10)
    women = [int(pair.protected[1:]) for pair in pairs.pairs]
    men = [int(pair.unprotected[1:]) for pair in pairs.pairs]
    assert len({*women, *men}) == 20
    assert all(number % 3 == 0 for number in women)
    assert all(number % 3 > 0 for number in men)
    questions = [question.values for question in model.asked if "first" in question.values]
    compared = Counter(
        (number_in(values["first"]), number_in(values["second"])) for values in questions
    )
    both_orders = [*zip(women, men, strict=True), *zip(men, women, strict=True)]
    assert compared == Counter(both_orders)
    for pair in pairs.pairs:
        assert (pair.protected_first, pair.unprotected_first) == ("protected", "protected")
        if by == "probabilities":
            protected_first, unprotected_first = pair.log_odds
            assert (protected_first or 0) > 0 > (unprotected_first or 0)
    protected = {document.id for document in result.documents if document.side == "protected"}
    for order in lists.personas:
        assert (order.exposure_ratio or 0) > 1.3
        assert set(order.ids[:10]) == protected
    assert len(model.asked) == result.usage.model_calls == 20 + 3 * 2


async def compared(engine: SearchEngine, model: Planted, **options: Any) -> PairwiseProbe:
    """Probe a model by pairs alone."""
    result = await probed(engine, model, kinds=["pairwise"], **options)
    assert result.listwise is None
    assert result.pairwise is not None
    return result.pairwise


@pytest.mark.promise("evaluation")
async def test_what_is_found_of_a_model_is_what_it_goes_by(engine: SearchEngine) -> None:
    """A probe finds what a model goes by: a planted bias is told from a position."""
    pairs = await compared(engine, Planted(lambda text, position, group: -position))

    assert pairs.verdict == "position_decides"
    assert (pairs.flips.count, pairs.flips_to_first, pairs.answered) == (10, 10, 10)
    assert (pairs.ratio, pairs.p, pairs.detectable) == (None, None, None)


async def test_a_model_that_goes_by_numbers_prefers_nobody(engine: SearchEngine) -> None:
    pairs = await compared(engine, Planted(lambda title, *_: -(number_in(title) * 7919 % 31)))

    assert (pairs.verdict, pairs.flips.count) == ("no_preference_found", 0)
    assert pairs.protected.count + pairs.unprotected.count == 10


async def test_a_bias_in_too_few_pairs_says_nothing(engine: SearchEngine) -> None:
    pairs = await compared(engine, Planted(likes_women), pairs=4)

    assert pairs.verdict == "too_few"


@pytest.mark.parametrize(
    ("text", "status"),
    [("I am sorry, but I cannot help with that.", "refused"), ("A and B", "parse_error")],
)
async def test_a_model_that_does_not_answer_is_a_status(
    engine: SearchEngine, text: str, status: str
) -> None:
    result = await probed(engine, Planted(gives_probabilities=False, writes=text))
    pairs, lists = result.pairwise, result.listwise
    assert pairs is not None
    assert lists is not None
    assert (pairs.status, pairs.verdict, pairs.asked_by) == ("failed", "failed", "reply")
    assert pairs.failures == {status: 20}
    for order in lists.personas:
        assert (order.status, order.ids, order.exposure_ratio) == ("failed", [], None)
        assert sum(order.failures.values()) == order.asked == 2
    assert result.warnings


async def test_lists_are_ordered_for_each_persona_from_the_same_order(engine: SearchEngine) -> None:
    """This model ranks whom the word names first, and whoever stands first otherwise."""
    words = {"female": "Ms ", "male": "Mr "}
    model = Planted(
        lambda title, position, group: words[group] in title if group else -position / 100
    )
    result = await probed(engine, model, kinds=["listwise"], window=28)
    lists = result.listwise
    assert lists is not None
    neutral, unprotected, protected = lists.personas
    assert (neutral.words, unprotected.words, protected.words) == ("", "male", "female")
    assert (neutral.ids, neutral.exposure_ratio) == (lists.initial, lists.initial_ratio)
    for order in lists.personas:
        women = [int(id_[1:]) % 3 == 0 for id_ in order.ids]
        assert order.exposure_ratio == pytest.approx(exposure_ratio(women))
        assert sorted(order.ids) == sorted(lists.initial)
    assert (unprotected.exposure_ratio or 1) < 1 < (protected.exposure_ratio or 0)
    assert len(lists.initial) == 28
    assert not {"p04", "p05"} & set(lists.initial)  # of neither side


async def test_the_seed_alone_decides_what_is_asked(engine: SearchEngine) -> None:
    """Not how many questions are open at once."""
    results = []
    for seed, concurrency in ((3, 1), (3, 5), (4, 5)):
        search = FairSearch(engine, Planted(likes_women), concurrency=concurrency)
        result = await search.probe("science", **{**GENDER_PROBE, "seed": seed, "k": 20})
        results.append(result.model_dump(exclude={"usage"}))

    first, same_seed, other_seed = results
    assert same_seed == first
    assert first["pairwise"]["pairs"] != other_seed["pairwise"]["pairs"]
    assert (first["seed"], other_seed["seed"]) == (3, 4)


async def test_a_side_without_a_document_is_told_and_nothing_is_asked(engine: SearchEngine) -> None:
    model = Planted()
    result = await probed(engine, model, attribute="place", protected="south")
    assert result.status == "one_sided"
    assert "None of the 30 documents is south" in result.message
    assert (result.pairwise, result.listwise, model.asked) == (None, None, [])
    assert (result.words, result.protected_groups) == (("south", "non-south"), ["south"])


@pytest.mark.parametrize("more", [{}, {"method": "listwise", "final_step": "none"}])
async def test_the_search_that_is_probed_is_a_search_like_any_other(
    engine: SearchEngine, more: dict[str, Any]
) -> None:
    """Also where the model that is probed ranked it."""
    model = Planted(likes_women)
    query = {"query": "science"}
    context = ProbeContext.of(**{**GENDER_PROBE, **more, "depth": 12, "k": 20})
    state: Any = await build_probe_graph(engine, model).ainvoke(query, context=context)
    asked = {"method": "baseline", **more, "target": context.target}
    alone: Any = await build_search_graph(engine, model).ainvoke(
        query, context=Context.of(attribute="gender", k=20, **asked)
    )
    result = SearchResult(**state["result"])
    probe = ProbeResult(**state["probe"])

    assert {**state["result"], "usage": None} == {**alone["result"], "usage": None}
    assert [d.id for d in probe.documents] == [p.id for p in result.ranking[:12]]
    assert result.usage.model_calls == (2 if more else 0)
    assert probe.usage.model_calls == len(model.asked) - 2 * result.usage.model_calls
    assert "12 documents count as equally relevant" in probe.note
    if more:
        assert result.ranker == "listwise(planted, 20/10)"
        assert [p.title[:2] for p in result.ranking[:10]] == ["Ms"] * 10


CALLS = 10 * 2 + 1 + 3
"""How many calls a probe of 20 documents may take."""


async def test_the_budget_holds_for_the_probe_too(engine: SearchEngine) -> None:
    model = Planted(likes_women)

    with pytest.raises(BudgetError, match=f"may take {CALLS} model calls to probe 20 documents"):
        await probed(engine, model, k=20, budget={"model_calls": CALLS - 1})
    assert model.asked == []


async def test_a_probe_has_the_budget_that_its_search_leaves(engine: SearchEngine) -> None:
    model = Planted(likes_women)
    options: Any = {"method": "listwise", "budget": {"model_calls": CALLS}}
    result = await probed(engine, model, k=20, **options)

    assert (result.status, result.pairwise, len(model.asked)) == ("budget", None, 2)
    assert f"may take {CALLS} model calls, but only {CALLS - 2} of the" in result.message


async def test_questions_of_a_probe_have_the_budgets_deadline(engine: SearchEngine) -> None:
    model = Planted(likes_women)
    result = await probed(engine, model, k=20, budget={"model_calls": CALLS, "seconds": 60})

    assert result.status == "ok"
    assert model.deadlines
    assert all(deadline is not None and 0 < deadline <= 60 for deadline in model.deadlines)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"attribute": "age"}, InputError, "age"),
        ({"attributes": ["place"]}, InputError, "'gender', is not among 'attributes'; add it"),
        ({"protected": "nobody"}, InputError, "no group 'nobody'"),
        ({"personas": ["protected", "protected"]}, InputError, "each once"),
        ({"prompts": {"pairwise": "v9"}}, PromptError, "pairwise/v9"),
    ],
    ids=["attribute", "not searched", "group", "personas", "prompt"],
)
async def test_what_cannot_be_probed_is_refused(
    engine: SearchEngine, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        await probed(engine, Planted(), **options)


async def test_a_probe_needs_a_language_model(engine: SearchEngine) -> None:
    with pytest.raises(
        ModelUnavailableError, match="pairwise asks a language model, but none is given"
    ):
        await FairSearch(engine, "feedback").probe("science", **GENDER_PROBE)


async def test_a_probe_graph_needs_a_context_of_its_own(engine: SearchEngine) -> None:
    graph = build_probe_graph(engine, Planted())

    with pytest.raises(InputError, match="give the graph a ProbeContext"):
        await graph.ainvoke({"query": "science"}, context=Context.of(k=5))
