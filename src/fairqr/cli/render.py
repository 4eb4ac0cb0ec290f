"""A search on the terminal: its steps while they happen, and then the ranking before and after."""

from __future__ import annotations

import contextlib
from itertools import zip_longest
from typing import TYPE_CHECKING, Self, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fairqr.cli.common import agree, notes, printable
from fairqr.cli.terminal import Output, counted, number, shortened, table
from fairqr.graph.step_data import StepData
from fairqr.graph.stream import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fairqr.api import FairSearch, Result, StreamEvent
    from fairqr.graph.answer.result import ExposedDocument
    from fairqr.graph.search.context import Budget, Context
    from fairqr.graph.search.result import RankedDocument, SearchResult
    from fairqr.graph.search.state import CostRecord, IterationRecord, RefinementRecord
    from fairqr.graph.usage import UsageReport

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


NO_WORDS = {
    "repeated": "none that is new",
    "unknown_terms": "none that any document has",
    "unsupported": "none of the topic or the group",
}
"""What a refinement's status means for people, where there are no keywords; others are failures."""


class View:
    """Follows a run, and says on stderr what a model may be asked.

    Args:
        doing: What a spinner says at first; empty for none.
    """

    def __init__(self, doing: str = "") -> None:
        self._console = Output()
        self._stderr = notes()
        self._doing = doing
        self._status = self._stderr.status(doing) if doing else None
        self._asked = ""
        self._budget: Budget | None = None
        self._agreed = True

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def expect_cost(self, model: str, budget: Budget | None = None, *, yes: bool = True) -> None:
        """Say what re-ranking by a model costs at most, as soon as that is known.

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
        if isinstance(event, Progress) and self._status and event.replies > 1:
            self._status.update(f"{self._doing} ({event.replies} replies)")
        if isinstance(event, StepData) and event.cost and self._asked:
            cost = event.cost
            calls, tokens = cost["calls"] * cost["lists"], cost["tokens"] * cost["lists"]
            if self._budget is not None:
                agree(
                    min(calls, self._budget.model_calls or calls),
                    min(tokens, self._budget.tokens or tokens),
                    yes=self._agreed,
                    instead="lower ranking.depth, set budget.model_calls or budget.tokens",
                )
            line = cost_of_ranking(cost, self._asked)
            self._stderr.print(line, markup=False, soft_wrap=True)

    async def follow(self, search: FairSearch, query: str, context: Context, kind: type[R]) -> R:
        """Run what a context asks for, show each event, and return the result of this kind."""
        events = search.stream(query, context)
        with self:
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, kind):
                        result = event
                    else:
                        self.show(event)
        return result

    def say(self, doing: str) -> None:
        """Say what is done now."""
        self._doing = escape(printable(doing))
        if self._status:
            self._status.update(self._doing)


class ProbeView(View):
    """Says what a probe asks the model at most, and requires consent if that is much."""

    def __init__(self, *, yes: bool) -> None:
        super().__init__("probing")
        self._yes = yes

    def show(self, event: StreamEvent) -> None:
        """Show a step."""
        super().show(event)
        if isinstance(event, StepData) and (cost := event.cost):
            from fairqr.agents.ranking.rankers import Cost
            from fairqr.evaluation.probes.running import cost_in_words

            calls, tokens = cost["reserved_calls"], cost["reserved_tokens"]
            agree(calls, tokens, yes=self._yes)
            self._stderr.print(cost_in_words(Cost(calls, tokens)), soft_wrap=True)


class SearchView(View):
    """Prints each round when it is measured, and says meanwhile what is done.

    Args:
        query: As the user wrote it.
        corpus: What is searched.
        context: Of the search.
        model: What refines.
    """

    def __init__(self, query: str, corpus: str, context: Context, model: str) -> None:
        super().__init__("searching")
        self._ranker = context.strategy.ranker
        self._model = model
        self._target: Mapping[str, Mapping[str, float]] = {}
        self._refinements: list[RefinementRecord] = []
        by = "not refined"
        if context.rounds:
            by = f"{'may ask' if context.strategy.ask == 'auto' else 'refined by'} {model}"
        told = f"  in {corpus}, method {context.method}, {by}"
        self._title: Text | None = Text.assemble((printable(query), "bold"), printable(told))

    def show(self, event: StreamEvent) -> None:
        """Show a step."""
        super().show(event)
        if not isinstance(event, StepData):
            return
        if event.step in ("begin", "retrieve"):
            self._target = event.target or self._target
            self.say("measuring")
        elif event.round is not None:
            self._show_round(event.round)
            if event.stop_reason and self._ranker:
                self.say(f"re-ranking by {self._asked or self._ranker}")
        elif event.step == "choose_group":
            groups = ", ".join(shortened(group, NAME) for _, group in event.chosen or ())
            self.say(f"asking {self._model} about {groups}")
        elif event.step == "refine":
            self._refinements = event.refinements or []
            is_over = event.stop_reason and self._ranker
            self.say("re-ranking" if is_over else "searching")

    def _show_round(self, record: IterationRecord) -> None:
        if self._title is not None:
            # Not before: what is wrong is mostly found earlier, and is then all that is printed.
            self._console.print(self._title)
            self._title = None
        number = record["index"]
        heading = Text(f"\nround {number}", style="bold")
        heading.append("  plain retrieval" if number == 0 else "  refined", style="not bold")
        self._console.print(heading)
        for refinement in self._refinements if number else []:
            words = ", ".join(refinement["keywords"]) or NO_WORDS.get(
                refinement["status"], f"none ({refinement['status'].replace('_', ' ')})"
            )
            group = shortened(refinement["group"], NAME)
            line = Text.assemble("  words for ", (group, "bold"), f": {printable(words)}")
            self._console.print(line)
        self._console.print(exposure_bars(record["exposure"], self._target, self._console.width))
        if record["divergence"] is not None:
            self._console.print(_divergence(record["divergence"]))


def cost_of_ranking(cost: CostRecord, model: str) -> str:
    """Return in words what a model that re-ranks will be asked at the most.

    Args:
        cost: See :class:`fairqr.graph.search.state.CostRecord`.
        model: Its name.
    """
    calls, tokens = cost["calls"] * cost["lists"], cost["tokens"] * cost["lists"]
    line = f"at most {counted(calls, 'call')} of {printable(model)} to re-rank "
    line += counted(cost["documents"], "document")
    if cost["lists"] > 1:
        line += f", {cost['calls']} for each of up to {cost['lists']} rounds"
    return f"{line}; about {tokens} tokens"


def exposure_bars(
    exposure: Mapping[str, Mapping[str, float]],
    target: Mapping[str, Mapping[str, float]],
    columns: int,
) -> Group:
    """Draw the exposure of each group as a bar, with a mark where its target is.

    Args:
        exposure: For each attribute, the share of each group.
        target: The same for the target.
        columns: The width of the terminal; bars and names are shorter in a narrow one, and
            figures whole from 38 columns.
    """
    lines: list[Text] = []
    figures = len("    100.0%  target 100.0%")
    names = [shortened(group, NAME) for groups in exposure.values() for group in groups]
    width = min(max(map(cell_len, names)), max(columns - figures - 6, 8))
    bar = min(BAR, max(columns - figures - width - 1, 4))
    for attribute, groups in exposure.items():
        for group, share in groups.items():
            wanted = target[attribute][group]
            cells = ["█" if cell < round(share * bar) else "·" for cell in range(bar + 1)]
            cells[round(wanted * bar)] = "┃"
            name = set_cell_size(shortened(group, width), width)
            line = Text(f"  {name} ", no_wrap=True, overflow="ellipsis")
            style = "green" if share >= wanted - 0.02 else "yellow"
            for cell in cells:
                line.append(cell, style={"█": style, "┃": "bold white", "·": "dim"}[cell])
            line.append(f" {share:6.1%}", style=style)
            line.append(f"  target {wanted:.1%}", style="dim")
            lines.append(line)
    return Group(*lines)


def print_result(result: SearchResult, passages: Mapping[str, str]) -> None:
    """Print who gets seen, the ranking before and after, and what it cost.

    Args:
        result: The result of a search.
        passages: How the texts of its documents begin, by id; those of some may be missing.
    """
    console = Output()
    console.print(Text("\nre-ranked", style="bold"))
    for sentence in result.explanation:
        console.print(Padding(Text(printable(sentence)), (0, 0, 0, 2)))
    console.print(exposure_bars(result.exposure, result.target, console.width))
    for attribute, share in result.unknown.items():
        if share >= 0.0005:  # below that it would read 0.0%
            unknown = f"{share:.1%} of the exposure has no label for '{printable(attribute)}'"
            console.print(Padding(Text(unknown, style="dim"), (0, 0, 0, 2)))
    if result.divergence is not None:
        before = result.baseline.divergence
        console.print(
            _divergence(result.divergence, "" if before is None else f", before {before:.4f}")
        )
    console.print(_rankings(result, passages, console))
    by = f"found by {result.retriever}; "
    if result.model:
        by += f"refined by {result.model}"
        if result.prompt:
            by += f" with {result.prompt.id}={result.prompt.version}"
        by += "; "
    if result.ranker:
        by += f"re-ranked by {result.ranker}; "
    rounds = len(result.iterations) - 1
    ended = f"stopped after {counted(rounds, 'round')}" if rounds else "no refinement"
    console.print(
        origin(
            f"{by}{ended}: {_STOPPED[result.stop_reason]}",
            result.usage,
        )
    )


def origin(how: str, usage: UsageReport) -> Text:
    """Return the last line of a result: how it was made, and what models cost."""
    asked = counted(usage.model_calls, "model call")
    if usage.cached_calls:
        asked += f" and {usage.cached_calls} from the cache"
    tokens = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
    return Text(
        printable(f"{how}; {asked}, {tokens}, {usage.milliseconds / 1000:.2f} s"), style="dim"
    )


def _divergence(nats: float, before: str = "") -> Text:
    return Text.assemble("  divergence from the target ", (f"{nats:.4f}", "cyan"), before)


def _rankings(result: SearchResult, passages: Mapping[str, str], console: Output) -> Table:
    """Return the ranking before and after, in a table that is no wider than the terminal."""
    old, new = result.baseline.ranking, result.ranking
    place = {document.id: document.rank for document in old}
    moves = [_move(document, place) for document in new]
    ranks = max(len(old), len(new))
    # Ranks and moves are never cut.
    width = (console.width - len(str(ranks)) - max(map(len, ("was", *moves))) - 3) // 2
    rows = zip_longest(
        _cells(old, passages, console, width),
        _cells(new, passages, console, width),
        [Text(move, _MOVED.get(move[:1], "")) for move in moves],
        fillvalue=Text(),
    )
    return table(
        (number(), "plain retrieval", "re-ranked", number("was")),
        ((str(rank), *row) for rank, row in enumerate(rows, start=1)),
        gap=1,
    )


def _cells(
    ranking: Sequence[RankedDocument], passages: Mapping[str, str], console: Output, width: int
) -> Iterator[Text]:
    """Yield the title and the labels of each document, and below how its text begins."""
    if not ranking:
        return
    titles = [shortened(document.title or document.id, TITLE) for document in ranking]
    labels = [labels_of(document) for document in ranking]
    wanted = [max(map(cell_len, texts)) for texts in (titles, map(", ".join, labels))]
    first, second = _shared(width - 1, wanted, (5, 4))
    for document, title, groups in zip(ranking, titles, labels, strict=True):
        cell = Text(set_cell_size(shortened(title, first), first) + " ")
        cell.append(_fitted(groups, second), style="dim")
        if passage := printable(passages.get(document.id, "")):
            # One line of a wide terminal, and two of a narrow one.
            first_line = Text(passage).wrap(console, width)[0].plain
            rest = shortened(passage[len(first_line) :].strip(), width)
            cell.append(f"\n{first_line.rstrip()}\n{rest}".rstrip(), style="dim")
        yield cell


def _shared(space: int, wanted: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Share a width among columns by weight; what one does not want is the others'."""
    widths = list(wanted)
    tight = set(range(len(widths)))
    while sum(widths) > space and tight:
        left = space - sum(widths[i] for i in range(len(widths)) if i not in tight)
        weight = sum(weights[i] for i in tight)
        fitting = {i for i in tight if wanted[i] <= left * weights[i] // weight}
        if not fitting:
            for i in tight:
                widths[i] = max(1, left * weights[i] // weight)
            for i in sorted(tight)[: max(0, space - sum(widths))]:
                widths[i] += 1
            break
        tight -= fitting
    return widths


def _fitted(labels: Sequence[str], width: int) -> str:
    """Join labels; where they are too long, each is shortened, so that none is lost."""
    space = width - 2 * (len(labels) - 1)
    widths = _shared(space, [cell_len(label) for label in labels], [1] * len(labels))
    fitted = ", ".join(map(shortened, labels, widths))
    return shortened(fitted, width)


def labels_of(document: RankedDocument | ExposedDocument) -> list[str]:
    """Return for each attribute the groups of a document, in one text."""
    labels = []
    for shares in document.groups.values():
        if len(shares) == 1:
            labels.append(next(iter(shares)))
        else:
            labels.append("+".join(shares) or "unknown")
    return labels


_MOVED = {"n": "green", "=": "dim", "▲": "green", "▼": "yellow"}


def _move(document: RankedDocument, place: Mapping[str, int]) -> str:
    if document.id not in place:
        return "new"
    moved = place[document.id] - document.rank
    if not moved:
        return "="
    return f"▲{moved}" if moved > 0 else f"▼{-moved}"
