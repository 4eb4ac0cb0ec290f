"""The documented form of a step, in the streams of the service and of ``FairSearch``."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from fairqr.graph.answer.result import RankingAnswer, SampledRanking
from fairqr.graph.documented import Documented
from fairqr.graph.search.result import RankingCost, RefinedGroup, Round, SearchResult
from fairqr.graph.search.state import GroupKey, StopReason
from fairqr.graph.stream import Step


class AuditProgress(Documented):
    """How far an audit is.

    Attributes:
        stage: What is being done, such as ``queries``.
    """

    model_config = ConfigDict(extra="forbid")

    stage: str
    done: int
    of: int


class StepData(Documented):
    """A step that has just ended. A field that does not apply to the step is left out, or None.

    Attributes:
        step: Its name. A search has ``begin``, ``retrieve``, ``measure``, ``choose_group``,
            ``refine`` and ``rerank``, perhaps several times; an answer has ``prepare`` before it
            and ``sample``, ``generate``, ``collect``, ``attribute`` and ``summarise`` after it; a
            probe has ``prepare`` before it and ``plan``, ``probe`` and ``conclude`` after it; an
            audit has ``progress``, and at last ``audit``.
        iteration: The number of the round that begins; 0 is the plain retrieval.
        target: After ``begin``: the target, by attribute and group.
        cost: After ``begin``: what re-ranking by a model, or a probe, costs at most.
        round: After ``measure``: the round that was measured.
        chosen: After ``choose_group``: the attributes and groups to ask the model about.
        lacking: After ``choose_group``: the attributes and groups that lack exposure.
        refinements: After ``refine``: the keywords that the model proposed.
        stop_reason: Why the loop ended.
        search: After ``rerank`` in an answer or a probe: the result of its search. A plain search
            gives its result at the end of the stream.
        sampled: After ``sample``: the rankings to answer from.
        generated: After ``generate``: what was answered from one ranking.
        judged: After ``attribute``: the same answer, with the documents that it used.
        progress: After ``progress``: how far an audit is.
        usage: What models have cost so far; after ``generate``, ``attribute`` and ``probe``, what
            this step has cost.
        warnings: Sentences for people.
    """

    model_config = ConfigDict(extra="forbid")

    step: str
    iteration: int | None = None
    target: dict[str, dict[str, float]] | None = None
    cost: RankingCost | None = None
    round: Round | None = None
    chosen: list[GroupKey] | None = None
    lacking: list[GroupKey] | None = None
    refinements: list[RefinedGroup] | None = None
    stop_reason: StopReason | None = None
    search: SearchResult | None = None
    sampled: list[SampledRanking] | None = None
    generated: RankingAnswer | None = None
    judged: RankingAnswer | None = None
    progress: AuditProgress | None = None
    usage: dict[str, int | float] | None = None
    warnings: list[str] | None = None


_FIRST = {"iterations": "round", "generated": "generated", "judged": "judged", "spent": "usage"}
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
