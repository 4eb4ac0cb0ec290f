"""The command ``fairqr evaluate``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError
from fairqr.cli.output import (
    Printed,
    counted,
    decimal,
    interval,
    literal,
    number,
    table,
    warn,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.evaluation.results import Evaluation, MeasureResult
    from fairqr.retrieval.sources.runs import SystemRun

RELEVANCE = "nDCG@20,P@20,AP"
FAIRNESS = "AWRF@20,nDCG@20×AWRF@20"


def evaluate(
    run_file: Path | None = None,
    *,
    qrels: Path | None = None,
    measures: list[str] | None = None,
    documents: str | None = None,
    schema: Path | None = None,
    corpus: str | None = None,
    attribute: list[str] | None = None,
    target: list[str] | None = None,
    compare: list[Path] | None = None,
    alpha: float = 0.05,
    ties: str = "rank",
    missing: str = "zero",
    seed: int = 0,
    by_query: bool = False,
    csv: Path | None = None,
) -> Printed | None:
    """Measure the relevance and the fairness of a run, and compare it with others.

    Args:
        run_file: A run file in TREC's format.
        qrels: Judgements in TREC's format; a grade above 0 is relevant.
        measures: Measures, such as nDCG@20,AWRF@20(attribute=gender); 'help' lists them.
        documents: Where groups come from: JSON Lines of documents, or a built-in corpus.
        schema: The schema of the documents; by default the one beside the file.
        corpus: A source, an index or a source file to ask for the groups, instead of --documents.
        attribute: The attribute of measures without one; gender×continent for a product.
        target: The target of fairness: relevance:0.5,population:0.5 (the default), or trec2022.
        compare: Another run to compare with RUN_FILE by paired tests. Repeatable.
        alpha: The level of the tests; intervals have the level 1 - alpha.
        ties: How to order equal scores: rank (as in the file), id, trec_eval or error.
        missing: The relevance of queries that a run lacks: zero, or undefined to leave them out.
        seed: The seed of the randomisation tests.
        by_query: Show the value of each query too.
        csv: Write the value of each query to this file.
    """
    if measures and "help" in measures:
        return Printed(None, _measure_lines())
    if run_file is None:
        raise InputError("An evaluation needs a run; name a run file in TREC's format.")
    if documents is not None and corpus is not None:
        raise InputError("Groups come from --documents or --corpus; leave one of them out.")
    if schema is not None and documents is None:
        raise InputError("--schema needs --documents; name the documents, too.")
    from fairqr.evaluation.collections.query_targets import DEFAULT_TARGET
    from fairqr.evaluation.evaluate import evaluate_all, ids_of
    from fairqr.evaluation.inputs import as_groups
    from fairqr.evaluation.measures.text import parse_measures
    from fairqr.evaluation.qrels import read_qrels
    from fairqr.evaluation.results import check_level
    from fairqr.evaluation.results import compare as compare_runs
    from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus

    grouped = documents is not None or corpus is not None
    check_level(alpha, "a test", "0.05")
    wanted = parse_measures(measures or (f"{RELEVANCE},{FAIRNESS}" if grouped else RELEVANCE))
    runs = _read_runs([run_file, *(compare or [])], ties)
    judged = None if qrels is None else read_qrels(qrels)
    scan = None
    if grouped:
        source = corpus or find_corpus(BUILT_IN.get(documents or "", Path(documents or "")), schema)
        scan = as_groups(source, ids_of(runs, judged))
    evaluations = evaluate_all(
        runs,
        judged,
        wanted,
        documents=scan,
        target=target or DEFAULT_TARGET,
        attributes=attribute or (),
        missing=missing,  # type: ignore[arg-type]
        level=1 - alpha,
        by_group=attribute or (tuple(scan.schema.attributes) if scan else ()),
    )
    found = None
    if len(runs) > 1:
        found = compare_runs(evaluations[0], evaluations[1:], alpha=alpha, seed=seed)
    if csv is not None:
        from fairqr.base.files import write_beside
        from fairqr.evaluation.results import csv_text

        write_beside(csv, csv_text(evaluations))
    told = (note.sentence for evaluation in evaluations for note in evaluation.notes)
    for sentence in dict.fromkeys(told):
        warn(sentence)
    data = {
        "runs": [evaluation.as_json(by_query=by_query) for evaluation in evaluations],
        "comparisons": found.as_json() if found else None,
    }
    lines: list[RenderableType] = []
    for evaluation in evaluations:
        lines += _lines(evaluation, by_query=by_query)
    if found:
        lines.append("")
        for row, sentence in zip(found.rows, found.sentences(), strict=True):
            lines.append(literal(sentence, "bold" if row.holds(found.alpha) else ""))
    return Printed(data, lines)


def _read_runs(paths: Sequence[Path], ties: str) -> list[SystemRun]:
    """Read runs, and make their names unique."""
    from fairqr.retrieval.sources.runs import read_run

    runs = [read_run(path, ties=ties) for path in paths]  # type: ignore[arg-type]
    counts = Counter(found.name for found in runs)
    names: Counter[str] = Counter()
    for place, (path, found) in enumerate(zip(paths, runs, strict=True)):
        file = path.name.encode(errors="replace").decode()
        name = found.name if counts[found.name] == 1 else f"{found.name} ({file})"
        names[name] += 1
        if names[name] > 1:
            name += f" [{names[name]}]"
        runs[place] = dataclasses.replace(found, name=name)
    return runs


def _lines(evaluation: Evaluation, *, by_query: bool) -> Iterator[RenderableType]:
    """Yield the means of a run, and the values of its queries if asked for."""
    from fairqr.agents.statistics import too_few

    results = list(evaluation.results.values())
    level = next((it.interval.level for it in results if it.interval), 0.95)
    yield f"{evaluation.run}  {counted(len(evaluation.queries), 'query', 'queries')}"
    yield table(
        ["measure", *map(number, ("mean", f"{level:.0%} interval", "over")), "best", "no value"],
        (
            (
                str(result.measure),
                decimal(result.mean, 4),
                interval(*_ends(result), 4),
                str(result.count),
                result.measure.best,
                ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in result.undefined().items()),
            )
            for result in results
        ),
    )
    if evaluation.by_group:
        names = ("share of exposure", "of the relevant", "ratio", "95% interval", "over")
        yield table(
            ["group", *map(number, names)],
            (
                (
                    f"{share.attribute}: {share.group}",
                    decimal(share.exposure, 4),
                    decimal(share.relevant, 4),
                    decimal(share.ratio),
                    interval(share.low, share.high),
                    str(share.queries),
                )
                for share in evaluation.by_group
            ),
        )
    if by_query:
        rows = (
            (query, name, decimal(value, 4), why.replace("_", " "))
            for _, query, name, value, why in evaluation.rows()
        )
        yield table(["query", "measure", number("value"), ""], rows)
    unknown = ", ".join(f"{name} {policy}" for name, policy in evaluation.unknown.items())
    few = any(too_few(result.count, 0.05) and result.count for result in results)
    yield (
        f"target {evaluation.target}; missing queries: {evaluation.missing}"
        f"{'; unknown: ' if unknown else ''}{unknown}"
        f"{'; too few queries for an interval' if few else ''}"
    )


def _ends(result: MeasureResult) -> tuple[float | None, float | None]:
    found = result.interval
    return (found.low, found.high) if found else (None, None)


def _measure_lines() -> Iterator[str]:
    """Yield what measures there are, with their parameters."""
    from fairqr.evaluation.measures.product import Product
    from fairqr.evaluation.measures.text import MEASURES, parse_measure

    for measure in (*MEASURES, Product):
        kind: Any = measure
        needs = ", ".join(sorted(parse_measure(kind.example).needs))
        taken = [it.name for it in dataclasses.fields(kind) if it.name not in ("k", "factors")]
        choices = ("|".join(kind.choices.get(name, ())) for name in taken)
        told = [f"{name}={it}" if it else name for name, it in zip(taken, choices, strict=True)]
        yield f"{kind.example}  {kind.summary}"
        yield f"  range {kind.range}; {kind.best}; needs {needs}"
        if told:
            yield f"  takes {', '.join(told)}"
    yield "docs/explanation/measures.md has formulas and conventions."
