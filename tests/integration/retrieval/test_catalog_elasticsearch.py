"""An index that is made on Elasticsearch by name: searched, written to, replaced, deleted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fairqr.base.errors import IndexNotFoundError, InputError
from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.corpus import Corpus, find_corpus
from fairqr.retrieval.engines.engine import EngineInfo
from tests.patience import PATIENCE
from tests.unit.engines import hits_of

pytestmark = pytest.mark.elasticsearch

NAME = "catalog-test"


def write(folder: Path, *texts: str) -> Corpus:
    """Write a corpus of these texts, whose ids are 0, 1 and so on."""
    folder.mkdir(exist_ok=True)
    (folder / "schema.yaml").write_text("attributes: {gender: {field: g, groups: [f, m]}}")
    path = folder / "people.jsonl"
    lines = ({"id": str(n), "text": text, "g": "f"} for n, text in enumerate(texts))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return find_corpus(path)


@pytest.fixture
async def server(elasticsearch_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=elasticsearch_url, timeout=PATIENCE, trust_env=False
    ) as client:
        yield client
        await client.delete("/production")


async def indices(server: httpx.AsyncClient) -> list[str]:
    found = (await server.get(f"/_cat/indices/fairqr-{NAME}*?format=json")).json()
    return [entry["index"] for entry in found]


async def test_an_index_on_a_server_has_a_name_like_any_other(
    tmp_path: Path, elasticsearch_url: str, server: httpx.AsyncClient
) -> None:
    catalog = Catalog(tmp_path / "data")
    counts: list[int] = []
    made = await catalog.create_on_elasticsearch(
        NAME, write(tmp_path / "c", "old", "old"), url=elasticsearch_url, progress=counts.append
    )
    assert counts[-1] == 2
    assert catalog.names() == [NAME]
    engine = await catalog.resolve(NAME)
    assert (engine.name, made.name) == (NAME, NAME)
    hits = await hits_of(engine, "old", 9)
    assert (hits.ids, hits.memberships["gender"].tolist()) == (["0", "1"], [[1, 0], [1, 0]])
    await engine.aclose()

    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "1", "text": "new", "g": "m"}\n{"id": "x", "text": "new"}\n')
    assert await catalog.upsert(NAME, more) == (2, 3)
    assert await catalog.remove(NAME, ["0", "nobody"]) == (1, 2)
    (info,) = await catalog.infos()
    assert isinstance(info, EngineInfo)
    assert (info.engine, info.documents) == ("elasticsearch", 2)

    with pytest.raises(InputError, match=f"'{NAME}' is the name of an attached source"):
        await catalog.create(NAME, write(tmp_path / "c", "embedded"))
    await catalog.create_on_elasticsearch(
        NAME, write(tmp_path / "c", "again"), url=elasticsearch_url
    )
    engine = await catalog.resolve(NAME)
    assert (await hits_of(engine, "again new old", 9)).ids == ["0"]
    await engine.aclose()
    assert len(await indices(server)) == 1

    await catalog.delete(NAME)
    assert await indices(server) == []
    assert catalog.names() == []
    assert list((tmp_path / "data" / "sources").iterdir()) == []
    with pytest.raises(IndexNotFoundError, match=f"There is no index '{NAME}'"):
        await catalog.delete(NAME)


async def test_what_somebody_wrote_into_its_file_is_never_deleted(
    tmp_path: Path, elasticsearch_url: str, server: httpx.AsyncClient
) -> None:
    """What is deleted on the server is what fairqr made there."""
    (await server.put("/production/_doc/1", json={"text": "precious"})).raise_for_status()
    catalog = Catalog(tmp_path / "data")
    await catalog.create_on_elasticsearch(NAME, write(tmp_path / "c", "old"), url=elasticsearch_url)
    path = catalog.sources()[NAME]
    path.write_text(path.read_text().replace(f"fairqr-{NAME}", "production"))
    await catalog.delete(NAME)
    assert (await server.get("/production/_doc/1")).json()["found"]
    assert await indices(server) == []


async def test_an_index_that_is_gone_from_its_server_is_off_the_list_too(
    tmp_path: Path, elasticsearch_url: str, server: httpx.AsyncClient
) -> None:
    catalog = Catalog(tmp_path / "data")
    await catalog.create_on_elasticsearch(NAME, write(tmp_path / "c", "old"), url=elasticsearch_url)
    for index in await indices(server):
        (await server.delete(f"/{index}")).raise_for_status()
    with pytest.raises(IndexNotFoundError, match=f"'{NAME}' no longer exists on its server"):
        await catalog.delete(NAME)
    assert catalog.names() == []
