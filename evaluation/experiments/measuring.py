"""From searches to numbers: the runs of an experiment, measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Scan, scan_corpus
from fairqr.evaluation.comparison import Comparisons, compare
from fairqr.evaluation.evaluate import Evaluation, evaluate_all, ids_of
from fairqr.evaluation.experiments.plan import fingerprints_of
from fairqr.evaluation.experiments.store import Manifest, Record, Store, file_name
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.scores import Score, Undefined
from fairqr.retrieval.ranking import Ranking
from fairqr.retrieval.runs import Run, write_run

__all__ = ["Measured", "Table", "measure_experiment", "run_of", "write_results"]


@dataclass(frozen=True, slots=True)
class Table:
    """The systems of an experiment for one attribute and one form of query.

    Attributes:
        attribute: What they were to be fair about.
        queries: The form of the queries.
        records: By system, in the experiment's order; only systems with a search of every topic.
        evaluations: By system.
        comparisons: Of the others with the baseline; None where that was not run.
        unfinished: By system, how many topics are still to be searched for.
    """

    attribute: str
    queries: str
    records: Mapping[str, Sequence[Record]]
    evaluations: Mapping[str, Evaluation]
    comparisons: Comparisons | None
    unfinished: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """All tables of an experiment.

    Attributes:
        manifest: What it was run with.
        tables: One for each attribute and form of query.
        qrels: Judgements of the topics that were searched for.
        scan: The groups of all documents that are ranked or judged.
    """

    manifest: Manifest
    tables: Sequence[Table]
    qrels: Qrels
    scan: Scan


def run_of(name: str, records: Iterable[Record]) -> Run:
    """Return a run: one ranking for each seed of each topic; the scores say the order only."""
    rankings: dict[str, list[Ranking]] = {}
    for record in records:
        if record.ids:
            scores = [float(len(record.ids) - place) for place in range(len(record.ids))]
            rankings.setdefault(record.topic, []).append(Ranking(record.ids, scores))
    return Run(name, rankings)


def measure_experiment(
    store: Store, collection: Collection, *, with_tests: bool = True
) -> Measured:
    """Measure what an experiment has done so far.

    Args:
        store: Where it is.
        collection: That it was run on.
        with_tests: Compare the systems with the baseline too, which needs scipy.

    Raises:
        InputError: Nothing is finished yet, or the collection is another.
    """
    manifest = store.manifest()
    if collection.name != manifest.collection:
        raise InputError(
            f"The experiment was run on '{manifest.collection}', not on '{collection.name}'."
        )
    if fingerprints_of(collection) != manifest.fingerprints:
        raise InputError(
            f"The files of '{collection.name}' have changed since the experiment was run; "
            "bring the old ones back, or run it again into another folder."
        )
    qrels = {topic: collection.qrels[topic] for topic in manifest.topics}
    records = store.records()
    wanted = ids_of([], qrels)
    for record in records:
        wanted.update(record.ids, *(done.ids for done in record.rounds))
    scan = scan_corpus(collection.corpus, wanted)
    tables = [
        _table(manifest, attribute, form, records, qrels, scan, with_tests=with_tests)
        for attribute in manifest.attributes
        for form in manifest.query_forms
    ]
    if not any(table.evaluations for table in tables):
        raise InputError(
            f"No system in {store.folder} has searched for all topics yet; "
            "run the experiment again, it goes on where it stopped."
        )
    return Measured(manifest, tables, qrels, scan)


def _table(
    manifest: Manifest,
    attribute: str,
    form: str,
    records: Sequence[Record],
    qrels: Qrels,
    scan: Scan,
    *,
    with_tests: bool,
) -> Table:
    experiment = manifest.experiment
    own: dict[str, list[Record]] = {}
    unfinished: dict[str, int] = {}
    for system in experiment.all_systems():
        seeds = len(experiment.seeds) if system.asks_a_model else 1
        found = [
            record
            for record in records
            if (record.attribute, record.queries, record.system) == (attribute, form, system.name)
        ]
        if missing := seeds * len(manifest.topics) - len(found):
            unfinished[system.name] = missing
        else:
            order = {topic: place for place, topic in enumerate(manifest.topics)}
            own[system.name] = sorted(found, key=lambda r: (order[r.topic], r.seed))
    evaluations = dict(
        zip(
            own,
            evaluate_all(
                [run_of(name, found) for name, found in own.items()],
                qrels,
                experiment.measures,
                documents=scan,
                target=manifest.judge,
                attributes=[attribute],
            )
            if own
            else (),
            strict=True,
        )
    )
    comparisons = None
    if with_tests and experiment.baseline in evaluations and len(evaluations) > 1:
        others = [e for name, e in evaluations.items() if name != experiment.baseline]
        comparisons = compare(evaluations[experiment.baseline], others)
    return Table(attribute, form, own, evaluations, comparisons, unfinished)


def write_results(store: Store, measured: Measured) -> None:
    """Write the runs in TREC's format and the value of each measure for each topic."""
    rows: list[Sequence[object]] = []
    for table in measured.tables:
        for name, records in table.records.items():
            parts = [table.attribute, table.queries, name]
            path = store.folder / "runs" / f"{file_name(*parts)}.txt"
            write_run(path, run_of(file_name(name), records))
            for result in table.evaluations[name].results.values():
                rows += [
                    (*parts, topic, str(result.measure), *_value(score))
                    for topic, score in result.values.items()
                ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("attribute", "queries", "system", "topic", "measure", "value", "undefined"))
    writer.writerows(rows)
    store.write("measures.csv", text.getvalue())


def _value(score: Score) -> tuple[object, str]:
    return ("", str(score.reason)) if isinstance(score, Undefined) else (score, "")
