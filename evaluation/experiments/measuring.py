"""From searches to numbers: the runs of an experiment, measured, as DataFrames."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.collections.query_targets import query_targets
from fairqr.evaluation.estimates import means_by
from fairqr.evaluation.evaluate import evaluate, ids_of
from fairqr.evaluation.experiments.by_round import judged_rounds
from fairqr.evaluation.experiments.catalogue import ExperimentResults
from fairqr.evaluation.experiments.specification import Manifest, RunFolder, SearchRecord
from fairqr.evaluation.measures.kinds import GROUPS
from fairqr.evaluation.measures.measure import Measure, parse_measures
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.results import Comparisons, Evaluation, compare, compare_pairs
from fairqr.evaluation.scores import Reason
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import by_rank
from fairqr.retrieval.sources.runs import SystemRun

if TYPE_CHECKING:
    from pandas import DataFrame

Key = tuple[str, str, str]
"""An attribute, a form of query and a system."""

PLACE = ["attribute", "queries"]
"""The columns of all frames that say what a table of the report is about."""

SYSTEM = [*PLACE, "system"]
SPENT = ["rounds", "model_calls", "tokens"]
DIFFERENCES = [
    *PLACE,
    "baseline",
    "system",
    "measure",
    "difference",
    "low",
    "high",
    "count",
    "randomisation_corrected",
    "holds",
    "too_few",
    "tests",
    "sentence",
]
"""The columns of the frames of differences."""

RENAMED = {"run": "system", "interval.low": "low", "interval.high": "high"}


@dataclass(frozen=True)
class MeasuredSearches(ExperimentResults):
    """All searches of an experiment, measured; only systems that have searched for all topics.

    Attributes:
        records: By place and system, in the experiment's order, by topic and seed.
        evaluations: By place and system.
        unfinished: By place and system, how many searches are still to be done.
        groups: The labels of all documents that are ranked or judged.
        judged: The target that the judgements give, by attribute, topic and group.
    """

    frame_names = ("scores", "means", "differences", "searches", "rounds", "drift")
    template = "search"
    report = "fairqr.evaluation.experiments.search_report"

    manifest: Manifest
    records: Mapping[Key, Sequence[SearchRecord]]
    evaluations: Mapping[Key, Evaluation]
    unfinished: Mapping[Key, int]
    qrels: Qrels
    groups: Groups
    judged: Mapping[str, Mapping[str, Mapping[str, float]]]

    @cached_property
    def measures(self) -> list[Measure]:
        """The measures as the experiment has them, without the attribute of a table."""
        return parse_measures(self.manifest.experiment.measures)

    @property
    def main(self) -> Measure:
        """The measure by which systems are compared: the last one."""
        return self.measures[-1]

    @property
    def relevance(self) -> Measure | None:
        """The first measure that looks at no groups."""
        for measure in self.measures:
            if measure.counts_missing and not measure.factors:
                return measure
        return None

    @property
    def fairness(self) -> Measure | None:
        """The first measure that looks at groups and is no product."""
        for measure in self.measures:
            if GROUPS in measure.needs and not measure.factors:
                return measure
        return None

    @cached_property
    def _names(self) -> dict[str, str]:
        """The texts of measures in tables, without the attribute, by their whole texts."""
        names: dict[str, str] = {}
        for (attribute, *_), evaluation in self.evaluations.items():
            # One that is written in two ways, with the attribute and without it, is one measure.
            texts: dict[Measure, str] = {}
            for measure in self.measures:
                texts.setdefault(measure.with_attribute(attribute), str(measure))
            names |= dict(zip(evaluation.results, texts.values(), strict=True))
        return names

    @cached_property
    def table(self) -> DataFrame:
        """The :attr:`values`, and of each search its rounds, calls of the model and tokens."""
        import pandas as pd

        spent = self.searches.melt([*SYSTEM, "topic"], SPENT, "measure").dropna(subset="value")
        return pd.concat([self.values, spent.astype({"value": float})], ignore_index=True)

    @cached_property
    def values(self) -> DataFrame:
        """The value of each measure for each topic; if there is none, the reason."""
        import pandas as pd

        frames = {
            key: evaluation.to_frame().astype({"value": float})
            for key, evaluation in self.evaluations.items()
        }
        renamed = {"query_id": "topic", "reason": "undefined"}
        values = pd.concat(frames, names=SYSTEM).rename(columns=renamed).reset_index()
        return values[[*SYSTEM, "topic", "measure", "value", "undefined"]]

    @cached_property
    def scores(self) -> DataFrame:
        """The table with the short texts of measures."""
        return self.values.assign(measure=self.values.measure.map(self._names))

    @cached_property
    def means(self) -> DataFrame:
        """The mean of each measure for each system, with its interval.

        The column ``best`` marks the best of each measure, if all systems have values for as many
        topics.
        """
        values = self.scores.set_index([*SYSTEM, "measure"]).value
        means = means_by(values, "topics").reset_index()
        is_up = {str(measure): measure.kind.higher_is_better for measure in self.measures}
        signs = means.measure.map(is_up).map({True: 1.0, False: -1.0})
        means["best"] = means["mean"] * signs
        by_measure = means.groupby([*PLACE, "measure"])
        is_best = means.best == by_measure.best.transform("max")
        has_as_many = by_measure.topics.transform("nunique") == 1
        return means.assign(best=is_best & has_as_many)

    @cached_property
    def differences(self) -> DataFrame:
        """The differences from the baseline; in each table one family of tests for Holm."""
        baseline = self.manifest.experiment.baseline
        frames = []
        for place, by_system in self._by_place.items():
            others = [evaluation for system, evaluation in by_system.items() if system != baseline]
            if baseline in by_system and others:
                frames.append(self._rows_of(place, compare(by_system[baseline], others)))
        return _joined(frames, DIFFERENCES)

    @cached_property
    def pairs(self) -> DataFrame:
        """The differences within the pairs; in each table one family of tests for Holm."""
        frames = []
        for place, by_system in self._by_place.items():
            pairs = [
                (by_system[first], by_system[second])
                for first, second in self.manifest.experiment.pairs
                if first in by_system and second in by_system
            ]
            if pairs:
                frames.append(self._rows_of(place, compare_pairs(pairs)))
        return _joined(frames, DIFFERENCES)

    @property
    def _by_place(self) -> dict[tuple[str, str], dict[str, Evaluation]]:
        """The evaluations by place, and then by system."""
        by_place: dict[tuple[str, str], dict[str, Evaluation]] = {}
        for (attribute, form, system), evaluation in self.evaluations.items():
            by_place.setdefault((attribute, form), {})[system] = evaluation
        return by_place

    def _rows_of(self, place: tuple[str, str], compared: Comparisons) -> DataFrame:
        """Return comparisons of a place as rows."""
        import pandas as pd

        content = compared.as_json()
        rows = pd.json_normalize(content["rows"]).rename(columns=RENAMED)
        attribute, form = place
        return rows.assign(
            attribute=attribute,
            queries=form,
            tests=content["tests"],
            measure=rows.measure.map(self._names),
        )

    @cached_property
    def searches(self) -> DataFrame:
        """A row for each search: how it ended, and its cost."""
        import pandas as pd

        rows = []
        for record in itertools.chain.from_iterable(self.records.values()):
            row = record.model_dump(exclude={"ids", "rounds", "target"})
            row["rounds"] = len(record.rounds) - 1 if record.rounds else None
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def _refined(self) -> dict[Key, Sequence[SearchRecord]]:
        """The searches of the systems that refine, by place and system."""
        systems = {
            system.name for system in self.manifest.experiment.systems if system.asks_a_model
        }
        return {key: records for key, records in self.records.items() if key[2] in systems}

    @cached_property
    def rounds(self) -> DataFrame:
        """One row for each system that refines, topic and round, means over its seeds.

        ``divergence``, ``relevance`` and ``exposure of GROUP`` are of the list that the round had,
        before any re-ranking; ``target of GROUP`` is the search's own estimate.
        """
        import pandas as pd

        rows = []
        for record in itertools.chain.from_iterable(self._refined.values()):
            ids = record.model_dump(include={*SYSTEM, "topic", "target"})
            for number, round_ in enumerate(record.rounds):
                row = {
                    **ids,
                    "round": number,
                    "divergence": round_.divergence,
                    "relevance": self._relevance_of(record.topic, round_.ids),
                    "exposure": round_.exposure if any(round_.exposure.values()) else {},
                }
                rows.append(row)
        keys = [*SYSTEM, "topic", "round"]
        whole = pd.json_normalize(rows, sep=" of ")
        if not rows:
            whole = pd.DataFrame(columns=[*keys, "divergence", "relevance"])
        by_search = whole.set_index(keys).astype(float).groupby(level=keys, sort=False)
        return by_search.mean().reset_index()

    @cached_property
    def judged_rounds(self) -> DataFrame:
        """The value of each measure for each round's list before any re-ranking, by topic.

        A search that has stopped keeps its last list, so all rounds are over the same topics. The
        ``divergence`` is the search's own.
        """
        frames = []
        for key, records in self._refined.items():
            attribute, form, system = key
            frame = judged_rounds(records, partial(self._evaluated, attribute=attribute))
            named = frame.assign(
                attribute=attribute,
                queries=form,
                system=system,
                measure=frame.measure.map(self._names),
            )
            frames.append(named)
        return _joined(frames, [*SYSTEM, "topic", "round", "measure", "value", "divergence"])

    def _evaluated(self, run: SystemRun, *, attribute: str) -> Evaluation:
        """Measure a run as the systems of the experiment are measured."""
        return evaluate(
            run,
            self.qrels,
            self.manifest.experiment.measures,
            attributes=attribute,
            groups=self.groups,
            target=self.manifest.judge,
        )

    def _relevance_of(self, topic: str, ids: Sequence[str]) -> float | None:
        if self.relevance is None:
            return None
        (score,) = self.relevance.scores(Batch([topic], [[ids]], [self.qrels[topic]]))
        return None if isinstance(score, Reason) else score

    @cached_property
    def drift(self) -> DataFrame:
        """The relevance of each later round beside round 0's for the same topics."""
        rounds = self.rounds.set_index([*SYSTEM, "topic"])
        first = rounds[rounds["round"] == 0].relevance.rename("before")
        later = rounds[rounds["round"] > 0].dropna(subset="relevance")
        both = later[["round", "relevance"]].join(first).set_index("round", append=True)
        both = both.droplevel("topic")
        means = both.groupby(level=both.index.names, sort=False).mean()
        ends = means_by(both.relevance - both.before, "topics")
        return means.join(ends.rename(columns={"mean": "difference"})).reset_index()


def _joined(frames: Sequence[DataFrame], columns: list[str]) -> DataFrame:
    """Return the rows of all frames, with these columns; without a frame, none."""
    import pandas as pd

    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames).reindex(columns=columns)


def run_of(name: str, records: Iterable[SearchRecord]) -> SystemRun:
    """Return a run: one ranking for each seed of each topic; the scores say the order only."""
    rankings: dict[str, list[Ranking]] = {}
    for record in records:
        if record.ids:
            rankings.setdefault(record.topic, []).append(by_rank(record.ids))
    return SystemRun(name, rankings)


def measure(folder: Path) -> MeasuredSearches:
    """Measure what an experiment has done so far.

    Raises:
        InputError: Nothing is finished yet, or the collection is another.
    """
    store = RunFolder(folder)
    manifest = store.manifest()
    experiment = manifest.experiment
    collection = find_collection(experiment.collection, experiment.split)
    if collection.fingerprints() != manifest.fingerprints:
        raise InputError(
            f"The files of '{collection.name}' have changed since the experiment was run."
        )
    qrels = {topic: collection.qrels[topic] for topic in manifest.topics}
    positions = {topic: position for position, topic in enumerate(manifest.topics)}

    def place(record: SearchRecord) -> tuple[int, int]:
        return positions[record.topic], record.seed

    by_key = defaultdict[Key, list[SearchRecord]](list)
    for record in sorted(store.lines.read(), key=place):
        by_key[record.attribute, record.queries, record.system].append(record)
    records: dict[Key, list[SearchRecord]] = {}
    unfinished: dict[Key, int] = {}
    each = product(manifest.attributes, manifest.query_forms, experiment.systems)
    for attribute, form, system in each:
        key = (attribute, form, system.name)
        searches = len(experiment.seeds_of(system)) * len(positions)
        missing = searches - len(by_key[key])
        if missing:
            unfinished[key] = missing
        else:
            records[key] = by_key[key]
    if not records:
        raise InputError(f"No system in {folder} has searched for all topics yet; run it again.")
    runs = {key: run_of(key[2], of_system) for key, of_system in records.items()}
    ids = ids_of(runs.values(), qrels)
    for record in itertools.chain.from_iterable(records.values()):
        ids.update(*(round_.ids for round_ in record.rounds))
    groups = scan_corpus(collection.corpus, ids)
    evaluations = {}
    for key, run in runs.items():
        evaluations[key] = evaluate(
            run,
            qrels,
            experiment.measures,
            attributes=key[0],
            groups=groups,
            target=manifest.judge,
        )
    judged = {
        attribute: _judged_targets(collection, groups, attribute, manifest)
        for attribute in manifest.attributes
    }
    return MeasuredSearches(manifest, records, evaluations, unfinished, qrels, groups, judged)


def _judged_targets(
    collection: Collection, groups: Groups, attribute: str, manifest: Manifest
) -> dict[str, dict[str, float]]:
    """Return the target of each topic by group, as the judgements give it."""
    judged = query_targets(collection, groups, attribute, manifest.judge)
    names = judged.dimension.groups
    return {
        topic: dict(zip(names, shares.tolist(), strict=True))
        for topic, shares in judged.targets.items()
    }
