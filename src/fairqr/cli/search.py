"""The command ``fairqr search``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fairqr.base.errors import ModelError
from fairqr.cli.common import RUN, CostlyRunSettings
from fairqr.cli.options import Fields
from fairqr.cli.output import Printed, warn
from fairqr.graph.search.context import Context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairqr.graph.search.result import SearchResult


class SearchRunSettings(CostlyRunSettings):
    """How a search runs.

    Attributes:
        strict: Exit with code 2 if the model failed.
    """

    strict: bool = False


def search(
    query: str,
    *,
    asked: Annotated[
        Context,
        Fields("target", "k", "method", "max_iterations", "seed", attribute="attributes"),
    ],
    settings: Annotated[SearchRunSettings, Fields(*RUN, "yes")],
    as_json: bool = False,
) -> Printed:
    """Search so that every group gets its share of exposure, through relevant documents.

    Args:
        query: What to search for.
        asked: How to search.
        settings: How the run works.
        as_json: Print one JSON object.
    """
    from fairqr.cli.render import result_lines

    work = searched(query, asked, settings, silent=as_json)
    result, passages = settings.run(work, "search")
    for warning in result.warnings:
        warn(warning)
    ranked = result.reranking
    failed = result.stop_reason == "model_failed" or (
        ranked is not None and 0 < ranked.asked <= sum(ranked.failures.values())
    )
    error = ModelError("failed", "The model failed, and strict was set.")
    lines = result_lines(result, passages)
    return Printed(result, lines, error=error if failed and settings.strict else None)


async def searched(
    query: str, asked: Context, settings: SearchRunSettings, *, silent: bool = False
) -> tuple[SearchResult, Mapping[str, str]]:
    """Search, and read how the documents' texts begin.

    Args:
        query: What to search for.
        asked: How to search.
        settings: How the run works.
        silent: Say nothing meanwhile, and read no texts.

    Returns:
        The result, and the passages by the documents' ids.
    """
    from fairqr.agents.models.opening import open_language_model
    from fairqr.agents.refiner import FeedbackRefiner
    from fairqr.api import FairSearch
    from fairqr.base.settings import default_model
    from fairqr.cli.render import View
    from fairqr.graph.search.rankers import ASKED, Model, Rankers, require_refines

    prompts = settings.prompts_for(asked)
    asks_ranker = asked.strategy.ranker in ASKED
    needs_model = asked.rounds > 0 or asks_ranker
    name = (settings.model or default_model()) if needs_model else FeedbackRefiner.name
    model: Model | str = name  # feedback needs an engine
    if name != FeedbackRefiner.name:
        model = open_language_model(name, **settings.model_options)
        if asked.rounds:
            require_refines(model)
            # Report a missing part before a large corpus is indexed.
            await model.check()
    ranker = Rankers(None, model, prompts).ranker_for(asked)
    if ranker is not None:
        await ranker.start()
    ranks = name if asks_ranker else ""
    view = View(quiet=silent, model=ranks, budget=asked.budget, yes=settings.yes)
    async with settings.opened(asked) as engine:
        fair = FairSearch(engine, model, ranker=ranker, prompts=prompts)
        result: SearchResult = await view.follow(fair, query, asked)
        shown = () if silent else (*result.baseline.ranking, *result.ranking)
        return result, await settings.passages_of(engine, (place.id for place in shown))
