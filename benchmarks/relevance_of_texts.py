"""Fits the estimate of relevance from texts alone, and shows how it treats groups.

``python benchmarks/relevance_of_texts.py --trec FOLDER`` reads notables and the joined subset of
TREC Fair 2022 in FOLDER. For each form of each topic it estimates the 200 best documents by BM25,
fits on one collection, and holds the fit against the other. Then it prints for each group whether
estimates mean the same as for others, in these pools and in pools that one search for each group
has widened, and the same of an engine that holds a group down. What it prints stands in
:mod:`fairqr.retrieval.engines.hybrid.texts` and in docs/results/audits.md. Vectors
that the indexes have are used; those of other texts are made first.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from relevance import POOL, Sample, Weighed, fitted, held_out

from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.engines.hybrid.texts import TextRelevance, end_of
from fairqr.retrieval.fairness.relevance import Calibration, Calibrations
from fairqr.retrieval.sources.catalog import Catalog

ATTRIBUTES = ("gender", "continent")
DEEPEST = 20_000
"""More than any index here has."""

FIRST, EACH = 100, 20
"""Of a widened pool, as an audit has it: how many documents by BM25, and how many of each group."""

HELD_DOWN = {"gender": "female", "continent": "Asia"}
FACTOR = 0.5
"""What an engine that holds these groups down multiplies their scores by."""

BOUNDS = np.linspace(0, 1, 6)[1:-1]
FEWEST = 10
"""Fewer documents of a group say nothing about a bin."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pool:
    """Documents of one query, with their evidence.

    Attributes:
        lexical: Shape (n,).
        similarity: Shape (n,).
        relevant: 0 or 1, shape (n,).
        memberships: By attribute, shape (n, G).
        relevant_anywhere: By attribute, how many relevant documents of the collection each group
            has, shape (G,).
        searches: For each group whose search was cut off, where its documents are, best first.
    """

    lexical: Array
    similarity: Array
    relevant: Array
    memberships: Mapping[str, Array]
    relevant_anywhere: Mapping[str, Array]
    searches: Sequence[Sequence[int]]


def widened(order: NDArray[np.intp], members: Array) -> tuple[list[int], list[list[int]]]:
    """Return the first documents and the first ones of each group, and the searches cut off.

    Args:
        order: The rows of all hits, best first.
        members: The share of each group in each row.

    Returns:
        The rows in the pool; and for each group that has more documents, the places in the pool
        of those of it.
    """
    first = order[:FIRST]
    groups = [order[own[order] > 0.5] for own in members.T]
    reached = [max(EACH, int((own[first] > 0.5).sum())) for own in members.T]
    parts = [rows[:count] for rows, count in zip(groups, reached, strict=True)]
    pool = list(dict.fromkeys(np.concatenate([first, *parts]).tolist()))
    at = {row: place for place, row in enumerate(pool)}
    ends = [
        [at[row] for row in part.tolist()]
        for part, rows in zip(parts, groups, strict=True)
        if len(part) < len(rows)
    ]
    return pool, ends


async def pools_of(
    collection: Collection, attribute: str, is_widened: bool, factor: float = 1.0
) -> list[Pool]:
    """Return the pools of all topics, in each form of the query.

    Args:
        collection: Documents and topics.
        attribute: Whose groups widen the pools.
        is_widened: Whether they are widened.
        factor: What the scores of the group that is held down are multiplied by.
    """
    groups = collection.corpus.schema.attributes[attribute].universe
    low = groups.index(HELD_DOWN[attribute])
    engine = await Catalog().resolve(collection.corpus_name)
    estimate = await TextRelevance.open(engine, open_encoder("minilm"))
    pools = []
    for topic in collection.topics:
        relevant = collection.relevant(topic.id)
        (labelled,) = await engine.search([Query("", len(relevant), only=tuple(relevant))])
        anywhere = {name: labelled.memberships[name].sum(axis=0) for name in ATTRIBUTES}
        for text in dict.fromkeys((topic.text(0), topic.text(10))):
            (hits,) = await engine.search([Query(text, DEEPEST)])
            members = hits.memberships[attribute]
            scores = np.array(hits.scores) * (1 - (1 - factor) * members[:, low])
            order = np.argsort(-scores, kind="stable")
            places, searches = order[:POOL].tolist(), []
            if is_widened:
                places, searches = widened(order, members)
            ids = [hits.ids[place] for place in places]
            evidence = []
            for kind in (Weighed(0, 1, 0), Weighed(0, 0, 1)):
                estimate.calibrations = Calibrations(kind, kind, kind)
                found = await estimate.estimate_ids(text, ids)
                assert found is not None
                evidence.append(found.relevance)
            pools.append(
                Pool(
                    *evidence,
                    np.isin(ids, relevant).astype(float),
                    {name: hits.memberships[name][places] for name in ATTRIBUTES},
                    anywhere,
                    searches,
                )
            )
    return pools


def sample_of(pools: Sequence[Pool]) -> Sample:
    """Return all documents of the pools."""
    return Sample(
        np.concatenate([pool.lexical for pool in pools]),
        np.concatenate([pool.similarity for pool in pools]),
        np.concatenate([pool.relevant for pool in pools]),
        np.repeat(np.arange(len(pools)), [len(pool.relevant) for pool in pools]),
    )


def shares(weights: Array, members: Array) -> Array:
    """Return the share of each group in weighted documents, shape (G,); nan where there is none."""
    total = weights @ members
    return np.asarray(total / total.sum()) if total.sum() else np.full(len(total), np.nan)


def difference(estimated: Array, true: Array) -> tuple[Array, Array]:
    """Return the mean difference over queries and its standard error, shape (G,) each."""
    off = (estimated - true)[~np.isnan(estimated + true).any(axis=1)]
    return off.mean(axis=0), off.std(axis=0, ddof=1) / np.sqrt(len(off))


def by_group(
    pools: Sequence[Pool], calibration: Calibration, attribute: str, groups: Sequence[str]
) -> None:
    """Print for each group whether the estimates mean the same."""
    chances = [calibration.probability(pool.lexical, pool.similarity) for pool in pools]
    levels = [
        max((end_of(p, places) for places in pool.searches), default=0.0)
        for p, pool in zip(chances, pools, strict=True)
    ]
    alike = [p * (p >= level) for p, level in zip(chances, levels, strict=True)]
    members = [pool.memberships[attribute] for pool in pools]
    estimated = np.array([shares(*pair) for pair in zip(chances, members, strict=True)])
    compared = np.array([shares(*pair) for pair in zip(alike, members, strict=True)])
    relevant = np.array([shares(p.relevant, m) for p, m in zip(pools, members, strict=True)])
    anywhere = np.array([shares(np.ones(1), p.relevant_anywhere[attribute][None]) for p in pools])
    off, error = difference(estimated, relevant)
    of_all, error_of_all = difference(estimated, anywhere)
    above, error_above = difference(compared, anywhere)
    whole, judged = np.concatenate(chances), np.concatenate([pool.relevant for pool in pools])
    belongs, bins = np.concatenate(members), np.digitize(whole, BOUNDS)
    for row, group in enumerate(groups):
        own = belongs[:, row] > 0.5
        cells = [
            f"{judged[own & (bins == one)].mean():.2f}"
            if (own & (bins == one)).sum() >= FEWEST
            else "   -"
            for one in range(len(BOUNDS) + 1)
        ]
        print(
            f"    {group:14} {own.sum():6} documents, Σp / relevant "
            f"{whole @ belongs[:, row]:6.0f} / {judged @ belongs[:, row]:5.0f}; share of relevant "
            f"ones: {np.nanmean(anywhere[:, row]):.3f} in the collection, "
            f"{np.nanmean(relevant[:, row]):.3f} in the pools, estimated "
            f"{off[row]:+.3f} ± {error[row]:.3f}, from the collection's "
            f"{of_all[row]:+.3f} ± {error_of_all[row]:.3f}, above the level "
            f"{above[row]:+.3f} ± {error_above[row]:.3f}; relevant by bin: {' '.join(cells)}"
        )


async def main(trec: Path) -> None:
    """Fit and print."""
    collections = {"notables": find_collection("notables"), "trec2022": find_collection(trec)}
    pools = {name: await pools_of(c, ATTRIBUTES[0], False) for name, c in collections.items()}
    samples = {name: sample_of(own) for name, own in pools.items()}
    both = fitted(*samples.values())
    print("both:", both)
    one, other = samples
    fits = {one: fitted(samples[other]), other: fitted(samples[one])}
    for name, calibration in fits.items():
        print(f"fitted on the other collection: {calibration}")
        print(f"  on {name}: {held_out(calibration, samples[name])}")
        print(f"  the fit on both: {held_out(both, samples[name])}")
    for name, collection in collections.items():
        schema = collection.corpus.schema
        for attribute in ATTRIBUTES:
            groups = schema.attributes[attribute].universe
            kinds = {
                "first 200": pools[name],
                "widened": await pools_of(collection, attribute, True),
                f"widened, {HELD_DOWN[attribute]} held down": await pools_of(
                    collection, attribute, True, FACTOR
                ),
                f"first 200, {HELD_DOWN[attribute]} held down": await pools_of(
                    collection, attribute, False, FACTOR
                ),
            }
            for what, own in kinds.items():
                for how, calibration in (("both", both), ("the other collection", fits[name])):
                    print(f"{name}, {attribute}, {what}, fitted on {how}")
                    if what != "first 200":
                        print(f"    {held_out(calibration, sample_of(own))}")
                    by_group(own, calibration, attribute, groups)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trec", type=Path, required=True)
    asyncio.run(main(arguments.parse_args().trec))
