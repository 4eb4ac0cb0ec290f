"""What an engine says for a keyword: whether it belongs to the topic of a query, or to a group.

A language model may propose words that lead away from the query. The documents show which do: a
word of the topic stands more often in the best results of the query than in the corpus; a word of
the group stands mostly in documents of the group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.exposure import FloatArray, intersection

__all__ = ["TOPIC_DEPTH", "Evidence", "Proposal", "frequencies", "gather_evidence"]

TOPIC_DEPTH = 50
GROUP_DEPTH = 200
LEAST_SHARE = 0.1
LEAST_ODDS = 1.5

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Proposal:
    """Keywords that were proposed for a group.

    Attributes:
        dimension: What the group is one of.
        group: Its name.
        keywords: Each of one word or several.
    """

    dimension: Dimension
    group: str
    keywords: Sequence[str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for a keyword, among all documents or among those that were retrieved.

    A keyword of several words is of the topic only if each of them is, so the figures of the topic
    are those of the word with the least.

    Attributes:
        documents: How many documents contain all of its words.
        topic_documents: How many of the query's 50 best results contain the word.
        topic_share: How large a part of these results that is.
        topic_lift: How many times as often the word stands in these results as in the corpus, or
            in the other results; infinite where there are too few others to say.
        group_odds: How many times as large the odds of the group are among documents with the
            keyword, the 200 best if an engine ranks them, as among all; infinite if all of them are
            of the group, and 0 if none of them has a label. Odds, since the share of a large group
            cannot grow much.
        least_lift: The lift that a word of the topic has at least.
    """

    documents: int
    topic_documents: int
    topic_share: float
    topic_lift: float
    group_odds: float
    least_lift: float = 2.0

    @property
    def is_of_the_topic(self) -> bool:
        """Whether it belongs to the topic; a few documents alone may be chance."""
        is_common = self.topic_documents >= 2 and self.topic_share >= LEAST_SHARE
        return is_common and self.topic_lift >= self.least_lift

    @property
    def is_of_the_group(self) -> bool:
        """Whether it belongs to the group."""
        return self.documents > 0 and self.group_odds >= LEAST_ODDS


async def gather_evidence(
    engine: SearchEngine,
    query: str,
    results: Sequence[str],
    proposals: Sequence[Proposal],
    corpus_shares: Mapping[str, FloatArray],
) -> list[list[Evidence]]:
    """Return the evidence for each keyword of each proposal.

    The engine is asked once for all of them: how many documents have a word, how many of the best
    results have it, and what each keyword finds.

    Args:
        engine: Counts documents.
        query: The original query; its own words are no evidence for a keyword.
        results: The ids of what it retrieved, best first.
        proposals: The keywords of each group.
        corpus_shares: Of the groups of each attribute in all documents.
    """
    of_query = set(_WORD.findall(query.casefold()))
    keywords = list(dict.fromkeys(k for proposal in proposals for k in proposal.keywords))
    words_of = {
        keyword: [w for w in _WORD.findall(keyword.casefold()) if w not in of_query]
        for keyword in keywords
    }
    words = list(dict.fromkeys(word for own in words_of.values() for word in own))
    top = tuple(results[:TOPIC_DEPTH])
    everything = Query("", 0)
    with_word = {word: Query(word, 0, every_word=True) for word in (*words, *keywords)}
    in_top = {word: Query(word, 0, every_word=True, only=top) for word in words}
    best = {keyword: Query(keyword, GROUP_DEPTH) for keyword in keywords}
    asked = [everything, *with_word.values(), *in_top.values(), *best.values()]
    answers = dict(zip(asked, await engine.search(asked), strict=True))
    size = answers[everything].total or 1

    def topic(word: str) -> tuple[int, float]:
        count = answers[in_top[word]].total or 0
        frequency = answers[with_word[word]].total
        if not frequency or not top:
            return 0, 0.0
        return count, count / len(top) / (frequency / size)

    def evidence(proposal: Proposal, keyword: str) -> Evidence:
        of_words = [topic(word) for word in words_of[keyword]] or [(0, 0.0)]
        count = min(count for count, _ in of_words)
        documents = answers[with_word[keyword]].total or 0
        found = answers[best[keyword]]
        return Evidence(
            documents=documents,
            topic_documents=count,
            topic_share=count / max(1, len(top)),
            topic_lift=min(lift for _, lift in of_words),
            group_odds=_group_odds(proposal, found, corpus_shares) if documents else 0.0,
        )

    return [[evidence(p, keyword) for keyword in p.keywords] for p in proposals]


def _group_odds(proposal: Proposal, found: Hits, corpus_shares: Mapping[str, FloatArray]) -> float:
    """Return the odds of the group among these documents over its odds among all documents."""
    dimension, position = proposal.dimension, proposal.dimension.groups.index(proposal.group)
    shares = dimension.independent_shares(corpus_shares)
    usual = float(shares[position] / shares.sum()) if shares.any() else 0.0
    if not usual or not found.ids:
        return 0.0
    members = intersection([found.memberships[factor.name] for factor in dimension.factors])
    ours, all_ = float(members[:, position].sum()), float(members.sum())
    # Membership in others; what rounding leaves of it is nothing.
    others = all_ - ours if all_ - ours > 1e-9 else 0.0
    return _ratio(_ratio(ours, others), _ratio(usual, 1 - usual))


async def frequencies(engine: SearchEngine, words: Sequence[str]) -> list[int]:
    """Return for each word or phrase how many documents contain all of its words.

    A phrase that the engine reduces to nothing, such as a stop word, has frequency 0.
    """
    answers = await engine.search([Query(word, 0, every_word=True) for word in words])
    return [answer.total or 0 for answer in answers]


def _ratio(part: float, other: float) -> float:
    if not part:
        return 0.0
    return part / other if other else math.inf
