"""A search on the terminal: its steps while they happen, and then the ranking before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fairqr.base.prices import tokens_text
from fairqr.cli.common import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairqr.api import Step
    from fairqr.graph.answer.result import ExposedDocument
    from fairqr.graph.search.context import Context
    from fairqr.graph.search.result import RankedDocument, SearchResult

__all__ = [
    "LiveView",
    "Output",
    "QuietView",
    "cost_of_ranking",
    "counted",
    "exposure_bars",
    "labels_of",
    "print_result",
    "shortened",
]

BAR = 30
NAME = 24
TITLE = 30
_STOPPED = {
    "converged": "the divergence is at or below the threshold",
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


class Output(Console):
    """Stdout. Where its reader has gone, the program ends as any other of our commands does."""

    def on_broken_pipe(self) -> None:
        """Leave the end to the entry point; an exit from within a loop would be complained of."""
        self.quiet = True
        raise BrokenPipeError


class QuietView:
    """Shows nothing but what asking a model to re-rank may cost, on stderr.

    Args:
        ranks: The language model that re-ranks; empty where none does.
    """

    def __init__(self, ranks: str = "") -> None:
        self._ranks = ranks

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, step: Step) -> None:
        """Show the cost, which is known once the documents are."""
        if self._ranks and step.update.get("cost"):
            self.tell(cost_of_ranking(step.update["cost"], self._ranks))

    def tell(self, line: str) -> None:
        """Print a line to stderr."""
        Console(stderr=True, highlight=False, soft_wrap=True).print(line, markup=False)


class LiveView(QuietView):
    """Prints each round when it is measured, and says meanwhile what is being done."""

    def __init__(
        self, query: str, corpus: str, context: Context, refiner: Any, ranks: str = ""
    ) -> None:
        super().__init__(ranks)
        self._ranker = context.strategy.ranker
        refiner = refiner if context.rounds else None
        self._console = Output(highlight=False)
        self._status = Console(stderr=True).status("searching")
        self._target: Mapping[str, Mapping[str, float]] = {}
        self._refinements: list[dict[str, Any]] = []
        self._model = refiner.name if refiner else ""
        by = f"refined by {self._model}" if refiner else "not refined"
        told = f"  in {corpus}, method {context.method}, {by}"
        self._title: Text | None = Text.assemble((printable(query), "bold"), printable(told))

    def __enter__(self) -> LiveView:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def tell(self, line: str) -> None:
        """Print a line to stderr, above what is being done."""
        self._status.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, step: Step) -> None:
        """Show a step."""
        super().show(step)
        update = step.update
        if step.name == "retrieve":
            self._target = update.get("target", self._target)
            self._status.update("measuring")
        elif step.name == "measure":
            self._show_round(update["iterations"][0])
            if update["stop_reason"] and self._ranker:
                by = self._ranks or self._ranker
                self._status.update(f"re-ranking by {escape(printable(by))}")
        elif step.name == "choose_group":
            groups = ", ".join(shortened(group, NAME) for _, group in update["chosen"])
            self._status.update(f"asking {escape(self._model)} about {escape(groups)}")
        elif step.name == "refine":
            self._refinements = update["refinements"]
            self._status.update("searching")
            if update.get("stop_reason") and self._ranker:
                self._status.update("re-ranking")

    def _show_round(self, record: Mapping[str, Any]) -> None:
        if self._title is not None:
            # Not before: what is wrong is mostly found earlier, and is then all that is printed.
            self._console.print(self._title)
            self._title = None
        number = record["index"]
        heading = Text(f"\nround {number}", style="bold")
        heading.append("  plain retrieval" if number == 0 else "  refined", style="not bold")
        if record["divergence"] is not None:
            heading.append(f"   KL {record['divergence']:.4f}", style="not bold cyan")
        self._console.print(heading)
        for refinement in self._refinements if number else []:
            words = ", ".join(refinement["keywords"]) or NO_WORDS.get(
                refinement["status"], f"none ({refinement['status'].replace('_', ' ')})"
            )
            group = shortened(refinement["group"], NAME)
            line = Text.assemble("  words for ", (group, "bold"), f": {printable(words)}")
            self._console.print(line)
        self._console.print(exposure_bars(record["exposure"], self._target))


def cost_of_ranking(cost: Mapping[str, Any], model: str) -> str:
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
    exposure: Mapping[str, Mapping[str, float]], target: Mapping[str, Mapping[str, float]]
) -> Group:
    """Draw the exposure of each group as a bar, with a mark where its target is."""
    lines: list[Text] = []
    names = [shortened(group, NAME) for groups in exposure.values() for group in groups]
    width = max(map(cell_len, names))
    for attribute, groups in exposure.items():
        for group, share in groups.items():
            wanted = target[attribute][group]
            cells = ["█" if cell < round(share * BAR) else "·" for cell in range(BAR + 1)]
            cells[round(wanted * BAR)] = "┃"
            name = set_cell_size(shortened(group, NAME), width)
            line = Text(f"  {name} ", no_wrap=True, overflow="ellipsis")
            style = "green" if share >= wanted - 0.02 else "yellow"
            for cell in cells:
                line.append(cell, style={"█": style, "┃": "bold white", "·": "dim"}[cell])
            line.append(f" {share:6.1%}", style=style)
            line.append(f"  target {wanted:.1%}", style="dim")
            lines.append(line)
    return Group(*lines)


def print_result(result: SearchResult) -> None:
    """Print the final exposure, the ranking before and after, and what it cost."""
    console = Output(highlight=False)
    heading = Text("\nre-ranked", style="bold")
    if result.divergence is not None:
        before = result.baseline.divergence
        heading.append(f"   KL {result.divergence:.4f}", style="not bold cyan")
        if before is not None:
            heading.append(f", before {before:.4f}", style="not bold")
    console.print(heading)
    console.print(exposure_bars(result.exposure, result.target))
    console.print(_rankings(result, console.width))
    usage, models = result.usage, (result.model, result.ranker)
    asked = counted(usage.model_calls, "model call")
    if usage.cached_calls:
        asked += f" and {usage.cached_calls} from the cache"
    by = ""
    if result.model:
        by = f"refined by {result.model}"
        if result.prompt:
            by += f" with {result.prompt.id}={result.prompt.version}"
        by += "; "
    if result.ranker:
        by += f"re-ranked by {printable(result.ranker)}; "
    console.print(
        f"{by}stopped after {counted(len(result.iterations) - 1, 'round')}: "
        f"{_STOPPED[result.stop_reason]}; "
        f"{asked}, {tokens_text(usage.prompt_tokens, usage.completion_tokens, models)}, "
        f"{usage.milliseconds / 1000:.2f} s",
        style="dim",
        markup=False,
    )


def _rankings(result: SearchResult, width: int) -> Table:
    place = {document.id: document.rank for document in result.baseline.ranking}
    before, after = result.baseline.ranking, result.ranking
    rows: list[tuple[str, ...]] = []
    for row in range(max(len(before), len(after))):
        old = before[row] if row < len(before) else None
        new = after[row] if row < len(after) else None
        rows.append(
            (
                str(row + 1),
                shortened(old.title or old.id, TITLE) if old else "",
                ", ".join(labels_of(old)) if old else "",
                shortened(new.title or new.id, TITLE) if new else "",
                ", ".join(labels_of(new)) if new else "",
                _move(new, place) if new else "",
            )
        )
    heads = ("", "plain retrieval", "", "re-ranked", "", "was")
    widths = [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]
    widths[0], widths[5] = max(widths[0], 3), max(widths[5], 4)
    # Ranks and moves are always whole, and there is a space between two columns.
    widths[1:5] = _shared(width - widths[0] - widths[5] - 5, widths[1:5], (5, 4, 5, 4))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, (head, space) in enumerate(zip(heads, widths, strict=True)):
        table.add_column(
            head,
            justify="right" if number in (0, 5) else "left",
            style="dim" if number in (2, 4) else "",
            no_wrap=True,
            width=space,
        )
    for row, (rank, *_, moved) in enumerate(rows):
        cells = [Text(rank)]
        for ranking, (title, labels) in ((before, widths[1:3]), (after, widths[3:5])):
            document = ranking[row] if row < len(ranking) else None
            cells.append(Text(shortened(document.title or document.id, title) if document else ""))
            cells.append(Text(_fitted(labels_of(document), labels) if document else ""))
        table.add_row(*cells, Text(moved, style=_MOVED.get(moved[:1], "")))
    return table


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


def counted(number: int, what: str) -> str:
    """Return a number of things, in words."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def shortened(text: str, width: int) -> str:
    """Return a text that fills so many cells of a terminal at the most, without control codes."""
    line = Text(printable(text))
    line.truncate(width, overflow="ellipsis")
    return line.plain


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
