"""The routes in the form of OpenAI's API, where each source is a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter
from openai.types import Model
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairqr.base.errors import FairqrError, IndexNotFoundError, one_line
from fairqr.graph.service.engine.chat import ChatRequest
from fairqr.graph.service.engine.documents import links_of
from fairqr.graph.service.http.answers import Json, ProblemResponse
from fairqr.graph.service.http.completions import Completing
from fairqr.graph.service.http.openapi import OPENAI_PROBLEMS, Responses
from fairqr.graph.service.http.parts import parts_of
from fairqr.graph.service.http.routes.asking import begin_ephemeral, run_ephemeral, unless_gone
from fairqr.graph.service.problems import problem_of

router = APIRouter(prefix="/openai/v1", tags=["openai"], responses=OPENAI_PROBLEMS)


_CHUNKS: Responses = {
    200: {
        "description": "The answer; with `stream`, its chunks as server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


class Sources(BaseModel):
    """The sources that can be answered from, the default first, as models."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("/models")
async def list_sources(request: Request) -> Sources:
    """List the sources to answer from, as models."""
    return Sources(data=[_card(name) for name in await _sources(request)])


@router.get("/models/{model}")
async def get_source(request: Request, model: str) -> Model:
    """Return a source, as a model."""
    await _check_source(request, model)
    return _card(model)


@router.post("/chat/completions", response_model=ChatCompletion, responses=_CHUNKS)
async def complete_chat(asked: ChatRequest, request: Request) -> Response:
    """Answer the last message of the user from a source.

    This is an ephemeral run of `POST /v1/answer`. Annotations name the documents that the answer
    used.
    """
    await _check_source(request, asked.model)
    answer, completing = asked.as_answer(), _completing(asked, request)
    if asked.stream:
        begun = await unless_gone(request, begin_ephemeral(request, "answer", answer))

        async def lines() -> AsyncIterator[bytes]:
            async with begun as events, aclosing(completing.pieces(begun.run, events)) as pieces:
                async for piece in pieces:
                    yield piece

        headers = {"X-Request-ID": begun.run.id, "X-Accel-Buffering": "no"}
        return StreamingResponse(lines(), headers=headers, media_type="text/event-stream")
    ended = await unless_gone(request, run_ephemeral(request, "answer", answer))
    headers = {"X-Request-ID": ended.id}
    if ended.result is None:
        return ProblemResponse(ended.problem or problem_of(LookupError()), headers)
    return Json(await completing.whole(ended, ended.result), headers=headers)


def _card(name: str) -> Model:
    """Return a source as a model. Nobody knows when it was made."""
    return Model(id=name, object="model", created=0, owned_by="fairqr")


def _completing(asked: ChatRequest, request: Request) -> Completing:
    engine, corpus = parts_of(request).engine, asked.model

    async def cite(ids: list[str]) -> list[str]:
        links: dict[str, str] = {}
        with suppress(FairqrError):  # keep the answer even if its documents cannot be read
            async with engine.searched(corpus) as searched:
                links = await links_of(searched, ids, engine.offers.link(corpus))
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
