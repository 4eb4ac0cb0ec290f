"""Probe collections, manifests and experiments that are written out by hand."""

from __future__ import annotations

from typing import Any

from fairqr.evaluation.probes.collection import CELLS, ProbeCollection, ProbeItem, ProbeManifest
from fairqr.evaluation.probes.collection import ProbeQuery as Query
from fairqr.evaluation.probes.specification import (
    ListwiseExperiment,
    PairwiseExperiment,
    ProbeSource,
)
from fairqr.evaluation.probes.store import CollectionEntry, ProbeRunManifest

SOURCE = ProbeSource(attribute="gender", protected="female")


def item(id_: str, *, relevant: bool, protected: bool) -> ProbeItem:
    return ProbeItem(
        id=id_, title=f"Title {id_}", text=f"Text {id_}", relevant=relevant, protected=protected
    )


def query_of(id_: str, *cells: int, size: int = 8) -> Query:
    """A query with so many items in each cell, in the order of the cells."""
    items = [
        item(
            f"{id_}-{cell}-{number}",
            relevant=cell.startswith("relevant"),
            protected=cell.endswith("_protected"),
        )
        for cell, count in zip(CELLS, cells, strict=True)
        for number in range(count)
    ]
    each = size // 4
    short = {c: each - n for c, n in zip(CELLS, cells, strict=True) if n < each}
    return Query(id=id_, query=f"query {id_}", items=tuple(items), short=short)


def collection_of(*queries: Query, name: str = "small, gender", size: int = 8) -> ProbeCollection:
    from fairqr.evaluation.probes.collection import shortfalls

    manifest = ProbeManifest(
        name=name,
        source="small",
        source_fingerprint="0",
        attribute="gender",
        protected="female",
        unprotected="male",
        protected_groups=("female",),
        unprotected_groups=("male",),
        size=size,
        order="shuffled",
        seed=0,
        texts=True,
        queries=len(queries),
        short=shortfalls(queries),
    )
    return ProbeCollection(manifest=manifest, queries=queries)


def listwise(**changes: Any) -> ListwiseExperiment:
    values = {
        "kind": "llm_listwise",
        "title": "Small",
        "collection": "small",
        "sources": (SOURCE,),
        "rankers": ("initial",),
        "size": 8,
    }
    return ListwiseExperiment.model_validate(values | changes)


def pairwise(**changes: Any) -> PairwiseExperiment:
    values = {
        "kind": "llm_pairwise",
        "title": "Small",
        "collection": "small",
        "sources": (SOURCE,),
        "models": ("openai:fake",),
        "size": 8,
    }
    return PairwiseExperiment.model_validate(values | changes)


def manifest_of(
    experiment: ListwiseExperiment | PairwiseExperiment, *collections: ProbeCollection
) -> ProbeRunManifest:
    return ProbeRunManifest(
        experiment=experiment,
        collections=tuple(map(CollectionEntry.of, collections)),
        versions={},
        started="",
    )
