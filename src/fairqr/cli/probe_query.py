"""The command ``fairqr probe query``: a probe on what one query retrieves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import ModelError
from fairqr.cli.common import (
    AsJson,
    BaseUrl,
    Corpus,
    TraceContent,
    TracePath,
    Yes,
    print_json,
    run_recorded,
    warn,
)
from fairqr.cli.parameters import ParameterCommand, Set, options_of
from fairqr.cli.search import Retriever

if TYPE_CHECKING:
    from fairqr.graph.probe.result import ProbeResult

ProbeCommand = ParameterCommand.of(
    "fairqr.graph.probe.context:ProbeContext", "fairqr.cli.running:RunSettings"
)


def query(
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="QUERY", help="What to search for.")],
    attribute: Annotated[str, typer.Option(help="{probe.attribute}")],
    protected: Annotated[str, typer.Option(help="{probe.protected}")] = "female",
    corpus: Corpus = None,
    k: Annotated[int | None, typer.Option("-k", help="{k}")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="{probe.kinds}")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model to probe, such as openai:gpt-4o, local:smollm2-135m, or causal:NAME "
            "with a model of transformers. [default: FAIRQR_MODEL, or the local model]"
        ),
    ] = None,
    base_url: BaseUrl = None,
    retriever: Retriever = "auto",
    seed: Annotated[int | None, typer.Option(help="{probe.seed}")] = None,
    set_: Set = None,
    yes: Yes = False,
    trace: TracePath = None,
    trace_content: TraceContent = False,
    as_json: AsJson = False,
) -> None:
    """Search, and ask a model to rank what was found: does it lean toward a group?

    It compares two documents in both orders, and orders lists for different people who ask.
    """
    from fairqr.cli.running import RunSettings
    from fairqr.graph.probe.context import ProbeContext

    asked, settings = options_of(ctx, set_, ProbeContext, RunSettings)

    async def work() -> ProbeResult:
        from fairqr.agents.models.opening import open_language_model
        from fairqr.api import FairSearch
        from fairqr.cli.render import ProbeView
        from fairqr.graph.probe.result import ProbeResult

        prompts = settings.prompts_for(asked)
        probed = open_language_model(
            model, cache=settings.cache, base_url=base_url, timeout=settings.timeout
        )
        # Report a missing part before a large corpus is indexed.
        await probed.start("text")
        async with settings.opened(corpus, asked.strategy.searched_by(retriever)) as engine:
            fair = FairSearch(engine, probed, prompts=prompts)
            return await ProbeView(yes=yes).follow(fair, text, asked, ProbeResult)

    result = run_recorded(work(), trace, content=trace_content, command="probe")
    _require_answers(result)
    for warning in result.warnings:
        warn(warning)
    if as_json:
        print_json(result)
    else:
        from fairqr.cli.probe_tables import print_probe

        print_probe(result)


def _require_answers(result: ProbeResult) -> None:
    """Check that the model answered; any answer is a result.

    Raises:
        ModelError: The model answered no question.
    """
    from fairqr.evaluation.experiments.engine import is_away
    from fairqr.graph.usage import usage_of

    asked, failures = 0, Counter[str]()
    if result.pairwise is not None:
        asked += 2 * len(result.pairwise.pairs)
        failures.update(result.pairwise.failures)
    if result.listwise is not None:
        for order in result.listwise.askers:
            asked += order.asked
            failures.update(order.failures)
    usage = usage_of(result.model_dump())
    away = [status for status in failures if is_away(status, usage)]
    if away and sum(failures[status] for status in away) == asked:
        raise ModelError(away[0], result.warnings[0])
