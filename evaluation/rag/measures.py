"""Measures of Fair RAG: who is exposed, what answers are worth, and what they used.

"Towards Fair RAG" (Kim & Diaz 2024), on the expected exposure of Diaz et al. (2020). A query has a
pool of n documents, m of them useful. N rankings are sampled; the generator reads the first k of
each, all alike (the machine user: MU(r) = 1 up to k, else 0). With another browsing model, MU(r) is
its discount up to k, and k is Σ MU(r)² in the names EE-D/k and EAE-D/k.

* ε_i = (1/N) Σ_s MU(rank of i in s): what document i is exposed. Sums to min(k, n).
* ε^a_i = (1/N) Σ_s MU(rank of i in s)·a(i, ŷ_s), the attributed exposure: how often document i was
  read and used (reconstructed). a(i, ŷ) = 1 if answer ŷ used document i, as an attributor says; a
  document without a verdict counts as not used. Sums to k·EAR where every verdict is known, and is
  never above ε of the same rankings.

A value is of one query, and a number or a typed reason. A mean is always over queries: several
seeds of a policy on a query are averaged first, and so are generators and retrievers where a table
joins them. A query without a value is left out, and every mean says over how many queries it is.

Two conventions go by name; see :meth:`fairqr.evaluation.expected_exposure.ExpectedExposure.score`.
``bounds``, the default, is right: (value − least)/(greatest − least) of what rankings of the query
can reach. ``fair-rag`` gives the numbers of the paper and its code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fairqr.agents.statistics import corrected_by_holm, paired_randomisation, stream
from fairqr.base.errors import InputError
from fairqr.evaluation.collections.labels import with_unknown
from fairqr.evaluation.estimates import means_by
from fairqr.evaluation.expected_exposure import expected_exposure, target_exposure
from fairqr.evaluation.experiments.catalogue import Measured
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.specification import Policy
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord, RagManifest
from fairqr.evaluation.scores import Reason, Score
from fairqr.retrieval.fairness.best_ranking import highest_exposure
from fairqr.retrieval.fairness.exposure import Discount, FloatArray, item_exposure, normalise
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute

if TYPE_CHECKING:
    from pandas import DataFrame


class Name(StrEnum):
    """A measure of one policy on one query.

    ``EE-R, graded`` and ``EE-L, graded`` hold exposure against :func:`graded_target`, by what can
    be reached. ``exposure of not useful`` and ``use of not useful`` are shares in [0, 1] of ε and
    of ε^a; low is better. ``EU`` (eq. 7) is the mean utility of the answers, each as often as its
    ranking was drawn; ``EU/u_max`` divides it by the greatest utility of an answer, see
    :func:`greatest_utilities`. ``EAR`` (eq. 9) is the mean over samples of the share of the
    documents read that were used, among those with a verdict. ``EAE-D/k`` = Σ (ε^a)²/k (eq. 11,
    reconstructed) is on one scale with EE-D/k of the answered samples; ``EAE-D/(k·EAR)`` = Σ (ε^a)²
    / Σ ε^a is in (0, 1], and 1 where the same documents are used always. ``EAE-D/k, same norm`` is
    our reading of the paper's equations 10 and 11 by its footnote 6, which says that both exposure
    vectors have the same norm: ε^a is scaled to sum to k first. It has the range of EE-D/k below 1,
    equals it where documents are used in proportion to their exposure, is above it where use is
    more concentrated, and is at most k.
    """

    EE_D = "EE-D"
    EE_D_K = "EE-D/k"
    EE_D_UNBIASED = "EE-D, unbiased"
    EE_R = "EE-R"
    EE_R_FAIR_RAG = "EE-R, fair-rag"
    EE_L = "EE-L"
    EE_R_GRADED = "EE-R, graded"
    EE_L_GRADED = "EE-L, graded"
    NOT_USEFUL = "exposure of not useful"
    EU = "EU"
    EU_MAX = "EU/u_max"
    EU_MAX_RETRIEVER = "EU/u_max, retriever"
    EU_MAX_FAIR_RAG = "EU/u_max, fair-rag"
    EAR = "EAR"
    EE_D_K_ANSWERED = "EE-D/k, answered"
    EAE_D_K = "EAE-D/k"
    SHARE = "EAE-D/(k·EAR)"
    EAE_D_NORMED = "EAE-D/k, same norm"
    USED_NOT_USEFUL = "use of not useful"


KINDS = OF_RANKINGS, OF_ANSWERS, OF_USE = [*Name][:9], [*Name][9:13], [*Name][13:]
"""The measures of rankings, of the worth of answers, and of the documents that answers used."""

GRADED = Name.EE_R_GRADED, Name.EE_L_GRADED

GROUP_SUMS = ("exposure", "target", "useful_exposure", "attributed", "answered")
"""What is summed over the documents of a group: ε; ε*, what they get if useful documents come
first; the exposure of useful documents; ε^a; and ε over the answered samples."""

AIM = "aim"
"""What group-aware samples aim at; see :func:`aim_of`."""

PART = ["collection", "generator"]
POLICY = [*PART, "retriever", "policy"]
KEYS = [*POLICY, "seed", "query"]
"""The columns that identify a row. The oracle has no retriever."""

COST = ("model_calls", "tokens", "milliseconds")
COUNTED = ("documents", "unlabelled", "useful")
SIZES = ("documents_mean", "documents_sd", "useful_mean", "useful_sd", "share_mean")
LABELLED = ("labelled", "kept", *COUNTED, *SIZES)
OF_GROUPS = ["EE-D by group", "EE-R by group", "EE-L by group", "EAE-D by group"]
"""Σ ε², Σ ε·ε*, Σ (ε − ε*)² and Σ (ε^a)² over the known groups, in squared documents. The low end
of EE-D is even between groups, whatever their sizes; EE-L of 0 is fair: groups get their target."""

SHARES = [*GROUP_SUMS[:4], AIM]

LEVEL = 0.05
"""A difference holds if its corrected p value is at most this."""

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The ends of the intervals of normalised EE-D; each includes its lower end."""

FIXED = 1e-9
"""A normalised EE-D that is nearer to 1 than this belongs to a fixed ranking."""

CONVENTIONS = {
    "bounds": (Name.EE_D, Name.EE_R, Name.EU_MAX),
    "fair-rag": (Name.EE_D_K, Name.EE_R_FAIR_RAG, Name.EU_MAX_FAIR_RAG),
}
"""Disparity, relevance and utility, normalised by what can be reached, and as the paper does."""

Greatest = Mapping[tuple[str, ...], float]


def graded_target(gains: ArrayLike, k: int) -> FloatArray:
    """Return the exposure of each document in proportion to its gain, shape (n,), each in [0, 1].

    Where useful documents differ in worth, so should what they are exposed. No document gets more
    than 1: what is left is for the others, and for those without a gain, evenly, once all others
    have 1. So it sums to min(k, n), and is ε* if all useful documents gain the same.

    Args:
        gains: Shape (n,), in units of utility; what is not above 0, or unknown, counts as 0.
        k: How many documents the generator reads.
    """
    worth = np.nan_to_num(np.maximum(np.asarray(gains, dtype=np.float64), 0.0))
    places, whole = float(min(k, len(worth))), np.ones(len(worth))
    target = _divided(places, worth, whole)
    return target + _divided(max(0.0, places - target.sum()), (worth == 0) * whole, whole)


def _divided(places: float, worth: FloatArray, most: FloatArray) -> FloatArray:
    """Divide places in proportion to worth; what would exceed a part's most is for the others."""
    given, open_ = np.zeros(len(worth)), worth > 0
    while open_.any():
        given[open_] = places * worth[open_] / worth[open_].sum()
        if not (above := open_ & (given > most)).any():
            break
        given[above] = most[above]
        places, open_ = places - most[above].sum(), open_ & ~above
    return given


def aim_of(attribute: Attribute, members: FloatArray, k: int) -> FloatArray:
    """Return the exposure of each group that group-aware samples aim at, shape (G,).

    That is k times its share, see :func:`shares_of`, as far as its documents in the pool reach; the
    other groups divide the rest as they divide the whole.

    Args:
        attribute: The groups.
        members: The memberships of the documents of the pool, shape (n, G).
        k: How many documents the generator reads.
    """
    most = highest_exposure(members, Discount("top_k", k), k) * min(k, len(members))
    return _divided(float(min(k, members.sum())), shares_of(attribute, members) * (most > 0), most)


def shares_of(attribute: Attribute, members: FloatArray) -> FloatArray:
    """Return each group's share of the population, or of a pool if none is stated, shape (G,)."""
    stated = attribute.population
    shares = [stated.get(it, 0.0) for it in attribute.groups] if stated else members.sum(axis=0)
    return np.asarray(normalise(shares), dtype=np.float64)


def graded_scores(exposure: FloatArray, gains: FloatArray, k: int) -> dict[str, Score]:
    """Return Σ ε·t and Σ (ε − t)² against the graded target t, by what rankings can reach.

    Both ends of the first, and the greatest of the second, are fixed rankings: with the k documents
    of the greatest t, or of the least. The least loss is 0.
    """
    if not (gains > 0).any():
        return dict.fromkeys(GRADED, Reason.NO_RELEVANT)
    target = graded_target(gains, k)
    places, by_target = min(k, len(target)), np.sort(target)
    least, greatest = by_target[:places].sum(), by_target[len(target) - places :].sum()
    if greatest - least < FIXED:
        return dict.fromkeys(GRADED, Reason.NO_ROOM)
    loss = float(np.sum((exposure - target) ** 2))
    return {
        Name.EE_R_GRADED: float((exposure @ target - least) / (greatest - least)),
        Name.EE_L_GRADED: loss / float(places - 2 * least + target @ target),
    }


def greatest_utilities(records: Iterable[PolicyRecord]) -> Greatest:
    """Return u_max (App. C.3), empirical: the more rankings were answered, the higher it is.

    Returns:
        By collection, generator and query, as the paper's text has it: the greatest utility over
        the oracle, every α, every retriever and the deterministic rankings. By these and the
        retriever, as the paper's code has it: over every α of that retriever; the oracle's
        retriever is empty, and its answers count for each of them.
    """
    greatest: dict[tuple[str, ...], float] = {}
    for record in records:
        query = (record.collection, record.generator, record.query)
        best = max((it.utility for it in record.answers if it.utility is not None), default=-1.0)
        for key in [query, (*query, record.retriever)][: 1 + (record.policy != "deterministic")]:
            greatest[key] = max(best, greatest.get(key, best))
    return greatest


def measure_record(
    record: PolicyRecord, greatest: Greatest, gains: FloatArray, reader: Discount | None = None
) -> tuple[dict[str, Any], FloatArray]:
    """Measure one policy on one query.

    Args:
        record: What was drawn and generated; failed generations are left out of everything that
            needs answers.
        greatest: See :func:`greatest_utilities`.
        gains: The gains of each document of the pool, shape (n,); see
            :attr:`fairqr.evaluation.rag.store.PolicyRecord.gains`.
        reader: MU, beyond k always 0; by default all k documents are read alike.

    Returns:
        The measures by name, and over how many things they are: rankings ``drawn``; ``distinct``
        ones among those that were ``generated`` from; of the generations, how many ``failed``, by
        status, and how many gave an answer that is ``empty``, which counts; ``pairs`` of a document
        and a distinct answer, and those that are ``unjudged``. And of each document the values of
        :data:`GROUP_SUMS`, shape (5, n); of none if nothing was drawn.
    """
    n, k = len(record.pool), record.k
    answers = [it for it in record.answers if it.utility is not None]
    times = np.array([answer.times for answer in answers])
    verdicts = np.array([_verdicts(answer) for answer in answers], dtype=np.float64)
    generated = [it for it in record.answers for _ in range(it.times)]
    counts: dict[str, Any] = {
        "drawn": len(record.samples),
        "distinct": len(record.answers),
        "generated": len(generated),
        "failed": Counter(it.status for it in generated if it.utility is None),
        "empty": sum(it.status == "empty" for it in generated),
        "pairs": verdicts.size,
        "unjudged": int(np.isnan(verdicts).sum()),
    }
    if not record.samples:
        return dict.fromkeys(Name, Reason.MISSING) | counts, np.empty((len(GROUP_SUMS), 0))
    useful = np.isin(np.arange(n), record.useful)
    discount = Discount("top_k", k) if reader is None else reader
    attention = discount.weights(min(n, k))
    found = expected_exposure(record.samples, useful, discount, k)
    shown = used = np.zeros(n)
    exposure = item_exposure(record.samples, n, gained=attention)
    target = np.where(useful, *target_exposure(n, int(useful.sum()), discount, k))
    values: dict[str, Any] = {
        Name.EE_D: found.score("disparity"),
        Name.EE_D_K: found.score("disparity", "fair-rag"),
        # A fixed ranking is known whole: there is nothing to correct.
        Name.EE_D_UNBIASED: found.score("disparity", unbiased=record.policy != "deterministic"),
        Name.EE_R: found.score("relevance"),
        Name.EE_R_FAIR_RAG: found.score("relevance", "fair-rag"),
        # As for EE-R: where every ranking is as relevant, none can be nearer to the target.
        Name.EE_L: found.without_room("relevance") or found.score("loss"),
        **(
            graded_scores(exposure, gains, k)
            if discount.kind == "top_k"
            else dict.fromkeys(GRADED, Reason.OTHER_READER)
        ),
        Name.NOT_USEFUL: _ratio(float(exposure[~useful].sum()), float(exposure.sum())),
        **dict.fromkeys((*OF_ANSWERS, *OF_USE), Reason.NO_ANSWER),
    }
    if answers:
        rankings = [answer.ranking for answer in answers]
        shown = item_exposure(rankings, n, times, attention)
        used = item_exposure(rankings, n, times, attention * np.nan_to_num(verdicts))
        expected = float(times @ np.array([it.utility for it in answers]) / times.sum())
        values |= _of_utility(record, expected, greatest)
        values |= _of_use(verdicts, times, shown, used, useful, attention)
    return values | counts, np.array([exposure, target, exposure * useful, used, shown])


def _verdicts(answer: AnswerRecord) -> list[float]:
    """Return 1 for each document that was used, 0 for the others, and NaN without a verdict."""
    if not answer.used:
        return [np.nan] * len(answer.ranking)
    # An empty answer used nothing, which needs no verdict.
    is_empty = answer.status == "empty"
    return [0.0 if is_empty else np.nan if used is None else used for used in answer.used]


def _ratio(part: float, whole: float, nothing: Reason = Reason.NO_ATTRIBUTION) -> Score:
    return part / whole if whole > 0 else nothing


def _of_utility(record: PolicyRecord, expected: float, greatest: Greatest) -> dict[str, Score]:
    query = (record.collection, record.generator, record.query)
    best = max(greatest.get((*query, name), -1.0) for name in ("", record.retriever))
    own = _ratio(expected, best, Reason.NO_ANSWER if best < 0 else Reason.NO_UTILITY)
    return {
        Name.EU: expected,
        Name.EU_MAX: _ratio(expected, greatest[query], Reason.NO_UTILITY),
        Name.EU_MAX_RETRIEVER: own,
        # If no answer is worth anything, the paper's code calls each of them perfect.
        Name.EU_MAX_FAIR_RAG: 1.0 if best == 0 else own,
    }


def _of_use(
    verdicts: FloatArray,
    times: Any,
    shown: FloatArray,
    used: FloatArray,
    useful: Any,
    attention: FloatArray,
) -> dict[str, Score]:
    """Return the measures of use, given the exposures of what was shown and of what was used."""
    judged = (~np.isnan(verdicts)).sum(axis=1)
    weights = np.where(judged > 0, times, 0.0)
    if not weights.any():
        return dict.fromkeys(OF_USE, Reason.NO_VERDICT)
    rates = np.nansum(verdicts, axis=1) / np.maximum(judged, 1)
    total = float(used.sum())
    squares = float(used @ used)
    # All attention that there is, and the disparity of one fixed ranking: both k where all are read
    # alike.
    whole = float(attention.sum())
    of_fixed = float(attention @ attention)
    return {
        Name.EAR: float(weights @ rates / weights.sum()),
        Name.EE_D_K_ANSWERED: float(shown @ shown) / of_fixed,
        Name.EAE_D_K: squares / of_fixed,
        Name.SHARE: _ratio(squares * whole, total * of_fixed),
        Name.EAE_D_NORMED: _ratio(squares * whole**2, total**2 * of_fixed),
        Name.USED_NOT_USEFUL: _ratio(float(used[~useful].sum()), total),
    }


def memberships_of(
    attribute: Attribute, documents: Sequence[Mapping[str, Mapping[str, float]]]
) -> FloatArray:
    """Return the share of each group in each document, the unknown last, shape (n, G + 1).

    Each row sums to 1.

    Args:
        attribute: One of the collection's schema.
        documents: The groups of each document by attribute.
    """
    found = [groups.get(attribute.name, {}) for groups in documents]
    known = [[groups.get(name, 0.0) for name in attribute.groups] for groups in found]
    return with_unknown(known)


@dataclass(frozen=True, slots=True)
class MeasuredRag(Measured):
    """The results of a Fair RAG experiment.

    Attributes:
        manifest: What it was run with.
        collections: By name, in the order of the experiment.
        values: One row for each policy on each query and seed, in the order of the experiment:
            :data:`KEYS`, the ``kind`` of the policy, every measure by its name (NaN if it has no
            value), over how many things they are (see
            :func:`measure_record`), what they cost, and why there is
            nothing (``failure``).
        reasons: For each row, and each measure without a value, the reason.
        groups: The exposure of each group: :data:`KEYS`, ``attribute``, ``group``, the sums of
            :data:`GROUP_SUMS`, the :data:`AIM` if there are group-aware samples, and the ``rate``
            of use.
        labels: One row for each collection and generator; see :func:`labels_of`.
    """

    frame_names = ("values", "reasons", "means", "groups", "group_measures", "labels")
    template = "fair_rag"
    report = "fairqr.evaluation.rag.report"

    manifest: RagManifest
    collections: Mapping[str, RagCollection]
    values: DataFrame
    reasons: DataFrame
    groups: DataFrame
    labels: DataFrame

    @property
    def means(self) -> DataFrame:
        """The means of all measures, for each policy."""
        return means_of(self.values, POLICY, Name)

    @property
    def group_measures(self) -> DataFrame:
        """Expected exposure by group, one row for each attribute; see :data:`OF_GROUPS`."""
        known = self.groups[self.groups.group != UNKNOWN]
        shown, target, used = known.exposure, known.target, known.attributed
        products = (shown**2, shown * target, (shown - target) ** 2, used**2)
        found = known.assign(**dict(zip(OF_GROUPS, products, strict=True)))
        by_row = found.groupby([*KEYS, "attribute"], observed=True, sort=False)
        return by_row[OF_GROUPS].sum().reset_index()

    @property
    def table(self) -> DataFrame:
        """The value of every measure of every policy on every query.

        If there is no value, the last column has the reason. At the end stand the shares of groups
        that there are, such as ``exposure, gender: female``; of all queries the differences of
        :func:`intervals_of`, slope and area of :func:`curves_of`, and under the policy ``labels``
        the counts of :func:`labels_of`.
        """
        import pandas as pd

        found = self.values.melt(KEYS, [*Name], "measure", "value", ignore_index=False)
        found["undefined"] = self.reasons.melt(None, [*Name])["value"].to_numpy()
        of_groups = _in_shares(self.groups, [*KEYS, "attribute"])
        of_groups = of_groups.melt([*KEYS, "attribute", "group"], SHARES, "measure").dropna()
        names = of_groups.measure + ", " + of_groups.attribute + ": " + of_groups.group
        of_groups = of_groups.assign(measure=names)[[*KEYS, "measure", "value"]]
        cells = intervals_of(self.values, Name.EE_D, Name.EU_MAX)
        cells["policy"] = [f"EE-D from {EDGES[it]:g}" for it in cells.get("interval", ())]
        cells["measure"] = "EU/u_max less the one ranking's"
        by_collection = self.values.groupby("collection", observed=True)
        curves = pd.concat(curves_of(own).assign(collection=it) for it, own in by_collection)
        curves = curves.rename(columns={"normalisation": "policy"})
        curves = curves.melt(["collection", "retriever", "policy"], ["slope", "area"], "measure")
        labels = self.labels.melt(PART, LABELLED, "measure").assign(policy="labels")
        of_all = [cells.rename(columns={"difference": "value"}), curves, labels]
        every = (found.sort_index(kind="stable"), of_groups, *of_all)
        columns = [*KEYS, "measure", "value", "undefined"]
        kept = [it.reindex(columns=columns) for it in every if len(it)]
        return pd.concat(kept, ignore_index=True).dropna(subset=["value", "undefined"], how="all")


def policy_name(kind: Policy, alpha: float | None) -> str:
    """Return the name of a policy in tables, such as ``α = 4``."""
    by_group = ", by group" if kind == "group-aware" else ""
    return kind if alpha is None else f"α = {alpha:g}{by_group}"


def measure_fair_rag(
    manifest: RagManifest, records: Iterable[PolicyRecord], collections: Mapping[str, RagCollection]
) -> MeasuredRag:
    """Measure the results that an experiment has so far.

    Args:
        manifest: The settings of the run.
        records: One for each policy on each query, in any order, labels among them.
        collections: By name; for golds and the groups of documents.

    Raises:
        InputError: Nothing was drawn yet.
    """
    experiment = manifest.experiment
    queries = {(name, it.id): it for name, own in collections.items() for it in own.queries}
    places = {key: place for place, key in enumerate(queries)}
    records = sorted(records, key=lambda it: (places[it.collection, it.query], it.seed))
    labels = [record for record in records if record.policy == "labels"]
    drawn = [record for record in records if record.policy != "labels"]
    if not any(record.samples for record in drawn):
        raise InputError("The experiment has no rankings yet; its labels may keep no query.")
    greatest = greatest_utilities(drawn)
    gains = {(*(getattr(it, name) for name in PART), it.query): it.gains for it in labels}
    rows, groups = list[dict[str, Any]](), list[dict[str, Any]]()
    for record in drawn:
        keys = {name: getattr(record, name) for name in KEYS}
        key = record.collection, record.generator, record.query
        of_query = gains.get(key, np.empty(0))
        found, documents = measure_record(record, greatest, of_query, experiment.reader)
        keys["policy"] = policy_name(record.policy, record.alpha)
        cost = {name: getattr(record, name) for name in (*COST, "failure")}
        rows.append({**keys, "kind": record.policy, **found, **cost})
        schema = collections[record.collection].schema
        pool = [it.groups for it in queries[record.collection, record.query].pool]
        for name, attribute in schema.attributes.items() if schema and documents.size else ():
            members = memberships_of(attribute, pool)
            is_aim = name == experiment.group_aware
            aim = aim_of(attribute, members[:, :-1], record.k) if is_aim else np.empty(0)
            sums = (documents @ members).T
            for place, group in enumerate((*attribute.groups, UNKNOWN)):
                named = dict(zip(GROUP_SUMS, sums[place].tolist(), strict=True))
                named[AIM] = aim[place] if place < len(aim) else np.nan
                groups.append({**keys, "attribute": name, "group": group, **named})
    alphas, kinds = sorted(experiment.alphas), experiment.random
    random = [policy_name(kind, alpha) for kind in kinds for alpha in alphas]
    order = {
        "collection": [*collections],
        "generator": [*experiment.labellers],
        "retriever": [*experiment.retrievers, ""],
        "policy": [*random, "deterministic", "oracle"],
    }
    values = _in_order(rows, order)
    reasons = values[[*Name]].map(lambda it: str(it) if isinstance(it, Reason) else None)
    values[[*Name]] = values[[*Name]].where(reasons.isna()).astype(float)
    of_groups = _in_order(groups, order, *KEYS, "attribute", "group", *GROUP_SUMS, AIM)
    read = of_groups.answered.where(of_groups.answered > 0)
    return MeasuredRag(
        manifest=manifest,
        collections=collections,
        values=values,
        reasons=reasons,
        groups=of_groups.assign(rate=(of_groups.attributed / read).clip(upper=1)),
        labels=labels_of(labels, experiment.min_useful),
    )


def _in_order(
    rows: Sequence[Mapping[str, Any]], order: Mapping[str, Sequence[str]], *columns: str
) -> DataFrame:
    """Return rows in the order of names, which are ordered categories."""
    import pandas as pd

    found = pd.DataFrame(rows, columns=columns or None)
    kinds = {name: pd.CategoricalDtype(names, ordered=True) for name, names in order.items()}
    return found.astype(kinds).sort_values([*order], kind="stable", ignore_index=True)


def labels_of(labels: Iterable[PolicyRecord], min_useful: int) -> DataFrame:
    """Describe labels, as in Appendix D of the Fair RAG paper.

    Returns:
        By collection and generator how many queries are ``labelled``; how many of them are
        ``kept``, since they have enough useful documents, and of these how many ``documents`` their
        pools hold together, how many are ``unlabelled``, since the generator failed, how many are
        ``useful``, and ``documents_mean`` and ``useful_mean`` per query with their sample standard
        deviations, and ``share_mean``, the mean over queries of the share that is useful; why
        queries were ``dropped``, with how many; and what they cost.
    """
    import pandas as pd

    rows = []
    for label in labels:
        why = label.why_dropped(min_useful)
        unlabelled = sum(answer.utility is None for answer in label.answers)
        sizes = [np.nan] * 3 if why else [len(label.pool), unlabelled, len(label.useful)]
        rows.append([*(getattr(label, name) for name in (*PART, *COST)), why, *sizes])
    found = pd.DataFrame(rows, columns=[*PART, *COST, "why", *COUNTED])
    found = found.astype(dict.fromkeys((*COST, *COUNTED), float))
    found["share"] = found.useful / found.documents
    by_part = found.groupby(PART, sort=False)
    sums = by_part[[*COST, *COUNTED]].sum().astype(dict.fromkeys(COUNTED, int))
    return sums.assign(
        labelled=by_part.size(),
        kept=by_part.useful.count(),
        dropped=by_part.why.agg(lambda own: Counter(filter(None, own))),
        documents_mean=by_part.documents.mean(),
        documents_sd=by_part.documents.std(),
        share_mean=by_part.share.mean(),
        useful_mean=by_part.useful.mean(),
        useful_sd=by_part.useful.std(),
    ).reset_index()


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
    by_query = found.groupby([*keys, "query"], observed=True)[list(names)].mean()
    by_key = by_query.droplevel("query").rename_axis(columns="measure").stack(future_stack=True)
    means = means_by(by_key, "queries").reset_index()
    return means.astype({name: found[name].dtype for name in keys})


def group_shares(groups: DataFrame) -> DataFrame:
    """Return the shares of each group, as means over the queries that have them.

    Args:
        groups: The exposure of each group, of one attribute of one collection.

    Returns:
        By generator, retriever, policy and ``group``: its share of ``exposure``, of the ``target``,
        of the ``useful_exposure``, of the use (``attributed``), and of the ``aim`` of group-aware
        samples, and its attribution ``rate``; and over how many ``queries`` they are,
        ``useful_queries`` and ``used_queries``.
    """
    keys = POLICY[1:]
    sums = groups.groupby([*keys, "query", "group"], observed=True)[[*SHARES, "rate"]].mean()
    shares = _in_shares(sums.reset_index(), [*keys, "query"]).drop(columns="query")
    by_group = shares.groupby([*keys, "group"], observed=True)
    counts = by_group[["exposure", "useful_exposure", "attributed"]].count()
    names = ["queries", "useful_queries", "used_queries"]
    return by_group.mean().join(counts.set_axis(names, axis=1)).reset_index()


def _in_shares(groups: DataFrame, keys: list[str]) -> DataFrame:
    """Return the exposure of groups as shares of what all groups of the same keys have."""
    totals = groups.groupby(keys, observed=True)[SHARES].transform("sum")
    return groups.assign(**(groups[SHARES] / totals.where(totals > 0)))


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


def points_of(values: DataFrame, keys: Sequence[str], x: Name, y: Name) -> DataFrame:
    """Return the means of two measures, as ``x`` and ``y``, over the queries that have both.

    Args:
        values: The rows of one collection.
        keys: The columns to group by.
        x: One measure.
        y: The other one.
    """
    by_query = values.groupby([*keys, "query"], observed=True)[[x, y]].mean().dropna()
    found = by_query.groupby(level=list(keys), observed=True).mean()
    return found.set_axis(["x", "y"], axis=1).reset_index()


def curves_of(values: DataFrame) -> DataFrame:
    """Return EE-R as a function of EE-D over the policies of each retriever.

    Args:
        values: The rows of one collection.

    Returns:
        By ``retriever`` and ``normalisation``, what :func:`curve_of` returns.
    """
    import pandas as pd

    lines = values[values.kind != "oracle"].groupby("retriever", observed=True)
    return pd.DataFrame(
        {"retriever": it, "normalisation": name} | curve_of(points_of(own, ["policy"], x, y))
        for it, own in lines
        for name, (x, y, _) in CONVENTIONS.items()
    )


def curve_of(points: DataFrame) -> dict[str, float]:
    """Return slope and area of points (``x``, ``y``), as in Table 1 of "Towards Fair RAG".

    Points with the same x are averaged for the area. The paper says neither over which range its
    areas are nor how its lines are fitted (reconstructed).

    Returns:
        The ``slope`` of the least-squares line, the ``area`` under the points joined in order of x
        (trapezoids), over the range from ``low`` to ``high`` that there is, the ``height``, which
        is the area by the width of that range, and the number of ``points``. Areas over different
        ranges cannot be compared, heights can. NaN if all x are the same, or there are no points.
    """
    heights = points.groupby("x").y.mean()
    low, high, slope, area = heights.index.min(), heights.index.max(), np.nan, np.nan
    if high - low > FIXED:
        spread = np.cov(points.x, points.y, bias=True)
        slope = spread[0, 1] / spread[0, 0]
        area = float(np.trapezoid(heights, heights.index))
    ends = {"low": low, "high": high, "points": len(points)}
    return {"slope": slope, "area": area, "height": area / (high - low), **ends}


def intervals_of(values: DataFrame, disparity: Name, utility: Name) -> DataFrame:
    """Return the five-interval table (Table 2 of "Towards Fair RAG").

    Random rankings are compared with the deterministic one, by how uneven their exposure is. The
    pairs of one query, its policies and seeds in an interval, are averaged first, since they are
    not independent.

    Args:
        values: All policies.
        disparity: Which normalisation of EE-D to use.
        utility: Which utility to compare.

    Returns:
        By ``collection``, ``generator``, ``retriever`` and ``interval`` of :data:`EDGES` the tests
        of the utility less the deterministic ranking's, and the number of ``pairs``; and, the same
        for all intervals, the ``deterministic`` utility and over how many
        ``deterministic_queries`` it is; how many pairs are ``fixed``: all their rankings were the
        same, so that EE-D is 1; and how many are ``left_out``: without EE-D, without utility, or
        without the deterministic ranking's.
    """
    import pandas as pd

    keys, rows, cells = POLICY[:3], list[dict[str, Any]](), len(EDGES) - 1
    for key, own in values[values.kind != "oracle"].groupby(keys, observed=True):
        fixed = own[own.kind == "deterministic"].groupby("query")[utility].mean().dropna()
        pairs = own[own.kind == "plackett-luce"]
        less = pairs[utility] - pairs["query"].map(fixed).astype(float)
        known = less.notna() & pairs[disparity].notna()
        is_one = known & (pairs[disparity] >= 1 - FIXED)
        whole = dict(zip(keys, key, strict=True)) | {
            "deterministic": fixed.mean(),
            "deterministic_queries": len(fixed),
            "fixed": is_one.sum(),
            "left_out": (~known).sum(),
        }
        # Rounding can leave −1e−17 for a uniform policy.
        places = np.floor(pairs[disparity].round(12) * cells).clip(0, cells - 1)
        for place in range(cells):
            inside = less[known & ~is_one & (places == place)]
            sample = inside.groupby(pairs["query"]).mean()
            found = {"interval": place, "difference": sample.mean(), "queries": len(sample)}
            # Rounding alone makes no difference.
            cleaned = np.where(np.abs(sample) > FIXED, sample, 0.0)
            chance = stream(0, "\n".join(map(str, [*key, place])))
            p = paired_randomisation(cleaned, chance)
            rows.append(whole | found | {"p": p, "pairs": len(inside)})
    table = pd.DataFrame(rows, columns=None if rows else [*keys, "p"])
    table["p"] = np.array(corrected_by_holm([row["p"] for row in rows]), dtype=np.float64)
    table["holds"] = table.p <= LEVEL
    return table.astype({name: values[name].dtype for name in keys})
