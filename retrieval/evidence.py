"""What an index says for a keyword: whether it belongs to the topic of a query, or to a group.

A language model may propose words that lead away from the query. The documents themselves tell: a
word of the topic stands more often in the best results of the query than in the corpus; a word of
the group stands mostly in documents of the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.index import Index

__all__ = ["Evidence", "gather_evidence"]

TOPIC_DEPTH = 50
GROUP_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a keyword.

    Attributes:
        documents: How many documents contain all of its terms.
        topic_documents: How many of the query's best results contain one of its terms.
        topic_lift: How many times as often its terms stand in the query's best results as they
            would if these were drawn from the whole corpus; 0 if nowhere.
        group_lift: How many times as large the group's share is among the documents that contain
            it as among all documents; 0 if none of them has a label.
    """

    documents: int
    topic_documents: int
    topic_lift: float
    group_lift: float

    def is_of_the_topic(self, lift: float = 2.0) -> bool:
        """Tell whether it belongs to the topic; one document alone may be chance."""
        return self.topic_documents >= 2 and self.topic_lift >= lift

    def is_of_the_group(self, lift: float = 1.5) -> bool:
        """Tell whether it belongs to the group."""
        return self.documents > 0 and self.group_lift >= lift


async def gather_evidence(
    index: Index,
    results: Sequence[str],
    words: Sequence[str],
    dimension: Dimension,
    group: str,
) -> list[Evidence]:
    """Return the evidence for each keyword.

    Args:
        index: Where the documents are.
        results: The ids of what the original query retrieved, best first.
        words: The keywords.
        dimension: What the group is one of.
        group: One of its groups.
    """
    position = dimension.groups.index(group)
    shares = await dimension.independent_shares(index)
    usual = shares[position] / shares.sum() if shares.any() else 0.0
    size = (await index.info()).documents
    frequencies = await index.document_frequencies(words)
    top = results[:TOPIC_DEPTH]

    async def one(word: str, documents: int) -> Evidence:
        if not documents:
            return Evidence(0, 0, 0.0, 0.0)
        scored, found = await asyncio.gather(
            index.rescore(word, top), index.search(word, GROUP_DEPTH)
        )
        in_topic = int(np.count_nonzero(scored.scores))
        members = await dimension.memberships(index, found.ids)
        labelled = float(members.sum())
        share = float(members[:, position].sum()) / labelled if labelled else 0.0
        return Evidence(
            documents=documents,
            topic_documents=in_topic,
            topic_lift=in_topic / len(top) / (documents / size) if top else 0.0,
            group_lift=share / usual if usual else 0.0,
        )

    return list(await asyncio.gather(*map(one, words, frequencies)))
