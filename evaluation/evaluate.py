"""One call that measures a run: values by query, means, and what each mean is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation import results
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections import query_targets
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.estimates import as_data, ratios
from fairqr.evaluation.inputs import as_groups, as_qrels, as_run
from fairqr.evaluation.measures.kinds import GROUPS, QRELS, TARGET
from fairqr.evaluation.measures.measure import Measure, parse_measures
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.reports.text import counted
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
    target: query_targets.TargetRule | str | Sequence[str] | None = None,
    attributes: str | Sequence[str] = (),
    missing: results.Missing = "zero",
    ties: Ties = "rank",
    name: str = "run",
) -> results.Evaluation:
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
    found = as_groups(groups, ids_of([ranked], judged) if is_read else ())
    if missing not in ("zero", "undefined"):
        raise InputError(f"Missing queries count as zero or undefined, not '{missing}'.")
    known = {} if found is None else found.schema.attributes
    populated = all(attribute.population is not None for attribute in known.values())
    default = query_targets.DEFAULT_TARGET if populated else WITHOUT_POPULATION
    rule = default if target is None else query_targets.as_target(target, default)
    names = [attributes] if isinstance(attributes, str) else [*(attributes or known)]
    bound = _bound(parse_measures(measures), found, names, rule, judged)
    queries = tuple(ranked.rankings if judged is None else judged)
    if not queries:
        raise InputError(
            "No query is judged, so there is nothing to measure; name other judgements."
        )
    values: dict[Measure, dict[str, Score]] = {measure: {} for measure in bound}
    by_group = [] if found is None or judged is None else map(found.dimension, names)
    depth = depth_of(bound)
    shares: list[tuple[Any, list[Any]]] = [(dimension, []) for dimension in by_group]
    for part in _parts(ranked, queries):
        batch = Batch(
            part,
            [[it.ids for it in ranked.rankings.get(query, ())] for query in part],
            [(judged or {}).get(query, {}) for query in part],
            groups=found,
            target=rule,
        )
        for measure, own in values.items():
            own.update(zip(part, measure.scores(batch), strict=True))
        for dimension, gathered in shares:
            gathered.append(_exposed_and_relevant(batch, dimension, depth))
    for measure, own in values.items():
        if missing == "zero" and measure.counts_missing:
            own |= {q: 0.0 for q, it in own.items() if it == Reason.MISSING}
    return results.Evaluation(
        run=ranked.name,
        queries=queries,
        results={str(m): results.MeasureResult.of(m, it) for m, it in values.items()},
        target=str(rule),
        unknown={name: attribute.unknown for name, attribute in known.items()},
        missing=missing,
        notes=notes_on(ranked, judged, queries, found, bound, missing),
        by_group=tuple(s for dimension, own in shares for s in _group_shares(dimension, own)),
    )


def _in_forms_of(run: SystemRun, qrels: Qrels | None) -> Qrels | None:
    """Return judgements with the ids of queries and documents as a run writes them."""
    if qrels is None:
        return None
    ranked = ids_of([run], None)
    judged = {query: in_known_forms(grades, ranked) for query, grades in qrels.items()}
    return in_known_forms(judged, run.rankings)


def _parts(run: SystemRun, queries: Sequence[str]) -> Iterator[list[str]]:
    """Split the queries into parts, so that arrays over ranks stay small."""
    each = [[len(ranking) for ranking in rankings] for rankings in run.rankings.values()]
    most = max((len(own) * max(own) for own in each if own), default=1)
    return chunks(queries, max(1, RANKS_AT_ONCE // max(1, most)))


def _exposed_and_relevant(
    batch: Batch, dimension: Dimension, k: int | None
) -> tuple[FloatArray, FloatArray]:
    """Return the shares of each group in the exposure of a query and among its relevant documents.

    Two arrays of shape (n, G), over the n queries that have both.
    """
    gained = exposure(batch.memberships(dimension, k))
    means, counts = batch.means(gained, gained.any(axis=1))
    relevant, without = batch.targets(dimension, Target(parts={"relevance": 1.0}))
    both = [place for place in np.flatnonzero(counts).tolist() if place not in without]
    return means[both], relevant[both]


def _group_shares(
    dimension: Dimension, parts: Sequence[tuple[FloatArray, FloatArray]]
) -> list[results.GroupShare]:
    """Return the shares of each group over all queries; none if no query has both.

    Args:
        dimension: The groups.
        parts: The parts of `exposed_and_relevant`, for batches of the queries.
    """
    exposures, relevant = map(np.concatenate, zip(*parts, strict=True))
    if not len(exposures):
        return []
    found = ratios(exposures, relevant, np.ones(len(exposures)))
    ends = as_data([{"ratio": it.value, "low": it.low, "high": it.high} for it in found])
    shares = ([float(own.mean()) for own in it.T] for it in (exposures, relevant))
    return [
        results.GroupShare(dimension.name, group, seen, target, **own, queries=len(exposures))
        for group, seen, target, own in zip(dimension.groups, *shares, ends, strict=True)
    ]


def ids_of(runs: Iterable[SystemRun], qrels: Qrels | None) -> set[str]:
    """Return the ids of all documents that are ranked or judged."""
    ids = {id_ for run in runs for rs in run.rankings.values() for r in rs for id_ in r.ids}
    return ids.union(*(qrels or {}).values())


def _bound(
    measures: Iterable[Measure],
    groups: Groups | None,
    attributes: Sequence[str],
    rule: query_targets.TargetRule,
    qrels: Qrels | None,
) -> list[Measure]:
    """Return the measures for each attribute, with the target's policy for the unknown.

    Raises:
        InputError: Groups or judgements that a measure needs are missing.
    """
    bound: dict[Measure, None] = {}
    for measure in measures:
        each = map(measure.with_attribute, attributes) if attributes else [measure]
        bound |= dict.fromkeys(it.for_target(rule) for it in each)
    by_judgements = not isinstance(rule, Target) or rule.parts.get("relevance")
    targeted = []
    for measure in bound:
        targeted += measure.targeted(groups)
        if qrels is None and QRELS in measure.needs:
            raise InputError(f"{measure} needs judgements; {QRELS_NEEDED}.")
        if qrels is None and TARGET in measure.needs and by_judgements:
            raise InputError(f"The target of {measure} needs judgements; {QRELS_NEEDED}.")
    query_targets.check_target(rule, targeted)
    return list(bound)


def notes_on(
    run: SystemRun,
    qrels: Qrels | None,
    queries: Collection[str],
    groups: Groups | None,
    measures: Sequence[Measure],
    missing: str,
) -> tuple[results.Note, ...]:
    """Return the notes on the evaluation of a run."""
    name, judged, notes = run.name, qrels or {}, list[results.Note]()
    rankings = {query: [r.ids for r in run.rankings.get(query, ()) if r.ids] for query in queries}

    def note(kind: str, count: int, text: str, *nouns: str) -> None:
        if count:
            said = counted(count, *nouns) if nouns else f"{count:,}"
            notes.append(results.Note(kind, count, f"{said} {text}"))

    unjudged = len(run.rankings.keys() - rankings.keys())
    note("unjudged_queries", unjudged, f"of {name} without judgements: left out.", *QUERIES)
    how = "counted as 0 in measures of relevance" if missing == "zero" else "left out"
    text = f"of {counted(len(rankings), *QUERIES)} missing from {name}: {how}, and without a"
    absent = sum(not own for own in rankings.values())
    note("missing_queries", absent, f"{text} value in measures of exposure.")
    if groups is not None and any(GROUPS in measure.needs for measure in measures):
        depth = depth_of(measures)
        ranked = {id_ for own in rankings.values() for ids in own for id_ in ids[:depth]}
        known = groups.known(ranked)
        text = f"of {counted(len(ranked), 'document')} ranked by {name} are not in the corpus: they"
        text += " keep their rank, and give exposure to no group."
        note("unknown_documents", len(ranked) - len(known), text)
        useful = {id_ for q in queries for id_, grade in judged.get(q, {}).items() if grade > 0}
        text = f"of {len(useful):,} relevant documents are not in the corpus: they count as"
        absent = len(useful) - len(groups.known(useful))
        note("unknown_relevant", absent, f"{text} relevant, but not for the target.")
        attributes = (factor.attribute for measure in measures for factor in measure.parts)
        text = f"of {counted(len(known), 'document')} ranked by {name} have no known"
        for attribute in dict.fromkeys(filter(None, attributes)):
            members = groups.in_dimension(groups.dimension(attribute, "exclude"), known)
            without = int((members.sum(axis=1) == 0).sum())
            note("unlabelled_documents", without, f"{text} {attribute}.")
    text = f"of {name} have the same score as their neighbour; their order is by {run.ties}."
    note("ties", run.tied, text, "document")
    return tuple(notes)


def depth_of(measures: Iterable[Measure]) -> int | None:
    """Return the deepest cut-off of measures of groups; None for the whole list."""
    factors = [factor for measure in measures for factor in measure.parts]
    depths = [factor.k for factor in factors if GROUPS in factor.needs]
    return None if None in depths else max(filter(None, depths), default=None)
