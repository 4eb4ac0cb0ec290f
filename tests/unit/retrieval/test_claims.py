"""Near duplicates share one claim by merit: against definitions, and as engines tell of them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document as LangChainDocument

from fairqr import from_langchain
from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.engines.engine import Query, SearchEngine, rows_of
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine, VectorEngine
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.fairness.claims import (
    ALIKE,
    EQUAL,
    claims_by_text,
    claims_by_vector,
    claims_of_rows,
    merits_of,
    say_shared,
)
from fairqr.retrieval.sources.documents import Document
from tests.unit.engines import WatchedEngine
from tests.unit.retrieval.embedded import GENDER, built
from tests.unit.retrieval.test_langchain_engine import WordRetriever
from tests.unit.retrieval.vector_encoders import CountingEncoder, generated

probabilities = st.floats(0, 1).map(lambda value: round(value, 3))


def linked_by_hand(links: np.ndarray[Any, Any]) -> list[int]:
    """The first document that each is linked to, perhaps through others, one by one."""
    claims = []
    for row in range(len(links)):
        reached = {row}
        fresh = [row]
        while fresh:
            found = {*np.flatnonzero(links[fresh.pop()]).tolist()} - reached
            reached |= found
            fresh += found
        claims.append(min(reached))
    return claims


def vectors_at(degrees: Sequence[int | None]) -> np.ndarray[Any, Any]:
    """Vectors of length 1 in a plane; zeros for None."""
    rows = [
        (0.0, 0.0) if it is None else (np.cos(np.radians(it)), np.sin(np.radians(it)))
        for it in degrees
    ]
    return np.array(rows, dtype=np.float32).reshape(-1, 2)


# Up to 14 and 2 degrees apart, vectors have the cosines that count. Many are in chains.
angles = st.lists(st.one_of(st.none(), st.integers(0, 30).map(lambda it: 2 * it)), max_size=25)


@given(angles, st.data(), st.sampled_from([("minilm", ALIKE), ("other", EQUAL)]))
def test_claims_by_vector_are_connected_components(
    degrees: list[int | None], data: st.DataObject, known_by: tuple[str, float]
) -> None:
    encoder, least = known_by
    more = data.draw(st.integers(0, 5))
    size = len(degrees) + more
    texts = data.draw(st.lists(st.sampled_from("aabc"), min_size=size, max_size=size))
    texts = [text if text == "a" else f"{text}{row}" for row, text in enumerate(texts)]
    links = np.array([[one == other for other in texts] for one in texts], dtype=bool)
    links = links.reshape(size, size)
    for one, other in itertools.product(range(len(degrees)), repeat=2):
        here = degrees[one]
        there = degrees[other]
        if here is not None and there is not None:
            links[one, other] |= np.cos(np.radians(here - there)) >= least
    claims = claims_by_vector(vectors_at(degrees), encoder, claims_by_text(texts))
    assert claims.tolist() == linked_by_hand(links)


def test_texts_are_the_same_but_for_white_space_and_case() -> None:
    texts = ["A red shoe", " a  RED\nshoe ", "", "a red shoes", " ", "Straße", "STRASSE"]
    assert claims_by_text(texts).tolist() == [0, 0, 2, 3, 4, 5, 5]


@given(st.lists(st.sampled_from("abcd "), max_size=12), st.randoms())
def test_rows_of_claims_are_the_claims_of_the_rows(texts: list[str], random: Any) -> None:
    rows = random.sample(range(len(texts)), random.randint(0, len(texts)))
    some = [texts[row] for row in rows]
    assert claims_of_rows(claims_by_text(texts), rows).tolist() == claims_by_text(some).tolist()


documents = st.lists(st.tuples(st.sampled_from("abcdef"), probabilities), max_size=12)


@given(documents)
def test_merits_are_the_definition(known: list[tuple[str, float]]) -> None:
    by_text: dict[str, list[float]] = defaultdict(list)
    for text, probability in known:
        by_text[text].append(probability)
    expected = [
        probability * max(by_text[text]) / sum(by_text[text]) if probability else 0.0
        for text, probability in known
    ]
    values = np.array([probability for _, probability in known])
    merits = merits_of(values, claims_by_text([text for text, _ in known]))
    assert merits.tolist() == pytest.approx(expected, rel=1e-12)


def merit_by_group(known: Sequence[tuple[str, float, str]]) -> dict[str, float]:
    """The merit of each group, by texts, probabilities and groups of documents."""
    values = np.array([probability for _, probability, _ in known])
    merits = merits_of(values, claims_by_text([text for text, *_ in known]))
    total: dict[str, float] = defaultdict(float)
    for (*_, group), merit in zip(known, merits.tolist(), strict=True):
        total[group] += merit
    return total


grouped = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=3), probabilities, st.sampled_from("xyz")),
    min_size=1,
    max_size=12,
    unique_by=lambda it: it[0],
)


@pytest.mark.promise("graph")
@given(grouped, st.data())
def test_copies_leave_the_merit_of_every_group_as_it_was(
    known: list[tuple[str, float, str]], data: st.DataObject
) -> None:
    """Copies of a document do not raise what their group merits.

    Whoever lists a document again, as likely or less likely to be relevant, gains nothing.
    """
    copied = data.draw(st.lists(st.sampled_from(known), max_size=30))
    factors = data.draw(
        st.lists(st.sampled_from([1.0, 0.5, 0.0]), min_size=len(copied), max_size=len(copied))
    )
    copies = [
        (text.upper(), probability * factor, group)
        for (text, probability, group), factor in zip(copied, factors, strict=True)
    ]
    every = data.draw(st.permutations([*known, *copies]))
    assert merit_by_group(every) == pytest.approx(merit_by_group(known), rel=1e-12)


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=2), probabilities), max_size=10))
def test_copies_of_others_take_part_of_a_claim_and_add_nothing(
    known: list[tuple[str, float]],
) -> None:
    """Whatever groups they are of, documents that say the same merit the highest probability."""
    values = np.array([probability for _, probability in known])
    claims = claims_by_text([text for text, _ in known])
    merits = merits_of(values, claims)
    for claim in set(claims.tolist()):
        assert merits[claims == claim].sum() == pytest.approx(values[claims == claim].max())
    assert (merits <= values).all()


@given(st.lists(probabilities, max_size=10), st.randoms())
def test_merits_do_not_depend_on_the_order(values: list[float], random: Any) -> None:
    texts = [random.choice("abcdef") for _ in values]
    order = random.sample(range(len(values)), len(values))
    merits = merits_of(np.array(values), claims_by_text(texts))
    shuffled = merits_of(np.array(values)[order], claims_by_text([texts[place] for place in order]))
    assert shuffled.tolist() == pytest.approx(merits[order].tolist(), rel=1e-12)
    alone = merits_of(np.array(values), claims_by_text([*map(str, range(len(values)))]))
    assert alone.tolist() == values == merits_of(np.array(values), None).tolist()


def test_how_many_count_as_how_many_is_said() -> None:
    assert say_shared(None) == say_shared(claims_by_text(["a", "b", ""])) == ""
    counted = say_shared(claims_by_text(["a", "b", "a", "c", "b", "a"]))
    assert counted == "5 near duplicates count as 2"


# --- engines ----------------------------------------------------------------------------------

# Each has other words, so another vector.
UNIQUE = [*{frozenset(text_of(document).split()): document for document in generated(40)}.values()]
COPIES = [
    Document(f"{document.id}{copy}", document.title, document.text.upper(), document.fields)
    for document in UNIQUE[:5]
    for copy in "abc"
]


async def engine_of(kind: str, folder: Path) -> SearchEngine:
    every = [*UNIQUE, *COPIES]
    if kind == "langchain":
        metadata = [{**document.fields, "title": document.title} for document in every]
        passages = [
            LangChainDocument(document.text, id=document.id, metadata=own)
            for document, own in zip(every, metadata, strict=True)
        ]
        return from_langchain(WordRetriever(documents=passages), schema=GENDER, title="title")
    lexical = built(folder / "v1", every)
    if kind == "bm25":
        return lexical
    if kind in ("dense", "hybrid"):
        opened = VectorEngine if kind == "dense" else HybridEngine
        return await opened.open(lexical, CountingEncoder())
    keeps_order = kind == "pool of another's"
    return await EncodedPoolEngine.open(lexical, CountingEncoder(), keeps_order=keeps_order)


KINDS = ["dense", "hybrid", "pool of another's", "pool", "langchain"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_reads_texts_reports_copies(tmp_path: Path, kind: str) -> None:
    """And asks for nothing more; each document is with its copies, whatever their order."""
    engine = await engine_of(kind, tmp_path)
    query = Query("w1 w2", 100, with_claims=True)
    (hits,) = await engine.search([query])
    (without,) = await engine.search([Query("w1 w2", 100)])
    assert without.claims is None
    assert hits.ids == without.ids
    assert hits.claims is not None
    said = {document.id: (document.title, document.text.lower()) for document in [*UNIQUE, *COPIES]}
    first: dict[Any, int] = {}
    expected = [first.setdefault(said[id_], row) for row, id_ in enumerate(hits.ids)]
    assert hits.claims.tolist() == expected
    assert len(first) < len(expected)
    few = rows_of(hits, [*range(len(hits))][::-2])
    assert few.claims is not None
    assert [few.ids[row] for row in few.claims] == [
        next(other for other in few.ids if said[other] == said[id_]) for id_ in few.ids
    ]


async def test_words_alone_compare_nothing(tmp_path: Path) -> None:
    engine = await engine_of("bm25", tmp_path)
    (hits,) = await engine.search([Query("w1 w2", 100, with_claims=True)])
    assert hits.claims is None


async def test_nothing_more_is_asked_for(tmp_path: Path) -> None:
    asked = []
    for with_claims in (False, True):
        lexical = WatchedEngine(built(tmp_path / str(with_claims), [*UNIQUE, *COPIES]))
        engine = await EncodedPoolEngine.open(lexical, CountingEncoder(), keeps_order=True)
        lexical.searches.clear()
        lexical.reads.clear()
        await engine.search([Query("w3", 100, with_claims=with_claims)])
        asked.append((len(lexical.searches), lexical.reads))
    assert asked[0] == asked[1]
