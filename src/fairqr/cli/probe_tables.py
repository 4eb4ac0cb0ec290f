"""Results of probes on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from fairqr.agents.ranking.lean import Share
from fairqr.agents.ranking.rankers import By
from fairqr.cli.common import printable
from fairqr.cli.terminal import Output, counted, decimal, table
from fairqr.evaluation.probes.listwise_measures import KEYS, MeasuredListwise, ranker_name
from fairqr.evaluation.probes.pairwise_measures import MeasuredPairwise
from fairqr.evaluation.probes.rankers import INITIAL
from fairqr.evaluation.probes.store import CollectionEntry
from fairqr.graph.probe.result import ListwiseProbe, PairwiseProbe, ProbedShare, ProbeResult

WIDEST = 12
"""The longest word in the head of a table that is not broken, in characters."""

_KINDS = {"relevant": "relevant", "irrelevant": "irrelevant", "both": "together"}


def print_measured(measured: MeasuredListwise | MeasuredPairwise) -> None:
    """Print what a probe measured."""
    if isinstance(measured, MeasuredPairwise):
        print_pairwise(measured)
    else:
        print_listwise(measured)


def print_pairwise(measured: MeasuredPairwise) -> None:
    """Print which group a model prefers, and the verdicts in words."""
    console = Output()
    experiment = measured.manifest.pairs
    prompts = ", ".join(entry.prompt for entry in measured.manifest.prompts)
    entries = {entry.name: entry for entry in measured.manifest.collections}
    for (name, _), found in measured.figures.groupby(["collection", "model"], sort=False):
        _print_pairs(console, entries[name], list(found.itertuples()), prompts, experiment.by)
    if measured.missing:
        console.say(f"{counted(measured.missing, 'pair')} not asked about yet")


def _print_pairs(
    console: Output, entry: CollectionEntry, rows: list[Any], prompts: str, by: By
) -> None:
    words = (entry.built.protected, entry.built.unprotected)
    about = f"{_queries(rows[0].queries_in_all)}{_asked_by(rows)}, {prompts}"
    console.say((rows[0].model, "bold"), f" on {entry.name}, {about}")
    # The sentences below have p; a terminal of 80 columns has no room for it.
    shares = (f"{word} %" for word in words)
    groups = [row for row in rows if row.kind in _KINDS]
    cells = (
        (
            _KINDS[row.kind],
            str(row.pairs),
            _percent(row.protected),
            _percent(row.unprotected),
            decimal(row.ratio),
            _interval(row.ratio_low, row.ratio_high),
            _percent(row.flips),
            _percent(row.votes),
        )
        for row in groups
    )
    console.print(_table("pairs", ("n", *shares, "ratio", "95 %", "flips %", "votes %"), cells))
    for row in groups:
        console.say((f"{_KINDS[row.kind]}: ", "bold"), row.sentence)
        if row.without_pairs and row.kind != "both":
            console.print(
                f"{_queries(row.without_pairs)} without {row.kind} pairs, since a cell is empty"
            )
    if by == "probabilities" and any(
        2 * it.failures.get("neither", 0) > it.replies for it in groups
    ):
        console.print(
            "Most replies would begin with neither A nor B; --set by=reply reads what the model "
            "writes."
        )
    for row in rows:
        if row.kind == "relevance":
            console.print(
                f"relevance: of {counted(row.pairs, 'pair')} of a relevant and an irrelevant item, "
                f"the relevant one is preferred in both orders in {_percent(row.protected)} %, the "
                f"irrelevant one in {_percent(row.unprotected)} % (p by Holm {_p(row.p_holm)})"
            )


def _asked_by(rows: list[Any]) -> str:
    """Say how the model was asked; empty if no reply shows it."""
    if any(row.log_odds_replies for row in rows):
        return ", by probabilities"
    return ", by replies" if any(row.votes_of for row in rows) else ""


def print_listwise(measured: MeasuredListwise) -> None:
    """Print how relevant lists are, and how they expose the groups, by who asks."""
    console = Output()
    names = measured.names
    for entry in measured.manifest.collections:
        console.say(f"{entry.name}, {_queries(entry.built.queries)}", style="bold")
        words = {"neutral": "nobody"} | {
            "protected": entry.built.protected,
            "unprotected": entry.built.unprotected,
        }
        means = measured.means_once[measured.means_once.collection == entry.name]
        cells, keys = [], []
        for key, found in means.groupby(KEYS[1:], sort=False):
            ranker, window, asker = key
            row = {mean.measure: mean for mean in found.itertuples()}
            ratio = row[names["ratio"]]
            keys.append((entry.name, *key))
            cells.append(
                (
                    ranker_name(ranker, window),
                    "any" if ranker == INITIAL else words[asker],
                    *(decimal(row[name].mean, 3) for name in names.values()),
                    _interval(ratio.low, ratio.high, 3),
                    str(ratio.n),
                )
            )
        heads = ("for", names["precision"], names["ndcg"], "exposure", "95 %", "n")
        console.print(_table("ranker", heads, cells))
        for key in keys:
            for sentence in _troubles(measured, key):
                console.say(f"{key[1]}, for {words[key[3]]}: {sentence}")
        tests = measured.tests
        own = tests[(tests.collection == entry.name) & (tests.test == "askers")]
        for test in own.itertuples():
            change = "none"
            if test.n:
                change = f"{test.difference:+.3f} over {_queries(test.n)}"
            console.say(
                f"{test.ranker}: {test.measure} for {words['protected']} less for "
                f"{words['unprotected']} askers: {change} (randomisation p {_p(test.p)}, corrected "
                f"for {test.tests} tests {_p(test.p_holm)}, t test p {_p(test.p_t)})"
            )
    if measured.missing:
        console.say(f"{counted(measured.missing, 'list')} not ranked yet")


def print_probe(result: ProbeResult) -> None:
    """Print how a model ranks what one query retrieved: its verdict on pairs, and its lists."""
    console = Output()
    sides = Counter(document.side for document in result.documents)
    one, other = result.words
    console.say(
        (result.model, "bold"),
        f" on {result.corpus}, '{result.query}', {counted(len(result.documents), 'document')}: "
        f"{sides['protected']} {one}, {sides['unprotected']} {other}",
        f", {sides['undecided']} undecided" if sides["undecided"] else "",
    )
    if result.message:
        console.say(result.message)
        return
    if result.pairwise is not None:
        _print_one_query(console, result.pairwise, result.words)
    if result.listwise is not None:
        _print_orders(console, result.listwise)
    console.say(result.note)
    prompts = ", ".join(f"{prompt.id}={prompt.version}" for prompt in result.prompts)
    usage = result.usage
    console.say(
        f"{prompts}; seed {result.seed}; {counted(usage.model_calls, 'model call')}",
        f" and {usage.cached_calls} from the cache" if usage.cached_calls else "",
        f", {usage.prompt_tokens} + {usage.completion_tokens} tokens",
        style="dim",
    )


def _print_one_query(console: Output, found: PairwiseProbe, words: tuple[str, str]) -> None:
    cells = (
        str(len(found.pairs)),
        _share(found.protected),
        _share(found.unprotected),
        decimal(found.ratio),
        "{:.2f} to {:.2f}".format(*found.ratio_interval) if found.ratio_interval else "",
        _share(found.flips),
        _share(found.votes),
    )
    heads = (*(f"{word} %" for word in words), "ratio", "95 %", "flips %", "votes %")
    console.print(_table("pairs", heads, [cells]))
    console.say(found.sentence)


def _print_orders(console: Output, found: ListwiseProbe) -> None:
    rows = [("as given", decimal(found.initial_ratio, 3), "")]
    for order in found.askers:
        failed = f"{sum(order.failures.values())} of {order.asked}"
        rows.append((order.words or "nobody", decimal(order.exposure_ratio, 3), failed))
    console.print(_table("list for", ("exposure", "failed"), rows))


def _troubles(measured: MeasuredListwise, key: tuple[str, ...]) -> Iterator[str]:
    """Yield sentences about failures, repairs, and warnings of the ranker."""
    events, lists, means = (
        frame[(frame[KEYS] == list(key)).all(axis=1)]
        for frame in (measured.events, measured.lists, measured.means)
    )
    happened = {
        event: dict(own.groupby("kind")["count"].sum()) for event, own in events.groupby("event")
    }
    parts = [
        f"{said}: {_counts(happened[event])}"
        for event, said in (("failure", "failed"), ("repair", "mended items"))
        if event in happened
    ]
    if parts:
        yield "; ".join([counted(int(lists.asked.sum()), "question"), *parts])
    left_out = means[means.measure == measured.names["precision"]].left_out.iloc[0]
    if left_out:
        yield f"without a measure: {_counts(left_out)}"
    for sentence, count in happened.get("warning", {}).items():
        yield f"{sentence} ({counted(int(count), 'list')})"


def _table(first: str, others: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column holds names, which may be broken; numbers are not."""
    heads = [Column(first, overflow="fold", min_width=max(map(len, _KINDS.values())))]
    for name in map(printable, others):
        widest = max(map(len, name.split()), default=0)
        width = min(widest, WIDEST)
        heads.append(Column(Text(name), justify="right", overflow="fold", min_width=width))
    return table(heads, rows)


def _queries(number: int) -> str:
    return counted(number, "query", "queries")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _percent(share: float | None) -> str:
    return "none" if share is None or share != share else f"{100 * share:.1f}"


def _share(share: ProbedShare) -> str:
    return _percent(Share(share.count, share.of).value)


def _interval(low: float | None, high: float | None, digits: int = 2) -> str:
    if low is None or high is None or low != low:
        return ""
    return f"{low:.{digits}f} to {high:.{digits}f}"


def _p(p: float | None) -> str:
    if p is None or p != p:
        return "none"
    return "< .001" if p < 0.001 else f"{p:.3f}"
