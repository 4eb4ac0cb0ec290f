"""The steps that probe: does the model favour one side of a result when it ranks?

``prepare → search → plan → probe* → conclude``; the step with a star runs once for each batch of
pairs and for each asker, several at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Overwrite, Send

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.ranking.rankers import Cost
from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError
from fairqr.base.telemetry import current_span
from fairqr.graph.outcome_span import record_outcome
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.probe.probed_model import ProbedModel
from fairqr.graph.probe.state import ProbePlan, ProbeTask, State
from fairqr.graph.probe.summary import concluded
from fairqr.graph.search.context import Context
from fairqr.graph.search.decisions import shortage
from fairqr.graph.search.model_ranking import items_of
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.steps import Update, context_of, forgotten, require_hits, traced
from fairqr.graph.usage import total_usage, usage_of, usage_report
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.protected import ProtectedGroup

PAIRS_AT_ONCE = 5
"""How many pairs a task compares, one after the other; tasks run at the same time."""


class Nodes:
    """The steps over one engine.

    Args:
        engine: The search engine.
        model_for: Returns the language model that is probed, or None.
        prompts: The library of prompts.
        default: The context of runs that bring none of ours. Without it, each run must bring one.
    """

    def __init__(
        self,
        engine: SearchEngine,
        model_for: Callable[[], LanguageModel | None],
        prompts: PromptLibrary,
        default: ProbeContext | None,
    ) -> None:
        self._engine = engine
        self._probed = ProbedModel(engine, model_for, prompts)
        self._default = default

    def _context(self, runtime: Runtime[ProbeContext]) -> ProbeContext:
        if self._default is not None:
            return context_of(runtime, self._default)
        return _probe_context(runtime.context)

    @traced
    async def prepare(self, state: State, runtime: Runtime[ProbeContext]) -> Update:
        """Start the model, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No language model is given, or it cannot be started.
            PromptError: There is no such prompt.
            InputError: There is no such attribute or group, or an option is out of its range.
        """
        context = self._context(runtime)
        sides_of(self._engine, context.probe)
        await self._probed.start(context)
        earlier = forgotten(state, "result", "probe")
        return {**earlier, "seconds": Overwrite(0.0), "probed": Overwrite([])}

    async def cost(self, query: str, found: Sequence[str], context: Context) -> Cost:
        """Return the most that the probe will cost.

        Args:
            query: The original query.
            found: The ids of the documents that it found, best first; the result may have others.
            context: The context of the run.

        Raises:
            InputError: Not even two documents fit into what the model reads at once.
        """
        context = _probe_context(context)
        items = await items_of(self._engine, found[: _depth(context)])
        return self._probed.cost(query, items, context) if len(items) > 1 else Cost()

    @traced
    async def plan(self, state: State, runtime: Runtime[ProbeContext]) -> Update:
        """Choose the documents of both sides, the pairs and the list.

        Raises:
            NoMatchError: No document matches the query.
        """
        context = self._context(runtime)
        settings = context.probe
        places = state["result"]["ranking"]
        require_hits(places, self._engine, state["query"])
        searched = state["result"]["usage"]["milliseconds"] / 1000
        ids = [place["id"] for place in places[: _depth(context)]]
        sides = sides_of(self._engine, settings)
        dimension = Dimension.named(self._engine.schema, settings.attribute)
        pool = [RankedDocument.model_validate(place) for place in places[: len(ids)]]
        members = memberships_of(pool, dimension)
        marks = sides.sides_of(members).tolist()
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
            asker=settings.asker,
            askers=list(settings.askers),
        )
        lacking = [sides.words[1 - side] for side in (1, 0) if not of_side[side]]
        if lacking:
            plan["status"] = "one_sided"
            plan["message"] = (
                f"None of the {len(ids)} documents is {' or '.join(lacking)}, so there is nothing "
                "to compare; raise k, or choose another query or attribute."
            )
            return {"plan": plan, "seconds": searched}
        items = await items_of(self._engine, ids)
        needed = self._probed.cost(state["query"], items, context)
        if lack := shortage(context.budget, usage_of(state["result"]), needed):
            plan["status"] = "budget"
            plan["message"] = (
                f"The probe may take {lack.needed} {lack.unit_in_words}, but only {lack.left} of "
                "the budget are left; raise the budget."
            )
            return {"plan": plan, "seconds": searched}
        random = stream(settings.seed, f"probe: {state['query']}")
        one, other = (random.permutation(of_side[side]).tolist() for side in (1, 0))
        order = random.permutation([*of_side[1], *of_side[0]]).tolist()
        if "pairwise" in settings.kinds:
            plan["pairs"] = list(zip(one, other, strict=False))[: settings.pairs]
        if "listwise" in settings.kinds:
            plan["order"] = order
        return {"plan": plan, "seconds": searched}

    @traced
    async def probe(self, state: ProbeTask, runtime: Runtime[ProbeContext]) -> Update:
        """Compare the pairs of a batch, or order the list for an asker."""
        context, opened = self._context(runtime), current_span()
        opened.set("fairqr.asker", state["asker"])
        work = self._probed.compared if state["pairs"] else self._probed.ordered
        record = await work(state, context)
        opened.set("fairqr.asked", record["asked"])
        opened.set("fairqr.failures", record["failures"])
        return {"probed": [record]}

    @traced
    async def conclude(self, state: State, runtime: Runtime[ProbeContext]) -> Update:
        """Put the result together."""
        context, opened = self._context(runtime), current_span()
        settings = context.probe
        prompts = [self._probed.prompt(context, kind) for kind in settings.kinds]
        result = concluded(
            state,
            settings,
            sides_of(self._engine, settings),
            corpus=self._engine.name,
            model=self._probed.model().name,
            prompts=[prompt.reference for prompt in prompts],
        )
        opened.set("fairqr.status", result.status)
        if result.pairwise is not None:
            opened.set("fairqr.verdict", result.pairwise.verdict)
        spent = total_usage((it["usage"] for it in state["probed"]), usage_of(state["result"]))
        record_outcome(opened, usage_report(spent), result.prompts, probed=result.model)
        return {"probe": result.model_dump(mode="json")}


def to_probe(state: State) -> list[Send] | Literal["conclude"]:
    """Send each batch of pairs, and the list once for each asker, if anything is asked."""
    plan = state["plan"]
    if plan["status"] != "ok":
        return "conclude"
    base = ProbeTask(
        query=state["query"],
        seconds=state["seconds"],
        number=0,
        words=plan["words"],
        pairs=[],
        order=[],
        asker=plan["asker"],
    )
    pairs = plan["pairs"]
    batches = [pairs[at : at + PAIRS_AT_ONCE] for at in range(0, len(pairs), PAIRS_AT_ONCE)]
    tasks: list[ProbeTask] = [{**base, "pairs": batch} for batch in batches]
    if plan["order"]:
        tasks += [{**base, "order": plan["order"], "asker": asker} for asker in plan["askers"]]
    sends = [Send("probe", {**task, "number": number}) for number, task in enumerate(tasks)]
    return sends or "conclude"


def sides_of(engine: SearchEngine, settings: ProbeSettings) -> ProtectedGroup:
    """Return the two sides.

    Raises:
        InputError: The attribute or a group does not exist, or a side has no group.
    """
    attribute = engine.schema.attribute(settings.attribute)
    return ProtectedGroup.parse(attribute, settings.protected, settings.words)


def _probe_context(given: object) -> ProbeContext:
    """Return the context that a run brings.

    Raises:
        InputError: It is not the context of a probe.
    """
    if not isinstance(given, ProbeContext):
        raise InputError("The probe needs a context; give the graph a ProbeContext.")
    return given


def _depth(context: ProbeContext) -> int:
    return min(context.probe.depth or context.k, context.k)
