"""The command ``fairqr answer``."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.base.errors import InputError, ModelError
from fairqr.base.settings import DEFAULT_POOL
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
    open_to_search,
    pairs,
    print_json,
    run_recorded,
    warn,
)
from fairqr.retrieval.sendable import sendable

if TYPE_CHECKING:
    from fairqr.graph.answer.result import AnswerResult
    from fairqr.retrieval.engines.engine import SearchEngine

__all__ = ["answer"]


def answer(
    question: Annotated[str, typer.Argument(help="What to answer.")],
    corpus: Corpus = None,
    alpha: Annotated[
        float, typer.Option(help="0 samples rankings at random, large ones by score.")
    ] = 2.0,
    samples: Annotated[
        int, typer.Option(help="How many rankings are sampled; equal ones are answered once.")
    ] = 1,
    k: Annotated[
        int, typer.Option("-k", min=1, max=1000, help="How many documents the generator reads.")
    ] = 5,
    pool: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="How many documents take part in the sampling. "
            f"[default: {DEFAULT_POOL}, or -k if more]",
        ),
    ] = None,
    form: Annotated[str, typer.Option(help="Of the sampling: logits or worths.")] = "logits",
    method: Annotated[
        str,
        typer.Option(help="What ranks; a fair one too, see 'fairqr search --method help'."),
    ] = "plain",
    attribute: Annotated[
        list[str] | None, typer.Option(help="Whose groups to count; all attributes if not given.")
    ] = None,
    intersect: Annotated[
        bool, typer.Option("--intersect", help="Count the product of the attributes.")
    ] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(help="retrieved:0.5,population:0.5, or gender=female:0.5,male:0.5."),
    ] = None,
    retriever: Annotated[str, typer.Option(help="bm25, or dense for vector search.")] = "bm25",
    model: Annotated[
        str | None,
        typer.Option(
            help="What answers: openai:gpt-4o and the like, local:smollm2-135m, or "
            "seq2seq:google/flan-t5-small. A chat model refines too, where the method does."
        ),
    ] = None,
    base_url: BaseUrl = None,
    attributor: Annotated[
        str,
        typer.Option(
            help="What judges which documents an answer used; see 'fairqr attribution list'; none."
        ),
    ] = "overlap",
    hypothesis: Annotated[
        str | None, typer.Option(help="A sentence with {answer} in it, to be judged in its place.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="The score from which a document counts as used.")
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="The version of a prompt, e.g. answer=v1.")
    ] = None,
    prompts: PromptsFolder = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of the answer; the prompt's own if not given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the sampling; drawn, and shown, if not given.")
    ] = None,
    input_tokens: Annotated[
        int | None,
        typer.Option(
            min=64,
            help="How long a prompt may be; what is longer is cut. [default: 2048; seq2seq: 512]",
        ),
    ] = None,
    timeout: Timeout = 60,
    concurrency: Annotated[
        int, typer.Option(min=1, help="How many requests are made at the same time.")
    ] = 8,
    no_cache: NoCache = False,
    schema: SchemaPath = None,
    trace: TracePath = None,
    trace_content: TraceContent = False,
    as_json: AsJson = False,
) -> None:
    """Answer from a sampled ranking; with more samples show who is exposed, and who is used."""
    # Bytes that are no text in the terminal's encoding arrive as halves of surrogate pairs.
    question = sendable(question)
    options: dict[str, Any] = {
        "alpha": alpha,
        "samples": samples,
        "documents": k,
        "form": form,
        "hypothesis": hypothesis,
        "temperature": temperature,
    }
    context: dict[str, Any] = {
        "k": max(DEFAULT_POOL, k) if pool is None else pool,
        "method": method,
        "attributes": attribute,
        "intersect": intersect,
        "target": target,
        "seed": seed,
        "prompts": pairs(prompt or [], "a version of a prompt", "answer=v1"),
    }

    async def work() -> tuple[AnswerResult, bool]:
        from fairqr.agents.attribution.open import open_attributor
        from fairqr.agents.cache import ReplyCache
        from fairqr.agents.chat import ChatModel
        from fairqr.agents.chat_generator import INPUT_TOKENS, ChatGenerator
        from fairqr.agents.feedback import FeedbackRefiner
        from fairqr.agents.generation import Generator
        from fairqr.agents.generators import SEQ2SEQ, open_generator
        from fairqr.api import FairSearch
        from fairqr.base.settings import default_corpus, default_model
        from fairqr.cli.render_answer import AnswerView, QuietAnswerView
        from fairqr.graph.answer.context import AnswerContext, answer_context
        from fairqr.graph.search.context import checked_context
        from fairqr.graph.search.rankers import ASKED
        from fairqr.prompts.library import PromptLibrary

        given = {name: value for name, value in options.items() if value is not None}
        asked = checked_context(AnswerContext, {**context, "answer": given})
        library = PromptLibrary(prompts)
        library.check(asked.prompts)
        name = model or default_model()
        if name == FeedbackRefiner.name:
            raise InputError(f"'{name}' writes no answers; name a chat model with --model.")
        refiner: ChatModel | None = None
        if name.startswith(f"{SEQ2SEQ}:"):
            if asked.rounds:
                raise InputError(
                    f"The method '{method}' refines with a chat model, which {name} is not; choose "
                    "a method that does not refine, or a chat model."
                )
            generator: Generator = open_generator(
                name, cache=not no_cache, input_tokens=input_tokens
            )
        else:
            kept = None if no_cache else ReplyCache()
            refiner = ChatModel(name, cache=kept, base_url=base_url, timeout=timeout)
            generator = ChatGenerator(refiner, input_tokens=input_tokens or INPUT_TOKENS)
        judge = None
        if attributor != "none":
            judge = open_attributor(
                attributor,
                chat=refiner,
                cache=not no_cache,
                threshold=threshold,
                prompts=library,
                concurrency=concurrency,
            )
        elif threshold is not None:
            raise InputError("Nothing is judged with --attributor none; leave --threshold out.")
        # What is missing is better known before a large corpus is indexed.
        await generator.start()
        if judge is not None:
            await judge.start()
        searched = default_corpus() if corpus is None else corpus
        engine = await open_to_search(searched, schema=schema, retriever=retriever)
        shows_pieces = samples == 1 and not as_json and sys.stdout.isatty()
        ranks = refiner.name if refiner and asked.strategy.ranker in ASKED else ""
        view = AnswerView(question, ranks) if shows_pieces else QuietAnswerView(ranks)
        try:
            context["k"] = await _pool_of(engine, pool, k)
            fair = FairSearch(
                engine,
                refiner,
                generator=generator,
                attributor=judge,
                prompts=library,
                concurrency=concurrency,
            )
            options["stream"] = shows_pieces
            with view:
                steps = fair.stream(question, answer_context(**{**context, **options}))
                async with contextlib.aclosing(steps):
                    async for step in steps:
                        view.show(step)
        finally:
            await engine.aclose()
        return view.result, view.has_written

    result, written = run_recorded(work(), trace, content=trace_content, command="answer")
    if not result.counts.answered:
        first = result.answers[0]
        why = first.message or f"The model {result.generator} gave no answer ({first.status})."
        raise ModelError(first.status, why)
    for warning in result.warnings:
        warn(warning)
    if as_json:
        print_json(result.model_dump_json())
    else:
        from fairqr.cli.render_answer import print_answer

        print_answer(result, written=written)


async def _pool_of(engine: SearchEngine, pool: int | None, k: int) -> int:
    """Return how many documents take part; a small corpus takes part as a whole.

    Raises:
        InputError: More are asked for than there are.
    """
    size = (await engine.info()).documents
    if pool is not None:
        if size is not None and pool > size:
            raise InputError(
                f"The pool is to have {pool} documents, but '{engine.name}' has only {size}; "
                "lower --pool."
            )
        return pool
    wanted = max(DEFAULT_POOL, k)
    # An empty index is complained of later, as anywhere.
    return wanted if size is None else min(wanted, max(size, 1))
