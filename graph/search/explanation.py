"""Says in sentences what the figures of a search mean, and shows its documents as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from fairqr.agents.models.replies import RECORDED
from fairqr.agents.profiles.finding import Trust
from fairqr.graph.search import result as results
from fairqr.graph.search.result import Objective, SearchResult, Shares
from fairqr.prompts.template import fence
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.fairness.target import PARTS
from fairqr.retrieval.rerankers.certificate import Among
from fairqr.retrieval.sources.documents import Document

UNANSWERED = (
    *("denied", "rate_limited", "timeout", "unavailable", "invalid_request"),
    "unsupported",
)
"""The statuses of questions to which no answer came."""

LEAST_GAP = 0.01
"""Gaps below one percentage point are left out."""

MOST_EXPLAINED = 8
"""Of so many groups of an attribute it is said why they lack exposure, those that lack most."""

LEAST_PRICE = 0.0005
"""A lower price of a point would read .000."""

NEAR_BEST = 0.01
"""From this share on, it is not said how far a list is from the best order: in a short list much of
that distance is that ranks are whole."""

LINE = 120
"""How many characters of a document's title, and of its text, are shown."""

LEAST_SHOWN = 0.005
"""A lower probability would read 0%."""

LATER_PAGE = "The figures are of this page alone"
TARGET = "The target: "
UNCHECKED = "We moved documents up without checking that they are relevant"
BROUGHT = "found only by the model's queries"
NOBODY_MEASURED = "Nobody measured what the words of"
TOO_FEW = "too few documents were found that are likely to be relevant"
"""Others may exist: their estimates may be too low, or they were not found at all."""


def explain(result: SearchResult, notes: Sequence[str] = ()) -> list[str]:
    """Return how relevant the documents are, and what fairness and the model did.

    That is what each group lacked and why, what fairness cost, and what the model brought. Figures
    that the result does not have are left out.

    Args:
        result: The result.
        notes: More sentences about the model.
    """
    fit = fit_of(result)
    sentences = [fit] if fit else []
    return [
        *sentences,
        *_page(result),
        *_before(result),
        *_lacked(result),
        *notes,
        *_gained(result),
    ]


def _estimates(result: SearchResult) -> list[float]:
    """Return the probabilities of relevance of the documents that have one."""
    return [place.relevance for place in result.ranking if place.relevance is not None]


def is_likely_to_fit(result: SearchResult) -> bool:
    """Return whether any of the documents is likely to be relevant, as far as that is known."""
    estimates = _estimates(result)
    return not estimates or max(estimates) >= LIKELY


def is_unanswered(result: SearchResult) -> bool:
    """Return whether a model was asked, and not one of its answers came."""
    topics = [round_.topic for round_ in result.iterations] + [result.unused_topic]
    statuses = [topic.status for topic in topics if topic is not None]
    statuses += [group.status for round_ in result.iterations for group in round_.refinements]
    statuses += [group.status for group in result.unused_refinements]
    return bool(statuses) and all(status in UNANSWERED for status in statuses)


def fit_of(result: SearchResult) -> str:
    """Return a sentence that says how many documents are relevant; empty if that is unknown."""
    estimates = _estimates(result)
    if not estimates or len(estimates) < len(result.ranking):
        return ""
    best = max(estimates)
    if best < LIKELY:
        probability = f"{best:.0%}" if best >= LEAST_SHOWN else "less than 1%"
        return f"None of these is likely to fit: the best has a probability of {probability}."
    expected = max(1, round(sum(estimates)))
    if len(estimates) == 1:
        return f"This document has a probability of {best:.0%} to be relevant."
    return f"Of these {len(estimates)}, about {expected} are likely to be relevant."


def _page(result: SearchResult) -> Iterator[str]:
    """Say of a later page what it is a page of."""
    if result.page == 1:
        return
    if not result.ranking:
        yield nothing_on(result)
        return
    yield (
        f"Page {result.page:,} of {result.pages:,}. {LATER_PAGE}: it is made of the documents that "
        "earlier pages left."
    )


def nothing_on(result: SearchResult) -> str:
    """Return a sentence about a page without documents: of no list, or beyond the end of one."""
    if not result.pages:
        return "No document matches the query."
    pages = "1 page" if result.pages == 1 else f"{result.pages:,} pages"
    return f"The list ends before page {result.page:,}: it has {pages}."


def _before(result: SearchResult) -> Iterator[str]:
    """Say how the target came about, and whether relevance was estimated."""
    origins = result.target_origin
    baseline = result.baseline.ranking
    phrases = list(dict.fromkeys(origins.values()))
    if len(phrases) > 1:
        phrases = [f"{name}: {how}" for name, how in origins.items()]
    if result.ranking and phrases:
        told = f"{TARGET}{'; '.join(phrases)}."
        # An audit cannot aim at the results, which are what it measures.
        if any(PARTS["retrieved"] in phrase for phrase in phrases):
            told += f" An audit aims at {PARTS['relevance']}."
        yield told
    is_estimated = any(place.relevance is not None for place in [*result.ranking, *baseline])
    is_moved = [place.id for place in result.ranking] != [place.id for place in baseline]
    if result.method == "fairqr" and is_moved and not is_estimated:
        why = f"{result.retriever} does not estimate that; the retriever 'hybrid' does"
        if result.retriever.startswith(("hybrid", "run:")):
            why = "the documents have no texts to compare"
        yield f"{UNCHECKED}: {why}."


def _lacked(result: SearchResult) -> Iterator[str]:
    """Yield a sentence for each group that lacked exposure in the baseline ranking."""
    gaps = result.baseline.gaps
    before = result.baseline.exposure
    if gaps is None:
        return
    for name, groups in result.target.items():
        lacking = {
            group: gaps.ranking[name][group] + gaps.unattainable[name][group] for group in groups
        }
        most_lacking = sorted(groups, key=lambda group: -lacking[group])[:MOST_EXPLAINED]
        for group, wanted in groups.items():
            if group not in most_lacking:
                continue
            reasons = []
            if (withheld := gaps.ranking[name][group]) >= LEAST_GAP:
                points = _points(withheld)
                verb = "was" if points == "1 point" else "were"
                reasons.append(f"{points} {verb} withheld by the ranking")
            if (missing := gaps.unattainable[name][group]) >= LEAST_GAP:
                reasons.append(f"for {_points(missing)}, {TOO_FEW}")
            if reasons:
                why = "; ".join(reasons)
                yield (
                    f"{group}: {before[name][group]:.0%} of the exposure before, target "
                    f"{wanted:.0%}. {why[0].upper()}{why[1:]}."
                )


def _points(share: float) -> str:
    points = round(100 * share)
    return "1 point" if points == 1 else f"{points} points"


def relevance_in_words(result: SearchResult) -> str:
    """Return what the expected relevance of a result goes by."""
    return "expected relevance" if result.relevance is not None else "relevance by rank"


def _gained(result: SearchResult) -> Iterator[str]:
    """Say what fairness cost in relevance, and what the model brought."""
    after = result.objective
    before = result.baseline.objective
    without = result.without_model
    relevance = relevance_in_words(result)
    if after and before and result.ranking and is_likely_to_fit(result):
        yield (
            f"{relevance.capitalize()}: {after.relevance:.2f} of what is possible; before, it was "
            f"{before.relevance:.2f}. Fairness: {after.fairness:.2f}; before, "
            f"{before.fairness:.2f}."
        )
        if after.price:
            yield from _priced(after.price)
        if after.weight != 1:
            yield f"The weight of fairness was {after.weight:g}."
    if after and without and not is_unanswered(result):
        counts = {0: "None of these documents was", 1: "1 of these documents was"}
        documents = counts.get(without.documents, f"{without.documents} of these documents were")
        relevance_gained = after.relevance - without.objective.relevance
        fairness_gained = after.fairness - without.objective.fairness
        yield (
            f"{documents} {BROUGHT}. The model's words changed {relevance} by "
            f"{relevance_gained:+.3f} and fairness by {fairness_gained:+.3f}."
        )


def _priced(price: Shares) -> Iterator[str]:
    """Say what one more point costs for the group for which it costs most, if that is seen."""
    costs = [(cost, group) for by_group in price.values() for group, cost in by_group.items()]
    cost, group = max(costs, default=(0.0, ""))
    if cost >= LEAST_PRICE:
        yield f"One more point for {group} would cost {cost:.3f} of relevance."


BOUNDED: dict[Among, str] = {
    "engine_order": "keeps the engine's order within groups",
    "labelled_exposure": "shows labelled documents as much",
}
"""What the best order does, if not all orders are bounded."""


def say_near_best(objective: Objective) -> str:
    """Return a sentence about a list that is known to be near the best order; or nothing."""
    if objective.below_best is None or objective.below_best >= NEAR_BEST:
        return ""
    tenths = max(1, math.ceil(1000 * objective.below_best))
    apart = f" without {' and '.join(objective.leaves_out)}" if objective.leaves_out else ""
    common = " and ".join(BOUNDED[kind] for kind in objective.among)
    which = f" that {common}" if common else ""
    return f"At most {tenths / 10:.1f} % from the best order{which}{apart}."


def say_how_found(retriever: str) -> str:
    """Return a sentence about what found the documents of a search, and why that was used.

    What ``auto`` means depends on what is stored, so the same command may find in another way after
    a search by vectors.

    Args:
        retriever: The ``retriever`` of a result or of an engine.
    """
    kind, _, encoder = retriever.partition(":")
    if kind == "hybrid":
        return f"Found by words and vectors, since vectors of {encoder} are stored for this index."
    if kind == "hybrid-pool":
        return f"Found by the engine alone: no vectors are stored, so {encoder} reads texts."
    if kind == "dense":
        alone = f"Found by vectors of {encoder} alone"
        if encoder != MiniLmEncoder.name:
            return f"{alone}."
        return f"{alone}. They are stored, so searches now use words and vectors by default."
    if kind == "bm25":
        return "Found by words alone."
    return f"Found by {retriever}."


def notes_on(model: str, trust: Trust) -> list[str]:
    """Return a sentence if nobody measured what a model's words bring, or if they bring nothing."""
    if trust.are_given:
        return []
    if not trust.measured_on:
        # The name of a file of replies has no folder, which the command needs.
        named = f"{RECORDED}:FILE" if model.startswith(f"{RECORDED}:") else model
        return [
            f"{NOBODY_MEASURED} {model} bring, so they count little; "
            f"'fairqr models measure {named} --quick' does, with twenty questions."
        ]
    if trust.is_in_vain:
        return [
            f"The words of {model} were measured to bring nothing; it was asked nevertheless, so "
            "they count little."
        ]
    return []


def passage_lines(
    ranking: Sequence[results.Place], documents: Sequence[Document], *, whole: bool = False
) -> Iterator[str]:
    """Yield the rank, the title, the groups and a line of text of each document.

    Args:
        ranking: The documents at their ranks.
        documents: Their texts.
        whole: Give the whole text, as one line, in place of its beginning.
    """
    texts = {document.id: document.text for document in documents}
    for place in ranking:
        groups = "; ".join(
            f"{attribute}: {', '.join(shares) or 'unknown'}"
            for attribute, shares in place.groups.items()
        )
        title = fence(place.title, LINE)
        text = texts.get(place.id, "")
        text = fence(text, len(text) + 1) if whole else passage_of(text)
        yield f"{place.rank}. {title} [{groups}] {text}".rstrip()


def search_lines(result: SearchResult, passages: Iterable[str]) -> list[str]:
    """Return what a model that called a search as a tool is to read.

    Args:
        result: The result of the search.
        passages: Of its documents, as :func:`passage_lines` yields them.
    """
    changes: Iterable[str] = ()
    if result.ranking:
        changes = exposure_lines(result.baseline.exposure, result.exposure, result.target)
    return [*unfit_lines(result), *quoted(passages), *changes, *result.warnings]


def quoted(passages: Iterable[str]) -> list[str]:
    """Return passages between tags, so that a model does not take them for instructions."""
    known = list(passages)
    return ["<passages>", *known, "</passages>"] if known else []


def unfit_lines(result: SearchResult) -> Iterator[str]:
    """Yield a sentence for those who use documents, if none of them is likely to be relevant."""
    sentence = fit_of(result)
    if sentence and not is_likely_to_fit(result):
        yield sentence


def exposure_lines(before: Shares, after: Shares, target: Shares) -> Iterator[str]:
    """Yield a line for each attribute that says how the exposure of its groups changed."""
    for attribute, shares in after.items():
        changes = [
            f"{group} {before[attribute][group]:.0%} to {share:.0%} "
            f"(target {target[attribute][group]:.0%})"
            for group, share in shares.items()
        ]
        yield f"Exposure by {attribute}: {', '.join(changes)}."


def passage_of(text: str) -> str:
    """Return the beginning of a text as one line without markup."""
    line = fence(text, len(text) + 1)
    return line if len(line) <= LINE else f"{line[:LINE].rsplit(' ', 1)[0]} …"
