"""A search on the terminal: what is done while it runs, and then who gets seen."""

from __future__ import annotations

import contextlib
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.padding import Padding
from rich.text import Text

from fairqr.cli.common import agree
from fairqr.cli.output import console, counted, literal, number, printable, shortened, table
from fairqr.graph.step_data import StepData
from fairqr.graph.stream import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from fairqr.api import FairSearch, Result, StreamEvent
    from fairqr.graph.answer.result import ExposedDocument
    from fairqr.graph.search.context import Budget, Context
    from fairqr.graph.search.result import RankedDocument, RankingCost, SearchResult
    from fairqr.graph.steps import UsageReport

    R = TypeVar("R", bound=Result)

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

_NEXT = {
    "begin": "searching",
    "retrieve": "measuring",
    "choose_group": "asking the model",
    "refine": "searching",
    "rerank": "reading",
    "sample": "answering",
    "collect": "judging",
    "plan": "asking the model",
}
"""What comes after a step."""


class View:
    """Follows a run: a spinner on stderr says what is done, and what a model may be asked.

    Args:
        quiet: Show no spinner.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = console()
        self._stderr = console(stderr=True)
        self._status = None if quiet else self._stderr.status("searching")
        self._asked = ""
        self._budget: Budget | None = None
        self._agreed = True

    def end(self) -> None:
        """End the spinner."""
        if self._status:
            self._status.stop()

    def expect_cost(self, model: str, budget: Budget | None = None, *, yes: bool = True) -> None:
        """Say what re-ranking by a model, or a probe, costs at most, as soon as that is known.

        Args:
            model: Its name.
            budget: What limits the cost.
            yes: Whether the user agreed to a large run.
        """
        self._asked, self._budget, self._agreed = model, budget, yes

    def show(self, event: StreamEvent) -> None:
        """Show an event.

        Raises:
            InputError: The run is large, and nobody agreed.
        """
        if self._status and isinstance(event, Progress) and event.replies > 1:
            self._status.update(f"{event.replies} replies")
        if not isinstance(event, StepData):
            return
        if self._status and event.step in _NEXT:
            self._status.update(_NEXT[event.step])
        if event.cost and self._asked:
            self._say_cost(event.cost)

    def _say_cost(self, cost: RankingCost) -> None:
        calls, tokens = cost.calls * cost.lists, cost.tokens * cost.lists
        instead = "lower ranking.depth, set budget.model_calls or budget.tokens"
        line = f"at most {counted(calls, 'call')} of {printable(self._asked)} to re-rank "
        line += counted(cost.documents, "document")
        if cost.lists > 1:
            line += f", {cost.calls} for each of up to {cost.lists} rounds"
        if not calls:  # a probe
            calls, tokens = cost.reserved_calls, cost.reserved_tokens
            instead = "make it smaller"
            line = f"at most {calls:,} questions to {printable(self._asked)}"
        if budget := self._budget:
            limits = (budget.model_calls or calls, budget.tokens or tokens)
            asked = min(calls, limits[0]), min(tokens, limits[1])
            agree(*asked, yes=self._agreed, instead=instead)
        self._stderr.print(f"{line}; about {tokens:,} tokens", markup=False, soft_wrap=True)

    async def follow(self, search: FairSearch, query: str, context: Context, kind: type[R]) -> R:
        """Run what a context asks for, show each event, and return the result of this kind."""
        if self._status:
            self._status.start()
        try:
            async with contextlib.aclosing(search.stream(query, context)) as events:
                async for event in events:
                    if isinstance(event, kind):
                        result = event
                    else:
                        self.show(event)
        finally:
            self.end()
        return result


def exposure_bars(
    exposure: Mapping[str, Mapping[str, float]], target: Mapping[str, Mapping[str, float]]
) -> Iterator[Text]:
    """Draw the exposure of each group as a bar, with a mark where its target is.

    Args:
        exposure: For each attribute, the share of each group.
        target: The same for the target.
    """
    # Bars and names are shorter in a narrow terminal, and figures whole from 38 columns.
    columns, figures = console().width, len("    100.0%  target 100.0%")
    names = [shortened(group, NAME) for groups in exposure.values() for group in groups]
    width = min(max(map(cell_len, names)), max(columns - figures - 6, 8))
    bar = min(BAR, max(columns - figures - width - 1, 4))
    for attribute, groups in exposure.items():
        for group, share in groups.items():
            wanted = target[attribute][group]
            name = set_cell_size(shortened(group, width), width)
            line = Text(f"  {name} ", no_wrap=True, overflow="ellipsis")
            style = "green" if share >= wanted - 0.02 else "yellow"
            for cell in range(bar + 1):
                if cell == round(wanted * bar):
                    line.append("┃", "bold white")
                else:
                    line.append(*(("█", style) if cell < round(share * bar) else ("·", "dim")))
            line.append(f" {share:6.1%}", style)
            yield line.append(f"  target {wanted:.1%}", "dim")


def result_lines(result: SearchResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield who gets seen in each round, the ranking before and after, and what it cost.

    Args:
        result: The result of a search.
        passages: How the texts of its documents begin, by id; those of some may be missing.
    """
    title = literal(result.query, "bold")
    yield title.append(printable(f"  in {result.corpus}, method {result.method}"), "not bold")
    for record in result.iterations:
        yield Text(
            f"\nround {record.index}" + ("" if record.index else "  plain retrieval"), "bold"
        )
        for refinement in record.refinements:
            why = refinement.status.replace("_", " ")
            words = ", ".join(refinement.keywords) or _NO_WORDS.get(
                refinement.status, f"none ({why})"
            )
            yield literal(f"  words for {shortened(refinement.group, NAME)}: {words}")
        yield from exposure_bars(record.exposure, result.target)
        if record.divergence is not None:
            yield _divergence(record.divergence)
    yield Text("\nre-ranked", "bold")
    for sentence in result.explanation:
        yield Padding(literal(sentence), (0, 0, 0, 2))
    yield from exposure_bars(result.exposure, result.target)
    for attribute, share in result.unknown.items():
        if share >= 0.0005:  # below that it would read 0.0%
            unknown = f"{share:.1%} of the exposure has no label for '{attribute}'"
            yield Padding(literal(unknown, "dim"), (0, 0, 0, 2))
    if result.divergence is not None:
        before = result.baseline.divergence
        yield _divergence(result.divergence, "" if before is None else f", before {before:.4f}")
    old, new = result.baseline.ranking, result.ranking
    places = {document.id: document.rank for document in old}
    moves = [_move(document, places) for document in new]
    # Ranks and moves are never cut.
    width = (console().width - len(str(max(len(old), len(new)))) - 9) // 2
    rows = zip_longest(
        _cells(old, passages, width), _cells(new, passages, width), moves, fillvalue=Text()
    )
    yield table(
        (number(), "plain retrieval", "re-ranked", number("was")),
        ((str(rank), *row) for rank, row in enumerate(rows, start=1)),
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
    ended = f"stopped after {counted(rounds, 'round')}" if rounds else "no refinement"
    yield origin(f"{by}{ended}: {_STOPPED[result.stop_reason]}", result.usage)


def origin(how: str, usage: UsageReport) -> Text:
    """Return the last line of a result: how it was made, and what models cost."""
    asked = counted(usage.model_calls, "model call")
    if usage.cached_calls:
        asked += f" and {usage.cached_calls} from the cache"
    tokens = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
    return literal(f"{how}; {asked}, {tokens}, {usage.milliseconds / 1000:.2f} s", "dim")


def _divergence(nats: float, before: str = "") -> Text:
    return Text.assemble("  divergence from the target ", (f"{nats:.4f}", "cyan"), before)


def _cells(
    ranking: Sequence[RankedDocument], passages: Mapping[str, str], width: int
) -> Iterator[Text]:
    """Yield the title and the labels of each document, and below how its text begins."""
    labels = [shortened(", ".join(labels_of(it)), max(width // 2, 4)) for it in ranking]
    titles = [shortened(it.title or it.id, TITLE) for it in ranking]
    left = max(width - 1 - max(map(cell_len, labels), default=0), 4)
    space = min(left, max(map(cell_len, titles), default=0))
    for document, title, groups in zip(ranking, titles, labels, strict=True):
        cell = Text(set_cell_size(shortened(title, space), space) + " ")
        cell.append(groups, "dim")
        if passage := passages.get(document.id, ""):
            cell.append(f"\n{shortened(passage, width)}", "dim")
        yield cell


def labels_of(document: RankedDocument | ExposedDocument) -> list[str]:
    """Return for each attribute the groups of a document, in one text."""
    return ["+".join(shares) or "unknown" for shares in document.groups.values()]


def _move(document: RankedDocument, places: Mapping[str, int]) -> Text:
    if document.id not in places:
        return Text("new", "green")
    moved = places[document.id] - document.rank
    if not moved:
        return Text("=", "dim")
    return Text(f"▲{moved}", "green") if moved > 0 else Text(f"▼{-moved}", "yellow")
