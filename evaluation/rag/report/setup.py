"""What was run, on which labels, what failed and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Items, Paragraph
from fairqr.evaluation.rag.analysis.frame import Frame, policy_name
from fairqr.evaluation.rag.analysis.measuring import MeasuredRag
from fairqr.evaluation.rag.analysis.names import ABOUT
from fairqr.evaluation.rag.report.common import by_collection, policy_rows, title_of

__all__ = ["cost_blocks", "failure_blocks", "intro", "label_blocks", "setup_blocks"]

MOST_REASONS = 20


def intro(measured: MeasuredRag) -> Iterator[Block]:
    """Yield what is asked, and on what."""
    if measured.manifest.experiment.about:
        yield Paragraph(measured.manifest.experiment.about)
    for entry in measured.manifest.collections:
        asked = len(
            {
                cell.record.query
                for cell in measured.frame.cells
                if cell.record.collection == entry.name and cell.record.samples
            }
        )
        yield Paragraph(
            f"{entry.title}: {asked} of {numbers.count(len(entry.queries), 'query', 'queries')} "
            f"measured. {entry.note}"
        )


def label_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield what the labels of utility are like."""
    rows = []
    for (collection, generator), found in measured.labels.items():
        failed = measured.label_failures[collection, generator]
        sd = "" if found.useful_sd is None else f"sd {found.useful_sd:.2f}"
        rows.append(
            (
                Cell(title_of(measured, collection)),
                Cell(generator),
                Cell(str(found.labelled)),
                Cell(str(found.kept)),
                Cell(_counted(found.dropped)),
                Cell(f"{found.documents:,}"),
                Cell(
                    "–" if found.useful_mean is None else f"{found.useful_mean:.2f}",
                    f"{sd} {found.useful:,} in all".strip(),
                ),
                Cell(numbers.value(found.share)),
                Cell(str(found.unlabelled), _counted(failed) if failed else ""),
            )
        )
    least = measured.manifest.experiment.min_useful
    yield parts.Table(
        "Labels of utility. A document is useful to a generator if the answer that saw it alone is "
        "worth more than the answer that saw none. Queries with fewer than "
        f"{least} useful documents are dropped; documents, useful documents and their share are of "
        "the queries that are kept. A document whose answer failed has no label, and counts as "
        "not useful in the measures.",
        (
            "collection",
            "generator",
            "queries",
            "kept",
            "dropped",
            "documents",
            "useful, mean per query",
            "share useful",
            "without a label",
        ),
        tuple(rows),
    )


def _counted(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count} × {name}" for name, count in counts.items()) or "none"


def failure_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield what failed, and over how many things each number is."""
    notes = [*measured.manifest.notes, *measured.warnings, *_unfinished(measured)]
    for entry in measured.manifest.collections:
        if entry.left_out:
            notes.append(f"{entry.title}: left out of the collection: {_counted(entry.left_out)}.")
    if notes:
        yield Items(tuple(notes))
    for title, frame in by_collection(measured):
        yield parts.Table(
            f"{title}: over how many things the numbers are. Exposure is over the rankings drawn; "
            "utility over those answered, without generations that failed; use over the pairs of a "
            "document and a distinct answer that could be judged.",
            (
                "generator",
                "retriever",
                "policy",
                "queries and seeds",
                "nothing drawn",
                "rankings drawn",
                "generated from",
                "distinct",
                "failed",
                "empty answers",
                "pairs to judge",
                "without a verdict",
            ),
            tuple(
                (*map(Cell, names), *_counts(found))
                for names, _, found in policy_rows(frame, by_generator=True)
            ),
        )
    told = Counter(cell.record.failure for cell in measured.frame.cells if cell.record.failure)
    if told:
        yield Paragraph("Why there is nothing for some queries, and how often:")
        listed = [f"{times} × {text}" for text, times in told.most_common(MOST_REASONS)]
        if len(told) > MOST_REASONS:
            listed.append(f"and {len(told) - MOST_REASONS} others, in records.jsonl.")
        yield Items(tuple(listed))


def _unfinished(measured: MeasuredRag) -> Iterator[str]:
    """Yield what a run that was interrupted has still to do."""
    experiment = measured.manifest.experiment
    policies = len(experiment.retrievers) * (1 + len(experiment.alphas)) + 1
    each = policies * len(experiment.seeds)
    for entry in measured.manifest.collections:
        for generator in experiment.generators:
            labels = measured.labels.get((entry.name, generator))
            labelled, kept = (labels.labelled, labels.kept) if labels else (0, 0)
            done = len(measured.frame.select(collection=entry.name, generator=generator).cells)
            unlabelled = max(0, len(entry.queries) - labelled)
            missing = max(0, kept * each - done)
            if unlabelled or missing:
                yield (
                    f"{entry.title}, {generator}: not finished: "
                    f"{numbers.count(unlabelled, 'query', 'queries')} without labels, and "
                    f"{numbers.count(missing, 'policy on a query', 'policies on queries')} still "
                    "to be done; running the experiment again goes on with them. Until then means "
                    "of policies may be over different queries."
                )


def _counts(frame: Frame) -> tuple[Cell, ...]:
    counts = [cell.counts for cell in frame.cells]
    failed: Counter[str] = Counter()
    for count in counts:
        failed.update(count.failed)
    return (
        Cell(f"{len(counts):,}"),
        Cell(f"{sum(not cell.record.samples for cell in frame.cells):,}"),
        Cell(f"{sum(count.samples for count in counts):,}"),
        Cell(f"{sum(count.generated for count in counts):,}"),
        Cell(f"{sum(count.distinct for count in counts):,}"),
        Cell(f"{sum(failed.values()):,}", _counted(failed) if failed else ""),
        Cell(f"{sum(count.empty for count in counts):,}"),
        Cell(f"{sum(count.pairs for count in counts):,}"),
        Cell(f"{sum(count.unjudged for count in counts):,}"),
    )


def cost_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield what labels and answers cost."""
    rows = [
        (
            Cell(title_of(measured, collection)),
            Cell(generator),
            Cell("labels"),
            *_cost(*measured.label_cost[collection, generator]),
        )
        for collection, generator in measured.labels
    ]
    for title, frame in by_collection(measured):
        for generator in frame.generators:
            mine = frame.select(generator=generator)
            for policy in mine.policies:
                records = [cell.record for cell in mine.select(policy=policy).cells]
                rows.append(
                    (
                        Cell(title),
                        Cell(generator),
                        Cell(policy_name(policy)),
                        *_cost(
                            sum(record.model_calls for record in records),
                            sum(record.tokens for record in records),
                            sum(record.milliseconds for record in records),
                        ),
                    )
                )
    yield parts.Table(
        "Cost in all. Equal rankings of a query are generated from once, and count for the policy "
        "that came first; what the cache answered counts as what it cost when it was asked for. "
        "Seconds are of the model, on the machine that the experiment ran on.",
        ("collection", "generator", "for", "model calls", "tokens", "seconds"),
        tuple(rows),
    )


def _cost(calls: int, tokens: int, milliseconds: float) -> tuple[Cell, ...]:
    return Cell(f"{calls:,}"), Cell(f"{tokens:,}"), Cell(f"{milliseconds / 1000:,.1f}")


def setup_blocks(measured: MeasuredRag) -> Iterator[Block]:
    """Yield what was run, and what the measures are."""
    manifest = measured.manifest
    experiment = manifest.experiment
    answered = experiment.samples if experiment.generated is None else experiment.generated
    facts = {
        "documents that a generator reads (k)": f"{experiment.k}",
        "rankings drawn from each policy (N)": f"{experiment.samples}",
        "answered of these": "all" if answered == experiment.samples else f"the first {answered}",
        "seeds": ", ".join(map(str, experiment.seeds)),
        "α": ", ".join(f"{alpha:g}" for alpha in experiment.alphas),
        "Plackett–Luce over": f"{experiment.form}, scores min-max normalised to [1, 2]",
        "retrievers": ", ".join(experiment.retrievers),
        "generators": ", ".join(experiment.generators),
        "attributor": manifest.attributor or "none",
        "hypothesis": "the answer as it is"
        if experiment.hypothesis == "raw"
        else "the sentence that the task makes of the answer",
        "documents of each query": "all of its pool"
        if experiment.pool is None
        else f"the first {experiment.pool} of its pool",
        "begun": manifest.started,
        "versions": ", ".join(f"{name} {v}" for name, v in manifest.versions.items()),
    }
    for entry in manifest.collections:
        facts[f"{entry.name}: prompt {entry.prompt}"] = f"sha256 {entry.prompt_sha256}"
        facts[f"{entry.name}: sha256 of its files"] = entry.fingerprint
        facts[f"{entry.name}: task, utility"] = f"{entry.task}, {entry.utility}"
        facts[f"{entry.name}: documents"] = f"{entry.documents:,} in all pools"
        facts[f"{entry.name}: hypothesis"] = entry.hypothesis
    yield parts.Table(
        "What the experiment was run with.",
        ("", "value"),
        tuple((Cell(name), Cell(text)) for name, text in facts.items()),
    )
    yield parts.Table(
        "The measures. Each has a value, or a reason why not, for each policy on each query; "
        "seeds are averaged first, and means are over queries. ε is expected exposure, ε* its "
        "target, ε^a attributed exposure; n documents, m of them useful, k read. Intervals are "
        "Student's intervals over queries, and are given from 6 queries on.",
        ("measure", "what it is", "range", "which end is good"),
        tuple(
            (Cell(str(name)), Cell(about.formula), Cell(about.range), Cell(about.best))
            for name, about in ABOUT.items()
        ),
    )
