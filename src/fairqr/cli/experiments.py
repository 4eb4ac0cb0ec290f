"""The commands ``fairqr experiment``, ``train`` and ``attribution``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fairqr.base.errors import InputError
from fairqr.base.extras import library
from fairqr.cli.common import NOTABLES, CorpusSettings, agree, run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, fact_lines, print_file
from fairqr.cli.parameters import explain, read_parameters
from fairqr.cli.progress import Progress
from fairqr.prompts.library import PromptLibrary

experiment = typer.Typer()
attribution = typer.Typer(callback=lambda: None)  # a group, although it has only one command


@command(experiment, "list")
def list_experiments() -> None:
    """List the experiments that come with fairqr."""
    from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment

    for name in SHIPPED:
        typer.echo(f"{name}: {read_experiment(name).values['title']}")


@command(experiment)
def show(
    experiment: Annotated[str, typer.Argument(help="The name of an experiment, or a YAML file.")],
) -> None:
    """Print the file of an experiment, to change a copy of it."""
    from fairqr.evaluation.experiments.catalogue import read_experiment

    print_file(read_experiment(experiment).path)


@command(experiment, "run")
def run_experiment(
    experiment: Annotated[str, typer.Argument(help="The name of an experiment, or a YAML file.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The folder of the run; an interrupted run resumes."),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option(
            "--collection",
            help=(
                "Use this collection (a name or a folder) instead of the file's. Fair RAG "
                "takes several."
            ),
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="Use this model instead of the file's. Fair RAG and rankers take several.",
        ),
    ] = None,
    attribute: Annotated[
        str | None,
        typer.Option("--attribute", help="Measure by this attribute instead of the file's."),
    ] = None,
    protected: Annotated[
        str | None,
        typer.Option(
            "--protected", help="Rankers, FA*IR and DELTR: the protected group of the attribute."
        ),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option("--words", help="Rankers: what to call the two groups, such as women,men."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=(
                "Change any other value of the file, for example topics=5; '--set help' "
                "lists those of this experiment."
            ),
        ),
    ] = None,
    labels: Annotated[
        list[Path] | None,
        typer.Option(
            "--labels",
            help="Fair RAG: take labels from a table, such as the authors of the paper released.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            min=1,
            help=(
                "How many searches, questions or pairs run at a time; use 1 to measure "
                "times. [default: 2]"
            ),
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            help="Where the work runs, if not in this process: ray://local or ray://HOST:PORT.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help="A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]"
        ),
    ] = None,
    small: Annotated[
        bool,
        typer.Option(
            "--small", help="Run its small form: less of everything, for a first answer in minutes."
        ),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write the report when the run is done.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help=(
                "Run even if the model may be asked more than 2,000 times or read more than "
                "1,000,000 tokens; a tuning counts each training example as three questions."
            ),
        ),
    ] = False,
) -> None:
    """Run an experiment; an interrupted run resumes."""
    from fairqr.evaluation.experiments import catalogue
    from fairqr.evaluation.experiments.workers import RunOptions

    file = catalogue.read_experiment(experiment)
    kind = file.kind
    assignments = set_ or []
    if "help" in assignments:
        explain([kind.spec])
        return
    if output is None:
        raise InputError("An experiment needs a folder for its results; name one with -o.")
    if labels and kind != catalogue.KINDS[catalogue.FAIR_RAG]:
        raise InputError("Only an experiment on Fair RAG takes --labels; leave it out.")
    library("pandas", "Measuring a run")
    # An option is another way to set what the file calls by its own name.
    by_options = [f"{kind.collections}={name}" for name in collection or []]
    by_options += [f"{kind.models}={name}" for name in model or []]
    groups = {kind.attribute: attribute, "protected": protected, "words": words}
    for name, value in groups.items():
        if value is not None:
            by_options.append(f"{name}={value}")
    changes = read_parameters([kind.spec], [*by_options, *assignments])

    with Progress() as watcher:
        options = RunOptions(
            output,
            watcher,
            PromptLibrary(prompts),
            workers,
            concurrency,
            labels=labels or [],
            agree=partial(agree, yes=yes),
        )
        run(kind.code.run(file.spec(changes, small=small), options))
    if report:
        write_report(output)
    else:
        catalogue.load_experiment(output).write(output)
        typer.echo(f"done: {output}; 'fairqr experiment report {output}' writes the report")


@command(experiment, "report")
def write_report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
) -> None:
    """Write the report of an experiment: report.md, and report.html in one file with its plots."""
    from fairqr.evaluation.experiments.catalogue import load_experiment

    paths = load_experiment(folder).write_report(folder)
    for path in paths:
        typer.echo(f"written: {path}")


def train(
    method: Annotated[str, typer.Argument(help="The re-ranker to train: deltr or dlf.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file of weights to write.")],
    collection: Annotated[
        str,
        typer.Option("--collection", help="A collection with judgements: its name or its folder."),
    ] = NOTABLES,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", help="Which judgements to use, if there are several sets: train or eval."
        ),
    ] = None,
    attribute: Annotated[
        str,
        typer.Option(
            "--attribute", help="The attribute to be fair about; gender×continent for a product."
        ),
    ] = "gender",
    depth: Annotated[
        int, typer.Option("--depth", min=1, help="How many documents of each topic to train on.")
    ] = 200,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help=(
                "The target of the searches, which see no judgements; as in a search by default."
            ),
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="An option of the training, such as gamma=1000."),
    ] = None,
    protected: Annotated[
        str | None,
        typer.Option(
            "--protected",
            help=(
                "The groups that deltr protects, such as female, 'not Europe' or "
                "continent=Africa,Asia; all for every group that lacks exposure."
            ),
        ),
    ] = None,
    retriever: Annotated[
        str, typer.Option("--retriever", help="How to find documents, as in fairqr search.")
    ] = "auto",
) -> None:
    """Train a re-ranker on the judgements of a collection.

    Its weights serve searches for other topics: fairqr search --method deltr --set
    options.weights=FILE.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments import training
    from fairqr.graph.search.context import Context
    from fairqr.retrieval.fairness.dimension import factors_of

    if method not in training.TRAINED:
        methods = " or ".join(training.TRAINED)
        raise InputError(f"The re-ranker '{method}' cannot be trained; choose {methods}.")
    assignments = [*(option or [])]
    if protected:
        assignments.append(f"protected={protected}")
    options_model, _ = training.TRAINED[method]
    options = read_parameters([options_model], assignments)
    judged = find_collection(collection, split)
    factors = factors_of(attribute)
    context = Context.of(attributes=factors, intersect=len(factors) > 1, target=target)
    corpus = CorpusSettings(corpus=judged.corpus_name, retriever=retriever)

    async def work() -> None:
        async with corpus.open_engine() as engine:
            topics = {topic.id: topic.text(0) for topic in judged.topics}
            examples = await training.gather(engine, topics, judged.qrels, context, depth=depth)
            model = await training.train(method, examples, list(topics), options)
        model.save(output)
        typer.echo(f"trained on {model.topics} topics: {output}")

    run(work())


@command(attribution)
def check(
    pairs: Annotated[
        str,
        typer.Argument(
            help=(
                "A JSON Lines file of premise, hypothesis and entailed (true or false); or "
                "notables, for 200 pairs about the people of that corpus."
            )
        ),
    ],
    *,
    attributor: Annotated[
        str,
        typer.Option("--attributor", help="The attributor, as in 'fairqr answer --attributor'."),
    ] = "overlap",
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="The URL of an OpenAI-compatible server.")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Ask the model again what it was asked before.")
    ] = False,
) -> Printed:
    """Measure an attributor on labelled pairs: its accuracy and its mistakes.

    The result is kept; other commands warn about an attributor that was never checked.
    """
    from fairqr.agents.attribution.checking import LabelledPair, check_attributor, remember
    from fairqr.agents.attribution.opening import open_attributor
    from fairqr.evaluation.collections.collection import read_lines
    from fairqr.retrieval.sources.corpus import BUILT_IN

    options: dict[str, Any] = {"base_url": base_url} if base_url else {}
    judge = open_attributor(attributor, cache=not no_cache, **options)
    file = Path(pairs)
    if pairs == NOTABLES:
        file = BUILT_IN[NOTABLES] / "pairs.jsonl"
    labelled_pairs = [*read_lines(file, LabelledPair)]
    outcome = run(check_attributor(judge, labelled_pairs, source=Path(pairs).name))
    remember(outcome)

    facts = {
        "pairs": outcome.pairs,
        "of": outcome.source,
        "judged": outcome.judged,
        **outcome.failures,
        **outcome.confusion,
    }
    data = {**outcome.model_dump(), "sentence": outcome.sentence}
    return Printed(data, [*fact_lines(facts), outcome.sentence])
