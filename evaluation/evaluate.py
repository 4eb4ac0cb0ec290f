"""One call that measures runs: values by query, means, and what each mean is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.by_group import exposed_and_relevant, group_shares
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.collections.query_targets import (
    DEFAULT_TARGET,
    QueryTargets,
    TargetRule,
    as_target,
    check_target,
)
from fairqr.evaluation.inputs import as_groups, as_qrels, as_run
from fairqr.evaluation.measures.kinds import Need
from fairqr.evaluation.measures.measure import GROUPS_NEEDED, Measure, parse_measures
from fairqr.evaluation.notes import depth_of, notes_on
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.results import Evaluation, MeasureResult, Missing, check_level
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.target import Target
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.runs import SystemRun, Ties
from fairqr.retrieval.sources.source import Source

WITHOUT_POPULATION = Target(parts={"relevance": 0.5, "uniform": 0.5})

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
    computed: QueryTargets | Sequence[QueryTargets] = (),
    attributes: str | Sequence[str] = (),
    missing: Missing = "zero",
    level: float = 0.95,
    ties: Ties = "rank",
    name: str = "run",
) -> Evaluation:
    """Measure the relevance and the fairness of a run.

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
        computed: See :func:`evaluate_all`.
        attributes: Measures that name no attribute are computed for each of these. Defaults to all
            attributes of a dict or data frame.
        missing: See :func:`evaluate_all`.
        level: The level of the intervals.
        ties: How to order equal scores: ``rank`` as a file ranks them, elsewhere by id; ``id``;
            ``trec_eval`` by id, descending; or ``error``.
        name: The name of a run that has none.

    Returns:
        The values by query, their means with intervals, and the exposure of each group.

    Raises:
        InputError: Something that a measure needs is missing or wrong.
    """
    ranked, judged = as_run(run, name, ties=ties), as_qrels(qrels)
    wanted = parse_measures(measures)
    is_read = isinstance(groups, Corpus | Source | str | Path)
    found = as_groups(groups, ids_of([ranked], judged) if is_read else ())
    known = () if found is None else tuple(found.schema.attributes)
    if isinstance(attributes, str):
        attributes = (attributes,)
    if not attributes and not isinstance(groups, Groups | Corpus | str | Path):
        attributes = known
    computed = (computed,) if isinstance(computed, QueryTargets) else computed
    for option, given, kind in (
        ("computed", computed, QueryTargets),
        ("attributes", attributes, str),
        ("name", [name], str),
    ):
        for value in given if isinstance(given, Iterable) else [given]:
            if not isinstance(value, kind):
                raise InputError(
                    f"'{option}' cannot be of type {type(value).__name__}; give {kind.__name__}."
                )
    populations = [] if found is None else found.schema.attributes.values()
    populated = all(attribute.population is not None for attribute in populations)
    default = DEFAULT_TARGET if populated else WITHOUT_POPULATION
    (evaluation,) = evaluate_all(
        [ranked],
        judged,
        wanted,
        documents=found,
        target=default if target is None else as_target(target, default),
        computed=computed,
        attributes=attributes,
        missing=missing,
        level=level,
        by_group=attributes or known,
    )
    return evaluation


def evaluate_all(
    runs: Sequence[SystemRun],
    qrels: Qrels | None,
    measures: str | Iterable[str | Measure],
    *,
    documents: Groups | None = None,
    target: TargetRule | str | Sequence[str] = DEFAULT_TARGET,
    computed: Sequence[QueryTargets] = (),
    attributes: Sequence[str] = (),
    missing: Missing = "zero",
    level: float = 0.95,
    by_group: Sequence[str] = (),
) -> list[Evaluation]:
    """Measure several runs against the same judgements, groups and items.

    We measure the judged queries and no others. A query that the run lacks counts as 0 in measures
    of relevance, as with ``trec_eval -c``, and has no value in measures of groups.

    Args:
        runs: The runs.
        qrels: Judgements. Optional if no measure needs them; all queries of the runs are then
            measured.
        measures: As text or as objects; see :mod:`fairqr.evaluation.measures.measure`.
        documents: The groups of the documents, such as ``scan_corpus`` or ``scan_engine`` finds for
            :func:`ids_of`.
        target: ``relevance:0.5,population:0.5`` by default; ``trec2022`` for the track's target,
            which makes the unknown a group unless a measure says otherwise; see
            :func:`fairqr.evaluation.collections.query_targets.as_target`.
        computed: Targets by query from
            :func:`fairqr.evaluation.collections.query_targets.query_targets`; they replace
            ``target`` for their dimension.
        attributes: Measures that name no attribute are computed for each of these. Defaults to
            the only attribute of the schema.
        missing: ``zero``, or ``undefined`` to leave queries that the run lacks out of the means.
        level: The level of the intervals.
        by_group: The attributes whose groups are listed with their exposure beside their share of
            the relevant documents; none without judgements.

    Returns:
        One evaluation for each run, in order.

    Raises:
        InputError: Something that a measure needs is missing or wrong.
    """
    if missing not in ("zero", "undefined"):
        raise InputError(f"Missing queries count as zero or undefined, not '{missing}'.")
    check_level(level)
    rule, groups = as_target(target), documents
    bound = [
        measure.for_target(rule) for measure in bind(parse_measures(measures), groups, attributes)
    ]
    _check(bound, qrels, groups, rule)
    judged = qrels or {}
    queries = tuple(
        judged if qrels is not None else dict.fromkeys(q for r in runs for q in r.rankings)
    )
    if not queries:
        raise InputError(
            "No query is judged, so there is nothing to measure; name other judgements."
        )
    ready = {targets.dimension.name: targets for targets in computed}
    told = "; ".join([str(rule), *(f"{n} by query: {given.rule}" for n, given in ready.items())])
    attributes_of = {} if groups is None else groups.schema.attributes
    listed = [groups.dimension(name) for name in by_group] if groups and qrels is not None else []
    depth = depth_of(bound)
    evaluations = []
    for run in runs:
        values: dict[Measure, dict[str, Score]] = {measure: {} for measure in bound}
        shares: list[list[tuple[FloatArray, FloatArray]]] = [[] for _ in listed]
        for part in _parts(run, queries):
            batch = Batch(
                part,
                [_ranked(run, query) for query in part],
                [judged.get(query, {}) for query in part],
                groups=groups,
                target=rule,
                computed=ready,
            )
            for measure, found in values.items():
                found.update(zip(part, measure.scores(batch), strict=True))
                if missing == "zero" and measure.counts_missing:
                    found.update({q: 0.0 for q in part if _is_missing(found[q])})
            for dimension, own in zip(listed, shares, strict=True):
                own.append(exposed_and_relevant(batch, dimension, depth))
        of_groups = map(group_shares, listed, shares)
        evaluations.append(
            Evaluation(
                run=run.name,
                queries=queries,
                results={str(m): MeasureResult.of(m, it, level) for m, it in values.items()},
                target=told,
                unknown={name: own.unknown for name, own in attributes_of.items()},
                missing=missing,
                notes=notes_on(run, qrels, queries, groups, bound, missing),
                by_group=tuple(share for own in of_groups for share in own),
            )
        )
    return evaluations


def _is_missing(score: Score) -> bool:
    return isinstance(score, Undefined) and score.reason is Reason.MISSING


def _parts(run: SystemRun, queries: Sequence[str]) -> Iterator[list[str]]:
    """Split the queries into parts, so that arrays over ranks stay small."""
    part: list[str] = []
    ranks = longest = 0
    for query in queries:
        own = _ranked(run, query)
        longest = max([longest, *map(len, own)])
        ranks += len(own)
        if part and ranks * longest > RANKS_AT_ONCE:
            yield part
            part, ranks, longest = [], len(own), max(map(len, own), default=0)
        part.append(query)
    yield part


def ids_of(runs: Iterable[SystemRun], qrels: Qrels | None) -> set[str]:
    """Return the ids of all documents that are ranked or judged."""
    ids = {id_ for run in runs for rs in run.rankings.values() for r in rs for id_ in r.ids}
    return ids.union(*(qrels or {}).values())


def bind(
    measures: Iterable[Measure], groups: Groups | None, attributes: Sequence[str] = ()
) -> list[Measure]:
    """Give measures that need an attribute one: a measure for each attribute.

    Raises:
        InputError: No attribute is given, and the schema has several or is missing.
    """
    bound: list[Measure] = []
    for measure in measures:
        names = tuple(attributes) if measure.takes_attribute else ("",)
        if not names and groups is None:
            raise InputError(f"{measure} needs the groups of the documents; {GROUPS_NEEDED}.")
        if not names and groups is not None:
            names = tuple(groups.schema.attributes)
            if len(names) > 1:
                raise InputError(
                    f"{measure} needs an attribute; write (attribute=…) behind it with one of "
                    f"{', '.join(names)}, or a product such as {'×'.join(names[:2])}."
                )
        bound += map(measure.with_attribute, names)
    return list(dict.fromkeys(bound))


def _check(
    measures: Sequence[Measure], qrels: Qrels | None, groups: Groups | None, rule: TargetRule
) -> None:
    by_judgements = not isinstance(rule, Target) or rule.parts.get("relevance")
    targeted: list[Dimension] = []
    for measure in measures:
        targeted += measure.targeted(groups)
        if qrels is None and Need.QRELS in measure.needs:
            raise InputError(f"{measure} needs judgements; {QRELS_NEEDED}.")
        if qrels is None and Need.TARGET in measure.needs and by_judgements:
            raise InputError(
                f"The target of {measure} is made from judgements; {QRELS_NEEDED}, "
                "or choose a target without relevance, such as population:1."
            )
    check_target(rule, targeted)
    for dimension in targeted:
        if rule == "trec2022" and any(f.unknown != "group" for f in dimension.factors):
            raise InputError(
                f"The target trec2022 has the unknown as a group of {dimension.name}; "
                "leave unknown=exclude out of the measure, or choose another target."
            )


def _ranked(run: SystemRun, query: str) -> list[Sequence[str]]:
    return [ranking.ids for ranking in run.rankings.get(query, ())]
