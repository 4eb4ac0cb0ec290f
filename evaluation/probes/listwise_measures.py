"""Measures of rankings: relevance, exposure of the groups, and fairness toward those who ask.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fairqr.agents import statistics
from fairqr.evaluation.estimates import mean_with_ends, paired_t
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.measures.kinds import ndcg, precision
from fairqr.evaluation.probes.collection import CELLS, ProbeQuery
from fairqr.evaluation.probes.specification import INITIAL
from fairqr.evaluation.probes.store import ProbeRunManifest, ProbeStore, RankingRecord
from fairqr.retrieval.fairness.exposure import INVERSE_LOG, exposure_ratio

if TYPE_CHECKING:
    from pandas import DataFrame

KEYS = ["collection", "ranker", "window", "asker"]
RATIO = "exposure ratio"
LEVEL = 0.05
WHY = {"ndcg": "nothing_relevant", "ratio": "empty_group"}
"""Why a list whose questions were answered has no value."""


@dataclass(frozen=True)
class MeasuredListwise(Measured):
    """The results of a listwise experiment; rows are in the experiment's order.

    Attributes:
        manifest: What it was run with: experiment, collections, prompts, notes.
        lists: One row for each list that the experiment asks for: its ids, ``status`` (``ok``,
            ``failed`` or ``not_run``), what :func:`list_measures` returns, and its cost.
        events: How often questions failed, replies were mended, and rankers warned: ids, ``event``
            (``failure``, ``repair`` or ``warning``), ``kind`` and ``count``.
        places: One row for each protected item of a list that was ranked: ids, ``rank`` from 1 on,
            and ``place``, which is (rank − ½)/n.
    """

    frame_names = ("lists", "means", "tests", "events")
    template = "listwise"
    report = "fairqr.evaluation.probes.report"

    manifest: ProbeRunManifest
    lists: DataFrame
    events: DataFrame
    places: DataFrame

    @property
    def missing(self) -> int:
        """How many rankings have not been made."""
        return int((self.lists.status == "not_run").sum())

    @property
    def names(self) -> dict[str, str]:
        """The names of the measures, by their columns."""
        k = self.experiment.k
        return {"precision": f"P@{k}", "ndcg": f"nDCG@{k}", "ratio": RATIO}

    @property
    def experiment(self) -> Any:
        """The experiment, which is one on lists."""
        return self.manifest.experiment

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
        import pandas as pd

        rows = []
        for key, found in self.values.groupby([*KEYS, "measure"], sort=False):
            mean, low, high, n = mean_with_ends(found.value)
            left_out = found.undefined[found.value.isna()].value_counts().to_dict()
            rows.append((*key, n, mean, found.value.std(), low, high, left_out))
        columns = [*KEYS, "measure", "n", "mean", "sd", "low", "high", "left_out"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def means_once(self) -> DataFrame:
        """The means; the initial order is the same for all askers, so its means come once."""
        again = (self.means.ranker == INITIAL) & (self.means.asker != self.experiment.askers[0])
        return self.means[~again]

    @cached_property
    def tests(self) -> DataFrame:
        """All tests, as :func:`judged` returns them. ``test`` is one of three.

        - ``lean``: whether exposure leans, see :func:`lean_test`;
        - ``askers``: a measure of the lists for protected askers, less the same for the others;
        - ``relevance``: P@k less the P@k of the initial order, for the first asker.
        """
        import pandas as pd

        is_given, asker = self.lists.ranker == INITIAL, self.experiment.askers[0]
        ranked = self.lists[~is_given].set_index("query")
        given = self.lists[is_given & (self.lists.asker == asker)].set_index("query")
        rows: list[tuple[object, ...]] = []
        for key, found in ranked.groupby(KEYS, sort=False):
            there = found.dropna(subset="ratio")
            name = "\n".join(("exposure", *key))
            lean, p = lean_test(there.ratio, there.share, there.ratio_of_relevance.fillna(1), name)
            rows.append((*key, "lean", RATIO, len(there), lean, np.nan, np.nan, np.nan, p))
        for measure in ("precision", "ndcg"):
            for key, found in ranked.groupby(KEYS[:3], sort=False):
                own = {each: found[found.asker == each][measure] for each in found.asker.unique()}
                if {"protected", "unprotected"} <= own.keys():
                    name = f"test of {measure}: {', '.join(key)}"
                    random = statistics.stream(self.experiment.seed, name)
                    tested = _tested(own["protected"] - own["unprotected"], random)
                    rows.append((*key, "", "askers", self.names[measure], *tested))
        for key, found in ranked[ranked.asker == asker].groupby(KEYS, sort=False):
            before = given[given.collection == key[0]].precision
            if len(before):
                random = statistics.stream(0, f"{key[0]}\n{ranker_name(*key[1:3])}")
                tested = _tested(found.precision - before, random)
                rows.append((*key, "relevance", self.names["precision"], *tested))
        columns = [*KEYS, "test", "measure", "n", "difference", "low", "high", "p_t", "p"]
        return judged(pd.DataFrame(rows, columns=columns))


def ranker_name(ranker: str, window: str) -> str:
    """Return the name of a ranker, with its window if it has one."""
    return f"{ranker}, {window}" if window else ranker


def measure_listwise(store: ProbeStore) -> MeasuredListwise:
    """Measure the rankings of an experiment, and count the missing ones.

    Raises:
        InputError: The folder holds no run, or a file of it is damaged.
    """
    import pandas as pd

    manifest = store.manifest()
    experiment: Any = manifest.experiment
    by_key = {record.key: record for record in store.lines("rankings").read()}
    lists: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = []
    wanted = (
        (query, dict(zip(RankingRecord.keys, (each.manifest.name, *named, query.id), strict=True)))
        for each in store.collections()
        for ranker in experiment.rankers
        for named in product([ranker], experiment.windows_of(ranker), experiment.askers)
        for query in each.queries
    )
    for query, ids in wanted:
        record = by_key.get(tuple(ids.values()))
        if ids["ranker"] == INITIAL:
            record = RankingRecord(**ids, order=tuple(range(len(query.items))))
        lists.append(ids | list_measures(query, record, experiment.k))
        if record is not None:
            happened = {
                "failure": record.failures,
                "repair": record.repairs,
                "warning": dict.fromkeys(record.warnings, 1),
            }
            events += [
                {**ids, "event": event, "kind": kind, "count": count}
                for event, counts in happened.items()
                for kind, count in counts.items()
            ]
            places += [ids | place for place in places_of(query, record)]
    return MeasuredListwise(
        manifest,
        pd.DataFrame(lists),
        pd.DataFrame(events, columns=[*KEYS, "query", "event", "kind", "count"]),
        pd.DataFrame(places, columns=[*KEYS, "query", "rank", "place"]),
    )


def list_measures(query: ProbeQuery, record: RankingRecord | None, k: int) -> dict[str, Any]:
    """Measure one list.

    Args:
        query: The query and its items.
        record: The ranking, if there is one.
        k: Depth of P@k, nDCG@k and of ``top_share``.

    Returns:
        ``status``; ``precision``, ``ndcg`` and the exposure ``ratio`` of the whole list; the share
        of protected items in the list (``share``) and among its first k (``top_share``); the ratio
        of lists in order of relevance; and the cost of the list. Missing values are NaN.
    """
    cells = [len(query.of_cell(cell)) for cell in CELLS]
    found: dict[str, Any] = {
        "status": "not_run" if record is None else "failed" if record.failed else "ok",
        **dict.fromkeys(("precision", "ndcg", "ratio", "share", "top_share"), np.nan),
        "ratio_of_relevance": ratio_of_relevance(cells[1::2], cells[::2]),
        "asked": record.asked if record else 0,
        **(record.spent if record else {"model_calls": 0, "tokens": 0}),
    }
    if record is None or record.failed:
        return found
    items = [query.items[place] for place in record.order]
    relevant = np.array([item.relevant for item in items], dtype=np.float64)
    protected = np.array([item.protected for item in items], dtype=bool)
    ratio = exposure_ratio(protected)
    found |= {
        "precision": float(precision(relevant, k)),
        "ratio": np.nan if ratio is None else ratio,
        "share": protected.mean(),
        "top_share": protected[:k].mean(),
    }
    if total := int(relevant.sum()):
        found["ndcg"] = float(ndcg(relevant, np.ones(total), k=k))
    return found


def places_of(query: ProbeQuery, record: RankingRecord) -> Iterator[dict[str, Any]]:
    """Yield where the protected items of a list stand; a failed ranking has no places."""
    for rank, item in enumerate((query.items[place] for place in record.order), start=1):
        if item.protected and not record.failed:
            yield {"rank": rank, "place": (rank - 0.5) / len(record.order)}


def lean_test(
    ratios: ArrayLike, shares: ArrayLike, references: ArrayLike, name: str
) -> tuple[float, float]:
    """Test whether the exposure of lists leans toward a group.

    The test is on differences of exposure, protected less others, divided by the mean exposure of
    the list: by the ratio r and the share s of protected items, (r − 1)/(s·r + 1 − s). To swap the
    groups turns its sign, and its mean is 0 in lists of random order, whatever the sizes of the
    groups. The means of r and of ln(r) are not even if one group is small. The test is the
    paired randomisation test over queries. If lists have only one or two items of a group,
    the differences are skew, and 5 % of chance findings become about 10.

    If cells are short, lists in order of relevance have another ratio than 1 although nobody
    leans, and a ranker that knows relevance in part is between the two. So a lean is claimed only
    if the ratio is beyond both, by the same test.

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
    own = _exposure_difference(ratio, share)
    # What differs by rounding differs by nothing.
    beyond = (own - _exposure_difference(reference, share)).round(12)
    if own.sum() * beyond.sum() < 0:
        return float(own.mean()), 1.0
    one, other = (
        statistics.paired_randomisation(values, statistics.stream(0, name)) or 0.0
        for values in (own, beyond)
    )
    return float(own.mean()), max(one, other)


def _exposure_difference(ratio: Any, share: Any) -> Any:
    """Return how much more exposure a protected item has than another, over the mean of all."""
    return (ratio - 1) / (share * ratio + 1 - share)


def ratio_of_relevance(protected: Sequence[int], unprotected: Sequence[int]) -> float:
    """Return the exposure ratio of lists that are in order of relevance, and random otherwise.

    It is 1 where both groups have the same share of relevant items; where cells are short it is
    what a ranker without any lean has.

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
    few = [statistics.too_few(row.n, LEVEL / max(1, row.tests)) for row in found.itertuples()]
    conditions = [found.p.isna(), (found.p_holm <= LEVEL) & (found.difference > 0)]
    conditions += [found.p_holm <= LEVEL, np.array(few, dtype=bool)]
    verdicts = ["untested", "above", "below", "too_few"]
    return found.assign(verdict=np.select(conditions, verdicts, "none"))


def _tested(differences: Any, random: np.random.Generator) -> tuple[object, ...]:
    """Return n, mean, interval and p values of paired differences; missing ones do not count."""
    known = differences.dropna()
    mean, low, high, n = mean_with_ends(known)
    tests = (paired_t(known), statistics.paired_randomisation(known, random))
    return n, mean, low, high, *(np.nan if p is None else p for p in tests)
