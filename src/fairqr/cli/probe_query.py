"""The command ``fairqr probe query``: a probe on what one query retrieves."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.base.errors import ModelError
from fairqr.cli.common import (
    AsJson,
    BaseUrl,
    Corpus,
    NoCache,
    PromptsFolder,
    SchemaPath,
    Timeout,
    TraceContent,
    TracePath,
    Yes,
    agree,
    notes,
    open_to_search,
    pairs,
    print_json,
    run_recorded,
    warn,
)
from fairqr.cli.probe_options import read_words
from fairqr.retrieval.sendable import sendable

if TYPE_CHECKING:
    from fairqr.graph.probe.result import ProbeResult

__all__ = ["query"]


def query(
    text: Annotated[str, typer.Argument(metavar="QUERY", help="What to search for.")],
    attribute: Annotated[str, typer.Option(help="An attribute of the documents, such as gender.")],
    corpus: Corpus = None,
    protected: Annotated[
        str, typer.Option(help="female; not Europe; or 'female vs male'.")
    ] = "female",
    words: Annotated[
        str | None,
        typer.Option(
            metavar="PROTECTED/UNPROTECTED", help="What the sides are called, such as women/men."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="openai:gpt-4o and the like, local:smollm2-135m, or causal: and a model of "
            "transformers. [default: FAIRQR_MODEL, or the local one]"
        ),
    ] = None,
    base_url: BaseUrl = None,
    k: Annotated[int, typer.Option("-k", help="How many results take part.")] = 20,
    retriever: Annotated[str, typer.Option(help="bm25, or dense for vector search.")] = "bm25",
    kind: Annotated[
        list[str] | None, typer.Option(help="pairwise or listwise; both if not given.")
    ] = None,
    pairs_: Annotated[int, typer.Option("--pairs", help="At most so many.")] = 50,
    by: Annotated[
        str, typer.Option(help="Weigh probabilities, where the model tells them, or read a reply.")
    ] = "probabilities",
    window: Annotated[int, typer.Option(help="Items that a model orders at once.")] = 20,
    step: Annotated[
        int | None, typer.Option(help="How far the window moves. [default: half of it]")
    ] = None,
    shown: Annotated[
        str, typer.Option(help="What is read of an item: title, text, title_text.")
    ] = "title",
    length: Annotated[int, typer.Option(help="Characters of an item, at most.")] = 2000,
    seed: Annotated[int, typer.Option(help="The seed of all draws.")] = 0,
    prompt: Annotated[
        list[str] | None, typer.Option(help="The version of a prompt, e.g. pairwise=v2.")
    ] = None,
    prompts: PromptsFolder = None,
    timeout: Timeout = 60,
    no_cache: NoCache = False,
    schema: SchemaPath = None,
    yes: Yes = False,
    trace: TracePath = None,
    trace_content: TraceContent = False,
    as_json: AsJson = False,
) -> None:
    """Search, and ask a model to rank what was found: does it lean toward a group?

    It compares two documents in both orders, and orders lists for different people who ask.
    """
    # Bytes that are no text in the terminal's encoding arrive as halves of surrogate pairs.
    text = sendable(text)
    asked: dict[str, Any] = {
        "attribute": attribute,
        "protected": protected,
        "words": read_words(words),
        "kinds": kind,
        "pairs": pairs_,
        "by": by,
        "window": window,
        "step": step,
        "shown": shown,
        "length": length,
        "seed": seed,
        "k": k,
        "prompts": pairs(prompt or [], "a version of a prompt", "pairwise=v2"),
    }

    async def work() -> ProbeResult:
        from fairqr.agents.ranking.base import Cost
        from fairqr.agents.ranking.open import open_ranking_model
        from fairqr.api import FairSearch, Token
        from fairqr.base.settings import default_corpus
        from fairqr.evaluation.probes.plan import cost_in_words
        from fairqr.graph.probe.context import probe_context
        from fairqr.graph.probe.result import ProbeResult
        from fairqr.prompts.library import PromptLibrary

        library = PromptLibrary(prompts)
        library.check(probe_context(**asked).prompts)
        probed = open_ranking_model(model, cache=not no_cache, base_url=base_url, timeout=timeout)
        # What is missing is better known before a large corpus is indexed.
        await probed.start("text")
        searched = default_corpus() if corpus is None else corpus
        engine = await open_to_search(searched, schema=schema, retriever=retriever)
        result: dict[str, Any] = {}
        try:
            fair = FairSearch(engine, probed, prompts=library)
            with notes().status("probing"):
                async with contextlib.aclosing(fair.stream(text, probe_context(**asked))) as steps:
                    async for each in steps:
                        if isinstance(each, Token):
                            continue
                        if cost := each.update.get("cost"):
                            calls, tokens = cost["reserved_calls"], cost["reserved_tokens"]
                            agree(calls, tokens, yes=yes)
                            typer.echo(cost_in_words(Cost(calls, tokens)), err=True)
                        result = each.update.get("probe") or result
        finally:
            await engine.aclose()
        return ProbeResult.model_validate(result)

    result = run_recorded(work(), trace, content=trace_content, command="probe")
    _require_answers(result)
    for warning in result.warnings:
        warn(warning)
    if as_json:
        print_json(result.model_dump_json())
    else:
        from fairqr.cli.probe_tables import print_probe

        print_probe(result)


def _require_answers(result: ProbeResult) -> None:
    """Check that the model was there; what it answers is a result, whatever it is.

    Raises:
        ModelError: It answered no question.
    """
    from fairqr.evaluation.experiments.care import is_away
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
