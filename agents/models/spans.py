"""Spans for questions to models, by OpenTelemetry's GenAI conventions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

from fairqr.agents.models.replies import Usage
from fairqr.base.telemetry import Kind, Span, span
from fairqr.prompts.template import PromptTemplate

Operation = Literal["chat", "text_completion"]

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


@contextmanager
def model_span(
    operation: Operation,
    provider: str,
    model: str,
    prompt: PromptTemplate,
    *,
    kind: Kind = "client",
    base_url: str | None = None,
    request: Mapping[str, Any] | None = None,
) -> Iterator[Span]:
    """Open a span for a question to a model, with all its attempts.

    Args:
        operation: The kind of request.
        provider: The provider's name in ``init_chat_model``, or ``transformers`` for a model in
            this process.
        model: The model's name at the provider.
        prompt: The prompt of the question.
        kind: ``internal`` for a model in this process.
        base_url: The address of its server. Only the host and port are recorded.
        request: Further attributes ``gen_ai.request.…``; None is left out.
    """
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
        **({"fairqr.model": f"{provider}:{model}"} if kind == "client" else {}),
        **_server(base_url),
        "gen_ai.prompt.name": prompt.id,
        "gen_ai.prompt.version": prompt.version,
        "fairqr.prompt.sha256": prompt.sha256,
    }
    stated = {key: value for key, value in (request or {}).items() if value is not None}
    attributes |= {f"gen_ai.request.{key}": value for key, value in stated.items()}
    with span(f"{operation} {model}", kind=kind, **attributes) as step:
        yield step


def outcome(step: Span, status: str, usage: Usage) -> None:
    """Record how a question ended, and what it cost.

    Args:
        step: The span of the question.
        status: The status of the reply; all but ``ok`` and ``empty`` are errors.
        usage: The usage of all attempts.
    """
    step.set("fairqr.status", status)
    step.set("gen_ai.usage.input_tokens", usage.prompt_tokens)
    step.set("gen_ai.usage.output_tokens", usage.completion_tokens)
    if status not in ("ok", "empty"):
        step.fail(status)


def input_messages(messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return messages in the form of ``gen_ai.input.messages``."""
    return [_message(message["role"], message["content"]) for message in messages]


def output_messages(text: str, finish_reason: str | None = None) -> list[dict[str, Any]]:
    """Return a reply in the form of ``gen_ai.output.messages``."""
    return [{**_message("assistant", text), "finish_reason": finish_reason or "unknown"}]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _server(base_url: str | None) -> dict[str, Any]:
    if base_url is None:
        return {}
    parts = urlsplit(base_url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return {"server.address": parts.hostname or "", "server.port": port}
