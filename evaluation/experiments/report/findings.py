"""What the numbers say of the systems named "ours": computed, whatever it is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairqr.evaluation.comparison import Comparison, Comparisons, compare
from fairqr.evaluation.experiments.measuring import Measured, Table
from fairqr.evaluation.experiments.report import numbers
from fairqr.evaluation.experiments.report.naming import (
    common_topics,
    headings,
    is_ours,
    roles_of,
    title_of,
)
from fairqr.evaluation.experiments.report.parts import Block, Heading, Items, Paragraph
from fairqr.evaluation.experiments.specification import Experiment, System

__all__ = ["findings_section"]

FEEDBACK = "feedback"
OF_THE_MODEL = ("budget", "max_iterations", "patience", "prompts", "temperature")


def findings_section(measured: Measured) -> Iterator[Block]:
    """Yield which system is best, and what a model adds to ours; nothing where none is ours."""
    experiment = measured.manifest.experiment
    if not any(is_ours(system.name) for system in experiment.all_systems()):
        return
    sentences = [
        sentence
        for table in measured.tables
        if table.evaluations
        for sentence in (_best(experiment, table), *_added(experiment, table))
    ]
    if sentences:
        yield Heading("In short")
        yield Paragraph(
            "Computed from the results, by the paired randomisation test, corrected by Holm for "
            "all measures and systems that are compared with the same one. The systems whose name "
            "begins with “ours” are this project's own method."
        )
        yield Items(tuple(sentences))


def _best(experiment: Experiment, table: Table) -> str:
    """Say which system has the best mean, over topics that all systems have a value for."""
    main = roles_of(table).main
    topics = common_topics(table, main)
    name = headings(experiment, table)[main]
    if not topics:
        return f"{title_of(table)}: no topic has a value of all systems, so none is the best."
    results = {system: evaluation.results[main] for system, evaluation in table.evaluations.items()}
    means = {
        system: float(np.mean([result.defined()[topic] for topic in topics]))
        for system, result in results.items()
    }
    up = next(iter(results.values())).measure.higher_is_better is not False

    def goodness(system: str) -> float:
        return means[system] if up else -means[system]

    best = max(means, key=goodness)
    over = (
        numbers.count(len(topics), "topic")
        if all(result.count == len(topics) for result in results.values())
        else f"the {numbers.count(len(topics), 'topic')} that all systems have a value for"
    )
    text = (
        f"{title_of(table)}: of {numbers.count(len(means), 'system')} '{best}' has the best mean "
        f"of {name}, {numbers.value(means[best])} over {over}"
    )
    baseline = experiment.baseline
    if baseline in means and best != baseline:
        text += f"; {baseline} has {numbers.value(means[baseline])}"
    ours = [system for system in means if is_ours(system)]
    if ours and not is_ours(best):
        first = max(ours, key=goodness)
        text += f". The best of ours is '{first}' with {numbers.value(means[first])}"
    return text + "."


def _added(experiment: Experiment, table: Table) -> Iterator[str]:
    """Yield what language models add over feedback, and over no refinement."""
    ours = [
        system
        for system in experiment.all_systems()
        if is_ours(system.name) and system.name in table.evaluations
    ]
    main = roles_of(table).main
    for reference in ours:
        if reference.asks_a_model and _model(experiment, reference) != FEEDBACK:
            continue
        others = [
            system
            for system in ours
            if system.asks_a_model
            and _model(experiment, system) != FEEDBACK
            and _ground(experiment, system) == _ground(experiment, reference)
        ]
        if not others:
            continue
        compared = compare(
            table.evaluations[reference.name],
            [table.evaluations[system.name] for system in others],
        )
        over = "feedback, which asks no model" if reference.asks_a_model else "no refinement at all"
        for row in compared.rows:
            if str(row.measure) == main:
                name = headings(experiment, table)[main]
                yield f"{title_of(table)}: {_sentence(compared, row, name, over)}"


def _sentence(compared: Comparisons, row: Comparison, name: str, over: str) -> str:
    if row.difference is None:
        return f"no topic has a value of both '{row.run}' and '{row.baseline}'."
    better = row.measure.higher_is_better is not False
    if not row.holds(compared.alpha):
        verdict = "that is no difference that can be told from chance"
    elif (row.difference > 0) == better:
        verdict = "the difference holds: the model adds to it"
    else:
        verdict = "the difference holds: the model takes away from it"
    span = numbers.span(row.interval)
    return (
        f"over {over} ('{row.baseline}'), the language model of '{row.run}' changes {name} by "
        f"{numbers.difference(row.difference)}{f' {span}' if span else ''} "
        f"(p = {numbers.p_value(row.randomisation_corrected)}, "
        f"{numbers.count(row.count, 'topic')}); {verdict}."
    ).replace("p = <", "p <")


def _model(experiment: Experiment, system: System) -> str:
    return system.model or experiment.model


def _ground(experiment: Experiment, system: System) -> tuple[object, ...]:
    """Return what two systems must share for their difference to be the model's.

    That is all but the model, and what says how and how often it is asked.
    """
    others = {name: value for name, value in system.settings.items() if name not in OF_THE_MODEL}
    settings = sorted((name, repr(value)) for name, value in others.items())
    corpus = experiment.corpus_of(system)
    return system.method, system.retriever, corpus, tuple(settings)
