"""From searches to numbers: the runs of an experiment, measured, as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.estimates import mean_with_ends
from fairqr.evaluation.evaluate import evaluate, ids_of
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.experiments.specification import Experiment, System
from fairqr.evaluation.experiments.store import Manifest, SearchRecord, Store
from fairqr.evaluation.measures.kinds import Need
from fairqr.evaluation.measures.measure import Measure, parse_measures
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.results import Evaluation, compare
from fairqr.evaluation.scores import Score, Undefined
from fairqr.retrieval.fairness.dimension import factors_of
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.runs import SystemRun, write_run

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FEEDBACK = "feedback"
OF_THE_MODEL = ("budget", "max_iterations", "patience", "prompts", "temperature")
"""Settings that say how and how often a model is asked."""


@dataclass(frozen=True)
class Table:
    """The systems of an experiment for one attribute and one form of query.

    Attributes:
        attribute: What they were to be fair about.
        queries: The form of the queries.
        experiment: What was run.
        records: By system, in the experiment's order; only systems with a search of every topic.
        evaluations: By system.
        unfinished: By system, how many topics are still to be searched for.
        scan: The groups of all documents that are ranked or judged.
    """

    attribute: str
    queries: str
    experiment: Experiment
    records: Mapping[str, Sequence[SearchRecord]]
    evaluations: Mapping[str, Evaluation]
    unfinished: Mapping[str, int]
    qrels: Qrels
    scan: Groups

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """The measures as they were computed, by the names of columns: without the attribute."""
        short = {
            str(measure.with_attribute(self.attribute)): str(measure)
            for measure in parse_measures(self.experiment.measures)
        }
        results = next(iter(self.evaluations.values())).results if self.evaluations else {}
        return {short.get(text, text): result.measure for text, result in results.items()}

    @property
    def main(self) -> str:
        """The measure by which systems are compared: the last one."""
        return list(self.measures)[-1]

    @property
    def relevance(self) -> str | None:
        """The first measure that looks at no groups."""
        return self._first(lambda measure: measure.counts_missing and not measure.is_product)

    @property
    def fairness(self) -> str | None:
        """The first measure that looks at groups and is no product."""
        return self._first(lambda measure: Need.GROUPS in measure.needs and not measure.is_product)

    def _first(self, fits: Callable[[Measure], bool]) -> str | None:
        return next((name for name, measure in self.measures.items() if fits(measure)), None)

    @cached_property
    def scores(self) -> DataFrame:
        """A value for each system, measure and topic; NaN where it has none."""
        import pandas as pd

        rows = [
            (system, name, topic, *_number(score))
            for system, evaluation in self.evaluations.items()
            for name, measure in self.measures.items()
            for topic, score in evaluation.results[str(measure)].values.items()
        ]
        return pd.DataFrame(rows, columns=["system", "measure", "topic", "value", "undefined"])

    @cached_property
    def common(self) -> DataFrame:
        """The scores of those topics for which every system has every value."""
        missing = self.scores[self.scores.value.isna()].topic.unique()
        return self.scores[~self.scores.topic.isin(missing)]

    @property
    def share_topics(self) -> bool:
        """Whether the means of each measure are over the same topics for all systems."""
        return bool(_share_topics(self.scores).all())

    def means(self, scores: DataFrame) -> DataFrame:
        """Return the mean of each measure for each system, with its interval.

        The column ``best`` marks the best of each measure, if all systems have values for the same
        topics.

        Args:
            scores: Scores of this table.
        """
        import pandas as pd

        rows = [
            (system, measure, *mean_with_ends(found.value))
            for (system, measure), found in scores.groupby(["system", "measure"], sort=False)
        ]
        means = pd.DataFrame(rows, columns=["system", "measure", "mean", "low", "high", "topics"])
        ends_by_direction = {True: "max", False: "min"}
        best = {
            name: ends_by_direction[measure.kind.higher_is_better]
            for name, measure in self.measures.items()
            if measure.kind.higher_is_better is not None
        }
        ends = means.groupby("measure")["mean"].agg(["max", "min"])
        shared = _share_topics(scores)
        means["best"] = [
            bool(shared[row.measure])
            and row.measure in best
            and row.mean == ends.at[row.measure, best[row.measure]]
            for row in means.itertuples()
        ]
        return means

    @cached_property
    def differences(self) -> DataFrame:
        """The differences from the baseline; one family of tests for Holm."""
        others = [name for name in self.evaluations if name != self.experiment.baseline]
        return self._differences(self.experiment.baseline, others)

    @cached_property
    def added_by_models(self) -> DataFrame:
        """The differences between systems that a language model alone makes.

        Each reference refines nothing, or by feedback; it is compared with the systems that are the
        same but for their model. All comparisons with one reference are one family for Holm.
        """
        systems = [s for s in self.experiment.all_systems() if s.name in self.evaluations]
        found = [self._differences(self.experiment.baseline, [])]
        for reference in systems:
            if self._asks_language_model(reference):
                continue
            others = [
                system.name
                for system in systems
                if self._asks_language_model(system)
                and self._ground(system) == self._ground(reference)
            ]
            if others:
                found.append(self._differences(reference.name, others))
        return _joined(found)

    def _differences(self, baseline: str, others: Sequence[str]) -> DataFrame:
        import pandas as pd

        names = {str(measure): name for name, measure in self.measures.items()}
        rows: list[tuple[object, ...]] = []
        if baseline in self.evaluations and others:
            compared = compare(
                self.evaluations[baseline], [self.evaluations[name] for name in others]
            )
            values = self.scores.pivot(index="topic", columns=["measure", "system"], values="value")
            for row in compared.rows:
                name = names[str(row.measure)]
                both = values[name][[baseline, row.run]].dropna()
                base = both[baseline].mean() if len(both) else 0.0
                ends = (row.interval.low, row.interval.high) if row.interval else (None, None)
                rows.append(
                    (
                        baseline,
                        row.run,
                        name,
                        row.difference,
                        *ends,
                        row.count,
                        row.difference / base if base and row.difference is not None else None,
                        row.randomisation_corrected,
                        row.t_corrected,
                        row.holds(compared.alpha),
                        compared.too_few(row),
                        compared.tests,
                    )
                )
        columns = (
            "baseline system measure difference low high topics change p p_t holds too_few tests"
        )
        numbers = dict.fromkeys(("difference", "low", "high", "change", "p", "p_t"), float)
        return pd.DataFrame(rows, columns=columns.split()).astype(numbers)

    def _asks_language_model(self, system: System) -> bool:
        return system.asks_a_model and (system.model or self.experiment.model) != FEEDBACK

    def _ground(self, system: System) -> tuple[object, ...]:
        """Return the settings that two systems must share for their difference to be the model's.

        These are all but the model, and how and how often it is asked.
        """
        settings = {n: repr(v) for n, v in system.settings.items() if n not in OF_THE_MODEL}
        corpus = self.experiment.corpus_of(system)
        return system.method, system.retriever, corpus, tuple(sorted(settings.items()))

    @cached_property
    def searches(self) -> DataFrame:
        """A row for each search: how it ended, its cost, and how many documents have labels."""
        import pandas as pd

        names = ["model_calls", "tokens", "milliseconds", "at_once", "stop_reason", "error"]
        rows = [
            {
                "system": system,
                "seed": record.seed,
                "topic": record.topic,
                "rounds": len(record.rounds) - 1 if record.rounds else None,
                **{name: getattr(record, name) for name in names},
                "warnings": len(record.warnings),
                "returned": len(record.ids[: self.experiment.k]),
                "labelled": self._labelled(record.ids[: self.experiment.k]),
            }
            for system, records in self.records.items()
            for record in records
        ]
        return pd.DataFrame(rows)

    def _labelled(self, ids: Sequence[str]) -> int:
        """Return of how many documents all groups are known."""
        rows = np.ones(len(ids), dtype=bool)
        for attribute in factors_of(self.attribute):
            rows &= self.scan.labels.memberships(attribute, ids, "exclude").any(axis=1)
        return int(rows.sum())

    @cached_property
    def rounds(self) -> DataFrame:
        """One row for each system that refines, topic and round, means over its seeds.

        ``divergence``, ``relevance`` and ``exposure of GROUP`` are of the list that the round had,
        before any re-ranking; ``target of GROUP`` is the search's own estimate.
        """
        import pandas as pd

        refining = {s.name for s in self.experiment.all_systems() if s.asks_a_model}
        rows = [
            {
                "system": system,
                "topic": record.topic,
                "round": number,
                "divergence": one.divergence,
                "relevance": self._relevance_of(record.topic, one.ids),
                **{
                    f"exposure of {group}": share if any(one.exposure.values()) else None
                    for group, share in one.exposure.items()
                },
                **{f"target of {group}": share for group, share in record.target.items()},
            }
            for system, records in self.records.items()
            if system in refining
            for record in records
            for number, one in enumerate(record.rounds)
        ]
        if not rows:
            return pd.DataFrame(columns=["system", "topic", "round", "divergence", "relevance"])
        keys = ["system", "topic", "round"]
        found = pd.DataFrame(rows).set_index(keys).astype(float)
        return found.groupby(level=keys, sort=False).mean().reset_index()

    def _relevance_of(self, topic: str, ids: Sequence[str]) -> float | None:
        if self.relevance is None:
            return None
        measure = self.measures[self.relevance]
        (score,) = measure.scores(Batch([topic], [[ids]], [self.qrels[topic]]))
        return None if isinstance(score, Undefined) else score

    @cached_property
    def drift(self) -> DataFrame:
        """The relevance of each later round beside round 0's for the same topics."""
        import pandas as pd

        first = self.rounds[self.rounds["round"] == 0].set_index(["system", "topic"]).relevance
        rows = []
        later = self.rounds[self.rounds["round"] > 0].dropna(subset="relevance")
        for (system, number), found in later.groupby(["system", "round"], sort=False):
            before = first[system][found.topic].to_numpy()
            change = found.relevance.to_numpy() - before
            rows.append(
                (system, number, found.relevance.mean(), before.mean(), *mean_with_ends(change))
            )
        columns = ["system", "round", "relevance", "before", "difference", "low", "high", "topics"]
        return pd.DataFrame(rows, columns=columns)


def _joined(parts: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several data frames; pandas takes the types of empty ones, too."""
    import pandas as pd

    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def _share_topics(scores: DataFrame) -> Series:
    """Return by measure whether all systems have values for the same topics."""
    missing = scores.pivot(index=["measure", "topic"], columns="system", values="value").isna()
    return missing.nunique(axis=1).eq(1).groupby(level="measure").all()


@dataclass(frozen=True, slots=True)
class MeasuredSearches(Measured):
    """All tables of an experiment.

    Attributes:
        tables: One for each attribute and form of query.
        scan: The groups of all documents that are ranked or judged.
    """

    frame_names = ("scores", "means", "differences", "searches", "rounds", "drift")
    template = "search"
    report = "fairqr.evaluation.experiments.search_report"

    manifest: Manifest
    tables: Sequence[Table]
    qrels: Qrels
    scan: Groups

    @property
    def frames(self) -> dict[str, DataFrame]:
        """All frames, by name, with the attribute and the form of query as columns."""
        whole: dict[str, list[DataFrame]] = {}
        for table in self.tables:
            if not table.evaluations:
                continue
            for name in self.frame_names:
                named = (
                    table.means(table.scores) if name == "means" else getattr(table, name).copy()
                )
                named.insert(0, "queries", table.queries)
                named.insert(0, "attribute", table.attribute)
                whole.setdefault(name, []).append(named)
        return {name: _joined(parts) for name, parts in whole.items()}

    @property
    def table(self) -> DataFrame:
        """The value of each measure for each topic; if there is none, the reason."""
        import pandas as pd

        columns = ["attribute", "queries", "system", "topic", "measure", "value", "undefined"]
        rows = [
            (table.attribute, table.queries, name, topic, str(result.measure), *_number(score))
            for table in self.tables
            for name, evaluation in table.evaluations.items()
            for result in evaluation.results.values()
            for topic, score in result.values.items()
        ]
        return pd.DataFrame(rows, columns=columns, dtype=object)

    def write(self, folder: Path) -> Path:
        """Write the table, and the runs in TREC's format."""
        for table in self.tables:
            for name, records in table.records.items():
                file = f"{file_name(table.attribute, table.queries, name)}.txt"
                write_run(folder / "runs" / file, run_of(file_name(name), records))
        return Measured.write(self, folder)


def run_of(name: str, records: Iterable[SearchRecord]) -> SystemRun:
    """Return a run: one ranking for each seed of each topic; the scores say the order only."""
    rankings: dict[str, list[Ranking]] = {}
    for record in records:
        if record.ids:
            scores = [float(len(record.ids) - place) for place in range(len(record.ids))]
            rankings.setdefault(record.topic, []).append(Ranking(record.ids, scores))
    return SystemRun(name, rankings)


def measure_experiment(store: Store, collection: Collection) -> MeasuredSearches:
    """Measure what an experiment has done so far.

    Args:
        store: Where it is.
        collection: The collection that it was run on.

    Raises:
        InputError: Nothing is finished yet, or the collection is another.
    """
    manifest = store.manifest()
    if collection.name != manifest.collection:
        raise InputError(
            f"The experiment was run on '{manifest.collection}', not on '{collection.name}'."
        )
    if collection.fingerprints() != manifest.fingerprints:
        raise InputError(
            f"The files of '{collection.name}' have changed since the experiment was run; "
            "bring the old ones back, or run it again into another folder."
        )
    qrels = {topic: collection.qrels[topic] for topic in manifest.topics}
    records = store.lines.read()
    wanted = ids_of([], qrels)
    for record in records:
        wanted.update(record.ids, *(done.ids for done in record.rounds))
    scan = scan_corpus(collection.corpus, wanted)
    tables = [
        _table(manifest, attribute, form, records, qrels, scan)
        for attribute in manifest.attributes
        for form in manifest.query_forms
    ]
    if not any(table.evaluations for table in tables):
        raise InputError(
            f"No system in {store.folder} has searched for all topics yet; "
            "run the experiment again, it goes on where it stopped."
        )
    return MeasuredSearches(manifest, tables, qrels, scan)


def _table(
    manifest: Manifest,
    attribute: str,
    form: str,
    records: Sequence[SearchRecord],
    qrels: Qrels,
    scan: Groups,
) -> Table:
    experiment = manifest.experiment
    own: dict[str, list[SearchRecord]] = {}
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
    evaluations = {
        name: evaluate(
            run_of(name, found),
            qrels,
            experiment.measures,
            groups=scan,
            target=manifest.judge,
            attributes=[attribute],
        )
        for name, found in own.items()
    }
    return Table(attribute, form, experiment, own, evaluations, unfinished, qrels, scan)


def _number(score: Score) -> tuple[float, str]:
    return (np.nan, str(score.reason)) if isinstance(score, Undefined) else (score, "")
