"""The steps that probe: does the model that is asked to rank lean to one side of this result?

``rerank → probe* → conclude``; the step with a star runs once for each batch of pairs and for each
asker, several at a time. What is asked is planned where the result is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langgraph.runtime import Runtime
from langgraph.types import Overwrite, Send

from fairqr.agents.ranking.base import Cost
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.replies import Usage
from fairqr.errors import InputError
from fairqr.graph.context import Context
from fairqr.graph.lists import table_of
from fairqr.graph.model_ranking import items_of
from fairqr.graph.outcome_span import record_outcome
from fairqr.graph.probe_asking import Asking
from fairqr.graph.probing_context import ProbeSettings
from fairqr.graph.state import ProbePlan, ProbeTask, State, usage_record
from fairqr.graph.steps import Update, context_of, traced
from fairqr.graph.usage_report import UsageReport
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sides import Sides, parse_sides
from fairqr.statistics import stream
from fairqr.telemetry import current_span

__all__ = ["Probing", "sides_of"]

PAIRS_AT_ONCE = 5
"""Pairs of one task, compared one after the other; tasks run side by side."""


class Probing:
    """The steps over one engine.

    Args:
        engine: Where the documents are.
        model_for: Returns the language model that is probed, or None; called where a context asks
            for a probe.
        prompts: Where prompts come from.
    """

    def __init__(
        self,
        engine: SearchEngine,
        model_for: Callable[[], RankingModel | None],
        prompts: PromptLibrary,
    ) -> None:
        self._engine = engine
        self._asking = Asking(engine, model_for, prompts)

    async def begin(self, state: State, context: Context) -> Update:
        """Return what the state begins with; a missing model or prompt is better known now.

        Raises:
            ModelUnavailableError: No language model is given, or it cannot be started.
            PromptError: There is no such prompt.
            InputError: There is no such attribute or group, or an option is out of its range.
        """
        # A thread of a checkpointer may hold an earlier probe.
        update: Update = {"probe": None} if state.get("probe") is not None else {}
        settings = context.probe
        if settings is None:
            return update
        sides_of(self._engine, settings)
        await self._asking.start(context, settings)
        return {**update, "probed": Overwrite([])}

    async def cost(self, query: str, found: Sequence[str], context: Context) -> Cost:
        """Return what the probe will cost at the most, if one is asked for.

        Args:
            query: The original query.
            found: The ids of the documents that it found, best first; the result may have others.
            context: Of the run.

        Raises:
            InputError: Not even two documents fit into what the model reads at once.
        """
        settings = context.probe
        if settings is None:
            return Cost()
        items = await items_of(self._engine, found[: _depth(context, settings)])
        return self._asking.cost(query, items, context, settings) if len(items) > 1 else Cost()

    async def planned(self, state: State, context: Context, usage: Usage) -> Update:
        """Return what is to be asked about the result, if a probe is asked for.

        Args:
            state: Of the run, with the result.
            context: Of the run.
            usage: What the run cost so far.
        """
        settings = context.probe
        if settings is None:
            return {}
        places: list[Any] = state["result"]["ranking"]  # type: ignore[assignment]
        ids = [place["id"] for place in places[: _depth(context, settings)]]
        sides = sides_of(self._engine, settings)
        dimension = Dimension.named(self._engine.schema, settings.attribute)
        members = table_of(state["rankings"]).memberships(dimension, ids)
        marks = sides.of(members).tolist()
        of_side = {
            side: [i for i, mark in zip(ids, marks, strict=True) if mark == side]
            for side in (1, 0, -1)
        }
        plan = ProbePlan(
            status="ok",
            message="",
            words=list(sides.words),
            protected=of_side[1],
            unprotected=of_side[0],
            undecided=of_side[-1],
            pairs=[],
            order=[],
        )
        lacking = [sides.words[1 - side] for side in (1, 0) if not of_side[side]]
        if lacking:
            plan["status"] = "one_sided"
            plan["message"] = (
                f"None of the {len(ids)} documents is {' or '.join(lacking)}, so there is nothing "
                "to compare; raise k, or choose another query or attribute."
            )
            return {"probing": plan}
        items = await items_of(self._engine, ids)
        needed = self._asking.cost(state["query"], items, context, settings)
        if problem := _beyond(context, usage, needed):
            return {"probing": {**plan, "status": "budget", "message": problem}}
        random = stream(settings.seed, f"probe: {state['query']}")
        one, other = (random.permutation(of_side[side]).tolist() for side in (1, 0))
        order = random.permutation([*of_side[1], *of_side[0]]).tolist()
        if "pairwise" in settings.kinds:
            plan["pairs"] = list(zip(one, other, strict=False))[: settings.pairs]
        if "listwise" in settings.kinds:
            plan["order"] = order
        return {"probing": plan}

    @staticmethod
    def tasks(state: State, context: Context) -> list[Send]:
        """Send each batch of pairs, and the list once for each asker; none if nothing is asked."""
        plan, settings = state["probing"], context.probe
        if settings is None or plan["status"] != "ok":
            return []
        base = ProbeTask(
            query=state["query"],
            started=state["started"],
            number=0,
            words=plan["words"],
            pairs=[],
            order=[],
            asker=settings.asker,
        )
        pairs = plan["pairs"]
        batches = [pairs[at : at + PAIRS_AT_ONCE] for at in range(0, len(pairs), PAIRS_AT_ONCE)]
        tasks = [ProbeTask(**{**base, "pairs": batch}) for batch in batches]
        if plan["order"]:
            lists = {"order": plan["order"]}
            tasks += [ProbeTask(**{**base, **lists, "asker": it}) for it in settings.askers]  # type: ignore[typeddict-item]
        return [Send("probe", {**task, "number": number}) for number, task in enumerate(tasks)]

    @traced
    async def probe(self, state: ProbeTask, runtime: Runtime[Context]) -> Update:
        """Compare the pairs of a batch, or order the list for an asker."""
        context, opened = context_of(runtime), current_span()
        settings = _settings_of(context)
        opened.set("fairqr.asker", state["asker"])
        work = self._asking.compared if state["pairs"] else self._asking.ordered
        record = await work(state, context, settings)
        opened.set("fairqr.asked", record["asked"])
        opened.set("fairqr.failures", record["failures"])
        return {"probed": [record]}

    @traced
    async def conclude(self, state: State, runtime: Runtime[Context]) -> Update:
        """Put together what the probe found."""
        from fairqr.graph.probe_summary import concluded

        context, opened = context_of(runtime), current_span()
        settings = _settings_of(context)
        prompts = [self._asking.prompt(context, kind) for kind in settings.kinds]
        result = concluded(
            state,
            settings,
            sides_of(self._engine, settings),
            corpus=self._engine.name,
            model=self._asking.model().name,
            prompts=[prompt.reference for prompt in prompts],
        )
        opened.set("fairqr.status", result.status)
        if result.pairwise is not None:
            opened.set("fairqr.verdict", result.pairwise.verdict)
        spent = [Usage(**record["usage"]) for record in state["probed"]]
        total = usage_record(sum(spent, Usage(**state["usage"])))
        usage = UsageReport(**total, milliseconds=result.usage.milliseconds)
        record_outcome(opened, usage, result.prompts, probed=result.model)
        return {"probe": result.model_dump(mode="json"), "usage": total}


def sides_of(engine: SearchEngine, settings: ProbeSettings) -> Sides:
    """Return the two sides.

    Raises:
        InputError: There is no such attribute or group, or a side has none.
    """
    attribute = engine.schema.attribute(settings.attribute)
    return parse_sides(attribute, settings.protected, settings.words)


def _settings_of(context: Context) -> ProbeSettings:
    """Return how to probe; the steps here run only where that is said."""
    if context.probe is None:
        raise InputError("No probe is asked for; give the context a probe.")
    return context.probe


def _depth(context: Context, settings: ProbeSettings) -> int:
    return min(settings.depth or context.k, context.k)


def _beyond(context: Context, usage: Usage, needed: Cost) -> str:
    """Return why the budget has no room for the probe; empty where it has."""
    budget = context.budget
    for limit, used, wanted, unit in (
        (budget.model_calls, usage.model_calls, needed.calls, "model calls"),
        (budget.tokens, usage.prompt_tokens + usage.completion_tokens, needed.tokens, "tokens"),
    ):
        if limit is not None and used + wanted > limit:
            return (
                f"The probe may take {wanted} {unit}, and {max(0, limit - used)} of the budget are "
                "left; raise the budget."
            )
    return ""
