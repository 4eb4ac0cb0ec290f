"""Results of probes on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairqr.cli.output import counted, frame_table, interval, literal, number, table
from fairqr.cli.render import origin
from fairqr.evaluation.probes.listwise_measures import MeasuredListwise
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise
from fairqr.graph.probe.result import ProbeResult

if TYPE_CHECKING:
    from rich.console import RenderableType


def measured_lines(measured: MeasuredListwise | MeasuredPairwise) -> Iterator[RenderableType]:
    """Yield what a probe measured, and how much is missing."""
    if isinstance(measured, MeasuredPairwise):
        yield from _pairwise(measured)
        what = "pair"
    else:
        yield from _listwise(measured)
        what = "list"
    if measured.missing:
        yield f"{counted(measured.missing, what)} not asked about yet"


def _pairwise(measured: MeasuredPairwise) -> Iterator[RenderableType]:
    """Yield which group a model prefers, and the verdicts in words."""
    prompts = ", ".join(entry.prompt for entry in measured.manifest.prompts)
    entries = {entry.name: entry for entry in measured.manifest.collections}
    for (name, model), figures in measured.figures.groupby(["collection", "model"], sort=False):
        built = entries[name].built
        asked = ""
        if figures.log_odds_replies.any():
            asked = ", by probabilities"
        elif figures.votes_of.any():
            asked = ", by replies"
        yield f"{model} on {name}, {_queries(figures.queries_in_all.iloc[0])}{asked}, {prompts}"
        words = {"protected": built.protected, "unprotected": built.unprotected}
        shown = ("kind", "pairs", *words.values(), "ratio", "ratio_low", "ratio_high", "flips")
        figures = figures.assign(kind=figures.kind.replace("both", "together"))
        yield frame_table(figures.rename(columns=words), *shown)
        groups = [row for row in figures.itertuples() if row.kind != "relevance"]
        for row in groups:
            yield f"{row.kind}: {row.sentence}"
            if row.without_pairs and row.kind != "together":
                without = _queries(row.without_pairs)
                yield f"{without} without {row.kind} pairs, since a cell is empty"
        if measured.manifest.pairs.by == "probabilities" and any(
            2 * row.failures.get("neither", 0) > row.replies for row in groups
        ):
            yield (
                "Most replies would begin with neither A nor B; --set by=reply reads what the "
                "model writes."
            )


def _listwise(measured: MeasuredListwise) -> Iterator[RenderableType]:
    """Yield how relevant lists are, how they expose the groups by who asks, and what failed."""
    shown = ("ranker", "window", "asker", "measure", "mean", "low", "high", "n")
    for entry in measured.manifest.collections:
        yield literal(f"{entry.name}, {_queries(entry.built.queries)}", "bold")
        means, tests, events = (
            frame[frame.collection == entry.name]
            for frame in (measured.means_once, measured.tests, measured.events)
        )
        yield frame_table(means, *shown)
        if len(events):
            failed = events.groupby(["ranker", "event", "kind"], sort=False)["count"].sum()
            yield from (f"{' '.join(key)}: {count}" for key, count in failed.items())
        if len(tests := tests[tests.test == "askers"]):
            yield f"for {entry.built.protected} less for {entry.built.unprotected} askers:"
            yield frame_table(tests, "ranker", "measure", "difference", "n", "p", "p_holm")


def probe_lines(result: ProbeResult) -> Iterator[RenderableType]:
    """Yield how a model ranks what one query retrieved: its verdict on pairs, and its lists."""
    sides = Counter(document.side for document in result.documents)
    undecided = f", {sides['undecided']} undecided" if sides["undecided"] else ""
    yield (
        f"{result.model} on {result.corpus}, '{result.query}', "
        f"{counted(len(result.documents), 'document')}: {sides['protected']} {result.words[0]}, "
        f"{sides['unprotected']} {result.words[1]}{undecided}"
    )
    if result.message:
        yield result.message
        return
    if (pairs := result.pairwise) is not None:
        shares = (pairs.protected, pairs.unprotected, pairs.flips, pairs.votes)
        told = [it.count / it.of if it.of else None for it in shares]
        heads = ("pairs", *result.words, "flips", "votes", "ratio", number("95 %"))
        ends = interval(*(pairs.ratio_interval or (None, None)))
        yield table(heads, [(len(pairs.pairs), *told, pairs.ratio, ends)], digits=3)
        yield pairs.sentence
    if (lists := result.listwise) is not None:
        rows: list[Any] = [("as given", lists.initial_ratio, "")]
        for order in lists.askers:
            failed = f"{sum(order.failures.values())} of {order.asked}"
            rows.append((order.words or "nobody", order.exposure_ratio, failed))
        yield table(["list for", "exposure", number("failed")], rows, digits=3)
    yield result.note
    prompts = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
    yield origin(f"{prompts}; seed {result.seed}", result.usage)


def _queries(count: int) -> str:
    return counted(count, "query", "queries")
