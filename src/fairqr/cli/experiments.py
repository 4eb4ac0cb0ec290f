"""The commands ``fairqr experiment``, ``train`` and ``attribution``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fairqr.base.errors import InputError
from fairqr.base.extras import library
from fairqr.cli.common import NOTABLES, Searched, agree, run
from fairqr.cli.options import Count, command, explain, read_parameters
from fairqr.cli.output import Printed, Progress, fact_lines, print_file
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
def show(experiment: str) -> None:
    """Print the file of an experiment, to change a copy of it.

    Args:
        experiment: The name of an experiment, or a YAML file.
    """
    from fairqr.evaluation.experiments.catalogue import read_experiment

    print_file(read_experiment(experiment).path)


@command(experiment, "run")
def run_experiment(
    experiment: str,
    *,
    output: Path | None = None,
    collection: list[str] | None = None,
    model: list[str] | None = None,
    attribute: str | None = None,
    protected: str | None = None,
    words: str | None = None,
    set_: list[str] | None = None,
    labels: list[Path] | None = None,
    concurrency: Annotated[int | None, {"min": 1}] = None,
    workers: str | None = None,
    prompts: Path | None = None,
    small: bool = False,
    report: bool = False,
    yes: bool = False,
) -> None:
    """Run an experiment; an interrupted run resumes.

    Args:
        experiment: The name of an experiment, or a YAML file.
        output: The folder of the run; an interrupted run resumes.
        collection: Use this collection (a name or a folder) instead of the file's. Fair RAG takes
            several.
        model: Use this model instead of the file's. Fair RAG and rankers take several.
        attribute: Measure by this attribute instead of the file's.
        protected: Rankers, FA*IR and DELTR: the protected group of the attribute.
        words: Rankers: what to call the two groups, such as women,men.
        set_: Change any other value of the file, for example topics=5; '--set help' lists those of
            this experiment.
        labels: Fair RAG: take labels from a table, such as the authors of the paper released.
        concurrency: How many searches, questions or pairs run at a time; use 1 to measure times.
            [default: 2]
        workers: Where the work runs, if not in this process: ray://local or ray://HOST:PORT.
        prompts: A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]
        small: Run its small form: less of everything, for a first answer in minutes.
        report: Write the report when the run is done.
        yes: Run even if the model may be asked more than 2,000 times or read more than 1,000,000
            tokens; a tuning counts each training example as three questions.
    """
    from fairqr.evaluation.experiments import catalogue
    from fairqr.evaluation.experiments.workers import RunOptions

    file = catalogue.read_experiment(experiment)
    kind = file.kind
    if "help" in (set_ or []):
        explain([kind.spec])
        return
    if output is None:
        raise InputError("An experiment needs a folder for its results; name one with -o.")
    if labels and kind != catalogue.KINDS[catalogue.FAIR_RAG]:
        raise InputError("Only an experiment on Fair RAG takes --labels; leave it out.")
    library("pandas", "Measuring a run")
    named = [f"{kind.collections}={name}" for name in collection or []]
    named += [f"{kind.models}={name}" for name in model or []]
    groups = {kind.attribute: attribute, "protected": protected, "words": words}
    named += [f"{name}={value}" for name, value in groups.items() if value is not None]
    changes = read_parameters([kind.spec], [*named, *(set_ or [])])
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
def write_report(folder: Path) -> None:
    """Write the report of an experiment: report.md, and report.html in one file with its plots.

    Args:
        folder: The folder of a run.
    """
    from fairqr.evaluation.experiments.catalogue import load_experiment

    for path in load_experiment(folder).write_report(folder):
        typer.echo(f"written: {path}")


def train(
    method: str,
    *,
    output: Path,
    collection: str = NOTABLES,
    split: str | None = None,
    attribute: str = "gender",
    depth: Count = 200,
    target: str | None = None,
    option: list[str] | None = None,
    protected: str | None = None,
    retriever: str = "auto",
) -> None:
    """Train a re-ranker on the judgements of a collection.

    Its weights serve searches for other topics: fairqr search --method deltr --set
    options.weights=FILE.

    Args:
        method: The re-ranker to train: deltr or dlf.
        output: The file of weights to write.
        collection: A collection with judgements: its name or its folder.
        split: Which judgements to use, if there are several sets: train or eval.
        attribute: The attribute to be fair about; gender×continent for a product.
        depth: How many documents of each topic to train on.
        target: The target of the searches, which see no judgements; as in a search by default.
        option: An option of the training, such as gamma=1000.
        protected: The groups that deltr protects, such as female, 'not Europe' or
            continent=Africa,Asia; all for every group that lacks exposure.
        retriever: How to find documents, as in fairqr search.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.experiments import training
    from fairqr.graph.search.context import Context
    from fairqr.retrieval.fairness.dimension import factors_of

    if method not in training.TRAINED:
        known = " or ".join(training.TRAINED)
        raise InputError(f"The re-ranker '{method}' cannot be trained; choose {known}.")
    given = [*(option or []), *([f"protected={protected}"] if protected else [])]
    options = read_parameters([training.TRAINED[method][0]], given)
    found = find_collection(collection, split)
    factors = factors_of(attribute)
    context = Context.of(attributes=factors, intersect=len(factors) > 1, target=target)

    async def work() -> None:
        async with Searched(corpus=found.corpus_name, retriever=retriever).opened() as engine:
            topics = {topic.id: topic.text(0) for topic in found.topics}
            examples = await training.gather(engine, topics, found.qrels, context, depth=depth)
            model = await training.train(method, examples, list(topics), options)
        model.save(output)
        typer.echo(f"trained on {model.topics} topics: {output}")

    run(work())


@command(attribution)
def check(
    pairs: str, *, attributor: str = "overlap", base_url: str | None = None, no_cache: bool = False
) -> Printed:
    """Measure an attributor on labelled pairs: its accuracy and its mistakes.

    The result is kept; other commands warn about an attributor that was never checked.

    Args:
        pairs: A JSON Lines file of premise, hypothesis and entailed (true or false); or notables,
            for 200 pairs about the people of that corpus.
        attributor: The attributor, as in 'fairqr answer --attributor'.
        base_url: The URL of an OpenAI-compatible server.
        no_cache: Ask the model again what it was asked before.
    """
    from fairqr.agents.attribution.checking import LabelledPair, check_attributor, remember
    from fairqr.agents.attribution.opening import open_attributor
    from fairqr.evaluation.collections.collection import read_lines
    from fairqr.retrieval.sources.corpus import BUILT_IN

    options: dict[str, Any] = {"base_url": base_url} if base_url else {}
    judge = open_attributor(attributor, cache=not no_cache, **options)
    file = BUILT_IN[NOTABLES] / "pairs.jsonl" if pairs == NOTABLES else Path(pairs)
    labelled = [*read_lines(file, LabelledPair)]
    outcome = run(check_attributor(judge, labelled, source=Path(pairs).name))
    remember(outcome)
    told = {"pairs": outcome.pairs, "of": outcome.source, "judged": outcome.judged}
    lines = [*fact_lines({**told, **outcome.failures, **outcome.confusion}), outcome.sentence]
    return Printed({**outcome.model_dump(), "sentence": outcome.sentence}, lines)
