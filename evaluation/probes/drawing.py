"""Drawing the documents of a probe collection's cells, in one reading of the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairqr.base.errors import InputError
from fairqr.base.statistics import stream
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.probes.collection import CELLS, Cell, ProbeItem, cell_of
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.sides import Sides

__all__ = ["Drawn", "draw_items"]

TELL_EVERY = 10_000


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn.

    Attributes:
        cells: By topic and cell.
        undecided: How many documents that are relevant for any topic have no side.
        missing: How many of these the corpus lacks.
    """

    cells: Mapping[str, Mapping[Cell, list[ProbeItem]]]
    undecided: int
    missing: int


def draw_items(
    collection: Collection,
    sides: Sides,
    *,
    each: int,
    seed: int,
    texts: bool,
    progress: Progress | None = None,
) -> Drawn:
    """Draw documents for each cell of each topic.

    What is relevant for any topic is a candidate for all: a relevant one for its own topics, an
    irrelevant one for the others. The draw of a cell depends on the seed, the topic's id and the
    candidates of this cell in the order of the corpus.

    Args:
        collection: Its documents are read once; no more of them are held than are drawn.
        sides: Which documents are protected.
        each: At most so many a cell.
        seed: Of the draws.
        texts: Keep texts beside titles.
        progress: Told now and then how many documents were read.

    Raises:
        InputError: A side has no candidate at all.
        CorpusError: The documents cannot be read, or a line is none.
        UnknownAttributeError: The schema has no such attribute.
    """
    attribute = collection.corpus.schema.attribute(sides.attribute)
    wanted: dict[str, set[str]] = {}
    for topic in collection.topics:
        for id_ in collection.relevant(topic.id):
            wanted.setdefault(id_, set()).add(topic.id)
    cells = {
        topic.id: {
            cell: _Reservoir(each, stream(seed, f"{topic.id} draw {cell}")) for cell in CELLS
        }
        for topic in collection.topics
    }
    sizes = {True: 0, False: 0}
    count = undecided = 0
    for count, document in enumerate(collection.corpus.documents(), start=1):
        if progress and not count % TELL_EVERY:
            progress(count)
        # Taken out, so that a document that stands twice in the corpus is offered once.
        relevant_for = wanted.pop(document.id, None)
        if relevant_for is None:
            continue
        side = int(sides.of([document.membership(attribute)])[0])
        if side < 0:
            undecided += 1
            continue
        protected = side == 1
        sizes[protected] += 1
        # A ranker that reads titles has nothing to read of a document without one.
        text = document.text if texts or not document.title.strip() else ""
        item = ProbeItem(
            id=document.id, title=document.title, text=text, relevant=False, protected=protected
        )
        for topic_id, of_topic in cells.items():
            of_topic[cell_of(topic_id in relevant_for, protected)].offer(item)
    if progress:
        progress(count)
    for protected, groups in ((True, sides.protected), (False, sides.unprotected)):
        if not sizes[protected]:
            raise InputError(
                f"No document that is relevant for a topic of '{collection.name}' belongs to "
                f"{' or '.join(groups)}; choose other groups of {sides.attribute}."
            )
    drawn = {
        topic_id: {cell: _items(reservoir, cell) for cell, reservoir in of_topic.items()}
        for topic_id, of_topic in cells.items()
    }
    return Drawn(drawn, undecided, missing=len(wanted))


class _Reservoir:
    """A draw without replacement from items that come one at a time, each equally likely.

    Algorithm R of Vitter (1985), "Random sampling with a reservoir".

    Args:
        size: How many are drawn at the most.
        random: Draws.
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
            return
        place = int(self._random.random() * self._seen)
        if place < self._size:
            self.kept[place] = item


def _items(reservoir: _Reservoir, cell: Cell) -> list[ProbeItem]:
    relevant = cell in ("relevant_protected", "relevant_unprotected")
    return [item.model_copy(update={"relevant": relevant}) for item in reservoir.kept]
