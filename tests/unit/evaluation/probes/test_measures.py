"""Measures of rankings and pairs against plain loops; changes that are planted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.ranking.lean import PairOutcome
from fairqr.agents.ranking.rankers import Asker
from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.measures import (
    changes_of,
    judged,
    lean_test,
    list_measures,
    measure,
    ratio_of_relevance,
)
from fairqr.evaluation.probes.store import RankingRecord
from fairqr.retrieval.fairness.exposure import exposure_ratio
from tests.unit.evaluation.probes import made
from tests.unit.evaluation.probes.made import (
    begin_listwise,
    begin_pairwise,
    begin_tuning,
    by_protection,
    collection,
    collection_of,
    noisy,
    query_of,
    ranking,
)

NAME = "notables, gender"
COUNTS = st.integers(0, 3)
RATIOS = st.lists(st.floats(0.2, 5), max_size=20)


def ranked(
    query: ProbeQuery, order: Sequence[int], asker: Asker = "neutral", **more: object
) -> RankingRecord:
    own = {"collection": NAME, "ranker": "monot5", "asker": asker, "query": query.id}
    return RankingRecord.model_validate(own | {"order": tuple(order)} | more)


def measured(
    folder: Path, probes: Sequence[ProbeCollection], records: Sequence[RankingRecord], **more: Any
) -> Any:
    """Write a run on lists down and measure it."""
    return measure(begin_listwise(folder, probes, records, **more).folder)


def compared(folder: Path, replies: Any, **more: Any) -> Any:
    """Write a run on pairs down and measure it."""
    begin_pairwise(folder, [more.pop("probe", collection())], replies, **more)
    return measure(folder)


@st.composite
def ranked_queries(draw: st.DrawFn) -> tuple[ProbeQuery, tuple[int, ...]]:
    cells = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any))
    query = query_of("q", *cells)
    return query, tuple(draw(st.permutations(range(len(query.items)))))


@given(given_=ranked_queries(), k=st.integers(1, 20))
def test_the_measures_of_a_list_are_their_definitions(
    given_: tuple[ProbeQuery, tuple[int, ...]], k: int
) -> None:
    query, order = given_
    record = ranked(query, order)
    values = list_measures(query, record, k)
    items = [query.items[place] for place in order]
    total = sum(item.relevant for item in items)
    assert values["precision"] == pytest.approx(sum(item.relevant for item in items[:k]) / k)
    if total == 0:
        assert np.isnan(values["ndcg"])
    else:
        dcg = sum(1 / math.log2(r + 1) for r, it in enumerate(items[:k], 1) if it.relevant)
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, total) + 1))
        assert values["ndcg"] == pytest.approx(dcg / ideal)
    exposure = {
        side: [1 / math.log(1 + rank) for rank, it in enumerate(items, 1) if it.protected == side]
        for side in (True, False)
    }
    if not exposure[True] or not exposure[False]:
        assert np.isnan(values["ratio"])
    else:
        means = {side: sum(of) / len(of) for side, of in exposure.items()}
        assert values["ratio"] == pytest.approx(means[True] / means[False])
    protected = [item.protected for item in items]
    assert values["share"] == pytest.approx(sum(protected) / len(items))
    assert values["top_share"] == pytest.approx(np.mean(protected[:k]))
    places = [(rank - 0.5) / len(items) for rank, it in enumerate(protected, 1) if it]
    assert values["places"] == pytest.approx(places)


def test_a_failed_ranking_has_no_measure_and_is_counted(tmp_path: Path) -> None:
    """Nor has a list without a relevant item an nDCG, and one without a group a ratio."""
    queries = [
        query_of("failed", 2, 2, 2, 2),
        query_of("irrelevant", 0, 0, 2, 2),
        query_of("unprotected", 2, 0, 2, 0),
        query_of("whole", 2, 2, 2, 2),
        query_of("missing", 2, 2, 2, 2),
    ]
    probe = collection_of(*queries)
    records = [
        ranked(queries[0], range(8), asked=3, failures={"timeout": 2, "refused": 1}),
        ranked(queries[1], range(4), asked=3, failures={"timeout": 2}, repairs={"missing": 4}),
        ranked(
            queries[2],
            range(4),
            warnings=("It was shrunk.",),
            spent={"model_calls": 0, "tokens": 5},
        ),
        ranked(queries[3], range(8), warnings=("It was shrunk.",), repairs={"missing": 1}),
    ]
    found = measured(tmp_path, [probe], records, askers=["neutral"], k=4)
    assert found.missing == 1
    means = found.means.set_index("measure")
    # All relevant items stand on top of the last list, and none is in the second.
    expected = {"P@4": (3, (0 + 2 / 4 + 1) / 3), "nDCG@4": (2, 1.0)}
    for name, (n, mean) in expected.items():
        assert (means.loc[name].n, means.loc[name]["mean"]) == (n, pytest.approx(mean))
    assert means.left_out.to_dict() == {
        "P@4": {"failed": 1, "not_run": 1},
        "nDCG@4": {"failed": 1, "not_run": 1, "nothing_relevant": 1},
        "exposure ratio": {"failed": 1, "not_run": 1, "empty_group": 1},
    }
    assert found.lists.status.tolist() == ["failed", "ok", "ok", "ok", "not_run"]
    assert (found.lists.asked.sum(), found.lists.tokens.sum()) == (6, 5)
    assert found.lists.failures[0] == {"timeout": 2, "refused": 1}
    assert found.lists.repairs.tolist()[1:4] == [{"missing": 4}, {}, {"missing": 1}]
    assert found.lists.warnings[2] == ("It was shrunk.",)
    assert found.lists.places.map(len).tolist() == [0, 2, 0, 4, 0]
    # A list that was not ranked yet has no line in the table of values, a failed one has.
    lines = found.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,ranker,window,asker,query,measure,value,undefined"
    assert len(lines) == 1 + 4 * 3
    assert lines[1].endswith("neutral,failed,P@4,,failed")


def test_means_are_over_the_lists_with_student_intervals(tmp_path: Path) -> None:
    """For 7 degrees of freedom; fewer than six lists have no interval."""
    probe = collection(sizes=(6, 3, 5, 4))
    found = measured(tmp_path / "some", [probe], ranking(probe, noisy, "local:noisy"))
    means = found.means.set_index(["asker", "measure"])
    for asker, own in found.lists.groupby("asker"):
        for name, column in (("P@10", "precision"), ("exposure ratio", "ratio")):
            values = own[column].tolist()
            half = 2.364624 * np.std(values, ddof=1) / math.sqrt(8)
            row = means.loc[asker, name]
            assert (row.n, row["mean"]) == (8, pytest.approx(np.mean(values)))
            assert row.sd == pytest.approx(np.std(values, ddof=1))
            assert (row.low, row.high) == pytest.approx((row["mean"] - half, row["mean"] + half))
    few = collection(queries=5)
    assert measured(tmp_path / "few", [few], ranking(few, noisy, "m")).means.low.isna().all()


def test_all_tests_on_a_collection_are_one_family(tmp_path: Path) -> None:
    """Leans, differences between askers and relevance are corrected together, by collection."""
    probes = [collection(queries=12), collection(queries=12, name="other")]
    records = [
        record
        for probe in probes
        for record in (
            *ranking(probe, made.given, "initial", window=""),
            *ranking(probe, by_protection, "openai:leaning"),
            *ranking(probe, noisy, "local:noisy"),
        )
    ]
    tests = measured(tmp_path, probes, records).tests
    # Of each: two rankers for three askers, two measures, and relevance.
    assert tests.groupby(["collection", "test"]).size().tolist() == [4, 6, 2] * 2
    assert set(tests.tests) == {12}
    for _, own in tests.groupby("collection"):
        assert own.p_holm.tolist() == pytest.approx(corrected_by_holm(own.p.tolist()))
    leans = tests[(tests.test == "lean") & (tests.collection == "other")].set_index("ranker")
    assert set(leans.loc["openai:leaning"].verdict) == {"above"}
    # 2 of 2¹² signs, twelve tests.
    assert leans.loc["openai:leaning"].p_holm.tolist() == pytest.approx([12 * 2 / 2**12] * 3)
    assert set(leans.loc["local:noisy"].verdict) == {"none"}
    assert "initial" not in set(tests.ranker)


def test_both_sensitive_askers_are_compared_query_by_query(tmp_path: Path) -> None:
    """Only queries that have both values count; without both askers nothing is compared."""
    queries = [query_of(f"q{number}", 2, 2, 2, 2) for number in range(8)]
    probe = collection_of(*queries)
    best, worst = tuple(range(8)), tuple(reversed(range(8)))
    records = []
    for number, query in enumerate(queries):
        for ranker in ("monobert", "monot5"):
            better = number < 7 if ranker == "monobert" else number % 2 == 0
            records += [
                ranked(query, best if better else worst, "protected", ranker=ranker),
                ranked(query, worst if better else best, "unprotected", ranker=ranker),
            ]
    failed = {"asked": 1, "failures": {"timeout": 1}}
    records[-1] = ranked(queries[-1], best, "unprotected", ranker="monot5", **failed)
    found = measured(tmp_path / "both", [probe], records, k=4)
    assert found.missing == 2 * 8
    tests = found.tests[found.tests.test == "askers"].set_index(["ranker", "measure"])
    first, second = tests.loc["monobert", "P@4"], tests.loc["monot5", "P@4"]
    assert (first.n, first.difference) == (8, pytest.approx((7 - 1) / 8))
    # Of 2^8 signs, those with at most one against the others, on either side.
    assert first.p == pytest.approx(2 * (1 + 8) / 256)
    assert second.n == 7
    one = measured(tmp_path / "one", [probe], records, askers=["neutral", "protected"])
    assert set(one.tests.test) == {"lean"}


def test_the_order_of_the_records_and_strangers_change_nothing(tmp_path: Path) -> None:
    probe = collection(queries=20)
    records = ranking(probe, noisy, "model")
    stranger = ranked(query_of("other", 2, 2, 2, 2), range(8), ranker="model")
    one = measured(tmp_path / "one", [probe], records)
    other = measured(tmp_path / "other", [probe], [stranger, *reversed(records)])
    for name, frame in one.frames.items():
        pd.testing.assert_frame_equal(frame, other.frames[name])


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_ratio_of_relevance_is_the_mean_over_all_such_lists(
    relevant_own: int, own: int, relevant_others: int, others: int
) -> None:
    found = ratio_of_relevance((relevant_own, own), (relevant_others, others))
    weights = 1 / np.log(1 + np.arange(1, 13))
    first = [True] * relevant_own + [False] * relevant_others
    rest = [True] * own + [False] * others
    if not relevant_own + own or not relevant_others + others:
        assert math.isnan(found)
        return
    totals = np.zeros(2)
    # Which of the relevant places are the group's; the order within a group does not matter.
    for one in set(itertools.permutations(first)):
        for other in set(itertools.permutations(rest)):
            mask = np.array([*one, *other], dtype=bool)
            used = weights[: mask.size]
            totals += used[mask].mean(), used[~mask].mean()
    np.testing.assert_allclose(found, totals[0] / totals[1])


def verdicts_of(*rows: Sequence[float], share: float = 0.5, reference: float = 1.0) -> list[str]:
    """Return the verdicts on rows of exposure ratios that are read together."""
    tested = [
        (len(row), *lean_test(row, [share] * len(row), [reference] * len(row), "name"))
        for row in rows
    ]
    frame = pd.DataFrame(tested, columns=["n", "difference", "p"]).assign(collection="c")
    return [str(verdict) for verdict in judged(frame).verdict]


@settings(max_examples=40)
@given(RATIOS)
def test_a_swap_of_the_groups_swaps_the_verdict(ratios: list[float]) -> None:
    (one,), (other,) = verdicts_of(ratios), verdicts_of([1 / ratio for ratio in ratios])
    assert other == {"above": "below", "below": "above"}.get(one, one)


def test_random_lists_are_not_said_to_disfavour_a_small_group() -> None:
    """The mean of ln(ratio) is below 0 there; that of the differences that are tested is not."""
    random = np.random.default_rng(0)
    group = np.arange(40) < 3
    found, logs = 0, []
    for _ in range(60):
        ratios = [exposure_ratio(random.permutation(group)) or 0.0 for _ in range(50)]
        found += verdicts_of(ratios, share=3 / 40) != ["none"]
        logs += np.log(ratios).tolist()
    assert found <= 7
    assert np.mean(logs) < -0.02


def test_unanimity_is_found_from_six_lists_on_and_of_more_tests_from_more() -> None:
    kinds = [verdicts_of([1.5] * n)[0] for n in range(8)]
    assert kinds == ["untested", *["too_few"] * 5, "above", "above"]
    # Two tests: 2 · 2⁻⁵ is too much, 2 · 2⁻⁶ is not.
    assert verdicts_of([0.5] * 6, [0.5] * 6) == ["too_few"] * 2
    assert verdicts_of([0.5] * 7, [1.0] * 7) == ["below", "none"]
    # What cannot be tested makes no test stricter.
    assert verdicts_of([1.5] * 6, []) == ["above", "untested"]


def test_a_ranker_that_orders_by_relevance_is_not_said_to_lean() -> None:
    """Where cells are short its ratio is below 1; so is that of one that knows half of it."""
    rows = ([0.8] * 10, [0.9] * 10, [0.6] * 10)
    assert verdicts_of(*rows, reference=0.8) == ["none", "none", "below"]
    for row in rows[:2]:
        assert lean_test(row, [0.5] * 10, [0.8] * 10, "name")[1] == 1.0
    assert verdicts_of([1.2] * 10, reference=0.8) == ["above"]


def test_pairs_are_counted_by_kind_and_together(tmp_path: Path) -> None:
    """Relevant pairs go to the protected item, irrelevant ones flip, and some are missing."""
    queries = [made.query_of(f"q{number}", 3, 3, 2, 2) for number in range(9)]
    probe = made.collection_of(*queries, made.query_of("empty", 3, 0, 2, 2))
    experiment = made.pairwise(pairs=3, relevance_pairs=2)
    says = {
        "relevant": ("protected", "protected"),
        "irrelevant": ("protected", "unprotected"),
        "relevance": ("unprotected", "refused"),
    }
    records = [
        it.model_copy(
            update=dict(zip(("protected_first", "unprotected_first"), says[it.kind], strict=True))
        )
        for it in made.compared(experiment, probe, "openai:fake", made.even)
    ]
    missing = next(it for it in records if it.query == "q5")
    kept = [record for record in records if record is not missing]
    found = measure(made.begin(tmp_path, experiment, [probe], {"pairs": kept}).folder)
    assert found.missing == 1
    assert found.figures.kind.tolist() == ["relevant", "irrelevant", "both", "relevance"]
    relevant, irrelevant, both, relevance = found.figures.itertuples()
    assert (relevant.planned, relevant.pairs, relevant.without_pairs) == (27, 26, 1)
    assert (relevant.protected_count, relevant.protected_of, relevant.protected) == (26, 26, 1.0)
    assert (irrelevant.pairs, irrelevant.flips_count, irrelevant.without_pairs) == (20, 20, 0)
    assert (both.pairs, both.planned, both.without_pairs) == (46, 47, 0)
    assert (both.model_calls, both.tokens) == (92, 46 * 50)
    assert relevant.verdict == "favours_protected"
    assert "favours female items" in relevant.sentence
    assert relevance.failures == {"refused": relevance.pairs}


def test_shares_are_those_of_the_pairs(tmp_path: Path) -> None:
    found = compared(tmp_path, {"mixed": made.mixed})
    for row in found.figures[found.figures.kind != "both"].itertuples():
        assert (row.pairs, row.answered, row.replies, row.failed) == (32, 24, 64, 8)
        assert [row.protected, row.unprotected, row.flips] == [8 / 32] * 3
        assert (row.ratio, row.flips_to_first, row.flips_to_second) == (1.0, 8, 0)
        # Four of each seven votes go to the protected item.
        assert row.votes == pytest.approx(4 / 7)
    lines = found.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,model,pairs,measure,value,low,high,count,of"
    assert lines[1].startswith('"notables, gender",mixed,relevant,protected,0.25,,,8,32')


def test_all_verdicts_on_a_collection_are_one_family(tmp_path: Path) -> None:
    """On groups and on relevance; no entry claims a lean that does not hold."""
    few = compared(
        tmp_path / "few", {"leans": made.leaning, "looks": made.first, "fails": made.fails}
    ).figures
    verdicts = ("favours_protected", "position_decides", "failed")
    assert few.verdict.tolist() == [verdict for verdict in verdicts for _ in range(3)]
    # p over queries is 2 of 2⁸, and three rows have one.
    assert few.p_holm[:3].tolist() == pytest.approx([3 * 2 / 2**8] * 3)
    beside = compared(tmp_path / "beside", {"leans": made.leaning}, relevance_pairs=4).figures
    assert beside.p_holm.tolist() == pytest.approx([4 * 2 / 2**8] * 4)
    many = compared(tmp_path / "many", {f"leans {it}": made.leaning for it in range(4)}).figures
    assert many.p_holm.tolist() == pytest.approx([12 * 2 / 2**8] * 12)
    assert set(many.verdict) == {"too_few"}
    assert many.lean.isna().all()


# --- what a tuning changed ------------------------------------------------------------------------

REPLIES = {
    "p": ("protected", "protected"),
    "u": ("unprotected", "unprotected"),
    "f": ("protected", "unprotected"),
    "s": ("unprotected", "protected"),
    "x": ("refused", "protected"),
}


def changed(
    before: Sequence[str], after: Sequence[str], kind: str = "both"
) -> dict[str, dict[str, Any]]:
    """Return the changes by measure; each letter of a query is a pair."""
    couples = [
        [PairOutcome(f"q{query}", *REPLIES[letter]) for letter in letters]
        for query, sides in enumerate(zip(before, after, strict=True))
        for letters in zip(*sides, strict=True)
    ]
    rows = [*changes_of(couples, kind, stream(0, "changes"))]
    frame = judged(pd.DataFrame(rows).assign(collection="c"))
    return {row["measure"]: row for row in frame.to_dict(orient="records")}


def turned(letters: Sequence[str]) -> float:
    """Return |ln| of the ratio of wins, with ½ added to each."""
    said = "".join(letters)
    return abs(math.log((said.count("p") + 0.5) / (said.count("u") + 0.5)))


pairs = st.lists(
    st.lists(st.tuples(*[st.sampled_from("pufsx")] * 2), min_size=1, max_size=6),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40)
@given(pairs)
def test_counts_and_means_are_those_of_a_loop(said: list[list[tuple[str, str]]]) -> None:
    sides = [["".join(it[side] for it in group) for group in said] for side in (0, 1)]
    changes = changed(*sides)
    before, after = map("".join, sides)
    ratio, consistent = changes["ratio nearer to 1"], changes["consistent"]
    assert (ratio["pairs"], ratio["n"]) == (len(before), len(said))
    assert ratio["difference"] == pytest.approx(turned(before) - turned(after))
    gained = sum((letter in "pu") for letter in after) - sum(letter in "pu" for letter in before)
    assert consistent["difference"] == pytest.approx(gained / len(before))


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        # A ratio that was mended, and one that was spoilt.
        (["pppppppu"] * 12, ["ppppuuuu"] * 12, "above"),
        (["ppppuuuu"] * 12, ["pppppppu"] * 12, "below"),
        # A count of 0 gives no certainty.
        (["pppf"] * 8, ["ppuf"] * 8, "untested"),
    ],
)
def test_a_ratio_moves_toward_one_or_away(
    before: list[str], after: list[str], verdict: str
) -> None:
    ratio = changed(before, after)["ratio nearer to 1"]
    assert ratio["verdict"] == verdict
    assert changed(after, before)["ratio nearer to 1"]["difference"] == pytest.approx(
        -ratio["difference"]
    )


def test_all_tests_of_a_tuning_are_one_family(tmp_path: Path) -> None:
    """Verdicts before and after, changes and relevance; one of them is corrected for all."""
    found: Any = measure(
        begin_tuning(tmp_path, collection(queries=24), made.leaning, made.even).folder
    )
    figures, changes = found.figures, found.changes
    assert found.missing == 0
    # Four kinds before and after, their ratio and their winners, and one of relevance.
    assert set(changes.tests) == {8 + 6 + 1}
    leans_p = [max(row.p, row.over_queries) for row in figures.itertuples()]
    tested = changes[changes.p.notna()]
    expected = corrected_by_holm([*leans_p, *tested.p])
    assert [*figures.p_holm, *tested.p_holm] == pytest.approx(expected)
    assert figures.verdict.tolist() == ["favours_protected", "no_lean_found"] * 4
    by_measure = changes[changes.kind.isin(["both", "relevance"])].set_index("measure")
    verdicts = {"ratio nearer to 1": "above", "consistent": "none", "both orders": "below"}
    assert by_measure.verdict.to_dict() == verdicts
    lines = found.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,pairs,when,measure,value,low,high,count,of"
    assert '"notables, gender",relevant,after,protected,0.5,,,24,48' in lines
    assert '"notables, gender",relevance,change,both orders,-0.25,,,,48' in lines


def test_before_and_after_change_places_in_the_test_of_a_change() -> None:
    """Against a loop over all assignments; with five queries nothing is sure."""
    before = ["ppp" + "pu"[i % 2] for i in range(5)]
    after = ["pu" + "up"[i % 2] + "f" for i in range(5)]
    change = changed(before, after)["ratio nearer to 1"]
    as_far = 0
    for swaps in itertools.product((False, True), repeat=5):
        each = zip(before, after, swaps, strict=True)
        sides = [(other, one) if swap else (one, other) for one, other, swap in each]
        one, other = map(turned, zip(*sides, strict=True))
        as_far += abs(one - other) >= abs(change["difference"]) - 1e-9
    assert change["p"] == as_far / 32
    assert change["verdict"] == "too_few"


def test_a_change_of_few_queries_does_not_hold_whatever_its_interval() -> None:
    """Five of six queries say the same, and the test is not convinced."""
    before = [*("pppppppu" + "p" * (i % 2) for i in range(5)), "ffff"]
    after = [*("ppppuuuu" + "f" * (i % 2) for i in range(5)), "ffff"]
    few = changed(before, after)["ratio nearer to 1"]
    assert few["low"] < few["difference"] < few["high"]
    assert few["p"] > 0.05
    assert few["verdict"] == "too_few"
    alike = changed(["ppu"] * 8, ["pfu"] * 8)["ratio nearer to 1"]
    assert alike["low"] is None, "the spread of queries that are all alike is unknown"


def test_a_model_that_did_not_change_is_rarely_said_to_have_moved() -> None:
    random = np.random.default_rng(0)
    moved = 0
    for _ in range(60):
        before, after = (
            ["".join(random.choice(list("pppuff"), 10)) for _ in range(12)] for _ in range(2)
        )
        moved += changed(before, after)["ratio nearer to 1"]["verdict"] in ("above", "below")
    assert moved <= 3


def test_answers_that_became_random_are_seen() -> None:
    """A ratio of 1 that is bought by positions alone: fewer winners, and less relevance."""
    consistent = changed(["ppppppuu"] * 12, ["pufffsss"] * 12)["consistent"]
    assert consistent["difference"] == -0.75
    assert consistent["verdict"] == "below"
    relevance = changed(["pppp"] * 12, ["pfus"] * 12, "relevance")["both orders"]
    assert relevance["difference"] == -0.75
    assert relevance["verdict"] == "below"


def test_a_tuning_that_is_not_at_its_end_gives_what_there_is(tmp_path: Path) -> None:
    """The other half was asked before the training, and nothing after it."""
    begin_tuning(tmp_path, collection(), lambda _: ("protected",) * 2, None)
    found: Any = measure(tmp_path)
    assert found.missing == 4 * 4 * 3
    assert set(found.figures[found.figures.when == "after"].verdict) == {"failed"}
    assert set(found.changes.verdict) == {"untested"}
    assert found.losses.empty
