"""How likely ranks are looked at, and the test of two arms, on users of whom the truth is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from fairqr.base.errors import InputError
from fairqr.evaluation.clicks import examination, sequential_difference

TRUE = np.array([1.0, 0.65, 0.45, 0.32, 0.25])
"""θ of the made users; log2 would give 1, .63, .5, .43, .39."""

RUNS = 1_000


class Seen(NamedTuple):
    """What made users saw and clicked; the arrays that :func:`examination` takes."""

    units: NDArray[np.intp]
    ranks: NDArray[np.intp]
    clicks: NDArray[np.bool_]
    clusters: NDArray[np.intp]


def clicked(
    rng: np.random.Generator, ranks: NDArray[np.intp], attraction: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Let users look at ranks and click what attracts them."""
    return rng.random(ranks.shape) < TRUE[ranks - 1] * attraction


def swapped(rng: np.random.Generator, lists: int = 4_000) -> Seen:
    """Let chance swap the first document with one further down in half of the lists.

    The engine puts what attracts first, so the mere shares of clicks are far from θ.
    """
    chosen = rng.integers(2, len(TRUE) + 1, lists)
    first = rng.beta(4, 4, lists)
    other = first * rng.beta(3, 3, lists)
    is_swapped = rng.random(lists) < 0.5
    attraction = np.column_stack(
        [np.where(is_swapped, other, first), np.where(is_swapped, first, other)]
    )
    ranks = np.column_stack([np.ones(lists, dtype=np.intp), chosen])
    clicks = clicked(rng, ranks, attraction)
    units = np.repeat(chosen, 2)
    return Seen(units, ranks.ravel(), clicks.ravel(), np.repeat(np.arange(lists), 2))


def moved(rng: np.random.Generator, documents: int = 150, times: int = 40) -> Seen:
    """Let documents stand at ranks that change by themselves, the better ones further up."""
    attraction = rng.beta(3, 4, documents)
    ranks = ranks_of(rng, attraction, times)
    clicks = clicked(rng, ranks, attraction[:, None])
    units = np.repeat(np.arange(documents), times)
    return Seen(units, ranks.ravel(), clicks.ravel(), units)


def ranks_of(
    rng: np.random.Generator, attraction: NDArray[np.float64], times: int
) -> NDArray[np.intp]:
    """Return the ranks of documents at so many times, one up or down by chance."""
    home = np.argsort(np.argsort(-attraction)) * len(TRUE) // len(attraction)
    moves = rng.integers(-1, 2, (len(attraction), times))
    return np.asarray(np.clip(home[:, None] + moves, 0, len(TRUE) - 1) + 1)


def bounds_of_swaps(lists: int = 4_000) -> NDArray[np.float64]:
    """Return the least standard error of log θ that an unbiased estimate of swaps can have.

    That of Cramér and Rao for Bernoulli clicks at the mean of θ·γ, if those at both ranks of a list
    do not depend on each other.
    """
    per_rank = lists / (len(TRUE) - 1)
    common = (0.5 + 0.25) / 2  # the mean attraction of both documents
    errors = [0.0]
    for theta in TRUE[1:]:
        odds = [(1 - p) / p for p in (common, common * theta)]
        errors.append(np.sqrt(sum(odds) / per_rank))
    return np.array(errors)


def bounds_of_moves(documents: int = 150, times: int = 40) -> NDArray[np.float64]:
    """Return the same of documents that move by themselves, each attracting as much as it does.

    The information on log θ is what is left of it once the attraction of each document is learnt,
    too; a look at p = θ·γ has p / (1 − p) of it.
    """
    rng = np.random.default_rng(64)
    attraction = rng.beta(3, 4, documents)
    ranks = ranks_of(rng, attraction, times)
    clicked_here = TRUE[ranks - 1] * attraction[:, None]
    known = np.zeros((documents, len(TRUE)))
    rows = np.repeat(np.arange(documents), times)
    np.add.at(known, (rows, ranks.ravel() - 1), (clicked_here / (1 - clicked_here)).ravel())
    shared = known / known.sum(axis=1, keepdims=True)
    information = np.diag(known.sum(axis=0)) - known.T @ shared
    return np.append(0.0, np.sqrt(np.diag(np.linalg.inv(information[1:, 1:]))))


def held(seen_of: object, runs: int = RUNS) -> tuple[NDArray[np.int_], NDArray[np.float64]]:
    """Return how often the interval of each rank holds θ, and the mean width of its logarithm."""
    inside = np.zeros(len(TRUE), dtype=int)
    widths = np.zeros(len(TRUE))
    for run in range(runs):
        seen: Seen = seen_of(np.random.default_rng([64, run]))  # type: ignore[operator]
        found = examination(seen.units, seen.ranks, seen.clicks, clusters=seen.clusters)
        assert found.ranks.tolist() == [1, 2, 3, 4, 5]
        inside += (found.low <= TRUE) & (found.high >= TRUE)
        widths += np.log(found.high / found.low) / runs
    return inside, widths


@pytest.mark.promise("service")
def test_swaps_find_the_discount_of_made_users() -> None:
    """Clicks on swapped lists give the discount of an audit; its intervals hold what is true as
    often as they say, and are nearly as narrow as theory allows.

    Its interval holds it as often as it says, and is nearly as narrow as theory allows.
    """
    inside, widths = held(swapped)
    assert ((inside[1:] >= 930) & (inside[1:] <= 975)).all(), inside
    least = 2 * 1.96 * bounds_of_swaps()
    assert (widths[1:] <= 1.5 * least[1:]).all(), widths / least


@pytest.mark.promise("service")
def test_documents_that_move_by_themselves_find_it_too() -> None:
    """Clicks give the discount of an audit also where documents move without our swaps."""
    inside, widths = held(moved)
    assert ((inside[1:] >= 930) & (inside[1:] <= 975)).all(), inside
    least = 2 * 1.96 * bounds_of_moves()
    assert (widths[1:] <= 1.5 * least[1:]).all(), widths / least


def test_mere_shares_of_clicks_do_not() -> None:
    """What the engine puts first attracts more, which is no matter of ranks."""
    rng = np.random.default_rng(64)
    attraction = np.sort(rng.beta(3, 4, (20_000, len(TRUE))))[:, ::-1]
    shares = clicked(rng, np.arange(1, 6) * np.ones((20_000, 1), dtype=np.intp), attraction)
    rates = shares.mean(axis=0)
    assert (np.abs(rates / rates[0] - TRUE)[1:] > 0.05).all()


def test_counts_say_the_same_as_single_lists() -> None:
    seen = moved(np.random.default_rng(1))
    single = examination(seen.units, seen.ranks, seen.clicks)
    keys = np.unique(np.column_stack([seen.units, seen.ranks]), axis=0)
    sums = []
    for unit, rank in keys:
        here = (seen.units == unit) & (seen.ranks == rank)
        sums.append((unit, rank, seen.clicks[here].sum(), here.sum()))
    units, ranks, clicks, shown = np.array(sums).T
    counted = examination(units, ranks, clicks, shown=shown)
    for name in ("values", "low", "high"):
        assert getattr(counted, name) == pytest.approx(getattr(single, name))


def test_two_ranks_by_hand() -> None:
    """Of equally many lists, θ is the ratio of clicks."""
    found = examination([0, 0], [1, 2], [80, 20], shown=[100, 100], clusters=[0, 1])
    assert found.values.tolist() == pytest.approx([1, 0.25])
    assert found.low[0] == found.high[0] == 1


@pytest.mark.parametrize(
    ("units", "ranks", "clicks", "said"),
    [
        ([0, 1], [1, 2], [1, 1], "links rank 2 with the first"),
        ([0, 0], [1, 2], [1, 0], "Nothing at rank 2 was clicked"),
        ([0, 0], [2, 3], [1, 1], "Nothing was shown at the first rank"),
        ([0, 0], [0, 1], [1, 1], "ranks from 1 on"),
        ([], [], [], "at least one observation"),
    ],
)
def test_what_cannot_be_estimated_is_an_error(
    units: list[int], ranks: list[int], clicks: list[int], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        examination(units, ranks, clicks)


def decisions(rates: tuple[float, float], seed: int, looks: range) -> list[str]:
    """Return what the test says each time that somebody looks."""
    rng = np.random.default_rng([seed, 64])
    size = looks[-1]
    fair = rng.random(size) < 0.3
    clicks = rng.random(size) < np.where(fair, rates[1], rates[0])
    return [
        sequential_difference(clicks[:n], fair[:n], share=0.3, margin=0.04).decision for n in looks
    ]


def test_looking_all_the_time_makes_no_false_alarms() -> None:
    """In at most 5 % of all trials is 0 ever outside, though one looks 60 times."""
    looks = range(100, 6_100, 100)
    alarms = sum("differs" in decisions((0.3, 0.3), seed, looks) for seed in range(300))
    assert alarms <= 0.05 * 300 + 3 * np.sqrt(300 * 0.05 * 0.95)


def test_a_true_difference_ends_the_trial_and_none_does_too() -> None:
    looks = range(500, 40_500, 500)
    ends = [decisions((0.3, 0.4), seed, looks) for seed in range(20)]
    assert all("differs" in found for found in ends)
    alike = [decisions((0.3, 0.3), seed, looks) for seed in range(20)]
    assert sum("alike" in found for found in alike) >= 18


def test_numbers_out_of_their_range_are_errors() -> None:
    for options in ({"share": 1.0, "margin": 0.1}, {"share": 0.5, "margin": 0.0}):
        with pytest.raises(InputError, match="The share lies between 0 and 1"):
            sequential_difference([1, 0], [True, False], **options)
    with pytest.raises(InputError, match="at least two"):
        sequential_difference([1], [True], share=0.5, margin=0.1)
