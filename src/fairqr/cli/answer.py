"""The command ``fairqr answer``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from fairqr.base.errors import InputError
from fairqr.base.settings import DEFAULT_POOL
from fairqr.cli.common import Recording, Searched
from fairqr.cli.options import Fields
from fairqr.cli.output import Printed, warn
from fairqr.cli.running import AnswerRunSettings
from fairqr.graph.answer.context import AnswerContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairqr.agents.generators import Generator
    from fairqr.agents.models.chat import ChatModel
    from fairqr.graph.answer.result import AnswerResult
    from fairqr.retrieval.engines.engine import SearchEngine


def answer(
    question: str,
    *,
    asked: Annotated[
        AnswerContext,
        Fields(
            "method",
            "seed",
            k="answer.documents",
            alpha="answer.alpha",
            samples="answer.samples",
            pool="k",
            attribute="attributes",
        ),
    ],
    settings: Annotated[AnswerRunSettings, Fields()],
    where: Searched,
    model: str | None = None,
    base_url: str | None = None,
    attributor: str = "overlap",
    recording: Recording,
    as_json: bool = False,
) -> Printed:
    """Answer a question from a sampled ranking, and show whose documents the answer used.

    With more samples, it also shows how exposure and use differ between groups.

    Args:
        question: The question to answer.
        asked: How to search and to answer.
        settings: How the run works.
        where: What is searched.
        model: The model that answers, such as local:smollm2-135m, openai:gpt-4o or
            seq2seq:google/flan-t5-small. A chat model also refines, if the method does.
            [default: FAIRQR_MODEL, or the local model]
        base_url: The URL of an OpenAI-compatible server.
        attributor: The attributor, which judges which documents an answer used; 'fairqr
            attribution list' lists them, and none skips this.
        recording: Where the run is recorded.
        as_json: Print one JSON object.
    """
    is_live = asked.answer.samples == 1 and not as_json and sys.stdout.isatty()
    has_written = False

    async def work() -> tuple[AnswerResult, Mapping[str, str]]:
        from fairqr.agents.attribution.opening import open_attributor
        from fairqr.api import FairSearch
        from fairqr.cli.render import View
        from fairqr.cli.render_answer import AnswerView
        from fairqr.graph.answer.result import AnswerResult
        from fairqr.graph.search.rankers import ASKED

        prompts = settings.prompts_for(asked)
        generator, chat = _opened(model, base_url, asked, settings)
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
        view = AnswerView(question) if is_live else View(quiet=True)
        if chat and asked.strategy.ranker in ASKED:
            view.expect_cost(chat.name)
        async with settings.opened(where, asked) as engine:
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

    result, passages = recording.run(work(), "answer")
    for warning in result.warnings:
        warn(warning)
    from fairqr.cli.render_answer import answer_lines

    return Printed(result, answer_lines(result, passages, written=has_written))


def _opened(
    model: str | None, base_url: str | None, asked: AnswerContext, settings: AnswerRunSettings
) -> tuple[Generator, ChatModel | None]:
    """Return what writes the answers, and the chat model if it is one.

    Raises:
        InputError: The model writes no answers, or the method refines and the model cannot.
    """
    from fairqr.agents.generators import INPUT_TOKENS, ModelGenerator
    from fairqr.agents.models.cache import kept_in
    from fairqr.agents.models.chat import ChatModel
    from fairqr.agents.models.opening import SEQ2SEQ, open_generator
    from fairqr.agents.refiner import FeedbackRefiner
    from fairqr.base.settings import default_model

    name, tokens = model or default_model(), settings.input_tokens
    if name == FeedbackRefiner.name:
        raise InputError(f"'{name}' writes no answers; name a chat model with --model.")
    if name.startswith(f"{SEQ2SEQ}:"):
        if asked.rounds:
            raise InputError(
                f"The method '{asked.method}' refines with a chat model, which {name} is not; "
                "choose a method that does not refine, or a chat model."
            )
        return open_generator(name, cache=settings.cache, input_tokens=tokens), None
    cache = kept_in(settings.cache)
    chat = ChatModel(name, cache=cache, base_url=base_url, timeout=settings.timeout)
    return ModelGenerator(chat, input_tokens=tokens or INPUT_TOKENS), chat


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
