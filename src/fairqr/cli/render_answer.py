"""An answer on the terminal: piece by piece while it is written, and then whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairqr.base.prices import tokens_text
from fairqr.cli.common import printable
from fairqr.cli.render import (
    NAME,
    TITLE,
    Output,
    cost_of_ranking,
    counted,
    labels_of,
    shortened,
)
from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.stream import Step, Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairqr.graph.answer.result import AttributeExposure, RankingAnswer

__all__ = ["AnswerView", "QuietAnswerView", "print_answer"]

_STEPS = {
    "retrieve": "measuring",
    "choose_group": "refining",
    "refine": "searching",
    "rerank": "sampling",
    "sample": "answering",
    "collect": "judging",
}
"""What comes after a step."""

_USED = {True: ("✓", "green"), False: ("", ""), None: ("?", "yellow")}


class QuietAnswerView:
    """Shows nothing but what asking a model to re-rank may cost, and keeps the result.

    Args:
        ranks: The language model that re-ranks; empty where none does.

    Attributes:
        has_written: Whether the answer stands on the terminal already.
    """

    def __init__(self, ranks: str = "") -> None:
        self._ranks = ranks
        self.has_written = False
        self._result: dict[str, object] | None = None

    def __enter__(self) -> QuietAnswerView:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, event: Step | Token) -> None:
        """Take note of the last step; say the cost, which is known once the documents are."""
        if not isinstance(event, Step):
            return
        if self._ranks and event.update.get("cost"):
            self.tell(cost_of_ranking(event.update["cost"], self._ranks))
        if event.name == "summarise":
            self._result = event.update["answer"]

    def tell(self, line: str) -> None:
        """Print a line to stderr."""
        Console(stderr=True, highlight=False, soft_wrap=True).print(line, markup=False)

    @property
    def result(self) -> AnswerResult:
        """What it came to, once all events were shown."""
        return AnswerResult.model_validate(self._result)


class AnswerView(QuietAnswerView):
    """Writes one answer as it comes, and says before what is being done."""

    def __init__(self, question: str, ranks: str = "") -> None:
        super().__init__(ranks)
        self._question = question
        self._console = Output(highlight=False)
        self._status = Console(stderr=True).status("searching")

    def __enter__(self) -> AnswerView:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
        if self.has_written:
            self._console.print()

    def tell(self, line: str) -> None:
        """Print a line to stderr, above what is being done."""
        self._status.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, event: Step | Token) -> None:
        """Write a piece, or say what is done next."""
        super().show(event)
        if isinstance(event, Step):
            if not self.has_written:
                self._status.update(_STEPS.get(event.name, "searching"))
            return
        if not self.has_written:
            self._status.stop()
            self._console.print(_heading(self._question))
            self.has_written = True
        self._console.print(Text(_lines(event.text)), end="", soft_wrap=True)


def print_answer(result: AnswerResult, *, written: bool = False) -> None:
    """Print the answer and its sources; of several samples how they differ.

    Args:
        result: What to print.
        written: The answer itself stands there already.
    """
    console = Output(highlight=False)
    if result.counts.samples == 1:
        answer = result.answers[0]
        if not written:
            console.print(_heading(result.question))
            console.print(Text(_lines(answer.text)))
        console.print(_sources(result, answer))
    else:
        console.print(_heading(result.question))
        console.print(_answers(result))
        console.print(_documents(result))
        for attribute in result.groups:
            console.print(_groups(attribute))
        console.print(_figures(result))
    console.print(_origin(result), style="dim", markup=False)


def _heading(question: str) -> Text:
    return Text(printable(question), style="bold")


def _lines(text: str) -> str:
    """Return a text without control codes, in lines as it was written."""
    return "\n".join(map(printable, text.split("\n")))


def _table(*heads: tuple[str, bool]) -> Table:
    """Return an empty table; each head says whether its column is of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head, of_numbers in heads:
        table.add_column(
            head, justify="right" if of_numbers else "left", no_wrap=True, overflow="ellipsis"
        )
    return table


def _sources(result: AnswerResult, answer: RankingAnswer) -> Table:
    title = "\nsources" if result.attributor is None else "\nsources, ✓ used"
    table = _table(("", True), ("", False), (title, False), ("\ngroups", False))
    documents = {document.id: document for document in result.ranking}
    judgements: Sequence[bool | None] = answer.used or [False] * len(answer.ids)
    for number, (id_, used) in enumerate(zip(answer.ids, judgements, strict=True), start=1):
        document = documents[id_]
        mark, style = _USED[used]
        table.add_row(
            str(number),
            Text(mark, style=style),
            Text(shortened(document.title or document.id, 2 * TITLE)),
            Text(_labels(labels_of(document)), style="dim"),
        )
    return table


def _answers(result: AnswerResult) -> Table:
    table = _table(("\nsamples", True), ("\nanswer", False), ("\nrankings", True))
    # Answers may differ in their last words.
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    for answer in result.distribution:
        table.add_row(
            f"{answer.samples} of {result.counts.samples}",
            Text(printable(" ".join(answer.text.split()))),
            str(answer.rankings),
        )
    for status, lost in result.counts.failed.items():
        no_answer = Text(f"none ({status.replace('_', ' ')})", style="yellow")
        table.add_row(f"{lost} of {result.counts.samples}", no_answer, "")
    return table


def _documents(result: AnswerResult) -> Table:
    table = _table(
        ("\nrank", True),
        ("\ndocument", False),
        ("\ngroups", False),
        ("\nexposure", True),
        ("\nattributed", True),
    )
    unread = 0
    for document in result.ranking:
        if not document.exposure:
            unread += 1
            continue
        table.add_row(
            str(document.rank),
            Text(shortened(document.title or document.id, TITLE)),
            Text(_labels(labels_of(document)), style="dim"),
            f"{document.exposure:.2f}",
            _number(document.attributed),
        )
    if unread:
        table.add_row("", Text(f"{counted(unread, 'document')} in no sample", style="dim"))
    return table


def _groups(attribute: AttributeExposure) -> Table:
    table = _table(
        (f"\n{shortened(attribute.attribute, NAME)}", False),
        ("\nexposure", True),
        ("\nattributed", True),
        ("\ntarget", True),
    )
    for group in attribute.groups:
        table.add_row(
            Text(shortened(group.group, NAME)),
            _share(group.exposure),
            _share(group.attributed),
            _share(group.target),
        )
    if attribute.unknown or attribute.attributed_unknown:
        table.add_row(
            Text("unknown, apart", style="dim"),
            _share(attribute.unknown),
            _share(attribute.attributed_unknown),
        )
    return table


def _figures(result: AnswerResult) -> Text:
    lines = [f"\ndisparity of exposure      {result.disparity:.3f}  (EE-D/k; 1 is one ranking)"]
    if result.attribution_rate is None:
        lines.append("attribution                not judged")
    else:
        lines.append(f"disparity of attribution   {_number(result.attributed_disparity, 3)}")
        judged = counted(result.counts.judged, "sample")
        lines.append(
            f"attribution rate           {result.attribution_rate:.3f}  (of the documents read "
            f"the share used, over {judged})"
        )
    return Text("\n".join(lines))


def _origin(result: AnswerResult) -> str:
    """Say how it was made."""
    usage, counts = result.usage, result.counts
    asked = counted(usage.model_calls, "model call")
    if usage.cached_calls:
        asked += f" and {usage.cached_calls} from the cache"
    attributor = result.attributor or ""
    models = (result.generator, attributor if attributor.startswith("llm:") else None)
    tokens = tokens_text(usage.prompt_tokens, usage.completion_tokens, models)
    judged = f", judged by {result.attributor}" if result.attributor else ""
    prompt = f"{result.prompt.id}={result.prompt.version}"
    return (
        f"\nanswered by {result.generator} with {prompt}{judged}; "
        f"{counted(counts.rankings, 'ranking')} of {counted(counts.samples, 'sample')} "
        f"at alpha {result.alpha:g} of {counted(result.pool, 'document')} by {result.method}, "
        f"seed {result.seed}; {asked}, {tokens}, "
        f"{usage.milliseconds / 1000:.2f} s"
    )


def _labels(labels: Sequence[str]) -> str:
    return shortened(", ".join(labels), 2 * NAME)


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
