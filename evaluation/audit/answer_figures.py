"""Who is left on the way from what an engine shows to what an answer uses, by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fairqr.evaluation.audit.answers import AnsweredQuery
from fairqr.evaluation.audit.estimates import Estimate, jackknifed, within
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.table import decoded

__all__ = ["STAGES", "AnswerFigures", "GroupStages", "measure_answers"]

STAGES = ("retrieved", "read", "cited", "used")
"""What documents go through, in order."""


@dataclass(frozen=True, slots=True)
class GroupStages:
    """A group on the way to the answers: its share of the documents with a label at each stage.

    Attributes:
        attribute: The attribute.
        group: The group.
        retrieved: Among the documents that the engine showed.
        read: Among those that the model read.
        cited: Among those that answers name; NaN if none is.
        used: Among those that answers can rest on; NaN if there is none.
    """

    attribute: str
    group: str
    retrieved: Estimate
    read: Estimate
    cited: Estimate
    used: Estimate


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """What the answers of an audit say.

    Attributes:
        generator: What answered.
        attributor: What judged which documents were used.
        questions: How many queries were asked as questions.
        answered: How many have an answer.
        failed: For how many the model failed.
        citing: How many answers name a document.
        unjudged: How many documents that were read have no verdict; they count as not used.
        documents: How many were read.
        groups: Of each attribute.
    """

    generator: str
    attributor: str
    questions: int
    answered: int
    failed: int
    citing: int
    unjudged: int
    documents: int
    groups: tuple[GroupStages, ...]


def measure_answers(
    records: Iterable[AnsweredQuery],
    queries: Mapping[str, AuditQuery],
    attributes: Mapping[str, Attribute],
    *,
    generator: str,
    attributor: str,
) -> AnswerFigures:
    """Measure the shares of groups at each stage.

    Args:
        records: One for each question.
        queries: By id; a query counts by its weight.
        attributes: By name.
        generator: What answered.
        attributor: What judged.
    """
    listed = list(records)
    answered = [it for it in listed if it.status == "ok"]
    weights = np.array([queries[it.query].weight for it in answered])
    groups = [
        stages
        for attribute in attributes.values()
        if answered
        for stages in _stages(attribute, answered, weights)
    ]
    return AnswerFigures(
        generator=generator,
        attributor=attributor,
        questions=len(listed),
        answered=len(answered),
        failed=sum(it.status == "failed" for it in listed),
        citing=sum(any(it.cited) for it in answered),
        unjudged=sum(verdict is None for it in answered for verdict in it.used),
        documents=sum(len(it.used) for it in answered),
        groups=tuple(groups),
    )


def _stages(
    attribute: Attribute, answered: list[AnsweredQuery], weights: FloatArray
) -> Iterable[GroupStages]:
    totals = np.array([_counted(it, attribute.name).ravel() for it in answered])
    width = totals.shape[1] // len(STAGES)

    def shares(found: FloatArray) -> FloatArray:
        counts = found.reshape(*found.shape[:-1], len(STAGES), width)
        all_ = counts.sum(axis=-1, keepdims=True)
        there = all_ > 0
        parts = np.where(there, counts / np.where(there, all_, 1.0), np.nan)
        return np.asarray(parts.reshape(found.shape))

    estimates = [within(it, 0, 1) for it in jackknifed(totals, weights, shares)]
    for place, group in enumerate(attribute.universe):
        at = [estimates[stage * width + place] for stage in range(len(STAGES))]
        yield GroupStages(attribute.name, group, *at)


def _counted(record: AnsweredQuery, attribute: str) -> FloatArray:
    """Return how many documents of each group there are at each stage, shape (4, G)."""
    shown = decoded(record.shown[attribute])
    read = shown[: len(record.used)]
    cited = np.array(record.cited, dtype=np.float64)
    used = np.array([bool(verdict) for verdict in record.used], dtype=np.float64)
    return np.stack([shown.sum(axis=0), read.sum(axis=0), cited @ read, used @ read])
