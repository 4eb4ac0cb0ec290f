"""What a tuning changed: against loops, and on changes that are planted."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.evaluation.probes.records import PairRecord
from fairqr.evaluation.probes.tuning_figures import couples, group_change, relevance_change
from fairqr.evaluation.probes.tuning_measures import sentence_of

WORDS = ("female", "male")
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


pairs = st.lists(
    st.lists(st.tuples(*[st.sampled_from("pufsx")] * 2), min_size=1, max_size=6), max_size=6
)


@settings(max_examples=40)
@given(pairs)
def test_counts_and_means_are_those_of_a_loop(said: list[list[tuple[str, str]]]) -> None:
    before = {f"q{i}": "".join(it[0] for it in group) for i, group in enumerate(said)}
    after = {f"q{i}": "".join(it[1] for it in group) for i, group in enumerate(said)}
    change = group_change("c", "relevant", couples(records(before), records(after)), WORDS, 0)
    flat = [it for group in said for it in group]
    assert (change.pairs, change.queries) == (len(flat), len(said))
    won = [sum(it[side] == "p" for it in flat) for side in (0, 1)]
    lost = [sum(it[side] == "u" for it in flat) for side in (0, 1)]
    assert [change.before.protected.count, change.after.protected.count] == won
    for side, ratio in enumerate((change.ratio.before, change.ratio.after)):
        assert ratio == (pytest.approx(won[side] / lost[side]) if lost[side] else None)
    consistent = change.consistent
    assert consistent.before.count == won[0] + lost[0]
    if not flat:
        assert consistent.difference is None
        assert change.lean.pairs == 0
        return
    assert consistent.difference == pytest.approx((won[1] + lost[1] - won[0] - lost[0]) / len(flat))
    logs = [abs(math.log((won[i] + 0.5) / (lost[i] + 0.5))) for i in (0, 1)]
    assert change.ratio.moved == pytest.approx(logs[0] - logs[1])
    weighed = [it for it in flat if "x" not in it]
    assert change.lean.pairs == len(weighed)
    if weighed:
        halves = {"p": 1.0, "u": -1.0, "f": 0.25, "s": -0.25}
        assert change.lean.before == pytest.approx(np.mean([halves[it[0]] for it in weighed]))
        assert change.lean.after == pytest.approx(np.mean([halves[it[1]] for it in weighed]))


def test_only_pairs_that_were_asked_about_both_times_count() -> None:
    before = records({"q": "pu", "r": "p"})
    after = records({"q": "p"})
    assert {query: len(it) for query, it in couples(before, after).items()} == {"q": 1}


def test_the_order_of_the_records_changes_nothing() -> None:
    before = records({f"q{i}": "pppuf" for i in range(6)})
    after = records({f"q{i}": "ppuuf" for i in range(6)})
    one = group_change("c", "both", couples(before, after), WORDS, 3)
    other = group_change("c", "both", couples(before[::-1], after[::-1]), WORDS, 3)
    assert one == other


def test_a_ratio_that_was_mended_is_said_to_have_moved_toward_one() -> None:
    before = records({f"q{i}": "pppppppu" for i in range(10)})
    after = records({f"q{i}": "ppppuuuu" for i in range(10)})
    change = group_change("c", "both", couples(before, after), WORDS, 0)
    assert change.ratio.interval is not None
    assert change.ratio.interval.low > 0
    assert change.ratio.nearer == 1.0
    sentence = sentence_of(change, None)
    assert "the ratio went from 7.00 to 1.00; it moved toward 1" in sentence
    assert "100.0% before, 100.0% after (no sure change" in sentence
    # The other way round it moved away.
    back = group_change("c", "both", couples(after, before), WORDS, 0)
    assert back.ratio.moved == pytest.approx(-(change.ratio.moved or 0))
    assert "it moved away from 1" in sentence_of(back, None)


def test_before_and_after_change_places_in_the_test_of_a_ratio() -> None:
    """Against a loop over all assignments; with five queries nothing is sure."""
    before = {f"q{i}": "ppp" + "pu"[i % 2] for i in range(5)}
    after = {f"q{i}": "pu" + "up"[i % 2] + "f" for i in range(5)}
    change = group_change("c", "both", couples(records(before), records(after)), WORDS, 0).ratio
    assert change.test is not None
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
        as_far += abs(logs[0] - logs[1]) >= abs(change.moved or 0) - 1e-9
    assert (change.test.p, change.test.exact) == (as_far / 32, True)
    assert change.test.p > 0.05


def test_a_change_of_few_queries_is_not_told_as_sure() -> None:
    """All resamples of five queries that say the same agree; the test is not convinced."""
    before = records({f"q{i}": "pppppppu" for i in range(5)} | {"q9": "ffff"})
    after = records({f"q{i}": "ppppuuuu" for i in range(5)} | {"q9": "ffff"})
    few = group_change("c", "both", couples(before, after), WORDS, 0)
    assert few.ratio.interval is not None
    assert few.ratio.test is not None
    assert few.ratio.interval.low > 0
    assert few.ratio.test.p > 0.05
    assert "moved toward 1" not in sentence_of(few, None)


def test_a_model_that_did_not_change_is_rarely_said_to_have_moved() -> None:
    random = np.random.default_rng(0)
    moved = 0
    for _ in range(100):
        before, after = (
            records({f"q{i}": "".join(random.choice(list("pppuff"), 10)) for i in range(8)})
            for _ in range(2)
        )
        change = group_change("c", "both", couples(before, after), WORDS, 0)
        moved += "; it moved " in sentence_of(change, None)
    assert moved <= 9


def test_answers_that_became_random_are_seen() -> None:
    """A ratio of 1 that is bought by positions alone: fewer winners, and less relevance."""
    before = records({f"q{i}": "ppppppuu" for i in range(10)})
    after = records({f"q{i}": "pufffsss" for i in range(10)})
    change = group_change("c", "both", couples(before, after), WORDS, 0)
    relevant = couples(
        records({f"q{i}": "pppp" for i in range(10)}, "relevance"),
        records({f"q{i}": "pfus" for i in range(10)}, "relevance"),
    )
    relevance = relevance_change("c", relevant, 0)
    sentence = sentence_of(change, relevance)
    assert "100.0% before, 25.0% after (fell: -75.0 points" in sentence
    assert relevance.both_orders.difference == pytest.approx(-0.75)
    assert relevance.averaged.after.value == pytest.approx(0.5)
    assert "wins in both orders: 100.0% before, 25.0% after (fell" in sentence


def test_too_few_winners_give_no_finding() -> None:
    before = records({f"q{i}": "pfff" for i in range(4)})
    after = records({f"q{i}": "pfff" for i in range(4)})
    change = group_change("c", "both", couples(before, after), WORDS, 0)
    assert "before and after tuning too few pairs have one winner" in sentence_of(change, None)


def test_a_count_of_zero_gives_no_certainty() -> None:
    before = records({f"q{i}": "pppf" for i in range(8)})
    after = records({f"q{i}": "ppuf" for i in range(8)})
    change = group_change("c", "both", couples(before, after), WORDS, 0)
    assert change.ratio.before is None
    assert change.ratio.interval is None
    assert "how surely it moved cannot be said" in sentence_of(change, None)


def test_nothing_is_said_of_nothing() -> None:
    change = group_change("c", "both", {}, WORDS, 0)
    assert sentence_of(change, None) == "No pair was asked about both before and after."
