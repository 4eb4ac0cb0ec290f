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
    if verdict.position is not None:
        most = max(figures.flips_to_first, figures.flips_to_second)
        decides = verdict.kind == "position_decides"
        sentences.insert(
            0 if decides else 1,
            f"{'Position decides: ' if decides else ''}{figures.flips.count} of {figures.answered} "
            f"pairs flip with the order, and the {verdict.position} place wins {most} of these "
            f"({p_in_words(figures.position_p)}).",
        )
    if failures := ", ".join(f"{count} {status}" for status, count in figures.failures.items()):
        sentences.append(
            f"Of {figures.replies} replies {figures.failed} prefer neither ({failures})."
        )
    return " ".join(sentences)


def p_in_words(p: float | None) -> str:
    """Return a p value as text: ``p = 0.012``, ``p < 0.001``, or ``p has no value``."""
    if p is None:
        return "p has no value"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _about_preference(
    verdict: preference.Verdict,
    figures: preference.PairFigures,
    words: tuple[str, str],
    *,
    is_one_query: bool,
) -> str:
    tests = p_in_words(figures.p)
    noun = "document"
    of = ""
    start = "On this query "
    if not is_one_query:
        noun = "item"
        of = f" from {figures.queries} queries"
        start = ""
        over_queries, by_holm = map(p_in_words, (figures.over_queries, verdict.p))
        tests += f" over pairs, {over_queries} over queries, {by_holm} by Holm"
    counts = (
        f"of {figures.pairs} pairs{of} the {words[0]} {noun} is preferred in both orders in "
        f"{figures.protected.count}, the {words[1]} one in {figures.unprotected.count}"
    )
    if verdict.favoured is not None:
        word = words[0] if verdict.favoured == "protected" else words[1]
        said = f"{start}the model favours {word} {noun}s: {counts} ({tests})."
    elif figures.p is None or verdict.detectable is None:
        queries = "" if is_one_query else ", from as many queries"
        said = (
            f"too few answers to tell whether a side is preferred: {counts}, and it takes at least "
            f"{verdict.least} pairs with one winner{queries}."
        )
    else:
        said = (
            f"{start}no preference was found: {counts} ({tests}). With a power of 80%, this many "
            "independent pairs would have shown a preference where one side wins "
            f"{verdict.detectable:.0%} or more of those with one winner."
        )
    return said[0].upper() + said[1:]
