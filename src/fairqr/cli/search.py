"""The command ``fairqr search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fairqr.base.errors import ModelError
from fairqr.cli.common import Recording, Searched
from fairqr.cli.options import Fields
from fairqr.cli.output import Printed, warn
from fairqr.cli.running import SearchRunSettings
from fairqr.graph.search.context import Context

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairqr.graph.search.result import SearchResult


def search(
    query: str,
    *,
    asked: Annotated[
        Context,
        Fields("target", "k", "method", "max_iterations", "seed", attribute="attributes"),
    ],
    settings: Annotated[SearchRunSettings, Fields()],
    where: Searched,
    model: str | None = None,
    base_url: str | None = None,
    yes: bool = False,
    plot: Path | None = None,
    recording: Recording,
    as_json: bool = False,
) -> Printed:
    """Search so that every group gets its share of exposure, through relevant documents.

    Args:
        query: What to search for.
        asked: How to search.
        settings: How the run works.
        where: What is searched.
        model: The language model, such as local:smollm2-135m or openai:gpt-4o. causal:NAME only
            ranks; feedback refines without a model. [default: FAIRQR_MODEL, or the local model]
        base_url: The URL of an OpenAI-compatible server.
        yes: Run even if the model may be asked more than 2,000 times or read more than 1,000,000
            tokens.
        plot: Draw the exposure by round: a .png or .html file.
        recording: Where the run is recorded.
        as_json: Print one JSON object.
    """
    if plot:
        from fairqr.cli.plot import check_plot

        check_plot(plot)
    work = searched(
        query, asked, settings, where, model, base_url=base_url, silent=as_json, yes=yes
    )
    result, passages = recording.run(work, "search")
    for warning in result.warnings:
        warn(warning)
    if plot:
        from fairqr.cli.plot import draw

        draw(result, plot)
    failed = settings.strict and (result.stop_reason == "model_failed" or _has_not_ranked(result))
    error = ModelError("failed", "The model failed, and strict was set.") if failed else None
    from fairqr.cli.render import result_lines

    drawn = [f"drawn: {plot}"] if plot else []
    return Printed(result, [*result_lines(result, passages), *drawn], error=error)


async def searched(
    query: str,
    asked: Context,
    settings: SearchRunSettings,
    where: Searched,
    model: str | None = None,
    *,
    base_url: str | None = None,
    silent: bool = False,
    yes: bool = False,
) -> tuple[SearchResult, Mapping[str, str]]:
    """Search, and read how the documents' texts begin.

    Args:
        query: What to search for.
        asked: How to search.
        settings: How the run works.
        where: What to search.
        model: The language model; defaults to the configured one.
        base_url: The URL of an OpenAI-compatible server.
        silent: Say nothing meanwhile, and read no texts.
        yes: Whether the user agreed to a large run.

    Returns:
        The result, and the passages by the documents' ids.
    """
    from fairqr.agents.refiner import FeedbackRefiner
    from fairqr.api import FairSearch
    from fairqr.base.settings import default_model
    from fairqr.cli.render import View
    from fairqr.graph.search.rankers import ASKED, Rankers
    from fairqr.graph.search.result import SearchResult

    prompts = settings.prompts_for(asked)
    asks_ranker = asked.strategy.ranker in ASKED
    name = (model or default_model()) if asked.rounds or asks_ranker else FeedbackRefiner.name
    opened = await settings.opened_model(name, base_url, refines=asked.rounds > 0)
    ranker = Rankers(None, opened, prompts).ranker_for(asked)
    if ranker is not None:
        await ranker.start()
    view = View(quiet=silent)
    if asks_ranker:
        view.expect_cost(name, asked.budget, yes=yes)
    async with settings.opened(where, asked) as engine:
        fair = FairSearch(engine, opened, ranker=ranker, prompts=prompts)
        result = await view.follow(fair, query, asked, SearchResult)
        shown = () if silent else (*result.baseline.ranking, *result.ranking)
        return result, await settings.passages_of(engine, (place.id for place in shown))


def _has_not_ranked(result: SearchResult) -> bool:
    """Return whether a model should have re-ranked, but answered no question."""
    found = result.reranking
    return found is not None and 0 < found.asked <= sum(found.failures.values())
