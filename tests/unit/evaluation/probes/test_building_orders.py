"""The initial order of the items, and giving a collection another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.probes.building import (
    build_probe_collection,
    first_queries,
    open_probe_collection,
    reorder,
    reorder_collection,
)
from fairqr.evaluation.probes.collection import (
    CELLS,
    Order,
    ProbeItem,
    ProbeQuery,
    write_probe_collection,
)
from fairqr.evaluation.probes.specification import ProbeSettings, ProbeSource
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.sources.catalog import Catalog
from tests.unit.engines import remove
from tests.unit.evaluation.probes.small_collections import people, sides_of, write_collection

FEMALE = ProbeSource(attribute="gender", protected="female")


@st.composite
def queries(draw: st.DrawFn) -> ProbeQuery:
    cells = draw(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
    items = [
        ProbeItem(id=f"d{n}", title="", relevant=relevant, protected=protected)
        for n, (relevant, protected) in enumerate(cells)
    ]
    return ProbeQuery(id=draw(st.sampled_from(["a", "b"])), query="q", items=tuple(items))


def ordered(query: ProbeQuery, order: Order, seed: int = 0) -> list[str]:
    return [item.id for item in asyncio.run(reorder(query, order, seed=seed)).items]


@given(queries(), st.sampled_from(["shuffled", "discriminatory"]), st.integers(0, 5), st.data())
def test_an_order_is_a_permutation_that_forgets_the_one_before(
    query: ProbeQuery, order: Order, seed: int, data: st.DataObject
) -> None:
    """The same items, and in the same order whatever order they were in."""
    found = ordered(query, order, seed)
    assert sorted(found) == sorted(item.id for item in query.items)
    turned = query.model_copy(update={"items": tuple(data.draw(st.permutations(query.items)))})
    assert ordered(turned, order, seed) == found


@given(queries())
def test_discriminatory_has_one_cell_after_the_other(query: ProbeQuery) -> None:
    """Relevant unprotected, relevant protected, irrelevant unprotected, irrelevant protected."""
    found = asyncio.run(reorder(query, "discriminatory")).items
    places = [CELLS.index(item.cell) for item in found]
    assert all(one <= other for one, other in pairwise(places))
    assert [(item.relevant, item.protected) for item in found] == sorted(
        [(item.relevant, item.protected) for item in query.items], key=lambda it: (not it[0], it[1])
    )


def test_seed_and_query_decide_what_is_shuffled() -> None:
    """So that two queries with the same items are not in the same order."""
    items = tuple(ProbeItem(id=f"{n}", title="", relevant=True, protected=n < 9) for n in range(30))
    one, other = (ProbeQuery(id=id_, query="q", items=items) for id_ in "ab")
    orders: list[Order] = ["shuffled", "discriminatory"]
    for order in orders:
        found = [ordered(one, order), ordered(other, order), ordered(one, order, 1)]
        assert len({tuple(ids) for ids in found}) == 3
        assert ordered(one, order) == found[0]


@pytest.fixture
async def cooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SearchEngine]:
    """An engine over five people; the query finds two of them, the others have equal scores."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    documents = [(id_, "female" if id_ < "c" else "male") for id_ in "edcba"]
    qrels = {"t": dict.fromkeys("abcd", 1), "u": {"e": 1}}
    write_collection(tmp_path / "cooks", documents, qrels, {"t": "cook", "u": "the"})
    path = tmp_path / "cooks" / "documents.jsonl"
    text = path.read_text().replace("Text of d", "A cook, a cook").replace("of b", "of a cook")
    path.write_text(text)
    engine = await Catalog().resolve(str(path))
    yield engine
    await engine.aclose()


async def test_bm25_is_the_ranking_of_the_engine(cooks: SearchEngine, tmp_path: Path) -> None:
    """The best first; what is not found comes last in order of id, and so does all for no term."""
    collection = find_collection(tmp_path / "cooks")
    sides = sides_of(collection.corpus.schema)
    built = await build_probe_collection(
        collection, sides, ProbeSettings(size=8, order="bm25"), engine=cooks
    )
    assert built.manifest.order == "bm25"
    assert [item.id for item in built.queries[0].items] == ["d", "b", "a", "c", "e"]
    assert [item.id for item in built.queries[1].items] == ["a", "b", "c", "d", "e"]
    # What the engine lacks comes last as well.
    await remove(cooks, ["d", "a"])
    again = await reorder(built.queries[0], "bm25", engine=cooks)
    assert [item.id for item in again.items] == ["b", "c", "e", "a", "d"]
    with pytest.raises(InputError, match="bm25 needs a search engine"):
        await reorder(built.queries[0], "bm25")


async def test_a_built_collection_is_given_another_order(tmp_path: Path) -> None:
    """It is then what it would have been if it had been built so."""
    collection = people(tmp_path)
    sides = sides_of(collection.corpus.schema)
    shuffled = await build_probe_collection(collection, sides, ProbeSettings(size=16, seed=3))
    orders: list[Order] = ["discriminatory", "shuffled"]
    for order in orders:
        built = await build_probe_collection(
            collection, sides, ProbeSettings(size=16, seed=3, order=order)
        )
        assert await reorder_collection(shuffled, order) == built
        assert built.manifest.order == order


async def test_a_source_is_built_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder gives what was written, the first of its queries, and another order if asked."""
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    people(tmp_path / "people")
    name = str(tmp_path / "people")
    begun: list[str] = []

    def preparing(what: str) -> object:
        begun.append(what)
        return lambda done, total=None, /: None

    built = await open_probe_collection(
        FEMALE, ProbeSettings(collection=name, size=16), preparing=preparing
    )  # type: ignore[arg-type]
    assert begun == [f"importing {name}", "reading people"]
    assert (built.manifest.source, built.manifest.order) == (name, "shuffled")
    write_probe_collection(built, tmp_path / "kept")
    kept = ProbeSource(folder=str(tmp_path / "kept"))
    assert await open_probe_collection(kept, ProbeSettings()) == built
    assert await open_probe_collection(kept, ProbeSettings(queries=9)) == built
    fewer = await open_probe_collection(
        kept, ProbeSettings(collection="ignored", queries=2, size=200)
    )
    assert fewer == first_queries(built, 2)
    assert fewer.queries == built.queries[:2]
    assert fewer.manifest.queries == 2
    other = await open_probe_collection(kept, ProbeSettings(order="discriminatory"))
    assert other == await reorder_collection(built, "discriminatory")
    ranked = await open_probe_collection(kept, ProbeSettings(order="bm25"))
    assert ranked == await open_probe_collection(
        FEMALE, ProbeSettings(collection=name, size=16, order="bm25")
    )
    assert ranked.manifest.order == "bm25"
    with pytest.raises(InputError, match="Name a collection"):
        await open_probe_collection(FEMALE, ProbeSettings())
    path = tmp_path / "people" / "qrels.txt"
    path.write_text(path.read_text() + "a 0 bf1 1\n")
    with pytest.raises(InputError, match="has changed since the probe collection 'people, gender"):
        await open_probe_collection(kept, ProbeSettings(order="bm25"))


async def test_what_is_short_is_counted_over_the_first_queries(tmp_path: Path) -> None:
    """The manifest of a part does not speak of the rest."""
    collection = people(tmp_path, each=2)
    sides = sides_of(collection.corpus.schema)
    built = await build_probe_collection(collection, sides, ProbeSettings(size=16))
    assert built.manifest.short["relevant_protected"] == {"queries": 3, "items": 6}
    part = first_queries(built, 1).manifest
    assert part.short["relevant_protected"] == {"queries": 1, "items": 2}
    assert first_queries(built, None) is built
