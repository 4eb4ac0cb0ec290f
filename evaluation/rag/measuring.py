"""From the records of a Fair RAG experiment to the values of its measures, as DataFrames.

A mean is always over queries: several seeds of a policy on a query are averaged first, and so are
generators and retrievers where a table joins them. A query without a value is left out, and every
mean says over how many queries it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairqr.base.errors import InputError
from fairqr.evaluation.estimates import mean_with_ends
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.lamp.metrics import Accuracy, FourMinusError, Rouge, official_metrics
from fairqr.evaluation.rag import measures
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.labelling import summarise_labels
from fairqr.evaluation.rag.measures import (
    GroupExposure,
    UtilityBounds,
    group_exposure,
    is_answer,
    memberships_of,
)
from fairqr.evaluation.rag.store import AnswerRecord, LabelRecord, Policy, PolicyRecord, RagManifest
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.schema import UNKNOWN

if TYPE_CHECKING:
    from pandas import DataFrame

_LAMP = (Accuracy, FourMinusError, Rouge)
POLICY = ["collection", "generator", "retriever", "policy"]
KEYS = [*POLICY, "seed", "query"]
"""The columns that identify a row. The oracle has no retriever."""

COST = ("model_calls", "tokens", "milliseconds")
OF_GROUPS = {
    "EE-D by group": "disparity",
    "EE-R by group": "relevance",
    "EE-L by group": "loss",
    "EAE-D by group": "attributed_disparity",
}
SHARES = ["exposure", "target", "useful_exposure", "attributed"]
_ORDER: tuple[Policy, ...] = ("plackett-luce", "deterministic", "oracle")
LabelKey = tuple[str, str]
"""The names of the collection and of the generator."""


class Name(StrEnum):
    """A measure of one policy on one query; the report's template says what each one is."""

    EE_D = "EE-D"
    EE_D_K = "EE-D/k"
    EE_D_UNBIASED = "EE-D, unbiased"
    EE_R = "EE-R"
    EE_R_FAIR_RAG = "EE-R, fair-rag"
    EE_L = "EE-L"
    NOT_USEFUL = "exposure of not useful"
    EU = "EU"
    EU_MAX = "EU/u_max"
    EU_MAX_RETRIEVER = "EU/u_max, retriever"
    EU_MAX_FAIR_RAG = "EU/u_max, fair-rag"
    EAR = "EAR"
    EE_D_K_ANSWERED = "EE-D/k, answered"
    EAE_D_K = "EAE-D/k"
    SHARE = "EAE-D/(k·EAR)"
    USED_NOT_USEFUL = "use of not useful"


_ALL = tuple(Name)
OF_RANKINGS, OF_ANSWERS, OF_USE = _ALL[:7], _ALL[7:11], _ALL[11:]
"""The measures of rankings, of the worth of answers, and of the documents that answers used."""


class Cell(NamedTuple):
    """The measures of one policy on one query.

    Attributes:
        values: By name.
        groups: By attribute; empty if the collection has no groups or nothing was drawn.
        counts: Over how many things the values are: rankings ``drawn``; ``distinct`` ones among
            those that were ``generated`` from; of the generations, how many ``failed``, by status,
            and how many gave an answer that is ``empty``, which counts; ``pairs`` of a document
            and a distinct answer, and those that are ``unjudged``.
    """

    record: PolicyRecord
    values: Mapping[Name, Score]
    groups: Mapping[str, GroupExposure]
    counts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of a record, the failed ones left out.

    An empty answer used nothing, which needs no verdict.
    """

    rankings: NDArray[np.intp]
    times: NDArray[np.intp]
    utilities: FloatArray
    attributed: NDArray[np.bool_]
    judged: NDArray[np.bool_]

    @classmethod
    def of(cls, record: PolicyRecord) -> _Answers | None:
        found = [answer for answer in record.answers if is_answer(answer)]
        if not found:
            return None
        verdicts = [_verdicts(answer) for answer in found]
        return cls(
            rankings=np.array([answer.ranking for answer in found], dtype=np.intp),
            times=np.array([answer.times for answer in found], dtype=np.intp),
            utilities=np.array([answer.utility or 0.0 for answer in found]),
            attributed=np.array([[bool(used) for used in row] for row in verdicts]),
            judged=np.array([[used is not None for used in row] for row in verdicts]),
        )

    def shown(self, n: int) -> FloatArray:
        """Return the exposure of each of n documents in the answered samples."""
        return measures.item_exposure(self.rankings, n, self.times)

    def used(self, n: int) -> FloatArray:
        """Return the attributed exposure of each of n documents."""
        return measures.attributed_exposure(self.rankings, self.attributed, self.times, n)


def _verdicts(answer: AnswerRecord) -> tuple[bool | None, ...]:
    length = len(answer.ranking)
    if len(answer.used) != length:
        # Nothing judged.
        return (None,) * length
    return (False,) * length if answer.status == "empty" else answer.used


def measure_record(
    record: PolicyRecord,
    bounds: UtilityBounds,
    memberships: Mapping[str, FloatArray] | None = None,
) -> Cell:
    """Measure one policy on one query.

    Args:
        record: What was drawn and generated.
        bounds: The greatest utility of each query.
        memberships: By attribute, shape (n, G + 1), in the order of the record's pool.
    """
    if not record.samples or not record.pool:
        missing = Undefined(Reason.MISSING, record.failure)
        return Cell(record, dict.fromkeys(Name, missing), {}, _count(record, None))
    useful = np.zeros(len(record.pool), dtype=bool)
    useful[list(record.useful)] = True
    answers = _Answers.of(record)
    exposure = measures.item_exposure(record.samples, useful.size)
    values = {
        **_of_retrieval(record, useful, exposure),
        **_of_utility(record, answers, bounds),
        **_of_use(answers, useful),
    }
    of_answers = (answers.shown(useful.size), answers.used(useful.size)) if answers else ()
    groups = {
        name: group_exposure(rows, exposure, useful, record.k, *of_answers)
        for name, rows in (memberships or {}).items()
    }
    # In the order of the names, so that files repeat.
    return Cell(record, {name: values[name] for name in Name}, groups, _count(record, answers))


def _of_retrieval(
    record: PolicyRecord, useful: NDArray[np.bool_], exposure: FloatArray
) -> dict[Name, Score]:
    found = measures.machine_user(record.samples, useful, record.k)
    fixed = record.policy == "deterministic"
    unbiased = found.score("disparity", unbiased=True)
    return {
        Name.EE_D: found.score("disparity"),
        Name.EE_D_K: found.score("disparity", "fair-rag"),
        # A fixed ranking is known whole: there is nothing to correct.
        Name.EE_D_UNBIASED: found.score("disparity") if fixed else unbiased,
        Name.EE_R: found.score("relevance"),
        Name.EE_R_FAIR_RAG: found.score("relevance", "fair-rag"),
        Name.EE_L: measures.loss(found),
        Name.NOT_USEFUL: measures.not_useful(exposure, useful),
    }


def _of_utility(
    record: PolicyRecord, answers: _Answers | None, bounds: UtilityBounds
) -> dict[Name, Score]:
    expected: Score = Undefined(Reason.NO_ANSWER)
    if answers is not None:
        expected = measures.expected_utility(answers.utilities, answers.times)
    every, own = bounds.greatest(record), bounds.greatest(record, "retriever")
    return {
        Name.EU: expected,
        Name.EU_MAX: measures.normalised_utility(expected, every),
        Name.EU_MAX_RETRIEVER: measures.normalised_utility(expected, own),
        Name.EU_MAX_FAIR_RAG: measures.normalised_utility(expected, own, "fair-rag"),
    }


def _of_use(answers: _Answers | None, useful: NDArray[np.bool_]) -> dict[Name, Score]:
    if answers is None:
        return dict.fromkeys(OF_USE, Undefined(Reason.NO_ANSWER))
    if not answers.judged.any():
        return dict.fromkeys(OF_USE, Undefined(Reason.NO_VERDICT))
    n, k = useful.size, answers.rankings.shape[1]
    shown, used = answers.shown(n), answers.used(n)
    return {
        Name.EAR: measures.expected_attribution_rate(
            answers.attributed, answers.judged, answers.times
        ),
        Name.EE_D_K_ANSWERED: float(shown @ shown) / k,
        Name.EAE_D_K: measures.attributed_disparity(used, k),
        Name.SHARE: measures.attribution_share(used),
        Name.USED_NOT_USEFUL: measures.not_useful(used, useful),
    }


def _count(record: PolicyRecord, answers: _Answers | None) -> dict[str, Any]:
    failed: Counter[str] = Counter()
    for answer in record.answers:
        if not is_answer(answer):
            failed[answer.status] += answer.times
    return {
        "drawn": len(record.samples),
        "distinct": len(record.answers),
        "generated": sum(answer.times for answer in record.answers),
        "failed": failed,
        "empty": sum(answer.times for answer in record.answers if answer.status == "empty"),
        "pairs": answers.judged.size if answers else 0,
        "unjudged": int((~answers.judged).sum()) if answers else 0,
    }


def official_of_deterministic(
    records: Sequence[PolicyRecord], collections: Mapping[str, RagCollection]
) -> DataFrame:
    """Return the measures of each retriever's one ranking with each generator.

    Collections with a utility that LaMP lacks are left out. A deterministic ranking is the same
    under every seed, so each query counts once, by the first seed with an answer.

    Args:
        records: The records of all policies.
        collections: By name; they have the golds.

    Returns:
        By collection, generator and retriever: over how many ``answers`` they are, how many
        generations ``failed`` and are left out, and the measures of
        :func:`fairqr.evaluation.lamp.metrics.official_metrics` by name.
    """
    import pandas as pd

    keys = ("collection", "generator", "retriever")
    found: dict[tuple[str, ...], dict[str, PolicyRecord]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        utility = collections[record.collection].task.utility
        if record.policy == "deterministic" and record.answers and isinstance(utility, _LAMP):
            rows = found.setdefault(tuple(getattr(record, name) for name in keys), {})
            if record.query not in rows or not is_answer(rows[record.query].answers[0]):
                rows[record.query] = record
    return pd.DataFrame(
        [
            {**dict(zip(keys, key, strict=True)), **_official(collections[key[0]], rows)}
            for key, rows in found.items()
        ],
        columns=None if found else keys,
    )


def _official(collection: RagCollection, records: Mapping[str, PolicyRecord]) -> dict[str, Any]:
    answers, golds = [], []
    for query in collection.queries:
        record = records.get(query.id)
        if record is not None and is_answer(record.answers[0]):
            answers.append(record.answers[0].text)
            golds.append(query.golds[0])
    values = official_metrics(collection.task.utility, answers, golds)
    return {"answers": len(answers), "failed": len(records) - len(answers), **values}


@dataclass(frozen=True, slots=True)
class MeasuredRag(Measured):
    """The results of a Fair RAG experiment.

    Attributes:
        manifest: What it was run with.
        values: One row for each policy on each query and seed, in the order of the experiment:
            :data:`KEYS`, the ``kind`` of the policy, every measure by its name (NaN if it has no
            value), over how many things they are (see
            :class:`fairqr.evaluation.rag.measuring.Cell`), what they cost, and why there is
            nothing (``failure``).
        reasons: For each row, and each measure without a value, the reason.
        groups: The exposure of each group: :data:`KEYS`, ``attribute``, ``group``, the sums of
            :class:`fairqr.evaluation.rag.measures.GroupExposure`, and the ``rate`` of
            use.
        group_measures: Expected exposure by group, one row for each attribute; see
            :data:`OF_GROUPS`.
        labels: One row for each collection and generator: what its labels are like (see
            :class:`fairqr.evaluation.rag.labelling.LabelSummary`), and what they cost.
        official: LaMP's own measures of deterministic rankings; see
            :func:`fairqr.evaluation.rag.measuring.official_of_deterministic`.
        warnings: Sentences about missing results, for the report.
    """

    frame_names = ("values", "reasons", "means", "groups", "group_measures", "labels", "official")
    template = "fair_rag"
    report = "fairqr.evaluation.rag.report"

    manifest: RagManifest
    values: DataFrame
    reasons: DataFrame
    groups: DataFrame
    group_measures: DataFrame
    labels: DataFrame
    official: DataFrame
    warnings: tuple[str, ...] = ()

    @property
    def means(self) -> DataFrame:
        """The means of all measures, for each policy."""
        return means_of(self.values, POLICY, Name)

    @property
    def table(self) -> DataFrame:
        """The value of every measure of every policy on every query.

        If there is no value, the last column has the reason.
        """
        names = list(Name)
        found = self.values.melt(KEYS, names, "measure", "value", ignore_index=False)
        found["undefined"] = self.reasons.melt(None, names)["value"].to_numpy()
        return found.sort_index(kind="stable")


def policy_name(kind: Policy, alpha: float | None) -> str:
    """Return the name of a policy in tables, such as ``α = 4``."""
    return kind if alpha is None else f"α = {alpha:g}"


def measure_fair_rag(
    manifest: RagManifest,
    records: Sequence[PolicyRecord],
    labels: Mapping[LabelKey, Sequence[LabelRecord]],
    collections: Mapping[str, RagCollection],
) -> MeasuredRag:
    """Measure the results that an experiment has so far.

    Args:
        manifest: The settings of the run.
        records: One for each policy on each query, in any order.
        labels: By the names of the collection and the generator.
        collections: By name; for golds and the groups of documents.

    Raises:
        InputError: Nothing was drawn yet, or a record names a collection that is not there.
    """
    if not any(record.samples for record in records):
        raise InputError(
            "The experiment has no rankings yet, so there is nothing to measure; run it again, it "
            "goes on where it stopped, and look at how many queries its labels kept."
        )
    if strange := {record.collection for record in records} - set(collections):
        raise InputError(
            f"The experiment has results of the collection '{min(strange)}', which is not among "
            "those given; name the collections that it was run on."
        )
    bounds = UtilityBounds(records)
    memberships = _memberships(collections)
    ordered = sorted(records, key=_order(manifest, collections))
    cells = [
        measure_record(record, bounds, memberships(record.collection, record.query, record.pool))
        for record in ordered
    ]
    values, reasons = frame_of(cells)
    groups, group_measures = _groups_of(cells, collections, values)
    return MeasuredRag(
        manifest=manifest,
        values=values,
        reasons=reasons,
        groups=groups,
        group_measures=group_measures,
        labels=_labels_of(labels, manifest.experiment.min_useful),
        official=official_of_deterministic(ordered, collections),
        warnings=tuple(_without_labels(manifest, values, labels)),
    )


def frame_of(cells: Sequence[Cell]) -> tuple[DataFrame, DataFrame]:
    """Return the measures of these cells, and why some have no value.

    Keys are ordered categories: in the order of the cells, policies by α, and the oracle, which has
    no retriever, last.
    """
    import pandas as pd

    values = pd.DataFrame(
        {
            **_keys(record),
            "kind": record.policy,
            **{name: np.nan if isinstance(s, Undefined) else s for name, s in scores.items()},
            **counts,
            **{name: getattr(record, name) for name in COST},
            "failure": record.failure,
        }
        for record, scores, _, counts in cells
    )
    reasons = pd.DataFrame(
        {name: str(s.reason) if isinstance(s, Undefined) else None for name, s in scores.items()}
        for _, scores, _, _ in cells
    )
    policies = sorted(
        {(cell.record.policy, cell.record.alpha) for cell in cells},
        key=lambda policy: (_ORDER.index(policy[0]), policy[1] or 0.0),
    )
    for name in POLICY:
        found = sorted(values[name].unique(), key=lambda value: not value)
        if name == "policy":
            found = [policy_name(*policy) for policy in policies]
        values[name] = pd.Categorical(values[name], found, ordered=True)
    return values, reasons


def _keys(record: PolicyRecord) -> dict[str, object]:
    plain = {name: getattr(record, name) for name in KEYS}
    return plain | {"policy": policy_name(record.policy, record.alpha)}


def _groups_of(
    cells: Sequence[Cell], collections: Mapping[str, RagCollection], values: DataFrame
) -> tuple[DataFrame, DataFrame]:
    """Return the exposure of each group, and expected exposure by group, in the order of values."""
    import pandas as pd

    schemas = {name: found.schema for name, found in collections.items() if found.schema}
    rows, by_attribute = [], []
    for record, _, groups, _ in cells:
        for name, found in groups.items():
            keys = {**_keys(record), "attribute": name}
            by_attribute.append(
                {**keys, **{title: getattr(found, field) for title, field in OF_GROUPS.items()}}
            )
            rates = [np.nan if isinstance(rate, Undefined) else rate for rate in found.rates()]
            for place, group in enumerate(
                (*schemas[record.collection].attributes[name].groups, UNKNOWN)
            ):
                sums = {share: getattr(found, share)[place] for share in (*SHARES, "answered")}
                rows.append({**keys, "group": group, **sums, "rate": rates[place]})
    columns = [*KEYS, "attribute"]
    order = {name: values[name].dtype for name in POLICY}
    return (
        pd.DataFrame(rows, columns=None if rows else [*columns, "group"]).astype(order),
        pd.DataFrame(by_attribute, columns=None if by_attribute else columns).astype(order),
    )


def _labels_of(labels: Mapping[LabelKey, Sequence[LabelRecord]], min_useful: int) -> DataFrame:
    import pandas as pd

    found = pd.DataFrame(
        {
            "collection": collection,
            "generator": generator,
            **asdict(summarise_labels(own, min_useful)),
            "failures": sum((Counter(label.failures) for label in own), Counter[str]()),
            **{name: sum(getattr(label, name) for label in own) for name in COST},
        }
        for (collection, generator), own in labels.items()
    )
    return found.astype(dict.fromkeys(("useful_mean", "useful_sd", "share"), float))


def means_of(found: DataFrame, keys: Sequence[str], names: Iterable[str]) -> DataFrame:
    """Return the means over queries of measures, for each combination of keys.

    Args:
        found: Rows with a ``query``, of one collection unless that is among the keys.
        keys: The columns to group by.
        names: The measures.

    Returns:
        The keys, ``measure``, ``mean``, the ends ``low`` and ``high`` of its 95% interval, and over
        how many ``queries`` it is. Missing values are NaN.
    """
    import pandas as pd

    keys, names = list(keys), list(names)
    by_query = found.groupby([*keys, "query"], observed=True)[names].mean().reset_index()
    rows = [
        (*key, name, *mean_with_ends(own[name]))
        for key, own in by_query.groupby(keys, observed=True)
        for name in names
    ]
    columns = [*keys, "measure", "mean", "low", "high", "queries"]
    means = pd.DataFrame(rows, columns=columns)
    return means.astype({name: found[name].dtype for name in keys})


def group_shares(groups: DataFrame) -> DataFrame:
    """Return the shares of each group, as means over the queries that have them.

    Args:
        groups: The exposure of each group, of one attribute of one collection.

    Returns:
        By generator, retriever, policy and ``group``: its share of ``exposure``, of the ``target``,
        of the ``useful_exposure``, and of the use (``attributed``), and its attribution
        ``rate``; and over how many ``queries`` they are, ``useful_queries`` and ``used_queries``.
    """
    keys = POLICY[1:]
    sums = groups.groupby([*keys, "query", "group"], observed=True)[[*SHARES, "rate"]].mean()
    totals = sums[SHARES].groupby(level=[*keys, "query"], observed=True).transform("sum")
    sums[SHARES] = sums[SHARES] / totals.where(totals > 0)
    by_group = sums.groupby(level=[*keys, "group"], observed=True)
    names = {
        "exposure": "queries",
        "useful_exposure": "useful_queries",
        "attributed": "used_queries",
    }
    counts = by_group[list(names)].count().rename(columns=names)
    return by_group.mean().join(counts).reset_index()


def counts_of(values: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the counts behind the values of each policy, and their whole cost.

    ``rows`` are queries and seeds, ``undrawn`` those without any ranking; the others are the sums
    of their columns, ``failed`` by status.
    """
    numbers = ["drawn", "generated", "distinct", "empty", "pairs", "unjudged", *COST]
    by_policy = values.assign(undrawn=values.drawn == 0).groupby(list(keys), observed=True)
    found = by_policy[["undrawn", *numbers]].sum()
    found["rows"] = by_policy.size()
    found["failed"] = by_policy["failed"].agg(lambda own: sum(own, Counter()))
    return found.reset_index()


def _order(
    manifest: RagManifest, collections: Mapping[str, RagCollection]
) -> Callable[[PolicyRecord], tuple[object, ...]]:
    """Return the key that sorts records in the order of the experiment."""
    experiment = manifest.experiment
    collection = _places(entry.name for entry in manifest.collections)
    generator, retriever = _places(experiment.generators), _places(experiment.retrievers)
    query = {
        name: _places(query.id for query in found.queries) for name, found in collections.items()
    }
    return lambda record: (
        collection(record.collection),
        generator(record.generator),
        retriever(record.retriever),
        record.policy,
        record.alpha or 0.0,
        query[record.collection](record.query),
        record.seed,
    )


def _places(names: Iterable[str]) -> Callable[[str], tuple[int, str]]:
    """Return a function that gives the place of a name; unknown names come last."""
    places = {name: place for place, name in enumerate(names)}
    return lambda name: (places.get(name, len(places)), name)


def _memberships(
    collections: Mapping[str, RagCollection],
) -> Callable[[str, str, tuple[str, ...]], dict[str, FloatArray]]:
    """Return a function that gives the memberships of a query's pool, each read once."""
    pools = {
        (name, query.id): {document.id: document.groups for document in query.pool}
        for name, found in collections.items()
        if found.schema is not None
        for query in found.queries
    }

    @cache
    def of(collection: str, query: str, pool: tuple[str, ...]) -> dict[str, FloatArray]:
        schema = collections[collection].schema
        if schema is None:
            return {}
        groups = [pools.get((collection, query), {}).get(id_, {}) for id_ in pool]
        return {
            name: memberships_of(attribute, groups) for name, attribute in schema.attributes.items()
        }

    return of


def _without_labels(
    manifest: RagManifest,
    values: DataFrame,
    labels: Mapping[LabelKey, Sequence[LabelRecord]],
) -> Iterator[str]:
    """Yield a sentence for each part whose rankings were made with labels that are gone."""
    titles = {entry.name: entry.title for entry in manifest.collections}
    for key, own in values.groupby(["collection", "generator"], observed=True):
        drawn = set(own["query"])
        if gone := drawn - {label.query for label in labels.get(key, ())}:
            yield (
                f"{titles[key[0]]}, {key[1]}: the labels of {len(gone)} of {len(drawn)} queries "
                "that were ranked are gone, so the part on labels is not about this run; restore "
                "the folder labels/, or run the experiment again."
            )
