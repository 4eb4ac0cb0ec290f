"""From searches to numbers: the runs of an experiment, measured, as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.estimates import mean_with_ends
from fairqr.evaluation.evaluate import evaluate, ids_of
from fairqr.evaluation.experiments.folder import file_name
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.experiments.specification import System
from fairqr.evaluation.experiments.store import Manifest, SearchRecord, Store
from fairqr.evaluation.measures.kinds import Need
from fairqr.evaluation.measures.measure import Measure, parse_measures
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.results import Evaluation, compare
from fairqr.evaluation.scores import Undefined
from fairqr.retrieval.fairness.dimension import factors_of
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.sources.runs import SystemRun, write_run

if TYPE_CHECKING:
    from pandas import DataFrame, Series

FEEDBACK = "feedback"
OF_THE_MODEL = ("budget", "max_iterations", "patience", "prompts", "temperature")
"""Settings that say how and how often a model is asked."""

Place = tuple[str, str]
"""What a table of the report is about: an attribute and a form of query."""

PLACE = ["attribute", "queries"]
"""The columns of all frames that say the place."""

DIFFERENCES = (
    "attribute queries baseline system measure difference low high topics change p p_t holds "
    "too_few tests"
)
NUMBERS = ("difference", "low", "high", "change", "p", "p_t")


@dataclass(frozen=True)
class MeasuredSearches(Measured):
    """All searches of an experiment, measured; only systems that have searched for all topics.

    Attributes:
        records: By place and system, in the experiment's order, by topic and seed.
        evaluations: By place and system.
        unfinished: By place and system, how many searches are still to be done.
        scan: The groups of all documents that are ranked or judged.
    """

    frame_names = ("scores", "means", "differences", "searches", "rounds", "drift")
    template = "search"
    report = "fairqr.evaluation.experiments.search_report"

    manifest: Manifest
    records: Mapping[Place, Mapping[str, Sequence[SearchRecord]]]
    evaluations: Mapping[Place, Mapping[str, Evaluation]]
    unfinished: Mapping[Place, Mapping[str, int]]
    qrels: Qrels
    scan: Groups

    def _named(self, place: Place) -> dict[str, str]:
        """Return the names of measures in tables, without the attribute, by their texts."""
        return {
            str(measure.with_attribute(place[0])): str(measure)
            for measure in parse_measures(self.manifest.experiment.measures)
        }

    @cached_property
    def measures(self) -> Mapping[str, Measure]:
        """The measures, by the names of columns."""
        found: dict[str, Measure] = {}
        for place, evaluations in self.evaluations.items():
            for evaluation in [*evaluations.values()][:1]:
                short = self._named(place)
                found |= {short.get(it, it): r.measure for it, r in evaluation.results.items()}
        return found

    @cached_property
    def refining(self) -> set[str]:
        """The systems that may ask a model to refine."""
        return {s.name for s in self.manifest.experiment.all_systems() if s.asks_a_model}

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
    def table(self) -> DataFrame:
        """The value of each measure for each topic; if there is none, the reason."""
        import pandas as pd

        rows = [
            (*place, name, topic, str(result.measure), *score)
            for place, evaluations in self.evaluations.items()
            for name, evaluation in evaluations.items()
            for result in evaluation.results.values()
            for topic, found in result.values.items()
            for score in [
                (np.nan, str(found.reason)) if isinstance(found, Undefined) else (found, "")
            ]
        ]
        columns = [*PLACE, "system", "topic", "measure", "value", "undefined"]
        return pd.DataFrame(rows, columns=columns).astype({"value": float})

    @cached_property
    def scores(self) -> DataFrame:
        """The table with the short names of measures."""
        names = {
            it: short for place in self.evaluations for it, short in self._named(place).items()
        }
        scores = self.table.replace({"measure": names})
        return scores[[*PLACE, "system", "measure", "topic", "value", "undefined"]]

    @cached_property
    def common(self) -> DataFrame:
        """The scores of those topics for which every system of a table has every value."""
        by_topic = self.scores.groupby([*PLACE, "topic"]).value
        return self.scores[by_topic.transform("count") == by_topic.transform("size")]

    @cached_property
    def means(self) -> DataFrame:
        """The mean of each measure for each system, with its interval."""
        return self.means_of(self.scores)

    def means_of(self, scores: DataFrame) -> DataFrame:
        """Return the means of some scores.

        The column ``best`` marks the best of each measure, if all systems have values for the same
        topics.
        """
        import pandas as pd

        rows = [
            (*key, *mean_with_ends(values))
            for key, values in scores.groupby([*PLACE, "system", "measure"], sort=False).value
        ]
        columns = [*PLACE, "system", "measure", "mean", "low", "high", "topics"]
        means = pd.DataFrame(rows, columns=columns)
        up = means.measure.map({it: m.kind.higher_is_better for it, m in self.measures.items()})
        ends, key = means.groupby([*PLACE, "measure"])["mean"], means[[*PLACE, "measure"]]
        is_end = np.where(up == True, ends.transform("max"), ends.transform("min"))  # noqa: E712
        shared = (
            key.merge(shared_topics(scores).reset_index()).shared if len(means) else key.measure
        )
        means["best"] = up.notna() & (means["mean"] == is_end) & shared.astype(bool)
        return means

    @cached_property
    def differences(self) -> DataFrame:
        """The differences from the baseline; in each table one family of tests for Holm."""
        baseline = self.manifest.experiment.baseline
        return _differences(
            row
            for place, found in self.evaluations.items()
            for row in self._compared(place, baseline, [it for it in found if it != baseline])
        )

    @cached_property
    def added_by_models(self) -> DataFrame:
        """The differences between systems that a language model alone makes.

        Each reference refines nothing, or by feedback; it is compared with the systems that are the
        same but for their model. All comparisons with one reference are one family for Holm.
        """
        return _differences(
            row
            for place, found in self.evaluations.items()
            for reference in self.manifest.experiment.all_systems()
            if reference.name in found and not self._asks_language_model(reference)
            for row in self._compared(place, reference.name, self._with_a_model(found, reference))
        )

    def _with_a_model(self, found: Iterable[str], reference: System) -> list[str]:
        return [
            system.name
            for system in self.manifest.experiment.all_systems()
            if system.name in found
            and self._asks_language_model(system)
            and self._ground(system) == self._ground(reference)
        ]

    def _compared(
        self, place: Place, baseline: str, others: Sequence[str]
    ) -> Iterator[tuple[object, ...]]:
        evaluations, short = self.evaluations[place], self._named(place)
        if baseline not in evaluations or not others:
            return
        compared = compare(evaluations[baseline], [evaluations[name] for name in others])
        for row in compared.rows:
            text = str(row.measure)
            theirs, ours = (evaluations[it].results[text].defined() for it in (row.run, baseline))
            base = sum(ours[topic] for topic in ours if topic in theirs) / max(row.count, 1)
            ends = (row.interval.low, row.interval.high) if row.interval else (None, None)
            yield (
                *place,
                baseline,
                row.run,
                short.get(text, text),
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

    def _asks_language_model(self, system: System) -> bool:
        model = system.model or self.manifest.experiment.model
        return system.asks_a_model and model != FEEDBACK

    def _ground(self, system: System) -> tuple[object, ...]:
        """Return the settings that two systems must share for their difference to be the model's.

        These are all but the model, and how and how often it is asked.
        """
        settings = {n: repr(v) for n, v in system.settings.items() if n not in OF_THE_MODEL}
        corpus = self.manifest.experiment.corpus_of(system)
        return system.method, system.retriever, corpus, tuple(sorted(settings.items()))

    def _searched(self) -> Iterator[tuple[dict[str, Any], SearchRecord]]:
        for place, of_systems in self.records.items():
            for record in (it for own in of_systems.values() for it in own):
                yield {**dict(zip(PLACE, place, strict=True)), "system": record.system}, record

    @cached_property
    def searches(self) -> DataFrame:
        """A row for each search: how it ended, its cost, and how many documents have labels."""
        import pandas as pd

        names = ["model_calls", "tokens", "milliseconds", "at_once", "stop_reason", "error"]
        k = self.manifest.experiment.k
        rows = [
            {
                **key,
                "seed": record.seed,
                "topic": record.topic,
                "rounds": len(record.rounds) - 1 if record.rounds else None,
                **{name: getattr(record, name) for name in names},
                "warnings": len(record.warnings),
                "returned": len(record.ids[:k]),
                "labelled": self._labelled(record.attribute, record.ids[:k]),
            }
            for key, record in self._searched()
        ]
        return pd.DataFrame(rows)

    def _labelled(self, attribute: str, ids: Sequence[str]) -> int:
        """Return of how many documents all groups are known."""
        rows = np.ones(len(ids), dtype=bool)
        for factor in factors_of(attribute):
            rows &= self.scan.memberships(factor, ids, "exclude").any(axis=1)
        return int(rows.sum())

    @cached_property
    def rounds(self) -> DataFrame:
        """One row for each system that refines, topic and round, means over its seeds.

        ``divergence``, ``relevance`` and ``exposure of GROUP`` are of the list that the round had,
        before any re-ranking; ``target of GROUP`` is the search's own estimate.
        """
        import pandas as pd

        rows = [
            {
                **key,
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
            for key, record in self._searched()
            if record.system in self.refining
            for number, one in enumerate(record.rounds)
        ]
        keys = [*PLACE, "system", "topic", "round"]
        if not rows:
            return pd.DataFrame(columns=[*keys, "divergence", "relevance"])
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

        first = self.rounds[self.rounds["round"] == 0]
        later = self.rounds[self.rounds["round"] > 0].dropna(subset="relevance")
        both = later.merge(first, on=[*PLACE, "system", "topic"], suffixes=("", "_before"))
        rows = [
            (
                *key,
                found.relevance.mean(),
                found.relevance_before.mean(),
                *mean_with_ends(found.relevance - found.relevance_before),
            )
            for key, found in both.groupby([*PLACE, "system", "round"], sort=False)
        ]
        columns = "attribute queries system round relevance before difference low high topics"
        return pd.DataFrame(rows, columns=columns.split())

    def write(self, folder: Path) -> Path:
        """Write the table, and the runs in TREC's format."""
        for place, of_systems in self.records.items():
            for name, records in of_systems.items():
                path = folder / "runs" / f"{file_name(*place, name)}.txt"
                write_run(path, run_of(file_name(name), records))
        return Measured.write(self, folder)


def _differences(rows: Iterable[tuple[object, ...]]) -> DataFrame:
    import pandas as pd

    found = pd.DataFrame([*rows], columns=DIFFERENCES.split())
    return found.astype(dict.fromkeys(NUMBERS, float))


def shared_topics(scores: DataFrame) -> Series:
    """Return by place and measure whether all systems have values for the same topics."""
    by_topic = scores.assign(shared=scores.value.isna()).groupby([*PLACE, "measure", "topic"])
    return by_topic.shared.nunique().eq(1).groupby(level=[*PLACE, "measure"]).all()


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
    experiment = manifest.experiment
    qrels = {topic: collection.qrels[topic] for topic in manifest.topics}
    found: dict[tuple[str, str, str], list[SearchRecord]] = {}
    wanted = ids_of([], qrels)
    for record in store.lines.read():
        found.setdefault((record.attribute, record.queries, record.system), []).append(record)
        wanted.update(record.ids, *(done.ids for done in record.rounds))
    scan = scan_corpus(collection.corpus, wanted)
    order = {topic: place for place, topic in enumerate(manifest.topics)}
    places = [*product(manifest.attributes, manifest.query_forms)]
    records: dict[Place, dict[str, list[SearchRecord]]] = {place: {} for place in places}
    unfinished: dict[Place, dict[str, int]] = {place: {} for place in places}
    for place, system in product(places, experiment.all_systems()):
        own = found.get((*place, system.name), [])
        if missing := len(experiment.seeds_of(system)) * len(manifest.topics) - len(own):
            unfinished[place][system.name] = missing
        else:
            records[place][system.name] = sorted(own, key=lambda r: (order[r.topic], r.seed))
    if not any(records.values()):
        raise InputError(
            f"No system in {store.folder} has searched for all topics yet; "
            "run the experiment again, it goes on where it stopped."
        )
    evaluations = {
        place: {
            name: evaluate(
                run_of(name, own),
                qrels,
                experiment.measures,
                groups=scan,
                target=manifest.judge,
                attributes=[place[0]],
            )
            for name, own in of_systems.items()
        }
        for place, of_systems in records.items()
    }
    return MeasuredSearches(manifest, records, evaluations, unfinished, qrels, scan)
