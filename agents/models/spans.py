"""Spans for questions to models, by OpenTelemetry's GenAI conventions."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from fairqr.agents.models.replies import Reply
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


async def recorded(
    operation: Operation,
    provider: str,
    model: str,
    prompt: PromptTemplate,
    converse: Callable[[Span], Awaitable[Reply]],
    *,
    base_url: str | None = None,
    request: Mapping[str, Any] | None = None,
) -> tuple[Reply, float]:
    """Ask in a span, and return the reply and the milliseconds that it took.

    Args:
        operation: The kind of request.
        provider: The provider's name in ``init_chat_model``, or ``transformers`` for a model in
            this process.
        model: The model's name at the provider.
        prompt: The prompt of the question.
        converse: Asks, with all attempts.
        base_url: The address of its server. Only the host and port are recorded.
        request: Further attributes ``gen_ai.request.…``; None is left out.
    """
    kind: Kind = "internal" if provider == IN_PROCESS else "client"
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
        "gen_ai.prompt.name": prompt.id,
        "gen_ai.prompt.version": prompt.version,
        "fairqr.prompt.sha256": prompt.sha256,
    }
    if kind == "client":
        attributes["fairqr.model"] = f"{provider}:{model}"
    if base_url is not None:
        parts = urlsplit(base_url)
        attributes["server.address"] = parts.hostname or ""
        attributes["server.port"] = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    stated = {key: value for key, value in (request or {}).items() if value is not None}
    attributes |= {f"gen_ai.request.{key}": value for key, value in stated.items()}
    began = time.perf_counter()
    with span(f"{operation} {model}", kind=kind, **attributes) as step:
        reply = await converse(step)
        step.set("fairqr.status", reply.status)
        step.set("gen_ai.usage.input_tokens", reply.usage.prompt_tokens)
        step.set("gen_ai.usage.output_tokens", reply.usage.completion_tokens)
        if reply.status != "ok":
            step.fail(reply.status)
    return reply, (time.perf_counter() - began) * 1000


def input_messages(messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return messages in the form of ``gen_ai.input.messages``."""
    return [_message(message["role"], message["content"]) for message in messages]


def output_messages(text: str, finish_reason: str | None = None) -> list[dict[str, Any]]:
    """Return a reply in the form of ``gen_ai.output.messages``."""
    return [{**_message("assistant", text), "finish_reason": finish_reason or "unknown"}]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}
