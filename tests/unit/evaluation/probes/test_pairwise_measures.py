"""Measures of pairs against plain counts; what a tuning changed, on changes that are planted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.statistics import corrected_by_holm
from fairqr.evaluation.probes.pairwise_measures import (
    MeasuredPairwise,
    couples_of,
    measure_changes,
    measure_lora,
    measure_pairwise,
)
from fairqr.evaluation.probes.store import PairRecord
from tests.unit.evaluation.probes import made
from tests.unit.evaluation.probes.made import begin, begin_pairwise, begin_tuning, collection


def measured(folder: Path, replies: Any, **more: Any) -> MeasuredPairwise:
    """Write a run on lists down and measure it."""
    return measure_pairwise(
        begin_pairwise(folder, [more.pop("probe", collection())], replies, **more)
    )


def test_pairs_are_counted_by_kind_and_together(tmp_path: Path) -> None:
    """Relevant pairs go to the protected item, irrelevant ones flip, and some are missing."""
    queries = [made.query_of(f"q{number}", 3, 3, 2, 2) for number in range(9)]
    probe = made.collection_of(*queries, made.query_of("empty", 3, 0, 2, 2), size=12)
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
    found = measure_pairwise(begin(tmp_path, experiment, [probe], {"pairs": kept}))
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
    found = measured(tmp_path, {"mixed": made.mixed})
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
    few = measured(
        tmp_path / "few", {"leans": made.leaning, "looks": made.first, "fails": made.fails}
    ).figures
    verdicts = ("favours_protected", "position_decides", "failed")
    assert few.verdict.tolist() == [verdict for verdict in verdicts for _ in range(3)]
    # p over queries is 2 of 2⁸, and three rows have one.
    assert few.p_holm[:3].tolist() == pytest.approx([3 * 2 / 2**8] * 3)
    beside = measured(tmp_path / "beside", {"leans": made.leaning}, relevance_pairs=4).figures
    assert beside.p_holm.tolist() == pytest.approx([4 * 2 / 2**8] * 4)
    many = measured(tmp_path / "many", {f"leans {it}": made.leaning for it in range(4)}).figures
    assert many.p_holm.tolist() == pytest.approx([12 * 2 / 2**8] * 12)
    assert set(many.verdict) == {"too_few"}
    assert many.lean.isna().all()


def test_pairs_that_cannot_be_made_or_were_not_asked_are_counted(tmp_path: Path) -> None:
    probe = collection(sizes=(5, 0, 5, 5))
    found = measured(tmp_path, {"leans": made.leaning}, probe=probe, missing=5)
    assert found.missing == 5
    relevant, irrelevant, _ = found.figures.itertuples()
    assert (relevant.without_pairs, relevant.queries_in_all, relevant.pairs) == (8, 8, 0)
    assert (irrelevant.planned, irrelevant.pairs) == (32, 27)


# --- what a tuning changed ------------------------------------------------------------------------

REPLIES = {
    "p": (("protected", "protected"), (1.0, -1.0)),
    "u": (("unprotected", "unprotected"), (-1.0, 1.0)),
    "f": (("protected", "unprotected"), (1.0, 0.5)),
    "s": (("unprotected", "protected"), (-1.0, -0.5)),
    "x": (("refused", "protected"), (None, -1.0)),
}


def records(said: Sequence[str], kind: str = "relevant") -> list[PairRecord]:
    """A letter of REPLIES for each pair of a query."""
    found = []
    for query, letters in enumerate(said):
        for number, letter in enumerate(letters):
            (one, other), odds = REPLIES[letter]
            own = {"collection": "c", "model": "m", "query": f"q{query}", "kind": kind}
            own |= {"protected": f"p{number}", "unprotected": f"u{number}"}
            own |= {"protected_first": one, "unprotected_first": other, "log_odds": odds}
            found.append(PairRecord.model_validate(own))
    return found


def changed(
    before: list[PairRecord], after: list[PairRecord], kind: str = "both"
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the figures of one kind, and its changes by measure."""
    figures, changes = measure_changes("c", couples_of("c", before, after), seed=0)
    return (
        [row for row in figures if row["kind"] == kind],
        {row["measure"]: row for row in changes if row["kind"] == kind},
    )


pairs = st.lists(
    st.lists(st.tuples(*[st.sampled_from("pufsx")] * 2), min_size=1, max_size=6), max_size=6
)


@settings(max_examples=40)
@given(pairs)
def test_counts_and_means_are_those_of_a_loop(said: list[list[tuple[str, str]]]) -> None:
    sides = [["".join(it[side] for it in group) for group in said] for side in (0, 1)]
    figures, changes = changed(*map(records, sides))
    flat = [it for group in said for it in group]
    ratio, consistent, odds = changes["ratio"], changes["consistent"], changes["log_odds"]
    assert (ratio["pairs"], ratio["queries"]) == (len(flat), len(said))
    won = [sum(it[side] == "p" for it in flat) for side in (0, 1)]
    lost = [sum(it[side] == "u" for it in flat) for side in (0, 1)]
    assert [row["protected_count"] for row in figures] == won
    for side, when in enumerate(("before", "after")):
        found = won[side] / lost[side] if lost[side] else None
        assert ratio[when] == (found if found is None else pytest.approx(found))
    assert consistent["before_count"] == won[0] + lost[0]
    if not flat:
        assert consistent["difference"] is None
        assert odds["pairs"] == 0
        return
    gained = won[1] + lost[1] - won[0] - lost[0]
    assert consistent["difference"] == pytest.approx(gained / len(flat))
    logs = [abs(math.log((won[i] + 0.5) / (lost[i] + 0.5))) for i in (0, 1)]
    assert ratio["difference"] == pytest.approx(logs[0] - logs[1])
    weighed = [it for it in flat if "x" not in it]
    assert odds["pairs"] == len(weighed)
    if weighed:
        halves = {"p": 1.0, "u": -1.0, "f": 0.25, "s": -0.25}
        assert odds["before"] == pytest.approx(np.mean([halves[it[0]] for it in weighed]))
        assert odds["after"] == pytest.approx(np.mean([halves[it[1]] for it in weighed]))


def test_only_pairs_that_were_asked_about_both_times_count_in_any_order() -> None:
    before, after = records(["pu", "p"]), records(["p"])
    assert [couple[0].query for _, couple in couples_of("c", before, after)] == ["q0"]
    before, after = records(["pppuf"] * 6), records(["ppuuf"] * 6)
    assert changed(before[::-1], after[::-1]) == changed(before, after)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        # A ratio that was mended, and one that was spoilt.
        (["pppppppu"] * 12, ["ppppuuuu"] * 12, "up"),
        (["ppppuuuu"] * 12, ["pppppppu"] * 12, "down"),
        # A count of 0 gives no certainty.
        (["pppf"] * 8, ["ppuf"] * 8, "untested"),
    ],
)
def test_a_ratio_moves_toward_one_or_away(
    before: list[str], after: list[str], verdict: str
) -> None:
    ratio = changed(records(before), records(after))[1]["ratio"]
    assert ratio["verdict"] == verdict
    back = changed(records(after), records(before))[1]["ratio"]
    assert back["difference"] == pytest.approx(-ratio["difference"])


def test_all_tests_on_a_collection_are_one_family(tmp_path: Path) -> None:
    """Verdicts before and after, changes and relevance; one of them is corrected for all."""
    found = measure_lora(begin_tuning(tmp_path, collection(queries=24), made.leaning, made.even))
    figures, changes = found.figures, found.changes
    assert found.missing == 0
    # Three kinds before and after, their ratio and their winners, and two of relevance.
    assert set(changes.tests) == {6 + 6 + 2}
    leans_p = [max(row.p_pairs, row.p_queries) for row in figures.itertuples()]
    tested = changes[changes.p.notna()]
    expected = corrected_by_holm([*leans_p, *tested.p])
    assert [*figures.p_holm, *tested.p_holm] == pytest.approx(expected)
    assert figures.verdict.tolist() == ["favours_protected", "no_lean_found"] * 3
    by_measure = changes[changes.kind.isin(["both", "relevance"])].set_index("measure")
    assert by_measure.verdict.to_dict() == {
        "ratio": "up",
        "consistent": "none",
        "log_odds": "untested",
        "both_orders": "down",
        "averaged": "down",
    }
    lines = found.table.to_csv(index=False).splitlines()
    assert lines[0] == "collection,pairs,when,measure,value,low,high,count,of"
    assert '"notables, gender",relevant,after,protected,0.5,,,24,48' in lines
    assert '"notables, gender",relevance,before,both orders,0.75,,,36,48' in lines


def test_before_and_after_change_places_in_the_test_of_a_ratio() -> None:
    """Against a loop over all assignments; with five queries nothing is sure."""
    before = ["ppp" + "pu"[i % 2] for i in range(5)]
    after = ["pu" + "up"[i % 2] + "f" for i in range(5)]
    change = changed(records(before), records(after))[1]["ratio"]
    as_far = 0
    for swaps in itertools.product((False, True), repeat=5):
        each = zip(before, after, swaps, strict=True)
        sides = [(other, one) if swap else (one, other) for one, other, swap in each]
        logs = [
            abs(math.log((said.count("p") + 0.5) / (said.count("u") + 0.5)))
            for said in ("".join(one) for one in zip(*sides, strict=True))
        ]
        as_far += abs(logs[0] - logs[1]) >= abs(change["difference"]) - 1e-9
    assert change["p"] == as_far / 32
    assert change["verdict"] == "too_few"


def test_a_change_of_few_queries_does_not_hold_whatever_its_interval() -> None:
    """Five of six queries say the same, and the test is not convinced."""
    before = [*("pppppppu" + "p" * (i % 2) for i in range(5)), "ffff"]
    after = [*("ppppuuuu" + "f" * (i % 2) for i in range(5)), "ffff"]
    few = changed(records(before), records(after))[1]["ratio"]
    assert few["low"] < few["difference"] < few["high"]
    assert few["p"] > 0.05
    assert few["verdict"] == "too_few"


def test_a_model_that_did_not_change_is_rarely_said_to_have_moved() -> None:
    random = np.random.default_rng(0)
    moved = 0
    for _ in range(60):
        before, after = (
            records(["".join(random.choice(list("pppuff"), 10)) for _ in range(12)])
            for _ in range(2)
        )
        moved += changed(before, after)[1]["ratio"]["verdict"] in ("up", "down")
    assert moved <= 3


def test_answers_that_became_random_are_seen() -> None:
    """A ratio of 1 that is bought by positions alone: fewer winners, and less relevance."""
    before = [*records(["ppppppuu"] * 12), *records(["pppp"] * 12, "relevance")]
    after = [*records(["pufffsss"] * 12), *records(["pfus"] * 12, "relevance")]
    consistent = changed(before, after)[1]["consistent"]
    assert (consistent["before"], consistent["after"]) == (1.0, 0.25)
    assert consistent["verdict"] == "down"
    relevance = changed(before, after, "relevance")[1]
    assert relevance["both_orders"]["difference"] == pytest.approx(-0.75)
    assert relevance["both_orders"]["verdict"] == "down"
    assert relevance["averaged"]["after"] == pytest.approx(0.5)


def test_a_tuning_that_is_not_at_its_end_gives_what_there_is(tmp_path: Path) -> None:
    found = measure_lora(begin_tuning(tmp_path, collection(), lambda _: ("protected",) * 2, None))
    assert found.missing == 4 * 4 * 3
    assert set(found.figures.verdict) == {"failed"}
    assert set(found.changes.verdict) == {"untested"}
    assert found.losses.empty
