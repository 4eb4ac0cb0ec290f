"""A search on the terminal: its steps while they happen, and then the ranking before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairqr.api import Step
    from fairqr.graph.context import Context
    from fairqr.graph.result import RankedDocument, SearchResult

__all__ = ["LiveView", "QuietView", "exposure_bars", "print_result"]

BAR = 30
_STOPPED = {
    "converged": "the divergence is at or below the threshold",
    "no_improvement": "nothing more was gained",
    "max_iterations": "the rounds were used up",
    "budget": "the budget was used up",
    "model_failed": "the model failed",
}


class QuietView:
    """Shows nothing."""

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, step: Step) -> None:
        """Show nothing."""


class LiveView(QuietView):
    """Prints each round when it is measured, and says meanwhile what is being done."""

    def __init__(self, query: str, corpus: str, context: Context, refiner: Any) -> None:
        self._console = Console(highlight=False)
        self._status = Console(stderr=True).status("searching")
        self._target: Mapping[str, Mapping[str, float]] = {}
        self._refinements: list[dict[str, Any]] = []
        self._model = refiner.name if refiner else ""
        title = Text.assemble((query, "bold"), f"  in {corpus}, method {context.method}")
        title.append(f", refined by {self._model}" if refiner else ", not refined")
        self._console.print(title)

    def __enter__(self) -> LiveView:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, step: Step) -> None:
        """Show a step."""
        update = step.update
        if step.name == "retrieve":
            self._target = update.get("target", self._target)
            self._status.update("measuring")
        elif step.name == "measure":
            self._show_round(update["iterations"][0])
        elif step.name == "choose_group":
            groups = ", ".join(group for _, group in update["chosen"])
            self._status.update(f"asking {escape(self._model)} about {escape(groups)}")
        elif step.name == "refine":
            self._refinements = update["refinements"]
            self._status.update("searching")

    def _show_round(self, record: Mapping[str, Any]) -> None:
        number = record["index"]
        heading = Text(f"\nround {number}", style="bold")
        heading.append("  plain retrieval" if number == 0 else "  refined", style="not bold")
        if record["divergence"] is not None:
            heading.append(f"   KL {record['divergence']:.4f}", style="not bold cyan")
        self._console.print(heading)
        for refinement in self._refinements if number else []:
            words = ", ".join(refinement["keywords"]) or refinement["status"].replace("_", " ")
            line = Text.assemble("  toward ", (refinement["group"], "bold"), f": {words}")
            self._console.print(line)
        self._console.print(exposure_bars(record["exposure"], self._target))


def exposure_bars(
    exposure: Mapping[str, Mapping[str, float]], target: Mapping[str, Mapping[str, float]]
) -> Group:
    """Draw the exposure of each group as a bar, with a mark where its target is."""
    lines: list[Text] = []
    width = max(len(group) for groups in exposure.values() for group in groups)
    for attribute, groups in exposure.items():
        for group, share in groups.items():
            wanted = target[attribute][group]
            cells = ["█" if cell < round(share * BAR) else "·" for cell in range(BAR + 1)]
            cells[round(wanted * BAR)] = "┃"
            line = Text(f"  {group:<{width}} ")
            style = "green" if share >= wanted - 0.02 else "yellow"
            for cell in cells:
                line.append(cell, style={"█": style, "┃": "bold white", "·": "dim"}[cell])
            line.append(f" {share:6.1%}", style=style)
            line.append(f"  target {wanted:.1%}", style="dim")
            lines.append(line)
    return Group(*lines)


def print_result(result: SearchResult) -> None:
    """Print the final exposure, the ranking before and after, and what it cost."""
    console = Console(highlight=False)
    heading = Text("\nre-ranked", style="bold")
    if result.divergence is not None:
        before = result.baseline.divergence
        heading.append(f"   KL {result.divergence:.4f}", style="not bold cyan")
        if before is not None:
            heading.append(f", before {before:.4f}", style="not bold")
    console.print(heading)
    console.print(exposure_bars(result.exposure, result.target))
    console.print(_rankings(result))
    usage = result.usage
    asked = _count(usage.model_calls, "model call")
    if usage.cached_calls:
        asked += f" and {usage.cached_calls} from the cache"
    by = ""
    if result.model:
        by = f"refined by {result.model}"
        if result.prompt:
            by += f" with {result.prompt.id}={result.prompt.version}"
        by += "; "
    console.print(
        f"{by}stopped after {_count(len(result.iterations) - 1, 'round')}: "
        f"{_STOPPED[result.stop_reason]}; "
        f"{asked}, {usage.prompt_tokens} + {usage.completion_tokens} tokens, "
        f"{usage.milliseconds / 1000:.2f} s",
        style="dim",
        markup=False,
    )


def _rankings(result: SearchResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", no_wrap=True, min_width=3)
    table.add_column("plain retrieval", no_wrap=True, ratio=3)
    table.add_column("", style="dim", no_wrap=True, ratio=2)
    table.add_column("re-ranked", no_wrap=True, ratio=3)
    table.add_column("", style="dim", no_wrap=True, ratio=2)
    table.add_column("was", justify="right", no_wrap=True, min_width=4)
    place = {document.id: document.rank for document in result.baseline.ranking}
    before, after = result.baseline.ranking, result.ranking
    for row in range(max(len(before), len(after))):
        old = before[row] if row < len(before) else None
        new = after[row] if row < len(after) else None
        table.add_row(
            str(row + 1),
            escape(_shown(old.title)) if old else "",
            escape(_labels(old)) if old else "",
            escape(_shown(new.title)) if new else "",
            escape(_labels(new)) if new else "",
            _move(new, place) if new else "",
        )
    return table


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _shown(title: str) -> str:
    # A document must not be able to steer the terminal.
    title = "".join(character if character.isprintable() else " " for character in title)
    return title if len(title) <= 30 else title[:29] + "…"


def _labels(document: RankedDocument) -> str:
    labels = []
    for shares in document.groups.values():
        if len(shares) == 1:
            labels.append(next(iter(shares)))
        else:
            labels.append("+".join(shares) or "unknown")
    return ", ".join(labels)


def _move(document: RankedDocument, place: Mapping[str, int]) -> str:
    if document.id not in place:
        return "[green]new[/]"
    moved = place[document.id] - document.rank
    if not moved:
        return "[dim]=[/]"
    return f"[green]▲{moved}[/]" if moved > 0 else f"[yellow]▼{-moved}[/]"
