"""The steps that probe: does the model favour one side of a result when it ranks?

``prepare → search → plan → probe* → conclude``; the step with a star runs once for each batch of
pairs and for each asker, several at a time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from langgraph.types import Overwrite, Send

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking.lean import PairOutcome, pair_figures, verdicts
from fairqr.agents.ranking.pairwise import PairwiseJudge, Preference
from fairqr.agents.ranking.rankers import Cost, ItemRanker, group_of, open_ranker
from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, ModelUnavailableError
from fairqr.base.telemetry import Span
from fairqr.graph.probe import result as results
from fairqr.graph.probe.context import ProbeContext, ProbeSettings
from fairqr.graph.probe.state import ProbedRecord, ProbePlan, ProbeTask, State
from fairqr.graph.search.context import Context
from fairqr.graph.search.rankers import items_of
from fairqr.graph.search.result import RankedDocument, memberships_of
from fairqr.graph.search.rounds import shortage
from fairqr.graph.steps import (
    Update,
    begun,
    context_of,
    forgotten,
    record_outcome,
    require_hits,
    seconds_left,
    total_usage,
    traced,
    usage_of,
    usage_report,
)
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import exposure_ratio
from fairqr.retrieval.fairness.protected import ProtectedGroup

GONE = "deleted"
"""The outcome of a pair if one of its documents was deleted meanwhile."""

PAIRS_AT_ONCE = 5
"""How many pairs a task compares, one after the other; tasks run at the same time."""


@dataclass(frozen=True)
class Nodes:
    """The steps over one engine.

    Attributes:
        engine: The search engine.
        model_for: Returns the language model that is probed, or None.
        prompts: The library of prompts.
        default: The context of runs that bring none of ours. Without it, each run must bring one.
        judges: Those in use, since each learns once whether its model gives probabilities.
    """

    engine: SearchEngine
    model_for: Callable[[], LanguageModel | None]
    prompts: PromptLibrary
    default: ProbeContext | None
    judges: dict[str, PairwiseJudge] = field(default_factory=dict)

    def context(self, given: object) -> ProbeContext:
        """See :func:`fairqr.graph.steps.context_of`.

        Raises:
            InputError: The run brings none, and the graph has none.
        """
        if self.default is not None:
            return context_of(given, self.default)
        if not isinstance(given, ProbeContext):
            raise InputError("The probe needs a context; give the graph a ProbeContext.")
        return given

    def _model(self) -> LanguageModel:
        """Return the model.

        Raises:
            ModelUnavailableError: No language model is given.
        """
        model = self.model_for()
        if model is None:
            raise ModelUnavailableError(
                "No language model is given to probe; name one, such as openai:gpt-4o or "
                "local:smollm2-135m."
            )
        return model

    def _prompt(self, context: ProbeContext, kind: str) -> PromptTemplate:
        return self.prompts.get(kind, context.prompts.get(kind))

    def _judge(self, context: ProbeContext) -> PairwiseJudge:
        options = context.probe.ranker_options(context.prompts)
        if (key := str(options)) not in self.judges:
            prompt = self._prompt(context, "pairwise")
            self.judges[key] = PairwiseJudge(self._model(), prompt, options)
        return self.judges[key]

    def _ranker(self, context: ProbeContext) -> ItemRanker:
        options = context.probe.ranker_options(context.prompts)
        return open_ranker("listwise", self._model(), self.prompts, options)

    def _sides(self, settings: ProbeSettings) -> ProtectedGroup:
        attribute = self.engine.schema.attribute(settings.attribute)
        return ProtectedGroup.parse(attribute, settings.protected, settings.words)

    @traced
    async def prepare(self, state: State, context: ProbeContext, opened: Span) -> Update:
        """Start the model, so that missing parts are found before anything is searched.

        Raises:
            ModelUnavailableError: No language model is given, or it cannot be started.
            PromptError: There is no such prompt.
            InputError: There is no such attribute or group, or an option is out of its range.
        """
        self._sides(context.probe)
        if "pairwise" in context.probe.kinds:
            await self._judge(context).start()
        if "listwise" in context.probe.kinds:
            await self._ranker(context).start()
        return {
            **forgotten(state, "result", "probe"),
            **begun(state, probed=[], spent=[], warnings=[]),
            "seconds": Overwrite(0.0),
        }

    async def cost(self, query: str, found: Sequence[str], context: Context) -> Cost:
        """Return the most that a probe costs: all possible pairs, and a list for each asker.

        Args:
            query: The original query.
            found: The ids of the documents that it found, best first; the result may have others.
            context: The context of the run.

        Raises:
            InputError: Not even two documents fit into what the model reads at once.
        """
        context = self.context(context)
        items = await items_of(self.engine, found[: _depth(context)])
        total, settings = Cost(), context.probe
        if len(items) < 2:
            return total
        if "pairwise" in settings.kinds:
            one, other = sorted(items, key=lambda it: len(it.shown(settings.shown)))[-2:]
            word = settings.words[0] if settings.words else ""
            each = self._judge(context).cost(query, (one, other), word)
            pairs = min(settings.pairs, len(items) // 2)
            # The first question may only show whether the model gives probabilities.
            total += Cost(pairs * each.calls + 1, pairs * each.tokens + each.tokens // 2)
        if "listwise" in settings.kinds:
            each = self._ranker(context).cost(query, items)
            lists = len(settings.askers)
            total += Cost(lists * each.calls, lists * each.tokens)
        return total

    @traced
    async def plan(self, state: State, context: ProbeContext, opened: Span) -> Update:
        """Choose the documents of both sides, the pairs and the lists.

        Raises:
            NoMatchError: No document matches the query.
        """
        settings, result = context.probe, state["result"]
        require_hits(result["ranking"], self.engine, state["query"])
        sides = self._sides(settings)
        dimension = Dimension.named(self.engine.schema, settings.attribute)
        places = result["ranking"][: _depth(context)]
        pool = [RankedDocument.model_validate(place) for place in places]
        by_side: dict[int, list[str]] = {1: [], 0: [], -1: []}
        for place, side in zip(pool, sides.sides_of(memberships_of(pool, dimension)), strict=True):
            by_side[side].append(place.id)
        named = {1: "protected", 0: "unprotected", -1: "undecided"}
        plan = ProbePlan(
            status="ok",
            message="",
            sides={id_: named[side] for side, ids in by_side.items() for id_ in ids},
            tasks=[],
        )
        update = {"plan": plan, "seconds": result["usage"]["milliseconds"] / 1000}
        if lacking := [sides.words[1 - side] for side in (1, 0) if not by_side[side]]:
            plan["status"] = "one_sided"
            plan["message"] = (
                f"None of the {len(pool)} documents is {' or '.join(lacking)}, so there is nothing "
                "to compare; raise k, or choose another query or attribute."
            )
            return update
        needed = await self.cost(state["query"], [place.id for place in pool], context)
        if lack := shortage(context.budget, usage_of(result), needed):
            plan["status"] = "budget"
            plan["message"] = (
                f"The probe may take {lack.needed} {lack.unit_in_words}, but only {lack.left} of "
                "the budget are left; raise the budget."
            )
            return update
        random = stream(settings.seed, f"probe: {state['query']}")
        one, other = (random.permutation(by_side[side]).tolist() for side in (1, 0))
        order = random.permutation([*by_side[1], *by_side[0]]).tolist()
        if "pairwise" in settings.kinds:
            pairs = list(zip(one, other, strict=False))[: settings.pairs]
            for at in range(0, len(pairs), PAIRS_AT_ONCE):
                batch = pairs[at : at + PAIRS_AT_ONCE]
                plan["tasks"].append(ProbeTask(asker=settings.asker, pairs=batch, order=[]))
        if "listwise" in settings.kinds:
            for asker in settings.askers:
                plan["tasks"].append(ProbeTask(asker=asker, pairs=[], order=order))
        return update

    @traced
    async def probe(self, state: ProbeTask, context: ProbeContext, opened: Span) -> Update:
        """Compare the pairs of a batch, or order the list for an asker."""
        opened.set("fairqr.asker", state["asker"])
        group = group_of(state["asker"], self._sides(context.probe).words)
        work = self._compared if state["pairs"] else self._ordered
        return await work(state, group, context, opened)

    async def _compared(
        self, task: ProbeTask, group: str, context: ProbeContext, opened: Span
    ) -> Update:
        """Compare the pairs of a task, one after the other."""
        judge = self._judge(context)
        ids = list(itertools.chain.from_iterable(task["pairs"]))
        items = {item.id: item for item in await items_of(self.engine, ids)}
        pairs: list[results.ProbedPair] = []
        asked: list[Preference] = []
        for protected, unprotected in task["pairs"]:
            first, second = GONE, GONE
            log_odds: tuple[float | None, float | None] = (None, None)
            if protected in items and unprotected in items:
                pair = items[protected], items[unprotected]
                found = await judge.compare(task["query"], pair, group, seconds_left(context))
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
        record = ProbedRecord(
            pairs=[pair.model_dump() for pair in pairs], orders=[], asked_by=judge.asks_by
        )
        return {
            "probed": [record],
            "spent": [asdict(sum((it.usage for it in asked), Usage()))],
            "warnings": list(dict.fromkeys(it.message for it in asked if it.message)),
        }

    async def _ordered(
        self, task: ProbeTask, group: str, context: ProbeContext, opened: Span
    ) -> Update:
        """Order the list of a task for its asker."""
        items = await items_of(self.engine, task["order"])
        found = await self._ranker(context).rank(
            task["query"], items, group=group, deadline=seconds_left(context)
        )
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
            "probed": [ProbedRecord(pairs=[], orders=[order], asked_by="reply")],
            "spent": [asdict(found.usage)],
            "warnings": [*found.warnings, *filter(None, [found.message])],
        }

    @traced
    async def conclude(self, state: State, context: ProbeContext, opened: Span) -> Update:
        """Put the result together."""
        settings, plan, probed = context.probe, state["plan"], state["probed"]
        sides = self._sides(settings)
        documents = [
            results.ProbedDocument(
                rank=place["rank"],
                id=place["id"],
                title=place["title"],
                side=plan["sides"][place["id"]],
            )
            for place in state["result"]["ranking"]
            if place["id"] in plan["sides"]
        ]
        compared = [record for record in probed if record["pairs"]]
        initial = next((task["order"] for task in plan["tasks"] if task["order"]), None)
        spent = total_usage(state["spent"])
        result = results.ProbeResult(
            query=state["query"],
            corpus=self.engine.name,
            model=self._model().name,
            attribute=sides.attribute,
            protected_groups=list(sides.protected),
            unprotected_groups=list(sides.unprotected),
            words=sides.words,
            status=plan["status"],
            message=plan["message"],
            note=(
                f"All {len(documents)} documents count as equally relevant, since nobody judged "
                "them for this query. The result is about this query alone."
            ),
            documents=documents,
            pairwise=_pairwise(compared, settings.seed, sides.words) if compared else None,
            listwise=_listwise(initial, probed, plan["sides"]) if initial else None,
            prompts=[self._prompt(context, kind).reference for kind in settings.kinds],
            seed=settings.seed,
            usage=usage_report(spent),
            # One message of each kind is enough: a model that fails, fails often.
            warnings=list(dict.fromkeys(state["warnings"]))[:3],
        )
        opened.set("fairqr.status", result.status)
        if result.pairwise is not None:
            opened.set("fairqr.verdict", result.pairwise.verdict)
        cost = usage_report(spent + usage_of(state["result"]))
        record_outcome(opened, cost, result.prompts, probed=result.model)
        return {"probe": result.model_dump(mode="json")}


async def to_probe(state: State) -> list[Send] | str:
    """Send each batch of pairs, and the list once for each asker, if anything is asked."""
    shared = {"query": state["query"], "seconds": state["seconds"]}
    return [Send("probe", {**shared, **task}) for task in state["plan"]["tasks"]] or "conclude"


def _depth(context: ProbeContext) -> int:
    return min(context.probe.depth or context.k, context.k)


def _pairwise(
    records: Sequence[ProbedRecord], seed: int, words: tuple[str, str]
) -> results.PairwiseProbe:
    pairs = [results.ProbedPair(**pair) for record in records for pair in record["pairs"]]
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
        "sentence": results.verdict_in_words(verdict, figures, words, is_one_query=True),
        "pairs": pairs,
        "detectable": verdict.detectable,
        "asked_by": records[-1]["asked_by"],
    }
    shared = results.PairwiseProbe.model_fields.keys() - own.keys()
    return results.PairwiseProbe(**own, **{name: getattr(figures, name) for name in shared})


def _listwise(
    initial: Sequence[str], records: Sequence[ProbedRecord], sides: Mapping[str, str]
) -> results.ListwiseProbe:
    def ratio(ids: Sequence[str]) -> float | None:
        return exposure_ratio([sides[id_] == "protected" for id_ in ids])

    return results.ListwiseProbe(
        initial=initial,
        initial_ratio=ratio(initial),
        askers=[
            results.AskerOrder(**order, exposure_ratio=ratio(order["ids"]))
            for record in records
            for order in record["orders"]
        ],
    )
