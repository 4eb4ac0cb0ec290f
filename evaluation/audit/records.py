"""The records of an audit: the lines of its files in ``raw/``.

Each part of an audit keeps one record a query. A record that failed is made again when the audit
goes on; all others stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from fairqr.evaluation.experiments.folder import Record
from fairqr.retrieval.table import CodedMemberships

__all__ = [
    "AnsweredQuery",
    "AskerName",
    "AuditRecord",
    "KeptText",
    "Observation",
    "PairScores",
    "ProbedQuery",
    "RefinedQuery",
]

AskerName = Literal["neutral", "unprotected", "protected"]
"""Who a model that is probed believes to order a list for."""


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
            pseudonyms: By the ids of queries.
            withheld: Stands in place of a message.
        """
        return self.model_copy(update=self._hidden(pseudonyms, withheld))

    def _hidden(self, pseudonyms: Mapping[str, str], withheld: str) -> dict[str, Any]:
        message = withheld if self.message else ""
        return {"query": pseudonyms[str(self.query)], "message": message}


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
            alike (:func:`fairqr.retrieval.relevance_of_texts.comparable_from`); 0 where missing.
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
        if self.relevance is not None:
            _check_relevance(self.relevance, size)
        _check_groups(self.groups, size, "the pool")
        return self


class RefinedQuery(AuditRecord):
    """What the refined queries of one query found.

    Attributes:
        query: The id of the query.
        status: ``refined``; ``enough`` if the relevant documents of the pool could give each group
            its share, so that no model is asked; ``empty`` if there is nothing to mend; or
            ``failed``.
        keywords: The words of the model that were added to the query.
        ids: The documents that the refined queries found beyond the pool of the observation.
        groups: By attribute, the memberships of these documents.
        relevance: For each document of the whole pool, that of the observation first, how likely it
            is relevant; estimated together, since an estimate depends on the pool.
        order: Places in the whole pool, best first by the original query: what a re-ranking that
            knows no relevance goes by. Empty where relevance is estimated.
        model_calls: Questions to the model.
        tokens: What it read and wrote.
    """

    query: str = Field(min_length=1)
    status: Literal["refined", "enough", "empty", "failed"]
    keywords: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    groups: dict[str, CodedMemberships] = Field({})
    relevance: tuple[float, ...] = ()
    order: tuple[int, ...] = ()
    model_calls: int = Field(0, ge=0)
    tokens: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        size = len(self.relevance)
        if (self.status == "refined") != bool(size):
            raise ValueError(f"the status is '{self.status}' with {size} estimates")
        _check_relevance(self.relevance, size)
        if not all(0 <= place < size for place in self.order):
            raise ValueError("'order' has a place that the pool lacks")
        _check_groups(self.groups, len(self.ids), "the documents")
        return self

    def _hidden(self, pseudonyms: Mapping[str, str], withheld: str) -> dict[str, Any]:
        return super()._hidden(pseudonyms, withheld) | {"keywords": ()}


class PairScores(AuditRecord):
    """The scores of a query's documents; it names neither the query nor the documents.

    Attributes:
        query: The number of the query in the file of pairs.
        status: ``ok`` or ``failed``.
        pairs: For each document, the number of its pair within the query.
        versions: For each document, its version.
        scores: For each document; None if the engine does not have it. Where a model compared two
            versions, 1 for the one that it prefers in both orders, 0 for the other, and ½ for both
            if it prefers neither.
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

    def _hidden(self, pseudonyms: Mapping[str, str], withheld: str) -> dict[str, Any]:
        return {"message": withheld if self.message else ""}


class AnsweredQuery(AuditRecord):
    """What became of the documents of one query in the answer of a model.

    Attributes:
        query: The id of the query.
        status: ``ok``; ``empty`` if the engine showed nothing, or the model wrote nothing; or
            ``failed``.
        cited: For each document that the model read, whether the answer names its number.
        used: For each of them, whether the answer can rest on it; None if that was not judged.
        shown: By attribute, the memberships of the documents that the engine showed; those that
            were read come first.
    """

    query: str = Field(min_length=1)
    status: Literal["ok", "empty", "failed"]
    cited: tuple[bool, ...] = ()
    used: tuple[bool | None, ...] = ()
    shown: dict[str, CodedMemberships] = Field({})

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.cited) != len(self.used) or bool(self.cited) != (self.status == "ok"):
            raise ValueError("there are not as many documents cited as used, or no answer")
        for name, coded in self.shown.items():
            size = max(len(coded["rows"]), len(self.used))
            _check_groups({name: coded}, size, "the documents")
        return self


class ProbedQuery(AuditRecord):
    """What a model said of the documents of one query; it names no document.

    Attributes:
        query: The id of the query.
        status: ``ok``; ``one_sided`` if the engine showed documents of one side only; or
            ``failed``.
        pairs: For each pair which side was preferred when the protected document came first, which
            one when the other did, and the log-odds of both.
        ratios: For each asker the exposure of a protected document by that of another one in the
            list that the model ordered.
    """

    query: str = Field(min_length=1)
    status: Literal["ok", "one_sided", "failed"]
    pairs: tuple[tuple[str, str, float | None, float | None], ...] = ()
    ratios: dict[AskerName, float] = Field({})


class KeptText(Record):
    """A document that was looked at, where texts are kept.

    Attributes:
        id: As the engine has it.
        title: May be empty.
        text: May be empty.
    """

    keys = ("id",)

    id: str = Field(min_length=1)
    title: str = ""
    text: str = ""


def _check_relevance(relevance: Iterable[float], size: int) -> None:
    found = tuple(relevance)
    if len(found) != size or not _are_shares(found):
        raise ValueError("'relevance' is not one number from 0 to 1 for each of the pool")


def _check_groups(groups: Mapping[str, CodedMemberships], size: int, whose: str) -> None:
    for name, coded in groups.items():
        patterns, rows = coded["patterns"], coded["rows"]
        if len(rows) != size or not set(range(len(patterns))).issuperset(rows):
            raise ValueError(f"the groups of '{name}' are not those of {whose}")
        if len({len(pattern) for pattern in patterns}) > 1 or not all(map(_are_shares, patterns)):
            raise ValueError(f"the memberships in '{name}' are not shares from 0 to 1")


def _are_shares(numbers: Iterable[float]) -> bool:
    return all(0 <= number <= 1 for number in set(numbers))
