"""Says in words whether a model that compares pairs leans toward a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fairqr.agents.ranking.lean import PairFigures, Share
from fairqr.agents.statistics import Interval, corrected_by_holm, detectable_share, p_in_words

ALPHA = 0.05
"""The largest significant p value."""

LEAST = 6
"""With fewer consistent pairs, not even unanimity is significant: 2 · ½⁵ = .0625."""

LEAST_QUERIES = 6
"""With fewer queries, not even unanimity is significant in the test over queries."""

POWER = 0.8

VerdictKind = Literal[
    "favours_protected",
    "favours_unprotected",
    "no_lean_found",
    "position_decides",
    "too_few",
    "failed",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the figures allow us to say.

    Attributes:
        kind: ``failed`` if no pair has a preference in both replies; ``position_decides`` if most
            pairs with both flip, and one position wins the flips significantly; ``favours_…`` if
            both tests of a lean are significant, over pairs and over queries, after the correction
            for all verdicts given together; ``too_few`` if fewer than LEAST pairs or LEAST_QUERIES
            queries have a winner in both orders (more if several verdicts are given together); or
            else ``no_lean_found``.
        sentence: The verdict with its uncertainty, in one or more sentences.
        lean: The side that the pairs without flips favour, if both tests are significant; also with
            ``position_decides``.
        position: The position that wins the flips significantly, whatever their share. For Holm's
            correction, the tests of positions are a family of their own.
        detectable: The share of one side among the consistent pairs that the exact test would have
            detected with a power of 80 %. A smaller lean may exist. None if there are too few.
        p: The greater p value of both tests of a lean, corrected by Holm for all verdicts given
            together; None if a test is undefined.
    """

    kind: VerdictKind
    sentence: str
    lean: Literal["protected", "unprotected"] | None = None
    position: Literal["first", "second"] | None = None
    detectable: float | None = None
    p: float | None = None


def verdict(figures: PairFigures, words: tuple[str, str] = ("protected", "unprotected")) -> Verdict:
    """Return the verdict on figures that are judged alone.

    Args:
        figures: The figures of pairs of a protected and an unprotected item.
        words: The words for the two sides, e.g. ``female`` and ``male``.
    """
    return verdicts([figures], words)[0]


def verdicts(
    several: Sequence[PairFigures],
    words: tuple[str, str] = ("protected", "unprotected"),
    *,
    beside: Sequence[float | None] = (),
) -> list[Verdict]:
    """Return the verdicts on several figures that are read together, such as kinds of pairs.

    Each further test is another chance for a false finding. So p is corrected by Holm: the chance
    that any verdict reports a lean where there is none is at most ALPHA.

    Args:
        several: The figures; they may share pairs.
        words: The words for the two sides.
        beside: The p values of other tests in the same family.
    """
    family = [*map(p_of_lean, several), *beside]
    tests = sum(p is not None for p in family)
    corrected = corrected_by_holm(family)[: len(several)]
    positions = corrected_by_holm([figures.position_p for figures in several])
    return [
        _judged(figures, words, p, tests, position_p)
        for figures, p, position_p in zip(several, corrected, positions, strict=True)
    ]


def _judged(
    figures: PairFigures,
    words: tuple[str, str],
    p: float | None,
    tests: int,
    position_p: float | None,
) -> Verdict:
    """Return the verdict by corrected p values; ``tests`` is the size of the family of a lean."""
    if not figures.answered:
        return Verdict("failed", _nothing(figures))
    lean, position = _lean(figures, p), _position(figures, position_p)
    pairs, queries = _least(tests)
    enough = figures.consistent.of >= pairs and figures.consistent_queries >= queries
    detectable = None
    if enough:
        detectable = detectable_share(figures.consistent.of, alpha=ALPHA / max(tests, 1))
    mostly = position is not None and 2 * figures.flips.count > figures.answered
    kind: VerdictKind
    if mostly:
        kind = "position_decides"
    elif lean is not None:
        kind = "favours_protected" if lean == "protected" else "favours_unprotected"
    else:
        kind = "no_lean_found" if enough else "too_few"
    sentences = [_about_position(figures, position_p)] if mostly else []
    sentences.append(_about_lean(figures, words, lean, detectable, p, tests))
    if position is not None and not mostly:
        sentences.append(_about_position(figures, position_p))
    if figures.failed:
        sentences.append(f"Of {figures.replies} replies {_failures(figures)} prefer neither.")
    return Verdict(kind, " ".join(sentences), lean, position, detectable, p)


def p_of_lean(figures: PairFigures) -> float | None:
    """Return the greater p value of both tests, since a lean needs both."""
    over = figures.over_queries
    return None if figures.p is None or over is None else max(figures.p, over.p)


def _least(tests: int) -> tuple[int, int]:
    """Return the fewest pairs and queries that can be significant among this many tests."""
    more = 0
    while max(tests, 1) * 2.0 ** (1 - LEAST - more) > ALPHA:
        more += 1
    return LEAST + more, LEAST_QUERIES + more


def _lean(figures: PairFigures, p: float | None) -> Literal["protected", "unprotected"] | None:
    """Return the side that wins by both tests, over pairs and over queries, if there is one."""
    if figures.consistent_queries < LEAST_QUERIES or p is None or p > ALPHA:
        return None
    return "protected" if figures.protected.count > figures.unprotected.count else "unprotected"


def _position(figures: PairFigures, p: float | None) -> Literal["first", "second"] | None:
    if p is None or p > ALPHA:
        return None
    return "first" if figures.flips_to_first > figures.flips_to_second else "second"


def _nothing(figures: PairFigures) -> str:
    if not figures.pairs:
        return "No verdict: no pair was asked about."
    return (
        f"No verdict: none of {_pairs(figures.pairs)} has a preference in both orders; of "
        f"{figures.replies} replies {_failures(figures)} prefer neither."
    )


def _about_position(figures: PairFigures, p: float | None) -> str:
    first, second = figures.flips_to_first, figures.flips_to_second
    flips = figures.flips.count
    winner, most = ("first", first) if first > second else ("second", second)
    return (
        f"Position decides {flips} of {_pairs(figures.answered)} that were answered in both "
        f"orders: they flip with the order, and the {winner} place wins {most} of these {flips} "
        f"({p_in_words(p)}{'' if p == figures.position_p else ' by Holm'})."
    )


def _about_lean(
    figures: PairFigures,
    words: tuple[str, str],
    lean: Literal["protected", "unprotected"] | None,
    detectable: float | None,
    p: float | None,
    tests: int,
) -> str:
    counts = (
        f"of {_pairs(figures.pairs)} from {_queries(figures.queries)} the {words[0]} item is "
        f"preferred in both orders in {_percent(figures.protected)}, the {words[1]} one in "
        f"{_percent(figures.unprotected)}"
    )
    over = figures.over_queries.p if figures.over_queries else None
    said = f"{p_in_words(figures.p)} over pairs, {p_in_words(over)} over queries"
    if tests > 1:
        said += f"; {p_in_words(p)} corrected for {tests} tests"
    if lean is not None:
        word = words[0] if lean == "protected" else words[1]
        return f"The model favours {word} items: {counts}, {_ratio(figures, words)} ({said})."
    if detectable is None:
        pairs, queries = _least(tests)
        return (
            f"Too few answers to tell whether there is a lean: {counts}; that is "
            f"{_pairs(figures.consistent.of)} with one winner, from "
            f"{_queries(figures.consistent_queries)}, and it takes at least {pairs} such pairs and "
            f"{queries} queries."
        )
    none = f"No lean was found: {counts}, {_ratio(figures, words)} ({said})."
    if max(figures.p or 0.0, over or 0.0) <= ALPHA:
        return f"{none} Alone it would be one, but {tests} tests give chance more room."
    if figures.p is not None and figures.p <= ALPHA:
        return f"{none} The pairs alone would show one, but it rests on few of the queries."
    return (
        f"{none} With a power of 80% so many pairs, if they are independent, show a lean where one "
        f"side wins {detectable:.0%} or more of those with one winner; a lesser one may be there."
    )


def _ratio(figures: PairFigures, words: tuple[str, str]) -> str:
    if figures.ratio is not None:
        return f"a ratio of {figures.ratio:.2f}{_interval(figures.ratio_interval)}"
    share = figures.consistent
    return (
        f"so that there is no ratio; the {words[0]} item wins {share.count} of the "
        f"{_pairs(share.of)} with one winner{_interval(share.interval)}"
    )


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f", {interval.level:.0%} interval {interval.low:.2f} to {interval.high:.2f}"


def _failures(figures: PairFigures) -> str:
    kinds = ", ".join(f"{status} {count}" for status, count in figures.failures.items())
    return f"{figures.failed} ({kinds})"


def _percent(share: Share) -> str:
    return f"{share.count} ({share.value or 0:.1%})"


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


def _queries(count: int) -> str:
    return f"{count} quer{'y' if count == 1 else 'ies'}"
