"""The measures of Fair RAG: against dictionaries and loops, against counting, and their identities.

Brute force here shares no code with what is tested: exposures are counted ranking by ranking, and
policies are enumerated where there are few documents.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.evaluation.expected_exposure import ExpectedExposure, expected_exposure
from fairqr.evaluation.rag.measures import Name, greatest_utilities, measure_record
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord
from fairqr.evaluation.scores import Reason, Undefined
from fairqr.retrieval.fairness.exposure import Discount

quick = settings(max_examples=60)


@st.composite
def drawn(draw: Any) -> tuple[list[tuple[int, ...]], list[bool], int]:
    """Give rankings of the first k of n documents, which are useful, and k."""
    n = draw(st.integers(1, 6))
    k = draw(st.integers(1, 7))
    orders = draw(st.lists(st.permutations(range(n)), min_size=1, max_size=6))
    useful = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return [tuple(order[: min(k, n)]) for order in orders], useful, k


def _machine_user(samples: Any, useful: Any, k: int) -> ExpectedExposure:
    return expected_exposure(samples, useful, Discount("top_k", k), k)


def _exposed(samples: Sequence[Sequence[int]], n: int) -> dict[int, float]:
    return {i: sum(i in sample for sample in samples) / len(samples) for i in range(n)}


def _target(useful: Sequence[bool], k: int) -> dict[int, float]:
    """Count the target over all orders that put the useful documents first."""
    n, best = len(useful), sum(useful)
    orders = [
        order for order in itertools.permutations(range(n)) if all(useful[i] for i in order[:best])
    ]
    return {i: sum(i in order[:k] for order in orders) / len(orders) for i in range(n)}


def _dot(one: dict[int, float], other: dict[int, float]) -> float:
    return sum(one[i] * other[i] for i in one)


def _record(
    samples: Sequence[Sequence[int]],
    useful: Sequence[bool],
    k: int,
    answers: Sequence[AnswerRecord] = (),
    **changes: Any,
) -> PolicyRecord:
    facts: dict[str, Any] = {
        "collection": "c",
        "generator": "g",
        "retriever": "r",
        "policy": "plackett-luce",
        "alpha": 1.0,
        "seed": 0,
        "query": "q",
    }
    return PolicyRecord(
        **(facts | changes),
        pool=tuple(f"d{i}" for i in range(len(useful))),
        useful=tuple(i for i, is_useful in enumerate(useful) if is_useful),
        k=k,
        samples=tuple(map(tuple, samples)),
        answers=tuple(answers),
    )


def _values(record: PolicyRecord, *others: PolicyRecord) -> dict[Name, Any]:
    return dict(measure_record(record, greatest_utilities([record, *others])).values)


@quick
@given(drawn())
def test_expected_exposure_is_what_counting_gives(
    case: tuple[list[tuple[int, ...]], list[bool], int],
) -> None:
    samples, useful, k = case
    n, m = len(useful), sum(useful)
    found, read = _values(_record(samples, useful, k)), min(k, n)
    exposed, target = _exposed(samples, n), _target(useful, read)
    squares = _dot(exposed, exposed)
    if k >= n:
        assert found[Name.EE_D] == Undefined(Reason.NO_ROOM)
    else:
        least = k * k / n
        assert found[Name.EE_D] == pytest.approx((squares - least) / (k - least), abs=1e-9)
        assert found[Name.EE_D_K] == pytest.approx(squares / k)
        assert -1e-9 <= found[Name.EE_D] <= 1 + 1e-9
    if m == 0 or m == n or k >= n:
        expected = (
            Reason.NO_RELEVANT if m == 0 else Reason.ALL_RELEVANT if m == n else Reason.NO_ROOM
        )
        for name in (Name.EE_R, Name.EE_R_FAIR_RAG, Name.EE_L):
            assert found[name] == Undefined(expected)
        return
    every = [
        _exposed([order[:k]], n) for order in itertools.permutations(range(n))
    ]  # fixed rankings are the corners of all policies
    reached = [_dot(one, target) for one in every]
    relevance = _dot(exposed, target)
    assert found[Name.EE_R] == pytest.approx(
        (relevance - min(reached)) / (max(reached) - min(reached)), abs=1e-9
    )
    useful_only = sum(exposed[i] * target[i] for i in exposed if useful[i])
    assert found[Name.EE_R_FAIR_RAG] == pytest.approx(useful_only / max(reached))
    worst = max(sum((one[i] - target[i]) ** 2 for i in one) for one in every)
    own = sum((exposed[i] - target[i]) ** 2 for i in exposed)
    assert found[Name.EE_L] == pytest.approx(own / worst, abs=1e-9)
    wasted = sum(exposed[i] for i in exposed if not useful[i]) / read
    assert found[Name.NOT_USEFUL] == pytest.approx(wasted)


def test_a_fixed_ranking_has_the_greatest_disparity() -> None:
    """The identity EE-D/k = 1, however often the ranking was drawn and whatever is useful."""
    for times in (1, 7):
        found = _values(_record([(3, 1)] * times, [True, False, True, False, False], 2))
        assert found[Name.EE_D_K] == pytest.approx(1)
        assert found[Name.EE_D] == pytest.approx(1)


@pytest.mark.parametrize(("n", "m", "k"), [(5, 2, 3), (5, 3, 2), (4, 1, 1), (5, 4, 2)])
def test_the_uniform_policy_is_even_and_has_the_relevance_of_chance(n: int, m: int, k: int) -> None:
    """All orders once: EE-D = k²/n and EE-R = k²/n, which is m/n by the paper where m ≥ k."""
    useful = [i < m for i in range(n)]
    samples = [order[:k] for order in itertools.permutations(range(n))]
    found = _values(_record(samples, useful, k))
    plain = _machine_user(samples, useful, k)
    assert found[Name.EE_D] == pytest.approx(0, abs=1e-12)
    assert found[Name.EE_D_K] == pytest.approx(k / n)
    assert plain.relevance == pytest.approx(k * k / n)
    assert found[Name.NOT_USEFUL] == pytest.approx((n - m) / n)
    if m >= k:
        assert found[Name.EE_R_FAIR_RAG] == pytest.approx(m / n)


@pytest.mark.parametrize(("n", "m", "k"), [(5, 2, 3), (5, 3, 2), (4, 1, 1), (5, 4, 2)])
def test_the_oracle_reaches_the_greatest_relevance_and_no_loss(n: int, m: int, k: int) -> None:
    useful = [i < m for i in range(n)]
    samples = [
        order[:k] for order in itertools.permutations(range(n)) if set(order[:m]) == set(range(m))
    ]
    found = _values(_record(samples, useful, k, policy="oracle", alpha=None, retriever=""))
    plain = _machine_user(samples, useful, k)
    upper = m + (k - m) ** 2 / (n - m) if m <= k else k * k / m
    assert plain.relevance == pytest.approx(upper)
    assert found[Name.EE_R] == pytest.approx(1)
    assert found[Name.EE_L] == pytest.approx(0, abs=1e-12)
    assert found[Name.NOT_USEFUL] == pytest.approx(max(0, k - m) / k)
    # As in the paper's code, non-useful documents give nothing, although the target has them.
    missing = (k - m) ** 2 / (n - m) / upper if m < k else 0.0
    assert found[Name.EE_R_FAIR_RAG] == pytest.approx(1 - missing)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0, 8.0])
def test_a_plackett_luce_policy_is_measured_as_its_probabilities_say(alpha: float) -> None:
    """Every order of five documents stands as often as its probability, to one in 20,000."""
    worths = [math.exp((1 + i / 4) ** alpha if alpha else 0.0) for i in range(5)]
    useful, k = [True, False, False, True, False], 2
    chances: dict[tuple[int, ...], float] = {}
    for order in itertools.permutations(range(5), k):
        chances[order] = math.prod(
            worths[i] / sum(worths[j] for j in range(5) if j not in order[:place])
            for place, i in enumerate(order)
        )
    exposed = {i: sum(p for order, p in chances.items() if i in order) for i in range(5)}
    samples = [order for order, p in chances.items() for _ in range(round(20_000 * p))]
    found = _machine_user(samples, useful, k)
    assert found.disparity == pytest.approx(_dot(exposed, exposed), abs=2e-3)
    assert found.relevance == pytest.approx(_dot(exposed, _target(useful, k)), abs=2e-3)


def test_disparity_grows_with_alpha() -> None:
    """What the small experiment has to show: the more random, the less disparity."""
    random = np.random.default_rng(5)
    scores = 1 + random.random(12)
    values = []
    for alpha in (0, 1, 2, 4, 8, 32):
        noise = random.gumbel(size=(400, 12))
        samples = np.argsort(-(scores**alpha + noise), axis=1)[:, :3]
        values.append(_values(_record(samples.tolist(), [True] * 4 + [False] * 8, 3))[Name.EE_D])
    assert values == sorted(values)
    assert values[0] < 0.02
    assert values[-1] > 0.9


@st.composite
def answered(draw: Any) -> tuple[list[AnswerRecord], list[bool], int]:
    """Give answers to distinct rankings with verdicts, some unknown."""
    n = draw(st.integers(2, 5))
    k = draw(st.integers(1, n))
    every = list(itertools.permutations(range(n), k))
    rankings = draw(st.lists(st.sampled_from(every), min_size=1, max_size=5, unique=True))
    verdict = st.sampled_from([True, False, False, None])
    answers = [
        AnswerRecord(
            ranking=ranking,
            times=draw(st.integers(1, 3)),
            status="ok",
            text="a",
            utility=draw(st.sampled_from([0.0, 0.25, 1.0])),
            used=tuple(draw(st.lists(verdict, min_size=k, max_size=k))),
        )
        for ranking in rankings
    ]
    useful = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return answers, useful, k


def _draws(answers: Sequence[AnswerRecord]) -> list[AnswerRecord]:
    return [answer for answer in answers for _ in range(answer.times)]


def _used(answer: AnswerRecord) -> set[int]:
    return {i for i, used in zip(answer.ranking, answer.used, strict=True) if used}


@quick
@given(answered())
def test_use_is_what_counting_gives(case: tuple[list[AnswerRecord], list[bool], int]) -> None:
    answers, useful, k = case
    draws = _draws(answers)
    n = len(useful)
    found = _values(_record([a.ranking for a in draws], useful, k, answers))
    assert found[Name.EU] == pytest.approx(sum(a.utility or 0 for a in draws) / len(draws))
    if all(used is None for answer in answers for used in answer.used):
        assert found[Name.EAR] == found[Name.EAE_D_K] == Undefined(Reason.NO_VERDICT)
        return
    rates = []
    for answer in draws:
        known = [used for used in answer.used if used is not None]
        if known:
            rates.append(sum(known) / len(known))
    assert found[Name.EAR] == pytest.approx(sum(rates) / len(rates))
    used = {i: sum(i in _used(answer) for answer in draws) / len(draws) for i in range(n)}
    squares = _dot(used, used)
    assert found[Name.EAE_D_K] == pytest.approx(squares / k)
    exposed = _exposed([answer.ranking for answer in draws], n)
    assert found[Name.EE_D_K_ANSWERED] == pytest.approx(_dot(exposed, exposed) / k)
    assert found[Name.EAE_D_K] <= found[Name.EE_D_K_ANSWERED] + 1e-12
    total = sum(used.values())
    if not total:
        assert found[Name.SHARE] == Undefined(Reason.NO_ATTRIBUTION)
        assert found[Name.USED_NOT_USEFUL] == Undefined(Reason.NO_ATTRIBUTION)
        return
    assert found[Name.SHARE] == pytest.approx(squares / total)
    assert 0 < found[Name.SHARE] <= 1 + 1e-12
    wasted = sum(value for i, value in used.items() if not useful[i])
    assert found[Name.USED_NOT_USEFUL] == pytest.approx(wasted / total)
    if all(verdict is not None for answer in answers for verdict in answer.used):
        assert total == pytest.approx(k * found[Name.EAR])


def test_answers_that_always_use_all_are_as_unequal_as_the_rankings() -> None:
    """Then EAR is 1, and EAE-D, the share and EE-D are the same."""
    answers = [
        AnswerRecord(ranking=r, times=t, status="ok", utility=1.0, used=(True, True))
        for r, t in (((0, 1), 2), ((1, 2), 1))
    ]
    found = _values(_record([(0, 1), (0, 1), (1, 2)], [True, True, False], 2, answers))
    assert found[Name.EAR] == 1
    assert found[Name.EAE_D_K] == pytest.approx(found[Name.EE_D_K])
    assert found[Name.SHARE] == pytest.approx(found[Name.EE_D_K])


def test_failed_generations_are_left_out_and_counted() -> None:
    answers = [
        AnswerRecord(ranking=(0,), times=3, status="ok", text="x", utility=0.5, used=(True,)),
        AnswerRecord(ranking=(1,), times=2, status="timeout"),
        AnswerRecord(ranking=(2,), times=1, status="empty", utility=0.0, used=(None,)),
    ]
    record = _record([(0,)] * 3 + [(1,)] * 2 + [(2,)] * 4, [True, False, False], 1, answers)
    cell = measure_record(record, greatest_utilities([record]))
    assert cell.values[Name.EU] == pytest.approx(3 * 0.5 / 4)
    # An empty answer used nothing, which needs no verdict.
    assert cell.values[Name.EAR] == pytest.approx(3 / 4)
    assert cell.counts == {
        "drawn": 9,
        "distinct": 3,
        "generated": 6,
        "failed": {"timeout": 2},
        "empty": 1,
        "pairs": 2,
        "unjudged": 0,
    }


def test_a_document_without_a_verdict_is_left_out_of_the_rate_and_counts_as_not_used() -> None:
    answer = AnswerRecord(ranking=(0, 1), times=1, status="ok", utility=1.0, used=(True, None))
    record = _record([(0, 1)], [True, True, False], 2, [answer])
    cell = measure_record(record, greatest_utilities([record]))
    assert cell.values[Name.EAR] == 1
    assert cell.values[Name.EAE_D_K] == pytest.approx(1 / 2)
    assert cell.values[Name.SHARE] == pytest.approx(1)
    assert cell.counts["unjudged"] == 1


def test_where_nothing_judges_an_empty_answer_has_no_verdict_either() -> None:
    answers = [
        AnswerRecord(ranking=(0,), times=1, status="ok", text="x", utility=1.0),
        AnswerRecord(ranking=(1,), times=1, status="empty", utility=0.0),
    ]
    found = _values(_record([(0,), (1,)], [True, False, False], 1, answers))
    assert found[Name.EU] == pytest.approx(0.5)
    assert found[Name.EAR] == found[Name.SHARE] == Undefined(Reason.NO_VERDICT)


@pytest.mark.parametrize("answers", [(), (("refused", None),)])
def test_without_answers_only_rankings_are_measured(answers: tuple[Any, ...]) -> None:
    made = [AnswerRecord(ranking=(0,), times=1, status=s, utility=u) for s, u in answers]
    found = _values(_record([(0,), (1,)], [True, False, False], 1, made))
    assert isinstance(found[Name.EE_D], float)
    for name in (Name.EU, Name.EU_MAX, Name.EAR, Name.SHARE):
        assert found[name] == Undefined(Reason.NO_ANSWER)


def test_a_record_of_nothing_has_a_reason_for_every_measure() -> None:
    record = _record([], [], 2, failure="The retriever failed.")
    found = _values(record)
    assert set(found) == set(Name)
    assert set(found.values()) == {Undefined(Reason.MISSING, "The retriever failed.")}


def _policy(utilities: Sequence[float], **changes: Any) -> PolicyRecord:
    answers = [
        AnswerRecord(ranking=(i,), times=1, status="ok", utility=u, used=(None,))
        for i, u in enumerate(utilities)
    ]
    samples = [(i,) for i in range(len(utilities))]
    return _record(samples, [True, True, False, False], 1, answers, **changes)


def test_the_greatest_utility_is_over_all_that_was_answered_or_as_the_code_has_it() -> None:
    mine = _policy([0.2, 0.4])
    others = [
        _policy([0.5], alpha=8.0),
        _policy([0.9], retriever="other"),
        _policy([0.7], policy="deterministic", alpha=None),
        _policy([0.6], policy="oracle", alpha=None, retriever=""),
        _policy([1.0], query="another"),
        _policy([1.0], generator="another"),
        _policy([1.0], collection="another"),
    ]
    found = _values(mine, *others)
    assert found[Name.EU_MAX] == pytest.approx(0.3 / 0.9)
    assert found[Name.EU_MAX_RETRIEVER] == pytest.approx(0.3 / 0.6)
    without_oracle = _values(mine, *others[:3])
    assert without_oracle[Name.EU_MAX_RETRIEVER] == pytest.approx(0.3 / 0.5)
    fixed = _values(others[2], mine, *others)
    assert fixed[Name.EU_MAX_RETRIEVER] == pytest.approx(0.7 / 0.6)


def test_a_query_where_nothing_was_worth_anything_is_typed_and_perfect_by_the_paper() -> None:
    found = _values(_policy([0.0, 0.0]), _policy([0.0], policy="oracle", alpha=None))
    assert found[Name.EU] == 0
    assert found[Name.EU_MAX] == Undefined(Reason.NO_UTILITY)
    assert found[Name.EU_MAX_RETRIEVER] == Undefined(Reason.NO_UTILITY)
    assert found[Name.EU_MAX_FAIR_RAG] == 1


def test_the_unbiased_disparity_is_right_on_average() -> None:
    """Uniform over four documents, k = 1, three samples, all enumerated.

    Its mean is that of the policy. The plain one is too high: by 1/3 after it is normalised.
    """
    plain, unbiased = [], []
    for sample in itertools.product(range(4), repeat=3):
        found = _machine_user([(i,) for i in sample], [True, False, False, False], 1)
        plain.append(found.score("disparity"))
        unbiased.append(found.score("disparity", unbiased=True))
    assert np.mean(np.array(unbiased, dtype=float)) == pytest.approx(0, abs=1e-12)
    assert np.mean(np.array(plain, dtype=float)) == pytest.approx(1 / 3)
    one = _machine_user([(0,)], [True, False], 1)
    assert one.score("disparity", unbiased=True) == Undefined(Reason.ONE_RANKING)
