"""What an answer shows, should show and could show of each group, and the same over all queries."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import special

from fairqr.evaluation.audit.exposures import Answer, AnswerFigures, Choices, measure_answer
from fairqr.evaluation.audit.figures import GroupFigures
from fairqr.evaluation.audit.verdicts import judge
from fairqr.retrieval.fairness.best_ranking import attainable_exposure, highest_exposure
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.divergence import kullback_leibler
from fairqr.retrieval.fairness.exposure import LOG2, FloatArray, exposure, normalise
from fairqr.retrieval.fairness.target import Target
from tests.unit.evaluation.audit.simulated import TWO, dimension, gather

POPULATION = "population:1"
MIXED = "uniform:0.5,relevance:0.5"
ALL = 1.0
"""However many queries are saturated, a gap counts as known."""


def members(letters: str, groups: str = "ab") -> FloatArray:
    """One row for each letter; '-' is a document without a label."""
    rows = [[float(letter == group) for group in groups] for letter in letters]
    return np.array(rows).reshape(len(letters), len(groups))


def shown(
    letters: str,
    relevance: ArrayLike | None = 1.0,
    k: int = 20,
    *,
    target: str = "relevance:1",
    groups: Dimension = TWO,
    answered: int = 100,
    relevance_is: str = "unknown",
    **more: Any,
) -> AnswerFigures:
    """Measure an answer whose groups are letters, and whose documents may be alike relevant."""
    told = None if relevance is None else np.zeros(len(letters)) + relevance
    rows = members(letters, "".join(groups.groups))
    answer = Answer(rows, min(answered, len(letters)), told, **more)
    choices = Choices(k=k, target=Target.parse(target), relevance=relevance_is)
    return measure_answer(answer, groups, choices)


def draws(
    count: int, bias: float, *, seed: int = 0, unlabelled: float = 0.0
) -> tuple[list[AnswerFigures], list[float]]:
    """Answers and their weights; of 40 relevant documents a quarter is 'a', which is held back."""
    random, found, weights = np.random.default_rng(seed), [], []
    for _ in range(count):
        is_a = random.random(40) < random.beta(2, 6)
        order = np.argsort(-(random.normal(size=40) - bias * is_a))
        letters = np.where(is_a, "a", "b")[order]
        letters[random.random(40) < unlabelled] = "-"
        weights.append(float(random.lognormal()))
        found.append(shown("".join(letters)))
    return found, weights


def raw_figures(*gathered: Any, seed: int = 1, tests: int = 1, **how: Any) -> list[GroupFigures]:
    """Before tests are corrected together."""
    return gather(*gathered, **how).figures(np.random.default_rng(seed), tests=tests)


def figures(*gathered: Any, **how: Any) -> list[GroupFigures]:
    return judge(raw_figures(*gathered, **how), ALL)


def completed(letters: str) -> Iterable[str]:
    """Give each document without a label to each group in turn."""
    for given_to in itertools.product("ab", repeat=letters.count("-")):
        turn = iter(given_to)
        yield "".join(next(turn) if letter == "-" else letter for letter in letters)


@pytest.mark.promise("audit")
def test_shares_counts_and_candidates_by_hand() -> None:
    """By judgements, nDCG and precision say how well each group is served."""
    found = shown("bab-ab", [1, 1, 0, 1, 1, 0], 3, answered=4)
    d = LOG2.weights(3)
    assert found.exposure.tolist() == pytest.approx([d[1] / d.sum(), (d[0] + d[2]) / d.sum()])
    assert found.target.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert found.shown.tolist() == [1, 2]
    assert found.selected.tolist() == [1, 1], "the second b is not relevant"
    assert found.candidates.tolist() == [2, 1]
    assert found.unknown.tolist() == [0, 0]
    assert np.isnan(found.ndcg).all(), "estimates say nothing of quality"
    # The first relevant 'a' stands at rank 2, and the other one is not shown; no 'b' is relevant.
    three = dimension("a", "b", "c")
    judged = shown("bab-ab", [0, 1, 0, 1, 1, 0], 3, groups=three, answered=4, is_judged=True)
    assert judged.ndcg.tolist() == pytest.approx([d[1] / d[:2].sum(), 0, 0])
    assert judged.has_relevant.tolist() == [1, 0, 0]


def test_documents_below_the_level_count_for_no_share() -> None:
    """The pool has more unlikely documents of 'a', which a search of its own has found."""
    relevance = np.array([0.9, 0.8, 0.6, 0.3, 0.3, 0.2]) / 2
    whole = shown("babaaa", relevance, 2, answered=3)
    assert whole.target.tolist() == pytest.approx([1.6 / 3.1, 1.5 / 3.1])
    found = shown("babaaa", relevance, 2, answered=3, level=0.275)
    assert found.target.tolist() == pytest.approx([0.8 / 2.3, 1.5 / 2.3])
    assert found.candidates.tolist() == pytest.approx([0.4, 0.75])
    assert found.selected.tolist() == pytest.approx([0.4, 0.45])
    # What is no candidate is not selected either, though it is shown.
    higher = shown("babaaa", relevance, 3, answered=3, level=0.35)
    assert higher.candidates.tolist() == higher.selected.tolist() == pytest.approx([0.4, 0.45])
    # Where not all relevant documents were looked at, the target by relevance is not known.
    for target in ("relevance:1", MIXED):
        cut = shown("babaaa", 0.9, 2, target=target, level=0.6)
        assert cut.exposure.tolist() == shown("babaaa", 0.9, 2).exposure.tolist()
        assert np.isnan([cut.target, cut.attainable, cut.candidates]).all()


def test_missing_labels_bound_exposure_and_target() -> None:
    letters, relevance = "a-b-ba-", [1, 1, 0, 1, 1, 1, 1]
    found = shown(letters, relevance, 4)
    possible = [shown(whole, relevance, 4) for whole in completed(letters)]
    for name in ("exposure", "target"):
        every = [getattr(it, name) for it in possible]
        assert getattr(found, f"{name}_low") == pytest.approx(np.min(every, axis=0))
        assert getattr(found, f"{name}_high") == pytest.approx(np.max(every, axis=0))
    # Relevant documents without labels are nobody's attainable exposure; else all would seem to
    # get more.
    bare = shown("ab-", [0.2, 0.2, 0.9], 2, target=POPULATION)
    assert np.isnan(bare.attainable).all()
    assert bare.attainable_low.tolist() == [0, 0]


@pytest.mark.parametrize("target", ["relevance:1", "uniform:1", MIXED])
def test_no_labels_give_a_gap_outside_of_the_bounds(target: str) -> None:
    random, checked = np.random.default_rng(0), 0
    for _ in range(60):
        letters, relevance = random.choice(["a", "b"], 10), random.random(10).round()
        letters[random.choice(10, random.integers(1, 5), replace=False)] = "-"
        seen = {"relevance": relevance, "k": 4, "target": target, "answered": 8}
        bounds = [it.gap_bounds for it in raw_figures([shown("".join(letters), **seen)])]
        low, high = np.array(bounds).T
        for whole in completed("".join(letters)):
            possible = gather([shown(whole, **seen)]).tested_gaps()[0][0]
            if not np.isnan(low + possible).any():
                assert (possible >= low - 1e-9).all()
                assert (possible <= high + 1e-9).all()
                checked += 1
    assert checked > 300


def test_the_attainable_is_nearest_the_target() -> None:
    """Up to what no exchange of ranks improves: .011 at most, in one case of a thousand.

    With fewer ranks than groups it is at least as near.
    """
    draw, far = np.random.default_rng(5), 0
    for _ in range(400):
        letters = "".join(draw.choice(list("abc"), draw.integers(1, 7)))
        target = normalise(draw.integers(1, 7, 3).astype(float))
        k, relevant = int(draw.integers(1, 5)), members(letters, "abc")
        rankings = itertools.permutations(range(len(letters)), min(k, len(letters)))
        every = np.array([exposure(relevant[list(ranking)]) for ranking in rankings])
        most, found = (
            highest_exposure(relevant, LOG2, k),
            attainable_exposure(relevant, target, LOG2, k),
        )
        assert most.tolist() == pytest.approx(every.max(axis=0).tolist())
        if (most >= target - 1e-9).all():
            assert found.tolist() == target.tolist()
            continue
        best = min(float(kullback_leibler(target, it)) for it in every)
        distance = float(kullback_leibler(target, found))
        if k < len(target):  # on average, rankings drawn at random come nearer
            assert distance <= best + 0.02
            continue
        assert distance == pytest.approx(best, abs=0.02)
        far += distance > best + 1e-6
    assert far <= 4


def test_without_relevance_nothing_is_attainable() -> None:
    found = shown("abbaab", None, 2, target=POPULATION)
    assert np.isnan(found.attainable).all()
    assert found.target.tolist() == [0.5, 0.5]
    assert (found.candidates.tolist(), found.selected.tolist()) == ([3, 3], [1, 1])
    nothing_further = shown("ab", None, 2)
    assert np.isnan([nothing_further.target, nothing_further.candidates]).all()
    # Of the same audit, other queries have candidates by relevance.
    assert np.isnan(shown("abbaab", None, 2, relevance_is="judged").candidates).all()


@pytest.mark.parametrize(
    ("letters", "relevance"),
    [("", []), ("--", [1.0, 1.0]), ("ab", [0.0, 0.0]), ("-a", [1.0, 0.0])],
)
def test_what_is_undefined_is_nan_and_never_0(letters: str, relevance: list[float]) -> None:
    found = shown(letters, relevance, 2)
    assert np.isnan([found.target, found.attainable]).all()
    assert np.isnan(found.exposure).all() == (not any(letter in "ab" for letter in letters))


def test_means_are_weighted() -> None:
    answers, weights = draws(30, 0.5)
    first, _ = figures(answers, weights)
    names = ("exposure", "target", "selected", "candidates")
    held = {name: np.array([getattr(it, name) for it in answers]) for name in names}
    lack = held["target"] - held["exposure"]
    assert first.exposure.value == pytest.approx(
        np.average(held["exposure"][:, 0], weights=weights)
    )
    assert first.exposure_gap.value == pytest.approx(np.average(lack[:, 0], weights=weights))
    rates = weights @ held["selected"] / (weights @ held["candidates"])
    assert first.selection_rate.value == pytest.approx(rates[0])
    assert first.impact_ratio.value == pytest.approx(rates[0] / rates[1])
    sums = held["selected"][:, 0].sum(), held["candidates"][:, 0].sum()
    assert (first.selected, first.candidates) == pytest.approx(sums)
    assert first.exposure.queries == 30
    # Queries that show nothing of known groups count for no exposure.
    gathered = gather(shown(letters, k=2) for letters in ("ab", "--", "ba"))
    first, _ = gathered.figures(np.random.default_rng(10))
    assert (first.exposure.queries, first.absent.queries) == (2, 2)
    assert gathered.unknown().value == pytest.approx(1 / 3)


@pytest.mark.promise("audit")
@pytest.mark.parametrize("target", ["relevance:1", POPULATION, MIXED])
def test_the_two_gaps_add_up_to_what_a_group_lacks(target: str) -> None:
    """What a ranking withholds and the unattainable exposure add up to what a group lacks.

    Those of one query are min(ε*, ε^s) − ε and max(0, ε* − max(ε, ε^s)).
    """
    random, answers = np.random.default_rng(3), []
    for _ in range(40):
        letters = "".join(random.choice(["a", "b"], size=25, p=[0.1, 0.9]))
        answers.append(shown(letters, random.random(25) < 0.7, 10, target=target))
        if np.isnan(answers[-1].attainable).any():
            continue
        columns = (answers[-1].exposure, answers[-1].target, answers[-1].attainable)
        for it, e, t, s in zip(raw_figures(answers[-1:]), *columns, strict=True):
            assert it.ranking_gap.value == pytest.approx(min(t, s) - e)
            assert it.unattainable.value == pytest.approx(max(0.0, t - max(e, s)), abs=1e-9)
    for it in figures(answers):
        lack = max(0.0, it.exposure_gap.value)
        withheld = max(0.0, it.ranking_gap.value)
        assert withheld + it.unattainable.value == pytest.approx(lack)
        assert it.unattainable.value >= 0


def ones_of_eight() -> list[AnswerFigures]:
    """One relevant document a query: 0 or 1 is attainable for each group; its target is a half."""
    random = np.random.default_rng(2)
    letters = ["".join(random.permutation(list("aaaabbbb"))) for _ in range(60)]
    return [shown(it, np.eye(8)[random.integers(8)], 6, target="uniform:1") for it in letters]


NEVER, ONCE = (
    shown(it, None, 10, target="kind=a:0.05,b:0.95") for it in ("b" * 20, "b" * 9 + "a" * 11)
)
LIKELY, UNLIKELY = (shown("bbbaab", it, 3, target=POPULATION) for it in (0.9, 0.3))
KNOWN = {"has_known_target": True}


@pytest.mark.promise("audit")
@pytest.mark.parametrize(
    ("answers", "how", "verdict", "tested"),
    [
        (draws(200, 0.5)[0], {}, "less", "ranking_gap"),
        (draws(5, 2.0)[0], {}, "too_few", "ranking_gap"),
        ([shown("bbabbb", None, 3, target=POPULATION)] * 40, {}, "less", "exposure_gap"),
        # What relevant documents of others could not take over is no excess.
        (ones_of_eight(), {}, "cannot_tell", "ranking_gap"),
        # A few large gaps among small ones of the same sign: the interval has 0.
        (
            [shown(it, k=10) for it in ("bbbbbbaaaaa", *["b" + "ab" * 5] * 8)],
            {},
            "undecided",
            "ranking_gap",
        ),
        # A few queries with an attainable exposure do not speak for all; most say it only by the
        # target.
        *(
            (
                [LIKELY] * n + [UNLIKELY] * (40 - n),
                {},
                "less",
                "ranking_gap" if n > 20 else "exposure_gap",
            )
            for n in (0, 6, 19, 21)
        ),
        # The target share of 'a' is one in twenty. Of 40 queries a tenth could show it alone, of
        # 150 not.
        ([NEVER] * 40, KNOWN, "undecided", "exposure_gap"),
        ([NEVER] * 39 + [ONCE], KNOWN, "undecided", "exposure_gap"),
        ([NEVER] * 150, KNOWN, "less", "exposure_gap"),
        ([NEVER] * 149 + [ONCE], KNOWN, "less", "exposure_gap"),
        # A test can be passed however many there are, or it is none; 7 queries give 1/64 at least.
        ([shown("bbbbbbaaaaaa", k=6)] * 7, {"tests": 3}, "undecided", "ranking_gap"),
        ([shown("bbbbbbaaaaaa", k=6)] * 40, {"tests": 2_000}, "less", "ranking_gap"),
        ([shown("bbbbbbaaaaaa", k=6)] * 7, {"tests": 10**15}, "too_few", "ranking_gap"),
        ([shown("bbbbbbaaaaaa", k=6)] * 40, {"tests": 10**15}, "too_few", "ranking_gap"),
    ],
)
def test_a_verdict_follows_from_what_all_queries_show(
    answers: list[AnswerFigures], how: dict[str, Any], verdict: str, tested: str
) -> None:
    """A verdict is about most of the queries; there is none within the interval, for few queries,
    where no data could pass the test, or where hardly any query shows a group, which is not
    acquitted either.
    """
    first, second = raw_figures(answers, **how)
    is_few = verdict == "too_few"
    assert (first.test.p is None) == is_few
    assert verdict == "cannot_tell" or (first.test.p or 0) * how.get("tests", 1) <= 0.05
    other = "exposure_gap" if tested == "ranking_gap" else "ranking_gap"
    assert getattr(first, other).p is None, "nothing is tested twice"
    assert first.test.queries == (
        len(answers) if tested == "exposure_gap" or first.known == 1 else 21
    )
    first, second = judge([first, second], ALL)
    assert (first.verdict, first.tested) == (verdict, tested)
    if tested == "ranking_gap":
        assert second.verdict == {"less": "more"}.get(verdict, verdict)
        # What one of two groups is withheld is the excess of the other.
        assert (second.excess.value, second.ranking_gap.p) == (
            pytest.approx(first.ranking_gap.value),
            first.ranking_gap.p,
        )
    elif answers[0] is not LIKELY:
        assert np.isnan([first.ranking_gap.value, first.unattainable.value]).all()
    if answers[0] is NEVER and answers[-1] is NEVER:
        assert first.exposure.high == pytest.approx(1 - 0.025 ** (1 / len(answers)))


@pytest.mark.promise("audit")
def test_without_a_bias_few_are_accused() -> None:
    """An engine without a bias is accused no more often than the level of the tests allows."""
    accused = sum(
        any(it.verdict in ("less", "more") for it in figures(*draws(30, 0.0, seed=seed)))
        for seed in range(60)
    )
    # At a level of .05 at most 8 of 60 are expected in 99 of 100 cases.
    assert accused <= 8


@pytest.mark.promise("audit")
def test_missing_labels_that_could_turn_a_verdict_are_named() -> None:
    """An audit says where missing labels could turn a verdict."""
    first, _ = figures(*draws(200, 0.5, unlabelled=0.2))
    low, high = first.gap_bounds
    assert low < 0 < first.ranking_gap.value < high
    assert (first.verdict, first.could_flip) == ("less", True)
    assert not figures(*draws(200, 0.5))[0].could_flip


@pytest.mark.promise("audit")
def test_what_the_error_of_an_estimate_could_make_is_no_verdict() -> None:
    """A gap within the error of the estimate is no verdict."""
    raw = raw_figures(*draws(200, 0.5))
    gap = raw[0].ranking_gap
    # With this bias at its worst, 95 of 100 gaps of this error are above 0.
    error = (gap.value - gap.low) / 1.96
    most = error * math.sqrt(special.chndtrinc((gap.value / error) ** 2, 1, 0.95))
    judged = [
        judge([dataclasses.replace(it, error=error) for it in raw], ALL)
        for error in (0.0, most - 1e-4, most + 1e-4, 1.0)
    ]
    sure, doubtful = ["less", "more"], ["within_relevance_error"] * 2
    assert [[it.verdict for it in of] for of in judged] == [sure, sure, doubtful, doubtful]
    assert judged[2][0].ranking_gap.low == pytest.approx(0, abs=1e-3)
    for it in itertools.chain(*judged):
        for name in ("target", "attainable", "unattainable"):
            found = getattr(it, name)
            assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.promise("audit")
def test_tests_are_corrected_for_all_groups_together() -> None:
    """Verdicts are corrected by Holm over all groups and attributes."""
    three = dimension("a", "b", "c")
    random = np.random.default_rng(6)
    drawn = ["".join(random.permutation(list("aaabbbccc"))) for _ in range(25)]
    raw = raw_figures((shown(it, k=3, groups=three) for it in drawn), groups=three, seed=7)
    both = judge([*raw, *[dataclasses.replace(it, attribute="other") for it in raw]], ALL)
    smallest = min(it.ranking_gap.p or 1.0 for it in raw)
    assert min(it.ranking_gap.p or 1.0 for it in both) == pytest.approx(min(1.0, 6 * smallest))


def test_a_constant_sample_is_not_certain() -> None:
    """A group that one query in twenty shows is in few samples of twelve, and lacks it not surely.

    The target is the same in all queries, so that it is certain, and nobody lacks more.
    """
    random = np.random.default_rng(5)
    seldom, never = (shown(it, k=3, target=POPULATION) for it in ("abbaaa", "bbbaaa"))
    truth = 0.5 - 0.05 * seldom.exposure[0]
    held = constant = 0
    for _ in range(200):
        is_shown = random.random(12) < 0.05
        it, _ = figures([seldom if it else never for it in is_shown], **KNOWN)
        assert (it.target.low, it.target.value, it.target.high) == (0.5, 0.5, 0.5)
        assert it.ranking_gap.high <= 0.5
        assert it.unattainable.high > 0, "all could be reached, and one of the others may"
        held += it.ranking_gap.low <= truth <= it.ranking_gap.high
        constant += not is_shown.any()
    assert held >= 0.93 * 200
    assert constant > 60


def test_the_lead_of_a_group_is_uncertain() -> None:
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


def test_ratios_need_enough_queries() -> None:
    never, _ = raw_figures([shown("bbab", k=2)] * 3)
    for ratio in (never.exposure_ratio, never.impact_ratio):
        assert ratio.value == 0
        assert np.isnan([ratio.low, ratio.high]).all()
    # A ratio of what is selected needs two queries that left something out.
    all_, none = (shown(it + "b" * 9, k=3) for it in ("ab", "bbba"))
    few, enough = (
        raw_figures([all_] * 20 + [none] * left, reference="b")[0].impact_ratio for left in (1, 2)
    )
    assert few.value > 1
    assert np.isnan(few.low)
    assert enough.low < enough.value < enough.high
    # What one group has by the other is the inverse of what the other has by it.
    found = {it: raw_figures(*draws(30, 0.5), reference=it) for it in "ab"}
    for name in ("exposure_ratio", "impact_ratio"):
        by_b, by_a = getattr(found["b"][0], name), getattr(found["a"][1], name)
        assert by_b.value < 1 < by_a.value == pytest.approx(1 / by_b.value)
        assert by_b.low < by_b.value < by_b.high
        assert by_a.low < by_a.value < by_a.high
        assert getattr(found["a"][0], name).value == getattr(found["b"][1], name).value == 1
