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
from fairqr.agents.ranking.rankers import (
    Cost,
    ItemRanker,
    ItemRanking,
    RankerName,
    RankItem,
    open_ranker,
)
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

ASKED: tuple[RankerName, ...] = ("listwise", "pairwise")
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
        ranker: LanguageModel | ItemRanker | BaseChatModel | str | None = None,
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
    def of(
        cls,
        given: GivenRanker | None,
        model: object = None,
        prompts: PromptLibrary | None = None,
    ) -> Rankers:
        """Return a given ``Rankers`` as it is, or make one."""
        return given if isinstance(given, Rankers) else cls(given, model, prompts)

    def language_model(self) -> LanguageModel | None:
        """Return the language model that is asked to rank, if there is one.

        Raises:
            ModelUnavailableError: There is no model of that name.
        """
        if isinstance(self._given, str):
            self._given = open_language_model(self._given)
        for model in (self._given, self._model):
            if hasattr(model, "choice_probabilities") and hasattr(model, "write"):
                return cast("LanguageModel", model)
        return None

    def ranker_for(self, context: Context) -> ItemRanker | None:
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
            return cast("ItemRanker", self._given)
        if name in ASKED:
            # Each run has its own, so that its questions wait for no other run's.
            options = context.ranking.ranker_options(context.prompts)
            return open_ranker(name, self.language_model(), self.prompts, options)
        return cast("ItemRanker", self.opened(name, context.ranking, context))

    def opened(self, name: str, settings: WindowSettings, context: Context) -> Any:
        """Return the shipped ranker of a name, for these settings; see :meth:`ranker_for`."""
        options = settings.ranker_options(context.prompts)
        key = f"{name} {options}"
        if key not in self._opened:
            model = self.language_model() if name in ASKED else None
            self._opened[key] = open_ranker(name, model, self.prompts, options)
        return self._opened[key]


GivenRanker = Rankers | LanguageModel | ItemRanker | BaseChatModel | str
"""A ranker as callers give it."""


async def items_of(engine: SearchEngine, ids: Sequence[str]) -> list[RankItem]:
    """Return these documents for a ranker; deleted documents are left out."""
    documents = await engine.documents(ids)
    return [RankItem(document.id, document.title, document.text) for document in documents]


async def expected_cost(pool: Pool, ranker: ItemRanker) -> RankingCost:
    """Return the largest cost of a model that re-ranks what the original query found.

    Raises:
        BudgetError: The budget has no room for it.
        InputError: A window of documents does not fit into what the model reads at once.
    """
    context = pool.context
    strategy = context.strategy
    most_read = min(strategy.reads, strategy.depth or 0)
    items = await items_of(pool.engine, pool.engine_ranking.ids[:most_read])
    if context.rounds and items:
        # The lists of refined queries may be longer, but never than what the ranker reads.
        title = items[0].title
        text = items[0].text
        for position in range(len(items), strategy.reads):
            items.append(RankItem(f"\0{position}", title, text))
    cost = Cost()
    if len(items) > 1:
        cost = ranker.cost(pool.state["query"], items)
    return within(context, cost, f"re-rank {len(items)}", len(items))


def within(context: Context, cost: Cost, task: str, documents: int) -> RankingCost:
    """Return the cost of a model, if the budget of the whole run has room for it.

    Args:
        context: The context of the run, with its budget.
        cost: What the model may cost at most.
        task: What it does, with how many documents: ``re-rank 20``.
        documents: How many documents it reads.

    Raises:
        BudgetError: The budget has no room.
    """
    lack = shortage(context.budget, Usage(), cost)
    if lack is None:
        return RankingCost(documents=documents, **asdict(cost))
    unit = lack.unit.replace("_", " ")
    message = (
        f"It may take {lack.needed} {unit} to {task} documents, but the budget has {lack.limit}; "
        "raise it, or lower their number."
    )
    raise BudgetError(lack.unit, lack.needed, lack.limit, message)


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


async def reranked(pool: Pool, order: Ranking, ranker: ItemRanker) -> ModelRanking:
    """Re-rank the first of the documents that take part, by the original query.

    Raises:
        ModelUnavailableError: The model has become unavailable since it was started.
        InputError: Not even two documents fit into what the model reads at once.
    """
    context = pool.context
    query = pool.state["query"]
    usage = Usage(**pool.state["usage"])
    items = await items_of(pool.engine, order.ids[: context.strategy.reads])
    if len(items) < 2:
        return ModelRanking(order, usage)
    if shortage(context.budget, usage, ranker.cost(query, items)) is not None:
        report = Reranking(
            ranker=ranker.name, lists=0, documents=0, asked=0, failures={}, repairs={}
        )
        warning = f"Nothing is left of the budget for {ranker.name}; the order by the query stays."
        return ModelRanking(order, usage, report, [warning])

    with span("fairqr.rank"):
        answer = await ranker.rank(query, items, deadline=seconds_left(context))
        # Rankers of others may count zeros, which + leaves out.
        figures: dict[str, Any] = {
            "ranker": ranker.name,
            "asked": answer.asked,
            "failures": dict(+Counter(answer.failures)),
            "repairs": dict(+Counter(answer.repairs)),
        }
        record(documents=len(items), **figures)
    if not answer.failed:
        best = [items[position].id for position in answer.order]
        order = by_rank(list(dict.fromkeys([*best, *order.ids])))
    report = Reranking(**figures, lists=1, documents=len(items))
    return ModelRanking(order, usage + answer.usage, report, _warnings_about(report, answer))


def _warnings_about(report: Reranking, answer: ItemRanking) -> list[str]:
    """Return what went wrong, in sentences for users."""
    name = report.ranker
    warnings = list(answer.warnings)
    failed = sum(report.failures.values())
    if failed:
        sentence = (
            f"{name} failed on {failed} of {report.asked} questions "
            f"({_in_words(report.failures)}); there the order by the query stays."
        )
        if answer.message not in ("", *warnings):
            sentence += f" Lastly: {answer.message}"
        warnings.append(sentence)
    if report.repairs:
        repairs = _in_words(report.repairs)
        warnings.append(f"Replies to {name} were repaired, in documents: {repairs}.")
    return list(dict.fromkeys(warnings))


def _in_words(counts: Mapping[str, int]) -> str:
    """Return counts by kind in words: ``2 refused, 1 timeout``."""
    return ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items())
