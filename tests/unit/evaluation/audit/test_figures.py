"""The figures of each group over all queries."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from scipy import special

from fairqr.agents.statistics import binomial_interval
from fairqr.evaluation.audit.exposures import Answer, AnswerFigures, Choices, measure_answer
from fairqr.evaluation.audit.figures import GroupFigures, QueryFigures, corrected
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.target import Target
from tests.unit.evaluation.audit.test_exposures import TWO, dimension, shown


def draws(
    count: int, lean: float, *, seed: int = 0, unlabelled: float = 0.0
) -> tuple[list[AnswerFigures], list[float]]:
    """Answers and their weights; of 40 relevant documents a quarter is 'a', which is held back."""
    random, found, weights = np.random.default_rng(seed), [], []
    for _ in range(count):
        is_a = random.random(40) < random.beta(2, 6)
        order = np.argsort(-(random.normal(size=40) - lean * is_a))
        letters = np.where(is_a, "a", "b")[order]
        letters[random.random(40) < unlabelled] = "-"
        weights.append(float(random.lognormal()))
        found.append(shown("".join(letters)))
    return found, weights


def gather(
    answers: Iterable[AnswerFigures],
    weights: Iterable[float] = itertools.repeat(1.0),
    groups: Dimension = TWO,
    **how: Any,
) -> QueryFigures:
    gathered = QueryFigures(groups, **how)
    for answer, weight in zip(answers, weights, strict=False):
        gathered.add(weight, answer)
    return gathered


def raw_figures(*gathered: Any, seed: int = 1, **how: Any) -> list[GroupFigures]:
    """Before tests are corrected together."""
    return gather(*gathered, **how).figures(np.random.default_rng(seed))


def figures(*gathered: Any, **how: Any) -> list[GroupFigures]:
    return corrected(raw_figures(*gathered, **how))


def test_means_are_weighted_and_rates_are_ratios_of_sums() -> None:
    answers, drawn = draws(30, 0.5)
    first, _ = figures(answers, drawn)
    weights = np.array(drawn)
    exposure = np.array([it.exposure[0] for it in answers])
    target = np.array([it.target[0] for it in answers])
    assert first.exposure.value == pytest.approx(np.average(exposure, weights=weights))
    assert first.lack.value == pytest.approx(np.average(target - exposure, weights=weights))
    selected = np.array([it.selected for it in answers])
    candidates = np.array([it.candidates for it in answers])
    rates = weights @ selected / (weights @ candidates)
    assert first.selection_rate.value == pytest.approx(rates[0])
    assert first.impact_ratio.value == pytest.approx(rates[0] / rates[1])
    assert (first.selected, first.candidates) == pytest.approx(
        (selected[:, 0].sum(), candidates[:, 0].sum())
    )
    assert first.exposure.queries == 30


@pytest.mark.parametrize("target", ["relevance:1", "population:1", "uniform:0.5,relevance:0.5"])
def test_the_two_gaps_add_up_to_what_a_group_lacks(target: str) -> None:
    """Those of one query are max(0, min(ε*, ε^s) − ε) and max(0, ε* − max(ε, ε^s))."""
    random, answers = np.random.default_rng(3), []
    for _ in range(40):
        letters = "".join(random.choice(["a", "b"], size=25, p=[0.1, 0.9]))
        answers.append(shown(letters, random.random(25) < 0.7, 10, target=target))
        if np.isnan(answers[-1].supply).any():
            continue
        columns = (answers[-1].exposure, answers[-1].target, answers[-1].supply)
        for it, e, t, s in zip(raw_figures(answers[-1:]), *columns, strict=True):
            assert it.ranking_gap.value == pytest.approx(max(0.0, min(t, s) - e))
            assert it.supply_gap.value == pytest.approx(max(0.0, t - max(e, s)), abs=1e-9)
    for it in figures(answers):
        lack = max(0.0, it.lack.value)
        assert it.ranking_gap.value + it.supply_gap.value == pytest.approx(lack)
        assert min(it.ranking_gap.value, it.supply_gap.value) >= 0


def test_a_planted_lean_is_found_and_its_size_held() -> None:
    first, second = figures(*draws(200, 0.5))
    truth = np.mean([it.target[0] - it.exposure[0] for it in draws(4000, 0.5, seed=9)[0]])
    assert (first.verdict, second.verdict) == ("less", "more")
    assert first.lean.low <= truth <= first.lean.high
    assert first.lean.p is not None
    assert first.lean.p < 0.001
    assert first.ranking_gap.p is None, "the lean is tested, and nothing twice"
    assert not first.flips


def test_without_a_lean_nobody_is_accused_more_often_than_said() -> None:
    accused = sum(
        any(it.verdict in ("less", "more") for it in figures(*draws(30, 0.0, seed=seed)))
        for seed in range(60)
    )
    # At a level of .05 at most 8 of 60 are expected in 99 of 100 cases.
    assert accused <= 8


def test_missing_labels_can_overturn_a_verdict_and_that_is_said() -> None:
    first, _ = figures(*draws(200, 0.5, unlabelled=0.2))
    assert first.verdict == "less"
    low, high = first.lean_bounds
    assert low < 0 < first.lean.value < high
    assert first.flips


@pytest.mark.parametrize("target", ["relevance:1", "uniform:1", "relevance:0.5,uniform:0.5"])
def test_no_labels_give_a_lean_outside_of_the_bounds(target: str) -> None:
    """By giving the unlabelled documents of many made-up answers to each group in turn."""
    random, checked = np.random.default_rng(0), 0
    for _ in range(60):
        letters, relevance = random.choice(["a", "b"], 10), random.random(10).round()
        missing = random.choice(10, random.integers(1, 5), replace=False)
        letters[missing] = "-"
        seen = {"relevance": relevance, "k": 4, "target": target, "answered": 8}
        low, high = np.array(
            [it.lean_bounds for it in raw_figures([shown("".join(letters), **seen)])]
        ).T
        for given_to in itertools.product("ab", repeat=len(missing)):
            letters[missing] = given_to
            possible = gather([shown("".join(letters), **seen)]).leans()[0][0]
            if not np.isnan(low + possible).any():
                assert (possible >= low - 1e-9).all()
                assert (possible <= high + 1e-9).all()
                checked += 1
    assert checked > 300


def test_what_the_error_of_an_estimate_could_make_is_no_verdict() -> None:
    raw = raw_figures(*draws(200, 0.5))
    lean = raw[0].lean
    # With this bias at its worst, 95 of 100 leans of this error are above 0.
    error = (lean.value - lean.low) / 1.96
    most = error * math.sqrt(special.chndtrinc((lean.value / error) ** 2, 1, 0.95))
    judged = [
        corrected([dataclasses.replace(it, error=error) for it in raw])
        for error in (0.0, most - 1e-4, most + 1e-4, 1.0)
    ]
    sure, doubtful = ["less", "more"], ["within_error"] * 2
    assert [[it.verdict for it in of] for of in judged] == [sure, sure, doubtful, doubtful]
    assert judged[2][0].lean.low == pytest.approx(0, abs=1e-3)
    for of in judged:
        for it in of:
            for name in ("target", "supply", "ranking_gap", "supply_gap"):
                found = getattr(it, name)
                assert 0 <= found.low <= found.value <= found.high <= 1


def test_nobody_gets_more_where_documents_for_the_target_are_missing() -> None:
    """One relevant document a query: each group's supply is 0 or 1, and its target a half."""
    random, answers = np.random.default_rng(2), []
    for _ in range(60):
        letters = "".join(random.permutation(list("aaaabbbb")))
        answers.append(shown(letters, np.eye(8)[random.integers(8)], 6, target="uniform:1"))
    for it in figures(answers):
        assert it.lean.high < 0
        assert it.excess.value < 0
        assert it.verdict == "cannot_tell"


def test_what_one_of_two_groups_is_withheld_is_the_excess_of_the_other() -> None:
    held = np.random.default_rng(2).integers(1, 4, size=30)
    first, second = figures(shown("b" * 10 + "a" * n, k=6, target="uniform:1") for n in held)
    assert (first.verdict, second.verdict) == ("less", "more")
    assert second.excess.value == pytest.approx(first.lean.value)
    assert second.lean.p == first.lean.p


def test_an_interval_with_0_gives_no_verdict() -> None:
    # A few large leans among small ones of the same sign: the test rejects, the interval has 0.
    answers = ["b" * 6 + "a" * 5, *["b" + "ab" * 5] * 8]
    raw = raw_figures(shown(it, k=10) for it in answers)
    assert all(it.lean.p is not None and it.lean.p < 0.01 for it in raw)
    assert all(it.lean.low < 0 < it.lean.high for it in raw)
    for error in (0.0, 0.04):
        found = corrected([dataclasses.replace(it, error=error) for it in raw])
        assert {it.verdict for it in found} == {"undecided"}


def test_what_no_query_shows_has_the_exact_interval_of_no_success() -> None:
    never, always = raw_figures([shown("b" * 10 + "a" * 10, k=10)] * 20, [3.0] * 20)
    exact = binomial_interval(0, 20)
    assert exact is not None
    for share in (never.exposure, never.selection_rate, always.absent):
        assert (share.value, share.low) == (0, 0)
        assert share.high == pytest.approx(exact.high)
    for share in (always.exposure, always.selection_rate, never.absent):
        assert (share.value, share.high) == (1, 1)
        assert share.low == pytest.approx(1 - exact.high)
    for ratio in (never.impact_ratio, never.exposure_ratio):
        assert (ratio.value, ratio.low) == (0, 0)
        assert ratio.high == pytest.approx(exact.high / (1 - exact.high)), "so may the other's be"


def test_what_all_queries_of_a_sample_show_may_not_hold_for_others() -> None:
    """A group that one query in twenty shows is in few samples of twelve, and lacks it not surely.

    The target is the same in all queries, so that it is certain, and nobody lacks more.
    """
    random = np.random.default_rng(5)
    seldom, never = (shown(it, k=3, target="population:1") for it in ("abbaaa", "bbbaaa"))
    truth = 0.5 - 0.05 * seldom.exposure[0]
    held = constant = 0
    for _ in range(200):
        is_shown = random.random(12) < 0.05
        answers = [seldom if it else never for it in is_shown]
        it, _ = figures(answers, has_known_target=True)
        assert (it.target.low, it.target.value, it.target.high) == (0.5, 0.5, 0.5)
        assert it.lean.high <= 0.5
        assert it.supply_gap.high > 0, "none lacks supply, and one of the others may"
        held += it.lean.low <= truth <= it.lean.high
        constant += not is_shown.any()
    assert held >= 0.93 * 200
    assert constant > 60


def test_a_population_is_of_groups_and_not_of_wrong_labels() -> None:
    """It is the target as it was stated, and what is left of a lean is that of right labels."""
    rows = {"a": {"a": 0.9, "b": 0.1}, "b": {"a": 0.3, "b": 0.7}}
    attribute = TWO.attribute.model_copy(
        update={"confusion": rows, "population": {"a": 0.2, "b": 0.8}}
    )
    groups = Dimension(attribute, (attribute,))
    choices = Choices(target=Target.parse("population:1"))
    # Half of what is shown is 'a'; a tenth of these have a wrong label, and three of ten 'b'.
    answer = measure_answer(Answer(np.tile([[0.6, 0.4]], (20, 1)), 20, None), groups, choices)
    it, _ = raw_figures([answer] * 20, groups=groups, has_known_target=True)
    assert (it.target.low, it.target.high) == pytest.approx((0.2, 0.2))
    assert (it.exposure.value, it.lack.value) == pytest.approx((0.5, -0.3))


def test_who_leads_by_chance_may_not_lead() -> None:
    """Its ratio is as uncertain as the lead; with all the same, no ratio of 1 is certain."""
    for drawn in (draws(30, 0.0), ([shown("ababab", k=6)] * 12,)):
        for name in ("exposure_ratio", "impact_ratio"):
            ratios = [getattr(it, name) for it in raw_figures(*drawn)]
            leader = max(ratios, key=lambda it: it.value)
            assert leader.value == 1
            assert leader.low != leader.high
    # Three of 'a' in three of 40 queries are all selected: that says little of how many would be.
    rare = [shown("abbbbb", k=3)] * 3 + [shown("bbbbbb", k=3)] * 37
    ratio = raw_figures(rare)[1].impact_ratio
    assert ratio.low < ratio.value < 0.8 < ratio.high


def test_a_ratio_of_what_is_selected_needs_two_queries_that_left_something_out() -> None:
    all_, none = (shown(it + "b" * 9, k=3) for it in ("ab", "bbba"))
    few, enough = (
        raw_figures([all_] * 20 + [none] * left, reference="b")[0].impact_ratio for left in (1, 2)
    )
    assert few.value > 1
    assert np.isnan(few.low)
    assert enough.low < enough.value < enough.high


def test_few_queries_tell_nothing() -> None:
    for it in figures(*draws(5, 2.0)):
        assert it.verdict == "too_few"
        assert it.lean.p is None
        assert np.isnan(it.lean.low)
    never, _ = raw_figures([shown("bbab", k=2)] * 3)
    for ratio in (never.exposure_ratio, never.impact_ratio):
        assert ratio.value == 0
        assert np.isnan([ratio.low, ratio.high]).all()


def test_ratios_are_to_a_group_that_was_chosen() -> None:
    """What one group has by the other is the inverse of what the other has by it."""
    found = {it: raw_figures(*draws(30, 0.5), reference=it) for it in "ab"}
    for name in ("exposure_ratio", "impact_ratio"):
        by_b, by_a = getattr(found["b"][0], name), getattr(found["a"][1], name)
        assert by_b.value < 1 < by_a.value
        assert 1 / by_b.value == pytest.approx(by_a.value)
        assert by_b.low < by_b.value < by_b.high
        assert by_a.low < by_a.value < by_a.high
        assert getattr(found["a"][0], name).value == getattr(found["b"][1], name).value == 1


def test_tests_are_corrected_for_all_groups_together() -> None:
    three = dimension("a", "b", "c")
    random = np.random.default_rng(6)
    drawn = ["".join(random.permutation(list("aaabbbccc"))) for _ in range(25)]
    raw = raw_figures((shown(it, k=3, groups=three) for it in drawn), groups=three, seed=7)
    both = corrected([*raw, *[dataclasses.replace(it, attribute="other") for it in raw]])
    smallest = min(it.lean.p or 1.0 for it in raw)
    assert min(it.lean.p or 1.0 for it in both) == pytest.approx(min(1.0, 6 * smallest))


def test_without_relevance_the_lack_is_tested_and_there_are_no_gaps() -> None:
    first, _ = figures([shown("bbabbb", None, 3, target="population:1")] * 40)
    assert first.tested == "lack"
    assert first.verdict == "less"
    assert np.isnan([first.lean.value, first.ranking_gap.value, first.supply_gap.value]).all()
    assert first.selection_rate.value == pytest.approx(1.0), "of what was answered beyond k"


@pytest.mark.parametrize("known", [0, 6, 19, 21])
def test_a_few_queries_with_a_supply_do_not_speak_for_all(known: int) -> None:
    """Everyone sees 'a' too little; most queries say it only by the target."""
    likely, unlikely = (shown("bbbaab", it, 3, target="population:1") for it in (0.9, 0.3))
    first, _ = figures([likely] * known + [unlikely] * (40 - known))
    assert (first.tested, first.verdict) == ("lean" if known > 20 else "lack", "less")
    assert first.test.queries == (known if known > 20 else 40)


@pytest.mark.parametrize(("queries", "tests"), [(7, 3), (40, 2_000)])
def test_a_test_can_be_passed_however_many_there_are_or_it_is_none(
    queries: int, tests: int
) -> None:
    """The least p value of 7 queries is 1/64: enough for three tests, and not for four."""
    gathered = gather([shown("bbbbbbaaaaaa", k=6)] * queries)
    first, _ = gathered.figures(np.random.default_rng(8), tests=tests)
    assert first.lean.p is not None
    assert first.lean.p * tests <= 0.05
    never, _ = corrected(gathered.figures(np.random.default_rng(8), tests=10**15))
    assert never.verdict == "too_few"


@pytest.mark.parametrize("times", [0, 1])
@pytest.mark.parametrize(("queries", "verdict"), [(40, "undecided"), (150, "less")])
def test_a_group_that_is_hardly_ever_shown_is_not_acquitted(
    queries: int, verdict: str, times: int
) -> None:
    """One in twenty is due to 'a'. Of 40 queries a tenth could show it alone, of 150 not."""
    never, once = (
        shown(it, None, 10, target="kind=a:0.05,b:0.95") for it in ("b" * 20, "b" * 9 + "a" * 11)
    )
    first, _ = figures([never] * (queries - times) + [once] * times, has_known_target=True)
    assert first.verdict == verdict
    assert times or first.exposure.high == pytest.approx(1 - 0.025 ** (1 / queries))


def test_queries_that_show_nothing_of_known_groups_count_for_no_exposure() -> None:
    gathered = gather(shown(letters, k=2) for letters in ("ab", "--", "ba"))
    first, _ = gathered.figures(np.random.default_rng(10))
    assert first.exposure.queries == 2
    assert first.absent.queries == 2
    assert gathered.unknown().value == pytest.approx(1 / 3)
