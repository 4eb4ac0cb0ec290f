"""Says in sentences what the figures of a search mean, and shows its documents as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from fairqr.agents.models.replies import RECORDED
from fairqr.agents.profiles.finding import Trust
from fairqr.graph.search.result import (
    Gaps,
    Objective,
    Place,
    RankedDocument,
    SearchResult,
    Shares,
    WithoutModel,
)
from fairqr.prompts.template import fence
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.fairness.relevance import LIKELY
from fairqr.retrieval.fairness.target import PARTS
from fairqr.retrieval.rerankers.certificate import Among
from fairqr.retrieval.sources.documents import Document

UNANSWERED = (
    "denied",
    "rate_limited",
    "timeout",
    "unavailable",
    "invalid_request",
    "unsupported",
)
"""The statuses of questions that got no answer."""

LEAST_GAP = 0.01
"""Gaps below one percentage point are left out."""

MOST_EXPLAINED = 8
"""We explain at most this many gaps of an attribute: the widest."""

LEAST_PRICE = 0.0005
"""A lower price of a point would read .000."""

NEAR_BEST = 0.01
"""We say how far a list is from the best order only below this share. In a short list, much of a
longer distance is there because ranks are whole."""

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
    sentences: list[str] = []
    fit = fit_of(result)
    if fit:
        sentences.append(fit)
    sentences += _sentences_on_page(result)
    sentences += _sentences_on_target(result)
    sentences += _sentences_on_missing_estimates(result)
    sentences += _sentences_on_gaps(result)
    sentences += notes
    sentences += _sentences_on_tradeoff(result)
    sentences += _sentences_on_model(result)
    return sentences


def _estimates_of(ranking: Sequence[RankedDocument]) -> list[float]:
    """Return the probabilities of relevance of the documents that have one."""
    return [document.relevance for document in ranking if document.relevance is not None]


def is_likely_to_fit(result: SearchResult) -> bool:
    """Return whether any of the documents is likely to be relevant, as far as that is known."""
    estimates = _estimates_of(result.ranking)
    return not estimates or max(estimates) >= LIKELY


def is_unanswered(result: SearchResult) -> bool:
    """Return whether a model was asked, and not one of its answers came."""
    topics = [result.unused_topic]
    groups = [*result.unused_refinements]
    for round_ in result.iterations:
        topics.append(round_.topic)
        groups += round_.refinements

    statuses = [group.status for group in groups]
    statuses += [topic.status for topic in topics if topic is not None]
    return bool(statuses) and all(status in UNANSWERED for status in statuses)


def fit_of(result: SearchResult) -> str:
    """Return a sentence that says how many documents are relevant; empty if that is unknown."""
    estimates = _estimates_of(result.ranking)
    is_complete = len(estimates) == len(result.ranking)
    if not estimates or not is_complete:
        return ""

    best = max(estimates)
    if best < LIKELY:
        probability = f"{best:.0%}" if best >= LEAST_SHOWN else "less than 1%"
        return f"None of these is likely to fit: the best has a probability of {probability}."
    if len(estimates) == 1:
        return f"This document has a probability of {best:.0%} to be relevant."
    expected = max(1, round(sum(estimates)))
    return f"Of these {len(estimates)}, about {expected} are likely to be relevant."


def _sentences_on_page(result: SearchResult) -> Iterator[str]:
    """Say which page of the list a later page is."""
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


def _sentences_on_target(result: SearchResult) -> Iterator[str]:
    """Say how the target came about, if there are documents."""
    origins = result.target_origin
    if not result.ranking or not origins:
        return

    phrases = list(dict.fromkeys(origins.values()))
    if len(phrases) > 1:
        phrases = [f"{attribute}: {origin}" for attribute, origin in origins.items()]
    sentence = f"{TARGET}{'; '.join(phrases)}."
    # An audit cannot aim at the results, which are what it measures.
    if any(PARTS["retrieved"] in phrase for phrase in phrases):
        sentence += f" An audit aims at {PARTS['relevance']}."
    yield sentence


def _sentences_on_missing_estimates(result: SearchResult) -> Iterator[str]:
    """Say why documents were moved although nobody estimated whether they are relevant."""
    baseline = result.baseline.ranking
    is_estimated = bool(_estimates_of([*result.ranking, *baseline]))
    ids = [document.id for document in result.ranking]
    is_moved = ids != [document.id for document in baseline]
    if result.method != "fairqr" or is_estimated or not is_moved:
        return

    reads_texts = result.retriever.startswith(("hybrid", "run:"))
    if reads_texts:
        reason = "the documents have no texts to compare"
    else:
        reason = f"{result.retriever} does not estimate that; the retriever 'hybrid' does"
    yield f"{UNCHECKED}: {reason}."


def _sentences_on_gaps(result: SearchResult) -> Iterator[str]:
    """Yield a sentence for each group that lacked exposure in the baseline ranking."""
    gaps = result.baseline.gaps
    if gaps is None:
        return
    for attribute, target in result.target.items():
        exposure = result.baseline.exposure[attribute]
        widest = _groups_with_widest_gaps(gaps, attribute)
        for group, share in target.items():
            reasons = _reasons_for_gap(gaps, attribute, group)
            if not reasons or group not in widest:
                continue
            explanation = "; ".join(reasons)
            yield (
                f"{group}: {exposure[group]:.0%} of the exposure before, target {share:.0%}. "
                f"{explanation[0].upper()}{explanation[1:]}."
            )


def _groups_with_widest_gaps(gaps: Gaps, attribute: str) -> list[str]:
    """Return the groups of an attribute that lack most exposure."""
    withheld = gaps.ranking[attribute]
    unattainable = gaps.unattainable[attribute]
    by_gap = sorted(withheld, key=lambda group: -(withheld[group] + unattainable[group]))
    return by_gap[:MOST_EXPLAINED]


def _reasons_for_gap(gaps: Gaps, attribute: str, group: str) -> list[str]:
    """Return why a group lacked exposure; empty if its gaps are small."""
    reasons = []
    withheld = gaps.ranking[attribute][group]
    if withheld >= LEAST_GAP:
        points = _in_points(withheld)
        verb = "was" if points == "1 point" else "were"
        reasons.append(f"{points} {verb} withheld by the ranking")

    unattainable = gaps.unattainable[attribute][group]
    if unattainable >= LEAST_GAP:
        reasons.append(f"for {_in_points(unattainable)}, {TOO_FEW}")
    return reasons


def _in_points(share: float) -> str:
    points = round(100 * share)
    return "1 point" if points == 1 else f"{points} points"


def relevance_in_words(result: SearchResult) -> str:
    """Return what the expected relevance of a result goes by."""
    return "expected relevance" if result.relevance is not None else "relevance by rank"


def _sentences_on_tradeoff(result: SearchResult) -> Iterator[str]:
    """Say what fairness cost in relevance."""
    after = result.objective
    before = result.baseline.objective
    if after is None or before is None:
        return
    if not result.ranking or not is_likely_to_fit(result):
        return

    relevance = relevance_in_words(result).capitalize()
    yield (
        f"{relevance}: {after.relevance:.2f} of what is possible; before, it was "
        f"{before.relevance:.2f}. Fairness: {after.fairness:.2f}; before, {before.fairness:.2f}."
    )
    if after.price:
        yield from _sentences_on_price(after.price)
    if after.weight != 1:
        yield f"The weight of fairness was {after.weight:g}."


def _sentences_on_model(result: SearchResult) -> Iterator[str]:
    """Say what the model brought, if it was asked and answered."""
    after = result.objective
    without = result.without_model
    if after is None or without is None or is_unanswered(result):
        return

    relevance_gained = after.relevance - without.objective.relevance
    fairness_gained = after.fairness - without.objective.fairness
    yield (
        f"{_brought_documents(without)} {BROUGHT}. The model's words changed "
        f"{relevance_in_words(result)} by {relevance_gained:+.3f} and fairness by "
        f"{fairness_gained:+.3f}."
    )


def _brought_documents(without: WithoutModel) -> str:
    """Return how many documents only the model's queries found, as a sentence's beginning."""
    match without.documents:
        case 0:
            return "None of these documents was"
        case 1:
            return "1 of these documents was"
        case count:
            return f"{count} of these documents were"


def _sentences_on_price(price: Shares) -> Iterator[str]:
    """Say what one more point costs for the group for which it costs most, if that is seen."""
    costs: list[tuple[float, str]] = []
    for by_group in price.values():
        costs += [(cost, group) for group, cost in by_group.items()]
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
    sentence = f"At most {tenths / 10:.1f} % from the best order"
    if objective.among:
        sentence += f" that {' and '.join(BOUNDED[kind] for kind in objective.among)}"
    if objective.leaves_out:
        sentence += f" without {' and '.join(objective.leaves_out)}"
    return f"{sentence}."


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
        sentence = f"Found by vectors of {encoder} alone."
        if encoder == MiniLmEncoder.name:
            sentence += " They are stored, so searches now use words and vectors by default."
        return sentence
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
    ranking: Sequence[Place], documents: Sequence[Document], *, whole: bool = False
) -> Iterator[str]:
    """Yield the rank, the title, the groups and a line of text of each document.

    Args:
        ranking: The documents at their ranks.
        documents: Their texts.
        whole: Give the whole text, as one line, in place of its beginning.
    """
    texts = {document.id: document.text for document in documents}
    for document in ranking:
        title = fence(document.title, LINE)
        text = texts.get(document.id, "")
        line = _one_line(text) if whole else passage_of(text)
        yield f"{document.rank}. {title} [{_groups_in_words(document)}] {line}".rstrip()


def _groups_in_words(document: Place) -> str:
    """Return the groups of a document: ``gender: female; region: Asia, Europe``."""
    attributes = []
    for attribute, shares in document.groups.items():
        groups = ", ".join(shares) or "unknown"
        attributes.append(f"{attribute}: {groups}")
    return "; ".join(attributes)


def search_lines(result: SearchResult, passages: Iterable[str]) -> list[str]:
    """Return what a model that called a search as a tool is to read.

    Args:
        result: The result of the search.
        passages: Of its documents, as :func:`passage_lines` yields them.
    """
    lines = [*unfit_lines(result), *quoted(passages)]
    if result.ranking:
        lines += exposure_lines(result.baseline.exposure, result.exposure, result.target)
    return lines + result.warnings


def quoted(passages: Iterable[str]) -> list[str]:
    """Return passages between tags, so that a model does not take them for instructions."""
    lines = list(passages)
    if not lines:
        return []
    return ["<passages>", *lines, "</passages>"]


def unfit_lines(result: SearchResult) -> Iterator[str]:
    """Yield a sentence for those who use documents, if none of them is likely to be relevant."""
    sentence = fit_of(result)
    if sentence and not is_likely_to_fit(result):
        yield sentence


def exposure_lines(before: Shares, after: Shares, target: Shares) -> Iterator[str]:
    """Yield a line for each attribute that says how the exposure of its groups changed."""
    for attribute, shares in after.items():
        changes = []
        for group, share in shares.items():
            share_before = before[attribute][group]
            target_share = target[attribute][group]
            changes.append(f"{group} {share_before:.0%} to {share:.0%} (target {target_share:.0%})")
        yield f"Exposure by {attribute}: {', '.join(changes)}."


def passage_of(text: str) -> str:
    """Return the beginning of a text as one line without markup."""
    line = _one_line(text)
    if len(line) <= LINE:
        return line
    whole_words = line[:LINE].rsplit(" ", 1)[0]
    return f"{whole_words} …"


def _one_line(text: str) -> str:
    """Return a whole text as one line without markup."""
    return fence(text, len(text) + 1)
