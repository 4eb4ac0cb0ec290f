"""Search results on the terminal: who gets seen, what it cost, and the lists."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fairqr.cli.bars import NAME_WIDTH, NEAR, draw_bars
from fairqr.cli.output import cut, decimal, literal, number, quantity, shortened, table
from fairqr.cli.rounds import evidence_lines, round_lines, strongest_evidence
from fairqr.graph.search.explanation import (
    BROUGHT,
    LATER_PAGE,
    LEAST_GAP,
    NOBODY_MEASURED,
    TARGET,
    TOO_FEW,
    UNCHECKED,
    fit_of,
    is_likely_to_fit,
    is_unanswered,
    nothing_on,
    relevance_in_words,
    say_how_found,
    say_near_best,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from fairqr.graph.answer.result import ExposedDocument
    from fairqr.graph.running import UsageReport
    from fairqr.graph.search.result import RankedDocument, SearchResult

TITLE_WIDTH = 30
LEAST_SHOWN = 0.0005  # a smaller share would read 0.0%
BY = "by: what of the model's words speaks most for a document that rose"
ALWAYS_SAID = (LATER_PAGE, TARGET, UNCHECKED, TOO_FEW, BROUGHT, NOBODY_MEASURED)
"""What the sentences of an explanation contain that are shown without ``--verbose``."""


def result_lines(
    result: SearchResult, passages: Mapping[str, str], *, verbose: bool = False
) -> Iterator[RenderableType]:
    """Yield how relevant documents are, who gets seen, what it cost, and the lists.

    Between those come the rounds of a model, if one was asked.

    Args:
        result: The result of a search.
        passages: How the texts of its documents begin, by id; those of some may be missing.
        verbose: Also show all rounds and explanations, the divergence, and how it was made.
    """
    has_hits = bool(result.baseline.ranking)
    if not has_hits:
        yield literal(nothing_on(result), "bold")
        yield literal(say_how_found(result.retriever), "dim")
        if not result.ranking and not verbose:
            return

    yield from _headlines(result, verbose)
    sentences = [*cost_sentences(result), *_model_sentences(result)]
    yield literal(" ".join(sentences))
    if has_hits:
        yield literal(say_how_found(result.retriever), "dim")
    yield from _explanation_lines(result, verbose)
    yield from round_lines(result, verbose=verbose)

    yield ""
    yield _both_lists(result, passages)
    if _has_evidence(result):
        yield literal(BY, "dim")
    if verbose:
        yield from evidence_lines(result)
        yield _how_made(result)


def _headlines(result: SearchResult, verbose: bool) -> Iterator[RenderableType]:
    """Yield how relevant the documents are, and who gets seen."""
    fit = fit_of(result)
    if fit:
        yield literal(fit, "bold")
    if result.baseline.ranking:
        for attribute in result.exposure:
            yield from _attribute_lines(result, attribute, verbose)


def _explanation_lines(result: SearchResult, verbose: bool) -> Iterator[Text]:
    """Yield the sentences that explain a result, except for the one that stands above."""
    fit = fit_of(result)
    for sentence in result.explanation:
        is_always_said = any(phrase in sentence for phrase in ALWAYS_SAID)
        if sentence != fit and (verbose or is_always_said):
            yield literal(sentence)


def _attribute_lines(
    result: SearchResult, attribute: str, verbose: bool
) -> Iterator[RenderableType]:
    """Yield who gets seen of the groups of an attribute, before and after."""
    yield literal(_headline_of(result, attribute), "bold")
    lists = {
        "before": result.baseline.exposure[attribute],
        "after": result.exposure[attribute],
    }
    yield draw_bars(lists, result.target[attribute], digits=1 if verbose else 0)
    unlabelled = result.unknown[attribute]
    if unlabelled >= LEAST_SHOWN:
        sentence = f"  {unlabelled:.1%} of the exposure has no label for '{attribute}'"
        yield literal(sentence, "dim")


def _headline_of(result: SearchResult, attribute: str) -> str:
    """Return the sentence about the group of an attribute that lacks most exposure before."""
    if result.baseline.divergences[attribute] is None:
        return f"{attribute}: no document of the baseline ranking has a label."
    target = result.target[attribute]
    shares = result.baseline.exposure[attribute]
    group = lacks_most(target, shares)
    if target[group] - shares[group] < LEAST_GAP:
        return f"{attribute}: no group is a point or more below its target."
    return (
        f"{group}: {shares[group]:.0%} of the attention; the target is {target[group]:.0%}. "
        f"{_change_of(result, attribute, group)}"
    )


def _change_of(result: SearchResult, attribute: str, group: str) -> str:
    """Return the sentence about what the fair order gives a group."""
    ids_before = [document.id for document in result.baseline.ranking]
    ids_after = [document.id for document in result.ranking]
    if ids_before == ids_after:
        return "The order stays as it is."
    share = result.exposure[attribute][group]
    excess = share - result.target[attribute][group]
    beyond = ""
    if excess > NEAR:
        points = quantity(round(100 * excess), "point")
        beyond = f", {points} too much"
    return f"Fair order: {share:.0%}{beyond}{_carried_by(result, attribute, group)}."


def _carried_by(result: SearchResult, attribute: str, group: str) -> str:
    """Return how many documents have a group's exposure, since one high up may have all of it."""
    labels = []
    for document in result.ranking:
        if attribute in document.groups:
            labels.append(document.groups[attribute])
    # No document has a label of an intersection.
    if not labels:
        return ""
    documents = sum(shares.get(group, 0) > 0 for shares in labels)
    return f", {quantity(documents, 'document')}"


def lacks_most(target: Mapping[str, float], shares: Mapping[str, float]) -> str:
    """Return the group that is furthest below its target."""
    return max(target, key=lambda group: target[group] - shares[group])


def cost_sentences(result: SearchResult) -> Iterator[str]:
    """Yield what the ranking cost in relevance, and how many documents rose."""
    baseline = result.baseline.expected_relevance
    relevance = result.expected_relevance
    has_relevance = baseline is not None and relevance is not None
    if has_relevance and is_likely_to_fit(result):
        yield f"Cost: {relevance_in_words(result)} {baseline:.2f} → {relevance:.2f}."
        is_estimated = result.relevance is not None
        if result.objective and is_estimated:
            near_best = say_near_best(result.objective)
            if near_best:
                yield near_best

    ranks_before = _ranks_before(result)
    risen = sum(_has_risen(document, ranks_before) for document in result.ranking)
    if risen:
        yield f"{quantity(risen, 'document')} moved up."


def _ranks_before(result: SearchResult) -> dict[str, int]:
    """Return the ranks in the baseline ranking, by id."""
    return {document.id: document.rank for document in result.baseline.ranking}


def _has_risen(document: RankedDocument, ranks_before: Mapping[str, int]) -> bool:
    """Return whether a document is new, or stands higher than before."""
    rank_before = ranks_before.get(document.id)
    return rank_before is None or document.rank < rank_before


def _model_sentences(result: SearchResult) -> Iterator[str]:
    """Yield what models did for the ranking; without one, whether documents were enough."""
    if result.model:
        # Every round but the first has a model's words.
        if result.best_iteration:
            yield f"Refined by {result.model}."
        elif is_unanswered(result):
            yield f"{result.model} did not answer; a warning says why."
        else:
            yield f"{result.model} was asked in vain."
    if result.ranker:
        yield f"Re-ranked by {result.ranker}."
    if not result.model and not result.ranker:
        yield "No model was asked." if _has_large_gap(result) else "No model was needed."


def _has_large_gap(result: SearchResult) -> bool:
    """Return whether no ranking of the documents could come near the target."""
    if not result.gaps:
        return False
    for gaps in result.gaps.unattainable.values():
        if any(gap >= LEAST_GAP for gap in gaps.values()):
            return True
    return False


def _both_lists(result: SearchResult, passages: Mapping[str, str]) -> RenderableType:
    """Draw the lists before and after, with how far documents moved, and by what evidence."""
    heads: list[Any] = ["", "before", "", "after", "", number()]
    has_evidence = _has_evidence(result)
    if has_evidence:
        heads.append("by")

    ranks_before = _ranks_before(result)
    cells_before = [document_cells(document, passages) for document in result.baseline.ranking]
    cells_after = []
    for document in result.ranking:
        move = _move(document, ranks_before.get(document.id))
        cells = [*document_cells(document, passages), move]
        if has_evidence:
            evidence = ""
            if _has_risen(document, ranks_before):
                evidence = strongest_evidence(document)
            cells.append(Text(evidence, "dim"))
        cells_after.append(cells)

    empty_before = ("", "")
    empty_after = [""] * (len(heads) - 3)
    rows: list[list[Any]] = []
    for before, after in zip_longest(cells_before, cells_after):
        rank = len(rows) + 1
        rows.append([rank, *(before or empty_before), *(after or empty_after)])
    return table(heads, rows, gap=1)


def _has_evidence(result: SearchResult) -> bool:
    """Return whether a model's words count as evidence in a result."""
    return any(document.evidence for document in result.ranking)


def _move(document: RankedDocument, rank_before: int | None) -> Text:
    if rank_before is None:
        return Text("new", "green")
    ranks = rank_before - document.rank
    if not ranks:
        return Text("=", "dim")
    return Text(f"▲{ranks}", "green") if ranks > 0 else Text(f"▼{-ranks}", "yellow")


def document_cells(
    document: RankedDocument | ExposedDocument, passages: Mapping[str, str]
) -> tuple[Text, Text]:
    """Return the title of a document, below it how its text begins, and its groups."""
    title = literal(shortened(document.title or document.id, 2 * TITLE_WIDTH))
    passage = shortened(passages.get(document.id, ""), 2 * TITLE_WIDTH)
    if passage:
        title.append(f"\n{passage}", style="dim")

    labels = ["+".join(shares) or "unknown" for shares in document.groups.values()]
    groups = literal(shortened(", ".join(labels), 2 * NAME_WIDTH), "dim")
    return cut(title), cut(groups)


def _how_made(result: SearchResult) -> Text:
    """Return the last line: how the result was made, and what it cost."""
    before = decimal(result.baseline.divergence, 4)
    after = decimal(result.divergence, 4)
    sentence = (
        f"'{result.query}' in {result.corpus}, method {result.method}, divergence {before} → "
        f"{after}."
    )
    if result.prompts:
        prompts = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
        sentence += f" Prompts {prompts}."
    return origin(f"{sentence} Retriever {result.retriever}", result.usage)


def origin(sentence: str, usage: UsageReport) -> Text:
    """Return the last line of a result: how it was made, and what models cost, if any was asked."""
    if usage.model_calls:
        calls = quantity(usage.model_calls, "model call")
        tokens = f"{usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens"
        sentence += f"; {calls}, {tokens}"
    cached = f"{usage.cached_calls} from the cache, " if usage.cached_calls else ""
    seconds = usage.milliseconds / 1000
    return literal(f"{sentence}; {cached}{seconds:.2f} s", "dim")
