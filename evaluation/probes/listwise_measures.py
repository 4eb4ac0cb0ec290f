"""Measures of rankings: relevance, exposure of the groups, and fairness toward those who ask.

Definitions: Wang et al. 2024, "Do Large Language Models Rank Fairly?", section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fairqr.agents.statistics import (
    corrected_by_holm,
    mean_interval,
    paired_randomisation,
    stream,
    too_few,
)
from fairqr.evaluation.estimates import paired_t
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.probes.collection import CELLS, ProbeCollection, ProbeQuery
from fairqr.evaluation.probes.rankers import INITIAL, windows_of
from fairqr.evaluation.probes.store import ProbeRunManifest, RankingRecord
from fairqr.evaluation.relevance import ndcg, precision
from fairqr.retrieval.fairness.exposure import INVERSE_LOG, Discount, exposure_ratio

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
        k = self.manifest.rankings.k
        return {"precision": f"P@{k}", "ndcg": f"nDCG@{k}", "ratio": RATIO}

    @cached_property
    def values(self) -> DataFrame:
        """A value for each list and measure, or NaN and the reason in ``undefined``."""
        found = self.lists.melt(
            [*KEYS, "query", "status"], list(self.names), "measure", ignore_index=False
        ).sort_index(kind="stable")
        found["undefined"] = [
            "" if row.value == row.value else WHY[row.measure] if row.status == "ok" else row.status
            for row in found.itertuples()
        ]
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
            there = found.value.dropna()
            interval = mean_interval(there)
            ends = (interval.low, interval.high) if interval else (np.nan, np.nan)
            left_out = found.undefined[found.value.isna()].value_counts().to_dict()
            rows.append((*key, len(there), there.mean(), there.std(), *ends, left_out))
        columns = [*KEYS, "measure", "n", "mean", "sd", "low", "high", "left_out"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def means_once(self) -> DataFrame:
        """The means; the initial order is the same for all askers, so its means come once."""
        again = (self.means.ranker == INITIAL) & (
            self.means.asker != self.manifest.rankings.askers[0]
        )
        return self.means[~again]

    @cached_property
    def tests(self) -> DataFrame:
        """All tests, as :func:`judged` returns them. ``test`` is one of three.

        - ``lean``: whether exposure leans, see :func:`lean_test`;
        - ``askers``: a measure of the lists for protected askers, less the same for the others;
        - ``relevance``: P@k less the P@k of the initial order, for the first asker.
        """
        import pandas as pd

        rows = [*self._leans(), *self._between_askers(), *self._gains()]
        columns = [*KEYS, "test", "measure", "n", "difference", "low", "high", "p_t", "p"]
        return judged(pd.DataFrame(rows, columns=columns))

    @property
    def _ranked(self) -> DataFrame:
        """The lists of rankers; the initial order is not tested."""
        return self.lists[self.lists.ranker != INITIAL]

    def _leans(self) -> Iterator[tuple[object, ...]]:
        for key, found in self._ranked.groupby(KEYS, sort=False):
            there = found.dropna(subset="ratio")
            name = "\n".join(("exposure", *key))
            lean, p = lean_test(there.ratio, there.share, there.ratio_of_relevance.fillna(1), name)
            yield (*key, "lean", RATIO, len(there), lean, np.nan, np.nan, np.nan, p)

    def _between_askers(self) -> Iterator[tuple[object, ...]]:
        seed = self.manifest.experiment.seed
        for measure in ("precision", "ndcg"):
            for key, found in self._ranked.groupby(KEYS[:3], sort=False):
                by_asker = {
                    str(asker): own.set_index("query")[measure]
                    for asker, own in found.groupby("asker")
                }
                if {"protected", "unprotected"} <= by_asker.keys():
                    differences = (by_asker["protected"] - by_asker["unprotected"]).dropna()
                    name = f"test of {measure}: {', '.join(key)}"
                    tested = _tested(differences, stream(seed, name))
                    yield (*key, "", "askers", self.names[measure], *tested)

    def _gains(self) -> Iterator[tuple[object, ...]]:
        given = self.lists[self.lists.ranker == INITIAL].groupby("collection")
        asker = self.manifest.rankings.askers[0]
        for key, found in self._ranked.groupby(KEYS, sort=False):
            if key[0] not in given.groups or key[3] != asker:
                continue
            before = given.get_group(key[0]).groupby("query").precision.first()
            own = found.set_index("query").precision
            name = f"{key[0]}\n{ranker_name(*key[1:3])}"
            tested = _tested((own - before[own.index]).dropna(), stream(0, name))
            yield (*key, "relevance", self.names["precision"], *tested)


def ranker_name(ranker: str, window: str) -> str:
    """Return the name of a ranker, with its window if it has one."""
    return f"{ranker}, {window}" if window else ranker


def measure_listwise(
    manifest: ProbeRunManifest,
    collections: Sequence[ProbeCollection],
    records: Iterable[RankingRecord],
) -> MeasuredListwise:
    """Measure the rankings of an experiment.

    Args:
        manifest: The settings that they were made with.
        collections: The manifest's, in its order.
        records: The rankings that were made; the missing ones are counted.

    Raises:
        InputError: The manifest belongs to another kind of experiment.
    """
    import pandas as pd

    experiment = manifest.rankings
    by_key = {record.key: record for record in records}
    lists: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = []
    wanted = (
        (query, (collection.manifest.name, name, window, asker, query.id))
        for collection in collections
        for name in experiment.rankers
        for window in windows_of(experiment, name)
        for asker in experiment.askers
        for query in collection.queries
    )
    for query, key in wanted:
        ids = dict(zip((*KEYS, "query"), key, strict=True))
        record = by_key.get(key)
        lists.append(ids | list_measures(query, record, experiment.k))
        if record is not None:
            events += [ids | event for event in _events(record)]
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
        "ratio_of_relevance": _or_nan(ratio_of_relevance(cells[1::2], cells[::2])),
        "asked": record.asked if record else 0,
        "model_calls": record.spent.model_calls if record else 0,
        "tokens": record.spent.tokens if record else 0,
    }
    if record is None or record.failed:
        return found
    relevant = np.array([query.items[place].relevant for place in record.order], dtype=np.float64)
    protected = np.array([query.items[place].protected for place in record.order], dtype=bool)
    total = int(relevant.sum())
    found["precision"] = float(precision(relevant, k))
    found["ratio"] = _or_nan(exposure_ratio(protected))
    if total:
        found["ndcg"] = float(ndcg(relevant, np.ones(total), k=k))
    if protected.size:
        found |= {"share": protected.mean(), "top_share": protected[:k].mean()}
    return found


def places_of(query: ProbeQuery, record: RankingRecord) -> Iterator[dict[str, Any]]:
    """Yield where the protected items of a list stand; a failed ranking has no places."""
    for rank, item in enumerate((query.items[place] for place in record.order), start=1):
        if item.protected and not record.failed:
            yield {"rank": rank, "place": (rank - 0.5) / len(record.order)}


def _events(record: RankingRecord) -> Iterator[dict[str, Any]]:
    for event, counts in (
        ("failure", record.failures),
        ("repair", record.repairs),
        ("warning", dict.fromkeys(record.warnings, 1)),
    ):
        for kind, count in counts.items():
            yield {"event": event, "kind": kind, "count": count}


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
    tests = [paired_randomisation(values, stream(0, name)) for values in (own, beyond)]
    return float(own.mean()), max(test for test in tests if test is not None)


def _exposure_difference(ratio: Any, share: Any) -> Any:
    """Return how much more exposure a protected item has than another, over the mean of all."""
    return (ratio - 1) / (share * ratio + 1 - share)


def ratio_of_relevance(
    protected: Sequence[int], unprotected: Sequence[int], discount: Discount = INVERSE_LOG
) -> float | None:
    """Return the exposure ratio of lists that are in order of relevance, and random otherwise.

    It is 1 where both groups have the same share of relevant items; where cells are short it is
    what a ranker without any lean has.

    Args:
        protected: How many of its items are relevant, and how many are not.
        unprotected: The same for the others.
        discount: v; the ratio is of expected exposure.

    Returns:
        None if one of the groups has no item.
    """
    relevant, irrelevant = protected[0] + unprotected[0], protected[1] + unprotected[1]
    if not sum(protected) or not sum(unprotected):
        return None
    weights = discount.weights(relevant + irrelevant)
    first = float(weights[:relevant].mean()) if relevant else 0.0
    rest = float(weights[relevant:].mean()) if irrelevant else 0.0
    own, others = (
        (group[0] * first + group[1] * rest) / sum(group) for group in (protected, unprotected)
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
        return pd.Series(corrected_by_holm(list(there)), there.index).reindex(p.index)

    families = tests.astype({"p": float}).groupby("collection", sort=False).p
    found = tests.assign(
        tests=families.transform("count"), p_holm=families.transform(corrected).astype(float)
    )
    found["verdict"] = [
        "untested"
        if row.p != row.p
        else ("above" if row.difference > 0 else "below")
        if row.p_holm <= LEVEL
        else "too_few"
        if too_few(row.n, LEVEL / row.tests)
        else "none"
        for row in found.itertuples()
    ]
    return found


def _tested(differences: Any, random: np.random.Generator) -> tuple[object, ...]:
    """Return n, mean, interval and p values of paired differences."""
    interval = mean_interval(differences)
    ends = (interval.low, interval.high) if interval else (np.nan, np.nan)
    test = paired_randomisation(differences, random)
    p_t = _or_nan(paired_t(differences))
    return len(differences), differences.mean(), *ends, p_t, _or_nan(test)


def _or_nan(number: float | None) -> float:
    return np.nan if number is None else number
