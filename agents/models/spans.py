"""Spans for questions to models, by OpenTelemetry's GenAI conventions."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from fairqr.agents.models.replies import Reply, Status, Usage
from fairqr.base.errors import ModelError
from fairqr.base.telemetry import Kind, Span, span
from fairqr.prompts.template import PromptTemplate

Operation = Literal["chat", "text_completion"]

IN_PROCESS = "transformers"
"""The provider of models in this process."""

# The names of providers in the conventions, if LangChain has other ones.
_PROVIDERS = {
    "azure_ai": "azure.ai.inference",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "anthropic_bedrock": "aws.bedrock",
    "google_anthropic_vertex": "gcp.vertex_ai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}


@dataclass(slots=True)
class Exchange:
    """A question that is being asked: its span, and what it has cost so far."""

    step: Span
    usage: Usage = Usage()  # noqa: RUF009 - frozen


async def recorded(
    name: str,
    provider: str,
    operation: Operation,
    prompt: PromptTemplate,
    converse: Callable[[Exchange], Awaitable[Mapping[str, Any]]],
    **more: Any,
) -> tuple[Reply, float]:
    """Ask in a span, and return the reply and the milliseconds that it took.

    Args:
        name: The name of the model for results; after a colon, the one at the provider.
        provider: The provider's name in ``init_chat_model``, or ``transformers`` for a model in
            this process.
        operation: The kind of request.
        prompt: The prompt of the question.
        converse: Asks, with all attempts, and returns the value of the reply. It raises ModelError,
            or ValueError that says why a reply cannot be used.
        more: Further attributes of the span, without their prefix ``gen_ai.request.`` unless they
            have dots; None is left out.
    """
    model, is_client = name.partition(":")[2], provider != IN_PROCESS
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
        "fairqr.model": name if is_client else None,
        "gen_ai.prompt.name": prompt.id,
        "gen_ai.prompt.version": prompt.version,
        "fairqr.prompt.sha256": prompt.sha256,
        **{key if "." in key else f"gen_ai.request.{key}": value for key, value in more.items()},
    }
    stated = {key: value for key, value in attributes.items() if value is not None}
    began = time.perf_counter()
    kind: Kind = "client" if is_client else "internal"
    with span(f"{operation} {model}", kind=kind, **stated) as step:
        exchange = Exchange(step)
        try:
            reply = Reply("ok", await converse(exchange), usage=exchange.usage)
        except ModelError as error:
            reply = Reply(cast("Status", error.status), message=str(error), usage=exchange.usage)
            step.fail(error.status)
        except ValueError as error:
            said = f"The model {name} gave no usable reply: {error}."
            reply = Reply("parse_error", message=said, usage=exchange.usage)
            step.fail("parse_error")
        step.set("fairqr.status", reply.status)
        step.set("gen_ai.usage.input_tokens", reply.usage.prompt_tokens)
        step.set("gen_ai.usage.output_tokens", reply.usage.completion_tokens)
    return reply, (time.perf_counter() - began) * 1000


def server_at(base_url: str | None) -> dict[str, Any]:
    """Return the host and port of a server, for its span."""
    parts = urlsplit(base_url or "")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return {"server.address": parts.hostname, "server.port": port}


def input_messages(messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return messages in the form of ``gen_ai.input.messages``."""
    return [_message(message["role"], message["content"]) for message in messages]


def output_messages(text: str, finish_reason: str | None = None) -> list[dict[str, Any]]:
    """Return a reply in the form of ``gen_ai.output.messages``."""
    return [{**_message("assistant", text), "finish_reason": finish_reason or "unknown"}]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}
