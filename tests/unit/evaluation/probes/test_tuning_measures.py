"""What a tuning changed: against loops, and on changes that are planted."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.statistics import corrected_by_holm
from fairqr.evaluation.probes.store import PairRecord
from fairqr.evaluation.probes.tuning_measures import couples, measure_lora, measure_pairs
from tests.unit.evaluation.probes.made_probes import begin_tuning, collection

REPLIES = {
    "p": ("protected", "protected"),
    "u": ("unprotected", "unprotected"),
    "f": ("protected", "unprotected"),
    "s": ("unprotected", "protected"),
    "x": ("refused", "protected"),
}
ODDS = {"p": (1.0, -1.0), "u": (-1.0, 1.0), "f": (1.0, 0.5), "s": (-1.0, -0.5), "x": (None, -1.0)}


def record(query: str, number: int, said: str, kind: str = "relevant") -> PairRecord:
    one, other = REPLIES[said]
    return PairRecord(
        collection="c",
        model="m",
        query=query,
        kind=kind,  # type: ignore[arg-type]
        protected=f"p{number}",
        unprotected=f"u{number}",
        protected_first=one,
        unprotected_first=other,
        log_odds=ODDS[said],
    )


def records(said: dict[str, str], kind: str = "relevant") -> list[PairRecord]:
    """A letter of REPLIES for each pair of a query."""
    return [record(query, i, it, kind) for query, all_ in said.items() for i, it in enumerate(all_)]


def changed(
    before: list[PairRecord], after: list[PairRecord], kind: str = "both", seed: int = 0
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the figures of one kind, and its changes by measure."""
    figures, changes = measure_pairs("c", before, after, seed)
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
    before = {f"q{i}": "".join(it[0] for it in group) for i, group in enumerate(said)}
    after = {f"q{i}": "".join(it[1] for it in group) for i, group in enumerate(said)}
    figures, changes = changed(records(before), records(after))
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


def test_only_pairs_that_were_asked_about_both_times_count() -> None:
    before, after = records({"q": "pu", "r": "p"}), records({"q": "p"})
    assert {query: len(it) for query, it in couples(before, after).items()} == {"q": 1}


def test_the_order_of_the_records_changes_nothing() -> None:
    before = records({f"q{i}": "pppuf" for i in range(6)})
    after = records({f"q{i}": "ppuuf" for i in range(6)})
    one = measure_pairs("c", before, after, 3)
    assert measure_pairs("c", before[::-1], after[::-1], 3) == one


def test_a_ratio_that_was_mended_moved_toward_one() -> None:
    before = records({f"q{i}": "pppppppu" for i in range(12)})
    after = records({f"q{i}": "ppppuuuu" for i in range(12)})
    _, changes = changed(before, after)
    ratio = changes["ratio"]
    assert (ratio["before"], ratio["after"]) == (7.0, 1.0)
    assert ratio["verdict"] == "up"
    assert changes["consistent"]["verdict"] == "none"
    # The other way round it moved away.
    back = changed(after, before)[1]["ratio"]
    assert back["difference"] == pytest.approx(-ratio["difference"])
    assert back["verdict"] == "down"


def test_all_tests_on_a_collection_are_one_family(tmp_path: Path) -> None:
    """Verdicts before and after, changes and relevance; one of them is corrected for all."""

    def leans(number: int) -> tuple[str, str]:
        return ("protected",) * 2 if number % 4 else ("unprotected",) * 2

    def even(number: int) -> tuple[str, str]:
        return ("protected",) * 2 if number % 2 else ("unprotected",) * 2

    found = measure_lora(begin_tuning(tmp_path, collection(queries=24), leans, even))
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
    lines = found.csv.splitlines()
    assert lines[0] == "collection,pairs,when,measure,value,low,high,count,of"
    assert '"notables, gender",relevant,after,protected,0.5,,,24,48' in lines
    assert '"notables, gender",relevance,before,both orders,0.75,,,36,48' in lines


def test_before_and_after_change_places_in_the_test_of_a_ratio() -> None:
    """Against a loop over all assignments; with five queries nothing is sure."""
    before = {f"q{i}": "ppp" + "pu"[i % 2] for i in range(5)}
    after = {f"q{i}": "pu" + "up"[i % 2] + "f" for i in range(5)}
    change = changed(records(before), records(after))[1]["ratio"]
    as_far = 0
    for swaps in itertools.product((False, True), repeat=5):
        sides = [
            (after[query], before[query]) if swap else (before[query], after[query])
            for query, swap in zip(before, swaps, strict=True)
        ]
        logs = [
            abs(math.log((said.count("p") + 0.5) / (said.count("u") + 0.5)))
            for said in ("".join(one) for one in zip(*sides, strict=True))
        ]
        as_far += abs(logs[0] - logs[1]) >= abs(change["difference"]) - 1e-9
    assert change["p"] == as_far / 32
    assert change["verdict"] == "too_few"


def test_a_change_of_few_queries_does_not_hold_whatever_its_interval() -> None:
    """Five of six queries say the same, and the test is not convinced."""
    before = records({f"q{i}": "pppppppu" + "p" * (i % 2) for i in range(5)} | {"q9": "ffff"})
    after = records({f"q{i}": "ppppuuuu" + "f" * (i % 2) for i in range(5)} | {"q9": "ffff"})
    few = changed(before, after)[1]["ratio"]
    assert few["low"] < few["difference"] < few["high"]
    assert few["p"] > 0.05
    assert few["verdict"] == "too_few"


def test_a_model_that_did_not_change_is_rarely_said_to_have_moved() -> None:
    random = np.random.default_rng(0)
    moved = 0
    for _ in range(60):
        before, after = (
            records({f"q{i}": "".join(random.choice(list("pppuff"), 10)) for i in range(12)})
            for _ in range(2)
        )
        moved += changed(before, after)[1]["ratio"]["verdict"] in ("up", "down")
    assert moved <= 3


def test_answers_that_became_random_are_seen() -> None:
    """A ratio of 1 that is bought by positions alone: fewer winners, and less relevance."""
    before = [
        *records({f"q{i}": "ppppppuu" for i in range(12)}),
        *records({f"q{i}": "pppp" for i in range(12)}, "relevance"),
    ]
    after = [
        *records({f"q{i}": "pufffsss" for i in range(12)}),
        *records({f"q{i}": "pfus" for i in range(12)}, "relevance"),
    ]
    consistent = changed(before, after)[1]["consistent"]
    assert (consistent["before"], consistent["after"]) == (1.0, 0.25)
    assert consistent["verdict"] == "down"
    relevance = changed(before, after, "relevance")[1]
    assert relevance["both_orders"]["difference"] == pytest.approx(-0.75)
    assert relevance["both_orders"]["verdict"] == "down"
    assert relevance["averaged"]["after"] == pytest.approx(0.5)


def test_a_count_of_zero_gives_no_certainty() -> None:
    before = records({f"q{i}": "pppf" for i in range(8)})
    after = records({f"q{i}": "ppuf" for i in range(8)})
    ratio = changed(before, after)[1]["ratio"]
    assert (ratio["before"], ratio["low"], ratio["verdict"]) == (None, None, "untested")


def test_a_tuning_that_is_not_at_its_end_gives_what_there_is(tmp_path: Path) -> None:
    store = begin_tuning(tmp_path, collection(), lambda number: ("protected",) * 2, None)
    found = measure_lora(store)
    assert found.missing == 4 * 4 * 3
    assert set(found.figures.verdict) == {"failed"}
    assert set(found.changes.verdict) == {"untested"}
    assert found.losses.empty
