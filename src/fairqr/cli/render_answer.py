"""An answer on the terminal: piece by piece while it is written, and then whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_core.messages import AIMessageChunk
from rich.table import Table
from rich.text import Text

from fairqr.cli.common import printable
from fairqr.cli.render import NAME, TITLE, View, labels_of, origin
from fairqr.cli.terminal import Output, counted, decimal, number, percent, shortened, table
from fairqr.graph.step_data import StepData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairqr.api import StreamEvent
    from fairqr.graph.answer.result import (
        AnswerResult,
        AttributeExposure,
        ExposedDocument,
        RankingAnswer,
    )

_STEPS = {
    "begin": "measuring",
    "choose_group": "refining",
    "refine": "searching",
    "rerank": "sampling",
    "sample": "answering",
    "collect": "judging",
}
"""What comes after a step."""

_USED: dict[bool | None, str | Text] = {
    True: Text("✓", style="green"),
    False: "",
    None: Text("?", style="yellow"),
}


class AnswerView(View):
    """Writes one answer as it comes, and says before what is done.

    Attributes:
        has_written: Whether the answer stands on the terminal.
    """

    def __init__(self, question: str) -> None:
        super().__init__("searching")
        self._question = question
        self.has_written = False

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.has_written:
            self._console.print()

    def show(self, event: StreamEvent) -> None:
        """Write a piece, or say what is done next."""
        super().show(event)
        if isinstance(event, AIMessageChunk):
            if not self.has_written:
                super().__exit__()
                self._console.print(_heading(self._question))
                self.has_written = True
            self._console.print(Text(_lines(event.text)), end="", soft_wrap=True)
        elif isinstance(event, StepData) and not self.has_written:
            self.say(_STEPS.get(event.step, "searching"))


def print_answer(
    result: AnswerResult, passages: Mapping[str, str], *, written: bool = False
) -> None:
    """Print the answer and its sources; of several samples how they differ.

    Args:
        result: What to print.
        passages: How the texts of its documents begin, by id; those of some may be missing.
        written: The answer itself stands there already.
    """
    console = Output()
    if result.counts.samples == 1:
        answer = result.answers[0]
        if not written:
            console.print(_heading(result.question))
            console.print(Text(_lines(answer.text)))
        console.print(_sources(result, answer, passages))
    else:
        console.print(_heading(result.question))
        console.print(_answers(result))
        console.print(_documents(result, passages))
        for attribute in result.groups:
            console.print(_groups(attribute))
        console.print(_figures(result))
    console.print()
    console.print(_origin(result))


def _heading(question: str) -> Text:
    return Text(printable(question), style="bold")


def _lines(text: str) -> str:
    """Return a text without control codes, in lines as it was written."""
    return "\n".join(map(printable, text.split("\n")))


def _sources(result: AnswerResult, answer: RankingAnswer, passages: Mapping[str, str]) -> Table:
    title = "\nsources" if result.attributor is None else "\nsources, ✓ used"
    documents = {document.id: document for document in result.ranking}
    judgements: Sequence[bool | None] = answer.used or [False] * len(answer.ids)
    return table(
        (number(), "", title, "\ngroups"),
        (
            (str(place), _USED[used], _title(documents[id_], passages), _labels(documents[id_]))
            for place, (id_, used) in enumerate(zip(answer.ids, judgements, strict=True), start=1)
        ),
    )


def _answers(result: AnswerResult) -> Table:
    samples = result.counts.samples
    rows: list[tuple[str | Text, ...]] = [
        (f"{each.samples} of {samples}", " ".join(each.text.split()), str(each.rankings))
        for each in result.distribution
    ]
    for status, lost in result.counts.failed.items():
        no_answer = Text(f"none ({status.replace('_', ' ')})", style="yellow")
        rows.append((f"{lost} of {samples}", no_answer, ""))
    return table((number("\nsamples"), "\nanswer", number("\nrankings")), rows)


def _documents(result: AnswerResult, passages: Mapping[str, str]) -> Table:
    read = [document for document in result.ranking if document.exposure]
    rows: list[tuple[str | Text, ...]] = [
        (
            str(document.rank),
            _title(document, passages),
            _labels(document),
            f"{document.exposure:.2f}",
            decimal(document.attributed),
        )
        for document in read
    ]
    if unread := len(result.ranking) - len(read):
        rows.append(("", Text(f"{counted(unread, 'document')} in no sample", style="dim")))
    heads = ("\ndocument", "\ngroups", number("\nexposure"), number("\nattributed"))
    return table((number("\nrank"), *heads), rows)


def _groups(attribute: AttributeExposure) -> Table:
    rows: list[tuple[str | Text, ...]] = [
        (
            shortened(group.group, NAME),
            percent(group.exposure),
            percent(group.attributed),
            percent(group.target),
        )
        for group in attribute.groups
    ]
    if attribute.unknown or attribute.attributed_unknown:
        unknown = percent(attribute.unknown), percent(attribute.attributed_unknown)
        rows.append((Text("unknown, apart", style="dim"), *unknown))
    heads = map(number, ("\nexposure", "\nattributed", "\ntarget"))
    return table((f"\n{shortened(attribute.attribute, NAME)}", *heads), rows)


def _figures(result: AnswerResult) -> Text:
    lines = [f"\ndisparity of exposure      {result.disparity:.3f}  (EE-D/k; 1 is one ranking)"]
    if result.attribution_rate is None:
        lines.append("attribution                not judged")
    else:
        lines.append(f"disparity of attribution   {decimal(result.attributed_disparity, 3)}")
        judged = counted(result.counts.judged, "sample")
        lines.append(
            f"attribution rate           {result.attribution_rate:.3f}  (share of the documents "
            f"read that answers used, over {judged})"
        )
    return Text("\n".join(lines))


def _origin(result: AnswerResult) -> Text:
    counts = result.counts
    judged = f", judged by {result.attributor}" if result.attributor else ""
    return origin(
        f"answered by {result.generator} with {result.prompt.id}={result.prompt.version}{judged}; "
        f"{counted(counts.rankings, 'ranking')} of {counted(counts.samples, 'sample')} "
        f"at alpha {result.alpha:g} of {counted(result.pool, 'document')} by {result.method}, "
        f"seed {result.seed}",
        result.usage,
    )


def _title(document: ExposedDocument, passages: Mapping[str, str]) -> Text:
    """Return the title of a document, and below how its text begins, each in one line."""
    title = shortened(document.title or document.id, 2 * TITLE)
    cell = Text(title, no_wrap=True, overflow="ellipsis")
    if passage := shortened(passages.get(document.id, ""), 2 * TITLE):
        cell.append(f"\n{passage}", style="dim")
    return cell


def _labels(document: ExposedDocument) -> Text:
    return Text(shortened(", ".join(labels_of(document)), 2 * NAME), style="dim")
