"""Labels of utility: which documents of a query's pool help a generator.

The gain of a document is the utility of the answer that saw it alone, less the utility of the
answer that saw none (the Fair RAG paper, §3.1). It is useful if its gain is positive. So labels
belong to a task and a generator.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import (
    Sequence,
)
from pathlib import Path
from typing import Any

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.experiments.engine import Done, refusal_of
from fairqr.evaluation.experiments.workers import Tools
from fairqr.evaluation.rag.answering import Asked, open_answerer
from fairqr.evaluation.rag.collection import RagCollection, RagQuery
from fairqr.evaluation.rag.store import GenerationLabels, LabelManifest, LabelRecord
from fairqr.prompts.template import PromptTemplate

NO_BASELINE = "the answer without documents failed"
"""Why a query without any known gain is dropped."""


def useful_ids(label: LabelRecord) -> frozenset[str]:
    """Return the ids of the documents whose gain is positive."""
    return frozenset(id_ for id_, gain in label.gains.items() if gain is not None and gain > 0)


def useful_positions(query: RagQuery, label: LabelRecord) -> tuple[int, ...]:
    """Return the places of the useful documents in the pool of a query."""
    useful = useful_ids(label)
    return tuple(place for place, document in enumerate(query.pool) if document.id in useful)


def why_dropped(label: LabelRecord, min_useful: int) -> str | None:
    """Return why an experiment leaves a query out, or None if it keeps it."""
    if label.without is None:
        return NO_BASELINE
    if len(useful_ids(label)) < min_useful:
        return f"fewer than {min_useful} useful documents"
    return None


def summarise_labels(labels: Sequence[LabelRecord], min_useful: int = 2) -> dict[str, Any]:
    """Describe labels, as in Appendix D of the Fair RAG paper.

    Args:
        labels: One for each query.
        min_useful: Queries with fewer useful documents count as dropped.

    Returns:
        How many queries are ``labelled``; how many of them are ``kept``, since they have enough
        useful documents, and of these how many ``documents`` their pools hold together, how many
        are ``unlabelled``, since the generator failed, how many are ``useful``, ``useful_mean`` per
        query with its sample standard deviation ``useful_sd``, and the ``share`` of useful ones
        among those with a gain; and why queries were ``dropped``, with how many. None where there
        is no such number.
    """
    reasons = [why_dropped(label, min_useful) for label in labels]
    kept = [label for label, reason in zip(labels, reasons, strict=True) if reason is None]
    counts = [len(useful_ids(label)) for label in kept]
    gains = [gain for label in kept for gain in label.gains.values()]
    known = sum(gain is not None for gain in gains)
    return {
        "labelled": len(labels),
        "kept": len(kept),
        "documents": len(gains),
        "unlabelled": len(gains) - known,
        "useful": sum(counts),
        "useful_mean": statistics.fmean(counts) if counts else None,
        "useful_sd": statistics.stdev(counts) if len(counts) > 1 else None,
        "share": sum(counts) / known if known else None,
        "dropped": dict(Counter(filter(None, reasons))),
    }


def label_manifest(
    collection: RagCollection, generator: str, prompt: PromptTemplate, pool: int | None
) -> LabelManifest:
    """Return the settings of the labels of a collection.

    Args:
        collection: The documents and questions.
        generator: Its name in results.
        prompt: Asks for answers.
        pool: How many documents of each query to look at; None for all.
    """
    return LabelManifest(
        collection=collection.name,
        title=collection.title,
        task=collection.task.name,
        utility=collection.task.utility.name,
        fingerprint=collection.fingerprint,
        pool=pool,
        generator=generator,
        prompt=f"{prompt.id}={prompt.version}",
        prompt_sha256=prompt.sha256,
    )


def labelling_calls(queries: Sequence[RagQuery]) -> int:
    """Return how many answers labels need: one without documents, and one with each alone."""
    return sum(1 + len(query.pool) for query in queries)


async def label_query(tools: Tools, asked: Asked, query: RagQuery) -> Done[LabelRecord]:
    """Label the documents of a query.

    Raises:
        ModelError: The generator was away.
    """
    answerer = await open_answerer(tools, asked)
    failures: Counter[str] = Counter()
    replies: list[tuple[str, str]] = []

    async def utility(ranking: Sequence[int]) -> float | None:
        reply, found = await answerer.answer(query, ranking)
        replies.append((reply.status, reply.message))
        if found is None:
            failures[reply.status] += 1
        return found

    without = await utility(())
    gains: dict[str, float | None] = {document.id: None for document in query.pool}
    # Without it no gain is known, and the query will be dropped.
    if without is not None:
        for place, document in enumerate(query.pool):
            alone = await utility((place,))
            gains[document.id] = None if alone is None else alone - without
    record = LabelRecord(
        query=query.id,
        without=without,
        gains=gains,
        failures=dict(failures),
        **answerer.spent(),
    )
    return Done((record,), refusal=refusal_of(replies))


def check_labels(given: GenerationLabels, wanted: LabelManifest) -> None:
    """Check that labels are of the collection, the generator and the prompt that are meant.

    Raises:
        InputError: They are not, or were not made.
    """
    found = given.manifest()
    what = {
        "fingerprint": f"of other files than the collection '{wanted.collection}' has now",
        "task": f"of the task {found.task}, not of {wanted.task}",
        "utility": f"by {found.utility}, not by {wanted.utility}",
        "generator": f"of the generator {found.generator}, not of {wanted.generator}",
        "prompt_sha256": f"made with the prompt {found.prompt}, not with {wanted.prompt}",
    }
    if found.collection != wanted.collection:
        what["fingerprint"] = f"of '{found.collection}', not of '{wanted.collection}'"
    if found.prompt == wanted.prompt:
        what["prompt_sha256"] = f"made with another text of the prompt {wanted.prompt}"
    for name, difference in what.items():
        if getattr(found, name) != getattr(wanted, name):
            raise InputError(f"The labels in {given.folder} are {difference}; leave them out.")


def given_labels(folder: Path, queries: Sequence[RagQuery]) -> list[LabelRecord]:
    """Return the labels of a folder for these queries, cut to the documents of their pools.

    Args:
        folder: The folder of labels; its settings were checked.
        queries: The queries that need labels; those without any are labelled later.

    Raises:
        InputError: A query has documents that were not looked at, or a line is damaged.
    """
    labels = {label.query: label for label in GenerationLabels(folder).lines.read()}
    given = []
    for query in queries:
        if (label := labels.get(query.id)) is None:
            continue
        if unknown := [it.id for it in query.pool if it.id not in label.gains]:
            raise InputError(
                f"The labels in {folder} have nothing about {len(unknown)} documents of the "
                f"query '{one_line(query.id)}'; take labels of a run "
                f"with a pool of {len(query.pool)} or more."
            )
        gains = {document.id: label.gains[document.id] for document in query.pool}
        given.append(label.model_copy(update={"gains": gains}))
    return given
