"""The command ``fairqr models measure``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairqr.cli.common import NOTABLES, ModelSettings, agree, run
from fairqr.cli.options import Fields
from fairqr.cli.output import Printed, quantity
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.agents.profiles.profile import Change, ModelProfile
    from fairqr.evaluation.collections.collection import Collection
    from fairqr.evaluation.model_measuring import Plan


def measure_model(
    model: Annotated[
        str,
        typer.Argument(
            help="The model, such as openai:gpt-4o-mini, local:smollm2-135m or feedback."
        ),
    ],
    *,
    collection: Annotated[
        str,
        typer.Option(
            "--collection",
            help="The topics and judgements: notables, an imported collection, or a folder.",
        ),
    ] = NOTABLES,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            help="Whose groups to ask about. Repeatable. [default: gender and continent, or all]",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Ask about twenty questions only, for a first and very unsure answer."
        ),
    ] = False,
    prompts_for: Annotated[
        Literal["large", "small"] | None,
        typer.Option(
            "--prompts-for",
            help=(
                "Ask with the prompts for large or for small models; searches use those that "
                "gain more. [default: those of earlier measurements, or as suits the kind of "
                "model]"
            ),
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Divides the topics into halves.")] = 0,
    settings: Annotated[ModelSettings, Fields("--base-url", "--yes")],
) -> Printed:
    """Measure how much a model's words help searches, and keep that for later searches.

    It asks the model about topics whose relevant documents are known. On one half of them it
    chooses how much each kind of words counts, and on the other it measures what they bring.
    Replies are cached, so an interrupted measurement goes on where it stopped.
    """
    from fairqr.agents.profiles.finding import keep_profile
    from fairqr.agents.refiners.feedback import FeedbackRefiner
    from fairqr.base.errors import InputError
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.model_measuring import plan_measurement

    if prompts_for is not None and model == FeedbackRefiner.name:
        raise InputError("'feedback' is asked with no prompts; leave --prompts-for out.")
    judged = find_collection(collection)
    plan = plan_measurement(judged, attribute or (), is_quick=quick, seed=seed)
    profile = run(_measure(model, judged, plan, prompts_for, settings), "measure")
    path = keep_profile(profile)
    data = {**profile.model_dump(mode="json"), "kept": str(path)}
    return Printed(data, list(profile_lines(profile, path)))


async def _measure(
    name: str,
    collection: Collection,
    plan: Plan,
    prompts_for: Literal["large", "small"] | None,
    settings: ModelSettings,
) -> ModelProfile:
    """Open the model and the collection, and measure."""
    from contextlib import aclosing

    from fairqr.agents.models.opening import open_model
    from fairqr.agents.refiners.feedback import FeedbackRefiner
    from fairqr.evaluation.model_measuring import ModelMeasurement
    from fairqr.prompts.library import PromptLibrary
    from fairqr.retrieval.encoders.opening import AUTO
    from fairqr.retrieval.sources.catalog import Catalog

    model: Any = None
    prompts: dict[str, str] = {}
    if name != FeedbackRefiner.name:
        model = await _open_model(name, settings)
        prompts = _prompts_of(model, prompts_for)
    _announce(name, plan, settings)
    with Progress() as progress:
        engine = await Catalog().resolve(
            collection.corpus_name, retriever=AUTO, progress=progress.prepare
        )
        async with aclosing(engine):
            measurement = ModelMeasurement(
                collection=collection,
                engine=engine,
                # Relevance feedback needs the engine.
                model=model or open_model(name, engine=engine),
                prompts=prompts,
                plan=plan,
                library=PromptLibrary(settings.prompts_dir),
                watcher=progress,
            )
            return await measurement.run()


async def _open_model(name: str, settings: ModelSettings) -> Any:
    """Open a language model, and check that it can refine."""
    from fairqr.agents.models.opening import open_language_model
    from fairqr.graph.search.models import require_refines

    model = open_language_model(name, **settings.model_options)
    require_refines(model)
    # Report a missing part before a large corpus is indexed.
    await model.check()
    return model


def _prompts_of(model: Any, size: Literal["large", "small"] | None) -> dict[str, str]:
    """Return the prompts for models of a size, or by default those that suit the model."""
    from fairqr.agents.profiles.finding import (
        FOR_LARGE_MODELS,
        FOR_SMALL_MODELS,
        Profiles,
        profiled_name,
    )

    if size is None:
        return Profiles().prompts_for(profiled_name(model))
    return dict(FOR_LARGE_MODELS if size == "large" else FOR_SMALL_MODELS)


def _announce(name: str, plan: Plan, settings: ModelSettings) -> None:
    """Say what a hosted model will be asked; a large measurement needs the user's consent."""
    from fairqr.agents.profiles.finding import is_hosted

    if not is_hosted(name):
        return
    agree(plan.questions, plan.tokens, yes=settings.yes, instead="add --quick")
    typer.echo(
        f"Asking {name} about {plan.questions:,} questions, about {plan.tokens:,} tokens. The "
        "topics and the names of groups are sent to its server; documents are not.",
        err=True,
    )


def profile_lines(profile: ModelProfile, path: Path) -> Iterator[str]:
    """Yield what a measurement says of a model, in sentences."""
    topics = quantity(profile.topics, "topic")
    weights = profile.weights.model_dump()
    weights_in_words = ", ".join(f"{kind} {weight:g}" for kind, weight in weights.items())
    yield (
        f"{profile.model} on {profile.collection}: nDCG × AWRF {_percent(profile.gain)} over the "
        f"same searches without it, on {topics} that were held back."
    )
    yield f"nDCG@20 {_points(profile.relevance)}; AWRF@20 {_points(profile.fairness)}."
    yield f"Its words count so much, where the query counts 1: {weights_in_words}."
    if not profile.weights.any():
        yield "Its words help nowhere enough, so ask=auto will not ask it on this collection."
    elif profile.is_quick and profile.gain.value <= 0:
        yield "That is too few topics to tell, so they count as those of a model not measured."
    cost = profile.cost
    yield (
        f"A search asks it {cost.calls:.1f} questions, about {cost.tokens:,.0f} tokens, and takes "
        f"{cost.seconds:.2f} s."
    )
    if profile.is_quick:
        yield f"This is a first, unsure answer from {topics}; leave out --quick for a better one."
    yield f"Kept in {path}."


def _percent(change: Change) -> str:
    if change.low is None or change.high is None:
        return f"{change.value:+.1f} % (too few topics for an interval)"
    return f"{change.value:+.1f} % (95 % interval {change.low:+.1f} to {change.high:+.1f})"


def _points(change: Change) -> str:
    if change.low is None or change.high is None:
        return f"{change.value:+.3f}"
    return f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
