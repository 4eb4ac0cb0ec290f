"""Re-ranking over HTTP, in the format of Jina, Cohere and others, which much software speaks."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter
from pydantic import BaseModel, Field, FiniteFloat
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base.errors import InputError, one_line
from fairqr.graph.documented import Documented
from fairqr.graph.integrations.order import Evidence, Given, Shown, fair_list, ids_of
from fairqr.graph.search.result import Shares
from fairqr.graph.service.execution.requests import example, or_text, parsed
from fairqr.graph.service.http.access import RERANK
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.runs import unless_gone
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.schema import Attribute

router = APIRouter(tags=["rerank"])

OPTIONS = (
    "attributes",
    "intersect",
    "target",
    "fairness_weight",
    "order",
    "discount",
    "k",
    "model",
)
"""The parameters of a search that a list can be re-ranked by."""


class RerankDocument(Documented, extra="allow", coerce_numbers_to_str=True):
    """A document to re-rank.

    Any other members count as fields.

    Attributes:
        id: Finds its labels in the source, if it brings none.
        text: What it says.
        fields: Its fields, named as in the source; a label is read where the source says.
        labels: Its label for each attribute, before any field.
        score: What the first retrieval gave it; either all documents have one, or none.
    """

    id: str = ""
    text: str = ""
    fields: dict[str, Any] = Field(default_factory=dict)
    labels: dict[str, Any] = Field(default_factory=dict)
    score: FiniteFloat | None = None

    @property
    def title(self) -> str:
        """Its title; empty if it has none."""
        title = {**(self.model_extra or {}), **self.fields}.get("title")
        return title if isinstance(title, str) else ""

    def label(self, attribute: Attribute) -> object:
        """Return its own label for an attribute; None if it has none."""
        if attribute.name in self.labels or not attribute.field:
            return self.labels.get(attribute.name)
        return value_at({**(self.model_extra or {}), **self.fields}, attribute.field)


_Document = Annotated[RerankDocument, or_text(lambda text: {"text": text}, RerankDocument)]


_PEOPLE = {"Niels Bohr": "male", "Max Planck": "male", "Lise Meitner": "female"}


class RerankRequest(Documented):
    """A list to re-rank. Parameters of others that are not listed here are ignored.

    Attributes:
        model: The source whose attributes count, perhaps with options:
            ``notables?attributes=gender&fairness_weight=2``. With ``documents=ids``, texts are ids
            of the source; with ``documents=texts``, they are looked up in it.
        query: What was searched for.
        documents: Texts or objects, best first unless they have scores.
        top_n: How many to return; by default all.
        return_documents: Whether results repeat the documents.
        fairqr: Parameters of a search: attributes, intersect, target, fairness_weight, order,
            discount, k, the number of ranks that count (by default top_n, or 20), and model, whose
            words of earlier searches for the query count.
    """

    model_config = example(
        model="notables?attributes=gender",
        query="physicist",
        documents=[{"text": name, "labels": {"gender": group}} for name, group in _PEOPLE.items()],
    )

    model: str = Field(max_length=2000)
    query: str = Field(min_length=1)
    documents: list[_Document] = Field(min_length=1, fail_fast=True)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool = False
    fairqr: dict[str, Any] = Field(default_factory=dict)


class Reranked(BaseModel):
    """A document in its place.

    Attributes:
        index: Its place in the request.
        relevance_score: From 1 downwards; it only says the order.
    """

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class Fairness(Documented):
    """What was paid and gained in the first k documents.

    Attributes:
        target: The exposure that each group should get, by attribute.
        estimated: Whether relevance was estimated from the texts; otherwise it falls with the rank.
        unlabelled: How many documents have no label, by attribute.
        words_of: The model whose words of earlier searches for the query count; empty if none do.
    """

    before: Shown
    after: Shown
    target: Shares
    estimated: bool
    unlabelled: dict[str, int]
    words_of: str


class RerankResult(Documented):
    """A list in its fair order.

    Attributes:
        usage: Always 0 tokens, since no language model is asked.
    """

    model: str
    results: list[Reranked]
    usage: dict[str, int]
    fairqr: Fairness


@router.post(RERANK[1], include_in_schema=False)  # as Cohere's newer clients ask
@router.post(RERANK[0], response_model=RerankResult, response_model_exclude_none=True)
async def rerank(asked: RerankRequest, request: Request) -> Response:
    """Re-rank a list so that groups get a fair share of the exposure.

    Documents without scores are taken to come best first; if the service has MiniLM, their texts
    are encoded to estimate which of them are relevant. No model is asked, but the words that one
    gave in earlier searches for the query count. `fairqr` says what was paid and gained. A
    parameter `model` of the address replaces the one in the body, which some clients fix.
    """
    parts, documents, size = parts_of(request), asked.documents, len(asked.documents)
    limits = parts.settings.limits
    limits.check("depth", size, "The number of documents")
    model = request.query_params.get("model", asked.model)
    name, _, options = model.partition("?")
    read = parse_qs(options, keep_blank_values=True).items()
    given = {it: values if values[1:] else values[0] for it, values in read} | asked.fairqr
    texts = given.pop("documents") if given.get("documents") in ("ids", "texts") else ""
    if unknown := given.keys() - {*OPTIONS}:
        raise InputError(
            f"A list is not re-ranked by '{one_line(min(unknown), 80)}'; use {', '.join(OPTIONS)}."
        )
    given = {"k": min(asked.top_n or 20, size, limits.k), **given, "query": asked.query}
    checked = parts.executor.check("search", parsed("search", {**given, "corpus": name}))
    context = checked.context
    scores = [it.score for it in documents if it.score is not None]
    if len(scores) not in (0, size):
        raise InputError("Some documents have a score, and others have none; give all or none.")
    order = sorted(range(size), key=lambda place: -scores[place] if scores else 0)
    async with parts.executor.lend_engine(name) as engine:
        for attribute in {it for one in documents for it in one.labels}:
            engine.schema.attribute(attribute)
        ids = [it.text if texts == "ids" else "" for it in documents]
        if texts == "texts":
            ids = await ids_of(engine, [it.text for it in documents])
        ranked = ((place, documents[place]) for place in order)
        listed = [
            Given(place, it.id or ids[place], it.text, it.title, it.label) for place, it in ranked
        ]
        evidence = None
        if not scores and texts != "ids":
            evidence = Evidence(parts.evidence, parts.executor.learnt_words(checked.body["model"]))
        work = fair_list(engine, context, asked.query, listed, evidence)
        found, hits, unlabelled = await unless_gone(request, work)
    results: list[dict[str, Any]] = [
        {"index": order[place], "relevance_score": 1 - rank / size}
        for rank, place in enumerate(found.positions[: asked.top_n])
    ]
    if asked.return_documents:
        for result in results:
            result["document"] = documents[result["index"]].model_dump(exclude_unset=True)
    told = {
        "estimated": hits.relevance is not None,
        "unlabelled": unlabelled,
        "words_of": found.words_of,
    }
    fairness = {"before": found.before, "after": found.after, "target": found.target, **told}
    usage = {"prompt_tokens": 0, "total_tokens": 0}
    by = "texts" if hits.relevance is not None else "ranks"
    if found.words_of:
        by += f", words of {found.words_of}"
    headers = {"fairqr": f"re-ranked; {by}".encode("ascii", "replace").decode()}
    answer = {"model": model, "results": results, "usage": usage, "fairqr": fairness}
    return Json(answer, headers=headers)
