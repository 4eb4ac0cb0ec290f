"""What an engine's documents, or retrieved texts, say for keywords; and words in every script."""

from __future__ import annotations

import gc
import math
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fairqr.agents.attribution.overlap import content_words
from fairqr.agents.refiners.cleaning import KEYWORDS_LIMIT, clean_words
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema
from fairqr.retrieval.texts.evidence import (
    Evidence,
    Proposal,
    evidence_from_texts,
    gather_evidence,
    stems_of,
)
from fairqr.retrieval.texts.words import folded_words, occurs, words_in
from tests.unit.engines import WatchedEngine, hits_of
from tests.unit.retrieval.embedded import built

FEMALE, MALE = [1.0, 0.0], [0.0, 1.0]
SCHEMA = Schema.model_validate(
    {
        "attributes": {
            "gender": {"field": "g", "groups": ["female", "male"]},
            "place": {"field": "p", "groups": ["north", "south"]},
        }
    }
)


@pytest.fixture
def engine(tmp_path: Path) -> WatchedEngine:
    """Ten physicists and ninety others; one person in five is a woman."""

    def person(i: int) -> Document:
        topic = "physicist atom" if i < 10 else "painter canvas"
        gender, place = "male" if i % 5 else "female", "north" if i % 2 else "south"
        text = f"{topic} {'he' if i % 5 else 'she'} person"
        return Document(f"d{i:02}", "", text, {"g": gender, "p": place})

    return WatchedEngine(built(tmp_path / "v1", map(person, range(100)), SCHEMA))


async def said(engine: SearchEngine, words: str, group: str = "female") -> dict[str, Evidence]:
    """The evidence for keywords beside the query "physicist"; those of two words have a hyphen."""
    keywords = words.split()
    intersect = "×" in group
    names = ["gender", "place"] if intersect else ["gender"]
    (dimension,) = dimensions_of(engine.schema, names, intersect=intersect)
    results, shares = await hits_of(engine, "physicist", 50), await engine.corpus_shares()
    proposals = [Proposal(dimension, group, keywords), Proposal(dimension, group, ["person"])]
    found, others = await gather_evidence(engine, "physicist", results.ids, proposals, shares)
    assert len(others) == 1
    return dict(zip(keywords, found, strict=True))


async def test_worked_lifts(engine: WatchedEngine) -> None:
    """One request asks about the keywords of all groups."""
    found = await said(engine, "atom she canvas person nowhere")
    assert len(engine.searches) == 2
    # All ten results have it, and ten documents of a hundred: ten times as often.
    assert found["atom"].topic_lift == pytest.approx(10)
    assert found["atom"].group_odds == pytest.approx(1)
    # A fifth of the results and of the corpus; all of its documents are of the group.
    assert found["she"].topic_lift == pytest.approx(1)
    assert found["she"].group_odds == math.inf
    assert found["canvas"].topic_lift == 0
    assert found["person"].topic_lift == pytest.approx(1)
    assert found["nowhere"].documents == 0
    assert [word for word, it in found.items() if it.is_of_the_topic] == ["atom"]
    assert [word for word, it in found.items() if it.is_of_the_group] == ["she"]
    # Four in five are men, so that no word's documents could be 1.5 times as often of men.
    found = await said(engine, "he person", "male")
    assert [word for word, it in found.items() if it.is_of_the_group] == ["he"]
    # A product of attributes is compared with independent shares.
    (both,) = (await said(engine, "she", "female × north")).values()
    assert both.group_odds == pytest.approx((0.5 / 0.5) / (0.1 / 0.9))


async def test_a_keyword_of_several_words_is_of_the_topic_only_if_each_of_them_is(
    engine: WatchedEngine,
) -> None:
    """And the words of the query itself vouch for nothing."""
    keywords = "atom-canvas atom-person physicist-canvas physicist-atom physicist"
    found = (await said(engine, keywords)).values()
    assert [one.is_of_the_topic for one in found] == [False, False, False, True, False]
    assert [one.documents for one in found] == [0, 10, 0, 10, 10]


# --- retrieved texts --------------------------------------------------------------------------


def physicists(others: int = 150) -> tuple[list[frozenset[str]], np.ndarray]:
    """Fifty physicists and others that were retrieved after them; one person in five is a woman."""
    texts = [
        "physicist person "
        + ("he " if i % 5 else "she ")
        + ("atoms " if i < 50 and i % 2 else "")
        + ("canvas his " if i >= 50 else "")
        + ("his " if i < 10 else "")
        + ("Curie" if i in (0, 5, 6) else "")
        for i in range(50 + others)
    ]
    return stems_of(texts), np.array([MALE if i % 5 else FEMALE for i in range(50 + others)])


def found_for(keyword: str, others: int = 150) -> Evidence:
    stems, groups = physicists(others)
    return evidence_from_texts("physicist", stems, groups, 0, [keyword])[0]


def test_a_word_of_the_topic_stands_in_many_of_the_best_results() -> None:
    """And not mostly in the others; with few others the share decides."""
    atom, canvas, his = map(found_for, ("atom", "canvas", "his"))  # the texts have the plural
    assert (atom.documents, atom.topic_documents, atom.topic_share) == (25, 25, 0.5)
    assert atom.topic_lift == pytest.approx(0.5 / (1 / 152))
    assert found_for("person").topic_lift == pytest.approx(1 / (151 / 152))
    assert (canvas.topic_documents, canvas.is_of_the_topic) == (0, False)
    assert (his.topic_share, his.topic_lift) == (0.2, pytest.approx(0.2 / (151 / 152)))
    assert (atom.is_of_the_topic, his.is_of_the_topic) == (True, False)
    assert found_for("his", others=99).topic_lift == math.inf
    assert found_for("his", others=99).is_of_the_topic
    assert not found_for("his", others=100).is_of_the_topic


def test_a_word_of_the_group_raises_its_odds() -> None:
    # One in five is a woman; of those with "Curie", two in three.
    for word, odds in (("Curie", 2 / (1 / 4)), ("she", math.inf), ("he", 0), ("person", 1)):
        found = found_for(word)
        assert (found.group_odds, found.is_of_the_group) == (pytest.approx(odds), odds > 1)


def test_what_is_no_evidence() -> None:
    """A word of the query, unknown and stop words, none; words that no text has together."""
    for keyword in ("physicist", "nowhere", "the", "", "–", "atom canvas"):
        nothing = found_for(keyword)
        assert (nothing.is_of_the_topic, nothing.is_of_the_group) == (False, False)
    (nothing,) = evidence_from_texts("x", [], np.zeros((0, 2)), 0, ["atom"])
    assert nothing == Evidence(0, 0, 0.0, math.inf, 0.0, least_lift=0.5)
    stems, groups = physicists()
    for members in (np.zeros_like(groups), np.tile(FEMALE, (len(groups), 1))):
        (atom,) = evidence_from_texts("x", stems, members, 0, ["atom"])
        assert atom.group_odds == 0


# --- words ------------------------------------------------------------------------------------

# "Woman scientist", and other plain words.
IN_SCRIPTS = {
    "Hindi": ["महिला", "वैज्ञानिक", "हिंदी", "कर्मचारियों"],
    "Tamil": ["பெண்", "விஞ்ஞானி", "ஸ்ரீ"],
    "Thai": ["ผู้หญิง", "นักวิทยาศาสตร์", "น้ำ"],
    "Arabic": ["امرأة", "عالِمَة", "مُهَنْدِسَة"],
    "Persian": ["می‌خواهم", "دانشمند"],
    "Hebrew": ["שָׁלוֹם", "מדענית"],
    "Chinese": ["女性", "科学家"],
    "Japanese": ["女性", "がくしゃ", "カ\u3099クシャ"],
    "Korean": ["여성", unicodedata.normalize("NFD", "과학자")],
    "Latin": [unicodedata.normalize("NFD", "Ångström"), "straße", "café", "nữ"],
    "Burmese": ["အမျိုးသမီး"],
}


@pytest.mark.parametrize("word", [word for words in IN_SCRIPTS.values() for word in words])
def test_a_word_is_one_word(word: str) -> None:
    assert words_in(f"({word}, {word}!)") == [word, word]
    assert clean_words([word], KEYWORDS_LIMIT).kept == (word,)
    assert content_words(word) == set(folded_words(word))


@pytest.mark.parametrize("script", IN_SCRIPTS)
def test_a_keyword_counts_in_texts_of_its_script(script: str) -> None:
    """Of sixty texts each third has the keyword, and only these are of the group."""
    word = IN_SCRIPTS[script][0]
    stems = stems_of([f"other {'text' if i % 3 else word}." for i in range(60)])
    groups = np.array([MALE if i % 3 else FEMALE for i in range(60)])
    for form in ("NFC", "NFD"):
        keyword = unicodedata.normalize(form, word)
        (found,) = evidence_from_texts("query", stems, groups, 0, [keyword])
        assert (found.documents, found.topic_documents, found.is_of_the_group) == (20, 17, True)
        (known,) = evidence_from_texts(word, stems, groups, 0, [keyword])
        assert (known.documents, known.topic_documents) == (20, 0), "a word of the query"
    # A shorter word with the same first letters is another word.
    assert (
        evidence_from_texts("query", stems_of(["महिला"]), groups[:1], 0, ["मह"])[0].documents == 0
    )


def test_scripts_without_spaces() -> None:
    """A word inside a run is found in texts and in the query; as a keyword it stays."""
    texts = stems_of(["เธอเป็นนักฟิสิกส์ชาวไทย", "她是物理学家", "เขา", "他"] * 15)
    groups = np.array([FEMALE, FEMALE, MALE, MALE] * 15)
    for keyword in ("นักฟิสิกส์", "物理学"):
        (found,) = evidence_from_texts("query", texts, groups, 0, [keyword])
        assert (found.documents, found.is_of_the_group) == (15, True)
        (known,) = evidence_from_texts(f"โรง{keyword}", texts, groups, 0, [keyword])
        assert (known.documents, known.topic_documents) == (15, 0)
        longer = clean_words([keyword], KEYWORDS_LIMIT, query=f"โรง{keyword}")
        assert longer.kept == (keyword,)
        same = clean_words([keyword], KEYWORDS_LIMIT, query=keyword)
        assert same.kept == ()
    assert not occurs("man", {"woman"})


def test_words_are_found_while_other_threads_find_some() -> None:
    """Also in the middle: making a list may collect garbage, which lets other threads go on."""
    meanwhile, usual = [], gc.get_threshold()
    with ThreadPoolExecutor(1) as other:

        def collects(phase: str, _: dict[str, int]) -> None:
            if phase == "start":
                meanwhile.append(other.submit(words_in, "two words").exception())

        gc.callbacks.append(collects)
        gc.set_threshold(1, 1_000, 1_000)
        try:
            found = [words_in("two words") for _ in range(300)]
        finally:
            gc.set_threshold(*usual)
            gc.callbacks.remove(collects)
    assert found == [["two", "words"]] * 300
    assert meanwhile == [None] * len(meanwhile) != []
