"""What was compared, with what, and what did not go as planned."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from fairqr.evaluation.experiments.measuring import Measured
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.effort import at_once
from fairqr.evaluation.experiments.report.naming import title_of
from fairqr.evaluation.experiments.report.parts import Block, Cell, Heading, Items, Paragraph
from fairqr.evaluation.experiments.specification import Experiment, System
from fairqr.evaluation.experiments.store import Record
from fairqr.evaluation.measures.text import parse_measures
from fairqr.graph.search.context import METHODS

__all__ = ["completeness_section", "intro", "setup_section"]

MOST_WARNINGS = 20
_NUMBERS = re.compile(r"(?<!\w)[0-9]+(?:[.,][0-9]+)*(?!\w)")


def intro(measured: Measured) -> Iterator[Block]:
    """Yield what is asked, and on what."""
    manifest = measured.manifest
    if manifest.experiment.about:
        yield Paragraph(manifest.experiment.about)
    attributes = " and ".join(manifest.attributes)
    yield Paragraph(
        f"Measured for {attributes} on {numbers.count(len(manifest.topics), 'topic')} of "
        f"{manifest.collection_title}. {manifest.collection_note}"
    )


def setup_section(measured: Measured) -> Iterator[Block]:
    """Yield what was compared and how it was measured."""
    manifest = measured.manifest
    experiment = manifest.experiment
    relevant = [
        [d for d, grade in judged.items() if grade > 0] for judged in measured.qrels.values()
    ]
    distinct = len({document for documents in relevant for document in documents})
    yield Heading("How it was measured")
    facts = {
        "collection": f"{manifest.collection_title} ({manifest.collection})",
        "judgements": experiment.split
        or "the only ones of the collection, or those without a name",
        "topics": f"{len(manifest.topics)}",
        "documents": f"{measured.scan.documents:,}",
        "judged relevant": f"{sum(map(len, relevant)):,} pairs of topic and document, "
        f"{distinct:,} documents",
        "documents returned (k)": f"{experiment.k}",
        "measured against": f"{manifest.judge}, a target that knows the judgements",
        "target of the searches": f"{experiment.target}, estimated without judgements",
        "model": experiment.model,
        "searched": experiment.corpus or "the collection's documents, indexed here",
        "seeds": ", ".join(map(str, experiment.seeds)),
        "begun": manifest.started,
        "searches at once": at_once(measured),
        **{f"prompt {name}": f"sha256 {digest}" for name, digest in manifest.prompts.items()},
        **{f"sha256 of {name}": digest for name, digest in manifest.fingerprints.items()},
        "versions": ", ".join(f"{name} {v}" for name, v in manifest.versions.items()),
    }
    rows = tuple((Cell(name), Cell(text)) for name, text in facts.items())
    yield parts.Table("What the experiment was run with.", ("", "value"), rows)
    yield parts.Table(
        "The measures. Each has a value for each topic, and a mean is over the topics with one; "
        "over the seeds of a topic the mean is taken first. Intervals are Student's, "
        "and are given from 6 topics on.",
        ("measure", "what it is", "range", "which end is best"),
        tuple(
            (Cell(str(m)), Cell(m.summary), Cell(m.range), Cell(m.best))
            for m in parse_measures(experiment.measures)
        ),
    )
    yield parts.Table(
        "The systems.",
        ("system", "method", "retriever", "asks", "settings"),
        tuple(
            _system_row(experiment, system, len(manifest.topics))
            for system in experiment.all_systems()
        ),
    )


def _system_row(experiment: Experiment, system: System, topics: int) -> tuple[Cell, ...]:
    settings = [f"{name}={value}" for name, value in system.settings.items()]
    if system.train:
        folds = min(system.train.folds, topics)
        settings.append(f"trained by cross-validation in {folds} folds")
        settings += [f"{name}={value}" for name, value in system.train.options.items()]
    return (
        Cell(system.name),
        Cell(f"{system.method}: {METHODS[system.method].about}"),
        Cell(_searched_by(experiment, system)),
        Cell(_asked(experiment, system)),
        Cell(", ".join(settings) or "the method's own"),
    )


def _searched_by(experiment: Experiment, system: System) -> str:
    corpus = experiment.corpus_of(system)
    return f"{system.retriever}, {corpus}" if corpus else system.retriever


def _asked(experiment: Experiment, system: System) -> str:
    """Say what refines queries, or re-ranks documents."""
    model = system.model or experiment.model
    parts = [model] if system.asks_a_model else []
    if system.ranker:
        by_itself = system.ranker in ("monot5", "monobert")
        parts.append(system.ranker if by_itself else f"{system.ranker} re-ranking by {model}")
    return ", ".join(parts) or "nothing"


def completeness_section(measured: Measured) -> Iterator[Block]:
    """Yield what is missing, failed, or was warned of."""
    yield Heading("What is missing, and what failed")
    sentences = [*measured.manifest.notes, *_unfinished(measured), *_on_judgements(measured)]
    yield Items(tuple(sentences or ["Every system has searched for every topic."]))
    stops = list(
        dict.fromkeys(r.stop_reason for _, _, found in _all(measured) for r in found if not r.error)
    )
    rows = []
    for where, name, found in _all(measured):
        reasons = Counter(record.stop_reason for record in found if not record.error)
        cells = [
            len(found),
            sum(bool(r.error) for r in found),
            sum(bool(r.warnings) for r in found),
        ]
        counts = [Cell(str(number)) for number in (*cells, *(reasons[stop] for stop in stops))]
        rows.append((Cell(name), Cell(where), *counts))
    yield parts.Table(
        "How searches ended. A search that failed found nothing: it counts as 0 in measures of "
        "relevance, and has no value in measures of groups. Where the model failed, the search "
        "went on with what it had until then.",
        (
            "system",
            "for",
            "searches",
            "failed",
            "with warnings",
            *(f"ended: {stop.replace('_', ' ')}" for stop in stops),
        ),
        tuple(rows),
    )
    told = Counter(
        _NUMBERS.sub("#", text)
        for _, _, found in _all(measured)
        for record in found
        for text in (*record.warnings, *filter(None, [record.error]))
    )
    if told:
        yield Paragraph("What was warned of, and how often; # stands for any number:")
        listed = [f"{times} × {text}" for text, times in told.most_common(MOST_WARNINGS)]
        if len(told) > MOST_WARNINGS:
            listed.append(f"and {len(told) - MOST_WARNINGS} others, in results.jsonl.")
        yield Items(tuple(listed))


def _all(measured: Measured) -> list[tuple[str, str, Sequence[Record]]]:
    return [
        (title_of(table), name, records)
        for table in measured.tables
        for name, records in table.records.items()
    ]


def _unfinished(measured: Measured) -> Iterator[str]:
    experiment = measured.manifest.experiment
    systems = {system.name: system for system in experiment.all_systems()}
    for table in measured.tables:
        for name, missing in table.unfinished.items():
            system = systems[name]
            corpus = experiment.corpus_of(system)
            seeds = len(experiment.seeds) if system.asks_a_model else 1
            text = f"{title_of(table)}: '{name}' is left out of all tables and means"
            if corpus and missing == seeds * len(measured.manifest.topics):
                yield (
                    f"{text}: nothing was searched for. It needs the corpus '{corpus}'; attach it, "
                    "and running the experiment again adds the system."
                )
            else:
                yield (
                    f"{text}: {numbers.count(missing, 'search', 'searches')} still to be done; "
                    "running the experiment again goes on with them."
                )


def _on_judgements(measured: Measured) -> Iterator[str]:
    """Yield what evaluations note of the collection, and of topics that nothing was found for."""
    wanted = ("unknown_relevant", "unknown_documents", "graded", "no_relevant", "missing_queries")
    found = [
        note.sentence
        for table in measured.tables
        for evaluation in table.evaluations.values()
        for note in evaluation.notes
        if note.kind in wanted
    ]
    yield from dict.fromkeys(found)
