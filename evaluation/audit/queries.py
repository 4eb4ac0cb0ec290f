"""The queries of an audit: each text once, with how much it counts, from a file of any length."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path

import numpy as np

from fairqr.base.errors import InputError, one_line
from fairqr.base.statistics import stream
from fairqr.retrieval.documents import Progress, chunks
from fairqr.retrieval.query_files import QueryColumns, QueryRow, query_rows

MOST_QUERIES = 200_000
"""More different queries than this are not audited, and no more are drawn for a sample."""

ROWS_AT_ONCE = 8192
"""A sample depends on it, as on the seed and on the order of the rows."""

ID_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A query of an audit.

    Attributes:
        id: As judgements name it, or a short hash of the text, which is the same in every file.
        text: What is asked, with single spaces.
        weight: How much it counts: the weights of its lines together, or the number of draws in a
            sample.
        lines: How many lines of the input it stands for.
        asks: How often it was asked, as far as its lines say; at least that often in a sample.
    """

    id: str
    text: str
    weight: float = 1.0
    lines: int = 1
    asks: float = 1.0


@dataclass(frozen=True, slots=True)
class Queries:
    """The queries of an audit, and how they came about.

    Attributes:
        queries: In the order of the lines that they first stand in.
        lines: How many lines had a query and a weight above 0.
        distinct: How many different queries these lines have; None for a sample, which does not
            count them.
        weight: The weight of these lines together.
        design: How the queries were chosen and what they count, for the report.
        counted: Whether the lines have weights, or were drawn from, as one does with a log. Then a
            query that stands in one line was asked rarely; in a plain list that says nothing.
    """

    queries: tuple[AuditQuery, ...]
    lines: int
    distinct: int | None
    weight: float
    design: str
    counted: bool = False

    @property
    def say_how_often(self) -> bool:
        """Whether anything says how often queries were asked; a plain list of them does not."""
        return self.counted or any(query.asks != 1 for query in self.queries)

    @property
    def fingerprint(self) -> str:
        """A hash of the queries with their weights."""
        held = json.dumps([astuple(query) for query in self.queries])
        return hashlib.sha256(held.encode()).hexdigest()


def read_audit_queries(
    path: Path,
    columns: QueryColumns | None = None,
    *,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Queries:
    """Read queries from a file of any form that :mod:`fairqr.retrieval.query_files` reads.

    The file is read once, in a stream. This blocks.

    Args:
        path: The file.
        columns: Which columns hold what.
        sample: Draw so many; see :func:`collect_queries`.
        seed: Of the draws.
        progress: Called now and then with the number of rows read.

    Raises:
        CorpusError: The file cannot be read.
        InputError: The file has no queries, a line is wrong, or there are too many queries.
    """
    columns = columns or QueryColumns()
    return collect_queries(
        query_rows(path, columns),
        sample=sample,
        seed=seed,
        weighted_by=columns.weight,
        origin=str(path),
        progress=progress,
    )


def collect_queries(
    rows: Iterable[QueryRow],
    *,
    sample: int | None = None,
    seed: int = 0,
    weighted_by: str | None = None,
    origin: str = "given",
    progress: Progress | None = None,
) -> Queries:
    """Put rows with the same text together, or draw some rows and do so with these.

    A sample is drawn with replacement, each row with a probability proportional to its weight, and
    a query then counts as often as it was drawn. One pass is enough, and memory holds no more than
    the sample: while rows go by, each of the draws changes to the next row with the probability
    that this row has among all rows so far.

    Args:
        rows: The queries, each with another line. Those of weight 0 are counted and left out.
        sample: How many to draw; all queries are kept by default.
        seed: Of the draws. The same seed and rows in the same order give the same sample.
        weighted_by: What the weights are called; None if each row counts once.
        origin: Where the rows are from, for messages.
        progress: Called now and then with the number of rows read.

    Raises:
        InputError: There are no queries, blank ones, too many different ones, two different ones
            with the same id, or no weight above 0; or the sample is too small or too large.
    """
    if sample is not None and not 1 <= sample <= MOST_QUERIES:
        raise InputError(f"A sample has 1 to {MOST_QUERIES:,} draws, not {sample:,}.")
    if seed < 0:
        raise InputError(f"The seed must be 0 or more, not {seed}.")
    counted = _Counted(rows, weighted_by, origin, progress)
    kept = _Kept(origin)
    if sample is None:
        for chunk in counted.chunks():
            for row in chunk:
                kept.add(row, row.weight)
    else:
        for row, draws in _drawn(counted.chunks(), sample, seed):
            kept.add(row, draws)
    counted.check()
    queries = kept.queries()
    distinct = len(queries) if sample is None else None
    design = counted.design(len(queries), sample, seed)
    is_log = weighted_by is not None or sample is not None
    return Queries(queries, counted.lines, distinct, counted.weight, design, is_log)


@dataclass(slots=True)
class _Counted:
    """Passes rows on and counts them.

    Attributes:
        rows: All of them.
        weighted_by: What the weights are called.
        origin: Where the rows are from.
        progress: Told how many were read.
        lines: How many have a weight.
        blank: Those without a text.
        unasked: How many have the weight 0.
        weight: Of all together.
    """

    rows: Iterable[QueryRow]
    weighted_by: str | None
    origin: str
    progress: Progress | None
    lines: int = 0
    blank: list[int] = field(default_factory=list)
    unasked: int = 0
    weight: float = 0.0

    def chunks(self) -> Iterator[list[QueryRow]]:
        """Yield the rows that have a weight."""
        read = 0
        for chunk in chunks(self.rows, ROWS_AT_ONCE):
            read += len(chunk)
            self.blank += [row.line for row in chunk if not row.text]
            kept = [row for row in chunk if row.weight > 0]
            self.unasked += len(chunk) - len(kept)
            self.lines += len(kept)
            self.weight += sum(row.weight for row in kept)
            if self.weight == float("inf"):
                raise InputError(f"The weights of the queries {self.origin} add up to infinity.")
            if kept:
                yield kept
            if self.progress is not None:
                self.progress(read)

    def check(self) -> None:
        """Refuse blank queries, and what no query is in."""
        if self.blank:
            named = ", ".join(map(str, self.blank[:5])) + ", …" * (len(self.blank) > 5)
            raise InputError(
                f"The queries {self.origin} have no text in lines {named}; fill or remove these."
            )
        if self.lines:
            return
        if self.unasked:
            raise InputError(
                f"All weights of the queries {self.origin} are 0; name another column of weights."
            )
        raise InputError(f"The queries {self.origin} are empty; give at least one query.")

    def design(self, distinct: int, sample: int | None, seed: int) -> str:
        """Say how the queries were chosen."""
        weights = f"'{one_line(self.weighted_by)}'" if self.weighted_by else "number of lines"
        if sample is None:
            said = [
                f"All {distinct:,} different queries of {self.lines:,} lines were asked; "
                f"each counts by its {weights}."
            ]
        else:
            chance = f"proportional to its {weights}" if self.weighted_by else "equal for all"
            said = [
                f"{sample:,} draws with replacement from {self.lines:,} lines, the probability of "
                f"a line being {chance} (seed {seed}), gave {distinct:,} different queries; "
                "each counts as often as it was drawn."
            ]
        if self.unasked:
            said.append(f"Lines of weight 0, left out: {self.unasked:,}.")
        return " ".join(said)


def _drawn(
    parts: Iterable[list[QueryRow]], sample: int, seed: int
) -> Iterator[tuple[QueryRow, int]]:
    """Draw rows in one pass; yield each drawn row, in order, with how often it was drawn.

    For many rows at once: with W the weight so far and w that of the rows that come now, a draw
    stays as it is with probability W / (W + w), and else becomes one of these rows in proportion
    to their weights. Row by row this is the same.
    """
    rng = stream(seed, "queries of an audit")
    draws: list[QueryRow] = []
    before = 0.0
    for rows in parts:
        ends = np.cumsum([row.weight for row in rows])
        together = float(before + ends[-1])
        points = rng.random(sample) * together - before
        changed = range(sample) if not before else np.flatnonzero(points >= 0)
        # Rounding may put a point at the very end.
        places = np.minimum(np.searchsorted(ends, points, side="right"), len(rows) - 1)
        if not draws:
            draws = [rows[0]] * sample
        for draw in changed:
            draws[draw] = rows[places[draw]]
        before = together
    times: dict[int, int] = {}
    for row in draws:
        times[row.line] = times.get(row.line, 0) + 1
    by_line = {row.line: row for row in draws}
    for line in sorted(times):
        yield by_line[line], times[line]


@dataclass(slots=True)
class _Together:
    """The rows of one text."""

    id: str
    weight: float = 0.0
    lines: int = 0
    asks: float = 0.0


@dataclass(slots=True)
class _Kept:
    """Different queries.

    Attributes:
        origin: Where they are from.
    """

    origin: str
    _by_text: dict[str, _Together] = field(default_factory=dict)
    _lines_of_ids: dict[str, int] = field(default_factory=dict)

    def add(self, row: QueryRow, weight: float) -> None:
        """Take a row."""
        found = self._by_text.get(row.text)
        if found is None:
            found = self._by_text[row.text] = _Together(self._id(row))
        found.weight += weight
        found.lines += 1
        found.asks += row.weight

    def queries(self) -> tuple[AuditQuery, ...]:
        """Return them."""
        return tuple(
            AuditQuery(it.id, text, it.weight, it.lines, it.asks)
            for text, it in self._by_text.items()
        )

    def _id(self, row: QueryRow) -> str:
        if len(self._by_text) == MOST_QUERIES:
            raise InputError(
                f"The queries {self.origin} are more than {MOST_QUERIES:,} different ones; draw "
                "some of them, for example 10,000 with --sample 10000."
            )
        if row.id is None:
            # A name, not a secret: a query can be guessed from it.
            return hashlib.sha256(row.text.encode()).hexdigest()[:ID_CHARACTERS]
        if (first := self._lines_of_ids.setdefault(row.id, row.line)) != row.line:
            raise InputError(
                f"The queries {self.origin}, line {row.line}: the id '{one_line(row.id)}' belongs "
                f"to another query in line {first}; give each query its own id."
            )
        return row.id
