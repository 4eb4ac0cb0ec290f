"""What a client is told of a step."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fairqr.graph.answer.state import GenerationRecord, SampledRanking, VerdictRecord
from fairqr.graph.search.result import SearchResult
from fairqr.graph.search.state import GroupKey, IterationRecord, RefinementRecord, StopReason
from fairqr.graph.service.records import Kind
from fairqr.graph.stream import Step
from fairqr.graph.usage import UsageRecord

__all__ = ["AuditProgress", "StepData", "step_data"]


class AuditProgress(BaseModel):
    """How far an audit is."""

    model_config = ConfigDict(extra="forbid")

    stage: str = Field(description="What is being done, such as `queries`.")
    done: int
    of: int


class StepData(BaseModel):
    """A step that has just ended. What it has nothing to say of is left out."""

    model_config = ConfigDict(extra="forbid")

    step: str = Field(
        description="Its name. A search has `begin`, `retrieve`, `measure`, `choose_group`, "
        "`refine` and `rerank`, perhaps several times; an answer has `prepare` before it and "
        "`sample`, `generate`, `collect`, `attribute` and `summarise` after it; a probe has "
        "`prepare` before it and `plan`, `probe` and `conclude` after it; an audit has "
        "`progress`, and at last `audit`."
    )
    iteration: int | None = Field(
        None, description="The number of the round that begins; 0 is the plain retrieval."
    )
    target: dict[str, dict[str, float]] | None = Field(
        None, description="Of `retrieve`: the target, by attribute and group."
    )
    round: IterationRecord | None = Field(
        None, description="Of `measure`: the round that was measured."
    )
    lacking: list[GroupKey] | None = Field(
        None, description="Of `choose_group`: the attributes and groups that lack exposure."
    )
    refinements: list[RefinementRecord] | None = Field(
        None, description="Of `refine`: the keywords that the model proposed."
    )
    stop_reason: StopReason | None = Field(None, description="Why the loop ended.")
    search: SearchResult | None = Field(
        None,
        description="Of `rerank` in an answer or a probe: the result of their search. That of a "
        "search comes with the event `end`.",
    )
    sampled: list[SampledRanking] | None = Field(
        None, description="Of `sample`: the rankings to answer from."
    )
    generated: GenerationRecord | None = Field(
        None, description="Of `generate`: what was answered from one ranking."
    )
    judged: VerdictRecord | None = Field(
        None, description="Of `attribute`: which documents of one ranking its answer used."
    )
    progress: AuditProgress | None = Field(None, description="Of `progress`: how far an audit is.")
    usage: UsageRecord | None = Field(None, description="What models have cost so far.")
    warnings: list[str] | None = Field(None, description="Sentences for people.")


_SAME = ("iteration", "target", "lacking", "refinements", "stop_reason", "sampled", "progress")
_FIRST = {"iterations": "round", "generations": "generated", "verdicts": "judged"}
"""Lists of the state to which a step adds one entry, and what the entry is called here."""


def step_data(kind: Kind, step: Step) -> dict[str, Any]:
    """Return a step as :class:`StepData` describes it.

    Args:
        kind: Of the run.
        step: The step.
    """
    update = step.update
    told = {name: update.get(name) for name in (*_SAME, "usage", "warnings")}
    told |= {name: update[key][0] for key, name in _FIRST.items() if update.get(key)}
    if kind != "search":
        told["search"] = update.get("result")
    return {"step": step.name} | {
        name: value for name, value in told.items() if value is not None and value != []
    }
