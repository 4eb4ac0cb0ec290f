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
            self._console.print(literal(event.text, lines=True), end="", soft_wrap=True)


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
        yield literal(result.question, "bold")
    if result.counts.samples > 1:
        yield from _samples(result, passages)
    else:
        if not written:
            yield literal(result.answers[0].text, lines=True)
        yield ""
        yield _sources(result, result.answers[0], passages)
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
    title = "sources" if result.attributor is None else "sources, ✓ used"
    documents = {document.id: document for document in result.ranking}
    judgements: Sequence[bool | None] = answer.used or [False] * len(answer.ids)
    return table(
        (number(), "", title, "groups"),
        (
            (str(place), _USED[used], *_document(documents[id_], passages))
            for place, (id_, used) in enumerate(zip(answer.ids, judgements, strict=True), start=1)
        ),
    )


def _samples(result: AnswerResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the different answers, whose documents were read and used, and the measures."""
    samples = result.counts.samples
    answers = [(each.samples, each.text, str(each.rankings)) for each in result.distribution]
    failed = result.counts.failed.items()
    answers += [(lost, f"none ({status.replace('_', ' ')})", "") for status, lost in failed]
    yield ""
    yield table(
        (number("samples"), "answer", number("rankings")),
        ((f"{n} of {samples}", " ".join(text.split()), rankings) for n, text, rankings in answers),
    )
    read = [document for document in result.ranking if document.exposure]
    heads = ("document", "groups", number("exposure"), number("attributed"))
    yield ""
    yield table(
        (number("rank"), *heads),
        (
            (str(it.rank), *_document(it, passages), decimal(it.exposure), decimal(it.attributed))
            for it in read
        ),
    )
    yield f"{counted(len(result.ranking) - len(read), 'document')} in no sample"
    groups = [
        (f"{part.attribute}: {it.group}", *map(percent, (it.exposure, it.attributed, it.target)))
        for part in result.groups
        for it in part.groups
    ]
    groups += [
        (f"{it.attribute}: unknown", *map(percent, (it.unknown, it.attributed_unknown)), "")
        for it in result.groups
    ]
    yield ""
    yield table(("", *map(number, ("exposure", "attributed", "target"))), groups)
    yield ""
    yield f"disparity of exposure      {result.disparity:.3f}  (EE-D/k; 1 is one ranking)"
    if result.attribution_rate is None:
        yield "attribution                not judged"
        return
    judged = counted(result.counts.judged, "sample")
    yield f"disparity of attribution   {decimal(result.attributed_disparity, 3)}"
    yield f"attribution rate           {result.attribution_rate:.3f}  (used of read, over {judged})"


def _document(document: ExposedDocument, passages: Mapping[str, str]) -> tuple[Text, Text]:
    """Return the title of a document, below it how its text begins, and its groups."""
    cell = literal(shortened(document.title or document.id, 2 * TITLE))
    cell.no_wrap, cell.overflow = True, "ellipsis"
    if passage := shortened(passages.get(document.id, ""), 2 * TITLE):
        cell.append(f"\n{passage}", style="dim")
    return cell, literal(shortened(", ".join(labels_of(document)), 2 * NAME), "dim")
