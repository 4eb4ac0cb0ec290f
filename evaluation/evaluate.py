"""One call that measures a run: values by query, means, and what each mean is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.collections.query_targets import (
    DEFAULT_TARGET,
    TargetRule,
    as_target,
    check_target,
)
from fairqr.evaluation.estimates import as_data, ratios
from fairqr.evaluation.inputs import as_groups, as_qrels, as_run
from fairqr.evaluation.measures.kinds import GROUPS, QRELS, TARGET
from fairqr.evaluation.measures.measure import Measure, parse_measures
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.reports.text import counted
from fairqr.evaluation.results import Evaluation, GroupShare, MeasureResult, Missing, Note
from fairqr.evaluation.scores import Reason, Score
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, exposure
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import chunks, in_known_forms
from fairqr.retrieval.sources.runs import SystemRun, Ties
from fairqr.retrieval.sources.source import Source

WITHOUT_POPULATION = Target(parts={"relevance": 0.5, "uniform": 0.5})

QUERIES = ("query", "queries")

QRELS_NEEDED = "pass qrels in Python, or --qrels on the command line"

RANKS_AT_ONCE = 1 << 19
"""How many ranks, over all rankings, are held in arrays at a time."""


def evaluate(
    run: Any,
    qrels: Any,
    measures: Any,
    *,
    groups: Any = None,
    target: TargetRule | str | Sequence[str] | None = None,
    attributes: str | Sequence[str] = (),
    missing: Missing = "zero",
    ties: Ties = "rank",
    name: str = "run",
) -> Evaluation:
    """Measure the relevance and the fairness of a run, for the judged queries and no others.

    Without judgements all queries of the run are measured.

    Args:
        run: A path, a dict such as ``{"q1": {"d1": 2.5}}`` or ``{"q1": ["d1", "d2"]}``, or a data
            frame with the columns query_id, doc_id and score.
        qrels: A path, the id of an ir_datasets dataset, a dict such as ``{"q1": {"d1": 1}}``, or a
            data frame with the columns query_id, doc_id and relevance. Optional if no measure
            needs them.
        measures: As text, such as ``nDCG@20,AWRF@20``, or measures of ours or of ir_measures.
        groups: A dict from each document to a group, a list of groups, weights of groups, or a dict
            of attributes with one of these each; a data frame with the column doc_id and one for
            each attribute; a corpus; or a source.
        target: What the exposure of groups is held against. By default half the share of the
            relevant documents and half the population, or half uniform over the groups where there
            is no population. So it is for attributes that the target does not name. The result's
            ``target`` says which.
        attributes: Measures that name no attribute are computed for each of these. Defaults to all.
        missing: How a query that the run lacks counts in measures of relevance: ``zero``, as with
            ``trec_eval -c``, or ``undefined``, out of the means. It has no value in measures of
            groups.
        ties: How to order equal scores: ``rank`` as a file ranks them, elsewhere by id; ``id``; or
            ``trec_eval`` by id, descending.
        name: The name of a run that has none.

    Returns:
        The values by query, their means with intervals, and the exposure of each group.

    Raises:
        InputError: Something that a measure needs is missing or wrong.
    """
    ranked = as_run(run, name, ties=ties)
    judged = _in_forms_of(ranked, as_qrels(qrels))
    is_read = isinstance(groups, Corpus | Source | str | Path)
    labels = as_groups(groups, ids_of([ranked], judged) if is_read else ())
    if missing not in ("zero", "undefined"):
        raise InputError(f"Missing queries count as zero or undefined, not '{missing}'.")
    schema_attributes = {} if labels is None else labels.schema.attributes
    rule = _rule(target, labels)
    names = [attributes] if isinstance(attributes, str) else [*(attributes or schema_attributes)]
    bound = _bound(parse_measures(measures), labels, names, rule, judged)
    queries = tuple(ranked.rankings if judged is None else judged)
    if not queries:
        raise InputError(
            "No query is judged, so there is nothing to measure; name other judgements."
        )

    values: dict[Measure, dict[str, Score]] = {measure: {} for measure in bound}
    shares: list[_SharesOfGroups] = []
    if labels is not None and judged is not None:
        depth = depth_of(bound)
        shares = [_SharesOfGroups(labels.dimension(name), depth) for name in names]
    for part in _parts(ranked, queries):
        batch = _batch(part, ranked, judged, labels, rule)
        for measure, scores in values.items():
            scores.update(zip(part, measure.scores(batch), strict=True))
        for of_dimension in shares:
            of_dimension.add(batch)
    if missing == "zero":
        _count_missing_as_zero(values)

    by_group: list[GroupShare] = []
    for of_dimension in shares:
        by_group += of_dimension.means()
    return Evaluation(
        run=ranked.name,
        queries=queries,
        results={
            str(measure): MeasureResult.of(measure, scores) for measure, scores in values.items()
        },
        target=str(rule),
        unknown={name: attribute.unknown for name, attribute in schema_attributes.items()},
        missing=missing,
        notes=notes_on(ranked, judged, queries, labels, bound, missing),
        by_group=tuple(by_group),
    )


def _rule(target: TargetRule | str | Sequence[str] | None, groups: Groups | None) -> TargetRule:
    """Return what exposure is held against; see :func:`evaluate` for the default."""
    attributes = {} if groups is None else groups.schema.attributes
    populations = [attribute.population for attribute in attributes.values()]
    default = WITHOUT_POPULATION if None in populations else DEFAULT_TARGET
    return default if target is None else as_target(target, default)


def _batch(
    queries: Sequence[str],
    run: SystemRun,
    qrels: Qrels | None,
    groups: Groups | None,
    target: TargetRule,
) -> Batch:
    """Return some queries with their rankings and judgements, as measures read them."""
    rankings = []
    for query in queries:
        of_query = run.rankings.get(query, ())
        rankings.append([ranking.ids for ranking in of_query])
    grades = [(qrels or {}).get(query, {}) for query in queries]
    return Batch(queries, rankings, grades, groups=groups, target=target)


def _count_missing_as_zero(values: dict[Measure, dict[str, Score]]) -> None:
    """Give queries that the run lacks a value of 0 in measures of relevance."""
    for measure, scores in values.items():
        if not measure.counts_missing:
            continue
        for query, score in scores.items():
            if score == Reason.MISSING:
                scores[query] = 0.0


def _in_forms_of(run: SystemRun, qrels: Qrels | None) -> Qrels | None:
    """Return judgements with the ids of queries and documents as a run writes them."""
    if qrels is None:
        return None
    ranked = ids_of([run], None)
    judged = {query: in_known_forms(grades, ranked) for query, grades in qrels.items()}
    return in_known_forms(judged, run.rankings)


def _parts(run: SystemRun, queries: Sequence[str]) -> Iterator[list[str]]:
    """Split the queries into parts, so that arrays over ranks stay small."""
    most = 1
    for rankings in run.rankings.values():
        longest = max((len(ranking) for ranking in rankings), default=0)
        most = max(most, len(rankings) * longest)
    return chunks(queries, max(1, RANKS_AT_ONCE // most))


class _SharesOfGroups:
    """Gathers the shares of groups in the exposure and among the relevant documents.

    Args:
        dimension: The groups.
        k: How many ranks are exposed; all by default.
    """

    def __init__(self, dimension: Dimension, k: int | None) -> None:
        self._dimension = dimension
        self._k = k
        self._exposures: list[FloatArray] = []
        self._relevant: list[FloatArray] = []

    def add(self, batch: Batch) -> None:
        """Take in the queries of a batch that have both."""
        exposures = exposure(batch.memberships(self._dimension, self._k))
        means, counts = batch.means(exposures, exposures.any(axis=1))
        relevant, without = batch.targets(self._dimension, Target(parts={"relevance": 1.0}))
        both = [row for row in np.flatnonzero(counts).tolist() if row not in without]
        self._exposures.append(means[both])
        self._relevant.append(relevant[both])

    def means(self) -> list[GroupShare]:
        """Return the shares of each group over all queries; none if no query has both."""
        exposures = np.concatenate(self._exposures)
        relevant = np.concatenate(self._relevant)
        queries = len(exposures)
        if not queries:
            return []
        estimates = ratios(exposures, relevant, np.ones(queries))
        shares = []
        for column, group in enumerate(self._dimension.groups):
            estimate = estimates[column]
            share = GroupShare(
                attribute=self._dimension.name,
                group=group,
                exposure=float(exposures[:, column].mean()),
                relevant=float(relevant[:, column].mean()),
                ratio=as_data(estimate.value),
                low=as_data(estimate.low),
                high=as_data(estimate.high),
                queries=queries,
            )
            shares.append(share)
        return shares


def ids_of(runs: Iterable[SystemRun], qrels: Qrels | None) -> set[str]:
    """Return the ids of all documents that are ranked or judged."""
    ids: set[str] = set()
    for run in runs:
        for rankings in run.rankings.values():
            ids.update(*(ranking.ids for ranking in rankings))
    return ids.union(*(qrels or {}).values())


def _bound(
    measures: Iterable[Measure],
    groups: Groups | None,
    attributes: Sequence[str],
    rule: TargetRule,
    qrels: Qrels | None,
) -> list[Measure]:
    """Return the measures for each attribute, with the target's policy for the unknown.

    Raises:
        InputError: Groups or judgements that a measure needs are missing.
    """
    bound: dict[Measure, None] = {}
    for measure in measures:
        of_attributes = [measure]
        if attributes:
            of_attributes = [measure.with_attribute(attribute) for attribute in attributes]
        bound |= dict.fromkeys(of_one.for_target(rule) for of_one in of_attributes)
    by_judgements = not isinstance(rule, Target) or rule.parts.get("relevance")
    targeted = []
    for measure in bound:
        targeted += measure.targeted(groups)
        if qrels is None and QRELS in measure.needs:
            raise InputError(f"{measure} needs judgements; {QRELS_NEEDED}.")
        if qrels is None and TARGET in measure.needs and by_judgements:
            raise InputError(f"The target of {measure} needs judgements; {QRELS_NEEDED}.")
    check_target(rule, targeted)
    return list(bound)


def notes_on(
    run: SystemRun,
    qrels: Qrels | None,
    queries: Collection[str],
    groups: Groups | None,
    measures: Sequence[Measure],
    missing: str,
) -> tuple[Note, ...]:
    """Return the notes on the evaluation of a run."""
    name = run.name
    notes = _Notes()
    rankings = {}
    for query in queries:
        rankings[query] = [ranking.ids for ranking in run.rankings.get(query, ()) if ranking.ids]
    unjudged = len(run.rankings.keys() - rankings.keys())
    notes.add(
        "unjudged_queries",
        unjudged,
        f"{counted(unjudged, *QUERIES)} of {name} without judgements: left out.",
    )
    absent = sum(not ids for ids in rankings.values())
    how = "counted as 0 in measures of relevance" if missing == "zero" else "left out"
    notes.add(
        "missing_queries",
        absent,
        f"{absent:,} of {counted(len(rankings), *QUERIES)} missing from {name}: {how}, and without "
        "a value in measures of exposure.",
    )
    if groups is not None and any(GROUPS in measure.needs for measure in measures):
        ranked = _first_documents(rankings.values(), depth_of(measures))
        relevant = _relevant_documents(qrels or {}, queries)
        _add_notes_on_groups(notes, name, groups, measures, ranked, relevant)
    notes.add(
        "ties",
        run.tied,
        f"{counted(run.tied, 'document')} of {name} have the same score as their neighbour; their "
        f"order is by {run.ties}.",
    )
    return tuple(notes.notes)


class _Notes:
    """Gathers notes on what there is any of."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def add(self, kind: str, count: int, sentence: str) -> None:
        """Add a note, unless the count is 0."""
        if count:
            self.notes.append(Note(kind, count, sentence))


def _first_documents(rankings: Iterable[Sequence[Sequence[str]]], depth: int | None) -> set[str]:
    """Return the documents down to a rank."""
    ids: set[str] = set()
    for of_query in rankings:
        ids.update(*(ranking[:depth] for ranking in of_query))
    return ids


def _relevant_documents(qrels: Qrels, queries: Iterable[str]) -> set[str]:
    """Return the documents that are relevant to any of these queries."""
    ids: set[str] = set()
    for query in queries:
        ids |= {id_ for id_, grade in qrels.get(query, {}).items() if grade > 0}
    return ids


def _add_notes_on_groups(
    notes: _Notes,
    name: str,
    groups: Groups,
    measures: Sequence[Measure],
    ranked: Collection[str],
    relevant: Collection[str],
) -> None:
    """Add what is not known of the groups of documents.

    Args:
        notes: Where to.
        name: The name of the run.
        groups: The labels of documents.
        measures: What was measured.
        ranked: The documents that measures look at.
        relevant: The relevant documents.
    """
    documents = counted(len(ranked), "document")
    known = groups.known(ranked)
    unknown = len(ranked) - len(known)
    notes.add(
        "unknown_documents",
        unknown,
        f"{unknown:,} of {documents} ranked by {name} are not in the corpus: they keep their rank, "
        "and give exposure to no group.",
    )
    unknown_relevant = len(relevant) - len(groups.known(relevant))
    notes.add(
        "unknown_relevant",
        unknown_relevant,
        f"{unknown_relevant:,} of {len(relevant):,} relevant documents are not in the corpus: they "
        "count as relevant, but not for the target.",
    )
    attributes: dict[str, None] = {}
    for measure in measures:
        names = [factor.attribute for factor in measure.parts if factor.attribute]
        attributes |= dict.fromkeys(names)
    for attribute in attributes:
        members = groups.in_dimension(groups.dimension(attribute, "exclude"), known)
        unlabelled = int((members.sum(axis=1) == 0).sum())
        notes.add(
            "unlabelled_documents",
            unlabelled,
            f"{unlabelled:,} of {counted(len(known), 'document')} ranked by {name} have no known "
            f"{attribute}.",
        )


def depth_of(measures: Iterable[Measure]) -> int | None:
    """Return the deepest cut-off of measures of groups; None for the whole list."""
    factors = [factor for measure in measures for factor in measure.parts]
    depths = [factor.k for factor in factors if GROUPS in factor.needs]
    if None in depths:
        return None
    return max(filter(None, depths), default=None)
