"""Pages that follow each other come from one list: complete, no document twice, each one fair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fairqr import FairSearch
from fairqr.agents.refiners.refiner import GroupRequest, Refinement
from fairqr.base.errors import InputError
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.search.context import METHODS, Context
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.exposure import exposure
from fairqr.retrieval.fairness.objective import RankingObjective
from fairqr.retrieval.fairness.relevance import relevance_by_rank
from tests.unit.engines import ranked
from tests.unit.graph.corpora import KnownRefiner
from tests.unit.graph.test_model_ranking import ByNumber

FEMALE = {"female": ["scholar"], "male": ["filler"]}
GENDER = {"attribute": "gender", "target": "population:1", "k": 7}


async def pages_from(search: FairSearch, **options: Any) -> list[SearchResult]:
    """All pages of a list, one request each, and the one after the last."""
    first = await search.search("science", **options)
    later = [
        await search.search("science", **options, page=page) for page in range(2, first.pages + 2)
    ]
    return [first, *later]


def ids_of(results: list[SearchResult]) -> list[str]:
    return [place.id for result in results for place in result.ranking]


@pytest.mark.promise("objective")
@pytest.mark.parametrize(
    "method", [name for name in METHODS if name not in ("deltr", "dlf", "monot5", "monobert")]
)
async def test_pages_are_complete_and_repeat_no_document(engine: SearchEngine, method: str) -> None:
    """Pages of a search are one list: complete, with no document twice.

    Whatever the method; two of the models that re-rank are a ranker of our own.
    """
    search = FairSearch(engine, KnownRefiner(FEMALE), ranker=ByNumber())
    pages = await pages_from(search, **GENDER, method=method, depth=100)
    *whole, last, beyond = pages
    assert whole
    assert all(len(result.ranking) == 7 for result in whole)
    assert 0 < len(last.ranking) <= 7
    ids = ids_of(pages)
    assert len(set(ids)) == len(ids)
    plain = await ranked(engine, "science", 100)
    assert set(ids) >= set(plain.ids)
    ranks = [place.rank for result in pages for place in result.ranking]
    assert ranks == list(range(1, len(ids) + 1))
    assert [result.page for result in pages] == list(range(1, len(pages) + 1))
    assert {result.pages for result in pages} == {len(pages) - 1}
    assert not beyond.ranking


@pytest.mark.promise("objective")
async def test_each_page_is_the_fair_list_of_what_earlier_pages_left(engine: SearchEngine) -> None:
    """Each page of a search is the fair list of what earlier pages left.

    Its figures are of it alone, and no exchange with what is left beats its bound.
    """
    pages = await pages_from(FairSearch(engine, "feedback"), **GENDER, ask="never")
    remaining = list((await ranked(engine, "science", 100)).ids)
    target = np.array(list(pages[0].target["gender"].values()))
    labels = {
        place.id: labels_of(place.groups["gender"]) for page in pages for place in page.ranking
    }

    for page in pages[:-1]:
        page_ids = [place.id for place in page.ranking]
        members = np.array([labels[id_] for id_ in remaining])
        objective = RankingObjective(
            relevance_by_rank(len(remaining)), [members], [target], 7, page.objective.weight
        )
        ranking = [remaining.index(id_) for id_ in page_ids]
        assert page.objective.value == pytest.approx(objective.quality(ranking).value)
        shares = list(page.exposure["gender"].values())
        assert shares == pytest.approx(exposure(members[ranking]))
        for outside in set(range(len(remaining))) - set(ranking):
            for rank in range(len(ranking)):
                exchanged = [*ranking[:rank], outside, *ranking[rank + 1 :]]
                assert objective.quality(exchanged).value <= page.objective.bound + 1e-9
        remaining = [id_ for id_ in remaining if id_ not in page_ids]
    assert not remaining


def labels_of(groups: Mapping[str, float]) -> list[float]:
    return [groups.get("female", 0.0), groups.get("male", 0.0)]


async def test_later_pages_are_fair_too_and_stand_beside_the_engines(engine: SearchEngine) -> None:
    """Twenty of sixty documents are women's, and the engine has them last."""
    pages = await pages_from(FairSearch(engine, "feedback"), **GENDER, ask="never")
    plain = (await ranked(engine, "science", 100)).ids
    for result in pages[1:4]:
        start = 7 * (result.page - 1)
        assert [place.id for place in result.baseline.ranking] == plain[start : start + 7]
        assert result.exposure["gender"]["female"] > 0.25
        assert result.objective.fairness > result.baseline.objective.fairness
        assert f"Page {result.page} of 9." in " ".join(result.explanation)


class AnswersOnce(KnownRefiner):
    """A refiner that gives no words when it is asked again."""

    async def refine(self, request: GroupRequest, deadline: float | None = None) -> Refinement:
        is_first = not self.asked
        refinement = await super().refine(request, deadline)
        return refinement if is_first else Refinement("empty")


async def test_a_model_that_would_answer_otherwise_is_not_asked_again(engine: SearchEngine) -> None:
    refiner = AnswersOnce(FEMALE)
    search = FairSearch(engine, refiner)
    options = {**GENDER, "ask": "always", "groups": "most", "max_iterations": 1}
    pages = await pages_from(search, **options)
    assert len(refiner.asked) == 1
    assert all(result.iterations == pages[0].iterations for result in pages)
    assert {result.usage.model_calls for result in pages[1:]} == {0}
    ids = ids_of(pages)
    assert len(set(ids)) == len(ids)
    first_page = pages[0]
    searched_again = await search.search("science", **options)
    assert len(refiner.asked) == 2
    assert searched_again.iterations != first_page.iterations


async def test_a_model_that_ranks_is_asked_once_for_all_pages(engine: SearchEngine) -> None:
    ranker = ByNumber()
    pages = await pages_from(FairSearch(engine, ranker=ranker), method="listwise", k=10)
    assert len(pages) == 7
    assert len(ranker.asked) == 1
    assert {result.ranker for result in pages} == {"by-number"}
    assert [result.usage.model_calls for result in pages[1:]] == [0] * 6


async def test_a_page_is_made_again_when_nothing_is_kept(engine: SearchEngine) -> None:
    """Another process, or after some minutes: without a model, it is the same."""
    pages = await pages_from(FairSearch(engine, "feedback"), **GENDER, ask="never")
    for page in (2, 3):
        search = FairSearch(engine, "feedback")
        alone = await search.search("science", **GENDER, ask="never", page=page)
        assert alone.ranking == pages[page - 1].ranking


@pytest.mark.promise("objective")
async def test_a_page_beyond_the_end_is_empty_and_says_so(engine: SearchEngine) -> None:
    """A page beyond the end is empty and says so."""
    search = FairSearch(engine, "feedback")
    beyond = await search.search("science", **GENDER, ask="never", page=1_000)
    assert (beyond.ranking, beyond.baseline.ranking, beyond.objective) == ([], [], None)
    assert "The list ends before page 1,000: it has 9 pages." in beyond.explanation


async def test_a_query_without_hits_has_no_pages(engine: SearchEngine) -> None:
    result = await FairSearch(engine, "feedback").search("zebra", k=7, page=2)

    assert (result.pages, result.ranking) == (0, [])


async def test_pages_are_counted_from_one(engine: SearchEngine) -> None:
    with pytest.raises(InputError, match="page"):
        await FairSearch(engine, "feedback").search("science", page=0)


async def test_a_stated_target_is_pursued_on_each_page(engine: SearchEngine) -> None:
    options = {"attribute": "gender", "target": "gender=female:0.5,male:0.5", "k": 4}
    pages = await pages_from(FairSearch(engine, "feedback"), **options, ask="never")
    for result in pages[:4]:
        assert result.exposure["gender"]["female"] == pytest.approx(0.5, abs=0.1)
    last = pages[-2]
    assert any("do not suffice for the target" in warning for warning in last.warnings)


def test_only_a_search_has_pages() -> None:
    with pytest.raises(InputError, match="only a search has pages"):
        AnswerContext(page=2)
    assert Context(page=2).page == 2


async def test_a_later_page_is_followed_by_its_own_steps_alone(engine: SearchEngine) -> None:
    search = FairSearch(engine, KnownRefiner(FEMALE))
    options = {**GENDER, "ask": "always", "max_iterations": 1}
    await search.search("science", **options)
    *steps, result = [event async for event in search.stream("science", **options, page=2)]
    assert [step.step for step in steps] == ["prepare", "rerank"]
    assert steps[0].round is None
    assert result.page == 2
    assert len(result.iterations) == 2
