"""Records scores in the spans of steps, and at the end what the run cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairqr.agents.attribution.attributor import Entailment
from fairqr.base.telemetry import Span
from fairqr.graph.search.decisions import groups_to_ask_about
from fairqr.graph.usage import UsageReport
from fairqr.prompts.template import PromptReference


def record_divergence(
    step: Span,
    divergence: float | None,
    exposure: Mapping[str, Mapping[str, float]],
    target: Mapping[str, Mapping[str, float]],
) -> None:
    """Record how far a list is from the target.

    Args:
        step: The step that made or measured the list.
        divergence: The divergence in nats, or None if it is undefined.
        exposure: The exposure in the list, by attribute and group.
        target: The target, by attribute and group.
    """
    worst = [
        f"{name}={group} has {exposure[name][group]:.1%} of the exposure; "
        f"its target is {target[name][group]:.1%}."
        for name, group in groups_to_ask_about(target, exposure, "most", 1)
    ]
    step.evaluation("divergence", divergence, explanation="".join(worst) or None)


def record_verdict(step: Span, rank: int, verdict: Entailment) -> None:
    """Record whether an answer used a document.

    Args:
        step: The step that judged it.
        rank: The rank of the document in the ranking that the answer was written from.
        verdict: The verdict on the document and the answer.
    """
    labels = {True: "attributed", False: "not_attributed", None: None}
    failed = None if verdict.status == "ok" else verdict.status
    step.evaluation(
        "attribution",
        verdict.score,
        label=labels[verdict.attributed],
        **{"fairqr.document.rank": rank, "error.type": failed},
    )


def record_outcome(
    step: Span,
    usage: UsageReport,
    prompts: Iterable[PromptReference | None],
    **models: str | None,
) -> None:
    """Record the models and prompts of a run, and what it has cost so far.

    Args:
        step: A step that ends a part of the run.
        usage: What the run has cost so far.
        prompts: The prompts in use; None is skipped.
        models: The names of the models, by their role; None is skipped.
    """
    step.set("fairqr.models", [f"{what}={name}" for what, name in models.items() if name])
    used = [prompt for prompt in prompts if prompt is not None]
    step.set("fairqr.prompts", [f"{it.id}={it.version} {it.sha256}" for it in used])
    step.set("fairqr.model_calls", usage.model_calls)
    step.set("fairqr.cached_calls", usage.cached_calls)
    step.set("fairqr.input_tokens", usage.prompt_tokens)
    step.set("fairqr.output_tokens", usage.completion_tokens)
