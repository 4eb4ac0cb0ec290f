"""What the last steps of a run record of it, so that recorded runs can be listed and compared."""

from __future__ import annotations

from collections.abc import Iterable

from fairqr.base.telemetry import Span
from fairqr.graph.usage import UsageReport
from fairqr.prompts.template import PromptReference

__all__ = ["record_outcome"]


def record_outcome(
    step: Span,
    usage: UsageReport,
    prompts: Iterable[PromptReference | None],
    **models: str | None,
) -> None:
    """Record what a run was asked with, and what it has cost so far.

    Args:
        step: A step that ends a part of the run.
        usage: Of the run until now.
        prompts: That were used; those that are None are left out.
        models: By what they did; those that are None are left out.
    """
    step.set("fairqr.models", [f"{what}={name}" for what, name in models.items() if name])
    used = [prompt for prompt in prompts if prompt is not None]
    step.set("fairqr.prompts", [f"{it.id}={it.version} {it.sha256}" for it in used])
    step.set("fairqr.model_calls", usage.model_calls)
    step.set("fairqr.cached_calls", usage.cached_calls)
    step.set("fairqr.input_tokens", usage.prompt_tokens)
    step.set("fairqr.output_tokens", usage.completion_tokens)
