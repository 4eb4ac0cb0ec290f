"""Building a probe collection from documents with judgements.

A query has as many relevant as irrelevant items, and of each as many of the protected group as of
the others, as in the collections of DELTR (Zehlike & Castillo 2020) that Wang et al. (2024, "Do
Large Language Models Rank Fairly?") ask about. What is irrelevant for a query is relevant for
another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np

from fairqr.agents.statistics import stream
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.probes.collection import (
    CELLS,
    ProbeCollection,
    ProbeItem,
    ProbeManifest,
    ProbeQuery,
)
from fairqr.evaluation.probes.specification import Order, ProbeExperiment, ProbeSource
from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.fairness.protected import ProtectedGroup
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import ProgressFunction

TELL_EVERY = 10_000


async def open_probe_collections(
    experiment: ProbeExperiment, *, texts: bool, watcher: StageWatcher
) -> tuple[list[ProbeCollection], list[str]]:
    """Build or read all collections of an experiment.

    A source whose attribute the collection lacks is left out, unless all are.

    Args:
        experiment: It names the collections. For those that were built, only the order and the
            number of queries count.
        texts: Whether items keep their texts.
        watcher: Receives the name of each step when it starts.

    Returns:
        The collections, and a sentence on each source that was left out.

    Raises:
        InputError: One is missing, damaged, or lacks what is named, or two have one name.
    """
    sources, notes, whole = experiment.sources, list[str](), None
    if named := [it for it in sources if it.attribute]:
        whole = await asyncio.to_thread(
            find_collection, str(experiment.collection), experiment.split
        )
        known = whole.corpus.schema.attributes
        lacking = [it for it in named if it.attribute not in known]
        if len(lacking) < len(sources):
            sources = tuple(it for it in sources if it not in lacking)
            notes = [
                f"Left out is '{one_line(it.attribute)}', which '{whole.name}' lacks; '--set "
                f"sources=ATTRIBUTE=GROUP' names one of {', '.join(known)}."
                for it in lacking
            ]
    collections = list[ProbeCollection]()
    for source in sources:
        order = experiment.order
        if whole is None or source.folder is not None:
            built = await asyncio.to_thread(ProbeCollection.read, Path(str(source.folder)))
            built = ProbeCollection.of(built.manifest, built.queries[: experiment.queries])
            order = order or built.manifest.order
        else:
            progress = watcher.count(f"reading {whole.name}")
            built = await asyncio.to_thread(
                draw_collection, whole, source, experiment, texts=texts, progress=progress
            )
        if order == "bm25" and built.manifest.order != order:
            engine = await _engine(built, watcher)
            try:
                built = await reorder(built, order, engine)
            finally:
                await engine.aclose()
        elif order != "bm25":
            built = await reorder(built, order or "shuffled")
        if built.manifest.name in (it.manifest.name for it in collections):
            raise InputError(
                f"Two probe collections are called '{one_line(built.manifest.name)}'; leave one of "
                "them out."
            )
        collections.append(built)
    return collections, notes


async def _engine(built: ProbeCollection, watcher: StageWatcher) -> SearchEngine:
    """Open an engine over the documents that a collection was built of."""
    manifest = built.manifest
    whole = await asyncio.to_thread(find_collection, manifest.source, manifest.split)
    if await asyncio.to_thread(source_fingerprint, whole) != manifest.source_fingerprint:
        raise InputError(
            f"The collection '{manifest.source}' has changed since the probe collection "
            f"'{manifest.name}' was built of it, so bm25 would rank other documents; build it "
            "again, or choose another order."
        )
    return await Catalog().resolve(
        whole.corpus_name, progress=lambda name: watcher.count(f"indexing {name}")
    )


def source_fingerprint(collection: Collection) -> str:
    """Return a hash that changes with the documents, their schema, the topics or the judgements.

    Raises:
        OSError: The documents cannot be read.
    """
    digest = hashlib.sha256(collection.corpus.fingerprint().encode())
    for topic in collection.topics:
        judged = sorted(collection.qrels.get(topic.id, {}).items())
        digest.update(json.dumps([topic.id, topic.title, topic.keywords, judged]).encode())
    return digest.hexdigest()


def draw_collection(
    collection: Collection,
    source: ProbeSource,
    experiment: ProbeExperiment,
    *,
    texts: bool = True,
    progress: ProgressFunction | None = None,
) -> ProbeCollection:
    """Draw documents for each cell of each topic; the order of the items is still to be chosen.

    What is relevant for any topic is a candidate for all: a relevant one for its own topics, an
    irrelevant one for the others. The draw of a cell depends on the seed, the topic's id and the
    candidates of this cell in the order of the corpus.

    Args:
        collection: With judgements. Its documents are read once; no more of them are held than are
            drawn.
        source: The protected groups of an attribute.
        experiment: How many queries and items, and drawn by which seed.
        texts: Keep texts beside titles.
        progress: Receives the number of documents read, now and then.

    Raises:
        InputError: No document that is relevant for any topic is on one of the sides.
        CorpusError: The documents cannot be read, or a line is not a document.
        UnknownAttributeError: The schema has no such attribute.
    """
    attribute = collection.corpus.schema.attribute(str(source.attribute))
    sides = ProtectedGroup.parse(attribute, str(source.protected), source.words)
    wanted: dict[str, set[str]] = {}
    for topic in collection.topics:
        for id_ in collection.relevant(topic.id):
            wanted.setdefault(id_, set()).add(topic.id)
    each, seed = experiment.size // len(CELLS), experiment.seed
    cells = {
        (topic.id, cell): _Reservoir(each, stream(seed, f"{topic.id} draw {cell}"))
        for topic in collection.topics
        for cell in CELLS
    }
    seen, count = Counter[int](), 0
    for count, document in enumerate(collection.corpus.documents(), start=1):
        if progress and not count % TELL_EVERY:
            progress(count)
        # Taken out, so that a document that occurs twice in the corpus is offered once.
        relevant_for = wanted.pop(document.id, None)
        if relevant_for is None:
            continue
        side = int(sides.sides_of([document.membership(attribute)])[0])
        seen[side] += 1
        # A ranker that reads titles has nothing to read of a document without one.
        text = document.text if texts or not document.title.strip() else ""
        kept = {"id": document.id, "title": document.title, "text": text, "protected": side == 1}
        items = [ProbeItem(**kept, relevant=is_relevant) for is_relevant in (False, True)]
        for topic in collection.topics if side >= 0 else ():
            item = items[topic.id in relevant_for]
            cells[topic.id, item.cell].offer(item)
    if progress:
        progress(count)
    for side, groups in enumerate((sides.unprotected, sides.protected)):
        if not seen[side]:
            raise InputError(
                f"No document that is relevant for a topic of '{collection.name}' belongs to "
                f"{' or '.join(groups)}; choose other groups of {sides.attribute}."
            )
    queries, without_relevant = list[ProbeQuery](), 0
    for topic in collection.topics:
        if len(queries) == experiment.queries:
            break
        drawn = [item for cell in CELLS for item in cells[topic.id, cell].kept]
        if any(item.relevant for item in drawn):
            queries.append(ProbeQuery(id=topic.id, query=topic.title, items=tuple(drawn)))
        else:
            without_relevant += 1
    manifest = ProbeManifest(
        name=f"{collection.name}, {sides.attribute}: {sides.words[0]}",
        source=experiment.collection or collection.name,
        split=collection.split,
        source_fingerprint=source_fingerprint(collection),
        attribute=sides.attribute,
        protected=sides.words[0],
        unprotected=sides.words[1],
        protected_groups=sides.protected,
        unprotected_groups=sides.unprotected,
        size=experiment.size,
        order="shuffled",
        seed=seed,
        texts=texts,
        dropped={"no_relevant_item": without_relevant} if without_relevant else {},
        undecided=seen[-1],
        missing=len(wanted),
    )
    return ProbeCollection.of(manifest, queries)


class _Reservoir:
    """A draw without replacement from items that come one at a time, each equally likely.

    Algorithm R of Vitter (1985), "Random sampling with a reservoir".

    Args:
        size: The most items to draw.
        random: Draws the items.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self.kept: list[ProbeItem] = []
        self._size = size
        self._seen = 0
        self._random = random

    def offer(self, item: ProbeItem) -> None:
        self._seen += 1
        if len(self.kept) < self._size:
            self.kept.append(item)
        elif (place := int(self._random.random() * self._seen)) < self._size:
            self.kept[place] = item


async def reorder(
    collection: ProbeCollection, order: Order, engine: SearchEngine | None = None
) -> ProbeCollection:
    """Return a collection with its items in an order, whatever order they were in.

    ``shuffled`` is a permutation that seed and query decide. ``discriminatory`` has one cell after
    the other, as :data:`~fairqr.evaluation.probes.collection.CELLS` lists them, and each cell in an
    order that seed and query decide. ``bm25`` is the ranking of the engine by the query; equal
    scores stand in order of id, and what the query does not find comes last.

    Args:
        collection: The queries, and the seed.
        order: The new order.
        engine: Over the documents; ``bm25`` needs it.

    Raises:
        UnsupportedError: The engine cannot rank given documents.
        IndexUnavailableError: The engine cannot be reached.
    """
    queries = []
    for query in collection.queries:
        # Drawn from the ids in their own order, so that how they stood before changes nothing.
        items = sorted(query.items, key=lambda item: item.id)
        if engine is not None:
            ids = tuple(item.id for item in items)
            (hits,) = await engine.search([Query(query.query, len(ids), only=ids)])
            ranks = {id_: rank for rank, id_ in enumerate(hits.ids)}
            items.sort(key=lambda item: ranks.get(item.id, len(ids)))
        else:
            parts: dict[str, list[ProbeItem]] = {"shuffled": items}
            if order == "discriminatory":
                parts = {cell: [it for it in items if it.cell == cell] for cell in CELLS}
            items = [
                part[place]
                for name, part in parts.items()
                for place in stream(collection.manifest.seed, f"{query.id} {name}").permutation(
                    len(part)
                )
            ]
        queries.append(query.model_copy(update={"items": tuple(items)}))
    return ProbeCollection.of(collection.manifest, queries, order=order)
