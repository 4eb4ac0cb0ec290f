"""Re-ranking over HTTP, in the format of Jina, Cohere and others, which much software speaks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple
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
from fairqr.graph.service.http.access import access_key_of
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.bodies import RERANK
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
"""The header of an answer that keeps the order."""

RANKS = 20
"""How many ranks count by default, unless fewer are to be returned."""


def _or(empty: Any) -> BeforeValidator:
    """Return a validator that takes null for a value that is left out."""

    def validate(value: Any) -> Any:
        return empty if value is None else value

    return BeforeValidator(validate)


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
        title = self._all_fields.get("title")
        return title if isinstance(title, str) else ""

    @property
    def _all_fields(self) -> dict[str, Any]:
        """Its fields, and other members that count as fields."""
        return {**(self.model_extra or {}), **self.fields}

    def label(self, unread: frozenset[str], attribute: Attribute) -> object:
        """Return the label for an attribute that it brings; None if it brings none.

        Args:
            unread: The attributes whose fields say something else in a document than in the index.
            attribute: The attribute.
        """
        label = self.labels.get(attribute.name)
        if label is not None:
            return label
        if not attribute.field or attribute.name in unread:
            return None
        return value_at(self._all_fields, attribute.field)


def _document_of_text(text: str) -> dict[str, str]:
    return {"text": text}


_Document = Annotated[RerankDocument, _or({}), or_text(_document_of_text, RerankDocument)]


def _none_for_all(number: Any) -> Any:
    """Return None for 0 and -1, by which clients of vLLM and others ask for all documents."""
    means_all = number in (0, -1) and not isinstance(number, bool)
    return None if means_all else number


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
    top_n: Annotated[int | None, BeforeValidator(_none_for_all)] = Field(
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


def _results_of(rerank_request: RerankRequest, positions: Sequence[int]) -> list[dict[str, Any]]:
    """Return the entries of the answer, with scores.

    Args:
        rerank_request: The request.
        positions: The positions of documents in the request, in their new order.
    """
    documents = rerank_request.documents
    results = []
    for rank, position in enumerate(positions):
        score = 1 - rank / len(documents) / 2
        result: dict[str, Any] = {"index": position, "relevance_score": score}
        if rerank_request.return_documents:
            result["document"] = documents[position].model_dump(exclude_unset=True)
        results.append(result)
    return results


class _ListOptions(NamedTuple):
    """How a list is to be re-ranked.

    Attributes:
        source: The name of the source whose attributes count.
        parameters: The parameters of a search.
        texts_are: ``ids`` or ``texts`` of the source, as the option ``documents`` says; or empty.
    """

    source: str
    parameters: dict[str, Any]
    texts_are: str


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
        order: The positions of its documents, best first.
        texts_are: See :class:`_ListOptions`.

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
        attributes: set[str] = set()
        for document in documents:
            attributes.update(document.labels)
        for attribute in attributes:
            engine.schema.attribute(attribute)

        ids = await _ids_in_source(engine, documents, texts_are)
        unread = _unread(engine)
        listed = []
        for position in order:
            document = documents[position]
            id_ = document.id or ids[position]
            label = partial(document.label, unread)
            listed.append(Given(position, id_, document.text, document.title, label))

        words = rerank_request.query.strip()
        has_texts = texts_are != "ids"
        has_scores = documents[0].score is not None
        evidence = None
        if words and has_texts and not has_scores:
            learnt_words = parts.executor.models.learnt_words(checked.body["model"])
            turn = partial(parts.encoding.hold, key)
            evidence = Evidence(parts.evidence, learnt_words, turn)
        return await fair_list(engine, checked.context, words, listed, evidence)


async def _ids_in_source(
    engine: SearchEngine, documents: Sequence[RerankDocument], texts_are: str
) -> list[str]:
    """Return the ids of documents in the source; empty where we do not know them."""
    texts = [document.text for document in documents]
    if texts_are == "ids":
        return texts
    if texts_are == "texts":
        return await ids_of(engine, texts)
    return [""] * len(documents)


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
    limits = parts.settings.limits
    documents = rerank_request.documents
    limits.check("depth", len(documents), "The number of documents")

    model = request.query_params.get("model", rerank_request.model)
    options = _options_of(model, rerank_request)
    parameters = {
        "k": min(rerank_request.top_n or RANKS, len(documents), limits.k),
        **options.parameters,
        "query": rerank_request.query.strip() or NO_WORDS,
        "corpus": options.source,
    }
    checked = parts.executor.check("search", parsed("search", parameters))
    order = _best_first(documents)

    answer: dict[str, Any] = {"model": model, "usage": dict.fromkeys(TOKENS, 0)}
    work = _fair_list(request, rerank_request, checked, order, options.texts_are)
    try:
        fair, hits, labelled = await unless_gone(request, work)
    except NoLabelsError as error:
        answer["results"] = _results_of(rerank_request, order[: rerank_request.top_n])
        answer["warnings"] = [str(error)]
        return Json(answer, headers={"fairqr": UNCHANGED})

    positions = [order[position] for position in fair.positions[: rerank_request.top_n]]
    answer["results"] = _results_of(rerank_request, positions)
    answer["fairqr"] = {
        "before": fair.before,
        "after": fair.after,
        "target": fair.target,
        "estimated": hits.relevance is not None,
        "unlabelled": labelled.unlabelled,
        "words_of": fair.words_of,
    }
    answer["warnings"] = _warnings_of(hits, labelled)
    return Json(answer, headers={"fairqr": _summary_of(fair, hits)})


def _warnings_of(hits: Hits, labelled: Labelled) -> list[str]:
    """Return what the user should know of a list, in sentences."""
    warnings = [*labelled.notes]
    shared = say_shared(hits.claims)
    if shared:
        warnings.append(f"In the target, {shared}.")
    return warnings


def _summary_of(fair: OrderedList, hits: Hits) -> str:
    """Return the header that says by what a list was re-ranked, in ASCII."""
    basis = "ranks" if hits.relevance is None else "texts"
    if fair.words_of:
        basis += f", words of {fair.words_of}"
    return f"re-ranked; {basis}".encode("ascii", "replace").decode()


def _best_first(documents: Sequence[RerankDocument]) -> list[int]:
    """Return the positions of documents by their scores; they keep their order if they have none.

    Raises:
        InputError: Some have a score, and others have none.
    """
    positions = range(len(documents))
    scores = [document.score for document in documents if document.score is not None]
    if not scores:
        return [*positions]
    if len(scores) < len(documents):
        raise InputError("Some documents have a score, and others have none; give all or none.")
    return sorted(positions, key=lambda position: -scores[position])


def _unread(engine: SearchEngine) -> frozenset[str]:
    """Return the attributes whose fields a server changes before it reads them, as a normalizer."""
    reader = reader_of(engine)
    if reader is None:
        return frozenset()
    changed = [field for field in reader.labels if not field.mapped.is_in_source]
    return frozenset(field.attribute.name for field in changed)


def _options_of(model: str, rerank_request: RerankRequest) -> _ListOptions:
    """Return the options of a list.

    Args:
        model: The name of the source, perhaps with options.
        rerank_request: The request, with more options.

    Raises:
        InputError: No source is named, or a list is not re-ranked by such a parameter.
    """
    source, _, query_string = model.partition("?")
    if not source:
        raise InputError("Name a source as the 'model', such as 'notables?attributes=gender'.")

    parameters: dict[str, Any] = {}
    for name, values in parse_qs(query_string, keep_blank_values=True).items():
        parameters[name] = values if len(values) > 1 else values[0]
    parameters |= rerank_request.fairqr

    texts_are = ""
    if parameters.get("documents") in ("ids", "texts"):
        texts_are = parameters.pop("documents")
    unknown = parameters.keys() - {*OPTIONS}
    if unknown:
        raise InputError(
            f"A list is not re-ranked by '{one_line(min(unknown), 80)}'; use {', '.join(OPTIONS)}."
        )
    return _ListOptions(source, parameters, texts_are)
