"""Searches and answers on the terminal: what is done meanwhile, and then who gets seen."""

from __future__ import annotations

import contextlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import typer
from langchain_core.messages import AIMessageChunk
from rich.text import Text

from fairqr.cli import output as out
from fairqr.cli.common import agree
from fairqr.graph.stream import StepData

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from fairqr.api import FairSearch
    from fairqr.graph.answer.builder import AnswerResult, ExposedDocument
    from fairqr.graph.search.context import Budget, Context
    from fairqr.graph.search.result import RankedDocument, RankingCost, SearchResult
    from fairqr.graph.steps import UsageReport

BAR = 30
NAME = 24
TITLE = 30
_STOPPED = {
    "converged": "the divergence is at or below the threshold",
    "little_to_gain": "another round was expected to gain too little",
    "no_hits": "no document matches the query",
    "no_improvement": "nothing more was gained",
    "max_iterations": "the rounds were used up",
    "not_refining": "the method does not refine",
    "budget": "the budget was used up",
    "model_failed": "the model failed",
}
_NO_WORDS = {
    "repeated": "none that is new",
    "unknown_terms": "none that any document has",
    "unsupported": "none of the topic or the group",
}
"""What a refinement's status means for people, where there are no keywords; others are failures."""

_USED = {True: Text("✓", style="green"), False: Text(), None: Text("?", style="yellow")}


async def follow(
    search: FairSearch,
    query: str,
    context: Context,
    *,
    quiet: bool = False,
    model: str = "",
    yes: bool = True,
) -> tuple[Any, bool]:
    """Run what a context asks for; a spinner on stderr says what is done.

    Args:
        search: What runs it.
        query: What is searched for; an answer that comes in pieces is written below it.
        context: How.
        quiet: Show no spinner.
        model: The name of the model that re-ranks or is probed; a line says what it may cost.
        yes: Whether the user agreed to a large run.

    Returns:
        The result, and whether an answer stands on the terminal.

    Raises:
        InputError: The run is large, and nobody agreed.
    """
    screen = out.console()
    status = out.console(stderr=True, quiet=quiet).status("searching")
    written = False
    try:
        with status:
            async with contextlib.aclosing(search.stream(query, context)) as events:
                async for event in events:
                    if isinstance(event, AIMessageChunk):
                        status.stop()
                        if not written:
                            screen.print(out.literal(query, "bold"))
                        written = True
                        screen.print(out.literal(event.text, lines=True), end="", soft_wrap=True)
                    elif isinstance(event, StepData):
                        status.update(event.step.replace("_", " "))
                        if event.cost and model:
                            _say_cost(event.cost, model, context.budget, yes)
    finally:
        if written:
            screen.print()
    return event, written


def _say_cost(cost: RankingCost, model: str, budget: Budget, yes: bool) -> None:
    """Say what a model may cost at most, and go on only if that is little or agreed to."""
    calls, tokens = out.counted(cost.calls, "call"), cost.tokens
    asked = min(cost.calls, budget.model_calls or cost.calls)
    instead = "name fewer documents, set budget.model_calls or budget.tokens"
    agree(asked, min(tokens, budget.tokens or tokens), yes=yes, instead=instead)
    documents = out.counted(cost.documents, "document")
    line = f"at most {calls} of {model} for {documents}; about {tokens:,} tokens"
    typer.echo(out.printable(line), err=True)


def exposure_bars(
    exposure: Mapping[str, Mapping[str, float]], target: Mapping[str, Mapping[str, float]]
) -> RenderableType:
    """Draw the exposure of each group as a bar, with a mark where its target is.

    Args:
        exposure: For each attribute, the share of each group.
        target: The same for the target.
    """
    # In a narrow terminal bars and names are shorter, and figures whole from 40 columns.
    width = out.console().width
    bar = BAR if width >= 80 else 6
    space = min(NAME, max(width - bar - 30, 4))
    rows = []
    for attribute, groups in exposure.items():
        for group, share in groups.items():
            wanted = target[attribute][group]
            style = "green" if share >= wanted - 0.02 else "yellow"
            line = Text()
            for cell in range(bar + 1):
                if cell == round(wanted * bar):
                    line.append("┃", "bold white")
                else:
                    line.append(*(("█", style) if cell < round(share * bar) else ("·", "dim")))
            figure, aim = Text(f"{share:.1%}", style), Text(f"target {wanted:.1%}", "dim")
            rows.append((f"  {out.shortened(group, space)}", line, figure, aim))
    return out.table(("", out.number(), out.number(), out.number()), rows, gap=1)


def result_lines(result: SearchResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield who gets seen in each round, the ranking before and after, and what it cost.

    Args:
        result: The result of a search.
        passages: How the texts of its documents begin, by id; those of some may be missing.
    """
    title = out.literal(result.query, "bold")
    yield title.append(out.printable(f"  in {result.corpus}, method {result.method}"), "not bold")
    for record in result.iterations:
        retrieved = "" if record.index else "  plain retrieval"
        yield Text(f"\nround {record.index}{retrieved}", "bold")
        for each in record.refinements:
            none = _NO_WORDS.get(each.status, f"none ({each.status.replace('_', ' ')})")
            words = ", ".join(each.keywords) or none
            yield out.literal(f"  words for {out.shortened(each.group, NAME)}: {words}")
        yield exposure_bars(record.exposure, result.target)
        if record.divergence is not None:
            yield f"  divergence from the target {record.divergence:.4f}"
    yield Text("\nre-ranked", "bold")
    for sentence in result.explanation:
        yield out.literal(f"  {sentence}")
    yield exposure_bars(result.exposure, result.target)
    for attribute, share in result.unknown.items():
        if share >= 0.0005:  # below that it would read 0.0%
            unknown = f"{share:.1%} of the exposure has no label for '{attribute}'"
            yield out.literal(f"  {unknown}", "dim")
    if result.divergence is not None:
        before = result.baseline.divergence
        was = "" if before is None else f", before {before:.4f}"
        yield f"  divergence from the target {result.divergence:.4f}{was}"
    old, new = result.baseline.ranking, result.ranking
    places = {document.id: document.rank for document in old}
    befores, afters = ([_document(it, passages) for it in ranking] for ranking in (old, new))
    moves = [(_move(document, places),) for document in new]
    rows = zip_longest(befores, afters, moves, fillvalue=("", ""))
    yield out.table(
        ("", "plain retrieval", "", "re-ranked", "", out.number("was")),
        ((rank, *before, *after, move[0]) for rank, (before, after, move) in enumerate(rows, 1)),
        gap=1,
    )
    by = f"found by {result.retriever}; "
    if result.model:
        prompt = result.prompt
        with_ = f" with {prompt.id}={prompt.version}" if prompt else ""
        by += f"refined by {result.model}{with_}; "
    if result.ranker:
        by += f"re-ranked by {result.ranker}; "
    rounds = len(result.iterations) - 1
    ended = f"stopped after {out.counted(rounds, 'round')}" if rounds else "no refinement"
    yield origin(f"{by}{ended}: {_STOPPED[result.stop_reason]}", result.usage)


def origin(how: str, usage: UsageReport) -> Text:
    """Return the last line of a result: how it was made, and what models cost."""
    asked = out.counted(usage.model_calls, "model call")
    if usage.cached_calls:
        asked += f" and {usage.cached_calls} from the cache"
    tokens = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
    return out.literal(f"{how}; {asked}, {tokens}, {usage.milliseconds / 1000:.2f} s", "dim")


def _move(document: RankedDocument, places: Mapping[str, int]) -> Text:
    if document.id not in places:
        return Text("new", "green")
    moved = places[document.id] - document.rank
    if not moved:
        return Text("=", "dim")
    return Text(f"▲{moved}", "green") if moved > 0 else Text(f"▼{-moved}", "yellow")


def answer_lines(
    result: AnswerResult, passages: Mapping[str, str], *, written: bool = False
) -> Iterator[RenderableType]:
    """Yield the answer and its sources; of several samples how they differ.

    Args:
        result: What to show.
        passages: How the texts of its documents begin, by id; those of some may be missing.
        written: The answer itself stands there already.
    """
    if not written:
        yield out.literal(result.question, "bold")
    counts = result.counts
    if counts.samples > 1:
        yield from _samples(result, passages)
    else:
        if not written:
            yield out.literal(result.answers[0].text, lines=True)
        yield from _sources(result, passages)
    judged = f", judged by {result.attributor}" if result.attributor else ""
    yield ""
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
    yield out.table(
        ("", "", title, "groups"),
        (
            (place, _USED[is_used], *_document(documents[id_], passages))
            for place, (id_, is_used) in enumerate(zip(answer.ids, used, strict=True), start=1)
        ),
    )


def _samples(result: AnswerResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the different answers, whose documents were read and used, and the measures."""
    counts = result.counts
    answers: list[Any] = [
        (it.samples, " ".join(it.text.split()), it.rankings) for it in result.distribution
    ]
    answers += [(n, f"none ({why.replace('_', ' ')})", "") for why, n in counts.failed.items()]
    yield ""
    yield out.table(
        (out.number("samples"), "answer", "rankings"),
        ((f"{n} of {counts.samples}", *cells) for n, *cells in answers),
    )
    read = [document for document in result.ranking if document.exposure]
    yield ""
    yield out.table(
        ("rank", "document", "groups", "exposure", "attributed"),
        ((it.rank, *_document(it, passages), it.exposure, it.attributed) for it in read),
    )
    yield f"{out.counted(len(result.ranking) - len(read), 'document')} in no sample"
    rows = [
        (
            f"{part.attribute}: {it.group}",
            *map(out.percent, (it.exposure, it.attributed, it.target)),
        )
        for part in result.groups
        for it in part.groups
    ]
    rows += [
        (f"{it.attribute}: unknown", *map(out.percent, (it.unknown, it.attributed_unknown)), "")
        for it in result.groups
    ]
    yield ""
    yield out.table(("", *map(out.number, ("exposure", "attributed", "target"))), rows)
    yield ""
    yield f"disparity of exposure: {result.disparity:.3f} (EE-D/k; 1 is one ranking)"
    if result.attribution_rate is None:
        yield "attribution: not judged"
    else:
        yield f"disparity of attribution: {out.decimal(result.attributed_disparity, 3)}"
        judged = out.counted(counts.judged, "sample")
        yield f"attribution rate: {result.attribution_rate:.3f} (used of read, over {judged})"


def _document(
    document: RankedDocument | ExposedDocument, passages: Mapping[str, str]
) -> tuple[Text, Text]:
    """Return the title of a document, below it how its text begins, and its groups."""
    cell = out.literal(out.shortened(document.title or document.id, 2 * TITLE))
    if passage := out.shortened(passages.get(document.id, ""), 2 * TITLE):
        cell.append(f"\n{passage}", style="dim")
    groups = ", ".join("+".join(shares) or "unknown" for shares in document.groups.values())
    labels = out.literal(out.shortened(groups, 2 * NAME), "dim")
    for each in (cell, labels):
        each.no_wrap, each.overflow = True, "ellipsis"
    return cell, labels
