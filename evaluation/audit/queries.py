"""The queries of an audit: each once, with how much it counts, from a file of any length."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.random import Generator

from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, one_line
from fairqr.retrieval.sources.documents import chunks
from fairqr.retrieval.sources.query_files import QueryRow

MOST_QUERIES = 200_000
"""More different queries than this are not audited, and no more are drawn for a sample."""

MOST_SEGMENTS = 50
"""A column with more different values is probably an id or a text, and no grouping."""

MOST_NAMED = 5
"""How many lines a message names."""

ROWS_AT_ONCE = 8192
"""A sample depends on it, as on the seed and on the order of the rows."""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A query of an audit.

    Attributes:
        id: As judgements name it, or a short hash of text and segment, the same in every file.
        text: What is asked, with single spaces.
        weight: How much it counts: the weights of its lines together, or the number of draws in a
            sample.
        lines: How many lines of the input it stands for.
        asks: How often it was asked, as far as its lines say; at least that often in a sample.
        segment: The segment of queries to report it in, such as its topic; empty if it has none.
    """

    id: str
    text: str
    weight: float = 1.0
    lines: int = 1
    asks: float = 1.0
    segment: str = ""


@dataclass(frozen=True, slots=True)
class Queries:
    """The queries of an audit, and how they came about.

    Attributes:
        queries: In the order of the lines that they first stand in.
        lines: How many lines had a query and a weight above 0.
        weight: The weight of these lines together.
        design: How the queries were chosen and what they count, for the report.
        counted: Whether the lines have weights, or were drawn from, as one does with a log. Then a
            query that stands in one line was asked rarely; in a plain list that says nothing.
    """

    queries: tuple[AuditQuery, ...]
    lines: int
    weight: float
    design: str
    counted: bool = False

    @property
    def say_how_often(self) -> bool:
        """Whether anything says how often queries were asked; a plain list of them does not."""
        return self.counted or any(query.asks != 1 for query in self.queries)

    @property
    def fingerprint(self) -> str:
        """A hash of the queries with their weights and segments."""
        content = json.dumps([astuple(query) for query in self.queries])
        return hashlib.sha256(content.encode()).hexdigest()


def collect_queries(
    rows: Iterable[QueryRow],
    *,
    sample: int | None = None,
    seed: int = 0,
    weighted_by: str | None = None,
    origin: str = "queries given",
) -> Queries:
    """Count rows with the same id, text and segment together, or draw some rows and count those.

    A sample is drawn with replacement, each row with a probability proportional to its weight, and
    a query then counts as often as it was drawn. One pass is enough, and memory holds no more than
    the sample: while rows go by, each of the draws changes to the next row with the probability
    that this row has among all rows so far.

    Args:
        rows: The queries, each with another line. Those of weight 0 are counted and left out.
        sample: How many to draw; all queries are kept by default.
        seed: The seed of the draws. The same seed and rows in the same order give the same sample.
        weighted_by: What the weights are called; None if each row counts once.
        origin: What the queries are called in messages.

    Raises:
        InputError: There are no queries, blank ones, too many different ones or segments, two
            different ones with the same id, or no weight above 0; or the sample is too small or too
            large.
    """
    if sample is not None and not 1 <= sample <= MOST_QUERIES:
        raise InputError(f"A sample has 1 to {MOST_QUERIES:,} draws, not {sample:,}.")
    collected = _QuerySampler(origin, sample, stream(seed, "queries of an audit"))
    for chunk in chunks(rows, ROWS_AT_ONCE):
        collected.add(chunk)
    if not collected.read:
        raise InputError(f"The {origin} are empty; give at least one query.")
    if not collected.lines:
        raise InputError(f"All weights of the {origin} are 0; name another column of weights.")
    collected.count_draws()

    queries = tuple(collected.queries.values())
    weights = f"'{one_line(weighted_by)}'" if weighted_by else "number of lines"
    different = f"{len(queries):,} different queries"
    lines = f"{collected.lines:,} lines"
    if sample is None:
        design = f"All {different} of {lines} were asked; each counts by its {weights}."
    else:
        chance = f"proportional to its {weights}" if weighted_by else "equal for all"
        design = (
            f"{sample:,} draws with replacement from {lines}, the probability of a line being "
            f"{chance} (seed {seed}), gave {different}; each counts as often as it was drawn."
        )
    without_weight = collected.read - collected.lines
    if without_weight:
        design += f" Lines of weight 0, left out: {without_weight:,}."
    is_log = weighted_by is not None or sample is not None
    return Queries(queries, collected.lines, collected.weight, design, is_log)


class _QuerySampler:
    """Counts rows as they go by, or draws from them.

    Args:
        origin: What the queries are called in messages.
        sample: How many to draw; None counts all.
        random: Draws them.

    Attributes:
        queries: What was counted, by id, text and segment.
        read: How many rows went by.
        lines: How many of them have a weight above 0.
        weight: Their weight together.
    """

    def __init__(self, origin: str, sample: int | None, random: Generator) -> None:
        self.queries: dict[tuple[str, ...], AuditQuery] = {}
        self.read = 0
        self.lines = 0
        self.weight = 0.0
        self._origin = origin
        self._sample = sample
        self._random = random
        self._draws: list[QueryRow] = []
        self._segments: set[str] = set()
        self._first_lines: dict[str, int] = {}

    def add(self, chunk: Sequence[QueryRow]) -> None:
        """Take in rows.

        Raises:
            InputError: One has no text; or there are too many segments or different queries, or two
                different queries with the same id.
        """
        self._check_texts(chunk)
        rows = [row for row in chunk if row.weight > 0]
        ends = list(accumulate((row.weight for row in rows), initial=self.weight))
        self.read += len(chunk)
        self.lines += len(rows)
        self.weight = ends[-1]
        self._segments.update(row.segment for row in rows)
        if len(self._segments - {""}) > MOST_SEGMENTS:
            raise InputError(
                f"The {self._origin} have more than {MOST_SEGMENTS} segments; group by another "
                "column."
            )
        if self._sample is None:
            self._count((row, row.weight) for row in rows)
        elif rows:
            if not self._draws:
                self._draws = rows[:1] * self._sample
            _redraw(self._draws, rows, ends, self._random)

    def count_draws(self) -> None:
        """Count what was drawn, in the order of the lines."""
        self._count(sorted(Counter(self._draws).items()))

    def _check_texts(self, chunk: Sequence[QueryRow]) -> None:
        """Refuse rows without text; a zero-width space is neither a space nor printable."""
        blank = []
        for row in chunk:
            text = "".join(filter(str.isprintable, row.text))
            if not text.strip():
                blank.append(str(row.line))
        if not blank:
            return
        noun = "line" if len(blank) == 1 else "lines"
        numbers = ", ".join(blank[:MOST_NAMED])
        if len(blank) > MOST_NAMED:
            numbers += ", …"
        raise InputError(
            f"The {self._origin} have no text in {noun} {numbers}; fill or remove these."
        )

    def _count(self, rows: Iterable[tuple[QueryRow, float]]) -> None:
        """Add rows to the queries, each with how much it counts."""
        for row, weight in rows:
            key = (row.id or "", row.text, row.segment)
            query = self.queries.get(key) or self._new_query(row)
            self.queries[key] = replace(
                query,
                weight=query.weight + weight,
                lines=query.lines + 1,
                asks=query.asks + row.weight,
            )
        if len(self.queries) > MOST_QUERIES:
            raise InputError(
                f"The {self._origin} are more than {MOST_QUERIES:,} different ones; draw some with "
                "--sample."
            )

    def _new_query(self, row: QueryRow) -> AuditQuery:
        """Return a query that counts nothing yet.

        Raises:
            InputError: Its id belongs to another query.
        """
        id_ = row.id
        if not id_:
            # A name, not a secret: a query can be guessed from it.
            name = "\n".join(filter(None, (row.text, row.segment)))
            id_ = hashlib.sha256(name.encode()).hexdigest()[:16]
        first = self._first_lines.setdefault(id_, row.line)
        if first != row.line:
            raise InputError(
                f"The {self._origin}, line {row.line}: the id '{one_line(id_)}' belongs to another "
                f"query in line {first}; give each query its own id."
            )
        return AuditQuery(id_, row.text, 0.0, 0, 0.0, row.segment)


def _redraw(
    draws: list[QueryRow], rows: Sequence[QueryRow], ends: Sequence[float], random: Generator
) -> None:
    """Let each draw change to one of the next rows, by their shares of the weight of all so far.

    With W the weight before these rows and w theirs, a draw stays as it is with probability
    W / (W + w), and else becomes one of these rows in proportion to their weights. Row by row this
    is the same.

    Args:
        draws: Changed in place.
        rows: Those that come now.
        ends: The weight before these rows, then after each of them.
        random: The source of chance.
    """
    points = random.random(len(draws)) * ends[-1]
    # Rounding may put a point at the very end.
    ranks = np.searchsorted(ends, points, side="right")
    positions = np.minimum(ranks, len(rows)) - 1
    for draw in np.flatnonzero(positions >= 0):
        draws[draw] = rows[positions[draw]]
