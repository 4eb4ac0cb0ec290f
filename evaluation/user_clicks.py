"""What users were shown and clicked: how far down they look, and which of two arms they prefer.

Rows come in three forms, told apart by their members, each alone or in the ``_source`` of a hit:

- *searches*: ``query_id``, and ``query_response_hit_ids``, the documents from the first rank on, as
  the index ``ubi_queries`` of User Behavior Insights 1.3 has them; a proxy's log adds its arm and
  the rank that chance chose;
- *events* of its index ``ubi_events``: ``query_id``, ``action_name``, and in ``event_attributes``
  the ``object.object_id`` and the ``position.ordinal``;
- *clicks*: ``query_id`` (or ``query``) and ``document`` (or ``object_id``), and nothing else.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, FiniteFloat, NonNegativeInt

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.clicks import Examination, Integers, examination, sequential_difference
from fairqr.retrieval.fairness.exposure import MOST_WEIGHTS, Discount
from fairqr.retrieval.sources.query_files import named_rows

CLICKS = "raw/clicks.json"
"""The file in the folder of an audit."""

MARGIN = 0.02
"""By default, so many more or fewer clicks of a query do not matter."""

LEAST_QUERIES = 30
"""A rank is compared if so many queries with clicks say something about it; intervals, which hold
in the limit of many, would be too narrow with fewer."""

DIGITS = 6
"""What is kept has so many decimals."""

Row = Mapping[str, Any]


class MeasuredDiscount(BaseModel, frozen=True, extra="forbid"):
    """How likely users look at each rank, as shares of the first.

    Attributes:
        by: ``intervention`` if chance had swapped documents; ``regression`` if they had moved by
            themselves.
        searches: How many searches say something about it.
        clicks: How many clicks these had.
        values: The estimate of each rank, from 1 on.
        low, high: The ends of their intervals, at 95 %.
    """

    by: Literal["intervention", "regression"]
    searches: NonNegativeInt
    clicks: NonNegativeInt
    values: tuple[FiniteFloat, ...]
    low: tuple[FiniteFloat, ...]
    high: tuple[FiniteFloat, ...]

    @property
    def discount(self) -> Discount:
        """The weights of ranks.

        Where a rank seems to be looked at more than the one above, which mostly is chance, both get
        their weighted mean (isotonic regression).
        """
        widths = np.log(np.array(self.high) / np.array(self.low))
        return Discount("weights", _falling(self.values, 1 / np.maximum(widths, 1e-3) ** 2))


class Trial(BaseModel, frozen=True, extra="forbid"):
    """How often the lists of both arms were clicked.

    Attributes:
        queries: How many queries each arm has; each counts once, by its first search.
        rates: The mean number of documents that were clicked, by arm.
        value: How much more the fair arm was clicked, weighted by the chance of its arm.
        low, high: The ends of an interval that holds the true difference however often one looks,
            at 95 %.
        margin: A difference that does not matter.
        decision: ``differs`` or ``alike``, which ends the trial, or ``go on``, in any case before
            30 queries were clicked.
    """

    queries: dict[str, NonNegativeInt]
    rates: dict[str, FiniteFloat]
    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    margin: FiniteFloat
    decision: Literal["differs", "alike", "go on"]


class ClickFigures(BaseModel, frozen=True, extra="forbid"):
    """What clicks say.

    Attributes:
        examination: How likely ranks are looked at; None if that is not known.
        why_not: Then, why.
        trial: The arms of a proxy; None if there are not two.
    """

    examination: MeasuredDiscount | None = None
    why_not: str = ""
    trial: Trial | None = None


@dataclass(slots=True)
class ShownSearch:
    """A search and its clicks.

    Attributes:
        query: Stands for what was searched for; searches of a query are no independent ones.
        ranks: The rank of each document on its first page.
        clicked: What was clicked, in this list or not.
        swap: The rank whose document chance swapped with the first, or left; 0 without such a toss.
        arm: The arm of a proxy; empty if there are none.
        share: The chance of the fair arm.
    """

    query: str
    ranks: dict[str, int] = field(default_factory=dict)
    clicked: set[str] = field(default_factory=set)
    swap: int = 0
    arm: str = ""
    share: float = 0.0


_Clicked = defaultdict[str, set[tuple[str, int]]]
"""What was clicked by the id of the search: documents, with their ranks or 0."""

Searches = dict[str, ShownSearch]
"""Searches by their id, in the order of time."""


def read_clicks(sources: Iterable[Path | Row]) -> Searches:
    """Return the searches in files, JSON Lines or CSV, and in rows.

    Clicks may stand before the search that they belong to. Of several searches with one id, the
    first counts: name a proxy's log, which knows what was shown, before ``ubi_queries``, which has
    what the engine found. Searches for further pages are left out.

    Raises:
        CorpusError: A file cannot be read.
        InputError: A row is in none of the forms, or no search is known.
    """
    searches: Searches = {}
    clicked: _Clicked = defaultdict(set)
    impressions: Searches = {}
    for place, row in _rows(sources):
        try:
            _add(row, searches, clicked, impressions)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InputError(
                f"{place} is no search, event or click; a search has query_id and "
                "query_response_hit_ids, an event query_id, action_name and event_attributes, a "
                "click query_id and document."
            ) from None
    for id_, impression in impressions.items():
        search = searches.setdefault(id_, impression)
        search.ranks = search.ranks or impression.ranks
    for id_, clicks in clicked.items():
        if id_ in searches:
            searches[id_].clicked |= _documents_of(clicks, searches[id_].ranks)
    if not searches:
        raise InputError(
            "Nothing says what was shown; give ubi_queries, or events named 'impression', as well."
        )
    if clicked and not clicked.keys() & searches.keys():
        raise InputError(
            f"No search has the id of any click, such as '{one_line(next(iter(clicked)), 80)}'; "
            "give the searches that were clicked."
        )
    return searches


def _documents_of(clicks: Iterable[tuple[str, int]], ranks: Mapping[str, int]) -> set[str]:
    """Return what was clicked, by the names that the list has.

    An application may call documents by another field than the list does; then the rank counts.
    """
    by_rank = {rank: document for document, rank in ranks.items()}
    return {
        document if document in ranks else by_rank.get(rank, document) for document, rank in clicks
    }


def _rows(sources: Iterable[Path | Row]) -> Iterable[tuple[str, Row]]:
    """Yield all rows, and where each stands."""
    for number, source in enumerate(sources, start=1):
        if isinstance(source, Path):
            for line, row in named_rows(source, "clicks"):
                yield f"Line {line} of {source}", row
        else:
            yield f"Row {number} of the clicks", source


def _add(
    row: Row,
    searches: Searches,
    clicked: _Clicked,
    impressions: Searches,
) -> None:
    """Add a row to what it belongs to.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: It is in none of the forms.
    """
    content = row.get("_source", row)
    if "action_name" in content:
        _add_event(content, clicked, impressions)
        return
    id_ = str(content["query_id"] if "query_id" in content else content["query"])
    if "query_response_hit_ids" in content or "user_query" in content:
        _add_search(id_, content, searches)
    else:
        document = content["document"] if "document" in content else content["object_id"]
        clicked[id_].add((str(document), 0))


def _add_search(id_: str, content: Row, searches: Searches) -> None:
    """Add a search, unless it is known or for a further page.

    Raises:
        ValueError, TypeError, AttributeError: It has another form.
    """
    documents = content.get("query_response_hit_ids") or []
    is_known = id_ in searches
    if isinstance(documents, str) or is_known or _is_further_page(content.get("query")):
        return
    ranks: dict[str, int] = {}
    for rank, document in enumerate(documents, start=1):
        ranks.setdefault(str(document), rank)
    searches[id_] = ShownSearch(
        query=str(content.get("user_query") or id_),
        ranks=ranks,
        swap=int(content.get("swap") or 0),
        arm=str(content.get("arm") or ""),
        share=float(content.get("share") or 0),
    )


def _add_event(event: Row, clicked: _Clicked, impressions: Searches) -> None:
    """Add a click or an impression; most events are neither, and some are of no search.

    Raises:
        ValueError, TypeError, AttributeError: It has another form.
    """
    attributes = event.get("event_attributes") or {}
    thing = attributes.get("object") or {}
    document = thing.get("object_id")
    search = event.get("query_id")
    if document is None or not search:
        return
    rank = int((attributes.get("position") or {}).get("ordinal") or 0)
    words = re.split(r"[^a-z]+", str(event["action_name"]).lower())
    if "click" in words:
        clicked[str(search)].add((str(document), rank))
    elif "impression" in words and rank > 0:
        new = ShownSearch(query=str(event.get("user_query") or search))
        impressions.setdefault(str(search), new).ranks[str(document)] = rank


def _is_further_page(query: object) -> bool:
    """Return whether the body of a search, as UBI keeps it, skips hits."""
    try:
        body = json.loads(query) if isinstance(query, str) else query
    except ValueError:
        return False
    return isinstance(body, Mapping) and bool(body.get("from"))


def measured(searches: Searches, most: int, margin: float = MARGIN) -> ClickFigures:
    """Return what clicks say.

    Args:
        searches: The searches, in the order of time.
        most: Ranks below this are not looked at.
        margin: So many more or fewer clicks of a query do not matter.

    Raises:
        InputError: They say nothing.
    """
    trial = _trial(searches.values(), margin)
    try:
        discount = measured_discount(searches, most)
    except InputError as error:
        if trial is None:
            raise
        return ClickFigures(why_not=str(error), trial=trial)
    return ClickFigures(examination=discount, trial=trial)


def measured_discount(searches: Searches, most: int) -> MeasuredDiscount:
    """Estimate how likely ranks are looked at: by intervention where there was one.

    The estimate ends above the first rank that it cannot reach from the others.

    Args:
        searches: The searches.
        most: Ranks below this are not looked at.

    Raises:
        InputError: Not even the second rank can be compared with the first.
    """
    most = min(most, MOST_WEIGHTS)
    tossed = [search for search in searches.values() if search.swap]
    methods: dict[Literal["intervention", "regression"], Callable[[], _Estimate]] = {}
    if tossed:
        methods["intervention"] = lambda: _by_intervention(tossed, most)
    methods["regression"] = lambda: _by_regression([*searches.values()], most)
    reasons: list[str] = []
    for name, estimate_by in methods.items():
        try:
            estimate = estimate_by()
        except InputError as error:
            reasons.append(f"by {name}: {error}")
            continue
        return MeasuredDiscount(
            by=name,
            searches=estimate.searches,
            clicks=estimate.clicks,
            values=_rounded(estimate.examination.values),
            low=_rounded(estimate.examination.low),
            high=_rounded(estimate.examination.high),
        )
    raise InputError(f"These clicks do not say how likely ranks are looked at: {' '.join(reasons)}")


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(float(value), DIGITS) for value in values)


@dataclass(frozen=True, slots=True)
class _ClickObservations:
    """What was shown and clicked; arrays of one length, and of how many searches they are."""

    units: Integers
    ranks: Integers
    clicks: Integers
    shown: Integers
    clusters: Integers
    searches: int


@dataclass(frozen=True, slots=True)
class _Estimate:
    """How likely ranks are looked at, and from how many searches and clicks that is known."""

    examination: Examination
    searches: int
    clicks: int


def _by_intervention(tossed: Sequence[ShownSearch], most: int) -> _Estimate:
    """Compare two ranks over the searches in which chance put either document there.

    The unit is the rank that was swapped with the first, in all these searches.

    Raises:
        InputError: These ranks cannot be compared.
    """
    numbers = _numbers(search.query for search in tossed)
    rows: list[tuple[int, int, int, int, int]] = []
    searches = 0
    for search in tossed:
        by_rank = {rank: document for document, rank in search.ranks.items()}
        if search.swap > most or search.swap not in by_rank or 1 not in by_rank:
            continue
        searches += 1
        for rank in (1, search.swap):
            is_clicked = by_rank[rank] in search.clicked
            rows.append((search.swap, rank, int(is_clicked), 1, numbers[search.query]))
    return _estimated(_observed(rows, searches))


def _by_regression(searches: Sequence[ShownSearch], most: int) -> _Estimate:
    """Compare ranks over documents that stood at several for the same query.

    Raises:
        InputError: These ranks cannot be compared.
    """
    shown = Counter[tuple[str, str, int]]()
    clicked = Counter[tuple[str, str, int]]()
    for search in searches:
        for document, rank in search.ranks.items():
            if rank <= most:
                key = (search.query, document, rank)
                shown[key] += 1
                clicked[key] += document in search.clicked
    ranks = Counter((query, document) for query, document, _ in shown)
    moved = {unit for unit, count in ranks.items() if count > 1}  # others say nothing
    units = _numbers(moved)
    queries = _numbers(query for query, _ in moved)
    rows: list[tuple[int, int, int, int, int]] = []
    for key, count in shown.items():
        query, document, rank = key
        unit = (query, document)
        if unit in units:
            rows.append((units[unit], rank, clicked[key], count, queries[query]))
    count = sum(search.query in queries for search in searches)
    return _estimated(_observed(rows, count))


def _numbers(values: Iterable[Any]) -> dict[Any, int]:
    """Return a number for each distinct value."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _observed(rows: Sequence[tuple[int, int, int, int, int]], searches: int) -> _ClickObservations:
    table = np.array(rows, dtype=np.intp).reshape(len(rows), 5)
    units, ranks, clicks, shown, clusters = table.T
    return _ClickObservations(units, ranks, clicks, shown, clusters, searches)


def _estimated(observed: _ClickObservations) -> _Estimate:
    """Estimate as many of the first ranks as can be compared with the first.

    Raises:
        InputError: Not even the second can be.
    """
    last = 1
    while _queries_about(observed, last + 1) >= LEAST_QUERIES:
        last += 1
    if last < 2:
        raise InputError(
            f"Only {_queries_about(observed, 2)} queries with clicks had different documents at "
            f"ranks 1 and 2, and {LEAST_QUERIES} are needed."
        )
    reason = InputError("")
    for deepest in range(last, 1, -1):
        is_compared = observed.ranks <= deepest
        clicks = observed.clicks[is_compared]
        try:
            estimate = examination(
                observed.units[is_compared],
                observed.ranks[is_compared],
                clicks,
                shown=observed.shown[is_compared],
                clusters=observed.clusters[is_compared],
            )
        except InputError as error:
            reason = error
            continue
        if np.isfinite(estimate.high).all():
            return _Estimate(estimate, observed.searches, int(clicks.sum()))
        reason = InputError(f"There are too few clicks for an interval at rank {deepest}.")
    raise reason


def _queries_about(observed: _ClickObservations, rank: int) -> int:
    """Return how many queries have clicks in a unit that stood at this rank, too."""
    units = np.unique(observed.units[observed.ranks == rank])
    says = np.isin(observed.units, units) & (observed.clicks > 0)
    return len(np.unique(observed.clusters[says]))


def _falling(values: Sequence[float], weights: Sequence[float] | Any) -> tuple[float, ...]:
    """Return the numbers that never rise and are nearest to these (pool adjacent violators)."""
    blocks: list[list[float]] = []  # of each: the mean, the weight, how many numbers
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, float(weight), 1])
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            below = blocks.pop()
            above = blocks.pop()
            total = above[1] + below[1]
            mean = (above[0] * above[1] + below[0] * below[1]) / total
            blocks.append([mean, total, above[2] + below[2]])
    return tuple(mean for mean, _, count in blocks for _ in range(int(count)))


def _trial(searches: Iterable[ShownSearch], margin: float) -> Trial | None:
    """Compare the arms of a proxy; None if there are not two.

    Chance put queries into arms, so each counts once: by its first search, as later ones would
    change what was looked at before. Lists in which chance swapped documents are left out.
    """
    first: dict[str, ShownSearch] = {}
    for search in searches:
        if search.arm and 0 < search.share < 1 and not search.swap:
            first.setdefault(search.query, search)
    units = [*first.values()]
    is_fair = np.array([search.arm == "fair" for search in units], dtype=bool)
    if len(units) < 2 or is_fair.all() or not is_fair.any():
        return None
    clicks = np.array([len(search.clicked) for search in units], dtype=np.float64)
    shares = [search.share for search in units]
    difference = sequential_difference(clicks, is_fair, share=shares, margin=margin)
    # Before, the interval, which holds in the limit of many, would end a trial too early.
    has_begun = np.count_nonzero(clicks) >= LEAST_QUERIES
    arms = {"engine": ~is_fair, "fair": is_fair}
    return Trial(
        queries={name: int(arm.sum()) for name, arm in arms.items()},
        rates={name: round(float(clicks[arm].mean()), DIGITS) for name, arm in arms.items()},
        value=round(difference.value, DIGITS),
        low=round(difference.low, DIGITS),
        high=round(difference.high, DIGITS),
        margin=margin,
        decision=difference.decision if has_begun else "go on",
    )
