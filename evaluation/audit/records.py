"""The records of an audit: the lines of its files in ``raw/``.

Each part of an audit keeps one record a query. A record that failed is made again when the audit
goes on; all others stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from fairqr.evaluation.experiments.folder import Record
from fairqr.retrieval.table import CodedMemberships


class AuditRecord(Record):
    """What became of one query in a part of an audit.

    Attributes:
        query: The id of the query.
        status: ``failed`` if nothing is known.
        message: Why it failed.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    keys = ("query",)

    query: str | int
    status: str
    message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use."""
        return self.status != "failed"

    def redacted(self, pseudonyms: Mapping[str, str], withheld: str) -> Self:
        """Return the record under the pseudonym of its query, without what may quote the query.

        Args:
            pseudonyms: By the ids of queries. A number, as pairs have, is no id and stays.
            withheld: Stands in place of a message.
        """
        query = pseudonyms[self.query] if isinstance(self.query, str) else self.query
        message = withheld if self.message else ""
        return self.model_copy(update={"query": query, "message": message})


class Observation(AuditRecord):
    """What the engine answered to a query, and what is known of that.

    Attributes:
        query: The id of the query.
        status: ``ok``, ``empty`` if the engine found nothing, or ``failed``.
        ids: What the engine answered, best first.
        scores: The engine's score of each id.
        again: The ids of a second pass, which says how stable the engine is; None without one.
        others: Further documents that may be relevant: judged, or found by wider searches.
        relevance: For each document of the pool, how likely it is relevant: judged (0 or 1), or
            estimated from texts alone; None if neither is known.
        groups: By attribute, the memberships of the pool.
        levels: By attribute, the estimate from which the pool has what there is of each group
            alike (:func:`fairqr.retrieval.relevance_of_texts.end_of`); 0 where missing.
        hidden: How many judged relevant documents are left out, since the engine gives only what it
            answers, so that their groups are not known.
        seconds: How long the engine took.
    """

    query: str = Field(min_length=1)
    status: Literal["ok", "empty", "failed"]
    ids: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    again: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    relevance: tuple[float, ...] | None = None
    groups: dict[str, CodedMemberships] = Field({})
    levels: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field({})
    hidden: int = Field(0, ge=0)
    seconds: float = Field(0.0, ge=0)

    @property
    def pool(self) -> tuple[str, ...]:
        """All documents that are looked at: ``ids`` first, then ``others``."""
        return self.ids + self.others

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.status == "ok") != bool(self.ids):
            raise ValueError(f"the status is '{self.status}' with {len(self.ids)} ids")
        if len(self.scores) != len(self.ids):
            raise ValueError("there are not as many scores as ids")
        size = len(self.ids) + len(self.others)
        if len({*self.ids, *self.others}) != size:
            raise ValueError("the pool has an id twice")
        if self.again is not None and len(set(self.again)) != len(self.again):
            raise ValueError("the second pass has an id twice")
        relevance = self.relevance
        if relevance is not None and (len(relevance) != size or not _are_shares(relevance)):
            raise ValueError("'relevance' is not one number from 0 to 1 for each of the pool")
        _check_groups(self.groups, size, "the pool")
        return self


class PairScores(AuditRecord):
    """The scores of a query's documents; it names neither the query nor the documents.

    Attributes:
        query: The number of the query in the file of pairs.
        status: ``ok`` or ``failed``.
        pairs: For each document, the number of its pair within the query.
        versions: For each document, its version.
        scores: For each document; None if the engine does not have it.
    """

    query: int = Field(ge=1)
    status: Literal["ok", "failed"]
    pairs: tuple[int, ...] = ()
    versions: tuple[str, ...] = ()
    scores: tuple[float | None, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not len(self.pairs) == len(self.versions) == len(self.scores):
            raise ValueError("there are not as many versions and scores as documents")
        if len(set(zip(self.pairs, self.versions, strict=True))) != len(self.pairs):
            raise ValueError("a pair has a version twice")
        return self


def _check_groups(groups: Mapping[str, CodedMemberships], size: int, whose: str) -> None:
    for name, coded in groups.items():
        patterns, rows = coded["patterns"], coded["rows"]
        if len(rows) != size or not set(range(len(patterns))).issuperset(rows):
            raise ValueError(f"the groups of '{name}' are not those of {whose}")
        if len({len(pattern) for pattern in patterns}) > 1 or not all(map(_are_shares, patterns)):
            raise ValueError(f"the memberships in '{name}' are not shares from 0 to 1")


def _are_shares(numbers: Iterable[float]) -> bool:
    return all(0 <= number <= 1 for number in set(numbers))
