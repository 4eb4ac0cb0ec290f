"""Fits the estimate of relevance from texts alone, and shows how it treats groups.

``python benchmarks/relevance_of_texts.py --trec FOLDER`` reads notables and the joined subset of
TREC Fair 2022 in FOLDER. For each form of each topic it estimates the 200 best documents by BM25,
fits on one collection, and holds the fit against the other. Then it prints for each group whether
estimates mean the same as for others, in these pools and in pools that one search for each group
has widened. What it prints stands in :mod:`fairqr.retrieval.relevance_of_texts` and in
docs/audit.md. Vectors that the indexes have are used; those of other texts are made first.
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
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Hits, Query
from fairqr.retrieval.relevance import Calibration
from fairqr.retrieval.relevance_of_texts import TextRelevance

ATTRIBUTES = ("gender", "continent")
DEEPEST = 20_000
"""More than any index here has."""

FIRST, EACH = 100, 50
"""Of a widened pool: how many documents by BM25, and how many more of each group."""

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
    """

    lexical: Array
    similarity: Array
    relevant: Array
    memberships: Mapping[str, Array]
    relevant_anywhere: Mapping[str, Array]


def first(hits: Hits, attribute: str) -> list[int]:
    """Return the places of the first documents by BM25."""
    return list(range(min(POOL, len(hits))))


def widened(hits: Hits, attribute: str) -> list[int]:
    """Return the places of the first documents, and of the first ones of each group."""
    places = dict.fromkeys(range(min(FIRST, len(hits))))
    for members in hits.memberships[attribute].T:
        places |= dict.fromkeys(np.flatnonzero(members > 0.5)[:EACH].tolist())
    return list(places)


async def pools_of(collection: Collection, attribute: str, is_widened: bool) -> list[Pool]:
    """Return the pools of all topics, in each form of the query."""
    engine = await Catalog().resolve(collection.corpus_name)
    estimate = await TextRelevance.open(engine, open_encoder("minilm"))
    pools = []
    for topic in collection.topics:
        relevant = collection.relevant(topic.id)
        (labelled,) = await engine.search([Query("", len(relevant), only=tuple(relevant))])
        anywhere = {name: labelled.memberships[name].sum(axis=0) for name in ATTRIBUTES}
        for text in dict.fromkeys((topic.text(0), topic.text(10))):
            (hits,) = await engine.search([Query(text, DEEPEST)])
            places = (widened if is_widened else first)(hits, attribute)
            ids = [hits.ids[place] for place in places]
            evidence = []
            for kind in (Weighed(0, 1, 0), Weighed(0, 0, 1)):
                estimate.calibration = kind
                found = await estimate.estimate_ids(text, ids)
                assert found is not None
                evidence.append(found)
            pools.append(
                Pool(
                    *evidence,
                    np.isin(ids, relevant).astype(float),
                    {name: hits.memberships[name][places] for name in ATTRIBUTES},
                    anywhere,
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


def by_group(
    pools: Sequence[Pool], calibration: Calibration, attribute: str, groups: Sequence[str]
) -> None:
    """Print for each group whether the estimates mean the same."""
    chances = [calibration.probability(pool.lexical, pool.similarity) for pool in pools]
    members = [pool.memberships[attribute] for pool in pools]
    estimated = np.array([shares(*pair) for pair in zip(chances, members, strict=True)])
    relevant = np.array([shares(p.relevant, m) for p, m in zip(pools, members, strict=True)])
    # Of fractional documents: those of the collection that are relevant are counted already.
    anywhere = np.array([shares(np.ones(1), p.relevant_anywhere[attribute][None]) for p in pools])
    off = (estimated - relevant)[~np.isnan(estimated + relevant).any(axis=1)]
    error = off.std(axis=0, ddof=1) / np.sqrt(len(off))
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
            f"{off[:, row].mean():+.3f} ± {error[row]:.3f}; relevant by bin: {' '.join(cells)}"
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
            wider = await pools_of(collection, attribute, True)
            for what, own in (("first 200", pools[name]), ("widened", wider)):
                for how, calibration in (("both", both), ("the other collection", fits[name])):
                    print(f"{name}, {attribute}, {what}, fitted on {how}")
                    if what == "widened":
                        print(f"    {held_out(calibration, sample_of(own))}")
                    by_group(own, calibration, attribute, groups)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trec", type=Path, required=True)
    asyncio.run(main(arguments.parse_args().trec))
