"""What documents say about a keyword: does it belong to the topic, or to a group?

A language model may propose words that lead away from the query. The documents show which do: a
word of the topic is more frequent in the best results of the query than elsewhere; a word of a
group is mostly in documents of that group.

"Elsewhere" is the whole corpus if the engine can count documents. For other engines we read it off
the retrieved texts: a word of the topic is in many of the best results, and not mostly in the
others; a word of a group is in documents of that group more often than chance would have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.engines.engine import Query, SearchEngine
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import FloatArray, intersection
from fairqr.retrieval.texts.words import composed, english_analyzer, folded_words, occurs, sendable

TOPIC_DEPTH = 50
GROUP_DEPTH = 200
LEAST_SHARE = 0.1
LEAST_ODDS = 1.5

FEWEST_OTHERS = 100
"""With fewer results beyond the best 50, all are near the topic and show no difference."""

LEAST_LIFT, LEAST_LIFT_IN_TEXTS = 2.0, 0.5
"""The second is low on purpose. All retrieved documents are near the topic, so a word of the topic
may be as frequent further down the list; this only excludes words such as "his", which are much
more frequent there."""


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
    least_lift: float = LEAST_LIFT

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
    keywords = [keyword for proposal in proposals for keyword in proposal.keywords]
    words_of = {keyword: _new_words(keyword, query) for keyword in keywords}
    words = {word for own in words_of.values() for word in own}
    top = tuple(results[:TOPIC_DEPTH])
    everything = Query("", 0)
    counts = {word: Query(word, 0, every_word=True) for word in (*words, *keywords)}
    in_top = {word: Query(word, 0, every_word=True, only=top) for word in words}
    best = {keyword: Query(keyword, GROUP_DEPTH) for keyword in keywords}
    asked = [everything, *counts.values(), *in_top.values(), *best.values()]
    answers = dict(zip(asked, await engine.search(asked), strict=True))
    size = answers[everything].total or 1

    def topic(word: str) -> tuple[int, float]:
        count, frequency = answers[in_top[word]].total or 0, answers[counts[word]].total
        return (count, count / len(top) / (frequency / size)) if frequency and top else (0, 0.0)

    def evidence(proposal: Proposal, keyword: str) -> Evidence:
        documents = answers[counts[keyword]].total or 0
        figures = [topic(word) for word in words_of[keyword]] or [(0, 0.0)]
        count, lift = map(min, zip(*figures, strict=True))
        found, dimension = answers[best[keyword]], proposal.dimension
        odds = _relative_odds(
            intersection([found.memberships[it.name] for it in dimension.factors]),
            dimension.independent_shares(corpus_shares)[None],
            dimension.groups.index(proposal.group),
        )
        share = int(count) / max(1, len(top))
        return Evidence(documents, int(count), share, lift, odds if documents else 0.0)

    return [[evidence(it, keyword) for keyword in it.keywords] for it in proposals]


def stems_of(texts: Iterable[str]) -> list[frozenset[str]]:
    """Return the stemmed words of each text, without stop words."""
    analyzer = english_analyzer()
    return [frozenset(analyzer.analyze(composed(sendable(text)))) for text in texts]


def evidence_from_texts(
    query: str,
    stems: Sequence[frozenset[str]],
    memberships: FloatArray,
    position: int,
    keywords: Sequence[str],
) -> list[Evidence]:
    """Return the evidence for each keyword that retrieved texts give.

    Args:
        query: The original query; its own words are no evidence for a keyword.
        stems: The words of each retrieved document, from :func:`stems_of`: first the results of
            the original query from best to worst, then what only refined queries found.
        memberships: The memberships of these documents in the groups, shape (n, G).
        position: The column of the group.
        keywords: Each of one word or several.
    """

    def evidence(keyword: str) -> Evidence:
        own = [_containing(word, stems) for word in _new_words(keyword, query)]
        count = min((int(np.count_nonzero(it[:TOPIC_DEPTH])) for it in own), default=0)
        holders = _containing(keyword, stems)
        return Evidence(
            documents=int(np.count_nonzero(holders)),
            topic_documents=count,
            topic_share=count / max(1, min(TOPIC_DEPTH, len(stems))),
            topic_lift=min(map(_lift, own), default=0.0),
            group_odds=_relative_odds(memberships[holders], memberships, position),
            least_lift=LEAST_LIFT_IN_TEXTS,
        )

    return [evidence(keyword) for keyword in keywords]


def _new_words(keyword: str, query: str) -> list[str]:
    """Return the words of a keyword that the query does not have."""
    known = folded_words(query)
    return [word for word in folded_words(keyword) if not occurs(word, known)]


def _containing(words: str, stems: Sequence[frozenset[str]]) -> NDArray[np.bool_]:
    """Return which documents contain all of these words, shape (n,); none for stop words."""
    (wanted,) = stems_of([words])
    return np.array(
        [bool(wanted) and all(occurs(word, own) for word in wanted) for own in stems], dtype=bool
    )


def _lift(containing: NDArray[np.bool_]) -> float:
    best, others = containing[:TOPIC_DEPTH], containing[TOPIC_DEPTH:]
    if len(others) < FEWEST_OTHERS:
        return math.inf
    # Add one document with the word and one without, so that a share is never 0.
    return float(best.mean()) / ((float(others.sum()) + 1) / (len(others) + 2))


def _relative_odds(members: FloatArray, usual: FloatArray, position: int) -> float:
    """Return a group's odds among documents divided by its usual odds, which need to be known."""
    of_all = _odds(usual, position)
    return _odds(members, position) / of_all if 0 < of_all < math.inf else 0.0


def _odds(members: FloatArray, position: int) -> float:
    """Return a group's odds among documents: 0 if it is absent, infinite if all others are."""
    ours = float(members[:, position].sum())
    others = float(members.sum()) - ours
    if ours <= 0:
        return 0.0
    # Ignore what rounding leaves of the membership in other groups.
    return ours / others if others > 1e-9 else math.inf
