"""An answer on the terminal: whose documents it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from fairqr.cli.output import counted, decimal, literal, number, percent, shortened, table
from fairqr.cli.render import NAME, TITLE, labels_of, origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from fairqr.graph.answer.result import AnswerResult, ExposedDocument

_USED = {True: Text("✓", style="green"), False: Text(), None: Text("?", style="yellow")}


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
    counts = result.counts
    if counts.samples > 1:
        yield from _samples(result, passages)
    else:
        if not written:
            yield literal(result.answers[0].text, lines=True)
        yield from _sources(result, passages)
    judged = f", judged by {result.attributor}" if result.attributor else ""
    yield ""
    yield origin(
        f"answered by {result.generator} with {result.prompt.id}={result.prompt.version}{judged}; "
        f"{counted(counts.rankings, 'ranking')} of {counted(counts.samples, 'sample')} "
        f"at alpha {result.alpha:g} of {counted(result.pool, 'document')} by {result.method}, "
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
    yield table(
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
    yield table(
        (number("samples"), "answer", "rankings"),
        ((f"{n} of {counts.samples}", *cells) for n, *cells in answers),
    )
    read = [document for document in result.ranking if document.exposure]
    yield ""
    yield table(
        ("rank", "document", "groups", "exposure", "attributed"),
        ((it.rank, *_document(it, passages), it.exposure, it.attributed) for it in read),
    )
    yield f"{counted(len(result.ranking) - len(read), 'document')} in no sample"
    rows = [
        (f"{part.attribute}: {it.group}", *map(percent, (it.exposure, it.attributed, it.target)))
        for part in result.groups
        for it in part.groups
    ]
    rows += [
        (f"{it.attribute}: unknown", *map(percent, (it.unknown, it.attributed_unknown)), "")
        for it in result.groups
    ]
    yield ""
    yield table(("", *map(number, ("exposure", "attributed", "target"))), rows)
    yield ""
    yield f"disparity of exposure      {result.disparity:.3f}  (EE-D/k; 1 is one ranking)"
    if result.attribution_rate is None:
        yield "attribution                not judged"
        return
    judged = counted(counts.judged, "sample")
    yield f"disparity of attribution   {decimal(result.attributed_disparity, 3)}"
    yield f"attribution rate           {result.attribution_rate:.3f}  (used of read, over {judged})"


def _document(document: ExposedDocument, passages: Mapping[str, str]) -> tuple[Text, Text]:
    """Return the title of a document, below it how its text begins, and its groups."""
    cell = literal(shortened(document.title or document.id, 2 * TITLE))
    cell.no_wrap, cell.overflow = True, "ellipsis"
    if passage := shortened(passages.get(document.id, ""), 2 * TITLE):
        cell.append(f"\n{passage}", style="dim")
    return cell, literal(shortened(labels_of(document), 2 * NAME), "dim")
