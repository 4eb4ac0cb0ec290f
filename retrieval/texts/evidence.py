"""What an engine's documents say about a keyword: does it belong to the topic, or to a group?

A language model may propose words that lead away from the query. The documents show which do: a
word of the topic is more frequent in the best results of the query than in the corpus; a word of a
group is mostly in documents of that group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairqr.retrieval.engines.engine import Hits, Query, SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, intersection
from fairqr.retrieval.texts.words import folded_words, occurs

TOPIC_DEPTH = 50
GROUP_DEPTH = 200
LEAST_SHARE = 0.1
LEAST_ODDS = 1.5


@dataclass(frozen=True, slots=True)
class Proposal:
    """Keywords that were proposed for a group.

    Attributes:
        dimension: The dimension that the group belongs to.
        group: The group's name.
        keywords: Each has one word or several.
    """

    dimension: Dimension
    group: str
    keywords: Sequence[str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The figures that speak for a keyword, over all documents or over the retrieved ones.

    A keyword of several words belongs to the topic only if each word does, so the topic figures
    are those of its weakest word.

    Attributes:
        documents: How many documents contain all of its words.
        topic_documents: How many of the query's 50 best results contain the word.
        topic_share: The same as a share of these results.
        topic_lift: How many times as frequent the word is in these results as in the corpus, or as
            in the other results; infinite if there are too few others to say.
        group_odds: The odds of the group among documents with the keyword (the 200 best, if the
            engine ranks them), divided by its odds among all documents; infinite if all of them
            belong to the group, and 0 if none has a label. We use odds because the share of a
            large group cannot grow much.
        least_lift: The lowest lift that counts as a word of the topic.
    """

    documents: int
    topic_documents: int
    topic_share: float
    topic_lift: float
    group_odds: float
    least_lift: float = 2.0

    @property
    def is_of_the_topic(self) -> bool:
        """Whether it belongs to the topic. Very few documents do not count: they may be chance."""
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

    One request to the engine covers all of them: how many documents contain a word, how many of
    the best results do, and what each keyword finds.

    Args:
        engine: An engine that counts documents.
        query: The original query; its own words are no evidence for a keyword.
        results: The ids of the documents it retrieved, best first.
        proposals: The keywords of each group.
        corpus_shares: For each attribute, the shares of its groups in all documents.
    """
    of_query = set(folded_words(query))
    keywords = list(dict.fromkeys(k for proposal in proposals for k in proposal.keywords))
    words_of = {
        keyword: [w for w in folded_words(keyword) if not occurs(w, of_query)]
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
    """Return the group's odds among these documents divided by its odds among all documents."""
    dimension, position = proposal.dimension, proposal.dimension.groups.index(proposal.group)
    shares = dimension.independent_shares(corpus_shares)
    usual = float(shares[position] / shares.sum()) if shares.any() else 0.0
    if not usual or not found.ids:
        return 0.0
    members = intersection([found.memberships[factor.name] for factor in dimension.factors])
    ours, all_ = float(members[:, position].sum()), float(members.sum())
    # The membership in the other groups; ignore what rounding leaves of it.
    others = all_ - ours if all_ - ours > 1e-9 else 0.0
    return _ratio(_ratio(ours, others), _ratio(usual, 1 - usual))


async def frequencies(engine: SearchEngine, words: Sequence[str]) -> list[int]:
    """Return how many documents contain all words of each phrase.

    A phrase that the engine analyzes to nothing, such as a stop word, has frequency 0.
    """
    answers = await engine.search([Query(word, 0, every_word=True) for word in words])
    return [answer.total or 0 for answer in answers]


def _ratio(part: float, other: float) -> float:
    if not part:
        return 0.0
    return part / other if other else math.inf
