"""The measures of Fair RAG: against loops, against counting, and their identities.

Brute force here shares no code with what is tested: exposures are counted ranking by ranking, and
policies are enumerated where there are few documents.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.base.errors import InputError
from fairqr.evaluation.rag import measured, measures, summaries, targets
from fairqr.evaluation.rag.measured import OF_GROUPS
from fairqr.evaluation.rag.measures import OF_ANSWERS, POLICY, Name
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord
from fairqr.evaluation.scores import Reason
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from tests.unit.evaluation.rag.small_rag import GROUPS, Made, made

quick = settings(max_examples=60)


@st.composite
def drawn(draw: Any) -> tuple[list[tuple[int, ...]], list[bool], int]:
    """Give rankings of the first k of n documents, which are useful, and k."""
    n = draw(st.integers(1, 6))
    k = draw(st.integers(1, 7))
    orders = draw(st.lists(st.permutations(range(n)), min_size=1, max_size=6))
    useful = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return [tuple(order[: min(k, n)]) for order in orders], useful, k


def _exposed(samples: Sequence[Collection[int]], n: int) -> FloatArray:
    return np.array([np.mean([i in sample for sample in samples]) for i in range(n)])


def _target(useful: Sequence[bool], k: int) -> FloatArray:
    """Count the target over all orders that put the useful documents first."""
    best, orders = sum(useful), itertools.permutations(range(len(useful)))
    first = [order[:k] for order in orders if all(useful[i] for i in order[:best])]
    return _exposed(first, len(useful))


def _record(
    samples: Any, useful: Sequence[bool], k: int, answers: Any = (), **changes: Any
) -> PolicyRecord:
    """A record of a pool of documents that are useful or not; by default of α = 1."""
    facts = {"collection": "c", "generator": "g", "retriever": "bm25", "query": "q", "seed": 0}
    facts |= {"policy": "plackett-luce", "alpha": 1.0, "k": k, "samples": samples}
    facts |= {"pool": [*map(str, range(len(useful)))], "useful": np.flatnonzero(useful).tolist()}
    return PolicyRecord.model_validate(facts | {"answers": answers} | changes)


def _values(record: PolicyRecord, *others: PolicyRecord) -> dict[Name, Any]:
    gains = np.isin(np.arange(len(record.pool)), record.useful).astype(float)
    return measures.measure_record(record, measures.greatest_utilities([record, *others]), gains)[0]


@pytest.mark.promise("evaluation")
@quick
@given(drawn())
def test_expected_exposure_is_what_counting_gives(
    case: tuple[list[tuple[int, ...]], list[bool], int],
) -> None:
    """Fair RAG's exposure is what counting over all rankings gives."""
    samples, useful, k = case
    n, m = len(useful), sum(useful)
    found, read = _values(_record(samples, useful, k)), min(k, n)
    exposed, target = _exposed(samples, n), _target(useful, read)
    if k >= n:
        assert found[Name.EE_D] == Reason.NO_ROOM
    else:
        least, squares = k * k / n, exposed @ exposed
        assert found[Name.EE_D] == pytest.approx((squares - least) / (k - least), abs=1e-9)
        assert found[Name.EE_D_K] == pytest.approx(squares / k)
    if m == 0 or m == n or k >= n:
        by_useful = {0: Reason.NO_RELEVANT, n: Reason.ALL_RELEVANT}
        expected = by_useful.get(m, Reason.NO_ROOM)
        for name in (Name.EE_R, Name.EE_R_FAIR_RAG, Name.EE_L):
            assert found[name] == expected
        return
    # Fixed rankings are the corners of all policies.
    every = np.array([_exposed([order[:k]], n) for order in itertools.permutations(range(n))])
    reached, worst = every @ target, ((every - target) ** 2).sum(axis=1).max()
    relevance = (exposed @ target - reached.min()) / np.ptp(reached)
    loss = ((exposed - target) ** 2).sum() / worst
    for name in (Name.EE_R, Name.EE_R_GRADED):
        assert found[name] == pytest.approx(relevance, abs=1e-9)
    for name in (Name.EE_L, Name.EE_L_GRADED):
        assert found[name] == pytest.approx(loss, abs=1e-9)
    useful_only = (exposed * target)[useful].sum()
    assert found[Name.EE_R_FAIR_RAG] == pytest.approx(useful_only / reached.max())
    assert found[Name.NOT_USEFUL] == pytest.approx(exposed[~np.array(useful)].sum() / read)


gained = st.lists(st.sampled_from([np.nan, -0.5, 0.0, 0.1, 0.25, 0.5, 1.0]), min_size=2, max_size=6)


@quick
@given(gained, st.integers(1, 6))
def test_graded_exposure_is_in_proportion_to_gain(gains: list[float], k: int) -> None:
    found, worth = targets.graded_target(gains, k), np.nan_to_num(np.maximum(gains, 0))
    assert found.sum() == pytest.approx(min(k, len(gains)))
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()
    for one, other in itertools.permutations(range(len(gains)), 2):
        if worth[one] > 0 and found[one] < 1 - 1e-9 and found[other] < 1 - 1e-9:
            assert found[other] == pytest.approx(found[one] * worth[other] / worth[one])
        if worth[one] == worth[other]:
            assert found[one] == pytest.approx(found[other])
        if worth[one] > worth[other]:
            assert found[one] >= found[other] - 1e-12


@quick
@given(gained, st.integers(1, 6))
def test_graded_scores_are_by_what_fixed_rankings_can_reach(gains: list[float], k: int) -> None:
    worth, target = np.array(gains), targets.graded_target(gains, k)
    places = min(k, len(gains))
    chosen = itertools.combinations(range(len(gains)), places)
    every = np.array([np.isin(np.arange(len(gains)), it) for it in chosen]).astype(float)
    reached, lost = every @ target, ((every - target) ** 2).sum(axis=1)
    if not (worth > 0).any() or np.ptp(reached) < 1e-9:
        reason = Reason.NO_ROOM if (worth > 0).any() else Reason.NO_RELEVANT
        assert [*measures.graded_scores(every[0], worth, k).values()] == [reason] * 2
        return
    for one, relevance, loss in zip(every, reached, lost, strict=True):
        relative = (relevance - reached.min()) / np.ptp(reached)
        expected = pytest.approx([relative, loss / lost.max()], abs=1e-9)
        assert [*measures.graded_scores(one, worth, k).values()] == expected


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


@pytest.mark.promise("evaluation")
@quick
@given(answered())
def test_use_is_what_counting_gives(case: tuple[list[AnswerRecord], list[bool], int]) -> None:
    """Fair RAG's measures of use are what counting over all answers gives."""
    answers, useful, k = case
    draws = [answer for answer in answers for _ in range(answer.times)]
    n = len(useful)
    found = _values(_record([a.ranking for a in draws], useful, k, answers))
    assert found[Name.EU] == pytest.approx(sum(a.utility or 0 for a in draws) / len(draws))
    if all(used is None for answer in answers for used in answer.used):
        assert found[Name.EAR] == found[Name.EAE_D_K] == Reason.NO_VERDICT
        return
    known = [[it for it in answer.used if it is not None] for answer in draws]
    assert found[Name.EAR] == pytest.approx(np.mean([np.mean(it) for it in known if it]))
    sets = [{i for i, it in zip(a.ranking, a.used, strict=True) if it} for a in draws]
    used = _exposed(sets, n)
    squares = used @ used
    assert found[Name.EAE_D_K] == pytest.approx(squares / k)
    exposed = _exposed([answer.ranking for answer in draws], n)
    assert found[Name.EE_D_K_ANSWERED] == pytest.approx(exposed @ exposed / k)
    assert found[Name.EAE_D_K] <= found[Name.EE_D_K_ANSWERED] + 1e-12
    total = used.sum()
    if not total:
        for name in (Name.SHARE, Name.EAE_D_NORMED, Name.USED_NOT_USEFUL):
            assert found[name] == Reason.NO_ATTRIBUTION
        return
    same_norm = used * k / total
    assert found[Name.EAE_D_NORMED] == pytest.approx(same_norm @ same_norm / k)
    assert k / n - 1e-12 <= found[Name.EAE_D_NORMED] <= k + 1e-12
    assert found[Name.SHARE] == pytest.approx(squares / total)
    assert 0 < found[Name.SHARE] <= 1 + 1e-12
    wasted = used[~np.array(useful)].sum()
    assert found[Name.USED_NOT_USEFUL] == pytest.approx(wasted / total)
    if all(verdict is not None for answer in answers for verdict in answer.used):
        assert total == pytest.approx(k * found[Name.EAR])


@quick
@given(answered())
def test_use_in_proportion_to_exposure_has_the_same_disparity(
    case: tuple[list[AnswerRecord], list[bool], int],
) -> None:
    """With both vectors of one norm, as the paper's footnote 6 says."""
    answers, useful, k = case
    all_used = [it.model_copy(update={"used": (True,) * k}) for it in answers]
    draws = [answer for answer in all_used for _ in range(answer.times)]
    found = _values(_record([it.ranking for it in draws], useful, k, all_used))
    assert found[Name.EAE_D_NORMED] == pytest.approx(found[Name.EE_D_K_ANSWERED])


@quick
@given(answered(), st.sampled_from(["log2", "rbp(0.8)", "trec"]))
def test_readers_who_lose_interest_expose_by_rank(
    case: tuple[list[AnswerRecord], list[bool], int], browsing: str
) -> None:
    """Counted document by document; the bounds are those of all fixed rankings."""
    answers, useful, k = case
    n = len(useful)
    reader = Discount.parse(browsing)
    attention = reader.weights(k)
    draws = [answer for answer in answers for _ in range(answer.times)]

    def exposed(rankings: Sequence[Sequence[int]], counts: Sequence[Sequence[Any]]) -> FloatArray:
        total = np.zeros(n)
        for ranking, marks in zip(rankings, counts, strict=True):
            for weight, document, mark in zip(attention, ranking, marks, strict=True):
                total[document] += weight * bool(mark)
        return total / len(rankings)

    rankings = [answer.ranking for answer in draws]
    record = _record(rankings, useful, k, answers)
    found, _ = measures.measure_record(
        record, measures.greatest_utilities([record]), np.zeros(n), reader
    )
    shown = exposed(rankings, [[True] * k] * len(rankings))
    squares = attention @ attention
    least = attention.sum() ** 2 / n
    if squares - least > 1e-9:
        assert found[Name.EE_D_K] == pytest.approx(shown @ shown / squares)
        expected = (shown @ shown - least) / (squares - least)
        assert found[Name.EE_D] == pytest.approx(expected, abs=1e-9)
    assert found[Name.EE_R_GRADED] == Reason.OTHER_READER
    used = exposed(rankings, [answer.used for answer in draws])
    if used.any():
        assert found[Name.EAE_D_K] == pytest.approx(used @ used / squares)
        same_norm = used * attention.sum() / used.sum()
        assert found[Name.EAE_D_NORMED] == pytest.approx(same_norm @ same_norm / squares)


def _answer(place: int, status: str = "ok", times: int = 1, **values: Any) -> AnswerRecord:
    return AnswerRecord(ranking=(place,), times=times, status=status, **values)


def test_failed_generations_are_left_out_and_counted() -> None:
    answers = [
        _answer(0, times=3, text="x", utility=0.5, used=(True,)),
        _answer(1, "refused", times=2),
        _answer(2, "empty", utility=0.0, used=(None,)),
    ]
    samples = [(0,)] * 3 + [(1,)] * 2 + [(2,)] * 4
    found = _values(_record(samples, [True, False, False], 1, answers))
    assert found[Name.EU] == pytest.approx(3 * 0.5 / 4)
    # An empty answer used nothing, which needs no verdict.
    assert found[Name.EAR] == pytest.approx(3 / 4)
    counts = {"drawn": 9, "distinct": 3, "generated": 6, "failed": {"refused": 2}}
    assert found.items() >= {**counts, "empty": 1, "pairs": 2, "unjudged": 0}.items()


def test_what_is_not_there_has_a_reason() -> None:
    """Without any answer, and with nothing drawn."""
    for answers in ([], [_answer(0, "refused")]):
        found = _values(_record([(0,), (1,)], [True, False, False], 1, answers))
        assert isinstance(found[Name.EE_D], float)
        reasons = {found[name] for name in (Name.EU, Name.EU_MAX, Name.EAR, Name.SHARE)}
        assert reasons == {Reason.NO_ANSWER}
    nothing = _values(_record([], [], 2, failure="The retriever failed."))
    assert {nothing[name] for name in Name} == {Reason.MISSING}


def _policy(utilities: Sequence[float], **changes: Any) -> PolicyRecord:
    answers = [_answer(i, utility=u, used=(None,)) for i, u in enumerate(utilities)]
    samples = [(i,) for i in range(len(utilities))]
    return _record(samples, [True, True, False, False], 1, answers, **changes)


def test_the_greatest_utility_is_over_all_that_was_answered() -> None:
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
    assert _values(mine, *others[:3])[Name.EU_MAX_RETRIEVER] == pytest.approx(0.3 / 0.5)
    assert _values(others[2], mine, *others)[Name.EU_MAX_RETRIEVER] == pytest.approx(0.7 / 0.6)


def test_worthless_queries_are_named_and_perfect_by_the_paper() -> None:
    found = _values(_policy([0.0, 0.0]), _policy([0.0], policy="oracle", alpha=None))
    nothing = Reason.NO_UTILITY
    assert [found[name] for name in OF_ANSWERS] == [0, nothing, nothing, 1]


@pytest.fixture(scope="module")
def run() -> Made:
    """Two seeds of one retriever."""
    return made(queries=7, alphas=[2], retrievers=["bm25"], generators=["small"], seeds=[0, 1])


def test_groups_get_what_their_documents_get(run: Made) -> None:
    """Exposure, target and use of the documents of each group, counted answer by answer."""
    measured, rows = run.measured(), []
    for record in (it for it in run.records if it.policy in ("plackett-luce", "oracle")):
        exposed = _exposed(record.samples, 6)
        target = _target([place in record.useful for place in range(6)], 2)
        answers = [answer for answer in record.answers for _ in range(answer.times)]
        used = [
            {place for place, is_used in zip(it.ranking, it.used, strict=True) if is_used}
            for it in answers
        ]
        policy = "oracle" if record.alpha is None else "α = 2"
        for group in ("female", "male", "unknown"):
            own = [place for place in range(6) if GROUPS.get("abcdef"[place], "unknown") == group]
            sums = (sum(of[place] for place in own) for of in (exposed, target, _exposed(used, 6)))
            rows.append((policy, record.query, record.seed, group, *sums))
    keys, names = ["policy", "query", "seed", "group"], ["exposure", "target", "attributed"]
    counted = pd.DataFrame(rows, columns=[*keys, *names]).set_index(keys)
    by_query = counted.groupby(["policy", "query", "group"]).mean()
    totals = by_query.groupby(["policy", "query"]).transform("sum")
    expected = (by_query / totals).groupby(["policy", "group"]).mean()
    shares = summaries.group_shares(measured.groups).set_index(["policy", "group"])
    found = shares.loc[expected.index]
    assert found[names].to_numpy() == pytest.approx(expected.to_numpy())
    assert set(found.queries) == {7}
    known = counted.drop("unknown", level="group")
    gaps = ((known.exposure - known.target) ** 2).groupby(["policy", "query", "seed"]).sum()
    means = summaries.means_of(measured.group_measures, POLICY, OF_GROUPS)
    by_name = means.set_index(["policy", "measure"])["mean"]
    for name, own in gaps.groupby("policy"):
        assert by_name[name, "EE-L by group"] == pytest.approx(own.mean())


# --- frames ---------------------------------------------------------------------------------------


def test_what_each_generator_labelled_is_counted(run: Made) -> None:
    with pytest.raises(InputError, match="no rankings yet"):
        measured.measure_fair_rag(run.manifest, [], run.collections)
    label = run.measured().frames["labels"].iloc[0].to_dict()
    numbers = {"labelled": 8, "kept": 7, "documents": 42, "unlabelled": 0, "useful": 17}
    assert label.items() >= (numbers | {"model_calls": 56, "useful_mean": 17 / 7}).items()
    assert label["dropped"] == {"fewer than 2 useful documents": 1}


def _frame(*rows: dict[str, Any]) -> Any:
    """The values of policies on queries; what a row does not say is missing."""
    facts = {"collection": "c", "generator": "g", "retriever": "r", "seed": 0}
    kind = {"kind": "plackett-luce", "policy": "α = 1"}
    return pd.DataFrame([dict.fromkeys(Name, np.nan) | facts | kind | row for row in rows])


def test_means_are_over_queries_with_seeds_averaged_first() -> None:
    rows = [{"query": "a", Name.EU: 0.0}, {"query": "a", Name.EU: 1.0, "seed": 1}]
    values = _frame(*rows, {"query": "b", Name.EU: 0.0}, {"query": "c"})
    worth, rate = summaries.means_of(values, ["generator"], [Name.EU, Name.EAR]).itertuples()
    assert (worth.measure, worth.mean, worth.queries, rate.queries) == ("EU", 0.25, 2, 0)
    assert np.isnan([worth.low, rate.mean]).all(), "two queries are too few for an interval"


def _curve(x: Any, y: Any) -> dict[str, float]:
    return summaries.curve_of(pd.DataFrame({"x": x, "y": y}, dtype=float))


def test_slope_and_area_of_points() -> None:
    """Those above each other are averaged for the area; alone they have neither."""
    points = np.random.default_rng(0).random((7, 2))
    found, (x, y) = _curve(*points.T), points[points[:, 0].argsort()].T
    assert found["slope"] == pytest.approx(np.polyfit(x, y, 1)[0])
    assert found["area"] == pytest.approx(np.diff(x) @ (y[1:] + y[:-1]) / 2)
    assert found["height"] == pytest.approx(found["area"] / np.ptp(x))
    assert (found["low"], found["high"], found["points"]) == (x[0], x[-1], 7)
    doubled = _curve([0.0, 0.5, 0.5, 1.0], [0.0, 0.2, 0.6, 1.0])
    assert doubled["area"] == pytest.approx(0.5 * 0.2 + 0.5 * 0.7)
    upright = _curve([0.5, 0.5], [0.2, 0.6])
    assert all(np.isnan(upright[name]) for name in ("slope", "area", "height"))
    assert (upright["low"], upright["points"], _curve([], [])["points"]) == (0.5, 2, 0)


def test_bins_include_their_lower_end() -> None:
    fixed = {"kind": "deterministic", "policy": "deterministic", Name.EE_D: 1.0}
    drawn_ = [("a", -1e-17, 0.4), ("a", 0.1, 0.2), ("b", 0.19, 1.0), ("a", 0.2, 0.9)]
    drawn_ += [("b", 0.6, 0.25), ("a", 0.999, 0.5), ("a", 1.0, 0.1)]
    drawn_ += [("b", np.nan, 0.1), ("no", 0.3, 0.1)]
    cells = _frame(
        {"query": "a", Name.EU_MAX: 0.5, **fixed},
        {"query": "b", Name.EU_MAX: 0.25, **fixed},
        {"query": "no", **fixed},
        *({"query": query, Name.EE_D: x, Name.EU_MAX: y} for query, x, y in drawn_),
        {"query": "a", Name.EE_D: 0.1, Name.EU_MAX: 1.0, "kind": "oracle"},
    )
    found = summaries.intervals_of(cells, Name.EE_D, Name.EU_MAX)
    assert found.deterministic.tolist() == pytest.approx([0.375] * 5)
    assert set(found.deterministic_queries) == {2}
    assert (set(found.fixed), set(found.left_out)) == ({1}, {2})
    assert found.pairs.tolist() == [3, 1, 0, 1, 1]
    assert found.queries.tolist() == [2, 1, 0, 1, 1]
    # The two of the query a are averaged first, for the difference and for the test.
    assert found.difference[0] == pytest.approx((-0.2 + 0.75) / 2)
    # Up to 16 queries all assignments are counted, so any stream gives the same.
    samples = [-0.2, 0.75], [0.4], [0.0], [0.0]
    alone = [paired_randomisation(sample, stream(0, "any")) for sample in samples]
    assert found.p.dropna().tolist() == pytest.approx(corrected_by_holm(alone))
    assert found[["difference", "p"]].isna().loc[2].all()
    for queries, holds in ((5, False), (6, True)):
        better = [{Name.EE_D: 0.5, Name.EU_MAX: 0.5}, {Name.EU_MAX: 0.0, **fixed}]
        rows = [{"query": f"q{i}", **it} for i in range(queries) for it in reversed(better)]
        assert summaries.intervals_of(_frame(*rows), Name.EE_D, Name.EU_MAX).holds.any() == holds
