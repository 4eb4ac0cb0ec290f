"""The command ``fairqr answer``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fairqr.base.errors import InputError
from fairqr.base.settings import DEFAULT_POOL
from fairqr.cli.common import (
    MODELS,
    AsJson,
    BaseUrl,
    Corpus,
    TraceContent,
    TracePath,
    print_json,
    run_recorded,
    warn,
)
from fairqr.cli.parameters import ParameterCommand, Set, options_of
from fairqr.cli.search import MethodName, Retriever

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairqr.graph.answer.context import AnswerContext
    from fairqr.graph.answer.result import AnswerResult
    from fairqr.retrieval.engines.engine import SearchEngine

AnswerCommand = ParameterCommand.of(
    "fairqr.graph.answer.context:AnswerContext", "fairqr.cli.running:AnswerRunSettings"
)


def answer(
    ctx: typer.Context,
    question: Annotated[str, typer.Argument(help="The question to answer.")],
    corpus: Corpus = None,
    k: Annotated[int | None, typer.Option("-k", help="{answer.documents}")] = None,
    alpha: Annotated[float | None, typer.Option(help="{answer.alpha}")] = None,
    samples: Annotated[int | None, typer.Option(help="{answer.samples}")] = None,
    pool: Annotated[
        int | None, typer.Option(help="{k} Rankings are sampled from these documents.")
    ] = None,
    method: MethodName = None,
    attribute: Annotated[list[str] | None, typer.Option(help="{attributes}")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that answers, such as local:smollm2-135m, openai:gpt-4o or "
            "seq2seq:google/flan-t5-small. A chat model also refines, if the method does. "
            "[default: FAIRQR_MODEL, or the local model]",
            rich_help_panel=MODELS,
        ),
    ] = None,
    base_url: BaseUrl = None,
    retriever: Retriever = "auto",
    attributor: Annotated[
        str,
        typer.Option(
            help="The attributor, which judges which documents an answer used; 'fairqr attribution "
            "list' lists them, and none skips this.",
            rich_help_panel=MODELS,
        ),
    ] = "overlap",
    seed: Annotated[int | None, typer.Option(help="{seed}")] = None,
    set_: Set = None,
    trace: TracePath = None,
    trace_content: TraceContent = False,
    as_json: AsJson = False,
) -> None:
    """Answer a question from a sampled ranking, and show whose documents the answer used.

    With more samples, it also shows how exposure and use differ between groups.
    """
    from fairqr.cli.running import AnswerRunSettings
    from fairqr.graph.answer.context import AnswerContext

    asked, settings = options_of(ctx, set_, AnswerContext, AnswerRunSettings)
    is_live = asked.answer.samples == 1 and not as_json and sys.stdout.isatty()
    has_written = False

    async def work() -> tuple[AnswerResult, Mapping[str, str]]:
        from fairqr.agents.attribution.opening import open_attributor
        from fairqr.agents.generators import INPUT_TOKENS, ModelGenerator
        from fairqr.agents.models.cache import kept_in
        from fairqr.agents.models.chat import ChatModel
        from fairqr.agents.models.opening import SEQ2SEQ, open_generator
        from fairqr.agents.refiner import FeedbackRefiner
        from fairqr.api import FairSearch
        from fairqr.base.settings import default_model
        from fairqr.cli.render import View
        from fairqr.cli.render_answer import AnswerView
        from fairqr.graph.answer.result import AnswerResult
        from fairqr.graph.search.rankers import ASKED

        prompts = settings.prompts_for(asked)
        name = model or default_model()
        if name == FeedbackRefiner.name:
            raise InputError(f"'{name}' writes no answers; name a chat model with --model.")
        chat: ChatModel | None = None
        if name.startswith(f"{SEQ2SEQ}:"):
            if asked.rounds:
                raise InputError(
                    f"The method '{asked.method}' refines with a chat model, which {name} is not; "
                    "choose a method that does not refine, or a chat model."
                )
            generator = open_generator(
                name, cache=settings.cache, input_tokens=settings.input_tokens
            )
        else:
            chat = ChatModel(
                name, cache=kept_in(settings.cache), base_url=base_url, timeout=settings.timeout
            )
            generator = ModelGenerator(chat, input_tokens=settings.input_tokens or INPUT_TOKENS)
        judge = None
        if attributor != "none":
            judge = open_attributor(
                attributor,
                chat=chat,
                cache=settings.cache,
                prompts=prompts,
                concurrency=settings.concurrency,
            )
        # Report a missing part before a large corpus is indexed.
        await generator.start()
        if judge is not None:
            await judge.start()
        view = AnswerView(question) if is_live else View()
        if chat and asked.strategy.ranker in ASKED:
            view.expect_cost(name)
        async with settings.opened(corpus, asked.strategy.searched_by(retriever)) as engine:
            fair = FairSearch(
                engine,
                chat,
                generator=generator,
                attributor=judge,
                prompts=prompts,
                concurrency=settings.concurrency,
            )
            context = await _with_pool(asked, engine, stream=is_live)
            result = await view.follow(fair, question, context, AnswerResult)
            shown = [place.id for place in result.ranking if place.exposure and not as_json]
            passages = await settings.passages_of(engine, shown)
        nonlocal has_written
        has_written = isinstance(view, AnswerView) and view.has_written
        return result, passages

    result, passages = run_recorded(work(), trace, content=trace_content, command="answer")
    for warning in result.warnings:
        warn(warning)
    if as_json:
        print_json(result)
    else:
        from fairqr.cli.render_answer import print_answer

        print_answer(result, passages, written=has_written)


async def _with_pool(asked: AnswerContext, engine: SearchEngine, *, stream: bool) -> AnswerContext:
    """Return the context with a pool that fits the corpus; a small corpus is the whole pool.

    Raises:
        InputError: The user asks for more documents than there are.
    """
    size, k = (await engine.info()).documents, asked.k
    if "k" not in asked.model_fields_set:
        k = max(DEFAULT_POOL, asked.answer.documents)
        # The search itself reports an empty index.
        k = k if size is None else min(k, max(size, 1))
    elif size is not None and k > size:
        raise InputError(
            f"'{engine.name}' has only {size} documents, fewer than the pool of {k}; lower --pool."
        )
    answer = asked.answer.model_copy(update={"stream": stream})
    return asked.model_copy(update={"k": k, "answer": answer})
