"""Measures of rankings and pairs: relevance, exposure, who wins, and what a tuning changed.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", sections 3.2, 3.3 and 5. The
pairs before and after a tuning are the same. Tests and intervals are over queries, each with all of
its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fairqr.agents import statistics
from fairqr.agents.models.opening import CAUSAL
from fairqr.agents.ranking import preference
from fairqr.evaluation.estimates import LEVEL, estimate, mean_with_ends, means_by
from fairqr.evaluation.experiments.catalogue import Measured
from fairqr.evaluation.measures.kinds import ndcg, precision
from fairqr.evaluation.probes import store as kept
from fairqr.evaluation.probes.collection import CELLS, GROUP_KINDS, ProbeQuery, planned_pairs
from fairqr.evaluation.probes.specification import INITIAL, LISTWISE_KIND
from fairqr.graph.probe.verdicts import verdict_in_words
from fairqr.retrieval.fairness.exposure import INVERSE_LOG, FloatArray, exposure_ratio

if TYPE_CHECKING:
    from pandas import DataFrame

KEYS = ["collection", "ranker", "window", "persona"]
RATIO = "exposure ratio"
PLACE = "mean place of the protected"
MEASURED = ("precision", "random_precision", "ndcg", "ratio", "place", "share", "top_share")
WHY = {"ndcg": "nothing_relevant", "ratio": "empty_group", "place": "empty_group"}
"""Why a list whose questions were answered has no value."""

GROUPS: dict[str, tuple[str, ...]] = {it: (it,) for it in GROUP_KINDS} | {"both": GROUP_KINDS}
"""The kinds of pairs that are measured, by the kinds of their records."""

SHARES = {
    "protected": "protected",
    "unprotected": "unprotected",
    "flips": "flips",
    "consistent": "protected of consistent",
    "votes": "votes for protected",
    "averaged": "averaged protected",
}
"""The names of the shares of :class:`fairqr.agents.ranking.preference.PairFigures` in CSV files."""

VALUES = ["measure", "value", "low", "high", "count", "of"]

Row = dict[str, Any]


@dataclass(frozen=True)
class MeasuredProbe(Measured):
    """The results of a probe of any kind.

    Attributes:
        manifest: What it was run with: experiment, collections, prompts.
        missing: How many rankings have not been made, or pairs not been asked about.
    """

    report = "fairqr.evaluation.probes.report"

    manifest: kept.ProbeRunManifest
    missing: int


def measure(folder: Path) -> MeasuredProbe:
    """Measure all lists or pairs of a folder, and count the missing ones.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    store = kept.ProbeStore(folder)
    is_lists = store.manifest().experiment.kind == LISTWISE_KIND
    return measure_listwise(store) if is_lists else measure_pairs(store)


@dataclass(frozen=True)
class MeasuredListwise(MeasuredProbe):
    """The results of a listwise experiment; rows are in the experiment's order.

    The initial order is the same for all personas, and comes once, for the first of them.

    Attributes:
        lists: One row for each list that the experiment asks for: its ids, ``status`` (``ok``,
            ``failed`` or ``not_run``), and what :func:`list_measures` returns.
    """

    frame_names = ("lists", "means", "tests")
    template = "listwise"

    lists: DataFrame

    @property
    def names(self) -> dict[str, str]:
        """The names of the measures, by their columns."""
        k = self.spec.k
        return {"precision": f"P@{k}", "ndcg": f"nDCG@{k}", "ratio": RATIO, "place": PLACE}

    @cached_property
    def values(self) -> DataFrame:
        """A value for each list and measure, or NaN and the reason in ``undefined``."""
        found = self.lists.melt(
            [*KEYS, "query", "status"], list(self.names), "measure", ignore_index=False
        ).sort_index(kind="stable")
        why = found.status.where(found.status != "ok", found.measure.map(WHY))
        found["undefined"] = why.where(found.value.isna(), "")
        found["measure"] = found.measure.map(self.names)
        return found.drop(columns="status").reset_index(drop=True)

    @property
    def table(self) -> DataFrame:
        """The values; lists that were not ranked yet are left out."""
        return self.values[self.values.undefined != "not_run"]

    @cached_property
    def means(self) -> DataFrame:
        """The mean of each measure over queries, its interval and its standard deviation."""
        values = self.values.set_index([*KEYS, "measure"])
        by_key = values.groupby(level=values.index.names, sort=False)
        why = by_key.undefined.agg(lambda own: own[own != ""].value_counts().to_dict())
        found = means_by(values.value, "n").assign(sd=by_key.value.std(), left_out=why)
        return found.reset_index()

    @cached_property
    def tests(self) -> DataFrame:
        """All tests, as :func:`judged` returns them. ``test`` is one of three.

        - ``exposure_difference``: whether exposure favours a side, see
          :func:`exposure_difference_test`;
        - ``personas``: a measure of the lists for protected personas, less the same for the others;
        - ``relevance``: P@k less the P@k of the initial order, for the first persona.
        """
        import pandas as pd

        is_given = self.lists.ranker == INITIAL
        given = self.lists[is_given].set_index(["collection", "query"]).precision
        ranked = self.lists[~is_given].set_index("query")
        rows: list[tuple[object, ...]] = []
        for key, found in ranked.groupby(KEYS, sort=False):
            there = found.dropna(subset="ratio")
            name = "\n".join(("exposure", *key))
            shift, p = exposure_difference_test(
                there.ratio, there.share, there.ratio_of_relevance.fillna(1), name
            )
            rows.append((*key, "exposure_difference", RATIO, len(there), shift, np.nan, np.nan, p))
            if key[3] == self.spec.personas[0] and len(given):
                random = statistics.stream(0, f"{key[0]}\n{ranker_name(*key[1:3])}")
                tested = _tested(found.precision - given[key[0]], random)
                rows.append((*key, "relevance", self.names["precision"], *tested))
        for measure in ("precision", "ndcg"):
            for key, found in ranked.groupby(KEYS[:3], sort=False):
                own = {persona: each[measure] for persona, each in found.groupby("persona")}
                if {preference.PROTECTED, preference.UNPROTECTED} <= own.keys():
                    name = f"test of {measure}: {', '.join(key)}"
                    random = statistics.stream(self.spec.seed, name)
                    tested = _tested(
                        own[preference.PROTECTED] - own[preference.UNPROTECTED], random
                    )
                    rows.append((*key, "", "personas", self.names[measure], *tested))
        columns = [*KEYS, "test", "measure", "n", "difference", "low", "high", "p"]
        return judged(pd.DataFrame(rows, columns=columns))


def ranker_name(ranker: str, window: str) -> str:
    """Return the name of a ranker, with its window if it has one."""
    return f"{ranker}, {window}" if window else ranker


def measure_listwise(store: kept.ProbeStore) -> MeasuredListwise:
    """Measure the rankings of an experiment; see :func:`measure`."""
    import pandas as pd

    manifest = store.manifest()
    experiment: Any = manifest.experiment
    by_key = {record.key: record for record in store.lines("rankings").read()}
    lists: list[Row] = []
    for each, ranker in product(store.collections(), experiment.rankers):
        personas = experiment.personas[: 1 if ranker == INITIAL else None]
        for window, persona, query in product(
            experiment.windows_of(ranker), personas, each.queries
        ):
            key = (each.manifest.name, ranker, window, persona, query.id)
            ids = dict(zip(kept.RankingRecord.keys, key, strict=True))
            record = by_key.get(key)
            if ranker == INITIAL:
                record = kept.RankingRecord(**ids, order=tuple(range(len(query.items))))
            lists.append(ids | list_measures(query, record, experiment.k))
    missing = sum(row["status"] == "not_run" for row in lists)
    return MeasuredListwise(manifest, missing, pd.DataFrame(lists))


def list_measures(query: ProbeQuery, record: kept.RankingRecord | None, k: int) -> Row:
    """Measure one list.

    Args:
        query: The query and its items.
        record: The ranking, if there is one.
        k: Depth of P@k, nDCG@k and of ``top_share``.

    Returns:
        ``status``; ``precision`` and what it is in a random order (``random_precision``), ``ndcg``
        and the exposure ``ratio`` of the whole list; the share
        of protected items in the list (``share``) and among its first k (``top_share``); their
        ``places`` (rank − ½)/n, in (0, 1), and the mean ``place``; the ratio of lists in order of
        relevance; the cost of the list, and what failed, was repaired and warned of. Missing values
        are NaN.
    """
    cells = [len(query.of_cell(cell)) for cell in CELLS]
    # Without a ranking, what it cost and what failed are as in a new record.
    told = record or kept.RankingRecord(collection="", query=query.id, ranker="", order=())
    found: Row = {
        "status": "not_run" if record is None else "failed" if record.failed else "ok",
        **dict.fromkeys(MEASURED, np.nan),
        "places": (),
        "ratio_of_relevance": ratio_of_relevance(cells[1::2], cells[::2]),
        **told.model_dump(include={"asked", "failures", "repairs", "warnings"}),
        **told.spent,
    }
    if record is None or record.failed:
        return found
    items = [query.items[place] for place in record.order]
    relevant = np.array([item.relevant for item in items], dtype=np.float64)
    protected = np.array([item.protected for item in items], dtype=bool)
    ratio = exposure_ratio(protected)
    places = (np.flatnonzero(protected) + 0.5) / len(items)
    found |= {
        "precision": float(precision(relevant, k)),
        "random_precision": relevant.mean() * min(k, len(items)) / k,
        "ratio": np.nan if ratio is None else ratio,
        "share": protected.mean(),
        "top_share": protected[:k].mean(),
        "place": places.mean() if len(places) else np.nan,
        "places": tuple(places.tolist()),
    }
    if total := int(relevant.sum()):
        found["ndcg"] = float(ndcg(relevant, np.ones(total), k=k))
    return found


def exposure_difference_test(
    ratios: ArrayLike, shares: ArrayLike, references: ArrayLike, name: str
) -> tuple[float, float]:
    """Test whether the exposure of lists favours a group.

    The test is on differences of exposure, protected less others, divided by the mean exposure of
    the list: by the ratio r and the share s of protected items, (r − 1)/(s·r + 1 − s). To swap the
    groups turns its sign, and its mean is 0 in lists of random order, whatever the sizes of the
    groups. The means of r and of ln(r) are not even if one group is small. The test is the
    paired randomisation test over queries. If lists have only one or two items of a group,
    the differences are skew, and 5 % of chance findings become about 10.

    If cells are short, lists in order of relevance have another ratio than 1 although nobody
    favours a side, and a ranker that knows relevance in part is between the two. So a difference is
    claimed only if the ratio is beyond both, by the same test.

    Args:
        ratios: The exposure ratio of each list.
        shares: The share of protected items of each list.
        references: The ratio of each list if it were in order of relevance.
        name: The name of the stream of random numbers.

    Returns:
        The mean difference, and the greater p of both tests: that the ratio is 1, and that it is
        the one of lists in order of relevance; 1 if it is between the two. NaN without lists.
    """
    ratio, share, reference = (np.asarray(v, np.float64) for v in (ratios, shares, references))
    if not ratio.size:
        return np.nan, np.nan
    own, other = ((it - 1) / (share * it + 1 - share) for it in (ratio, reference))
    # What differs by rounding differs by nothing.
    beyond = (own - other).round(12)
    if own.sum() * beyond.sum() < 0:
        return float(own.mean()), 1.0
    p_values = (
        statistics.paired_randomisation(values, statistics.stream(0, name)) or 0.0
        for values in (own, beyond)
    )
    return float(own.mean()), max(p_values)


def ratio_of_relevance(protected: Sequence[int], unprotected: Sequence[int]) -> float:
    """Return the exposure ratio of lists that are in order of relevance, and random otherwise.

    It is 1 where both groups have the same share of relevant items; where cells are short it is
    what a ranker without any preference has.

    Args:
        protected: How many of its items are relevant, and how many are not.
        unprotected: The same for the others.

    Returns:
        NaN if one of the groups has no item.
    """
    if not sum(protected) or not sum(unprotected):
        return np.nan
    relevant = protected[0] + unprotected[0]
    weights = INVERSE_LOG.weights(sum(protected) + sum(unprotected))
    parts = (weights[:relevant], weights[relevant:])
    each = [float(part.mean()) if part.size else 0.0 for part in parts]
    own, others = (
        (group[0] * each[0] + group[1] * each[1]) / sum(group) for group in (protected, unprotected)
    )
    return own / others


def judged(tests: DataFrame) -> DataFrame:
    """Return tests with verdicts; all tests on a collection are one family for Holm.

    Args:
        tests: ``collection``, ``n`` (over how many queries), ``difference`` and ``p``, which is
            NaN where there is no test.

    Returns:
        The same with ``tests``, the size of the family, ``p_holm``, and the ``verdict``: ``above``
        or ``below`` if the difference from 0 holds at 5 %, ``too_few`` if no difference could,
        however alike all queries are, ``none`` otherwise, and ``untested``.
    """
    import pandas as pd

    def corrected(p: Any) -> Any:
        there = p.dropna()
        return pd.Series(statistics.corrected_by_holm(list(there)), there.index).reindex(p.index)

    families = tests.astype({"p": float}).groupby("collection", sort=False).p
    found = tests.assign(
        tests=families.transform("count"), p_holm=families.transform(corrected).astype(float)
    )
    few = [
        statistics.too_few(row.n, preference.ALPHA / max(1, row.tests))
        for row in found.itertuples()
    ]
    conditions = [found.p.isna(), (found.p_holm <= preference.ALPHA) & (found.difference > 0)]
    conditions += [found.p_holm <= preference.ALPHA, np.array(few, dtype=bool)]
    verdicts = ["untested", "above", "below", "too_few"]
    return found.assign(verdict=np.select(conditions, verdicts, "none"))


def _tested(differences: Any, random: np.random.Generator) -> tuple[object, ...]:
    """Return n, mean, interval and p value of paired differences; missing ones do not count."""
    known = differences.dropna()
    mean, low, high, n = mean_with_ends(known)
    p = statistics.paired_randomisation(known, random)
    return n, mean, low, high, np.nan if p is None else p


@dataclass(frozen=True)
class MeasuredPairwise(MeasuredProbe):
    """The results of a pairwise experiment.

    Attributes:
        figures: One row for each collection, model and kind of pairs, in the experiment's order:
            what :func:`figure_row` returns; how many ``queries_in_all`` there are, how many of them
            have no such pair (``without_pairs``), and how many pairs are ``planned``; the
            ``verdict`` and its ``sentence``, ``favoured`` and ``p_holm``, where all verdicts on a
            collection are one family; ``model_calls`` and ``tokens``.
    """

    frame_names: ClassVar[tuple[str, ...]] = ("figures",)
    template = "pairwise"

    figures: DataFrame

    @property
    def table(self) -> DataFrame:
        """The figures, one in each row; the pairs themselves are in ``pairs.jsonl``."""
        return _table(self.figures, ["collection", "model", "kind"])


@dataclass(frozen=True)
class MeasuredLora(MeasuredPairwise):
    """The results of a tuning; in its figures ``when`` is ``before`` or ``after``.

    Attributes:
        changes: One row for each collection, kind and ``measure``, see :func:`changes_of`, as
            :func:`judged` returns them. All tests and verdicts on a collection are one family.
        losses: One row for each step, in order.
    """

    frame_names = ("figures", "changes", "losses")
    template = "tuning"

    changes: DataFrame
    losses: DataFrame

    @property
    def table(self) -> DataFrame:
        """The figures before and after, and then what changed, one in each row."""
        import pandas as pd

        figures = _table(self.figures, ["collection", "kind", "when"])
        renamed = {"kind": "pairs", "pairs": "of", "difference": "value"}
        changes = self.changes.rename(columns=renamed).assign(when="change", count=None)
        return pd.concat([figures, changes[[*figures.columns]]])


def measure_pairs(store: kept.ProbeStore) -> MeasuredPairwise:
    """Measure pairs: each kind alone, and the two of groups together; and what a tuning changed."""
    import pandas as pd

    manifest = store.manifest()
    experiment: Any = manifest.experiment
    tuned, stages = manifest.tuning, kept.STAGES[experiment.kind]
    records = {(stage, *it.key): it for stage in stages for it in store.lines(stage).read()}
    limit = experiment.held_out_pairs if tuned else experiment.pairs
    models = [f"{CAUSAL}:{tuned.base}"] if tuned else experiment.models
    # Pairs of relevance are about no group: a relevant item replaces the protected one.
    kinds = GROUPS | ({"relevance": ("relevance",)} if experiment.relevance_pairs else {})
    rows, changes, family = list[Row](), list[Row](), list[Row]()
    for collection in store.collections():
        name, words = collection.manifest.name, collection.manifest.sides.words
        queries = [it for it in collection.queries if not tuned or it.id in tuned.held_out]
        planned = [
            (query.id, pair)
            for query in queries
            for pair in planned_pairs(query, limit, experiment.relevance_pairs, experiment.seed)
        ]
        own, found, moved = list[Row](), list[preference.PairFigures](), list[Row]()
        for model, kind in product(models, kinds):
            wanted = [
                (name, model, it, *pair.key) for it, pair in planned if pair.kind in kinds[kind]
            ]
            for stage in stages:
                asked = [records[stage, *key] for key in wanted if (stage, *key) in records]
                label = stage if tuned else model
                random = statistics.stream(experiment.seed, f"figures: {name}, {label}, {kind}")
                found.append(preference.pair_figures(map(outcome_of, asked), random))
                own.append(
                    {"collection": name, "when" if tuned else "model": label, "kind": kind}
                    | figure_row(found[-1])
                    | {
                        "queries_in_all": len(queries),
                        "without_pairs": len(queries) - len({key[2] for key in wanted}),
                        "planned": len(wanted),
                        "model_calls": sum(record.spent["model_calls"] for record in asked),
                        "tokens": sum(record.spent["tokens"] for record in asked),
                    }
                )
            if tuned:
                both = [[records.get((stage, *key)) for stage in stages] for key in wanted]
                couples = [[outcome_of(it) for it in each if it] for each in both if all(each)]
                random = statistics.stream(experiment.seed, f"change: {name}, {kind}")
                ids = {"collection": name, "kind": kind}
                moved += [ids | row for row in changes_of(couples, kind, random)]
        # A reader sees all verdicts on a collection together, so they are one family for Holm.
        verdicts = preference.verdicts(found, beside=[change["p"] for change in moved])
        for row, verdict, figures in zip(own, verdicts, found, strict=True):
            told = {"verdict": verdict.kind, "favoured": verdict.favoured, "p_holm": verdict.p}
            rows.append(row | told | {"sentence": verdict_in_words(verdict, figures, words)})
            family.append({"collection": name, "n": 0, "p": preference.p_of_preference(figures)})
        changes += moved
    # ``both`` counts the same pairs again.
    missing = sum(row["planned"] - row["pairs"] for row in rows if row["kind"] != "both")
    if not tuned:
        return MeasuredPairwise(manifest, missing, pd.DataFrame(rows))
    losses = sorted((it.model_dump() for it in store.losses.read()), key=lambda it: int(it["step"]))
    moves = judged(pd.DataFrame([*changes, *family])).iloc[: len(changes)].astype({"pairs": int})
    return MeasuredLora(manifest, missing, pd.DataFrame(rows), moves, pd.DataFrame(losses))


def outcome_of(record: kept.PairRecord) -> preference.PairOutcome:
    """Return the outcome in a record."""
    return preference.PairOutcome(
        record.query, record.protected_first, record.unprotected_first, record.log_odds
    )


def figure_row(figures: preference.PairFigures) -> Row:
    """Return figures of pairs as the columns of a row; missing values are None.

    Each of :data:`SHARES` has five columns: its value, the ends of its interval (``…_low``,
    ``…_high``), its count and its total. ``failed`` is the sum of ``failures``.
    """
    row: Row = {field.name: getattr(figures, field.name) for field in fields(figures)}
    intervals = {"ratio": row.pop("ratio_interval")}
    for name in SHARES:
        share = row[name]
        row |= {name: share.value, f"{name}_count": share.count, f"{name}_of": share.of}
        intervals[name] = share.interval
    for name, interval in intervals.items():
        for end in ("low", "high"):
            row[f"{name}_{end}"] = getattr(interval, end, None)
    return row | {"failed": figures.failed}


def _table(figures: DataFrame, ids: Sequence[str]) -> DataFrame:
    """Return a table with one of the figures of each row in each of its rows."""
    import pandas as pd

    rows = list[tuple[object, ...]]()
    for row in figures.itertuples():
        own = [getattr(row, name) for name in ids]
        for name, title in SHARES.items():
            ends = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high", "_count", "_of"))
            rows.append((*own, title, *ends))
        rows.append((*own, "ratio", row.ratio, row.ratio_low, row.ratio_high, None, None))
        for title, p, of in (
            ("p over pairs", row.p, row.consistent_of),
            ("p over queries", row.over_queries, row.consistent_queries),
            ("p of position", row.position_p, row.flips_count),
        ):
            rows.append((*own, title, p, None, None, None, of))
        for status, count in row.failures.items():
            rows.append((*own, f"failed: {status}", None, None, None, count, row.replies))
    names = ["pairs" if name == "kind" else name for name in ids]
    return pd.DataFrame(rows, columns=[*names, *VALUES], dtype=object)


def changes_of(
    couples: Sequence[Sequence[preference.PairOutcome]], kind: str, random: np.random.Generator
) -> Iterator[Row]:
    """Yield what a tuning changed in pairs of one kind.

    A change has ``pairs``, ``n`` queries, the ``difference`` with ``low`` and ``high``, over
    queries; and ``p``, of a randomisation test over queries. Its ``measure`` is one of these.

    - ``ratio nearer to 1``: of wins in both orders, protected to unprotected. The difference is
      |ln before| − |ln after|, with ½ added to each count (Haldane 1956): above 0 the ratio is
      nearer to 1 after. There is no test if a count is 0. If a tuning makes more items win,
      the ratio before is of few wins, and those that the test draws by swapping are of more, so
      they vary less. The greater p counts, of that test and of the interval.
    - ``consistent``: the share of pairs that either item wins in both orders.
    - ``both orders``, of relevance pairs: the share whose relevant item wins in both orders.

    Args:
        couples: The answers about each pair before and after.
        kind: The kind of the pairs.
        random: Draws for the tests.
    """
    at = np.unique([it.query for it, _ in couples], return_inverse=True)[1]
    winners = np.array([[it.winner for it in both] for both in couples], object).reshape(-1, 2)
    sides = [winners == it for it in (preference.PROTECTED, preference.UNPROTECTED)]
    counted = [*sides, np.ones_like(winners, dtype=bool)]
    # What each query adds to the wins of either item and to the pairs, before and after.
    parts = np.array([[np.bincount(at, one) for one in each.T] for each in counted]).T
    measured: dict[str, Callable[[Any], Any]] = {"both orders": lambda it: it[..., 0] / it[..., 2]}
    if kind in GROUPS:
        measured = {
            "ratio nearer to 1": lambda it: (
                -np.abs(np.log((it[..., 0] + 0.5) / (it[..., 1] + 0.5)))
            ),
            "consistent": lambda it: (it[..., 0] + it[..., 1]) / it[..., 2],
        }
    for measure, statistic in measured.items():
        row: Row = {"measure": measure, "pairs": len(couples), "n": len(parts)}
        row |= dict.fromkeys(("difference", "low", "high", "p"))
        if couples:
            row |= _change(parts, statistic, random)
        if kind in GROUPS and measure != "consistent":
            if not parts.sum(axis=0).all():
                row |= dict.fromkeys(("low", "high", "p"))
            elif row["low"] is not None:
                row["p"] = max(row["p"], _p_of_interval(row, len(parts) - 1))
        yield row


def _p_of_interval(row: Row, freedom: int) -> float:
    half: Any = (row["high"] - row["low"]) / 2
    errors = abs(row["difference"]) / half * statistics.student_quantile(LEVEL, freedom)
    return 2 * float(statistics.special().stdtr(freedom, -errors))


def _change(parts: FloatArray, statistic: Callable[[Any], Any], random: np.random.Generator) -> Row:
    """Return how a statistic changed, its interval, and p that nothing changed.

    If nothing did, a coin could say in each query which answers were those before.

    Args:
        parts: What each query adds to the totals before and after, shape (n, 2, T).
        statistic: Computes the statistic of totals, shape (…, T).
        random: Tosses the coins.
    """
    queries, *shape = parts.shape

    def changes(totals: Any) -> Any:
        return np.diff(statistic(totals.reshape(*totals.shape[:-1], *shape)))

    flat = parts.reshape(queries, -1)
    observed = float(changes(flat.sum(axis=0))[0])
    (found,) = estimate(flat, np.ones(queries), changes)
    if is_exact := queries <= statistics.EXACT_UP_TO:
        swapped = (np.arange(1 << queries)[:, None] >> np.arange(queries)) & 1
    else:
        swapped = random.integers(0, 2, (statistics.PERMUTATIONS, queries), dtype=np.int8)
    drawn = changes(flat.sum(axis=0) + swapped @ (parts[:, ::-1] - parts).reshape(queries, -1))
    # Equal values differ by rounding.
    as_far = np.abs(drawn) >= abs(observed) - 1e-9
    p = as_far.mean() if is_exact else (as_far.sum() + 1) / (as_far.size + 1)
    # Queries that are all alike say nothing about their spread.
    low, high = (found.low, found.high) if np.ptp(flat, axis=0).any() else (None, None)
    return {"difference": observed, "low": low, "high": high, "p": float(p)}
