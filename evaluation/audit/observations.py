"""What an audit observed of one query: what the engine answered, and what is known of that."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from fairqr.evaluation.experiments.folder import Record
from fairqr.retrieval.table import CodedMemberships

__all__ = ["Observation"]


class Observation(Record):
    """One query of an audit.

    Attributes:
        query: The id of the query.
        status: ``ok``, ``empty`` if the engine found nothing, or ``failed``.
        message: Why it failed.
        ids: What the engine answered, best first.
        scores: The engine's score of each id.
        again: The ids of a second pass, which says how stable the engine is; None without one.
        pool: The documents that are looked at: ``ids`` first, then those that wider searches found.
        relevance: For each document of the pool, how likely it is relevant: judged (0 or 1), or
            estimated from texts alone; None if neither is known.
        groups: By attribute, the memberships of the pool.
        levels: By attribute, the estimate from which the pool has what there is of each group
            alike (:func:`fairqr.retrieval.relevance_of_texts.comparable_from`); 0 where missing.
        seconds: How long the engine took.
    """

    model_config = ConfigDict(allow_inf_nan=False)
    keys = ("query",)

    query: str = Field(min_length=1)
    status: Literal["ok", "empty", "failed"]
    message: str = ""
    ids: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    again: tuple[str, ...] | None = None
    pool: tuple[str, ...] = ()
    relevance: tuple[float, ...] | None = None
    groups: dict[str, CodedMemberships] = Field({})
    levels: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field({})
    seconds: float = Field(0.0, ge=0)

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use; a failure is asked again when a run goes on."""
        return self.status != "failed"

    @model_validator(mode="after")
    def _fits_together(self) -> Observation:
        if (self.status == "ok") != bool(self.ids):
            raise ValueError(f"the status is '{self.status}' with {len(self.ids)} ids")
        if len(self.scores) != len(self.ids):
            raise ValueError("there are not as many scores as ids")
        if len(set(self.pool)) != len(self.pool) or self.pool[: len(self.ids)] != self.ids:
            raise ValueError("the pool does not begin with the ids, or has one twice")
        if self.again is not None and len(set(self.again)) != len(self.again):
            raise ValueError("the second pass has an id twice")
        if self.relevance is not None and (
            len(self.relevance) != len(self.pool) or not _are_shares(self.relevance)
        ):
            raise ValueError("'relevance' is not one number from 0 to 1 for each of the pool")
        for name, coded in self.groups.items():
            _check_memberships(name, coded, len(self.pool))
        return self


def _check_memberships(attribute: str, coded: CodedMemberships, size: int) -> None:
    patterns, rows = coded["patterns"], coded["rows"]
    if len(rows) != size or not all(0 <= row < len(patterns) for row in rows):
        raise ValueError(f"the groups of '{attribute}' are not those of the pool")
    if len({len(pattern) for pattern in patterns}) > 1 or not all(map(_are_shares, patterns)):
        raise ValueError(f"the memberships in '{attribute}' are not shares from 0 to 1")


def _are_shares(numbers: tuple[float, ...] | list[float]) -> bool:
    return all(0 <= number <= 1 for number in numbers)
