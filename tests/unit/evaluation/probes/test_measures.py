"""Measures of rankings and pairs against plain loops; changes that are planted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.ranking.preference import PairOutcome
from fairqr.agents.statistics import corrected_by_holm, stream
from fairqr.evaluation.probes import listwise, measured, measures, tuning_changes
from fairqr.evaluation.probes.collection import ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.running import Task
from fairqr.evaluation.probes.store import RankedList
from fairqr.retrieval.fairness.exposure import exposure_ratio
from tests.unit.evaluation.probes import made

COUNTS = st.integers(0, 3)


def ranked(folder: Path, probes: Sequence[ProbeCollection], says: Any, **options: Any) -> Any:
    """Write a run on lists down and measure it."""
    experiment = made.listwise(**{"rankers": [*says], "windows": ["20/10"], **options})
    return measures.measure(made.begin(folder, experiment, probes, says).folder)


def compared(folder: Path, says: Mapping[str, made.Says], **options: Any) -> Any:
    """Write a run on pairs down and measure it."""
    probe = options.pop("probe", made.collection())
    experiment = made.pairwise(models=[*says], **options)
    return measures.measure(made.begin(folder, experiment, [probe], says).folder)


@st.composite
def ranked_queries(draw: st.DrawFn) -> tuple[ProbeQuery, tuple[int, ...]]:
    cells = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any))
    query = made.query_of("q", *cells)
    return query, tuple(draw(st.permutations(range(len(query.items)))))


@given(given_=ranked_queries(), k=st.integers(1, 20))
def test_the_measures_of_a_list_are_their_definitions(
    given_: tuple[ProbeQuery, tuple[int, ...]], k: int
) -> None:
    query, order = given_
    record = RankedList(collection="c", ranker="monot5", query="q", order=order)
    values = listwise.list_measures(query, record, k)
    items = [query.items[position] for position in order]
    total = sum(item.relevant for item in items)
    assert values["precision"] == pytest.approx(sum(item.relevant for item in items[:k]) / k)
    dcg = sum(1 / math.log2(r + 1) for r, item in enumerate(items[:k], 1) if item.relevant)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, total) + 1))
    ndcg = dcg / ideal if total else np.nan
    assert values["ndcg"] == pytest.approx(ndcg, nan_ok=True)
    own_ranks, other_ranks = (
        [1 / math.log(1 + rank) for rank, item in enumerate(items, 1) if item.protected == side]
        for side in (True, False)
    )
    ratio = np.mean(own_ranks) / np.mean(other_ranks) if own_ranks and other_ranks else np.nan
    assert values["ratio"] == pytest.approx(ratio, nan_ok=True)
    assert values["share"] == pytest.approx(len(own_ranks) / len(items))
    places = [(rank - 0.5) / len(items) for rank, item in enumerate(items, 1) if item.protected]
    assert values["places"] == pytest.approx(places)


def test_a_failed_ranking_has_no_measure_and_is_counted(tmp_path: Path) -> None:
    """Nor has a list without a relevant item an nDCG, and one without a group a ratio."""
    sizes = {"failed": (2, 2, 2, 2), "irrelevant": (0, 0, 2, 2), "unprotected": (2, 0, 2, 0)}
    sizes |= {"whole": (2, 2, 2, 2), "missing": (2, 2, 2, 2)}
    replies: dict[str, dict[str, Any]] = {
        "failed": {"failures": {"timeout": 2, "refused": 1}},
        "irrelevant": {"failures": {"timeout": 2}, "repairs": {"missing": 4}},
        "unprotected": {},
        "whole": {"warnings": ("It was shrunk.",)},
    }

    def says(_: int, task: Task) -> dict[str, Any] | None:
        query = task.key[-1]
        return made.ranks(range(len(task.items)), **replies[query]) if query in replies else None

    probe = made.collection_of(
        *(made.query_of(name, *sizes_of_query) for name, sizes_of_query in sizes.items())
    )
    measured = ranked(tmp_path, [probe], {"model": says}, personas=["neutral"], k=4)
    assert measured.missing == 1
    means = measured.means.set_index("measure")
    # All relevant items stand on top of the last list, and none is in the second.
    for name, n, mean in (("P@4", 3, (0 + 2 / 4 + 1) / 3), ("nDCG@4", 2, 1.0)):
        assert (means.loc[name].n, means.loc[name]["mean"]) == (n, pytest.approx(mean))
    expected_counts = {"failed": 1, "not_run": 1}
    assert means.left_out.to_dict() == {
        "P@4": expected_counts,
        "nDCG@4": expected_counts | {"nothing_relevant": 1},
        "exposure ratio": expected_counts | {"empty_group": 1},
        "mean place of the protected": expected_counts | {"empty_group": 1},
    }
    assert measured.lists.status.tolist() == ["failed", "ok", "ok", "ok", "not_run"]
    assert (measured.lists.asked.sum(), measured.lists.tokens.sum()) == (12, 400)
    assert measured.lists.repairs.tolist()[1:3] == [{"missing": 4}, {}]
    # A list that was not ranked yet has no line in the table of values, a failed one has.
    lines = measured.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,ranker,window,persona,query,measure,value,undefined"
    assert len(lines) == 1 + 4 * 4
    assert lines[1].endswith("neutral,failed,P@4,,failed")


def test_all_tests_on_lists_of_a_collection_are_one_family(tmp_path: Path) -> None:
    """Exposure differences, personas and relevance are corrected together, by collection."""

    def for_own(number: int, task: Task) -> dict[str, Any]:
        """Rank well for protected personas, and badly for the others."""
        order = [*made.by_protection(number, task)["order"]]
        is_failed = task.key[-2:] == ("unprotected", "q11")
        failed = {"failures": {"refused": 3}} if is_failed else {}
        return made.ranks(order if task.group == "female" else order[::-1], **failed)

    probes = [made.collection(queries=12), made.collection(queries=12, name="other")]
    says = {"initial": made.nobody, "openai:biased": made.by_protection, "monot5": for_own}
    tests = ranked(tmp_path, probes, says).tests
    # Of each: two rankers for three personas, two measures, and relevance.
    assert tests.groupby(["collection", "test"]).size().tolist() == [6, 4, 2] * 2
    assert set(tests.tests) == {12}
    for _, of_collection in tests.groupby("collection"):
        assert of_collection.p_holm.tolist() == pytest.approx(
            corrected_by_holm(of_collection.p.tolist())
        )
    assert "initial" not in set(tests.ranker)
    of_collection = tests[tests.collection == "other"]
    differences = of_collection[
        (of_collection.test == "exposure_difference") & (of_collection.ranker == "openai:biased")
    ]
    # 2 of 2¹² signs, twelve tests.
    assert (set(differences.verdict), set(differences.n)) == ({"above"}, {12})
    assert differences.p_holm.tolist() == pytest.approx([12 * 2 / 2**12] * 3)
    # Of both lists of a query the relevant ones stand on top or at the end; one pair is missing.
    (between,) = (
        of_collection[(of_collection.measure == "P@10") & (of_collection.test == "personas")]
        .tail(1)
        .itertuples()
    )
    assert (between.n, between.difference, between.p) == (11, 1.0, 2 / 2**11)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_ratio_of_relevance_is_the_mean_over_all_such_lists(
    relevant_own: int, own: int, relevant_others: int, others: int
) -> None:
    ratio = listwise.ratio_of_relevance((relevant_own, own), (relevant_others, others))
    weights = 1 / np.log(1 + np.arange(1, 13))
    first = [True] * relevant_own + [False] * relevant_others
    others_first = [True] * own + [False] * others
    if not relevant_own + own or not relevant_others + others:
        assert math.isnan(ratio)
        return
    totals = np.zeros(2)
    # Which of the relevant places are the group's; the order within a group does not matter.
    for first_order in set(itertools.permutations(first)):
        for rest_order in set(itertools.permutations(others_first)):
            mask = np.array([*first_order, *rest_order], dtype=bool)
            used = weights[: mask.size]
            totals += used[mask].mean(), used[~mask].mean()
    np.testing.assert_allclose(ratio, totals[0] / totals[1])


def verdicts_of(*rows: Sequence[float], share: float = 0.5, reference: float = 1.0) -> list[str]:
    """Return the verdicts on rows of exposure ratios that are read together."""
    tested = [
        (
            len(row),
            *listwise.exposure_difference_test(
                row, [share] * len(row), [reference] * len(row), "name"
            ),
        )
        for row in rows
    ]
    frame = pd.DataFrame(tested, columns=["n", "difference", "p"]).assign(collection="c")
    return [str(verdict) for verdict in measured.judged(frame).verdict]


def test_random_lists_are_not_said_to_disfavour_a_small_group() -> None:
    """The mean of ln(ratio) is below 0 there; that of the differences that are tested is not."""
    random = np.random.default_rng(0)
    group = np.arange(40) < 3
    findings = 0
    logs = []
    for _ in range(60):
        ratios = [exposure_ratio(random.permutation(group)) or 0.0 for _ in range(50)]
        findings += verdicts_of(ratios, share=3 / 40) != ["none"]
        logs += np.log(ratios).tolist()

    assert findings <= 7
    assert np.mean(logs) < -0.02


def test_unanimity_is_a_finding_from_six_lists_on() -> None:
    kinds = [verdicts_of([1.5] * n)[0] for n in range(8)]
    assert kinds == ["untested", *["too_few"] * 5, "above", "above"]
    # Two tests: 2 · 2⁻⁵ is too much, 2 · 2⁻⁶ is not.
    assert verdicts_of([0.5] * 6, [0.5] * 6) == ["too_few"] * 2
    assert verdicts_of([0.5] * 7, [1.0] * 7) == ["below", "none"]
    # What cannot be tested makes no test stricter.
    assert verdicts_of([1.5] * 6, []) == ["above", "untested"]


def test_a_ranker_by_relevance_favours_nobody() -> None:
    """Where cells are short its ratio is below 1; so is that of one that knows half of it."""
    rows = ([0.8] * 10, [0.9] * 10, [0.6] * 10)
    assert verdicts_of(*rows, reference=0.8) == ["none", "none", "below"]
    assert verdicts_of([1.2] * 10, reference=0.8) == ["above"]


def test_pairs_are_counted_by_kind_and_together(tmp_path: Path) -> None:
    """Relevant pairs go to the protected item, irrelevant ones flip, and one is missing."""
    queries = [made.query_of(f"q{number}", 3, 3, 2, 2) for number in range(9)]
    probe = made.collection_of(*queries, made.query_of("empty", 3, 0, 2, 2))
    replies = {"relevant": made.PROTECTED, "irrelevant": made.FIRST, "relevance": made.REFUSES}

    def says(number: int, task: Task) -> dict[str, Any] | None:
        is_missing = task.key[2:4] == ("q5", "relevant") and task.items[0].id.endswith("-0")
        return None if is_missing else made.prefers(replies[task.key[3]])(number, task)

    comparison = compared(tmp_path, {"openai:fake": says}, probe=probe, pairs=3, relevance_pairs=2)
    assert comparison.missing == 1
    assert comparison.figures.kind.tolist() == ["relevant", "irrelevant", "both", "relevance"]
    relevant, irrelevant, together, relevance = comparison.figures.itertuples()
    assert (relevant.planned, relevant.pairs, relevant.without_pairs) == (27, 26, 1)
    assert (relevant.protected_count, relevant.protected_of, relevant.protected) == (26, 26, 1.0)
    assert (irrelevant.pairs, irrelevant.flips_count, irrelevant.without_pairs) == (20, 20, 0)
    assert (together.pairs, together.planned, together.tokens) == (46, 47, 46 * 50)
    assert relevant.verdict == "favours_protected"
    assert "favours female items" in relevant.sentence
    assert (relevance.failures, relevance.votes) == ({"refused": relevance.pairs}, 1.0)
    lines = comparison.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,model,pairs,measure,value,low,high,count,of"
    assert lines[1].startswith('"notables, gender",openai:fake,relevant,protected,1.0,,,26,26')


@pytest.mark.parametrize(("models", "verdict"), [(1, "favours_protected"), (4, "too_few")])
def test_all_verdicts_on_a_collection_are_one_family(
    tmp_path: Path, models: int, verdict: str
) -> None:
    """No entry claims a false preference; p over queries is 2 of 2⁸, in three rows each."""
    says = {f"favours {number}": made.biased for number in range(models)}
    figures = compared(tmp_path, says).figures

    assert figures.p_holm.tolist() == pytest.approx([3 * models * 2 / 2**8] * 3 * models)
    assert set(figures.verdict) == {verdict}
    assert figures.favoured.isna().all() == (verdict == "too_few")


# --- what a tuning changed ------------------------------------------------------------------------

REPLIES = {
    "p": made.PROTECTED,
    "u": made.UNPROTECTED,
    "f": made.FIRST,
    "s": ("unprotected", "protected"),
    "x": made.REFUSES,
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
    rows = [*tuning_changes.changes_of(couples, kind, stream(0, "changes"))]
    frame = measured.judged(pd.DataFrame(rows).assign(collection="c"))
    return {row["measure"]: row for row in frame.to_dict(orient="records")}


def turned(letters: Sequence[str]) -> float:
    """Return |ln| of the ratio of wins, with ½ added to each."""
    text = "".join(letters)
    return abs(math.log((text.count("p") + 0.5) / (text.count("u") + 0.5)))


PAIRS = st.lists(st.tuples(*[st.sampled_from("pufsx")] * 2), min_size=1, max_size=6)


@settings(max_examples=40)
@given(st.lists(PAIRS, min_size=1, max_size=6))
def test_changes_are_those_of_a_loop(said: list[list[tuple[str, str]]]) -> None:
    """In the test, before and after change places; here over all assignments."""
    sides = [["".join(pair[side] for pair in group) for group in said] for side in (0, 1)]
    changes = changed(*sides)
    (before, after) = map("".join, sides)
    ratio = changes["ratio nearer to 1"]
    consistent = changes["consistent"]
    assert (ratio["pairs"], ratio["n"]) == (len(before), len(said))
    assert ratio["difference"] == pytest.approx(turned(before) - turned(after))
    gained = sum((letter in "pu") for letter in after) - sum(letter in "pu" for letter in before)
    assert consistent["difference"] == pytest.approx(gained / len(before))
    as_far = 0
    for swaps in itertools.product((False, True), repeat=len(said)):
        swapped_pairs = zip(*sides, swaps, strict=True)
        swapped = [
            (second, first) if swap else (first, second) for first, second, swap in swapped_pairs
        ]
        turned_before, turned_after = map(turned, zip(*swapped, strict=True))
        as_far += abs(turned_before - turned_after) >= abs(ratio["difference"]) - 1e-9
    if all(letter in before for letter in "pu") and all(letter in after for letter in "pu"):
        assert ratio["p"] >= as_far / 2 ** len(said)
        if pd.isna(ratio["low"]):
            assert ratio["p"] == as_far / 2 ** len(said)
        elif ratio["p"] <= 0.05:
            assert not ratio["low"] <= 0 <= ratio["high"]
    else:
        assert ratio["verdict"] == "untested", "a count of 0 gives no certainty"


def test_a_ratio_that_came_nearer_is_a_change() -> None:
    nearer = changed(["pppppppu"] * 12, ["ppppuuuu"] * 12)["ratio nearer to 1"]
    assert (nearer["verdict"], nearer["low"]) == ("above", None), "queries that are all alike"


def test_few_queries_show_no_change() -> None:
    """Whatever their interval."""
    before = [*("pppppppu" + "p" * (i % 2) for i in range(5)), "ffff"]
    after = [*("ppppuuuu" + "f" * (i % 2) for i in range(5)), "ffff"]
    few_changes = changed(before, after)["ratio nearer to 1"]

    assert few_changes["low"] < few_changes["difference"] < few_changes["high"]
    assert few_changes["p"] > 0.05
    assert few_changes["verdict"] == "too_few"


def test_a_ratio_of_few_winners_shows_no_change() -> None:
    """Few winners before, and many after: the ratio before may have been any."""
    before = ["ppfffff", "ppfffff", "pffffff", "uffffff"] + ["fffffff"] * 23
    many_changes = changed(before, ["ppuffff", "ppuuuff", "puufffs"] * 9)["ratio nearer to 1"]

    assert many_changes["low"] < 0 < many_changes["difference"] < many_changes["high"]
    assert many_changes["verdict"] == "none"


@pytest.mark.parametrize(
    ("kind", "measure", "before", "after"),
    [
        pytest.param("both", "consistent", "ppppppuu", "pufffsss", id="fewer winners"),
        pytest.param("relevance", "both orders", "pppp", "pfus", id="less relevance"),
    ],
)
def test_a_ratio_bought_by_positions_alone_shows(
    kind: str, measure: str, before: str, after: str
) -> None:
    change = changed([before] * 12, [after] * 12, kind)[measure]

    assert (change["difference"], change["verdict"]) == (-0.75, "below")


def test_all_tests_of_a_tuning_are_one_family(tmp_path: Path) -> None:
    """Verdicts before and after, changes and relevance; one of them is corrected for all."""
    probe = made.collection(queries=24)
    store = made.begin_tuning(tmp_path, probe, made.biased, made.even)
    measured: Any = measures.measure(store.folder)
    figures = measured.figures
    changes = measured.changes
    assert measured.missing == 0
    # Four kinds before and after, their ratio and their winners, and one of relevance.
    assert set(changes.tests) == {8 + 6 + 1}
    differences_p = [max(row.p, row.over_queries) for row in figures.itertuples()]
    tested = changes[changes.p.notna()]
    expected = corrected_by_holm([*differences_p, *tested.p])
    assert [*figures.p_holm, *tested.p_holm] == pytest.approx(expected)
    assert figures.verdict.tolist() == ["favours_protected", "no_preference_found"] * 4
    by_measure = changes[changes.kind.isin(["both", "relevance"])].set_index("measure")
    verdicts = {"ratio nearer to 1": "above", "consistent": "none", "both orders": "below"}
    assert by_measure.verdict.to_dict() == verdicts
    lines = measured.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,pairs,when,measure,value,low,high,count,of"
    assert '"notables, gender",relevant,after,protected,0.5,,,24,48' in lines
    assert '"notables, gender",relevance,change,both orders,-0.25,,,,48' in lines
