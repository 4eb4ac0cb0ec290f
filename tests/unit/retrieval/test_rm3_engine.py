"""RM3 against its definition, computed by hand over the documents."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from fairqr.base.errors import InputError, UnsupportedError
from fairqr.retrieval.analysis import english_analyzer
from fairqr.retrieval.documents import Document
from fairqr.retrieval.encoders.opening import Retriever
from fairqr.retrieval.engines.engine import Query, SearchEngine, lexical_of
from fairqr.retrieval.engines.opening import with_retriever
from fairqr.retrieval.engines.rm3 import Rm3Engine
from fairqr.retrieval.retriever_parameters import Rm3
from tests.unit.engines import WatchedEngine, answers_of, hits_of, ranked
from tests.unit.retrieval.embedded import GENDER, built

COMMON = "person"
STEMS = [f"{first}{second}" for first in ("lum", "tor", "vek", "zan") for second in "aeiou"]
ENDINGS = ["", "s", "ing"]


def generated(count: int = 300) -> list[Document]:
    """Documents of words with endings that stemming takes away, and of one word that all have."""
    draw = random.Random(7)
    weights = [1 / (1 + place) for place in range(len(STEMS))]
    documents = []
    for number in range(count):
        stems = draw.choices(STEMS, weights, k=draw.randint(3, 12))
        words = [f"{stem}nt{draw.choice(ENDINGS)}" for stem in stems]
        title = f"{draw.choice(STEMS)}nt X"
        text = f"The {' '.join(words)}, a {COMMON} of {number % 7}."
        fields = {"gender": draw.choice(["female", "male"])}
        documents.append(Document(f"d{number:03}", title, text, fields))
    return documents


def stems_of(text: str) -> list[str]:
    """The stems of the words of 2 to 20 letters or digits, without stop words."""
    analyzer = english_analyzer()
    words = [word for word in re.findall(r"\w+", text.lower()) if 2 <= len(word) <= 20]
    return [stem for word in words for stem in analyzer.analyze(word)]


async def by_hand(
    lexical: SearchEngine, documents: list[Document], query: str, options: Rm3
) -> dict[str, float]:
    """The weights α·P(w|q) + (1 − α)·P(w|R) of all stems, those of the query included."""
    texts = {d.id: stems_of(f"{d.title} {d.text}") for d in documents}
    found = Counter(stem for stems in texts.values() for stem in set(stems))
    model: dict[str, float] = defaultdict(float)
    first = await hits_of(lexical, query, options.documents)
    for id_, score in zip(first.ids, first.scores, strict=True):
        for stem in texts[id_]:
            if found[stem] <= 0.1 * len(documents):
                model[stem] += score / len(texts[id_])
    best = sorted(model, key=lambda stem: -model[stem])[: options.terms]
    total = sum(model[stem] for stem in best)
    asked = Counter(stems_of(query))
    weights: dict[str, float] = defaultdict(float)
    for stem in best:
        weights[stem] += (1 - options.weight) * model[stem] / total
    for stem, count in asked.items():
        weights[stem] += options.weight * count / asked.total()
    return weights


async def opened(folder: Path, documents: list[Document], options: Rm3 | None = None) -> Rm3Engine:
    return Rm3Engine(built(folder, documents), options or Rm3())


@pytest.mark.parametrize(
    "options", [Rm3(), Rm3(documents=3, terms=4, weight=0.8), Rm3(documents=50, terms=2)]
)
@pytest.mark.parametrize("query", ["vekunt", "zanint zanont", "the zanunts zanunts vekont"])
async def test_scores_are_those_of_the_definition(tmp_path: Path, options: Rm3, query: str) -> None:
    """A document's score is the sum of BM25 over single words, each times its weight."""
    documents = generated()
    engine = await opened(tmp_path / "v1", documents, options)
    lexical = lexical_of(engine)
    weights = await by_hand(lexical, documents, query, options)
    expected: dict[str, float] = defaultdict(float)
    for stem, weight in weights.items():
        alone = await hits_of(lexical, stem, len(documents))
        for id_, score in zip(alone.ids, alone.scores, strict=True):
            expected[id_] += weight * score
    found = await hits_of(engine, query, len(documents))
    scale = len(stems_of(query)) / options.weight
    assert set(found.ids) == set(expected)
    assert found.scores == pytest.approx([scale * expected[id_] for id_ in found.ids], rel=1e-4)
    assert found.scores == sorted(found.scores, reverse=True)
    gender = GENDER.attributes["gender"]
    rows = [list(documents[int(id_[1:])].membership(gender)) for id_ in found.ids]
    assert found.memberships["gender"].tolist() == rows


async def test_a_document_in_other_words_is_found(tmp_path: Path) -> None:
    """What the first documents have in common with it leads to it; common words do not."""
    documents = [
        *[Document(f"a{n}", "", f"physicist quantum electron {COMMON}") for n in range(3)],
        Document("b", "", f"electron quantum mechanics {COMMON}"),
        *[Document(f"c{n:02}", "", f"poet verse {COMMON}") for n in range(40)],
    ]
    engine = await opened(tmp_path / "v1", documents)
    assert (await ranked(lexical_of(engine), "physicist", 99)).ids == ["a0", "a1", "a2"]
    assert (await ranked(engine, "physicist", 99)).ids == ["a0", "a1", "a2", "b"]
    assert (await ranked(engine, "physicist", 2)).ids == ["a0", "a1"]


async def test_given_documents_get_the_scores_of_a_search(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "v1", generated())
    whole = await ranked(engine, "zanint", 300)
    found = await ranked(engine, "zanint", 99, only=[*whole.ids[::-9], "nobody"])
    scores = dict(zip(whole.ids, whole.scores, strict=True))
    assert found.ids == [id_ for id_ in whole.ids if id_ in set(whole.ids[::-9])]
    assert found.scores == pytest.approx([scores[id_] for id_ in found.ids], rel=1e-5)


async def test_words_of_boost_choose_what_is_learned_from(tmp_path: Path) -> None:
    documents = [
        Document("a", "", "physicist atom"),
        Document("b", "", "physicist she radium"),
        Document("c", "", "radium clock"),
        Document("d", "", "atom bomb"),
        *[Document(f"x{n:02}", "", "poet verse") for n in range(40)],
    ]
    engine = await opened(tmp_path / "v1", documents, Rm3(documents=1))
    assert (await hits_of(engine, "physicist", 9, boost="she")).ids == ["b", "a", "c"]
    assert (await hits_of(engine, "physicist", 9)).ids == ["a", "b", "d"]


async def test_with_the_whole_weight_on_the_query_it_is_plain_retrieval(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "v1", generated(), Rm3(weight=1))
    lexical = lexical_of(engine)
    assert await ranked(engine, "zanint", 50) == await ranked(lexical, "zanint", 50)


@pytest.mark.parametrize("query", ["", "  ", "the", "unheard", "..."])
async def test_what_finds_nothing_is_not_expanded(tmp_path: Path, query: str) -> None:
    engine = await opened(tmp_path / "v1", generated(40))
    assert len(await hits_of(engine, query, 9)) == 0
    found = await hits_of(engine, query, 9, only=["d001", "d000"])
    assert (found.ids, found.scores) == (["d000", "d001"], [0, 0])


async def test_counts_and_groups_are_the_engines_own(tmp_path: Path) -> None:
    """And cost no more; the queries of a round are expanded together."""
    lexical = built(tmp_path / "v1", generated())
    watched = WatchedEngine(lexical)
    engine = Rm3Engine(watched, Rm3())
    asked = [
        Query("zanint", 0),
        Query("", 0),
        Query("", 9, only=("d001", "d002")),
        Query("zanint zanont", 9, every_word=True),
    ]
    assert await answers_of(engine, asked) == await answers_of(lexical, asked)
    assert watched.round_trips == 1
    both = [Query("zanint", 9), Query("vekunt", 9), Query("zanint", 5)]
    together = await engine.search([*asked, *both])
    assert (watched.round_trips, len(watched.reads)) == (4, 1)
    for query, hits in zip(both, together[len(asked) :], strict=True):
        assert hits.ids == (await hits_of(engine, query.text, query.n)).ids


async def test_it_is_opened_by_name_and_says_its_parameters(tmp_path: Path) -> None:
    lexical = built(tmp_path / "v1", generated(40))
    plain = await with_retriever(lexical, "rm3")
    assert (plain.retriever, lexical.retriever) == ("rm3", "bm25")
    assert plain.capabilities == lexical.capabilities
    changed = await with_retriever(lexical, "rm3: terms=20, weight=0.75")
    assert changed.retriever == "rm3:terms=20,weight=0.75"
    assert isinstance(changed, Rm3Engine)
    assert changed.options == Rm3(documents=10, terms=20, weight=0.75)
    assert Retriever.of(changed.retriever).rm3 == changed.options


@pytest.mark.parametrize("wrong", ["weight=0", "weight=1.5", "terms=0", "documents=x", "words=3"])
async def test_parameters_are_checked_in_one_sentence(wrong: str) -> None:
    name = wrong.partition("=")[0]
    with pytest.raises(InputError, match=f"parameter '{name}'.*are documents, terms, weight"):
        Retriever.of(f"rm3:{wrong}")


async def test_an_engine_that_cannot_count_is_refused_and_closed(tmp_path: Path) -> None:
    watched = WatchedEngine(built(tmp_path / "v1", generated(9)), without=["document_frequencies"])
    with pytest.raises(UnsupportedError, match="rm3 needs an engine that can count"):
        await with_retriever(watched, "rm3")  # type: ignore[arg-type]
    assert watched.closed == 1
