"""The statistics of a collection: its sizes, groups, coverage of labels, and targets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairqr.base.errors import TargetError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import Groups, scan_corpus
from fairqr.evaluation.collections.query_targets import query_targets
from fairqr.retrieval.sources.documents import ProgressFunction
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute


@dataclass(frozen=True, slots=True)
class AttributeStatistics:
    """One attribute of a collection; all shares are in [0, 1].

    Attributes:
        corpus: The mean membership of all documents by group, ``unknown`` included; sums to 1.
        relevant: The same over the documents that are relevant for any topic, each counted once.
        labelled: How many of these relevant documents have a label.
        population: As the schema gives it.
        target: The mean over the topics of their targets.
        target_topics: Over how many topics that is.
        no_target: Why there is no target; empty if there is one.
    """

    corpus: dict[str, float]
    relevant: dict[str, float]
    labelled: int
    population: dict[str, float] | None
    target: dict[str, float] | None
    target_topics: int
    no_target: str = ""


@dataclass(frozen=True, slots=True)
class CollectionStatistics:
    """The statistics of a collection.

    Attributes:
        split: The name of the judgements.
        documents: How many there are.
        topics: How many there are.
        topics_without_relevant: Those for which no document is relevant.
        judgements: How many there are.
        relevant: The relevant documents of a topic: minimum, median and maximum over the topics.
        relevant_documents: How many documents are relevant for any topic.
        missing_documents: How many judged documents the corpus lacks.
        ignored_judgements: How many judgements are of no topic.
        target: The target in words.
        attributes: By name.
    """

    name: str
    title: str
    split: str | None
    documents: int
    topics: int
    topics_without_relevant: list[str]
    judgements: int
    relevant: tuple[int, float, int]
    relevant_documents: int
    missing_documents: int
    ignored_judgements: int
    target: str
    attributes: dict[str, AttributeStatistics]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def describe_collection(
    collection: Collection, progress: ProgressFunction | None = None
) -> CollectionStatistics:
    """Read a collection once, and return what it holds.

    Raises:
        CorpusError: A line of the documents is wrong.
        TargetError: The collection's target cannot be read.
    """
    judged = {id_ for documents in collection.qrels.values() for id_ in documents}
    scan = scan_corpus(collection.corpus, judged, progress=progress)
    relevant = [id_ for id_ in collection.relevant_documents() if id_ in scan.labels]
    counts = [len(collection.relevant(topic.id)) for topic in collection.topics]
    return CollectionStatistics(
        name=collection.name,
        title=collection.title,
        split=collection.split,
        documents=scan.documents,
        topics=len(collection.topics),
        topics_without_relevant=collection.topics_without_relevant(),
        judgements=sum(map(len, collection.qrels.values())),
        relevant=(min(counts), statistics.median(counts), max(counts)),
        relevant_documents=len(relevant),
        missing_documents=len(judged) - len(scan.labels.rows),
        ignored_judgements=collection.ignored_judgements,
        target=collection.about.target,
        attributes={
            name: _attribute(collection, scan, relevant, attribute)
            for name, attribute in collection.corpus.schema.attributes.items()
        },
    )


def _attribute(
    collection: Collection, scan: Groups, relevant: Sequence[str], attribute: Attribute
) -> AttributeStatistics:
    groups = (*attribute.groups, UNKNOWN)
    members = scan.labels.memberships(attribute.name, relevant, "group")
    shares = members.mean(axis=0) if len(members) else np.zeros(len(groups))
    target, count, problem = None, 0, ""
    try:
        found = query_targets(collection, scan.labels, attribute.name)
    except TargetError as error:
        problem = str(error)
    else:
        count = len(found.targets)
        if count:
            mean = np.mean(list(found.targets.values()), axis=0)
            target = dict(zip(found.dimension.groups, mean.tolist(), strict=True))
        else:
            problem = "no relevant document has a label"
    return AttributeStatistics(
        corpus=dict(zip(groups, scan.shares[attribute.name].tolist(), strict=True)),
        relevant=dict(zip(groups, shares.tolist(), strict=True)),
        labelled=int(np.sum(members[:, -1] < 1)),
        population=attribute.population,
        target=target,
        target_topics=count,
        no_target=problem,
    )
