"""The commands ``fairqr search`` and ``fairqr answer``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import Field

from fairqr.base.errors import InputError, ModelError
from fairqr.base.settings import DEFAULT_POOL, default_model
from fairqr.cli.common import RUN, RunSettings, run
from fairqr.cli.options import Fields
from fairqr.cli.output import Printed
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.search.context import Context

if TYPE_CHECKING:
    from fairqr.graph.answer.result import AnswerResult
    from fairqr.graph.search.result import SearchResult


class SearchRunSettings(RunSettings):
    """How a search runs."""

    strict: bool = Field(False, description="Exit with code 2 if the model failed.")


def search(
    query: Annotated[str, typer.Argument(help="What to search for.")],
    *,
    asked: Annotated[
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
    settings: Annotated[SearchRunSettings, Fields(*RUN)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> Printed:
    """Search so that every group gets its share of exposure, through relevant documents."""
    from fairqr.cli.render import result_lines

    work = searched(query, asked, settings, silent=as_json)
    result, passages = run(work, "search", settings.trace)
    ranked = result.reranking
    failed = result.stop_reason == "model_failed" or (
        ranked is not None and 0 < ranked.asked <= sum(ranked.failures.values())
    )
    why = "The model failed, and strict was set."
    error = ModelError("failed", why) if failed and settings.strict else None
    lines = result_lines(result, passages, verbose=settings.verbose)
    return Printed(result, lines, warnings=result.warnings, error=error)


async def searched(
    query: str, asked: Context, settings: SearchRunSettings, *, silent: bool = False
) -> tuple[SearchResult, Mapping[str, str]]:
    """Search, and read how the documents' texts begin.

    Args:
        query: What to search for.
        asked: How to search.
        settings: How the run works.
        silent: Say nothing meanwhile.

    Returns:
        The result, and the passages by the documents' ids.
    """
    from fairqr.agents.models.opening import open_language_model
    from fairqr.agents.refiners.feedback import FeedbackRefiner
    from fairqr.api import FairSearch
    from fairqr.cli.following import follow
    from fairqr.graph.search.models import Model, require_refines
    from fairqr.graph.search.rankers import ASKED, Rankers

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
    async with settings.opened(asked) as engine:
        fair = FairSearch(engine, model, ranker=ranker, prompts=prompts)
        result, _ = await follow(fair, query, asked, settings, quiet=silent, model=ranks)
        shown = () if silent else (*result.baseline.ranking, *result.ranking)
        return result, await settings.passages_of(engine, (place.id for place in shown))


class AnswerRunSettings(RunSettings):
    """How a run that answers works."""

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
    asked: Annotated[
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
    settings: Annotated[AnswerRunSettings, Fields(*RUN, "--attributor")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> Printed:
    """Answer a question from a sampled ranking, and show whose documents the answer used.

    With more samples, it also shows how exposure and use differ between groups.
    """
    from fairqr.cli.answers import answer_lines

    work = _answered(question, asked, settings, silent=as_json)
    result, found, passages = run(work, "answer", settings.trace)
    lines = answer_lines(result, found, passages, settings.verbose)
    return Printed(result, lines, warnings=result.warnings)


async def _answered(
    question: str, asked: AnswerContext, settings: AnswerRunSettings, *, silent: bool
) -> tuple[AnswerResult, SearchResult | None, Mapping[str, str]]:
    """Return the answer, the result of its search, and how the documents' texts begin."""
    from fairqr.agents.attribution.opening import open_attributor
    from fairqr.agents.models.chat import ChatModel
    from fairqr.agents.models.opening import open_generator
    from fairqr.api import FairSearch
    from fairqr.cli.following import follow
    from fairqr.graph.search.rankers import ASKED

    prompts = settings.prompts_for(asked)
    name = settings.model or default_model()
    how: dict[str, Any] = {"input_tokens": settings.input_tokens, **settings.model_options}
    generator = open_generator(name, **how)
    own = getattr(generator, "model", None)
    chat = own if isinstance(own, ChatModel) else None
    if chat is None and asked.rounds:
        raise InputError(
            f"The method '{asked.method}' refines with a chat model, which {name} is not; choose "
            "a method that does not refine, or a chat model."
        )
    given: dict[str, Any] = {"prompts": prompts, "concurrency": settings.concurrency}
    judge = None
    if settings.attributor != "none":
        judge = open_attributor(settings.attributor, chat=chat, cache=settings.cache, **given)
    # Report a missing part before a large corpus is indexed.
    await generator.start()
    if judge is not None:
        await judge.start()
    ranks = chat.name if chat and asked.strategy.ranker in ASKED else ""
    async with settings.opened(asked) as engine:
        pool = max(DEFAULT_POOL, asked.answer.documents)  # or the whole of a small corpus
        if "k" in asked.model_fields_set:
            pool, size = asked.k, (await engine.info()).documents
            if size is not None and pool > size:
                raise InputError(f"'{engine.name}' has only {size} documents; lower --pool.")
        live = asked.answer.samples == 1 and not silent and sys.stdout.isatty()
        answering = asked.answer.model_copy(update={"stream": live})
        asked = asked.model_copy(update={"answer": answering, "k": pool})
        fair = FairSearch(engine, chat, generator=generator, attributor=judge, **given)
        result, found = await follow(fair, question, asked, settings, quiet=silent, model=ranks)
        read = (it.id for it in result.ranking if it.exposure and not silent)
        return result, found, await settings.passages_of(engine, read)
