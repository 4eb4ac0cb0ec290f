"""The documented form of a step, in the streams of the service and of ``FairSearch``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from fairqr.graph.answer.state import GenerationRecord, SampledRanking, VerdictRecord
from fairqr.graph.search.result import SearchResult
from fairqr.graph.search.state import (
    CostRecord,
    GroupKey,
    IterationRecord,
    RefinementRecord,
    StopReason,
)
from fairqr.graph.stream import Step


class AuditProgress(BaseModel):
    """How far an audit is."""

    model_config = ConfigDict(extra="forbid")

    stage: str = Field(description="What is being done, such as `queries`.")
    done: int
    of: int


class StepData(BaseModel):
    """A step that has just ended. A field that does not apply to the step is left out, or None."""

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
        None, description="After `begin`: the target, by attribute and group."
    )
    cost: CostRecord | None = Field(
        None, description="After `begin`: what re-ranking by a model, or a probe, costs at most."
    )
    round: IterationRecord | None = Field(
        None, description="After `measure`: the round that was measured."
    )
    chosen: list[GroupKey] | None = Field(
        None,
        description="After `choose_group`: the attributes and groups to ask the model about.",
    )
    lacking: list[GroupKey] | None = Field(
        None, description="After `choose_group`: the attributes and groups that lack exposure."
    )
    refinements: list[RefinementRecord] | None = Field(
        None, description="After `refine`: the keywords that the model proposed."
    )
    stop_reason: StopReason | None = Field(None, description="Why the loop ended.")
    search: SearchResult | None = Field(
        None,
        description="After `rerank` in an answer or a probe: the result of its search. A plain "
        "search gives its result at the end of the stream.",
    )
    sampled: list[SampledRanking] | None = Field(
        None, description="After `sample`: the rankings to answer from."
    )
    generated: GenerationRecord | None = Field(
        None, description="After `generate`: what was answered from one ranking."
    )
    judged: VerdictRecord | None = Field(
        None, description="After `attribute`: which documents of one ranking its answer used."
    )
    progress: AuditProgress | None = Field(
        None, description="After `progress`: how far an audit is."
    )
    usage: dict[str, int | float] | None = Field(None, description="What models have cost so far.")
    warnings: list[str] | None = Field(None, description="Sentences for people.")


_FIRST = {"iterations": "round", "generations": "generated", "verdicts": "judged"}
"""Lists of the state to which a step adds one entry, and the field for this entry."""


def step_data(kind: str, step: Step) -> dict[str, Any]:
    """Return a step as plain data of :class:`StepData`.

    Args:
        kind: What the run does: ``search``, ``answer``, ``probe`` or ``audit``.
        step: The step.
    """
    update = step.update
    data = {name: update.get(name) for name in StepData.model_fields}
    data |= {name: update[key][0] for key, name in _FIRST.items() if update.get(key)}
    if kind != "search":
        data["search"] = update.get("result")
    told = {name: value for name, value in data.items() if value is not None and value != []}
    return {"step": step.name} | told
