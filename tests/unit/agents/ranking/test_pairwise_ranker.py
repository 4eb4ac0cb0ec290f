"""Ranking by comparisons: the right order by an honest judge, and never more calls than said."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.models.replies import Choice, Usage
from fairqr.agents.ranking.item_ranker import Cost, RankItem
from fairqr.agents.ranking.pairwise import PairwiseJudge
from fairqr.agents.ranking.pairwise_ranker import PairwiseRanker, Strategy, most_comparisons
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.prompts.library import PromptLibrary
from tests.unit.agents.ranking.weighing_model import WeighingModel

PROMPT = PromptLibrary().get("pairwise", "v1")
STRATEGIES: tuple[Strategy, ...] = ("all", "sorting", "sliding")

orders = st.integers(0, 9).flatmap(lambda n: st.permutations(range(n)))
passes = st.integers(1, 11)


def items(values: list[int]) -> list[RankItem]:
    """Each with its value as the title; the greater the better."""
    return [RankItem(str(place), str(value), "") for place, value in enumerate(values)]


def honest(first: str, second: str) -> float:
    return float(int(first) - int(second))


def ranker(model: WeighingModel, strategy: Strategy, **more: int) -> PairwiseRanker:
    return PairwiseRanker(PairwiseJudge(model, PROMPT), strategy=strategy, **more)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40)
@given(values=orders, passes=passes)
async def test_an_honest_judge_gives_the_right_order(
    strategy: Strategy, values: list[int], passes: int
) -> None:
    """Of all places; after passes, of as many top places as there were."""
    model = WeighingModel(honest)
    each = ranker(model, strategy, passes=passes)
    found = await each.rank("q", items(values))
    ranked = [values[place] for place in found.order]
    right = passes if strategy == "sliding" else len(values)
    assert ranked[:right] == sorted(values, reverse=True)[:right]
    assert sorted(found.order) == list(range(len(values)))
    assert found.failures == {}
    assert len(model.asked) == 2 * found.asked == found.usage.model_calls
    assert len(model.asked) <= each.cost("q", items(values)).calls


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40)
@given(values=orders, passes=passes, seed=st.integers(0, 5))
async def test_whatever_a_judge_says_the_calls_keep_to_the_bound(
    strategy: Strategy, values: list[int], passes: int, seed: int
) -> None:
    """One that contradicts itself, and fails at times: each item is there once."""
    draws = random.Random(seed)
    model = WeighingModel(lambda first, second: draws.choice([-1.0, 0.0, 1.0]))
    each = ranker(model, strategy, passes=passes)
    found = await each.rank("q", items(values))
    assert sorted(found.order) == list(range(len(values)))
    assert len(model.asked) == 2 * found.asked
    assert len(model.asked) <= each.cost("q", items(values)).calls
    if strategy == "all":
        assert len(model.asked) == each.cost("q", items(values)).calls


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "odds", [lambda first, second: 5.0, lambda first, second: -5.0, lambda first, second: 0.0]
)
async def test_where_only_the_place_decides_the_order_stays(
    strategy: Strategy, odds: Callable[[str, str], float]
) -> None:
    found = await ranker(WeighingModel(odds), strategy).rank("q", items([3, 1, 4, 1, 5, 9, 2]))
    assert found.order == tuple(range(7))
    assert found.failures == {}
    if odds("", ""):
        (warning,) = found.warnings
        assert f"{found.asked} of {found.asked} comparisons changed with the order" in warning
    else:
        assert found.warnings == ()


@given(st.integers(0, 300), st.integers(1, 20))
def test_the_bounds_are_the_known_ones(n: int, passes: int) -> None:
    """n(n−1)/2; n⌈ld n⌉ − 2^⌈ld n⌉ + 1 of merge sort; and the sum over the passes."""
    depth = max(n - 1, 0).bit_length()
    assert most_comparisons(n, "all", passes) == n * (n - 1) // 2
    assert most_comparisons(n, "sorting", passes) == (n * depth - 2**depth + 1 if n else 0)
    expected = sum(max(0, n - 1 - done) for done in range(passes))
    assert most_comparisons(n, "sliding", passes) == expected


async def test_the_bound_of_sorting_is_reached() -> None:
    """It is no looser than it must be."""
    reached = 0
    draws = random.Random(3)
    for _ in range(100):
        values = draws.sample(range(6), 6)
        reached = max(
            reached, (await ranker(WeighingModel(honest), "sorting").rank("q", items(values))).asked
        )
    assert reached == most_comparisons(6, "sorting", 1)


async def test_scores_are_wins() -> None:
    """½ for a pair that nobody wins; equal scores keep the order."""
    model = WeighingModel(
        lambda first, second: 0.0 if {first, second} == {"1", "2"} else honest(first, second)
    )
    found = await ranker(model, "all").rank("q", items([1, 0, 2, 3]))
    assert found.scores == (1.5, 0.0, 1.5, 3.0)
    assert found.order == (3, 0, 2, 1)


async def test_comparisons_run_at_once_up_to_the_limit() -> None:
    model = WeighingModel(honest)
    each = ranker(model, "all", concurrency=3)
    await each.rank("q", items([1, 2, 3, 4, 5, 6]))
    assert model.most_at_once == 6  # two questions each
    wide = WeighingModel(honest)
    await ranker(wide, "all", concurrency=20).rank("q", items([1, 2, 3, 4, 5, 6]))
    assert wide.most_at_once == 29  # all of 15 pairs but the first question, which is alone


async def test_a_pair_is_asked_about_once() -> None:
    """Later passes meet pairs again."""
    model = WeighingModel(honest)
    await ranker(model, "sliding", passes=9).rank("q", items([1, 2, 3, 4, 5, 6, 7]))
    shown = [(values["first"], values["second"]) for _, values, _ in model.asked]
    assert len(set(shown)) == len(shown)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_failures_are_counted_and_leave_the_order(strategy: Strategy) -> None:
    model = WeighingModel(choice=Choice("refused", message="No.", usage=Usage(1)))
    found = await ranker(model, strategy).rank("q", items([1, 2, 3, 4]))
    assert found.order == (0, 1, 2, 3)
    assert found.failures == {"refused": found.asked}
    assert found.failed


async def test_after_the_deadline_nothing_is_asked() -> None:
    model = WeighingModel(honest)
    found = await ranker(model, "all").rank("q", items([1, 2, 3]), deadline=0)
    assert model.asked == []
    assert (found.order, found.failures, found.asked) == ((0, 1, 2), {"timeout": 3}, 3)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("values", [[], [7]])
async def test_fewer_than_two_items_cost_nothing(strategy: Strategy, values: list[int]) -> None:
    each = ranker(WeighingModel(honest), strategy)
    found = await each.rank("q", items(values))
    assert (found.order, found.asked) == (tuple(range(len(values))), 0)
    assert not found.failed
    assert each.cost("q", items(values)) == Cost()


def test_the_tokens_are_those_of_the_longest_items() -> None:
    each = ranker(WeighingModel(honest), "all")
    long = [RankItem("a", "word " * 50, ""), RankItem("b", "word " * 50, "")]
    alone = each.cost("q", long)
    assert alone.calls == 2
    more = each.cost("q", [*items([1]), *long])
    assert (more.calls, more.tokens) == (6, 3 * alone.tokens)


async def test_names_and_the_start() -> None:
    model = WeighingModel(honest)
    assert ranker(model, "sorting").name == "pairwise(test:weighing, sorting)"
    assert ranker(model, "all").name == "pairwise(test:weighing, all)"
    assert ranker(model, "sliding", passes=3).name == "pairwise(test:weighing, sliding 3)"
    await ranker(model, "all").start()
    assert model.started == ["choice"]


async def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"no strategy 'bogo'.*choose all, sorting, sliding"):
        ranker(WeighingModel(honest), "bogo")  # type: ignore[arg-type]
    for parameter in ("passes", "concurrency"):
        with pytest.raises(InputError, match="must be at least 1"):
            ranker(WeighingModel(honest), "all", **{parameter: 0})
    with pytest.raises(ModelUnavailableError, match="is not there"):
        await ranker(WeighingModel(missing=True), "sorting").rank("q", items([1, 2, 3]))
