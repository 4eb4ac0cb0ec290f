"""An answer on the terminal: piece by piece while it is written, and then whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_core.messages import AIMessageChunk
from rich.text import Text

from fairqr.cli.output import counted, decimal, literal, number, percent, shortened, table
from fairqr.cli.render import NAME, TITLE, View, labels_of, origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from fairqr.api import StreamEvent
    from fairqr.graph.answer.result import (
        AnswerResult,
        AttributeExposure,
        ExposedDocument,
        RankingAnswer,
    )

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
        super().__init__()
        self._question = question
        self.has_written = False

    def end(self) -> None:
        """End the line of the answer."""
        super().end()
        if self.has_written:
            self._console.print()

    def show(self, event: StreamEvent) -> None:
        """Write a piece, or say what is done next."""
        super().show(event)
        if isinstance(event, AIMessageChunk):
            if not self.has_written:
                super().end()
                self._console.print(literal(self._question, "bold"))
                self.has_written = True
            self._console.print(literal(event.text), end="", soft_wrap=True)


def answer_lines(
    result: AnswerResult, passages: Mapping[str, str], *, written: bool = False
) -> Iterator[RenderableType]:
    """Yield the answer and its sources; of several samples how they differ.

    Args:
        result: What to show.
        passages: How the texts of its documents begin, by id; those of some may be missing.
        written: The answer itself stands there already.
    """
    if result.counts.samples > 1:
        yield literal(result.question, "bold")
        yield _answers(result)
        yield _documents(result, passages)
        for attribute in result.groups:
            yield _groups(attribute)
        yield from _figures(result)
    else:
        answer = result.answers[0]
        if not written:
            yield literal(result.question, "bold")
            yield literal(answer.text)
        yield _sources(result, answer, passages)
    counts = result.counts
    judged = f", judged by {result.attributor}" if result.attributor else ""
    yield ""
    yield origin(
        f"answered by {result.generator} with {result.prompt.id}={result.prompt.version}{judged}; "
        f"{counted(counts.rankings, 'ranking')} of {counted(counts.samples, 'sample')} "
        f"at alpha {result.alpha:g} of {counted(result.pool, 'document')} by {result.method}, "
        f"seed {result.seed}",
        result.usage,
    )


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


def _figures(result: AnswerResult) -> Iterator[str]:
    yield ""
    yield f"disparity of exposure      {result.disparity:.3f}  (EE-D/k; 1 is one ranking)"
    if result.attribution_rate is None:
        yield "attribution                not judged"
        return
    judged = counted(result.counts.judged, "sample")
    yield f"disparity of attribution   {decimal(result.attributed_disparity, 3)}"
    yield f"attribution rate           {result.attribution_rate:.3f}  (used of read, over {judged})"


def _title(document: ExposedDocument, passages: Mapping[str, str]) -> Text:
    """Return the title of a document, and below how its text begins, each in one line."""
    title = shortened(document.title or document.id, 2 * TITLE)
    cell = Text(title, no_wrap=True, overflow="ellipsis")
    if passage := shortened(passages.get(document.id, ""), 2 * TITLE):
        cell.append(f"\n{passage}", style="dim")
    return cell


def _labels(document: ExposedDocument) -> Text:
    return literal(shortened(", ".join(labels_of(document)), 2 * NAME), "dim")
