"""What probes found, on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Column, Table
from rich.text import Text

from fairqr.agents.ranking.lean import Share
from fairqr.agents.ranking.pairwise import By
from fairqr.base.prices import tokens_text
from fairqr.base.statistics import Interval
from fairqr.cli.common import printable
from fairqr.cli.terminal import Output, counted, decimal, table
from fairqr.evaluation.probes.measured import (
    Average,
    ListwiseRow,
    MeasuredListwise,
    MeasuredPairwise,
    PairwiseRow,
)
from fairqr.evaluation.probes.rankers import INITIAL
from fairqr.evaluation.probes.store import CollectionEntry
from fairqr.graph.probe.result import ListwiseProbe, PairwiseProbe, ProbedShare, ProbeResult

__all__ = ["print_listwise", "print_measured", "print_pairwise", "print_probe"]

WIDEST = 12
"""Characters of a word in the head of a table that are not broken."""

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
    for entry in measured.manifest.collections:
        for model in experiment.models:
            rows = [
                row for row in measured.rows if (row.collection, row.model) == (entry.name, model)
            ]
            _print_pairs(console, entry, model, rows, prompts, experiment.by)
    if measured.missing:
        console.say(f"{counted(measured.missing, 'pair')} not asked about yet")


def _print_pairs(
    console: Output,
    entry: CollectionEntry,
    model: str,
    rows: list[PairwiseRow],
    prompts: str,
    by: By,
) -> None:
    words = (entry.built.protected, entry.built.unprotected)
    about = f"{_queries(rows[0].queries)}{_asked_by(rows)}, {prompts}"
    console.say((model, "bold"), f" on {entry.name}, {about}")
    # The sentences below have p; a terminal of 80 columns has no room for it.
    shares = (f"{word} %" for word in words)
    groups = [row for row in rows if row.kind in _KINDS]
    cells = (
        (
            _KINDS[row.kind],
            str(row.figures.pairs),
            _percent(row.figures.protected),
            _percent(row.figures.unprotected),
            decimal(row.figures.ratio),
            _interval(row.figures.ratio_interval),
            _percent(row.figures.flips),
            _percent(row.figures.votes),
        )
        for row in groups
    )
    console.print(_table("pairs", ("n", *shares, "ratio", "95 %", "flips %", "votes %"), cells))
    for row in groups:
        if row.verdict is not None:
            console.say((f"{_KINDS[row.kind]}: ", "bold"), row.verdict.sentence)
        if row.without_pairs and row.kind != "both":
            console.print(
                f"{_queries(row.without_pairs)} without {row.kind} pairs, since a cell is empty"
            )
    if by == "probabilities" and any(map(_says_neither, groups)):
        console.print(
            "Most replies would begin with neither A nor B; --set by=reply reads what the model "
            "writes."
        )
    for row in rows:
        if row.kind == "relevance":
            console.print(
                f"relevance: of {counted(row.figures.pairs, 'pair')} of a relevant and an "
                f"irrelevant item, the relevant one is preferred in both orders in "
                f"{_percent(row.figures.protected)} %, the irrelevant one in "
                f"{_percent(row.figures.unprotected)} %"
            )


def _says_neither(row: PairwiseRow) -> bool:
    return 2 * row.figures.failures.get("neither", 0) > row.figures.replies


def _asked_by(rows: list[PairwiseRow]) -> str:
    """Say how the model was asked; nothing where no reply tells it."""
    if any(row.figures.log_odds.replies for row in rows):
        return ", by probabilities"
    return ", by replies" if any(row.figures.votes.of for row in rows) else ""


def print_listwise(measured: MeasuredListwise) -> None:
    """Print how relevant lists are, and how they expose the groups, by who asks."""
    console = Output()
    experiment = measured.manifest.rankings
    k = experiment.k
    for entry in measured.manifest.collections:
        console.say(f"{entry.name}, {_queries(entry.built.queries)}", style="bold")
        words = {"neutral": "nobody"} | {
            "protected": entry.built.protected,
            "unprotected": entry.built.unprotected,
        }
        found = [row for row in measured.rows if row.collection == entry.name]
        # The order that was given is the same whoever asks.
        given = next((row for row in found if row.ranker == INITIAL), None)
        rows = [row for row in found if row.ranker != INITIAL or row is given]
        cells = (
            (
                f"{row.ranker}, {row.window}" if row.window else row.ranker,
                "any" if row is given else words[row.asker],
                decimal(row.precision.mean, 3),
                decimal(row.ndcg.mean, 3),
                decimal(row.ratio.mean, 3),
                _interval(row.ratio.interval, 3),
                str(row.ratio.n),
            )
            for row in rows
        )
        heads = ("for", f"P@{k}", f"nDCG@{k}", "exposure", "95 %", "n")
        console.print(_table("ranker", heads, cells))
        for row in rows:
            for sentence in _troubles(row, words[row.asker]):
                console.say(sentence)
        for difference in measured.differences:
            if difference.collection == entry.name and difference.ranker != INITIAL:
                name = f"P@{k}" if difference.measure == "precision" else f"nDCG@{k}"
                test = difference.randomisation
                console.say(
                    f"{difference.ranker}: {name} for {words['protected']} less for "
                    f"{words['unprotected']} askers: {_signed(difference.difference)}"
                    f" (randomisation p {_p(test.p if test else None)}, "
                    f"corrected {_p(difference.holm_p)}, t test p {_p(difference.t_p)})"
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
        f", {tokens_text(usage.prompt_tokens, usage.completion_tokens, [result.model])}",
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


def _troubles(row: ListwiseRow, asker: str) -> list[str]:
    """Say what had to be mended, and what failed."""
    found = []
    where = f"{row.ranker}, for {asker}"
    if row.failures or row.repairs:
        parts = [counted(row.asked, "question")]
        parts += [f"failed: {_counts(row.failures)}"] if row.failures else []
        parts += [f"mended items: {_counts(row.repairs)}"] if row.repairs else []
        found.append(f"{where}: {'; '.join(parts)}")
    if row.precision.left_out:
        found.append(f"{where}: without a measure: {_counts(row.precision.left_out)}")
    found += [
        f"{where}: {sentence} ({counted(count, 'list')})"
        for sentence, count in row.warnings.items()
    ]
    return found


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


def _percent(share: Share) -> str:
    return "none" if share.value is None else f"{100 * share.value:.1f}"


def _share(share: ProbedShare) -> str:
    return _percent(Share(share.count, share.of))


def _interval(interval: Interval | None, digits: int = 2) -> str:
    if interval is None:
        return ""
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _signed(average: Average) -> str:
    if average.mean is None:
        return "none"
    return f"{average.mean:+.3f} over {_queries(average.n)}"


def _p(p: float | None) -> str:
    if p is None:
        return "none"
    return "< .001" if p < 0.001 else f"{p:.3f}"
