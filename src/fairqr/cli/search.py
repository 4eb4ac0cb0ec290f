"""The commands ``fairqr search`` and ``fairqr answer``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from fairqr.base.errors import InputError, ModelError
from fairqr.base.settings import DEFAULT_POOL
from fairqr.cli.common import RUN_OPTIONS, RunSettings, run
from fairqr.cli.options import Fields
from fairqr.cli.output import Printed
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.search.context import Context

if TYPE_CHECKING:
    from fairqr.agents.attribution.attributor import Attributor
    from fairqr.agents.generators import Generator
    from fairqr.agents.models.chat import ChatModel
    from fairqr.graph.answer.result import AnswerResult
    from fairqr.graph.search.models import Model
    from fairqr.graph.search.result import SearchResult
    from fairqr.prompts.library import PromptLibrary
    from fairqr.retrieval.engines.engine import SearchEngine


class SearchRunSettings(RunSettings):
    """Says how a search runs."""

    strict: bool = Field(False, description="Exit with code 2 if the model failed.")


def search(
    query: Annotated[str, typer.Argument(help="What to search for.")],
    *,
    context: Annotated[
        Context,
        Fields(
            "--target",
            "-k",
            "--page",
            "--method",
            "--max-iterations",
            "--seed",
            ("--attribute", "attributes"),
        ),
    ],
    settings: Annotated[SearchRunSettings, Fields(*RUN_OPTIONS)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> Printed:
    """Search so that every group gets its share of exposure, through relevant documents."""
    from fairqr.cli.render import result_lines

    work = run_search(query, context, settings, silent=as_json)
    result, passages = run(work, "search", settings.trace)
    error = None
    if settings.strict and _has_failed(result):
        error = ModelError("failed", "The model failed, and strict was set.")
    lines = result_lines(result, passages, verbose=settings.verbose)
    return Printed(result, lines, warnings=result.warnings, error=error)


def _has_failed(result: SearchResult) -> bool:
    """Return whether the model gave no words, or no usable order."""
    if result.stop_reason == "model_failed":
        return True
    reranking = result.reranking
    if reranking is None:
        return False
    failures = sum(reranking.failures.values())
    return 0 < reranking.asked <= failures


async def run_search(
    query: str, context: Context, settings: SearchRunSettings, *, silent: bool = False
) -> tuple[SearchResult, Mapping[str, str]]:
    """Search, and read how the documents' texts begin.

    Args:
        query: What to search for.
        context: How to search.
        settings: How the run works.
        silent: Say nothing meanwhile.

    Returns:
        The result, and the passages by the documents' ids.
    """
    from fairqr.api import FairSearch
    from fairqr.cli.following import follow
    from fairqr.graph.search.rankers import ASKED, Rankers

    prompts = settings.prompts_for(context)
    asks_ranker = context.strategy.ranker in ASKED
    model = await _open_model(context, settings, asks_ranker=asks_ranker)
    ranker = Rankers(None, model, prompts).ranker_for(context)
    if ranker is not None:
        await ranker.start()
    ranking_model = settings.model_name if asks_ranker else ""

    async with settings.open_engine(context) as engine:
        search = FairSearch(engine, model, ranker=ranker, prompts=prompts)
        result, _ = await follow(
            search, query, context, settings, quiet=silent, model=ranking_model
        )
        ids = []
        if not silent:
            ids = [document.id for document in (*result.baseline.ranking, *result.ranking)]
        return result, await settings.passages_of(engine, ids)


async def _open_model(
    context: Context, settings: SearchRunSettings, *, asks_ranker: bool
) -> Model | str:
    """Open the model that refines and re-ranks, and check that it can be reached.

    Returns:
        The model; or the name of relevance feedback, which needs an engine to be opened.
    """
    from fairqr.agents.models.opening import open_language_model
    from fairqr.agents.refiners.feedback import FeedbackRefiner
    from fairqr.graph.search.models import require_refines

    needs_model = context.rounds > 0 or asks_ranker
    name = settings.model_name if needs_model else FeedbackRefiner.name
    if name == FeedbackRefiner.name:
        return name
    model = open_language_model(name, **settings.model_options)
    if context.rounds:
        require_refines(model)
        # Report a missing part before a large corpus is indexed.
        await model.check()
    return model


class AnswerRunSettings(RunSettings):
    """Says how a run that answers works."""

    model: str | None = Field(
        None,
        description=(
            "The model that answers, such as local:smollm2-135m, openai:gpt-4o or "
            "seq2seq:google/flan-t5-small. A chat model also refines, if the method does. "
            "[default: FAIRQR_MODEL, or the local model]"
        ),
    )
    attributor: str = Field(
        "overlap",
        description=(
            "The attributor, which judges which documents an answer used; overlap, "
            "transformers[:MODEL] or llm[:MODEL], and none skips this."
        ),
    )
    input_tokens: int | None = Field(
        None,
        ge=64,
        description=(
            "The most tokens of a prompt; a longer prompt is cut. 2048 by default, and 512 for "
            "seq2seq models."
        ),
    )
    concurrency: int = Field(
        8, ge=1, description="How many requests to models run at the same time."
    )


def answer(
    question: Annotated[str, typer.Argument(help="The question to answer.")],
    *,
    context: Annotated[
        AnswerContext,
        Fields(
            "--method",
            "--seed",
            ("-k", "answer.documents"),
            ("--alpha", "answer.alpha"),
            ("--samples", "answer.samples"),
            ("--pool", "k"),
            ("--attribute", "attributes"),
        ),
    ],
    settings: Annotated[AnswerRunSettings, Fields(*RUN_OPTIONS, "--attributor")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> Printed:
    """Answer a question from a sampled ranking, and show whose documents the answer used.

    With more samples, it also shows how exposure and use differ between groups.
    """
    from fairqr.cli.answers import answer_lines

    work = _run_answer(question, context, settings, silent=as_json)
    result, search_result, passages = run(work, "answer", settings.trace)
    lines = answer_lines(result, search_result, passages, settings.verbose)
    return Printed(result, lines, warnings=result.warnings)


async def _run_answer(
    question: str, context: AnswerContext, settings: AnswerRunSettings, *, silent: bool
) -> tuple[AnswerResult, SearchResult | None, Mapping[str, str]]:
    """Return the answer, the result of its search, and how the documents' texts begin."""
    from fairqr.api import FairSearch
    from fairqr.cli.following import follow
    from fairqr.graph.search.rankers import ASKED

    prompts = settings.prompts_for(context)
    generator, chat_model = _open_generator(context, settings)
    attributor = _open_attributor(settings, chat_model, prompts)
    # Report a missing part before a large corpus is indexed.
    await generator.start()
    if attributor is not None:
        await attributor.start()

    ranking_model = ""
    if chat_model and context.strategy.ranker in ASKED:
        ranking_model = chat_model.name

    async with settings.open_engine(context) as engine:
        # People can read a single answer while it is written.
        is_streamed = context.answer.samples == 1 and not silent and sys.stdout.isatty()
        answering = context.answer.model_copy(update={"stream": is_streamed})
        pool_size = await _pool_size(engine, context)
        context = context.model_copy(update={"answer": answering, "k": pool_size})
        search = FairSearch(
            engine,
            chat_model,
            generator=generator,
            attributor=attributor,
            prompts=prompts,
            concurrency=settings.concurrency,
        )
        result, search_result = await follow(
            search, question, context, settings, quiet=silent, model=ranking_model
        )
        ids = []
        if not silent:
            ids = [document.id for document in result.ranking if document.exposure]
        return result, search_result, await settings.passages_of(engine, ids)


def _open_generator(
    context: AnswerContext, settings: AnswerRunSettings
) -> tuple[Generator, ChatModel | None]:
    """Open what writes the answers, and return the chat model that it uses, if any.

    Raises:
        InputError: The search needs a chat model, and there is none.
    """
    from fairqr.agents.models.chat import ChatModel
    from fairqr.agents.models.opening import open_generator

    name = settings.model_name
    options: dict[str, Any] = {"input_tokens": settings.input_tokens, **settings.model_options}
    generator = open_generator(name, **options)
    model = getattr(generator, "model", None)
    if isinstance(model, ChatModel):
        return generator, model
    if context.rounds:
        raise InputError(
            f"The method '{context.method}' refines with a chat model, which {name} is not; choose "
            "a method that does not refine, or a chat model."
        )
    return generator, None


def _open_attributor(
    settings: AnswerRunSettings, chat_model: ChatModel | None, prompts: PromptLibrary
) -> Attributor | None:
    """Open what judges which documents an answer used, unless the user wants no judgement."""
    from fairqr.agents.attribution.opening import open_attributor

    if settings.attributor == "none":
        return None
    return open_attributor(
        settings.attributor,
        chat=chat_model,
        cache=settings.cache,
        prompts=prompts,
        concurrency=settings.concurrency,
    )


async def _pool_size(engine: SearchEngine, context: AnswerContext) -> int:
    """Return how many documents rankings are sampled from.

    Raises:
        InputError: The user wants more than there are.
    """
    if "k" not in context.model_fields_set:
        # A small corpus may have fewer, and then all of them take part.
        return max(DEFAULT_POOL, context.answer.documents)
    info = await engine.info()
    if info.documents is not None and context.k > info.documents:
        raise InputError(f"'{engine.name}' has only {info.documents} documents; lower --pool.")
    return context.k
