"""The structured results of the tools: small objects with small schemas."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from fairqr.graph.answer.result import AnswerResult
from fairqr.graph.search.explanation import passage_of
from fairqr.graph.search.result import Place, SearchResult
from fairqr.graph.service.engine.audits import AuditResult
from fairqr.retrieval.sources.documents import Document


class _Small(BaseModel):
    model_config = ConfigDict(frozen=True)


class Passage(_Small):
    """A document of the ranking."""

    rank: int
    id: str
    title: str
    text: str
    groups: dict[str, list[str]]


class GroupShare(_Small):
    """The share of the exposure that a group gets; null if no document has a label."""

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
    """An answer with the documents that it used; without a judge, those that it read."""

    question: str
    source: str
    answer: str
    used: list[Passage]
    exposure: list[GroupShare]
    warnings: list[str]


class AuditedGroup(_Small):
    """The figures of a group; shares are means over the queries."""

    attribute: str
    group: str
    exposure: float | None
    target: float | None
    verdict: str = Field(
        description="less or more: surely less or more exposure than is due; "
        "within_error, too_few, saturated, unlabelled, undecided, unknown, cannot_tell: no verdict."
    )


class AuditSummary(_Small):
    """The findings of an audit."""

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
    """Summarise a search."""
    before, target = result.baseline.exposure, result.target
    shares = [
        GroupShare(
            attribute=name,
            group=group,
            exposure=share,
            target=target[name][group],
            before=before[name][group],
        )
        for name, groups in result.exposure.items()
        for group, share in groups.items()
    ]
    return FairPassages(
        query=result.query,
        source=result.corpus,
        passages=_passages(result.ranking, documents),
        exposure=shares,
        divergence=result.divergence,
        warnings=result.warnings,
    )


def answer_of(
    result: AnswerResult, used: Sequence[Place], documents: Sequence[Document]
) -> FairAnswer:
    """Summarise an answer.

    Args:
        result: The answer.
        used: The places of the documents that it used.
        documents: The same documents, with their texts.
    """
    shares = [
        GroupShare(attribute=it.attribute, group=of.group, exposure=of.exposure, target=of.target)
        for it in result.groups
        for of in it.groups
    ]
    return FairAnswer(
        question=result.question,
        source=result.corpus,
        answer=result.distribution[0].text if result.distribution else "",
        used=_passages(used, documents),
        exposure=shares,
        warnings=result.warnings,
    )


def summary_of(source: str, result: AuditResult) -> AuditSummary:
    """Summarise an audit of a source."""
    figures = result.figures
    values = ("exposure", "target")
    return AuditSummary(
        source=source,
        queries=figures["queries"]["asked"],
        answered=figures["queries"]["answered"],
        findings=result.findings,
        groups=[
            AuditedGroup.model_validate({**it, **{name: it[name]["value"] for name in values}})
            for it in figures["groups"]
        ],
    )


def _passages(places: Sequence[Place], documents: Sequence[Document]) -> list[Passage]:
    texts = {document.id: document.text for document in documents}
    return [
        Passage(
            rank=place.rank,
            id=place.id,
            title=place.title,
            text=passage_of(texts.get(place.id, "")),
            groups={attribute: [*shares] for attribute, shares in place.groups.items()},
        )
        for place in places
    ]
