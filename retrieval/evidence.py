"""What an index says for a keyword: whether it belongs to the topic of a query, or to a group.

A language model may propose words that lead away from the query. The documents themselves tell: a
word of the topic stands more often in the best results of the query than in the corpus; a word of
the group stands mostly in documents of the group.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.index import Index

__all__ = ["Evidence", "gather_evidence"]

TOPIC_DEPTH = 50
GROUP_DEPTH = 200


_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a keyword.

    A keyword of several words is of the topic only if each of them is, so the figures of the topic
    are those of the word with the least.

    Attributes:
        documents: How many documents contain all of its words.
        topic_documents: How many of the query's 50 best results contain the word.
        topic_share: How large a part of these results that is.
        topic_lift: How many times as often the word stands in these results as it would if they
            were drawn from the whole corpus.
        group_odds: How many times as large the odds of the group are among the 200 best documents
            for the keyword as among all documents; infinite if all of them are of the group, and 0
            if none of them has a label. Odds, since the share of a large group cannot grow much.
    """

    documents: int
    topic_documents: int
    topic_share: float
    topic_lift: float
    group_odds: float

    def is_of_the_topic(self, lift: float = 2.0, share: float = 0.1) -> bool:
        """Tell whether it belongs to the topic; a few documents alone may be chance."""
        is_common = self.topic_documents >= 2 and self.topic_share >= share
        return is_common and self.topic_lift >= lift

    def is_of_the_group(self, odds: float = 1.5) -> bool:
        """Tell whether it belongs to the group."""
        return self.documents > 0 and self.group_odds >= odds


async def gather_evidence(
    index: Index,
    query: str,
    results: Sequence[str],
    keywords: Sequence[str],
    dimension: Dimension,
    group: str,
) -> list[Evidence]:
    """Return the evidence for each keyword.

    Args:
        index: Where the documents are.
        query: The original query; its own words are no evidence for a keyword.
        results: The ids of what it retrieved, best first.
        keywords: Each of one word or several.
        dimension: What the group is one of.
        group: One of its groups.
    """
    of_query = set(_WORD.findall(query.casefold()))
    words_of = {
        keyword: [w for w in _WORD.findall(keyword.casefold()) if w not in of_query]
        for keyword in keywords
    }
    words = list(dict.fromkeys(word for own in words_of.values() for word in own))
    frequencies = await index.document_frequencies([*words, *keywords])
    size = (await index.info()).documents
    top = results[:TOPIC_DEPTH]

    async def in_topic(word: str, frequency: int) -> tuple[int, float]:
        if not frequency or not top:
            return 0, 0.0
        count = int(np.count_nonzero((await index.lexical.rescore(word, top)).scores))
        return count, count / len(top) / (frequency / size)

    position = dimension.groups.index(group)
    shares = await dimension.independent_shares(index)
    usual = shares[position] / shares.sum() if shares.any() else 0.0

    async def group_odds(keyword: str, frequency: int) -> float:
        if not frequency or not usual:
            return 0.0
        found = await index.search(keyword, GROUP_DEPTH)
        members = await dimension.memberships(index, found.ids)
        ours, all_ = float(members[:, position].sum()), float(members.sum())
        # Membership in others; what rounding leaves of it is nothing.
        others = all_ - ours if all_ - ours > 1e-9 else 0.0
        return _ratio(_ratio(ours, others), _ratio(usual, 1 - usual))

    topic, odds = await asyncio.gather(
        asyncio.gather(*map(in_topic, words, frequencies)),
        asyncio.gather(*map(group_odds, keywords, frequencies[len(words) :])),
    )
    topic_of = dict(zip(words, topic, strict=True))
    found = []
    for own, documents, times in zip(
        words_of.values(), frequencies[len(words) :], odds, strict=True
    ):
        of_words = [topic_of[word] for word in own] or [(0, 0.0)]
        count = min(count for count, _ in of_words)
        found.append(
            Evidence(
                documents=documents,
                topic_documents=count,
                topic_share=count / max(1, len(top)),
                topic_lift=min(lift for _, lift in of_words),
                group_odds=times,
            )
        )
    return found


def _ratio(part: float, other: float) -> float:
    if not part:
        return 0.0
    return part / other if other else math.inf
