"""The queries of an audit: each once, with how much it counts, from a file of any length."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
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
        held = json.dumps([astuple(query) for query in self.queries])
        return hashlib.sha256(held.encode()).hexdigest()


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
    rng = stream(seed, "queries of an audit")
    found: dict[tuple[str, ...], AuditQuery] = {}
    ids: dict[str, int] = {}
    draws: list[QueryRow] = []
    segments: set[str] = set()
    read, lines, weight = 0, 0, 0.0
    for chunk in chunks(rows, ROWS_AT_ONCE):
        # A zero-width space is neither a space nor printable.
        texts = ["".join(filter(str.isprintable, row.text)).strip() for row in chunk]
        if blank := [str(it.line) for it, text in zip(chunk, texts, strict=True) if not text]:
            named = "s" * (len(blank) > 1) + " " + ", ".join(blank[:5]) + ", …" * (len(blank) > 5)
            raise InputError(f"The {origin} have no text in line{named}; fill or remove these.")
        kept = [row for row in chunk if row.weight > 0]
        ends = list(accumulate((row.weight for row in kept), initial=weight))
        read, lines, weight = read + len(chunk), lines + len(kept), ends[-1]
        segments.update(row.segment for row in kept)
        if len(segments - {""}) > MOST_SEGMENTS:
            raise InputError(
                f"The {origin} have more than {MOST_SEGMENTS} segments; group by another column."
            )
        if sample is None:
            _add(found, ids, ((row, row.weight) for row in kept), origin)
        elif kept:
            draws = draws or kept[:1] * sample
            _redraw(draws, kept, ends, rng)

    if not read:
        raise InputError(f"The {origin} are empty; give at least one query.")
    if not lines:
        raise InputError(f"All weights of the {origin} are 0; name another column of weights.")
    # In the order of their lines.
    _add(found, ids, sorted(Counter(draws).items()), origin)

    weights = f"'{one_line(weighted_by)}'" if weighted_by else "number of lines"
    different = f"{len(found):,} different queries"
    design = f"All {different} of {lines:,} lines were asked; each counts by its {weights}."
    if sample is not None:
        chance = f"proportional to its {weights}" if weighted_by else "equal for all"
        design = (
            f"{sample:,} draws with replacement from {lines:,} lines, the probability of a line "
            f"being {chance} (seed {seed}), gave {different}; each counts as often as it was drawn."
        )
    if read > lines:
        design += f" Lines of weight 0, left out: {read - lines:,}."
    queries, is_log = tuple(found.values()), weighted_by is not None or sample is not None
    return Queries(queries, lines, weight, design, is_log)


def _redraw(draws: list[QueryRow], rows: list[QueryRow], ends: list[float], rng: Generator) -> None:
    """Let each draw change to one of the next rows, by their shares of the weight of all so far.

    With W the weight before these rows and w theirs, a draw stays as it is with probability
    W / (W + w), and else becomes one of these rows in proportion to their weights. Row by row this
    is the same.

    Args:
        draws: Changed in place.
        rows: Those that come now.
        ends: The weight before these rows, then after each of them.
        rng: The source of chance.
    """
    points = rng.random(len(draws)) * ends[-1]
    # Rounding may put a point at the very end.
    places = np.minimum(np.searchsorted(ends, points, side="right"), len(rows)) - 1
    for draw in np.flatnonzero(places >= 0):
        draws[draw] = rows[places[draw]]


def _add(
    found: dict[tuple[str, ...], AuditQuery],
    ids: dict[str, int],
    rows: Iterable[tuple[QueryRow, float]],
    origin: str,
) -> None:
    """Add rows to the queries that were found.

    Args:
        found: Queries by id, text and segment; changed in place.
        ids: The first line of each id; changed in place.
        rows: Each with how much it counts.
        origin: What they are called in messages.
    """
    for row, weight in rows:
        key = row.id or "", row.text, row.segment
        if (query := found.get(key)) is None:
            # A name, not a secret: a query can be guessed from it.
            hashed = hashlib.sha256("\n".join(filter(None, key[1:])).encode()).hexdigest()[:16]
            query = AuditQuery(row.id or hashed, row.text, 0.0, 0, 0.0)
            if (first := ids.setdefault(query.id, row.line)) != row.line:
                raise InputError(
                    f"The {origin}, line {row.line}: the id '{one_line(query.id)}' belongs "
                    f"to another query in line {first}; give each query its own id."
                )
        sums = query.weight + weight, query.lines + 1, query.asks + row.weight
        found[key] = AuditQuery(query.id, row.text, *sums, row.segment)
    if len(found) > MOST_QUERIES:
        raise InputError(
            f"The {origin} are more than {MOST_QUERIES:,} different ones; draw some with --sample."
        )
