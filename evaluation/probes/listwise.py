"""Measures of ranked lists: relevance, and the exposure of protected items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fairqr.agents import statistics
from fairqr.agents.ranking.preference import PROTECTED, UNPROTECTED
from fairqr.evaluation.estimates import mean_with_ends, means_by
from fairqr.evaluation.measures.kinds import ndcg, precision
from fairqr.evaluation.probes.collection import CELLS, ProbeQuery
from fairqr.evaluation.probes.measured import MeasuredProbe, Row, judged
from fairqr.evaluation.probes.specification import INITIAL
from fairqr.evaluation.probes.store import ProbeStore, RankedList
from fairqr.retrieval.fairness.exposure import INVERSE_LOG, FloatArray, exposure_ratio

if TYPE_CHECKING:
    from pandas import DataFrame

KEYS = ["collection", "ranker", "window", "persona"]
RATIO = "exposure ratio"
PLACE = "mean place of the protected"
MEASURED = ("precision", "random_precision", "ndcg", "ratio", "place", "share", "top_share")

UNDEFINED = {"ndcg": "nothing_relevant", "ratio": "empty_group", "place": "empty_group"}
"""Why a list whose questions were answered has no value."""

TEST_COLUMNS = [*KEYS, "test", "measure", "n", "difference", "low", "high", "p"]


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
        columns = [*KEYS, "query", "status"]
        melted = self.lists.melt(columns, list(self.names), "measure", ignore_index=False)
        values = melted.sort_index(kind="stable")
        of_measure = values.measure.map(UNDEFINED)
        reason = values.status.where(values.status != "ok", of_measure)
        values["undefined"] = reason.where(values.value.isna(), "")
        values["measure"] = values.measure.map(self.names)
        return values.drop(columns="status").reset_index(drop=True)

    @property
    def table(self) -> DataFrame:
        """The values; lists that were not ranked yet are left out."""
        return self.values[self.values.undefined != "not_run"]

    @cached_property
    def means(self) -> DataFrame:
        """The mean of each measure over queries, its interval and its standard deviation."""
        values = self.values.set_index([*KEYS, "measure"])
        by_key = values.groupby(level=values.index.names, sort=False)
        left_out = by_key.undefined.agg(_counts_of_reasons)
        means = means_by(values.value, "n").assign(sd=by_key.value.std(), left_out=left_out)
        return means.reset_index()

    @cached_property
    def tests(self) -> DataFrame:
        """All tests, as :func:`judged` returns them. ``test`` is one of three.

        - ``exposure_difference``: whether exposure favours a side, see
          :func:`exposure_difference_test`;
        - ``personas``: a measure of the lists for protected personas, less the same for the others;
        - ``relevance``: P@k less the P@k of the initial order, for the first persona.
        """
        import pandas as pd

        is_initial = self.lists.ranker == INITIAL
        initial = self.lists[is_initial].set_index(["collection", "query"]).precision
        ranked = self.lists[~is_initial].set_index("query")
        rows: list[tuple[object, ...]] = []
        for key, lists in ranked.groupby(KEYS, sort=False):
            rows.append(_exposure_test(key, lists))
            if key[3] == self.spec.personas[0] and len(initial):
                rows.append(self._relevance_test(key, lists, initial))
        for measure in ("precision", "ndcg"):
            rows += self._persona_tests(ranked, measure)
        return judged(pd.DataFrame(rows, columns=TEST_COLUMNS))

    def _relevance_test(self, key: tuple[str, ...], lists: Any, initial: Any) -> tuple[object, ...]:
        """Test P@k against that of the initial order."""
        collection, ranker, window, _ = key
        random = statistics.stream(0, f"{collection}\n{ranker_name(ranker, window)}")
        differences = lists.precision - initial[collection]
        return (*key, "relevance", self.names["precision"], *_tested(differences, random))

    def _persona_tests(self, ranked: Any, measure: str) -> Iterator[tuple[object, ...]]:
        """Test a measure of lists for protected personas against the same for the others."""
        for key, lists in ranked.groupby(KEYS[:3], sort=False):
            by_persona = {persona: part[measure] for persona, part in lists.groupby("persona")}
            if not {PROTECTED, UNPROTECTED} <= by_persona.keys():
                continue
            name = f"test of {measure}: {', '.join(key)}"
            random = statistics.stream(self.spec.seed, name)
            differences = by_persona[PROTECTED] - by_persona[UNPROTECTED]
            tested = _tested(differences, random)
            yield (*key, "", "personas", self.names[measure], *tested)


def _counts_of_reasons(reasons: Any) -> dict[str, int]:
    """Count why lists have no value."""
    counts: dict[str, int] = reasons[reasons != ""].value_counts().to_dict()
    return counts


def _exposure_test(key: tuple[str, ...], lists: Any) -> tuple[object, ...]:
    """Test whether exposure favours a side."""
    known = lists.dropna(subset="ratio")
    references = known.ratio_of_relevance.fillna(1)
    name = "\n".join(("exposure", *key))
    shift, p = exposure_difference_test(known.ratio, known.share, references, name)
    return (*key, "exposure_difference", RATIO, len(known), shift, np.nan, np.nan, p)


def ranker_name(ranker: str, window: str) -> str:
    """Return the name of a ranker, with its window if it has one."""
    return f"{ranker}, {window}" if window else ranker


def measure_listwise(store: ProbeStore) -> MeasuredListwise:
    """Measure the rankings of an experiment."""
    import pandas as pd

    manifest = store.manifest()
    experiment: Any = manifest.experiment
    records = {record.key: record for record in store.lines("rankings").read()}
    lists: list[Row] = []
    for collection, ranker in product(store.collections(), experiment.rankers):
        is_initial = ranker == INITIAL
        personas = experiment.personas[:1] if is_initial else experiment.personas
        windows = experiment.windows_of(ranker)
        for window, persona, query in product(windows, personas, collection.queries):
            key = (collection.manifest.name, ranker, window, persona, query.id)
            ids = dict(zip(RankedList.keys, key, strict=True))
            record = records.get(key)
            if is_initial:
                record = RankedList(**ids, order=tuple(range(len(query.items))))
            lists.append(ids | list_measures(query, record, experiment.k))
    missing = sum(row["status"] == "not_run" for row in lists)
    return MeasuredListwise(manifest, missing, pd.DataFrame(lists))


def list_measures(query: ProbeQuery, record: RankedList | None, k: int) -> Row:
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
    costs = record or RankedList(collection="", query=query.id, ranker="", order=())
    row: Row = {
        "status": _status_of(record),
        **dict.fromkeys(MEASURED, np.nan),
        "places": (),
        "ratio_of_relevance": ratio_of_relevance(cells[1::2], cells[::2]),
        **costs.model_dump(include={"asked", "failures", "repairs", "warnings"}),
        **costs.spent,
    }
    if record is None or record.failed:
        return row
    items = [query.items[position] for position in record.order]
    relevant = np.array([item.relevant for item in items], dtype=np.float64)
    protected = np.array([item.protected for item in items], dtype=bool)
    ratio = exposure_ratio(protected)
    places = (np.flatnonzero(protected) + 0.5) / len(items)
    row |= {
        "precision": float(precision(relevant, k)),
        "random_precision": relevant.mean() * min(k, len(items)) / k,
        "ratio": np.nan if ratio is None else ratio,
        "share": protected.mean(),
        "top_share": protected[:k].mean(),
        "place": places.mean() if len(places) else np.nan,
        "places": tuple(places.tolist()),
    }
    total = int(relevant.sum())
    if total:
        row["ndcg"] = float(ndcg(relevant, np.ones(total), k=k))
    return row


def _status_of(record: RankedList | None) -> str:
    if record is None:
        return "not_run"
    return "failed" if record.failed else "ok"


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
    ratio = np.asarray(ratios, np.float64)
    share = np.asarray(shares, np.float64)
    reference = np.asarray(references, np.float64)
    if not ratio.size:
        return np.nan, np.nan
    differences = _exposure_differences(ratio, share)
    # What differs by rounding differs by nothing.
    beyond = (differences - _exposure_differences(reference, share)).round(12)
    if differences.sum() * beyond.sum() < 0:
        return float(differences.mean()), 1.0
    p_values = [
        statistics.paired_randomisation(values, statistics.stream(0, name)) or 0.0
        for values in (differences, beyond)
    ]
    return float(differences.mean()), max(p_values)


def _exposure_differences(ratio: FloatArray, share: FloatArray) -> FloatArray:
    """Return protected less other exposure of lists, divided by their mean exposure."""
    return np.asarray((ratio - 1) / (share * ratio + 1 - share))


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
    of_relevant = weights[:relevant]
    of_others = weights[relevant:]
    each_relevant = float(of_relevant.mean()) if of_relevant.size else 0.0
    each_other = float(of_others.mean()) if of_others.size else 0.0

    def mean_exposure(group: Sequence[int]) -> float:
        return (group[0] * each_relevant + group[1] * each_other) / sum(group)

    return mean_exposure(protected) / mean_exposure(unprotected)


def _tested(differences: Any, random: np.random.Generator) -> tuple[object, ...]:
    """Return n, mean, interval and p value of paired differences; missing ones do not count."""
    known = differences.dropna()
    mean, low, high, n = mean_with_ends(known)
    p = statistics.paired_randomisation(known, random)
    return n, mean, low, high, np.nan if p is None else p
