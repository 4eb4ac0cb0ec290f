"""The steps that probe: does the model favour one side of a result when it ranks?

``prepare → search → plan → probe* → conclude``; the step with a star runs once for each batch of
pairs and for each asker, several at a time.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, NotRequired

from langgraph.graph import START
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.types import Checkpointer, Send

# Before Python 3.12, pydantic cannot make a JSON schema, which Studio needs, of typing's TypedDict.
from typing_extensions import TypedDict

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.lean import PairOutcome, pair_figures, verdicts
from fairqr.agents.ranking.pairwise import PairwiseJudge, Preference
from fairqr.agents.ranking.rankers import Asker, Cost, ItemRanker, group_of, open_ranker
from fairqr.agents.statistics import stream
from fairqr.base.errors import ModelUnavailableError
from fairqr.base.telemetry import Span
from fairqr.graph import steps
from fairqr.graph.probe import result as results
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.probe.words import verdict_in_words
from fairqr.graph.search.builder import RECURSION_LIMIT, build_search_graph
from fairqr.graph.search.context import require_context
from fairqr.graph.search.rankers import GivenModel, GivenRanker, Rankers, items_of, model_of
from fairqr.graph.search.result import InputState, RankedDocument, RankingCost, memberships_of
from fairqr.graph.search.result import OutputState as SearchOutput
from fairqr.graph.search.rounds import shortage
from fairqr.graph.steps import CONCURRENCY, SEARCH, Node, longest
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import exposure_ratio
from fairqr.retrieval.fairness.protected import ProtectedGroup


class ProbeTask(TypedDict):
    """Pairs to compare for an asker, the protected document first; or else a list to order.

    As the input of a node, it also has ``query`` and ``seconds``.
    """

    asker: Asker
    pairs: list[tuple[str, str]]
    order: list[str]
    query: NotRequired[str]
    seconds: NotRequired[float]


class OutputState(SearchOutput):
    """What a run ends with: the search's result and the probe's.

    ``probe`` is the object of :class:`fairqr.graph.probe.result.ProbeResult`.
    """

    probe: dict[str, Any]


class State(InputState, OutputState, total=False):
    """What the nodes that probe share.

    Attributes:
        seconds: How long the steps have taken so far, including the search.
        status: ``ok``, or why nothing is asked.
        message: A sentence that explains the status; empty if ``ok``.
        tasks: What to ask.
        cost: What that costs at most, as :class:`fairqr.graph.search.result.RankingCost`.
        pairs: Objects of :class:`fairqr.graph.probe.result.ProbedPair`.
        asked_by: How the pairs of each task were decided: ``probabilities`` or ``reply``.
        orders: Objects of :class:`fairqr.graph.probe.result.AskerOrder`, without their exposure.
        spent: What each task cost.
        warnings: Sentences for users.
    """

    seconds: Annotated[float, longest]
    status: str
    message: str
    tasks: list[ProbeTask]
    cost: dict[str, int] | None
    pairs: Annotated[list[dict[str, Any]], operator.add]
    asked_by: Annotated[list[str], operator.add]
    orders: Annotated[list[dict[str, Any]], operator.add]
    spent: Annotated[list[dict[str, Any]], operator.add]
    warnings: Annotated[list[str], operator.add]


GONE = "deleted"
"""The outcome of a pair if one of its documents was deleted meanwhile."""

PAIRS_AT_ONCE = 5
"""How many pairs a task compares, one after the other; tasks run at the same time."""

_SIDES: dict[int, results.Side] = {1: "protected", 0: "unprotected", -1: "undecided"}


@dataclass(frozen=True, kw_only=True)
class ProbeNodes(steps.Nodes[ProbeContext]):
    """The steps that probe.

    Attributes:
        rankers: Know the language model that is probed, and the prompts.
        opened: The rankers in use, since each learns once whether its model gives probabilities.
    """

    kind = ProbeContext
    rankers: Rankers
    opened: dict[str, ItemRanker] = field(default_factory=dict)

    def _model(self) -> LanguageModel:
        if (model := self.rankers.language_model()) is None:
            raise ModelUnavailableError(
                "No language model is given to probe; name one, such as openai:gpt-4o or "
                "local:smollm2-135m."
            )
        return model

    def _ranker(self, kind: str, context: ProbeContext) -> Any:
        """Return the ranker of lists, or the one whose judge compares pairs."""
        options = context.probe.ranker_options(context.prompts)
        if (key := f"{kind} {options}") not in self.opened:
            self.opened[key] = open_ranker(kind, self._model(), self.rankers.prompts, options)
        return self.opened[key]

    def _documents(self, state: State, context: ProbeContext) -> list[results.ProbedDocument]:
        """Return the documents that take part, in the order of the result."""
        places = state["result"]["ranking"][: _depth(context)]
        pool = [RankedDocument.model_validate(place) for place in places]
        dimension = Dimension.named(self.engine.schema, context.probe.attribute)
        marks = self._sides(context.probe).sides_of(memberships_of(pool, dimension)).tolist()
        return [
            results.ProbedDocument(**place.model_dump(), side=_SIDES[mark])
            for place, mark in zip(pool, marks, strict=True)
        ]

    def _sides(self, settings: ProbeSettings) -> ProtectedGroup:
        attribute = self.engine.schema.attribute(settings.attribute)
        return ProtectedGroup.parse(attribute, settings.protected, settings.words)

    @steps.traced
    async def prepare(self, state: State, context: ProbeContext, opened: Span) -> steps.Update:
        """Start the model, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No language model is given, or it cannot be started.
            PromptError: There is no such prompt.
            InputError: There is no such attribute or group, or an option is out of its range.
        """
        self._sides(context.probe)
        for kind in context.probe.kinds:
            await self._ranker(kind, context).start()
        return {}

    async def _cost(self, query: str, ids: Sequence[str], context: ProbeContext) -> Cost:
        """Return the most that a probe of at least two documents costs.

        Raises:
            InputError: Not even two documents fit into what the model reads at once.
        """
        items = await items_of(self.engine, ids)
        total, settings = Cost(), context.probe
        if "pairwise" in settings.kinds:
            one, other = sorted(items, key=lambda it: len(it.shown(settings.shown)))[-2:]
            word = settings.words[0] if settings.words else ""
            each = self._ranker("pairwise", context).judge.cost(query, (one, other), word)
            pairs = min(settings.pairs, len(items) // 2)
            # The first question may only show whether the model gives probabilities.
            total += Cost(pairs * each.calls + 1, pairs * each.tokens + each.tokens // 2)
        if "listwise" in settings.kinds:
            each = self._ranker("listwise", context).cost(query, items)
            lists = len(settings.askers)
            total += Cost(lists * each.calls, lists * each.tokens)
        return total

    @steps.traced
    async def plan(self, state: State, context: ProbeContext, opened: Span) -> steps.Update:
        """Choose the documents of both sides, the pairs and the lists.

        Raises:
            QueryError: No document matches the query.
        """
        settings, query, result = context.probe, state["query"], state["result"]
        steps.require_hits(result["ranking"], self.engine, query)
        documents = self._documents(state, context)
        protected, unprotected = (
            [document.id for document in documents if document.side == side]
            for side in ("protected", "unprotected")
        )
        update: steps.Update = {"status": "ok", "message": "", "tasks": [], "cost": None}
        update["seconds"] = result["usage"]["milliseconds"] / 1000
        if not protected or not unprotected:
            both = zip((protected, unprotected), self._sides(settings).words, strict=True)
            lacking = " or ".join(word for ids, word in both if not ids)
            update["status"] = "one_sided"
            update["message"] = (
                f"None of the {len(documents)} documents is {lacking}, so there is nothing to "
                "compare; raise k, or choose another query or attribute."
            )
            return update
        needed = await self._cost(query, [document.id for document in documents], context)
        cost = RankingCost(documents=len(documents), **asdict(needed))
        update["cost"] = cost.model_dump()
        if lack := shortage(context.budget, steps.usage_of(result), needed):
            update["status"] = "budget"
            update["message"] = (
                f"The probe may take {lack.needed} {lack.unit_in_words}, but only {lack.left} of "
                "the budget are left; raise the budget."
            )
            return update
        random = stream(settings.seed, f"probe: {query}")
        one, other = (random.permutation(ids).tolist() for ids in (protected, unprotected))
        order = random.permutation([*protected, *unprotected]).tolist()
        if "pairwise" in settings.kinds:
            pairs = list(zip(one, other, strict=False))[: settings.pairs]
            update["tasks"] += [
                ProbeTask(asker=settings.asker, pairs=pairs[at : at + PAIRS_AT_ONCE], order=[])
                for at in range(0, len(pairs), PAIRS_AT_ONCE)
            ]
        if "listwise" in settings.kinds:
            update["tasks"] += [
                ProbeTask(asker=asker, pairs=[], order=order) for asker in settings.askers
            ]
        return update

    @steps.traced
    async def probe(self, state: ProbeTask, context: ProbeContext, opened: Span) -> steps.Update:
        """Compare the pairs of a batch, or order the list for an asker."""
        opened.set("fairqr.asker", state["asker"])
        group = group_of(state["asker"], self._sides(context.probe).words)
        work = self._compared if state["pairs"] else self._ordered
        return await work(state, group, context, opened)

    async def _compared(
        self, task: ProbeTask, group: str, context: ProbeContext, opened: Span
    ) -> steps.Update:
        """Compare the pairs of a task, one after the other."""
        judge: PairwiseJudge = self._ranker("pairwise", context).judge
        ids = list(itertools.chain.from_iterable(task["pairs"]))
        items = {item.id: item for item in await items_of(self.engine, ids)}
        pairs: list[results.ProbedPair] = []
        asked: list[Preference] = []
        for protected, unprotected in task["pairs"]:
            first, second = GONE, GONE
            log_odds: tuple[float | None, float | None] = (None, None)
            if protected in items and unprotected in items:
                pair = items[protected], items[unprotected]
                found = await judge.compare(task["query"], pair, group, steps.seconds_left(context))
                first, second = found.preferred("protected", "unprotected")
                log_odds = found.one_first.log_odds, found.other_first.log_odds
                asked += [found.one_first, found.other_first]
            pairs.append(
                results.ProbedPair(
                    protected=protected,
                    unprotected=unprotected,
                    protected_first=first,
                    unprotected_first=second,
                    log_odds=log_odds,
                )
            )
        opened.set("fairqr.asked", len(asked))
        failures = Counter(it.status for it in asked if it.choice is None)
        opened.set("fairqr.failures", dict(failures))
        return {
            "pairs": [pair.model_dump() for pair in pairs],
            "asked_by": [judge.asks_by],
            "spent": [asdict(sum((it.usage for it in asked), Usage()))],
            "warnings": list(dict.fromkeys(it.message for it in asked if it.message)),
        }

    async def _ordered(
        self, task: ProbeTask, group: str, context: ProbeContext, opened: Span
    ) -> steps.Update:
        """Order the list of a task for its asker."""
        items = await items_of(self.engine, task["order"])
        ranker: ItemRanker = self._ranker("listwise", context)
        found = await ranker.rank(task["query"], items, group, steps.seconds_left(context))
        opened.set("fairqr.asked", found.asked)
        opened.set("fairqr.failures", dict(found.failures))
        order = {
            "asker": task["asker"],
            "words": group,
            "status": "failed" if found.failed else "ok",
            "ids": [] if found.failed else [items[position].id for position in found.order],
            "asked": found.asked,
            "failures": dict(found.failures),
            "repairs": {kind: times for kind, times in found.repairs.items() if times},
        }
        return {
            "orders": [order],
            "spent": [asdict(found.usage)],
            "warnings": [*found.warnings, *filter(None, [found.message])],
        }

    @steps.traced
    async def conclude(self, state: State, context: ProbeContext, opened: Span) -> steps.Update:
        """Put the result together."""
        settings, pairs, orders = context.probe, state["pairs"], state["orders"]
        sides, documents = self._sides(settings), self._documents(state, context)
        prompts, kinds = self.rankers.prompts, settings.kinds
        spent = steps.total_usage(state["spent"])
        result = results.ProbeResult(
            query=state["query"],
            corpus=self.engine.name,
            model=self._model().name,
            attribute=sides.attribute,
            protected_groups=list(sides.protected),
            unprotected_groups=list(sides.unprotected),
            words=sides.words,
            status=state["status"],
            message=state["message"],
            note=(
                f"All {len(documents)} documents count as equally relevant, since nobody judged "
                "them for this query. The result is about this query alone."
            ),
            documents=documents,
            pairwise=_pairwise(pairs, state["asked_by"], settings.seed, sides.words),
            listwise=_listwise(orders, state["tasks"], documents),
            prompts=[prompts.get(kind, context.prompts.get(kind)).reference for kind in kinds],
            seed=settings.seed,
            usage=steps.usage_report(spent),
            # One message of each kind is enough: a model that fails, fails often.
            warnings=list(dict.fromkeys(state["warnings"]))[:3],
        )
        opened.set("fairqr.status", result.status)
        if result.pairwise is not None:
            opened.set("fairqr.verdict", result.pairwise.verdict)
        cost = steps.usage_report(spent + steps.usage_of(state["result"]))
        steps.record_outcome(opened, cost, result.prompts, probed=result.model)
        return {"probe": result.model_dump(mode="json")}


async def to_probe(state: State) -> list[Send] | str:
    """Send each batch of pairs, and the list once for each asker, if anything is asked."""
    shared = {"query": state["query"], "seconds": state["seconds"]}
    return [Send("probe", {**shared, **task}) for task in state["tasks"]] or "conclude"


def _depth(context: ProbeContext) -> int:
    return min(context.probe.depth or context.k, context.k)


def _pairwise(
    records: Sequence[dict[str, Any]], asked_by: Sequence[str], seed: int, words: tuple[str, str]
) -> results.PairwiseProbe | None:
    if not records:
        return None
    pairs = [results.ProbedPair(**record) for record in records]
    # No document is in two pairs, so the pairs of this query are independent draws.
    figures = pair_figures(
        (
            PairOutcome(str(at), it.protected_first, it.unprotected_first, it.log_odds)
            for at, it in enumerate(pairs)
        ),
        stream(seed, "probe: figures"),
    )
    (verdict,) = verdicts([figures])
    own = {
        "status": "ok" if figures.answered else "failed",
        "verdict": verdict.kind,
        "sentence": verdict_in_words(verdict, figures, words, is_one_query=True),
        "pairs": pairs,
        "detectable": verdict.detectable,
        "asked_by": asked_by[-1],
    }
    shared = results.PairwiseProbe.model_fields.keys() - own.keys()
    return results.PairwiseProbe(**own, **{name: getattr(figures, name) for name in shared})


def _listwise(
    orders: Sequence[dict[str, Any]],
    tasks: Sequence[ProbeTask],
    documents: Sequence[results.ProbedDocument],
) -> results.ListwiseProbe | None:
    if not orders:
        return None
    sides = {document.id: document.side for document in documents}

    def ratio(ids: Sequence[str]) -> float | None:
        return exposure_ratio([sides[id_] == "protected" for id_ in ids])

    initial = tasks[-1]["order"]
    return results.ListwiseProbe(
        initial=initial,
        initial_ratio=ratio(initial),
        askers=[
            results.AskerOrder(**order, exposure_ratio=ratio(order["ids"])) for order in orders
        ],
    )


def build_probe_graph(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    context: ProbeContext | None = None,
    ranker: GivenRanker | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
    checkpointer: Checkpointer = None,
) -> CompiledStateGraph[State, ProbeContext, InputState, OutputState]:
    """Build the graph that finds out whether a model favours a group when it ranks a result.

    ``prepare → search → plan → probe* → conclude``, where ``search`` is the graph of
    :func:`fairqr.graph.search.builder.build_search_graph`. The step with a star runs once for each
    batch of pairs and for each asker.

    Call it with ``await graph.ainvoke({"query": "…"}, context=ProbeContext(…))``; the state that
    comes back has ``probe``, the object of :class:`fairqr.graph.probe.result.ProbeResult`, and the
    ``result`` of the search. To add or replace nodes, change its ``builder`` and compile that.

    Args:
        engine: The search engine.
        model: The model to probe, unless a language model is given as ``ranker``. It also refines,
            as in a search.
        context: The context of runs that bring none of ours.
        ranker: Re-ranks, as in a search. If it is a language model, it is the one to probe.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many parts of the probe run at the same time, unless the config of a call
            sets ``max_concurrency``.
        checkpointer: A checkpointer of LangGraph's.
    """
    require_context(ProbeContext, context)
    model = model_of(model, engine)
    rankers = Rankers.of(ranker, model, prompts)
    nodes = ProbeNodes(engine=engine, default=context, rankers=rankers)
    search = build_search_graph(engine, model, context=context, ranker=rankers)
    graph = StateGraph(
        State, context_schema=ProbeContext, input_schema=InputState, output_schema=OutputState
    )
    node, grows = nodes.node, ("pairs", "asked_by", "orders", "spent", "warnings")
    begins: list[Any] = [node(nodes.prepare, grows=grows), (SEARCH, search), node(nodes.plan)]
    graph.add_sequence(begins)
    graph.add_sequence([node(nodes.probe), node(nodes.conclude)])
    graph.add_edge(START, "prepare")
    graph.add_conditional_edges("plan", Node(to_probe), ["probe", "conclude"])
    compiled = graph.compile(checkpointer=checkpointer, name="fair_probe")
    graph.compiled = False  # whoever adds nodes to it compiles it again
    return compiled.with_config(recursion_limit=RECURSION_LIMIT, max_concurrency=concurrency)
