"""Results of probes on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fairqr.cli.output import counted, decimal, interval, literal, number, percent, table
from fairqr.evaluation.probes.listwise_measures import KEYS, MeasuredListwise, ranker_name
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise
from fairqr.evaluation.probes.rankers import INITIAL
from fairqr.graph.probe.result import ProbedShare, ProbeResult

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

KINDS = {"relevant": "relevant", "irrelevant": "irrelevant", "both": "together"}
"""What kinds of pairs are called."""


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
    for (name, model), found in measured.figures.groupby(["collection", "model"], sort=False):
        rows = list(found.itertuples())
        built = entries[name].built
        how = ""
        if any(row.log_odds_replies for row in rows):
            how = ", by probabilities"
        elif any(row.votes_of for row in rows):
            how = ", by replies"
        yield f"{model} on {name}, {_queries(rows[0].queries_in_all)}{how}, {prompts}"
        groups = [row for row in rows if row.kind in KINDS]
        # The sentences below have p; a terminal of 80 columns has no room for it.
        yield _pairs(
            (built.protected, built.unprotected),
            [
                (
                    KINDS[row.kind],
                    str(row.pairs),
                    percent(row.protected),
                    percent(row.unprotected),
                    decimal(row.ratio),
                    interval(row.ratio_low, row.ratio_high),
                    percent(row.flips),
                    percent(row.votes),
                )
                for row in groups
            ],
        )
        for row in groups:
            yield f"{KINDS[row.kind]}: {row.sentence}"
            if row.without_pairs and row.kind != "both":
                without = _queries(row.without_pairs)
                yield f"{without} without {row.kind} pairs, since a cell is empty"
        if measured.manifest.pairs.by == "probabilities" and any(
            2 * it.failures.get("neither", 0) > it.replies for it in groups
        ):
            yield (
                "Most replies would begin with neither A nor B; --set by=reply reads what the "
                "model writes."
            )
        for row in (row for row in rows if row.kind == "relevance"):
            yield (
                f"relevance: of {counted(row.pairs, 'pair')} of a relevant and an irrelevant item, "
                f"the relevant one is preferred in both orders in {percent(row.protected)}, the "
                f"irrelevant one in {percent(row.unprotected)} (p by Holm {_p(row.p_holm)})"
            )


def _listwise(measured: MeasuredListwise) -> Iterator[RenderableType]:
    """Yield how relevant lists are, and how they expose the groups, by who asks."""
    names = measured.names
    heads = ("for", names["precision"], names["ndcg"], "exposure", "95 %", "n")
    for entry in measured.manifest.collections:
        built = entry.built
        words = {"neutral": "nobody", "protected": built.protected}
        words |= {"unprotected": built.unprotected}
        yield literal(f"{entry.name}, {_queries(built.queries)}", "bold")
        means = measured.means_once[measured.means_once.collection == entry.name]
        cells, troubles = [], []
        for (ranker, window, asker), found in means.groupby(KEYS[1:], sort=False):
            row = {mean.measure: mean for mean in found.itertuples()}
            ratio = row[names["ratio"]]
            cells.append(
                (
                    ranker_name(ranker, window),
                    "any" if ranker == INITIAL else words[asker],
                    *(decimal(row[name].mean, 3) for name in names.values()),
                    interval(ratio.low, ratio.high, 3),
                    str(ratio.n),
                )
            )
            key = (entry.name, ranker, window, asker)
            troubles += [f"{ranker}, for {words[asker]}: {it}" for it in _troubles(measured, key)]
        yield table(["ranker", *map(number, heads)], cells)
        yield from troubles
        tests = measured.tests
        for test in tests[(tests.collection == entry.name) & (tests.test == "askers")].itertuples():
            change = f"{test.difference:+.3f} over {_queries(test.n)}" if test.n else "none"
            yield (
                f"{test.ranker}: {test.measure} for {words['protected']} less for "
                f"{words['unprotected']} askers: {change} (randomisation p {_p(test.p)}, corrected "
                f"for {test.tests} tests {_p(test.p_holm)}, t test p {_p(test.p_t)})"
            )


def _troubles(measured: MeasuredListwise, key: tuple[str, ...]) -> Iterator[str]:
    """Yield sentences about failures, repairs, and warnings of the ranker."""
    events, lists, means = (
        frame[(frame[KEYS] == list(key)).all(axis=1)]
        for frame in (measured.events, measured.lists, measured.means)
    )
    parts = []
    for event, said in (("failure", "failed"), ("repair", "mended items")):
        own = events[events.event == event].groupby("kind")["count"].sum()
        if len(own):
            parts.append(f"{said}: {_counts(own)}")
    if parts:
        yield "; ".join([counted(int(lists.asked.sum()), "question"), *parts])
    left_out = means[means.measure == measured.names["precision"]].left_out.iloc[0]
    if left_out:
        yield f"without a measure: {_counts(left_out)}"
    for warning in events[events.event == "warning"].itertuples():
        yield f"{warning.kind} ({counted(int(warning.count), 'list')})"


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
        low, high = pairs.ratio_interval or (None, None)
        shares = [pairs.protected, pairs.unprotected, pairs.flips, pairs.votes]
        one, other, *last = map(_share, shares)
        ratio = (decimal(pairs.ratio), interval(low, high))
        yield _pairs(result.words, [("", str(len(pairs.pairs)), one, other, *ratio, *last)])
        yield pairs.sentence
    if (lists := result.listwise) is not None:
        rows = [("as given", decimal(lists.initial_ratio, 3), "")]
        for order in lists.askers:
            failed = f"{sum(order.failures.values())} of {order.asked}"
            rows.append((order.words or "nobody", decimal(order.exposure_ratio, 3), failed))
        yield table(["list for", number("exposure"), number("failed")], rows)
    yield result.note
    prompts = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
    usage = result.usage
    cached = f" and {usage.cached_calls} from the cache" if usage.cached_calls else ""
    yield literal(
        f"{prompts}; seed {result.seed}; {counted(usage.model_calls, 'model call')}{cached}, "
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        "dim",
    )


def _pairs(words: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    heads = ("n", *words, "ratio", "95 %", "flips", "votes")
    return table(["pairs", *map(number, heads)], rows)


def _queries(count: int) -> str:
    return counted(count, "query", "queries")


def _counts(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in dict(counts).items())


def _share(share: ProbedShare) -> str:
    return percent(share.count / share.of if share.of else None)


def _p(p: float | None) -> str:
    if p is None or p != p:
        return "none"
    return "< .001" if p < 0.001 else f"{p:.3f}"
