"""The rerank door: the format of Jina, Cohere and others, which other software speaks already."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from fastapi import APIRouter
from pydantic import BaseModel, Field, FiniteFloat
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base.errors import InputError, one_line
from fairqr.graph.documented import Documented
from fairqr.graph.doors.labels import Labels
from fairqr.graph.doors.order import FairOrder, fair_order
from fairqr.graph.search.result import Shares
from fairqr.graph.service.engine.requests import parsed
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.parts import parts_of
from fairqr.retrieval.engines.engine import Hits
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.schema import Attribute

router = APIRouter(tags=["rerank"])

OPTIONS = ("attributes", "intersect", "target", "fairness_weight", "order", "discount", "k")
"""The parameters of a search that a list can be re-ranked by."""


class RerankDocument(Documented, extra="allow"):
    """A document to re-rank.

    Any other members count as fields.

    Attributes:
        id: Finds its labels in the source, if it brings none.
        text: What it says.
        fields: Its fields, named as in the source; a label is read where the source says.
        labels: Its label for each attribute, before any field.
        score: What the first retrieval gave it; either all documents have one, or none.
    """

    id: str | None = Field(None, max_length=2000)
    text: str = ""
    fields: dict[str, Any] = Field({})
    labels: dict[str, Any] = Field({})
    score: FiniteFloat | None = None

    def label(self, attribute: Attribute) -> object:
        """Return its own label for an attribute; None if it has none."""
        if attribute.name in self.labels or not attribute.field:
            return self.labels.get(attribute.name)
        return value_at({**(self.model_extra or {}), **self.fields}, attribute.field)


class RerankRequest(Documented):
    """A list to re-rank. Parameters of others that are not listed here are ignored.

    Attributes:
        model: The source whose attributes count, perhaps with options:
            ``notables?attributes=gender&fairness_weight=2``.
        query: What was searched for.
        documents: Texts or objects, best first unless they have scores.
        top_n: How many to return; by default all.
        return_documents: Whether results repeat the documents.
        fairqr: Parameters of a search: attributes, intersect, target, fairness_weight, order,
            discount, and k, the number of ranks that count (by default 20, or top_n).
    """

    model: str
    query: str = Field(min_length=1)
    documents: list[str | RerankDocument] = Field(min_length=1, fail_fast=True)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False
    fairqr: dict[str, Any] = Field({})


class Reranked(BaseModel):
    """A document in its place.

    Attributes:
        index: Its place in the request.
        relevance_score: From 1 downwards; it only says the order.
    """

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class Gained(Documented):
    """A list before or after.

    Attributes:
        relevance: V, the expected relevance, in [0, 1].
        fairness: F, in [0, 1].
        objective: J = V · F^w.
        exposure: The exposure of each group, by attribute.
    """

    relevance: float
    fairness: float
    objective: float
    exposure: Shares


class Fairness(Documented):
    """What was paid and gained in the first k documents.

    Attributes:
        target: The exposure that each group should get, by attribute.
        estimated: Whether relevance was estimated from the texts; otherwise it falls with the rank.
        unlabelled: How many documents have no label, by attribute.
    """

    before: Gained
    after: Gained
    target: Shares
    estimated: bool
    unlabelled: dict[str, int]


class RerankResult(Documented):
    """A list in its fair order.

    Attributes:
        usage: Always 0 tokens, since no language model is asked.
    """

    model: str
    results: list[Reranked]
    usage: dict[str, int]
    fairqr: Fairness


@router.post("/v2/rerank", include_in_schema=False)  # as Cohere's newer clients ask
@router.post("/v1/rerank", response_model=RerankResult, response_model_exclude_none=True)
async def rerank(asked: RerankRequest, request: Request) -> Response:
    """Re-rank a list so that groups get a fair share of the exposure.

    Documents without scores are taken to come best first; if the service has MiniLM, their texts
    are encoded, and tell which of them are relevant. `fairqr` says what was paid and gained.
    """
    parts, documents = parts_of(request), [_document(one) for one in asked.documents]
    parts.settings.caps.check("depth", len(documents), "The number of documents")
    name, _, options = asked.model.partition("?")
    given = {**dict(parse_qsl(options)), **asked.fairqr}
    if unknown := sorted(given.keys() - {*OPTIONS}):
        raise InputError(
            f"A list is not re-ranked by '{one_line(unknown[0], 80)}'; use {', '.join(OPTIONS)}."
        )
    if asked.top_n is not None and "k" not in given:
        given["k"] = min(asked.top_n, len(documents))
    body = parsed("search", {**given, "query": asked.query, "corpus": name})
    context = parts.engine.checked("search", body).context
    scores = [document.score for document in documents]
    has_scores = None not in scores
    if not has_scores and any(score is not None for score in scores):
        raise InputError("Some documents have a score, and others have none; give all or none.")
    order = list(range(len(documents)))
    if has_scores:
        order.sort(key=lambda place: -float(scores[place] or 0))
    async with parts.engine.searched(name) as engine:
        labels = Labels(engine, context, strict=True)
        members = await labels.of(
            [documents[place].id or "" for place in order],
            {
                it: [documents[place].label(how) for place in order]
                for it, how in labels.attributes.items()
            },
        )
        hits = Hits([*map(str, order)], [1 / rank for rank in range(1, len(order) + 1)], members)
        if not has_scores:
            texts = [document.text for document in documents]
            hits = await parts.evidence.estimated(asked.query, texts, hits)
        found = fair_order(engine.schema, context, hits)
    shown = [order[place] for place in found.positions][: asked.top_n]
    results = [
        Reranked(
            index=place,
            relevance_score=1 - rank / len(order),
            document=_repeated(asked.documents[place]) if asked.return_documents else None,
        )
        for rank, place in enumerate(shown)
    ]
    fairness = Fairness(
        before=_gained(found, after=False),
        after=_gained(found, after=True),
        target=found.target,
        estimated=hits.relevance is not None,
        unlabelled={it: int((~rows.any(axis=1)).sum()) for it, rows in members.items()},
    )
    result = RerankResult(
        model=asked.model,
        results=results,
        usage={"prompt_tokens": 0, "total_tokens": 0},
        fairqr=fairness,
    )
    return Json(result.model_dump(exclude_none=True))


def _document(given: str | RerankDocument) -> RerankDocument:
    return RerankDocument(text=given) if isinstance(given, str) else given


def _repeated(given: str | RerankDocument) -> dict[str, Any]:
    return {"text": given} if isinstance(given, str) else given.model_dump(exclude_unset=True)


def _gained(found: FairOrder, *, after: bool) -> Gained:
    quality, exposure = (found.after, found.exposure) if after else (found.before, found.shown)
    return Gained(
        relevance=quality.relevance,
        fairness=quality.fairness,
        objective=quality.value,
        exposure=exposure,
    )
