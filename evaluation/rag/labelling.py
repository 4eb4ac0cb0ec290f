"""Labels of utility: which documents of a query's pool help a generator.

The utility of the answer that saw one document alone, less that of the answer that saw none (the
Fair RAG paper, §3.1): a document is useful where this gain is positive. So labels belong to a task
and a generator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairqr.agents.cache import ReplyFile
from fairqr.agents.generators import open_generator
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.at_once import all_of
from fairqr.evaluation.experiments.care import Cautious
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.rag.answering import Answerer, Spent
from fairqr.evaluation.rag.collection import RagCollection, RagQuery
from fairqr.evaluation.rag.records import LabelRecord
from fairqr.evaluation.rag.store import LabelManifest, LabelStore
from fairqr.evaluation.versions import now, versions_of
from fairqr.prompts.template import PromptTemplate

__all__ = [
    "check_labels",
    "check_pools",
    "label_collection",
    "label_manifest",
    "label_queries",
    "labelling_calls",
    "take_labels",
]


def label_manifest(
    collection: RagCollection, generator: str, prompt: PromptTemplate, pool: int | None
) -> LabelManifest:
    """Return what the labels of a collection are made with.

    Args:
        collection: Which one.
        generator: As it is named in results.
        prompt: Which asks for answers.
        pool: At most so many documents of each query are looked at; None for all.
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
        versions=versions_of(),
        started=now(),
    )


def labelling_calls(queries: Sequence[RagQuery]) -> int:
    """Return how many answers labels need: one without documents, and one with each alone."""
    return sum(1 + len(query.pool) for query in queries)


async def label_collection(
    collection: RagCollection,
    generator: str,
    prompt: PromptTemplate,
    store: LabelStore,
    *,
    pool: int | None,
    watcher: StageWatcher,
    at_once: int = 4,
) -> list[LabelRecord]:
    """Label a collection into a folder of its own, but for the queries that have labels there.

    Args:
        collection: Whose queries.
        generator: As :func:`fairqr.agents.generators.open_generator` takes it.
        prompt: Which asks for answers.
        store: Where labels go; locked while this runs.
        pool: At most so many documents of each query are in the collection; None for all.
        watcher: Told of each answer.
        at_once: How many queries may be under way at the same time.

    Raises:
        ModelUnavailableError: The generator is not there; nothing is written then.
        ModelError: It fails all the time; whole queries that were labelled are kept.
        InputError: The folder holds something else.
    """
    with store.locked():
        opened = open_generator(generator, cache=ReplyFile(store.replies))
        await opened.start()
        store.begin(label_manifest(collection, generator, prompt, pool))
        answerer = Answerer(opened, collection.task, prompt)
        return await label_queries(
            collection.queries, answerer, store, watcher=watcher, at_once=at_once
        )


async def label_queries(
    queries: Sequence[RagQuery],
    answerer: Answerer,
    store: LabelStore,
    *,
    watcher: StageWatcher,
    at_once: int = 4,
) -> list[LabelRecord]:
    """Label the queries that have no labels yet.

    Args:
        queries: Which are to have labels.
        answerer: What is asked.
        store: Where labels go; begun, and locked by the caller.
        watcher: Told of each answer.
        at_once: How many queries may be under way at the same time.

    Returns:
        The labels, in the order of the queries.

    Raises:
        ModelError: The generator fails all the time; whole queries that were labelled are kept.
    """
    done = {label.query: label for label in store.lines.read()}
    todo = [query for query in queries if query.id not in done]
    calls = labelling_calls(queries)
    manifest = store.manifest()
    watcher.stage(
        f"{manifest.collection}, {manifest.generator}: labels",
        calls,
        calls - labelling_calls(todo),
    )

    async def one(query: RagQuery) -> None:
        label = await _label(query, answerer, watcher)
        kept.add(label, has_failures=bool(label.failures))
        done[query.id] = label

    kept = Cautious(store.lines, answerer.patience)
    with kept.writing():
        await all_of(todo, one, at_once)
    return [done[query.id] for query in queries]


async def _label(query: RagQuery, answerer: Answerer, watcher: StageWatcher) -> LabelRecord:
    spent = Spent()
    failures: Counter[str] = Counter()

    async def utility(ranking: Sequence[int]) -> float | None:
        answered = await answerer.answer(query, ranking)
        spent.add(answered.spent)
        if answered.utility is None:
            failures[answered.generation.status] += 1
        watcher.advance()
        return answered.utility

    without = await utility(())
    gains: dict[str, float | None] = {document.id: None for document in query.pool}
    if without is None:
        # No gain can be told, and the query will be dropped.
        watcher.advance(len(query.pool))
    else:
        for place, document in enumerate(query.pool):
            alone = await utility((place,))
            gains[document.id] = None if alone is None else alone - without
    return LabelRecord(
        query=query.id,
        without=without,
        gains=gains,
        failures=dict(failures),
        model_calls=spent.model_calls,
        tokens=spent.tokens,
        milliseconds=round(spent.milliseconds, 1),
    )


def check_labels(given: LabelStore, wanted: LabelManifest) -> None:
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
            raise InputError(
                f"The labels in {given.folder} are {difference}; make them anew with "
                "'fairqr lamp label', or leave them out."
            )


def check_pools(folder: Path, queries: Sequence[RagQuery]) -> None:
    """Check that labels have looked at all documents of the queries that they are of.

    Args:
        folder: Of the labels.
        queries: Which need labels; those that the folder lacks are labelled later.

    Raises:
        InputError: A query has documents that were not looked at, or a line is damaged.
    """
    given = {label.query: label for label in LabelStore(folder).lines.read()}
    for query in queries:
        label = given.get(query.id)
        if label and (unknown := [d.id for d in query.pool if d.id not in label.gains]):
            raise InputError(
                f"The labels in {folder} have nothing about {len(unknown)} documents of the "
                f"query '{one_line(query.id)}'; make them with a --pool of {len(query.pool)} or "
                "more."
            )


def take_labels(folder: Path, queries: Sequence[RagQuery], store: LabelStore) -> None:
    """Copy given labels into a folder that was begun, those of these queries alone.

    Args:
        folder: Of the labels, which were checked.
        queries: Which need labels; those without are labelled later.
        store: Where they go; what is there already stays.

    Raises:
        InputError: A query has documents that were not looked at.
    """
    check_pools(folder, queries)
    given = {label.query: label for label in LabelStore(folder).lines.read()}
    there = {label.query for label in store.lines.read()}
    with store.lines.writing():
        for query in queries:
            label = given.get(query.id)
            if label is None or query.id in there:
                continue
            gains = {document.id: label.gains[document.id] for document in query.pool}
            store.lines.add(label.model_copy(update={"gains": gains}))
