"""The routes in the form of OpenAI's API, where each source is a model."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from urllib.parse import quote, urlencode

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairqr.base.errors import FairqrError, IndexNotFoundError, one_line
from fairqr.graph.service.engine.chat import ChatRequest
from fairqr.graph.service.engine.documents import links_of
from fairqr.graph.service.http.answers import Json, ProblemResponse
from fairqr.graph.service.http.completions import (
    ChatCompletion,
    Completing,
    ModelCard,
    ModelCards,
)
from fairqr.graph.service.http.openapi import CHUNKS, openai_problems
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.routes.asking import (
    CLIENT_GONE,
    begin_ephemeral,
    run_ephemeral,
    unless_gone,
)
from fairqr.graph.service.http.sse import EventStream
from fairqr.graph.service.problems import problem_of

router = APIRouter(prefix="/openai/v1", tags=["openai"], responses=openai_problems())


@router.get("/models")
async def list_sources(request: Request) -> ModelCards:
    """List the sources to answer from, as models."""
    return ModelCards(data=[ModelCard(id=name) for name in await _sources(request)])


@router.get("/models/{model}")
async def get_source(request: Request, model: str) -> ModelCard:
    """Return a source, as a model."""
    await _check_source(request, model)
    return ModelCard(id=model)


@router.post("/chat/completions", response_model=ChatCompletion, responses=CHUNKS)
async def complete_chat(asked: ChatRequest, request: Request) -> Response:
    """Answer the last message of the user from a source.

    This is an ephemeral run of `POST /v1/answer`. Annotations name the documents that the answer
    used.
    """
    await _check_source(request, asked.model)
    answer, completing = asked.as_answer(), _completing(asked, request)
    if asked.stream:
        begun = await unless_gone(request, begin_ephemeral(request, "answer", answer))
        if begun is None:
            return Response(status_code=CLIENT_GONE)
        heartbeat, id_ = parts_of(request).settings.heartbeat, {"X-Request-ID": begun.run.id}
        return EventStream(begun, heartbeat, id_, partial(completing.pieces, begun.run))
    ended = await unless_gone(request, run_ephemeral(request, "answer", answer))
    if ended is None:
        return Response(status_code=CLIENT_GONE)
    headers = {"X-Request-ID": ended.id}
    if ended.result is None:
        return ProblemResponse(ended.problem or problem_of(LookupError()), headers)
    return Json((await completing.whole(ended, ended.result)).model_dump(), headers=headers)


def _completing(asked: ChatRequest, request: Request) -> Completing:
    engine, corpus = parts_of(request).engine, asked.model

    async def cite(ids: list[str]) -> list[str]:
        links: dict[str, str] = {}
        with suppress(FairqrError):  # keep the answer even if its documents cannot be read
            links = await links_of(await engine.searched(corpus), ids, engine.offers.link(corpus))
        source = urlencode({"corpus": corpus})
        own = f"{request.base_url}v1/documents/"
        return [links.get(id_) or f"{own}{quote(id_, safe='')}?{source}" for id_ in ids]

    return Completing(corpus, cite, asked.usage_is_wanted)


async def _sources(request: Request) -> list[str]:
    return await asyncio.to_thread(parts_of(request).engine.offers.corpora)


async def _check_source(request: Request, name: str) -> None:
    if name not in await _sources(request):
        raise IndexNotFoundError(
            f"There is no model '{one_line(name, 60)}'; GET /openai/v1/models lists all."
        )
