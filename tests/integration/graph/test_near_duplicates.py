"""Copies that somebody edits a little share a claim by merit; different persons do not.

The texts are those of notables, the vectors MiniLM's, and each person has one of two sellers.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from contextlib import aclosing, closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr import Context, FairSearch
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.integrations.order import Evidence, Given, fair_list
from fairqr.graph.search.result import SearchResult
from fairqr.retrieval.encoders.encoder import KeptVectors, text_of
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.engines.opening import open_source
from fairqr.retrieval.fairness.claims import claims_by_text, claims_by_vector
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.documents import Document, read_documents
from tests.servers.attached_people import Server, described

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("people")]

SCHEMA = "attributes: {seller: {field: seller, groups: [few, many]}}"
NOTABLES = Path("retrieval/corpora/notables/documents.jsonl.gz")
PEOPLE = 50
COPIED = 4
COPIES = 6
COUNTED = f"{COPIED * (COPIES + 1)} near duplicates count as {COPIED}"
MERIT = Context(target="merit:1", ask="never", k=200)


@pytest.fixture(autouse=True)
def _weights(clean_environment: Path, minilm_cache: Path) -> None:
    """MiniLM is there."""


def physicists() -> list[Document]:
    known = (it for it in read_documents(NOTABLES) if re.search(r"\bphysicist\b", it.text))
    return [*islice(known, PEOPLE)]


def edited(text: str, copy: int) -> str:
    """Return a text with another sentence behind it, or in another order."""
    more = f"Order number {copy} today, with free shipping."
    sentences = re.split(r"(?<=\.) ", text)
    return [f"{text} {more}", text.upper(), " ".join([*sentences[1:], sentences[0]])][copy % 3]


def offers() -> list[dict[str, Any]]:
    """All persons, and edited copies of the first, whose seller is the same."""
    rows = []
    for number, person in enumerate(physicists()):
        seller = "many" if number < 2 * COPIED else "few"
        row = {"title": person.title, "seller": seller}
        rows.append({**row, "id": person.id, "text": person.text})
        copies = range(COPIES if number < COPIED else 0)
        rows += [
            {**row, "id": f"{person.id} {it}", "text": edited(person.text, it)} for it in copies
        ]
    return rows


def share_of_many(result: SearchResult) -> float:
    """The merit of the seller of copies, if each person claims the highest probability once."""
    highest: dict[tuple[str, str], float] = defaultdict(float)
    for place in result.baseline.ranking:
        (seller,) = place.groups["seller"]
        assert place.relevance is not None
        key = (seller, place.id.split()[0])
        highest[key] = max(highest[key], place.relevance)
    of_many = sum(value for (seller, _), value in highest.items() if seller == "many")
    return of_many / sum(highest.values())


async def compare(engine: SearchEngine) -> None:
    async with FairSearch(engine, None) as search:
        result = await search.search("physicist", MERIT)
    assert len(result.baseline.ranking) == len(offers())
    assert result.target["seller"]["many"] == pytest.approx(share_of_many(result))
    assert result.target_origin["seller"].endswith(f"; {COUNTED}")


async def test_copies_in_an_index_share_a_claim(tmp_path: Path) -> None:
    """With its vectors stored, and with the texts of what words found read and encoded."""
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    path = tmp_path / "offers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in offers()))
    for retriever in ("hybrid-pool:minilm", "hybrid:minilm"):
        opened = await Catalog(tmp_path).resolve(str(path), retriever="hybrid")
        async with aclosing(opened) as engine:
            assert engine.retriever == retriever
            await compare(engine)
        # This stores vectors.
        await (await Catalog(tmp_path).resolve(str(path), retriever="dense")).aclose()


@pytest.mark.promise("graph")
@pytest.mark.elasticsearch
async def test_copies_in_an_attached_index_share_a_claim(
    elasticsearch_url: str, tmp_path: Path
) -> None:
    """Copies of a document in an attached index share one claim, and the result counts them.

    It has no vectors, so the texts of the first 200 are read and encoded in any case.
    """
    server = Server(elasticsearch_url)
    mapping = {"properties": {"seller": {"type": "keyword"}}}
    documents = {row["id"]: row for row in offers()}
    with closing(server.client), server.index("offers", documents, mapping):
        source = described(
            server,
            "offers",
            title="title",
            text=["text"],
            attributes={"seller": {"field": "seller", "groups": ["few", "many"]}},
        )
        async with aclosing(
            await open_source(source, retriever="hybrid", store=tmp_path)
        ) as engine:
            assert engine.retriever == "hybrid-pool:minilm"
            await compare(engine)


async def test_copies_in_a_given_list_share_a_claim(tmp_path: Path) -> None:
    """As the proxy and ``/v1/rerank`` get one, with MiniLM and without."""
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    (tmp_path / "offers.jsonl").write_text(json.dumps(offers()[0]) + "\n")
    texts = [f"{row['title']}\n{row['text']}" for row in offers()]
    given = [
        Given(place, "", texts[place], row["title"], lambda _, seller=row["seller"]: seller)
        for place, row in enumerate(offers())
    ]
    async with aclosing(await Catalog(tmp_path).resolve(str(tmp_path / "offers.jsonl"))) as engine:
        evidence = Evidence(ListEvidence())
        _, read, _ = await fair_list(engine, MERIT, "physicist", given, evidence)
        _, unread, _ = await fair_list(engine, MERIT, "physicist", given, None)
        other = MERIT.model_copy(update={"target": None})
        _, untold, _ = await fair_list(engine, other, "physicist", given, evidence)
    assert read.claims is not None
    assert len(set(read.claims.tolist())) == PEOPLE
    # Capitals are no edit; the other two kinds of copies are other texts.
    by_text = claims_by_text(texts)
    assert unread.claims is not None
    assert unread.claims.tolist() == by_text.tolist()
    assert PEOPLE < len(set(by_text.tolist())) < len(given)
    assert untold.claims is None


@pytest.mark.promise("graph")
async def test_the_nearest_persons_of_notables_are_no_copies() -> None:
    """Distinct persons are no copies, however near their texts are.

    No pairs of notables have higher cosines than these.
    """
    nearest = "Alaric I|Alaric II|Pope John XVIII|Pope John XVII|Frederick VII of Denmark"
    names = {*nearest.split("|"), "Frederick I of Denmark", "Pope Leo X", "Pope Leo XI"}
    people = [person for person in read_documents(NOTABLES) if person.title in names]
    assert len(people) == len(names)
    vectors = await (await KeptVectors.of(MiniLmEncoder())).encode([*map(text_of, people)])
    assert (vectors @ vectors.T - np.eye(len(people))).max() == pytest.approx(0.911, abs=1e-3)
    assert (claims_by_vector(vectors, MiniLmEncoder.name) == np.arange(len(people))).all()
