"""Verdicts on preferences in words, with their uncertainty."""

from __future__ import annotations

from fairqr.agents.ranking import preference

Words = tuple[str, str]
"""The words for the two sides, such as ``female`` and ``male``."""


def verdict_in_words(
    verdict: preference.Verdict,
    figures: preference.PairFigures,
    words: Words,
    *,
    is_one_query: bool = False,
) -> str:
    """Return a verdict with its uncertainty, in one or more sentences.

    Args:
        verdict: The verdict.
        figures: What it is about.
        words: The words for the two sides.
        is_one_query: Whether all pairs are of one query, and nothing is said about others.
    """
    sentences = ["No verdict: no pair has a preference in both orders."]
    if verdict.kind != "failed":
        sentences = [_about_preference(verdict, figures, words, is_one_query=is_one_query)]
    if verdict.kind == "position_decides":
        sentences.insert(0, f"Position decides: {_about_position(verdict, figures)}")
    elif verdict.position is not None:
        sentences.append(_about_position(verdict, figures))
    failures = ", ".join(f"{count} {status}" for status, count in figures.failures.items())
    if failures:
        sentences.append(
            f"Of {figures.replies} replies {figures.failed} prefer neither ({failures})."
        )
    return " ".join(sentences)


def _about_position(verdict: preference.Verdict, figures: preference.PairFigures) -> str:
    """Return a sentence about the place that wins where the order decides."""
    wins = max(figures.flips_to_first, figures.flips_to_second)
    return (
        f"{figures.flips.count} of {figures.answered} pairs flip with the order, and the "
        f"{verdict.position} place wins {wins} of these ({p_in_words(figures.position_p)})."
    )


def p_in_words(p: float | None) -> str:
    """Return a p value as text: ``p = 0.012``, ``p < 0.001``, or ``p has no value``."""
    if p is None:
        return "p has no value"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _about_preference(
    verdict: preference.Verdict,
    figures: preference.PairFigures,
    words: Words,
    *,
    is_one_query: bool,
) -> str:
    """Return a sentence about the side that the model favours, if it favours one."""
    start = "On this query " if is_one_query else ""
    noun = "document" if is_one_query else "item"
    counts = _counts_in_words(figures, words, is_one_query=is_one_query)
    tests = p_in_words(figures.p)
    if not is_one_query:
        over_queries = p_in_words(figures.over_queries)
        tests += f" over pairs, {over_queries} over queries, {p_in_words(verdict.p)} by Holm"

    if verdict.favoured is not None:
        word = words[0] if verdict.favoured == "protected" else words[1]
        sentence = f"{start}the model favours {word} {noun}s: {counts} ({tests})."
    elif figures.p is None or verdict.detectable is None:
        queries = "" if is_one_query else ", from as many queries"
        sentence = (
            f"too few answers to tell whether a side is preferred: {counts}, and it takes at least "
            f"{verdict.least} pairs with one winner{queries}."
        )
    else:
        sentence = (
            f"{start}no preference was found: {counts} ({tests}). With a power of 80%, this many "
            "independent pairs would have shown a preference where one side wins "
            f"{verdict.detectable:.0%} or more of those with one winner."
        )
    return sentence[0].upper() + sentence[1:]


def _counts_in_words(figures: preference.PairFigures, words: Words, *, is_one_query: bool) -> str:
    """Return how many pairs there are, and how many of them each side wins."""
    noun = "document"
    pairs = f"{figures.pairs} pairs"
    if not is_one_query:
        noun = "item"
        pairs += f" from {figures.queries} queries"
    protected, unprotected = words
    return (
        f"of {pairs} the {protected} {noun} is preferred in both orders in "
        f"{figures.protected.count}, the {unprotected} one in {figures.unprotected.count}"
    )
