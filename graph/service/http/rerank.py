"""Re-ranking over HTTP, in the format of Jina, Cohere and others, which much software speaks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    FiniteFloat,
    model_validator,
)
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base.errors import InputError, one_line
from fairqr.graph.integrations.order import (
    Evidence,
    FirstDocuments,
    Given,
    Labelled,
    NoLabelsError,
    OrderedList,
    fair_list,
    ids_of,
)
from fairqr.graph.search.context import OF_FAIR_STEP
from fairqr.graph.search.result import Shares
from fairqr.graph.service.execution.checking import CheckedRequest
from fairqr.graph.service.execution.requests import example, or_text, parsed
from fairqr.graph.service.http.access import RERANK, access_key_of
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.runs import unless_gone
from fairqr.retrieval.engines.elasticsearch.hit_reader import reader_of
from fairqr.retrieval.engines.engine import Hits, SearchEngine
from fairqr.retrieval.fairness.claims import say_shared
from fairqr.retrieval.sources.documents import value_at
from fairqr.retrieval.sources.schema import Attribute

router = APIRouter(tags=["rerank"])

OPTIONS = (
    "attributes",
    "intersect",
    "target",
    *OF_FAIR_STEP,
    "certify",
    "discount",
    "k",
    "model",
)
"""The parameters of a search that a list can be re-ranked by."""

NO_WORDS = "*"
"""The query of a list that comes without one."""

TOKENS = ("prompt_tokens", "total_tokens")
UNCHANGED = "not re-ranked; no labels"


def _or(empty: Any) -> BeforeValidator:
    """Return a validator that takes null for what is left out."""
    return BeforeValidator(lambda given: empty if given is None else given)


_Text = Annotated[str, _or("")]
_Members = Annotated[dict[str, Any], _or({})]


class RerankDocument(BaseModel, extra="allow", coerce_numbers_to_str=True):
    """A document to re-rank.

    Any other members count as fields.
    """

    id: _Text = Field("", description="Finds its labels in the source, if it brings none.")
    text: _Text = Field("", description="What it says.")
    fields: _Members = Field(
        default_factory=dict,
        description="Its fields, named as in the source; a label is read where the source says.",
    )
    labels: _Members = Field(
        default_factory=dict, description="Its label for each attribute, before any field."
    )
    score: FiniteFloat | None = Field(
        None,
        description="What the first retrieval gave it; either all documents have one, or none.",
    )

    @property
    def title(self) -> str:
        """Its title; empty if it has none."""
        title = {**(self.model_extra or {}), **self.fields}.get("title")
        return title if isinstance(title, str) else ""

    def label(self, unread: frozenset[str], attribute: Attribute) -> object:
        """Return its own label for an attribute; None if it has none.

        Args:
            unread: The attributes whose fields say something else in a document than in the index.
            attribute: The attribute.
        """
        own = self.labels.get(attribute.name)
        if own is not None or not attribute.field or attribute.name in unread:
            return own
        return value_at({**(self.model_extra or {}), **self.fields}, attribute.field)


_Document = Annotated[RerankDocument, _or({}), or_text(lambda text: {"text": text}, RerankDocument)]


def _all_for_none(given: Any) -> Any:
    """Return None for 0 and -1, by which clients of vLLM and others ask for all documents."""
    return None if given in (0, -1) and not isinstance(given, bool) else given


def _text_inside(query: Any) -> Any:
    """Return the text of a query that comes as an object, as clients of several media send it."""
    return query.get("text", "") if isinstance(query, dict) else query


def _must_list_documents(body: Any) -> Any:
    """Refuse a body without documents, and say what it must have.

    Servers for re-ranking call their lists ``texts`` or ``passages``, and answer in other forms.
    """
    if isinstance(body, dict) and "documents" not in body:
        names = ", ".join(f"'{name}'" for name in body) or "nothing"
        raise ValueError(
            "it needs 'documents', a list of texts or objects, beside 'model' and 'query', as in "
            f"Jina's and Cohere's format; it has {one_line(names, 100)}"
        )
    return body


_PEOPLE = {"Niels Bohr": "male", "Max Planck": "male", "Lise Meitner": "female"}


class RerankRequest(BaseModel):
    """A list to re-rank. Parameters of others that are not listed here are ignored."""

    model_config = example(
        model="notables?attributes=gender",
        query="physicist",
        documents=[{"text": name, "labels": {"gender": group}} for name, group in _PEOPLE.items()],
    )

    _lists_documents = model_validator(mode="before")(_must_list_documents)

    model: Annotated[str, Field(max_length=2000), _or("")] = Field(
        "",
        description=(
            "The source whose attributes count, here or in the address, perhaps with options: "
            "`notables?attributes=gender&fairness_weight=2`. With `documents=ids`, texts are ids "
            "of the source; with `documents=texts`, they are looked up in it."
        ),
    )
    query: Annotated[_Text, BeforeValidator(_text_inside)] = Field(
        "",
        description="What was searched for; without words, only the order of the documents counts.",
    )
    documents: list[_Document] = Field(
        min_length=1,
        fail_fast=True,
        description="Texts or objects, best first unless they have scores.",
    )
    top_n: Annotated[int | None, BeforeValidator(_all_for_none)] = Field(
        None,
        ge=1,
        validation_alias=AliasChoices("top_n", "top_k", "topN"),
        description="How many to return; by default all.",
    )
    return_documents: Annotated[bool, _or(False)] = Field(
        False, description="Whether results repeat the documents."
    )
    fairqr: _Members = Field(
        default_factory=dict,
        description=(
            "Parameters of a search: attributes, intersect, target, fairness_weight, order, "
            "fairness, spread, at_most, equal_chance, certify, discount, k, the number of ranks "
            "that count (by default top_n, or 20), and model, whose words of earlier searches for "
            "the query count."
        ),
    )


class Reranked(BaseModel):
    """A document in its place.

    Attributes:
        index: Its place in the request.
        relevance_score: From 1 downwards, and above one half, where some clients cut; it only says
            the order.
    """

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class Fairness(BaseModel):
    """What was paid and gained in the first k documents."""

    before: FirstDocuments
    after: FirstDocuments
    target: Shares = Field(description="The exposure that each group should get, by attribute.")
    estimated: bool = Field(
        description=(
            "Whether relevance was estimated from the texts; otherwise it falls with the rank."
        )
    )
    unlabelled: dict[str, int] = Field(
        description="How many documents have no label, by attribute."
    )
    words_of: str = Field(
        description=(
            "The model whose words of earlier searches for the query count; empty if none do."
        )
    )


class RerankResult(BaseModel):
    """A list in its fair order."""

    model: str
    results: list[Reranked]
    usage: dict[str, int] = Field(description="Always 0 tokens, since no language model is asked.")
    fairqr: Fairness | None = Field(
        None,
        description="What fairness did; None if no document has a label, so that the order stays.",
    )
    warnings: list[str] = Field(description="What the user should know of this list, in sentences.")


def _results_of(rerank_request: RerankRequest, places: Sequence[int]) -> list[dict[str, Any]]:
    """Return the entries of the answer: places in the request, in their new order, with scores."""
    size = len(rerank_request.documents)
    results: list[dict[str, Any]] = [
        {"index": place, "relevance_score": 1 - rank / size / 2}
        for rank, place in enumerate(places)
    ]
    if rerank_request.return_documents:
        for result in results:
            document = rerank_request.documents[result["index"]]
            result["document"] = document.model_dump(exclude_unset=True)
    return results


async def _fair_list(
    request: Request,
    rerank_request: RerankRequest,
    checked: CheckedRequest,
    order: Sequence[int],
    texts_are: str,
) -> tuple[OrderedList, Hits, Labelled]:
    """Find the fair list when it is the turn of the key; see :func:`fair_list`.

    Args:
        request: The request.
        rerank_request: Its body.
        checked: The search that the list is of.
        order: The places of its documents, best first.
        texts_are: ``ids`` or ``texts`` of the source, as the option ``documents`` says; or empty.

    Raises:
        NoLabelsError: No document has a label.
    """
    parts = parts_of(request)
    documents = rerank_request.documents
    key = access_key_of(request.scope).id
    # It takes as much of a processor as a search, and texts are looked up.
    async with (
        parts.runs.slot(key),
        parts.executor.lend_engine(checked.body["corpus"]) as engine,
        parts.executor.computing_in_turns(engine),
    ):
        for attribute in {it for one in documents for it in one.labels}:
            engine.schema.attribute(attribute)
        ids = [it.text if texts_are == "ids" else "" for it in documents]
        if texts_are == "texts":
            ids = await ids_of(engine, [it.text for it in documents])
        ranked = ((place, documents[place]) for place in order)
        unread = _unread(engine)
        listed = [
            Given(place, it.id or ids[place], it.text, it.title, partial(it.label, unread))
            for place, it in ranked
        ]
        words = rerank_request.query.strip()
        has_scores = documents[0].score is not None
        evidence = None
        if words and not has_scores and texts_are != "ids":
            learnt = parts.executor.learnt_words(checked.body["model"])
            evidence = Evidence(parts.evidence, learnt, partial(parts.encoding.held, key))
        return await fair_list(engine, checked.context, words, listed, evidence)


@router.post(RERANK[2], include_in_schema=False)  # as clients of vLLM and Infinity ask
@router.post(RERANK[1], include_in_schema=False)  # as Cohere's newer clients ask
@router.post(RERANK[0], response_model=RerankResult, response_model_exclude_none=True)
async def rerank(rerank_request: RerankRequest, request: Request) -> Response:
    """Re-rank a list so that groups get a fair share of the exposure.

    Documents without scores are taken to come best first; if the service has MiniLM, their texts
    are encoded to estimate which of them are relevant. No model is asked, but the words that one
    gave in earlier searches for the query count. `fairqr` says what was paid and gained. A list of
    which no label is known keeps its order, with a warning. A parameter `model` of the address
    replaces the one in the body, which some clients fix.
    """
    parts = parts_of(request)
    documents = rerank_request.documents
    size = len(documents)
    parts.settings.limits.check("depth", size, "The number of documents")
    model = request.query_params.get("model", rerank_request.model)
    name, given, texts_are = _options_of(model, rerank_request)
    depth = min(rerank_request.top_n or 20, size, parts.settings.limits.k)
    words = rerank_request.query.strip()
    given = {"k": depth, **given, "query": words or NO_WORDS, "corpus": name}
    checked = parts.executor.check("search", parsed("search", given))
    scores = [it.score for it in documents if it.score is not None]
    if len(scores) not in (0, size):
        raise InputError("Some documents have a score, and others have none; give all or none.")
    order = sorted(range(size), key=lambda place: -scores[place] if scores else 0)
    answer: dict[str, Any] = {"model": model, "usage": dict.fromkeys(TOKENS, 0)}
    work = _fair_list(request, rerank_request, checked, order, texts_are)
    try:
        found, hits, labelled = await unless_gone(request, work)
    except NoLabelsError as error:
        answer |= {"results": _results_of(rerank_request, order[: rerank_request.top_n])}
        return Json({**answer, "warnings": [str(error)]}, headers={"fairqr": UNCHANGED})
    answer["results"] = _results_of(
        rerank_request, [order[it] for it in found.positions[: rerank_request.top_n]]
    )
    answer["fairqr"] = {
        "before": found.before,
        "after": found.after,
        "target": found.target,
        "estimated": hits.relevance is not None,
        "unlabelled": labelled.unlabelled,
        "words_of": found.words_of,
    }
    by = "texts" if hits.relevance is not None else "ranks"
    if found.words_of:
        by += f", words of {found.words_of}"
    headers = {"fairqr": f"re-ranked; {by}".encode("ascii", "replace").decode()}
    notes = labelled.notes
    if shared := say_shared(hits.claims):
        notes = [*notes, f"In the target, {shared}."]
    return Json({**answer, "warnings": notes}, headers=headers)


def _unread(engine: SearchEngine) -> frozenset[str]:
    """Return the attributes that a server makes of a document's fields, as by a normalizer."""
    reader = reader_of(engine)
    labels = () if reader is None else reader.labels
    return frozenset(it.attribute.name for it in labels if not it.mapped.is_in_source)


def _options_of(model: str, rerank_request: RerankRequest) -> tuple[str, dict[str, Any], str]:
    """Return the source, the parameters of a search, and what texts of documents are.

    Raises:
        InputError: No source is named, or a list is not re-ranked by such a parameter.
    """
    name, _, options = model.partition("?")
    if not name:
        raise InputError("Name a source as the 'model', such as 'notables?attributes=gender'.")
    read = parse_qs(options, keep_blank_values=True).items()
    given: dict[str, Any] = {it: values if values[1:] else values[0] for it, values in read}
    given |= rerank_request.fairqr
    texts_are = given.pop("documents") if given.get("documents") in ("ids", "texts") else ""
    if unknown := given.keys() - {*OPTIONS}:
        raise InputError(
            f"A list is not re-ranked by '{one_line(min(unknown), 80)}'; use {', '.join(OPTIONS)}."
        )
    return name, given, texts_are
