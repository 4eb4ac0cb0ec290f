"""The routes that list what is offered and show documents, and the routes for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Path, Query
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field, StringConstraints
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairqr.base.errors import PromptError, StoreUnavailableError
from fairqr.graph.search.context import METHODS, Method
from fairqr.graph.service.execution import engines
from fairqr.graph.service.execution.requests import REQUESTS, RunRequest
from fairqr.graph.service.http.access import access_key_of
from fairqr.graph.service.http.answers import Json
from fairqr.graph.service.http.parts import DurableCounts, parts_of
from fairqr.graph.service.http.runs import in_its_turn
from fairqr.graph.service.records import Kind, Scope
from fairqr.prompts.library import DEFAULT_VERSIONS
from fairqr.retrieval.encoders.opening import RETRIEVERS
from fairqr.retrieval.engines.engine import SearchEngine

T = TypeVar("T")

COUNTING = 2.0
"""Seconds after which metrics come without the database's counts, before a scrape gives up."""

router = APIRouter(tags=["capabilities"])
operation = APIRouter(tags=["operation"])

_DocumentId = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
_Corpus = Annotated[
    str | None, Query(description="What to search, as in a request; defaults to the first.")
]


class AttributeInfo(BaseModel):
    """An attribute of a corpus."""

    groups: list[str] = Field(
        description="All groups, in the order of the schema; none if each value is a group."
    )
    population: dict[str, float] | None = Field(
        description="The share of each group in the population; null if the schema gives none."
    )


class IndexDescription(BaseModel):
    """An index that can be searched."""

    name: str
    engine: str = Field(description="What searches it, such as `tantivy` or `elasticsearch`.")
    documents: int | None = Field(description="The number of documents; null if unknown.")
    attributes: dict[str, AttributeInfo]


class IndexList(BaseModel):
    """The indexes that can be searched, the default first."""

    indexes: list[IndexDescription]
    unavailable: list[str] = Field(
        description=(
            "The names of those that cannot be searched now, such as a source whose server is away."
        )
    )


class PromptInfo(BaseModel):
    """A version of a prompt."""

    id: str = Field(description="Its purpose, such as `refine`.")
    version: str
    default: bool = Field(description="Whether it is used if a request names none.")
    sha256: str = Field(description="The hash of its file.")


class PromptList(BaseModel):
    """The prompts to choose from."""

    prompts: list[PromptInfo]


class ModelDescription(BaseModel, extra="forbid"):
    """A model to choose."""

    name: str = Field(description="`*` stands for any characters.")
    default: bool = Field(description="Whether it is used if a request names none.")


class RetrieverInfo(ModelDescription):
    """A way to find documents."""

    name: str = Field(description="As in requests.")
    about: str = Field(description="One line.")


class MethodInfo(BaseModel):
    """A method."""

    name: str
    about: str = Field(description="One line.")
    refines: bool = Field(description="Whether it asks the model to refine the query.")
    default_for: list[Kind] = Field(description="The kinds of runs that use it by default.")


class ModelList(BaseModel):
    """The models, methods, retrievers and judges to choose from."""

    models: list[ModelDescription]
    methods: list[MethodInfo]
    retrievers: list[RetrieverInfo]
    attributors: list[str] = Field(description="What judges answers, the default first.")


class DocumentLines(BaseModel):
    """One line about each of several documents."""

    documents: list[engines.DocumentLine]


class Me(BaseModel):
    """The caller."""

    key: str | None = Field(description="The name of the key; null if no key is required.")
    scopes: list[Scope]


class Ready(BaseModel):
    """Whether the service can do runs."""

    status: Literal["ready", "not ready", "draining"]
    reached: dict[str, bool] = Field(
        description=(
            "Whether an index, the model and the store can be reached, without which nothing "
            "works; and whether all `sources` can, without which some requests fail."
        )
    )


@router.get("/v1/indexes")
async def list_indexes(request: Request) -> IndexList:
    """List the indexes that can be searched, with their attributes and groups."""
    reached = await parts_of(request).executor.reached()
    indexes = []
    unavailable = []
    for name, pair in reached.items():
        if pair is None:
            unavailable.append(name)
            continue
        engine, info = pair
        attributes = {}
        for attribute_name, attribute in engine.schema.attributes.items():
            attributes[attribute_name] = AttributeInfo(
                groups=[*attribute.listed], population=attribute.population
            )
        index = IndexDescription(
            name=info.name,
            engine=info.engine,
            documents=info.documents,
            attributes=attributes,
        )
        indexes.append(index)
    return IndexList(indexes=indexes, unavailable=unavailable)


@router.get("/v1/documents", response_model=DocumentLines)
async def list_documents(
    request: Request,
    id: Annotated[
        list[_DocumentId], Query(description="The ids of documents.", min_length=1, max_length=100)
    ],
    corpus: _Corpus = None,
) -> Response:
    """Return the title and a line of the text of several documents."""
    lines = await _read(request, corpus, lambda engine: engines.read_lines(engine, id))
    return Json(DocumentLines(documents=lines))


@router.get("/v1/documents/{id:path}", response_model=engines.ServedDocument)
async def get_document(
    request: Request,
    id: Annotated[_DocumentId, Path(description="The id of a document.")],
    corpus: _Corpus = None,
) -> Response:
    """Return a document: its title, its text and its groups.

    An endpoint that only searches by words gives only documents that an earlier search found.
    """
    link = parts_of(request).executor.capabilities.link(corpus)
    read = partial(engines.read_document, id_=id, link=link)
    return Json(await _read(request, corpus, read))


async def _read(
    request: Request, corpus: str | None, read_from: Callable[[SearchEngine], Awaitable[T]]
) -> T:
    """Read documents of a corpus when it is the turn of the key, unless the client leaves first.

    Args:
        request: The request.
        corpus: The name of the corpus.
        read_from: Reads from its engine.
    """
    parts = parts_of(request)

    async def lend_and_read() -> T:
        async with parts.executor.lend_engine(corpus) as engine:
            return await read_from(engine)

    return await in_its_turn(request, parts.reading, lend_and_read)


@router.get("/v1/prompts")
async def list_prompts(request: Request) -> PromptList:
    """List the current prompts to choose from."""
    library = parts_of(request).executor.capabilities.prompts
    prompts = []
    for id_, version in library.names():
        default_version = DEFAULT_VERSIONS.get(id_, "v1")
        with suppress(PromptError):  # its file is wrong
            info = PromptInfo(
                id=id_,
                version=version,
                default=version == default_version,
                sha256=library.get(id_, version).sha256,
            )
            prompts.append(info)
    return PromptList(prompts=prompts)


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List the models, methods, retrievers and judges of answers."""
    parts = parts_of(request)
    capabilities = parts.executor.capabilities
    models = []
    for name in capabilities.models():
        is_default = name == capabilities.default_model
        models.append(ModelDescription(name=name, default=is_default))

    default_retriever = RunRequest.model_fields["retriever"].default
    retrievers = []
    for name, about in RETRIEVERS.items():
        is_default = name == default_retriever
        retrievers.append(RetrieverInfo(name=name, about=about, default=is_default))

    return ModelList(
        models=models,
        methods=[_method_info(method) for method in capabilities.methods()],
        retrievers=retrievers,
        attributors=[*parts.settings.attributors],
    )


def _method_info(name: Method) -> MethodInfo:
    """Return what is listed of a method."""
    strategy = METHODS[name]
    default_for = []
    for kind, form in REQUESTS.items():
        if form.model_fields["method"].default == name:
            default_for.append(kind)
    return MethodInfo(
        name=name, about=strategy.about, refines=strategy.refines, default_for=default_for
    )


@router.get("/v1/me")
async def me(request: Request) -> Me:
    """Return whose key this is, and what it may do."""
    access_key = access_key_of(request.scope)
    return Me(key=access_key.name or None, scopes=[*access_key.scopes])


@operation.get("/healthz")
@operation.head("/healthz", include_in_schema=False)
async def health() -> dict[str, str]:
    """Say that the process is alive."""
    return {"status": "ok"}


@operation.get("/readyz", response_model=Ready, responses={503: {"model": Ready}})
async def ready(request: Request) -> Response:
    """Say whether an index, the model and the database can be reached; 503 if one cannot.

    A source that cannot be reached, while others can, does not make it 503.
    """
    parts = parts_of(request)
    reached = await parts.readiness.look()
    required = [is_reached for name, is_reached in reached.items() if name != "sources"]

    status = "ready"
    if not all(required):
        status = "not ready"
    elif not parts.runs.accepting:
        status = "draining"
    code = 200 if status == "ready" else 503
    return JSONResponse({"status": status, "reached": reached}, code)


@operation.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
)
async def metrics(request: Request) -> Response:
    """Return metrics for Prometheus; a key needs the scope `admin`."""
    parts = parts_of(request)
    durable = None
    with suppress(StoreUnavailableError, TimeoutError):
        async with asyncio.timeout(COUNTING):
            live = await parts.store.counts()
            ended = await parts.store.count_ended()
            durable = DurableCounts(live, ended)

    waiting = len(parts.runs.waiting)
    running = len(parts.runs.ephemeral)
    text = parts.metrics.text(durable, waiting, running)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
