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


def ranked(folder: Path, probes: Sequence[ProbeCollection], says: Any, **more: Any) -> Any:
    """Write a run on lists down and measure it."""
    experiment = made.listwise(**{"rankers": [*says], "windows": ["20/10"], **more})
    return measures.measure(made.begin(folder, experiment, probes, says).folder)


def compared(folder: Path, says: Mapping[str, made.Says], **more: Any) -> Any:
    """Write a run on pairs down and measure it."""
    probe, asked = more.pop("probe", made.collection()), made.pairwise(models=[*says], **more)
    return measures.measure(made.begin(folder, asked, [probe], says).folder)


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
    items = [query.items[place] for place in order]
    total = sum(item.relevant for item in items)
    assert values["precision"] == pytest.approx(sum(item.relevant for item in items[:k]) / k)
    dcg = sum(1 / math.log2(r + 1) for r, it in enumerate(items[:k], 1) if it.relevant)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, total) + 1))
    ndcg = dcg / ideal if total else np.nan
    assert values["ndcg"] == pytest.approx(ndcg, nan_ok=True)
    own, others = (
        [1 / math.log(1 + rank) for rank, it in enumerate(items, 1) if it.protected == side]
        for side in (True, False)
    )
    ratio = np.mean(own) / np.mean(others) if own and others else np.nan
    assert values["ratio"] == pytest.approx(ratio, nan_ok=True)
    assert values["share"] == pytest.approx(len(own) / len(items))
    places = [(rank - 0.5) / len(items) for rank, it in enumerate(items, 1) if it.protected]
    assert values["places"] == pytest.approx(places)


def test_a_failed_ranking_has_no_measure_and_is_counted(tmp_path: Path) -> None:
    """Nor has a list without a relevant item an nDCG, and one without a group a ratio."""
    sizes = {"failed": (2, 2, 2, 2), "irrelevant": (0, 0, 2, 2), "unprotected": (2, 0, 2, 0)}
    sizes |= {"whole": (2, 2, 2, 2), "missing": (2, 2, 2, 2)}
    told: dict[str, dict[str, Any]] = {
        "failed": {"failures": {"timeout": 2, "refused": 1}},
        "irrelevant": {"failures": {"timeout": 2}, "repairs": {"missing": 4}},
        "unprotected": {},
        "whole": {"warnings": ("It was shrunk.",)},
    }

    def says(_: int, task: Task) -> dict[str, Any] | None:
        query = task.key[-1]
        return made.ranks(range(len(task.items)), **told[query]) if query in told else None

    probe = made.collection_of(*(made.query_of(name, *own) for name, own in sizes.items()))
    found = ranked(tmp_path, [probe], {"model": says}, personas=["neutral"], k=4)
    assert found.missing == 1
    means = found.means.set_index("measure")
    # All relevant items stand on top of the last list, and none is in the second.
    for name, n, mean in (("P@4", 3, (0 + 2 / 4 + 1) / 3), ("nDCG@4", 2, 1.0)):
        assert (means.loc[name].n, means.loc[name]["mean"]) == (n, pytest.approx(mean))
    none = {"failed": 1, "not_run": 1}
    assert means.left_out.to_dict() == {
        "P@4": none,
        "nDCG@4": none | {"nothing_relevant": 1},
        "exposure ratio": none | {"empty_group": 1},
        "mean place of the protected": none | {"empty_group": 1},
    }
    assert found.lists.status.tolist() == ["failed", "ok", "ok", "ok", "not_run"]
    assert (found.lists.asked.sum(), found.lists.tokens.sum()) == (12, 400)
    assert found.lists.repairs.tolist()[1:3] == [{"missing": 4}, {}]
    # A list that was not ranked yet has no line in the table of values, a failed one has.
    lines = found.table.to_csv(index=False).splitlines()
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
    for _, own in tests.groupby("collection"):
        assert own.p_holm.tolist() == pytest.approx(corrected_by_holm(own.p.tolist()))
    assert "initial" not in set(tests.ranker)
    own = tests[tests.collection == "other"]
    differences = own[(own.test == "exposure_difference") & (own.ranker == "openai:biased")]
    # 2 of 2¹² signs, twelve tests.
    assert (set(differences.verdict), set(differences.n)) == ({"above"}, {12})
    assert differences.p_holm.tolist() == pytest.approx([12 * 2 / 2**12] * 3)
    # Of both lists of a query the relevant ones stand on top or at the end; one pair is missing.
    (between,) = own[(own.measure == "P@10") & (own.test == "personas")].tail(1).itertuples()
    assert (between.n, between.difference, between.p) == (11, 1.0, 2 / 2**11)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_ratio_of_relevance_is_the_mean_over_all_such_lists(
    relevant_own: int, own: int, relevant_others: int, others: int
) -> None:
    found = listwise.ratio_of_relevance((relevant_own, own), (relevant_others, others))
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
    found, logs = 0, []
    for _ in range(60):
        ratios = [exposure_ratio(random.permutation(group)) or 0.0 for _ in range(50)]
        found += verdicts_of(ratios, share=3 / 40) != ["none"]
        logs += np.log(ratios).tolist()
    assert found <= 7
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

    found = compared(tmp_path, {"openai:fake": says}, probe=probe, pairs=3, relevance_pairs=2)
    assert found.missing == 1
    assert found.figures.kind.tolist() == ["relevant", "irrelevant", "both", "relevance"]
    relevant, irrelevant, both, relevance = found.figures.itertuples()
    assert (relevant.planned, relevant.pairs, relevant.without_pairs) == (27, 26, 1)
    assert (relevant.protected_count, relevant.protected_of, relevant.protected) == (26, 26, 1.0)
    assert (irrelevant.pairs, irrelevant.flips_count, irrelevant.without_pairs) == (20, 20, 0)
    assert (both.pairs, both.planned, both.tokens) == (46, 47, 46 * 50)
    assert relevant.verdict == "favours_protected"
    assert "favours female items" in relevant.sentence
    assert (relevance.failures, relevance.votes) == ({"refused": relevance.pairs}, 1.0)
    lines = found.table.to_csv(index=False).splitlines()
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
    said = "".join(letters)
    return abs(math.log((said.count("p") + 0.5) / (said.count("u") + 0.5)))


PAIRS = st.lists(st.tuples(*[st.sampled_from("pufsx")] * 2), min_size=1, max_size=6)


@settings(max_examples=40)
@given(st.lists(PAIRS, min_size=1, max_size=6))
def test_changes_are_those_of_a_loop(said: list[list[tuple[str, str]]]) -> None:
    """In the test, before and after change places; here over all assignments."""
    sides = [["".join(it[side] for it in group) for group in said] for side in (0, 1)]
    changes, (before, after) = changed(*sides), map("".join, sides)
    ratio, consistent = changes["ratio nearer to 1"], changes["consistent"]
    assert (ratio["pairs"], ratio["n"]) == (len(before), len(said))
    assert ratio["difference"] == pytest.approx(turned(before) - turned(after))
    gained = sum((letter in "pu") for letter in after) - sum(letter in "pu" for letter in before)
    assert consistent["difference"] == pytest.approx(gained / len(before))
    as_far = 0
    for swaps in itertools.product((False, True), repeat=len(said)):
        each = zip(*sides, swaps, strict=True)
        swapped = [(other, one) if swap else (one, other) for one, other, swap in each]
        one, other = map(turned, zip(*swapped, strict=True))
        as_far += abs(one - other) >= abs(ratio["difference"]) - 1e-9
    if all(letter in before for letter in "pu") and all(letter in after for letter in "pu"):
        assert ratio["p"] >= as_far / 2 ** len(said)
        if pd.isna(ratio["low"]):
            assert ratio["p"] == as_far / 2 ** len(said)
        elif ratio["p"] <= 0.05:
            assert not ratio["low"] <= 0 <= ratio["high"]
    else:
        assert ratio["verdict"] == "untested", "a count of 0 gives no certainty"


def test_what_a_change_shows_is_told_by_its_test() -> None:
    """A ratio that came nearer; few queries, whatever their interval; and answers at random."""
    nearer = changed(["pppppppu"] * 12, ["ppppuuuu"] * 12)["ratio nearer to 1"]
    assert (nearer["verdict"], nearer["low"]) == ("above", None), "queries that are all alike"
    before = [*("pppppppu" + "p" * (i % 2) for i in range(5)), "ffff"]
    after = [*("ppppuuuu" + "f" * (i % 2) for i in range(5)), "ffff"]
    few = changed(before, after)["ratio nearer to 1"]
    assert few["low"] < few["difference"] < few["high"]
    assert (few["p"] > 0.05, few["verdict"]) == (True, "too_few")
    # Few winners before, and many after: the ratio before may have been any.
    before = ["ppfffff", "ppfffff", "pffffff", "uffffff"] + ["fffffff"] * 23
    more = changed(before, ["ppuffff", "ppuuuff", "puufffs"] * 9)["ratio nearer to 1"]
    assert more["low"] < 0 < more["difference"] < more["high"]
    assert more["verdict"] == "none"
    # A ratio of 1 that is bought by positions alone: fewer winners, and less relevance.
    for kind, measure_, was, now in (
        ("both", "consistent", "ppppppuu", "pufffsss"),
        ("relevance", "both orders", "pppp", "pfus"),
    ):
        found = changed([was] * 12, [now] * 12, kind)[measure_]
        assert (found["difference"], found["verdict"]) == (-0.75, "below")


def test_all_tests_of_a_tuning_are_one_family(tmp_path: Path) -> None:
    """Verdicts before and after, changes and relevance; one of them is corrected for all."""
    probe = made.collection(queries=24)
    store = made.begin_tuning(tmp_path, probe, made.biased, made.even)
    found: Any = measures.measure(store.folder)
    figures, changes = found.figures, found.changes
    assert found.missing == 0
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
    lines = found.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,pairs,when,measure,value,low,high,count,of"
    assert '"notables, gender",relevant,after,protected,0.5,,,24,48' in lines
    assert '"notables, gender",relevance,change,both orders,-0.25,,,,48' in lines
