"""What retrieved texts say about a keyword, for engines that cannot count documents.

As in :mod:`fairqr.retrieval.texts.evidence`, a keyword must belong to the topic of the query or to
a group. Without frequencies over the whole corpus, we read both off the retrieved documents: a word
of the topic is in many of the best results, and not mostly in the others; a word of a group is in
documents of that group more often than chance would have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fairqr.retrieval.engines.tantivy.analysis import english_analyzer
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.texts.evidence import TOPIC_DEPTH, Evidence
from fairqr.retrieval.texts.sendable import sendable
from fairqr.retrieval.texts.words import composed, folded_words, occurs

FEWEST_OTHERS = 100
"""With fewer results beyond the best 50, all are near the topic and show no difference."""

LEAST_LIFT = 0.5
"""Low on purpose. All retrieved documents are near the topic, so a word of the topic may be as
frequent further down the list; this only excludes words such as "his", which are much more frequent
there."""


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
    """Return the evidence for each keyword.

    Args:
        query: The original query; its own words are no evidence for a keyword.
        stems: The words of each retrieved document, from :func:`stems_of`: first the results of
            the original query from best to worst, then what only refined queries found.
        memberships: The memberships of these documents in the groups, shape (n, G).
        position: The column of the group.
        keywords: Each of one word or several.
    """
    of_query = set(folded_words(query))
    found = []
    for keyword in keywords:
        words = [word for word in folded_words(keyword) if not occurs(word, of_query)]
        own = [_containing(word, stems) for word in words]
        counts = [int(np.count_nonzero(containing[:TOPIC_DEPTH])) for containing in own]
        holders = _containing(keyword, stems)
        found.append(
            Evidence(
                documents=int(np.count_nonzero(holders)),
                topic_documents=min(counts, default=0),
                topic_share=min(counts, default=0) / max(1, min(TOPIC_DEPTH, len(stems))),
                topic_lift=min(map(_lift, own), default=0.0),
                group_odds=_group_odds(memberships, holders, position),
                least_lift=LEAST_LIFT,
            )
        )
    return found


def _containing(words: str, stems: Sequence[frozenset[str]]) -> NDArray[np.bool_]:
    """Return which documents contain all of these words, shape (n,); none for stop words."""
    (wanted,) = stems_of([words])
    return np.array(
        [bool(wanted) and all(occurs(word, own) for word in wanted) for own in stems],
        dtype=np.bool_,
    )


def _lift(containing: NDArray[np.bool_]) -> float:
    best, others = containing[:TOPIC_DEPTH], containing[TOPIC_DEPTH:]
    if len(others) < FEWEST_OTHERS:
        return math.inf
    # Add one document with the word and one without, so that a share is never 0.
    return float(best.mean()) / ((float(others.sum()) + 1) / (len(others) + 2))


def _group_odds(memberships: FloatArray, holders: NDArray[np.bool_], position: int) -> float:
    usual = _odds(memberships, position)
    if not 0 < usual < math.inf:
        return 0.0
    return _odds(memberships[holders], position) / usual


def _odds(memberships: FloatArray, position: int) -> float:
    """Return a group's odds among documents: 0 if it is absent, infinite if all others are."""
    ours = float(memberships[:, position].sum())
    others = float(memberships.sum()) - ours
    if ours <= 0:
        return 0.0
    # Ignore what rounding leaves of the membership in other groups.
    return ours / others if others > 1e-9 else math.inf
