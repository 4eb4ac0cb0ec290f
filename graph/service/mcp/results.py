"""What the tools return beside their text: small objects with small schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.search.passages import Place, passage_of
from fairqr.graph.search.result import SearchResult
from fairqr.graph.service.engine.audits import AuditResult
from fairqr.retrieval.documents import Document

__all__ = [
    "AuditSummary",
    "AuditedGroup",
    "FairAnswer",
    "FairPassages",
    "Sources",
    "answer_of",
    "passages_of",
    "summary_of",
]


class _Small(BaseModel):
    model_config = ConfigDict(frozen=True)


class Passage(_Small):
    """A document that was found."""

    rank: int
    id: str
    title: str
    text: str
    groups: dict[str, list[str]]


class GroupShare(_Small):
    """How much of the exposure a group gets; null if nothing has a label."""

    attribute: str
    group: str
    exposure: float | None
    target: float
    before: float | None = Field(None, description="Its share in the plain retrieval.")


class FairPassages(_Small):
    """A fair ranking."""

    query: str
    source: str
    passages: list[Passage]
    exposure: list[GroupShare]
    divergence: float | None = Field(description="From the target, in nats.")
    warnings: list[str]


class FairAnswer(_Small):
    """An answer, and the documents that it used, or read if nothing judges which it used."""

    question: str
    source: str
    answer: str
    used: list[Passage]
    exposure: list[GroupShare]
    warnings: list[str]


class AuditedGroup(_Small):
    """What an audit says of a group; shares are means over the queries."""

    attribute: str
    group: str
    exposure: float | None
    target: float | None
    verdict: str = Field(
        description="less or more: surely less or more exposure than is due; within_error, "
        "too_few or cannot_tell: no sure difference."
    )


class AuditSummary(_Small):
    """What an audit found."""

    source: str
    queries: int
    answered: int
    findings: list[str]
    groups: list[AuditedGroup]


class SourceInfo(_Small):
    """A source that can be searched."""

    name: str
    documents: int | None
    attributes: dict[str, list[str]] = Field(description="The groups of each attribute.")


class Sources(_Small):
    """The sources that can be searched, the default one first."""

    sources: list[SourceInfo]


def passages_of(result: SearchResult, documents: Sequence[Document]) -> FairPassages:
    """Return the small object of a search."""
    texts = {document.id: document.text for document in documents}
    shares = [
        GroupShare(
            attribute=attribute,
            group=group,
            exposure=share,
            target=result.target[attribute][group],
            before=result.baseline.exposure[attribute][group],
        )
        for attribute, groups in result.exposure.items()
        for group, share in groups.items()
    ]
    return FairPassages(
        query=result.query,
        source=result.corpus,
        passages=list(_passages(result.ranking, texts)),
        exposure=shares,
        divergence=result.divergence,
        warnings=result.warnings,
    )


def answer_of(
    result: AnswerResult, used: Sequence[Place], documents: Sequence[Document]
) -> FairAnswer:
    """Return the small object of an answer.

    Args:
        result: The answer.
        used: The documents that it used.
        documents: Their texts.
    """
    texts = {document.id: document.text for document in documents}
    shares = [
        GroupShare(attribute=it.attribute, group=of.group, exposure=of.exposure, target=of.target)
        for it in result.groups
        for of in it.groups
    ]
    return FairAnswer(
        question=result.question,
        source=result.corpus,
        answer=result.distribution[0].text if result.distribution else "",
        used=list(_passages(used, texts)),
        exposure=shares,
        warnings=result.warnings,
    )


def summary_of(source: str, result: AuditResult) -> AuditSummary:
    """Return the small object of an audit.

    Args:
        source: The name of what was audited.
        result: The audit.
    """
    figures = result.figures
    return AuditSummary(
        source=source,
        queries=figures["queries"]["asked"],
        answered=figures["queries"]["answered"],
        findings=result.findings,
        groups=[
            AuditedGroup(
                attribute=it["attribute"],
                group=it["group"],
                exposure=it["exposure"]["value"],
                target=it["target"]["value"],
                verdict=it["verdict"],
            )
            for it in figures["groups"]
        ],
    )


def _passages(places: Sequence[Place], texts: Mapping[str, str]) -> Iterator[Passage]:
    for place in places:
        yield Passage(
            rank=place.rank,
            id=place.id,
            title=place.title,
            text=passage_of(texts.get(place.id, "")),
            groups={attribute: [*shares] for attribute, shares in place.groups.items()},
        )
