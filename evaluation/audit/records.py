"""The records of an audit: the lines of its files in ``raw/``.

Each part of an audit keeps one record a query. A record that failed is made again when the audit
goes on; all others stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, FiniteFloat, model_validator

from fairqr.evaluation.experiments.folder import Record
from fairqr.retrieval.fairness.table import CodedMemberships


class AuditRecord(Record, allow_inf_nan=False):
    """What became of one query in a part of an audit.

    Attributes:
        query: The id of the query.
        status: ``failed`` if nothing is known.
        message: Why it failed.
    """

    keys = ("query",)

    query: str | int
    status: str
    message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use."""
        return self.status != "failed"


class Observation(AuditRecord):
    """What the engine answered to a query, and what is known of that.

    Attributes:
        query: The id of the query.
        status: ``ok``, ``empty`` if the engine found nothing, or ``failed``.
        ids: What the engine answered, best first.
        others: Further documents that may be relevant: judged, or found by wider searches.
        relevance: For each document of the pool, how likely it is relevant: judged (0 or 1), or
            estimated from texts alone; None if neither is known.
        by_words: The same by the words alone that query and text share, where it is estimated.
        by_similarity: The same by the similarity of query and text alone.
        groups: By attribute, the memberships of the pool.
        levels: By attribute, the estimate from which the pool has what there is of each group
            alike (:func:`fairqr.retrieval.engines.hybrid.texts.end_of`); 0 where
            missing.
        judged: By attribute, the memberships of the documents that were judged relevant, where
            relevance is estimated all the same.
        absent: How many judged relevant documents the engine does not hold.
        hidden: How many judged relevant documents are left out, since the engine gives only what it
            answers, so that their groups are not known.
    """

    query: str = Field(min_length=1)
    status: Literal["ok", "empty", "failed"]
    ids: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    relevance: tuple[float, ...] | None = None
    by_words: tuple[float, ...] | None = None
    by_similarity: tuple[float, ...] | None = None
    groups: dict[str, CodedMemberships] = Field({})
    levels: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field({})
    judged: dict[str, CodedMemberships] = Field({})
    absent: int = Field(0, ge=0)
    hidden: int = Field(0, ge=0)

    @property
    def pool(self) -> tuple[str, ...]:
        """All documents that are looked at: ``ids`` first, then ``others``."""
        return self.ids + self.others

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.status == "ok") != bool(self.ids):
            raise ValueError(f"the status is '{self.status}' with {len(self.ids)} ids")
        size = len(self.pool)
        if len(set(self.pool)) != size:
            raise ValueError("the pool has an id twice")
        for found in filter(None, (self.relevance, self.by_words, self.by_similarity)):
            if len(found) != size or not _are_shares(found):
                raise ValueError("'relevance' is not one number from 0 to 1 for each of the pool")
        for groups, count in (self.groups, size), (self.judged, None):
            for name, coded in groups.items():
                patterns, rows = coded["patterns"], coded["rows"]
                fits = set(range(len(patterns))).issuperset(rows)
                if count not in (None, len(rows)) or not fits:
                    raise ValueError(f"the groups of '{name}' are not those of the pool")
                if len(set(map(len, patterns))) > 1 or not all(map(_are_shares, patterns)):
                    raise ValueError(f"the memberships in '{name}' are not shares from 0 to 1")
        return self


class VersionScores(BaseModel, frozen=True, extra="forbid"):
    """The scores of a document in several versions.

    Attributes:
        segment: What the pair is about; may be empty.
        scores: By version; None if the engine does not have it.
    """

    segment: str = ""
    scores: dict[str, FiniteFloat | None]


class PairScores(AuditRecord):
    """The scores of a query's documents; it names neither the query nor the documents.

    Attributes:
        query: The number of the query in the file of pairs.
        status: ``ok`` or ``failed``.
        pairs: The scores of each pair.
    """

    query: int = Field(ge=1)
    status: Literal["ok", "failed"]
    pairs: tuple[VersionScores, ...] = ()


def _are_shares(numbers: Iterable[float]) -> bool:
    return all(0 <= number <= 1 for number in set(numbers))
