"""The command ``fairqr evaluate``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import InputError
from fairqr.cli.common import (
    AsJson,
    notes,
    open_to_search,
    print_json,
    printable,
    run,
    warn,
)

if TYPE_CHECKING:
    from fairqr.evaluation.collections.labels import Groups
    from fairqr.evaluation.qrels import Qrels
    from fairqr.retrieval.sources.runs import SystemRun

RELEVANCE = "nDCG@20,P@20,AP"
FAIRNESS = "AWRF@20,nDCG@20×AWRF@20"


def evaluate(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run file in TREC's format.")
    ] = None,
    qrels: Annotated[
        Path | None,
        typer.Option(help="Judgements in TREC's format; a grade above 0 is relevant."),
    ] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option(
            help="Measures, such as nDCG@20,AWRF@20(attribute=gender); 'help' lists them."
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(help="Where groups come from: JSON Lines of documents, or a built-in corpus."),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help="The schema of the documents; by default the one beside the file."),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            help="A source, an index or a source file to ask for the groups, instead of "
            "--documents."
        ),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="The attribute of measures without one; gender×continent for a product."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="The target of fairness: relevance:0.5,population:0.5 (the default), or trec2022."
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Another run to compare with RUN by paired tests. Repeatable."),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="The level of the tests; intervals have the level 1 - alpha.")
    ] = 0.05,
    ties: Annotated[
        str,
        typer.Option(
            help="How to order equal scores: rank (as in the file), id, trec_eval or error."
        ),
    ] = "rank",
    missing: Annotated[
        str,
        typer.Option(
            help="The relevance of queries that a run lacks: zero, or undefined to leave them out."
        ),
    ] = "zero",
    seed: Annotated[int, typer.Option(help="The seed of the randomisation tests.", min=0)] = 0,
    by_query: Annotated[
        bool, typer.Option("--by-query", help="Show the value of each query too.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(help="Write the value of each query to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the relevance and the fairness of a run, and compare it with others."""
    if measures and "help" in measures:
        from fairqr.cli.evaluation_tables import print_measures

        print_measures()
        return
    if run_file is None:
        raise InputError("An evaluation needs a run; name a run file in TREC's format.")
    if documents is not None and corpus is not None:
        raise InputError("Groups come from --documents or --corpus; leave one of them out.")
    if schema is not None and documents is None:
        raise InputError("--schema needs --documents; name the documents, too.")
    from fairqr.evaluation.collections.query_targets import DEFAULT_TARGET
    from fairqr.evaluation.evaluate import evaluate_all
    from fairqr.evaluation.measures.text import parse_measures
    from fairqr.evaluation.qrels import read_qrels
    from fairqr.evaluation.results import compare as compare_runs

    grouped = documents is not None or corpus is not None
    if not measures and qrels is None:
        raise InputError(
            "An evaluation needs judgements; name them with --qrels, or name measures that need "
            "none with --measures."
        )
    if not 0 < alpha < 1:
        raise InputError(
            f"--alpha is the level of a test, between 0 and 1, such as 0.05, not {alpha:g}."
        )
    wanted = parse_measures(measures or (f"{RELEVANCE},{FAIRNESS}" if grouped else RELEVANCE))
    runs = _read_runs([run_file, *(compare or [])], ties)
    judged = None if qrels is None else read_qrels(qrels)
    scan = _scan(documents, corpus, schema, runs, judged) if grouped else None
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
    comparisons = None
    if len(runs) > 1:
        comparisons = compare_runs(evaluations[0], evaluations[1:], alpha=alpha, seed=seed)
    if csv is not None:
        from fairqr.base.files import write_beside
        from fairqr.evaluation.results import csv_text

        write_beside(csv, csv_text(evaluations))
    from fairqr.cli.evaluation_tables import print_comparisons, print_evaluation

    told = (note.sentence for evaluation in evaluations for note in evaluation.notes)
    for sentence in dict.fromkeys(told):
        warn(printable(sentence))
    if as_json:
        found = {
            "runs": [evaluation.as_json(by_query=by_query) for evaluation in evaluations],
            "comparisons": comparisons.as_json() if comparisons else None,
        }
        # JSON has no NaN.
        print_json(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    for evaluation in evaluations:
        print_evaluation(evaluation, by_query=by_query)
    if comparisons:
        print_comparisons(comparisons)


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


def _scan(
    documents: str | None,
    corpus: str | None,
    schema: Path | None,
    runs: Sequence[SystemRun],
    qrels: Qrels | None,
) -> Groups:
    """Return the groups of all documents that are ranked or judged."""
    from fairqr.evaluation.collections.labels import scan_corpus, scan_engine
    from fairqr.evaluation.evaluate import ids_of
    from fairqr.retrieval.sources.corpus import BUILT_IN, find_corpus

    ids = ids_of(runs, qrels)
    if documents is not None:
        labelled = find_corpus(BUILT_IN.get(documents, Path(documents)), schema)
        with notes().status("reading documents"):
            return scan_corpus(labelled, ids)

    async def ask() -> Groups:
        async with contextlib.aclosing(await open_to_search(corpus or "")) as engine:
            return await scan_engine(engine, ids)

    return run(ask())
