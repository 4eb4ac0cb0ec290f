"""The statistics of a collection: its sizes, groups, coverage of labels, and targets."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np

from fairqr.base.errors import TargetError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.labels import scan_corpus
from fairqr.evaluation.collections.query_targets import query_targets
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.sources.documents import ProgressFunction
from fairqr.retrieval.sources.schema import UNKNOWN


def describe_collection(
    collection: Collection, progress: ProgressFunction | None = None
) -> dict[str, Any]:
    """Read a collection once, and return what it holds, as plain data.

    Returns:
        Its ``name``, ``title``, ``split`` and ``target``; how many ``documents``, ``topics``,
        ``judgements``, ``relevant_documents`` and ``missing_documents`` (judged ones that the
        corpus lacks) there are; ``topics_without_relevant``; and as ``relevant`` the minimum,
        median and maximum of a topic's relevant documents. By name
        ``attributes``, with shares in [0, 1] by group: ``corpus`` (the mean membership of all
        documents), ``relevant`` (of those relevant for any topic, each counted once),
        ``population`` and ``target`` (the mean over ``target_topics`` topics, or None for the
        reason ``no_target``); and ``labelled``, the number of these relevant documents with a
        label.

    Raises:
        CorpusError: A line of the documents is wrong.
        TargetError: The collection's target cannot be read.
    """
    judged = set(itertools.chain.from_iterable(collection.qrels.values()))
    scan = scan_corpus(collection.corpus, judged, progress=progress)
    relevant = scan.known(collection.relevant_documents())
    counts = {topic.id: len(collection.relevant(topic.id)) for topic in collection.topics}
    attributes = {}
    for name, attribute in collection.corpus.schema.attributes.items():
        groups = (*attribute.groups, UNKNOWN)
        members = scan.memberships(name, relevant, "group")
        shares = members.sum(axis=0) / max(1, len(members))
        targets: list[FloatArray] = []
        problem = "no relevant document has a known group"
        try:
            targets += query_targets(collection, scan, name).targets.values()
        except TargetError as error:
            problem = str(error)
        mean = np.mean(targets, axis=0).tolist() if targets else None
        attributes[name] = {
            "corpus": dict(zip(groups, scan.shares[name].tolist(), strict=True)),
            "relevant": dict(zip(groups, shares.tolist(), strict=True)),
            "labelled": int(np.sum(members[:, -1] < 1)),
            "population": attribute.population,
            "target": mean and dict(zip(groups, mean, strict=False)),
            "target_topics": len(targets),
            "no_target": "" if targets else problem,
        }
    return {
        "name": collection.name,
        "title": collection.title,
        "split": collection.split,
        "documents": scan.documents,
        "topics": len(collection.topics),
        "topics_without_relevant": [topic for topic, count in counts.items() if not count],
        "judgements": sum(map(len, collection.qrels.values())),
        "relevant": (
            min(counts.values()),
            statistics.median(counts.values()),
            max(counts.values()),
        ),
        "relevant_documents": len(relevant),
        "missing_documents": len(judged) - len(scan.rows),
        "target": collection.about.target,
        "attributes": attributes,
    }
