"""Searches and answers on the terminal: what is done meanwhile, and then who gets seen."""

from __future__ import annotations

import contextlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import typer
from langchain_core.messages import AIMessageChunk
from rich.text import Text

from fairqr.agents.attribution.attributor import judge_in_words
from fairqr.cli import output as out
from fairqr.cli.common import RunSettings, agree
from fairqr.cli.rounds import cut, evidence_lines, round_lines, strongest_evidence
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
from fairqr.graph.stream import StepData

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from fairqr.api import FairSearch
    from fairqr.graph.answer.result import AnswerResult, AttributeExposure, ExposedDocument
    from fairqr.graph.running import UsageReport
    from fairqr.graph.search.context import Budget, Context
    from fairqr.graph.search.result import RankedDocument, RankingCost, SearchResult

BAR = 20
NAME = 24
TITLE = 30
WORDS = 200
MOST_GROUPS = 12  # rows of bars for an attribute
NEAR = 0.02  # an exposure is near its target within two points
LEAST_SHOWN = 0.0005  # a smaller share would read 0.0%
BY = "by: what of the model's words speaks most for a document that rose"
ALWAYS_SAID = (LATER_PAGE, TARGET, UNCHECKED, TOO_FEW, BROUGHT, NOBODY_MEASURED)
"""What the sentences of an explanation contain that are shown without ``--verbose``."""

_USED = {True: Text("✓", style="green"), False: Text(), None: Text("?", style="yellow")}


async def follow(
    search: FairSearch, query: str, context: Context, settings: RunSettings, quiet: bool, model: str
) -> tuple[Any, SearchResult | None]:
    """Run what a context asks for; stderr says what is done meanwhile.

    Of an answer that comes in pieces, the last words stand there. If it breaks off, it is printed.

    Args:
        search: What runs it.
        query: What is searched for, or asked.
        context: How.
        settings: Whether the user agreed to a large run.
        quiet: Show no spinner.
        model: The name of a model that re-ranks or is probed, or ""; a line says what it may cost.

    Returns:
        The result, and that of the search which an answer or a probe began with.

    Raises:
        InputError: The run is large, and nobody agreed.
    """
    written, found = "", None
    try:
        with out.console(stderr=True, quiet=quiet).status("searching") as status:
            async with contextlib.aclosing(search.stream(query, context)) as events:
                async for event in events:
                    if isinstance(event, AIMessageChunk):
                        written += event.text
                        status.update(out.literal(written[-WORDS:], lines=True))
                    elif isinstance(event, StepData):
                        found = event.search or found
                        if not written:  # which stays while it is judged
                            status.update(event.step.replace("_", " "))
                        if event.cost and model:
                            _say_cost(event.cost, model, context.budget, settings.yes)
    except BaseException:
        if written:
            out.say([out.literal(written, lines=True)])
        raise
    return event, found


def _say_cost(cost: RankingCost, model: str, budget: Budget, yes: bool) -> None:
    """Say what a model may cost at most, and go on only if that is little or agreed to."""
    calls, tokens = cost.calls, cost.tokens
    instead = "name fewer documents, set budget.model_calls or budget.tokens"
    most = min(calls, budget.model_calls or calls), min(tokens, budget.tokens or tokens)
    agree(*most, yes=yes, instead=instead)
    asked = f"{out.counted(calls, 'call')} of {model} for {out.counted(cost.documents, 'document')}"
    typer.echo(out.printable(f"at most {asked}; about {tokens:,} tokens"), err=True)


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
    before = result.baseline.ranking
    if not before:
        yield out.literal(nothing_on(result), "bold")
        yield out.literal(say_how_found(result.retriever), "dim")
        if not result.ranking and not verbose:
            return
    yield from _headlines(result, verbose)
    yield out.literal(" ".join([*_cost(result), *_models(result)]))
    if before:
        yield out.literal(say_how_found(result.retriever), "dim")
    yield from _explanation_lines(result, verbose)
    yield from round_lines(result, verbose=verbose)
    yield ""
    yield _both_lists(result, passages)
    if _has_evidence(result):
        yield out.literal(BY, "dim")
    if verbose:
        yield from evidence_lines(result)
        yield _how_made(result)


def _headlines(result: SearchResult, verbose: bool) -> Iterator[RenderableType]:
    """Yield how relevant the documents are, and who gets seen."""
    fit = fit_of(result)
    if fit:
        yield out.literal(fit, "bold")
    if result.baseline.ranking:
        for name in result.exposure:
            yield from _attribute_lines(result, name, verbose)


def _explanation_lines(result: SearchResult, verbose: bool) -> Iterator[Text]:
    """Yield the sentences that explain a result, but the one that stands above."""
    for sentence in result.explanation:
        is_always_said = any(phrase in sentence for phrase in ALWAYS_SAID)
        if sentence != fit_of(result) and (verbose or is_always_said):
            yield out.literal(sentence)


def _attribute_lines(result: SearchResult, name: str, verbose: bool) -> Iterator[RenderableType]:
    """Yield who gets seen of the groups of an attribute, before and after."""
    yield out.literal(_opening(result, name), "bold")
    lists = {"before": result.baseline.exposure[name], "after": result.exposure[name]}
    yield _bars(lists, result.target[name], digits=1 if verbose else 0)
    unlabelled = result.unknown[name]
    if unlabelled >= LEAST_SHOWN:
        yield out.literal(f"  {unlabelled:.1%} of the exposure has no label for '{name}'", "dim")


def _both_lists(result: SearchResult, passages: Mapping[str, str]) -> RenderableType:
    """Draw the lists before and after, with how far documents moved, and by what evidence."""
    heads: list[Any] = ["", "before", "", "after", "", out.number()]
    nothing = [""] * 3
    has_evidence = _has_evidence(result)
    if has_evidence:
        heads.append("by")
        nothing.append("")
    ranks_before = {place.id: place.rank for place in result.baseline.ranking}
    befores = [_document(place, passages) for place in result.baseline.ranking]
    afters = []
    for place in result.ranking:
        rank_before = ranks_before.get(place.id)
        cells = [*_document(place, passages), _move(place, rank_before)]
        if has_evidence:
            has_risen = rank_before is None or place.rank < rank_before
            evidence = strongest_evidence(place) if has_risen else ""
            cells.append(Text(evidence, "dim"))
        afters.append(cells)
    rows: list[list[Any]] = []
    for before, after in zip_longest(befores, afters):
        rank = len(rows) + 1
        rows.append([rank, *(before or ("", "")), *(after or nothing)])
    return out.table(heads, rows, gap=1)


def _has_evidence(result: SearchResult) -> bool:
    """Return whether a model's words count as evidence in a result."""
    return any(place.evidence for place in result.ranking)


def _how_made(result: SearchResult) -> Text:
    """Return the last line: how the result was made, and what it cost."""
    before = out.decimal(result.baseline.divergence, 4)
    after = out.decimal(result.divergence, 4)
    how = (
        f"'{result.query}' in {result.corpus}, method {result.method}, divergence {before} → "
        f"{after}."
    )
    if result.prompts:
        named = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
        how += f" Prompts {named}."
    return origin(f"{how} Retriever {result.retriever}", result.usage)


def _opening(result: SearchResult, name: str) -> str:
    """Return the sentence about the group of an attribute that lacks most exposure before."""
    target, before = result.target[name], result.baseline.exposure[name]
    group = _lacks_most(target, before)
    if result.baseline.divergences[name] is None:
        return f"{name}: no document of the baseline ranking has a label."
    if target[group] - before[group] < LEAST_GAP:
        return f"{name}: no group is a point or more below its target."
    after = result.exposure[name][group]
    beyond = ""
    if after - target[group] > NEAR:
        points = round(100 * (after - target[group]))
        beyond = f", {out.counted(points, 'point')} too much"
    then = f"Fair order: {after:.0%}{beyond}{_carried_by(result, name, group)}."
    if [it.id for it in result.ranking] == [it.id for it in result.baseline.ranking]:
        then = "The order stays as it is."
    return (
        f"{group}: {before[group]:.0%} of the attention; the target is {target[group]:.0%}. {then}"
    )


def _carried_by(result: SearchResult, name: str, group: str) -> str:
    """Return how many documents have a group's exposure, since one high up may have all of it."""
    labels = [place.groups[name] for place in result.ranking if name in place.groups]
    if not labels:  # of an intersection
        return ""
    return f", {out.counted(sum(it.get(group, 0) > 0 for it in labels), 'document')}"


def _lacks_most(target: Mapping[str, float], got: Mapping[str, float]) -> str:
    """Return the group that is furthest below its target."""
    return max(target, key=lambda group: target[group] - got[group])


def _bars(
    lists: Mapping[str, Mapping[str, float]], target: Mapping[str, float], digits: int = 0
) -> RenderableType:
    """Draw the share of each group in several lists, with a mark where its target is."""
    # In a narrow terminal bars and names are shorter, and figures whole from 40 columns.
    width = out.console().width
    bar = min(BAR, max(width // 4 - 6, 3))
    space = min(NAME, max(width - 2 * bar - 27, 4))
    rows = []
    target, lists = _largest(target, lists)
    for group, wanted in target.items():
        row: list[Any] = [f"  {out.shortened(group, space)}"]
        for share in (shares[group] for shares in lists.values()):
            style = "green" if abs(share - wanted) <= NEAR else "yellow"
            full = round(share * bar)
            cells = [("█", style) if cell < full else ("·", "dim") for cell in range(bar)]
            cells[min(round(wanted * bar), bar - 1)] = ("┃", "bold white")
            row += [Text.assemble(*cells), Text(out.percent(share, digits), style)]
        rows.append((*row, Text(out.percent(wanted, digits), "dim")))
    heads = [head for name in lists for head in (name, out.number())]
    return out.table(("", *heads, out.number("target")), rows, gap=1)


def _largest(
    target: Mapping[str, float], lists: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the target and the lists for the groups with most exposure, the others as one."""
    every = {"": target, **lists}
    groups = list(target)
    if len(groups) > MOST_GROUPS:
        largest = {group: max(shares[group] for shares in every.values()) for group in groups}
        groups = sorted(groups, key=lambda group: -largest[group])[: MOST_GROUPS - 1]
    shown = {name: {group: shares[group] for group in groups} for name, shares in every.items()}
    others = len(target) - len(groups)
    if others:
        for name, shares in every.items():
            of_others = sum(shares.values()) - sum(shown[name].values())
            shown[name][f"{others} others"] = max(0.0, of_others)
    return shown.pop(""), shown


def _cost(result: SearchResult) -> Iterator[str]:
    """Yield what the ranking cost in relevance, and how many documents rose."""
    places = {it.id: it.rank for it in result.baseline.ranking}
    moved = sum(it.id not in places or it.rank < places[it.id] for it in result.ranking)
    before = result.baseline.expected_relevance
    after = result.expected_relevance
    if before is not None and after is not None and is_likely_to_fit(result):
        yield f"Cost: {relevance_in_words(result)} {before:.2f} → {after:.2f}."
        is_estimated = result.relevance is not None
        near_best = say_near_best(result.objective) if result.objective and is_estimated else ""
        if near_best:
            yield near_best
    if moved:
        yield f"{out.counted(moved, 'document')} moved up."


def _models(result: SearchResult) -> Iterator[str]:
    """Yield what models did for the ranking; without one, whether documents were enough."""
    if result.model:
        if result.best_iteration:  # every round but the first has a model's words
            yield f"Refined by {result.model}."
        elif is_unanswered(result):
            yield f"{result.model} did not answer; a warning says why."
        else:
            yield f"{result.model} was asked in vain."
    if result.ranker:
        yield f"Re-ranked by {result.ranker}."
    elif not result.model:
        gaps = result.gaps.unattainable.values() if result.gaps else ()
        lacks = any(gap >= LEAST_GAP for groups in gaps for gap in groups.values())
        yield "No model was asked." if lacks else "No model was needed."


def origin(how: str, usage: UsageReport) -> Text:
    """Return the last line of a result: how it was made, and what models cost, if any was asked."""
    if usage.model_calls:
        read, written = f"{usage.prompt_tokens:,}", f"{usage.completion_tokens:,}"
        how += f"; {out.counted(usage.model_calls, 'model call')}, {read} + {written} tokens"
    cached = f"{usage.cached_calls} from the cache, " if usage.cached_calls else ""
    return out.literal(f"{how}; {cached}{usage.milliseconds / 1000:.2f} s", "dim")


def _move(document: RankedDocument, rank_before: int | None) -> Text:
    if rank_before is None:
        return Text("new", "green")
    moved = rank_before - document.rank
    if not moved:
        return Text("=", "dim")
    return Text(f"▲{moved}", "green") if moved > 0 else Text(f"▼{-moved}", "yellow")


def answer_lines(
    result: AnswerResult, search: SearchResult | None, passages: Mapping[str, str], verbose: bool
) -> Iterator[RenderableType]:
    """Yield whose documents were read and used, the rounds of its search, and the answer.

    Args:
        result: What to show, with its sources or its samples.
        search: What its documents were found by.
        passages: How the texts of its documents begin, by id; those of some may be missing.
        verbose: Also show how it was made.
    """
    for it in result.groups:
        yield from _read_and_used(it)
    if search:
        if fit := fit_of(search):
            yield out.literal(fit)
        if cost := next(_cost(search), ""):
            yield cost
        yield from round_lines(search, verbose=verbose and len(search.iterations) > 1)
    yield from ("", out.literal(result.question, "bold"))
    counts = result.counts
    if counts.samples > 1:
        yield from _samples(result, passages)
    else:
        yield out.literal(result.answers[0].text, lines=True)
        yield from _sources(result, passages)
    judged = f", judged by {judge_in_words(result.attributor)}" if result.attributor else ""
    yield ""
    if not verbose:
        yield out.literal(f"Answered by {result.generator}{judged}; seed {result.seed}.")
        return
    yield origin(
        f"answered by {result.generator} with {result.prompt.id}={result.prompt.version}{judged}; "
        f"{out.counted(counts.rankings, 'ranking')} of {out.counted(counts.samples, 'sample')} "
        f"at alpha {result.alpha:g} of {out.counted(result.pool, 'document')} by {result.method}, "
        f"seed {result.seed}",
        result.usage,
    )


def _sources(result: AnswerResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the documents that the one answer was written from."""
    answer = result.answers[0]
    documents = {document.id: document for document in result.ranking}
    used = answer.used or [False] * len(answer.ids)
    title = "sources" if result.attributor is None else "sources, ✓ used"
    yield ""
    read = enumerate(zip(answer.ids, used, strict=True), start=1)
    rows = ((rank, _USED[it], *_document(documents[id_], passages)) for rank, (id_, it) in read)
    yield out.table(("", "", title, "groups"), rows)


def _samples(result: AnswerResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the different answers, the documents that were read and used, and the measures."""
    counts = result.counts
    answers: list[Any] = [
        (it.samples, " ".join(it.text.split()), it.rankings) for it in result.distribution
    ]
    answers += [(n, f"none ({why.replace('_', ' ')})", "") for why, n in counts.failed.items()]
    yield ""
    written = ((f"{n} of {counts.samples}", *cells) for n, *cells in answers)
    yield out.table((out.number("samples"), "answer", "rankings"), written)
    read = [document for document in result.ranking if document.exposure]
    yield ""
    cells = ((it.rank, *_document(it, passages), it.exposure, it.attributed) for it in read)
    yield out.table(("rank", "document", "groups", "exposure", "attributed"), cells)
    yield f"{out.counted(len(result.ranking) - len(read), 'document')} in no sample"
    yield ""
    yield f"disparity of exposure: {result.disparity:.3f} (EE-D/k; 1 is one ranking)"
    rate, judged = result.attribution_rate, out.counted(counts.judged, "sample")
    yield f"disparity of attribution: {out.decimal(result.attributed_disparity, 3)}"
    over = "not judged" if rate is None else f"used of read, over {judged}"
    yield f"attribution rate: {out.decimal(rate, 3)} ({over})"


def _read_and_used(part: AttributeExposure) -> Iterator[RenderableType]:
    """Yield how much of each group was read and used, first that which lacks most."""
    target = {it.group: it.target for it in part.groups}
    every = {"read": "exposure", "used": "attributed"}
    lists = {name: {it.group: getattr(it, of) for it in part.groups} for name, of in every.items()}
    lists = {name: shares for name, shares in lists.items() if None not in shares.values()}
    if "read" not in lists:
        yield out.literal(f"{part.attribute}: nothing that was read has a label.", "bold")
        return
    group = _lacks_most(target, lists["read"])
    told = " and ".join(f"{shares[group]:.0%} of what was {it}" for it, shares in lists.items())
    yield out.literal(f"{group}: {told}; the target is {target[group]:.0%}.", "bold")
    yield _bars(lists, target)
    if part.unknown >= LEAST_SHOWN:
        yield f"  {part.unknown:.1%} of what was read has no label for '{part.attribute}'"


def _document(
    document: RankedDocument | ExposedDocument, passages: Mapping[str, str]
) -> tuple[Text, Text]:
    """Return the title of a document, below it how its text begins, and its groups."""
    cell = out.literal(out.shortened(document.title or document.id, 2 * TITLE))
    if passage := out.shortened(passages.get(document.id, ""), 2 * TITLE):
        cell.append(f"\n{passage}", style="dim")
    groups = ", ".join("+".join(shares) or "unknown" for shares in document.groups.values())
    labels = out.literal(out.shortened(groups, 2 * NAME), "dim")
    return cut(cell), cut(labels)
