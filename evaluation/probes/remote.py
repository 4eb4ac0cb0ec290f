"""Rankers, and judges of pairs, that work on workers; who asks them notices nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairqr.agents.models import open_language_model
from fairqr.agents.ranking.item_ranker import Cost, ItemRanker, ItemRanking, RankItem
from fairqr.agents.ranking.model import RankingModel
from fairqr.agents.ranking.pairwise import Comparison, PairwiseJudge
from fairqr.evaluation.probes.plan import ProbePlan, open_judge
from fairqr.evaluation.probes.rankers import INITIAL, open_probe_ranker, parse_ranker
from fairqr.evaluation.probes.specification import ListwiseExperiment, PairwiseExperiment
from fairqr.evaluation.workers.tools import Pool, Tools

__all__ = ["JudgeThere", "ranker_there"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which ranker or judge of an experiment is asked.

    Attributes:
        name: Of the ranker, or of the judge's model.
        window: Of the ranker.
        experiment: How it is asked.
        options: More for the chat model, such as ``base_url``.
        concurrency: Comparisons of a pairwise ranker at a time.
    """

    name: str
    window: str
    experiment: ListwiseExperiment | PairwiseExperiment
    options: Mapping[str, Any]
    concurrency: int = 1


def ranker_there(
    name: str, window: str, plan: ProbePlan, concurrency: int, pool: Pool
) -> ItemRanker:
    """Return a ranker of an experiment that works on workers.

    Args:
        name: As the experiment writes it.
        window: One of :func:`fairqr.evaluation.probes.rankers.windows_of`.
        plan: Of the experiment.
        concurrency: How many comparisons of a pairwise ranker may be under way at the same time.
        pool: The workers.

    Raises:
        FairqrError: As :func:`fairqr.evaluation.probes.rankers.open_probe_ranker` raises it.
    """
    experiment = plan.manifest.rankings
    here = open_probe_ranker(name, window, experiment, plan.prompts, options=plan.options)
    if name == INITIAL:
        return here
    return _Ranker(here, _Asked(name, window, experiment, plan.options, concurrency), pool)


class _Ranker:
    def __init__(self, here: ItemRanker, asked: _Asked, pool: Pool) -> None:
        self.name = here.name
        self._here = here
        self._asked = asked
        self._pool = pool

    async def start(self) -> None:
        await self._pool.do(_start, self._asked)

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        return self._here.cost(query, items, group)

    async def rank(
        self,
        query: str,
        items: Sequence[RankItem],
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> ItemRanking:
        return await self._pool.do(_rank, self._asked, query, items, group, deadline)


class JudgeThere:
    """Asks a model about pairs, on workers.

    Args:
        plan: Of the experiment.
        model: Its name.
        pool: The workers.
    """

    def __init__(self, plan: ProbePlan, model: str, pool: Pool) -> None:
        open_judge(plan, model)  # a name that is none is known before anything is sent
        self._asked = _Asked(model, "", plan.manifest.pairs, plan.options)
        self._pool = pool
        self.warnings: tuple[str, ...] = ()

    async def start(self) -> None:
        """Make the model ready on one worker; the others follow when they are asked.

        Raises:
            ModelUnavailableError: Something is missing.
        """
        await self._pool.do(_start, self._asked)

    async def compare(
        self,
        query: str,
        one: RankItem,
        other: RankItem,
        *,
        group: str = "",
        deadline: float | None = None,
    ) -> Comparison:
        """Ask with either document first; see :class:`PairwiseJudge`."""
        found, warnings = await self._pool.do(
            _compare, self._asked, query, (one, other), group, deadline
        )
        self.warnings = tuple(dict.fromkeys((*self.warnings, *warnings)))
        return found


async def _start(tools: Tools, asked: _Asked) -> None:
    await _opened(tools, asked)


async def _rank(
    tools: Tools,
    asked: _Asked,
    query: str,
    items: Sequence[RankItem],
    group: str,
    deadline: float | None,
) -> ItemRanking:
    ranker: ItemRanker = await _opened(tools, asked)
    return await ranker.rank(query, items, group=group, deadline=deadline)


async def _compare(
    tools: Tools,
    asked: _Asked,
    query: str,
    pair: tuple[RankItem, RankItem],
    group: str,
    deadline: float | None,
) -> tuple[Comparison, tuple[str, ...]]:
    judge: PairwiseJudge = await _opened(tools, asked)
    found = await judge.compare(query, *pair, group=group, deadline=deadline)
    return found, judge.warnings


async def _opened(tools: Tools, asked: _Asked) -> Any:
    """Return a worker's ranker or judge, started."""

    async def opened() -> Any:
        experiment = asked.experiment
        made: ItemRanker | PairwiseJudge
        if isinstance(experiment, PairwiseExperiment):
            model = await _model(tools, asked.name, asked.options)
            prompt = tools.prompts.get("pairwise", experiment.prompts.get("pairwise"))
            made = PairwiseJudge(
                model,
                prompt,
                by=experiment.by,
                shown=experiment.shown,
                length=experiment.length,
            )
        else:
            named = parse_ranker(asked.name)
            made = open_probe_ranker(
                asked.name,
                asked.window,
                experiment,
                tools.prompts,
                model=await _model(tools, named.model, asked.options)
                if named.asks_a_model
                else None,
                concurrency=asked.concurrency,
            )
        await made.start()
        return made

    return await tools.keep("ranker", asked, opened)


async def _model(tools: Tools, name: str, options: Mapping[str, Any]) -> RankingModel:
    async def opened() -> RankingModel:
        return open_language_model(name, cache=tools.replies, **options)

    # One for all windows, since a large one takes long to load.
    return await tools.keep("ranking model", (name, dict(options)), opened)
