"""The models of a run: which one re-ranks, or is probed, what it costs at most, and how it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from langchain_core.language_models import BaseChatModel

from fairqr.agents.models.chat import ChatModel
from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.opening import open_language_model
from fairqr.agents.models.replies import Usage
from fairqr.agents.ranking import rankers
from fairqr.base.errors import BudgetError
from fairqr.base.telemetry import span
from fairqr.graph.running import record, seconds_left
from fairqr.graph.search.budget import shortage
from fairqr.graph.search.context import Context, WindowSettings
from fairqr.graph.search.models import require_method
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.result import RankingCost, Reranking
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.rerankers.base import by_rank

ASKED: tuple[rankers.RankerName, ...] = ("listwise", "pairwise")
"""The rankers that ask a language model with a prompt; the others have their own model."""


class Rankers:
    """The rankers for the runs of one or more graphs, which share the weights.

    Args:
        ranker: A language model or its name; or a ranker, which is used whatever the context names.
            Defaults to the model.
        model: The model of the graph.
        prompts: The library of prompts; defaults to the shipped prompts and yours.

    Attributes:
        prompts: The library of prompts.
    """

    def __init__(
        self,
        ranker: LanguageModel | rankers.ItemRanker | BaseChatModel | str | None = None,
        model: object = None,
        prompts: PromptLibrary | None = None,
    ) -> None:
        self._given = ChatModel.of(ranker) if isinstance(ranker, BaseChatModel) else ranker
        if not isinstance(ranker, BaseChatModel | str | None):
            require_method("ranker", ranker, "rank", "choice_probabilities")
        self._model = model
        self.prompts = prompts or PromptLibrary()
        # Weights are loaded once for all runs, and a pairwise ranker learns once how it can ask.
        self._opened: dict[str, Any] = {}

    @classmethod
    def of(cls, given: GivenRanker | None, *more: Any) -> Rankers:
        """Return a given ``Rankers`` as it is, or make one with more arguments."""
        return given if isinstance(given, Rankers) else cls(given, *more)

    def language_model(self) -> LanguageModel | None:
        """Return the language model that is asked to rank, if there is one.

        Raises:
            ModelUnavailableError: There is no model of that name.
        """
        if isinstance(self._given, str):
            self._given = open_language_model(self._given)
        for each in (self._given, self._model):
            if hasattr(each, "choice_probabilities") and hasattr(each, "write"):
                return cast("LanguageModel", each)
        return None

    def ranker_for(self, context: Context) -> rankers.ItemRanker | None:
        """Return the ranker for a run with this context, or None if nothing re-ranks.

        Raises:
            ModelUnavailableError: The ranker needs a language model, but none is given.
            PromptError: The prompt does not exist.
            InputError: An option is out of range.
        """
        name = context.strategy.ranker
        if name is None:
            return None
        if hasattr(self._given, "rank"):
            return cast("rankers.ItemRanker", self._given)
        if name in ASKED:  # each run has its own, so that its questions wait for no other run's
            options = context.ranking.ranker_options(context.prompts)
            return rankers.open_ranker(name, self.language_model(), self.prompts, options)
        return cast("rankers.ItemRanker", self.opened(name, context.ranking, context))

    def opened(self, name: str, settings: WindowSettings, context: Context) -> Any:
        """Return the shipped ranker of a name, for these settings; see :meth:`ranker_for`."""
        options = settings.ranker_options(context.prompts)
        if (key := f"{name} {options}") not in self._opened:
            model = self.language_model() if name in ASKED else None
            self._opened[key] = rankers.open_ranker(name, model, self.prompts, options)
        return self._opened[key]


GivenRanker = Rankers | LanguageModel | rankers.ItemRanker | BaseChatModel | str
"""A ranker as callers give it."""


async def items_of(engine: SearchEngine, ids: Sequence[str]) -> list[rankers.RankItem]:
    """Return these documents for a ranker; deleted documents are left out."""
    return [rankers.RankItem(d.id, d.title, d.text) for d in await engine.documents(ids)]


async def expected_cost(pool: Pool, ranker: rankers.ItemRanker) -> RankingCost:
    """Return the largest cost of a model that re-ranks what the original query found.

    Raises:
        BudgetError: The budget has no room for it.
        InputError: A window of documents does not fit into what the model reads at once.
    """
    context, strategy = pool.context, pool.context.strategy
    found = pool.engine_ranking.ids[: min(strategy.reads, strategy.depth or 0)]
    items = await items_of(pool.engine, found)
    if context.rounds and items:
        # The lists of refined queries may be longer, but never than what the ranker reads.
        lacking = range(len(items), strategy.reads)
        items += [rankers.RankItem(f"\0{at}", items[0].title, items[0].text) for at in lacking]
    cost = ranker.cost(pool.state["query"], items) if len(items) > 1 else rankers.Cost()
    return within(context, cost, f"re-rank {len(items)}", len(items))


def within(context: Context, cost: rankers.Cost, what: str, documents: int) -> RankingCost:
    """Return the cost of a model, if the budget of the whole run has room for it.

    Raises:
        BudgetError: It has none.
    """
    if (lack := shortage(context.budget, Usage(), cost)) is not None:
        unit, needed, limit = lack.unit.replace("_", " "), lack.needed, lack.limit
        told = f"It may take {needed} {unit} to {what} documents, but the budget has {limit}"
        raise BudgetError(lack.unit, needed, limit, f"{told}; raise it, or lower their number.")
    return RankingCost(documents=documents, **asdict(cost))


@dataclass(frozen=True, slots=True)
class ModelRanking:
    """How a model re-ranked a list.

    Attributes:
        ranking: The documents, the first of them in the ranker's order, with 1/rank as scores; as
            they were if the model gave no usable reply, or the budget has no room for a question.
        usage: What the run has cost so far, including this list.
        report: How it went; None if there was nothing to re-rank.
        warnings: Sentences for users about what went wrong.
    """

    ranking: Ranking
    usage: Usage
    report: Reranking | None = None
    warnings: Sequence[str] = ()


async def reranked(pool: Pool, order: Ranking, ranker: rankers.ItemRanker) -> ModelRanking:
    """Re-rank the first of the documents that take part, by the original query.

    Raises:
        ModelUnavailableError: The model has become unavailable since it was started.
        InputError: Not even two documents fit into what the model reads at once.
    """
    query, context, usage = pool.state["query"], pool.context, Usage(**pool.state["usage"])
    items = await items_of(pool.engine, order.ids[: context.strategy.reads])
    if len(items) < 2:
        return ModelRanking(order, usage)
    report: dict[str, Any] = {"ranker": ranker.name, "asked": 0, "failures": {}, "repairs": {}}
    if shortage(context.budget, usage, ranker.cost(query, items)) is not None:
        left = f"Nothing is left of the budget for {ranker.name}; the order by the query stays."
        return ModelRanking(order, usage, Reranking(**report, lists=0, documents=0), [left])
    with span("fairqr.rank"):
        found = await ranker.rank(query, items, deadline=seconds_left(context))
        # Rankers of others may count zeros, which + leaves out.
        report |= {"asked": found.asked, "failures": dict(+Counter(found.failures))}
        report["repairs"] = dict(+Counter(found.repairs))
        record(documents=len(items), **report)
    if not found.failed:
        best = [items[position].id for position in found.order]
        order = by_rank(list(dict.fromkeys([*best, *order.ids])))
    done = Reranking(**report, lists=1, documents=len(items))
    return ModelRanking(order, usage + found.usage, done, _sentences(done, found))


def _sentences(report: Reranking, found: rankers.ItemRanking) -> list[str]:
    """Return what went wrong, in sentences for users."""
    name, sentences = report.ranker, list(found.warnings)
    if failed := sum(report.failures.values()):
        last = f" Lastly: {found.message}" if found.message not in ("", *sentences) else ""
        sentences.append(
            f"{name} failed on {failed} of {report.asked} questions "
            f"({_in_words(report.failures)}); there the order by the query stays.{last}"
        )
    if report.repairs:
        sentences.append(
            f"Replies to {name} were repaired, in documents: {_in_words(report.repairs)}."
        )
    return list(dict.fromkeys(sentences))


def _in_words(counts: Mapping[str, int]) -> str:
    """Return counts by kind in words: ``2 refused, 1 timeout``."""
    return ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())
