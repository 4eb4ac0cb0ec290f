"""Answers on the terminal: whose documents were read and used, and what was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from fairqr.agents.attribution.attributor import judge_in_words
from fairqr.cli.bars import draw_bars
from fairqr.cli.output import decimal, literal, number, quantity, table
from fairqr.cli.render import LEAST_SHOWN, cost_sentences, document_cells, lacks_most, origin
from fairqr.cli.rounds import round_lines
from fairqr.graph.search.explanation import fit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from fairqr.graph.answer.result import AnswerResult, AttributeExposure
    from fairqr.graph.search.result import SearchResult

_USED = {True: Text("✓", style="green"), False: Text(), None: Text("?", style="yellow")}


def answer_lines(
    result: AnswerResult, search: SearchResult | None, passages: Mapping[str, str], verbose: bool
) -> Iterator[RenderableType]:
    """Yield whose documents were read and used, the rounds of its search, and the answer.

    Args:
        result: What to show, with its sources or its samples.
        search: What its documents were found by.
        passages: How the texts of its documents begin, by id; those of some may be missing.
        verbose: Also show how it was made.
    """
    for attribute in result.groups:
        yield from _read_and_used(attribute)
    if search:
        yield from _search_lines(search, verbose)

    yield ""
    yield literal(result.question, "bold")
    if result.counts.samples > 1:
        yield from _samples(result, passages)
    else:
        yield literal(result.answers[0].text, lines=True)
        yield from _sources(result, passages)
    yield ""
    yield _how_answered(result, verbose)


def _search_lines(search: SearchResult, verbose: bool) -> Iterator[RenderableType]:
    """Yield how relevant the documents are, what the ranking cost, and the rounds."""
    fit = fit_of(search)
    if fit:
        yield literal(fit)
    cost = next(cost_sentences(search), "")
    if cost:
        yield cost
    has_rounds = len(search.iterations) > 1
    yield from round_lines(search, verbose=verbose and has_rounds)


def _how_answered(result: AnswerResult, verbose: bool) -> Text:
    """Return the last line: who answered and judged, and in detail how."""
    judged = ""
    if result.attributor:
        judged = f", judged by {judge_in_words(result.attributor)}"
    if not verbose:
        return literal(f"Answered by {result.generator}{judged}; seed {result.seed}.")

    prompt = f"{result.prompt.id}={result.prompt.version}"
    rankings = quantity(result.counts.rankings, "ranking")
    samples = quantity(result.counts.samples, "sample")
    pool = quantity(result.pool, "document")
    return origin(
        f"answered by {result.generator} with {prompt}{judged}; {rankings} of {samples} at alpha "
        f"{result.alpha:g} of {pool} by {result.method}, seed {result.seed}",
        result.usage,
    )


def _sources(result: AnswerResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the documents that the one answer was written from."""
    answer = result.answers[0]
    documents = {document.id: document for document in result.ranking}
    verdicts = answer.used or [False] * len(answer.ids)
    rows: list[Any] = []
    for id_, is_used in zip(answer.ids, verdicts, strict=True):
        rank = len(rows) + 1
        rows.append((rank, _USED[is_used], *document_cells(documents[id_], passages)))

    title = "sources" if result.attributor is None else "sources, ✓ used"
    yield ""
    yield table(("", "", title, "groups"), rows)


def _samples(result: AnswerResult, passages: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the different answers, the documents that were read and used, and the measures."""
    counts = result.counts
    yield ""
    yield _distribution(result)

    documents = [document for document in result.ranking if document.exposure]
    rows = []
    for document in documents:
        cells = document_cells(document, passages)
        rows.append((document.rank, *cells, document.exposure, document.attributed))
    yield ""
    yield table(("rank", "document", "groups", "exposure", "attributed"), rows)
    unread = len(result.ranking) - len(documents)
    yield f"{quantity(unread, 'document')} in no sample"

    yield ""
    yield f"disparity of exposure: {result.disparity:.3f} (EE-D/k; 1 is one ranking)"
    yield f"disparity of attribution: {decimal(result.attributed_disparity, 3)}"
    basis = "not judged"
    if result.attribution_rate is not None:
        basis = f"used of read, over {quantity(counts.judged, 'sample')}"
    yield f"attribution rate: {decimal(result.attribution_rate, 3)} ({basis})"


def _distribution(result: AnswerResult) -> RenderableType:
    """Draw how many samples have each answer, and how many have none."""
    counts = result.counts
    rows: list[Any] = []
    for answer in result.distribution:
        text = " ".join(answer.text.split())
        rows.append((f"{answer.samples} of {counts.samples}", text, answer.rankings))
    for status, samples in counts.failed.items():
        reason = status.replace("_", " ")
        rows.append((f"{samples} of {counts.samples}", f"none ({reason})", ""))
    return table((number("samples"), "answer", "rankings"), rows)


def _read_and_used(attribute: AttributeExposure) -> Iterator[RenderableType]:
    """Yield how much of each group was read and used, first the group that lacks most."""
    name = attribute.attribute
    lists = _shares_of_lists(attribute)
    if "read" not in lists:
        yield literal(f"{name}: nothing that was read has a label.", "bold")
        return

    target = {group.group: group.target for group in attribute.groups}
    group = lacks_most(target, lists["read"])
    parts = [f"{shares[group]:.0%} of what was {title}" for title, shares in lists.items()]
    sentence = f"{group}: {' and '.join(parts)}; the target is {target[group]:.0%}."
    yield literal(sentence, "bold")
    yield draw_bars(lists, target)
    if attribute.unknown >= LEAST_SHOWN:
        yield f"  {attribute.unknown:.1%} of what was read has no label for '{name}'"


def _shares_of_lists(attribute: AttributeExposure) -> dict[str, dict[str, float]]:
    """Return the shares of the groups in what was read and used; lists without any are left out."""
    lists: dict[str, dict[str, float]] = {"read": {}, "used": {}}
    for group in attribute.groups:
        shares = {"read": group.exposure, "used": group.attributed}
        for title, share in shares.items():
            if share is None:
                lists.pop(title, None)
            elif title in lists:
                lists[title][group.group] = share
    return lists
