"""Drawing rankings to answer from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairqr.graph.answer.context import AnswerSettings
from fairqr.graph.answer.state import SampledRanking
from fairqr.retrieval.sampling.plackett_luce import PlackettLuce
from fairqr.retrieval.sampling.streams import stream_of

__all__ = ["distinct_rankings"]


def distinct_rankings(
    places: Sequence[Mapping[str, Any]], settings: AnswerSettings, seed: int, query: str
) -> list[SampledRanking]:
    """Draw rankings by Plackett–Luce, and return each distinct one once.

    The document at rank i is worth the i-th greatest of the scores in the ranking. A fair
    re-ranking moves documents without changing their scores; by this rule its order counts, and a
    ranking by score, such as a plain retrieval, keeps its own scores.

    Args:
        places: The final ranking: ``id`` and ``score`` of each document, best first; at least one.
        settings: How many to draw, how sharply, and how many documents of each are read.
        seed: Draws the same again for the same query and ranking, whatever else runs.
        query: The original query.

    Returns:
        In the order in which they were first drawn; ``times`` sums to the number of samples.
    """
    worths = sorted((place["score"] for place in places), reverse=True)
    policy = PlackettLuce.of(worths, settings.alpha, settings.form)
    drawn = policy.sample(settings.samples, settings.documents, stream_of(seed, query))
    counts: dict[tuple[int, ...], int] = {}
    for row in drawn.tolist():
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    return [
        SampledRanking(number=number, ids=[places[at]["id"] for at in row], times=times)
        for number, (row, times) in enumerate(counts.items())
    ]
