"""One call that measures runs: values by query, means, and what each mean is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairqr.base.errors import InputError, TargetError
from fairqr.base.statistics import RESAMPLES, bootstrap_mean, stream
from fairqr.evaluation.collections.labels import Scan, scan_corpus
from fairqr.evaluation.collections.query_targets import QueryTargets
from fairqr.evaluation.measures.base import Measure, Need
from fairqr.evaluation.measures.text import parse_measures
from fairqr.evaluation.memberships import Groups
from fairqr.evaluation.notes import notes_on
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.query_results import DEFAULT_TARGET, QueryResults, TargetRule, as_target
from fairqr.evaluation.results import Evaluation, MeasureResult, Missing
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.corpus import Corpus
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.runs import Run
from fairqr.retrieval.target import Target

__all__ = ["Evaluation", "bind", "evaluate", "evaluate_all", "ids_of"]


def evaluate(
    run: Run, qrels: Qrels | None, measures: str | Iterable[str | Measure], **options: Any
) -> Evaluation:
    """Measure a run; the options are those of :func:`evaluate_all`."""
    return evaluate_all([run], qrels, measures, **options)[0]


def evaluate_all(
    runs: Sequence[Run],
    qrels: Qrels | None,
    measures: str | Iterable[str | Measure],
    *,
    documents: Corpus | Scan | None = None,
    target: TargetRule | str | Sequence[str] = DEFAULT_TARGET,
    computed: Sequence[QueryTargets] = (),
    attributes: Sequence[str] = (),
    missing: Missing = "zero",
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    progress: Callable[[int], None] | None = None,
) -> list[Evaluation]:
    """Measure several runs against the same judgements, groups and items.

    All judged queries are measured, and those alone: a query that the run lacks counts as 0 in
    measures of relevance, as with ``trec_eval -c``, and has no value in measures of groups.

    Args:
        runs: The runs.
        qrels: Judgements; None where no measure needs them. All queries of the runs are then
            measured.
        measures: As text or as objects; see :mod:`fairqr.evaluation.measures.text`.
        documents: Where the groups of documents are known from: a corpus, which is read once, or
            what a scan or an engine knows of :func:`ids_of` (``scan_corpus``, ``scan_engine``).
        target: ``relevance:0.5,population:0.5`` unless said otherwise; ``trec2022`` for the
            track's, with which measures that do not say otherwise have the unknown as a group; see
            :func:`fairqr.evaluation.query_results.as_target`.
        computed: Targets by query that were computed already, as
            :func:`fairqr.evaluation.collections.query_targets.query_targets` does; for their
            dimension they go before ``target``.
        attributes: For measures that name none: each is computed for each of these. The only
            attribute of the schema where not given.
        missing: ``zero``, or ``undefined`` to leave queries that the run lacks out of the means.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        level: Of the intervals.
        progress: Told now and then how many documents of a corpus were read.

    Returns:
        One evaluation for each run, in order.

    Raises:
        InputError: Something that a measure needs is missing or does not fit.
    """
    if missing not in ("zero", "undefined"):
        raise InputError(f"Missing queries count as zero or undefined, not '{missing}'.")
    if seed < 0:
        raise InputError(f"The seed must be 0 or more, not {seed}.")
    wanted, rule = parse_measures(measures), as_target(target)
    scan = (
        scan_corpus(documents, ids_of(runs, qrels), progress=progress)
        if isinstance(documents, Corpus)
        else documents
    )
    groups = None if scan is None else Groups(scan)
    bound = [measure.for_target(rule) for measure in bind(wanted, groups, attributes)]
    _check(bound, qrels, groups, rule)
    queries = tuple(
        qrels if qrels is not None else dict.fromkeys(q for r in runs for q in r.rankings)
    )
    if not queries:
        raise InputError("There is no judged query to measure; name judgements that have some.")
    ready = {targets.dimension.name: targets for targets in computed}
    everything = {query: [ids for run in runs for ids in _ranked(run, query)] for query in queries}
    evaluations = []
    for run in runs:
        values: dict[Measure, dict[str, Score]] = {measure: {} for measure in bound}
        views = []
        for query in queries:
            view = QueryResults(
                query,
                _ranked(run, query),
                (qrels or {}).get(query, {}),
                groups=groups,
                target=rule,
                computed=ready,
                others=everything[query],
            )
            for measure, found in values.items():
                found[query] = _score(measure, view, missing)
            # There may be many queries, and what measures share is large.
            view.forget()
            views.append(view)
        results = {
            str(measure): _summary(measure, found, seed, resamples, level)
            for measure, found in values.items()
        }
        notes = notes_on(run, views, qrels, groups, bound, missing)
        policies = {} if groups is None else groups.policies()
        evaluations.append(
            Evaluation(run.name, queries, results, str(rule), policies, missing, seed, tuple(notes))
        )
    return evaluations


def ids_of(runs: Iterable[Run], qrels: Qrels | None) -> set[str]:
    """Return the ids of all documents that are ranked or judged."""
    ids = {id_ for run in runs for rs in run.rankings.values() for r in rs for id_ in r.ids}
    return ids.union(*(qrels or {}).values())


def bind(
    measures: Iterable[Measure], groups: Groups | None, attributes: Sequence[str] = ()
) -> list[Measure]:
    """Name the attribute in measures that need one: one measure for each attribute.

    Raises:
        InputError: No attribute is given, and the schema has several or there is none.
    """
    bound: list[Measure] = []
    for measure in measures:
        names: Sequence[str] = attributes
        if measure.takes_attribute and not names:
            if groups is None:
                raise InputError(
                    f"{measure} needs the groups of the documents; "
                    "name them with --documents or --corpus."
                )
            names = tuple(groups.schema.attributes)
            if len(names) > 1:
                raise InputError(
                    f"{measure} needs an attribute; write --attribute or (attribute=…) with one of "
                    f"{', '.join(names)}, or a product such as {'×'.join(names[:2])}."
                )
        bound += (
            [measure.with_attribute(n) for n in names] if measure.takes_attribute else [measure]
        )
    return list(dict.fromkeys(bound))


def _check(
    measures: Sequence[Measure], qrels: Qrels | None, groups: Groups | None, rule: TargetRule
) -> None:
    by_judgements = not isinstance(rule, Target) or rule.parts.get("relevance")
    targeted: list[Dimension] = []
    for measure in measures:
        measure.check(groups)
        if qrels is None and Need.QRELS in measure.needs:
            raise InputError(f"{measure} needs judgements; name them with --qrels.")
        if qrels is None and Need.TARGET in measure.needs and by_judgements:
            raise InputError(
                f"The target of {measure} is made from judgements; name them with --qrels, "
                "or choose a target without relevance, such as population:1."
            )
        targeted += measure.targeted(groups) if groups else []
    _check_target(rule, targeted)


def _check_target(rule: TargetRule, targeted: Sequence[Dimension]) -> None:
    for dimension in targeted:
        if isinstance(rule, Target):
            needed = rule.parts.get("population") and dimension.name not in rule.shares
            if needed and dimension.attribute.population is None:
                raise TargetError(
                    f"The schema gives no population for {dimension.name}; add one, or choose a "
                    "target without it, such as relevance:0.5,uniform:0.5."
                )
        elif rule == "trec2022" and any(f.unknown != "group" for f in dimension.factors):
            raise InputError(
                f"The target trec2022 has the unknown as a group of {dimension.name}; "
                "leave unknown=exclude out of the measure, or choose another target."
            )
    if isinstance(rule, Target) and targeted:
        rule.check([dimension.attribute for dimension in targeted])


def _ranked(run: Run, query: str) -> list[list[str]]:
    return [ranking.ids for ranking in run.rankings.get(query, ())]


def _score(measure: Measure, results: QueryResults, missing: Missing) -> Score:
    score = measure.value(results)
    if (
        missing == "zero"
        and measure.counts_missing
        and isinstance(score, Undefined)
        and score.reason is Reason.MISSING
    ):
        return 0.0
    return score


def _summary(
    measure: Measure, values: Mapping[str, Score], seed: int, resamples: int, level: float
) -> MeasureResult:
    defined = np.array([v for v in values.values() if not isinstance(v, Undefined)])
    # One stream for all measures would pair their intervals with each other for no reason.
    interval = bootstrap_mean(defined, stream(seed, str(measure)), resamples=resamples, level=level)
    mean = float(defined.mean()) if defined.size else None
    return MeasureResult(measure, values, mean, interval)
