"""From searches to numbers: the runs of an experiment, measured, as DataFrames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.collections.query_targets import query_targets
from fairqr.evaluation.estimates import means_by
from fairqr.evaluation.evaluate import evaluate, ids_of
from fairqr.evaluation.experiments.by_round import judged_rounds
from fairqr.evaluation.experiments.catalogue import Measured
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
DIFFERENCES = (
    "baseline system measure difference low high count randomisation_corrected holds too_few "
    "tests sentence"
)
RENAMED = {"run": "system", "interval.low": "low", "interval.high": "high"}


@dataclass(frozen=True)
class MeasuredSearches(Measured):
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
        return next((it for it in self.measures if it.counts_missing and not it.factors), None)

    @property
    def fairness(self) -> Measure | None:
        """The first measure that looks at groups and is no product."""
        return next((it for it in self.measures if GROUPS in it.needs and not it.factors), None)

    @cached_property
    def _names(self) -> dict[str, str]:
        """The texts of measures in tables, without the attribute, by their whole texts."""
        names = dict[str, str]()
        for (attribute, *_), evaluation in self.evaluations.items():
            # One that is written in two ways, with the attribute and without it, is one measure.
            own = dict[Measure, str]()
            for measure in self.measures:
                own.setdefault(measure.with_attribute(attribute), str(measure))
            names |= dict(zip(evaluation.results, own.values(), strict=True))
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

        columns = {"query_id": "topic", "reason": "undefined"}
        own = {key: it.to_frame().astype({"value": float}) for key, it in self.evaluations.items()}
        found = pd.concat(own, names=SYSTEM).rename(columns=columns).reset_index()
        return found[[*SYSTEM, "topic", "measure", "value", "undefined"]]

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
        up = means.measure.map({str(it): it.kind.higher_is_better for it in self.measures})
        means["best"] = means["mean"] * up.map({True: 1.0, False: -1.0})
        table = means.groupby([*PLACE, "measure"])
        is_best = means.best == table.best.transform("max")
        return means.assign(best=is_best & (table.topics.transform("nunique") == 1))

    @cached_property
    def differences(self) -> DataFrame:
        """The differences from the baseline; in each table one family of tests for Holm."""
        import pandas as pd

        baseline, found = self.manifest.experiment.baseline, list[pd.DataFrame]()
        for place, own in self._by_place.items():
            if baseline in own and len(own) > 1:
                others = [it for name, it in own.items() if name != baseline]
                found.append(self._rows_of(place, compare(own[baseline], others)))
        columns = [*PLACE, *DIFFERENCES.split()]
        return pd.concat(found).reindex(columns=columns) if found else pd.DataFrame(columns=columns)

    @cached_property
    def pairs(self) -> DataFrame:
        """The differences within the pairs; in each table one family of tests for Holm."""
        import pandas as pd

        found = list[pd.DataFrame]()
        for place, own in self._by_place.items():
            here = [pair for pair in self.manifest.experiment.pairs if {*pair} <= own.keys()]
            if here:
                pairs = [(own[first], own[second]) for first, second in here]
                found.append(self._rows_of(place, compare_pairs(pairs)))
        columns = [*PLACE, *DIFFERENCES.split()]
        return pd.concat(found).reindex(columns=columns) if found else pd.DataFrame(columns=columns)

    @property
    def _by_place(self) -> dict[tuple[str, str], dict[str, Evaluation]]:
        """The evaluations by place, and then by system."""
        found: dict[tuple[str, str], dict[str, Evaluation]] = {}
        for (attribute, form, system), evaluation in self.evaluations.items():
            found.setdefault((attribute, form), {})[system] = evaluation
        return found

    def _rows_of(self, place: tuple[str, str], compared: Comparisons) -> DataFrame:
        """Return comparisons of a place as rows."""
        import pandas as pd

        told = compared.as_json()
        rows = pd.json_normalize(told["rows"]).rename(columns=RENAMED)
        given = dict(zip(PLACE, place, strict=True)) | {"tests": told["tests"]}
        return rows.assign(**given, measure=rows.measure.map(self._names))

    @cached_property
    def searches(self) -> DataFrame:
        """A row for each search: how it ended, and its cost."""
        import pandas as pd

        rows = [
            record.model_dump(exclude={"ids", "rounds", "target"})
            | {"rounds": len(record.rounds) - 1 if record.rounds else None}
            for records in self.records.values()
            for record in records
        ]
        return pd.DataFrame(rows)

    @cached_property
    def rounds(self) -> DataFrame:
        """One row for each system that refines, topic and round, means over its seeds.

        ``divergence``, ``relevance`` and ``exposure of GROUP`` are of the list that the round had,
        before any re-ranking; ``target of GROUP`` is the search's own estimate.
        """
        import pandas as pd

        refining = {it.name for it in self.manifest.experiment.systems if it.asks_a_model}
        done = [it for key, own in self.records.items() if key[2] in refining for it in own]
        rows = [
            {
                **record.model_dump(include={*SYSTEM, "topic", "target"}),
                "round": number,
                "divergence": found.divergence,
                "relevance": self._relevance_of(record.topic, found.ids),
                "exposure": found.exposure if any(found.exposure.values()) else {},
            }
            for record in done
            for number, found in enumerate(record.rounds)
        ]
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
        import pandas as pd

        refining = {it.name for it in self.manifest.experiment.systems if it.asks_a_model}
        frames = []
        for key, records in self.records.items():
            if key[2] in refining:
                evaluates = partial(self._evaluated, attribute=key[0])
                frame = judged_rounds(records, evaluates)
                place = dict(zip(SYSTEM, key, strict=True))
                frames.append(frame.assign(**place, measure=frame.measure.map(self._names)))
        columns = [*SYSTEM, "topic", "round", "measure", "value", "divergence"]
        return pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns)

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
    order = {topic: place for place, topic in enumerate(manifest.topics)}
    found = defaultdict[Key, list[SearchRecord]](list)
    for record in sorted(store.lines.read(), key=lambda it: (order[it.topic], it.seed)):
        found[record.attribute, record.queries, record.system].append(record)
    records, unfinished = dict[Key, list[SearchRecord]](), dict[Key, int]()
    each = product(manifest.attributes, manifest.query_forms, experiment.systems)
    for attribute, form, system in each:
        key = (attribute, form, system.name)
        if left := len(experiment.seeds_of(system)) * len(order) - len(found[key]):
            unfinished[key] = left
        else:
            records[key] = found[key]
    if not records:
        raise InputError(f"No system in {folder} has searched for all topics yet; run it again.")
    runs = {key: run_of(key[2], own) for key, own in records.items()}
    shown = ids_of(runs.values(), qrels)
    for own in records.values():
        for record in own:
            shown.update(*(round_.ids for round_ in record.rounds))
    scan = scan_corpus(collection.corpus, shown)
    common: Any = {"groups": scan, "target": manifest.judge}
    evaluations = {
        key: evaluate(run, qrels, experiment.measures, attributes=key[0], **common)
        for key, run in runs.items()
    }
    judged = {it: _judged_targets(collection, scan, it, manifest) for it in manifest.attributes}
    return MeasuredSearches(manifest, records, evaluations, unfinished, qrels, scan, judged)


def _judged_targets(
    collection: Collection, groups: Groups, attribute: str, manifest: Manifest
) -> dict[str, dict[str, float]]:
    """Return the target of each topic by group, as the judgements give it."""
    found = query_targets(collection, groups, attribute, manifest.judge)
    names = found.dimension.groups
    return {
        topic: dict(zip(names, shares.tolist(), strict=True))
        for topic, shares in found.targets.items()
    }
