"""Words in every script: none falls apart, and each is the same however it was typed."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.attribution.overlap_attributor import content_words
from fairqr.agents.refiner import MAX_CHARACTERS, clean_keywords
from fairqr.retrieval.texts.evidence import evidence_from_texts, stems_of
from fairqr.retrieval.texts.words import folded_words, occurs, words_in, words_without_digits

FEMALE, MALE = [1.0, 0.0], [0.0, 1.0]

# "Woman scientist", and other plain words.
IN_SCRIPTS = {
    "Hindi": ["महिला", "वैज्ञानिक", "हिंदी", "कर्मचारियों"],
    "Bengali": ["মহিলা", "বিজ্ঞানী", "বাংলাদেশের", "কৃষ্ণ"],
    "Tamil": ["பெண்", "விஞ்ஞானி", "தமிழ்நாட்டில்", "ஸ்ரீ"],
    "Thai": ["ผู้หญิง", "นักวิทยาศาสตร์", "น้ำ"],
    "Arabic": ["امرأة", "عالِمَة", "مُهَنْدِسَة"],
    "Persian": ["می‌خواهم", "دانشمند"],
    "Hebrew": ["שָׁלוֹם", "מדענית"],
    "Chinese": ["女性", "科学家", "三"],
    "Japanese": ["女性", "がくしゃ", "カ\u3099クシャ"],
    "Korean": ["여성", "과학자", unicodedata.normalize("NFD", "과학자")],
    "Latin": ["Élan", unicodedata.normalize("NFD", "Ångström"), "straße", "café"],
    "Vietnamese": ["nữ", unicodedata.normalize("NFD", "khoa"), "phụ"],
    "Burmese": ["အမျိုးသမီး"],
}
WORDS = [word for words in IN_SCRIPTS.values() for word in words]
RANGES = {
    "devanagari": (0x0900, 0x097F),
    "bengali": (0x0980, 0x09FF),
    "tamil": (0x0B80, 0x0BFF),
    "thai": (0x0E00, 0x0E7F),
    "arabic": (0x0620, 0x06D3),
    "han": (0x4E00, 0x4FFF),
    "latin": (0x00C0, 0x024F),
    "accents": (0x0300, 0x036F),
}


def in_scripts() -> st.SearchStrategy[str]:
    """Letters, marks and digits of one script, beginning with a letter."""

    def of(begin: int, end: int) -> st.SearchStrategy[str]:
        assigned = [chr(c) for c in range(begin, end + 1)]
        kinds = {c: unicodedata.category(c)[0] for c in assigned}
        first = [c for c in assigned if kinds[c] == "L"] or ["e"]
        return st.builds(
            str.__add__,
            st.sampled_from(first),
            st.text(st.sampled_from([c for c in assigned if kinds[c] in "LMN"]), max_size=8),
        )

    return st.one_of([of(*bounds) for bounds in RANGES.values()])


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_one_word(word: str) -> None:
    assert words_in(f"({word}, {word}!)") == [word, word]
    assert words_without_digits(f"{word} 1990 {word}") == [word, word]
    assert clean_keywords([word]) == [word]
    assert content_words(word) == set(folded_words(word))


@given(st.lists(in_scripts(), max_size=6), st.sampled_from([" ", ", ", "। ", "\n", "؟ "]))
def test_words_of_any_script_come_back_whole(words: list[str], between: str) -> None:
    assert words_in(between.join(words)) == words


@given(in_scripts())
def test_a_word_is_known_again_in_each_unicode_form_and_case(word: str) -> None:
    forms = [unicodedata.normalize(form, word) for form in ("NFC", "NFD")]
    assert folded_words(forms[0]) == folded_words(forms[1])
    assert folded_words(word) == folded_words(word.lower())
    for form in forms:
        assert clean_keywords([form], known=[word]) == []


@given(st.lists(in_scripts(), max_size=5), st.lists(in_scripts(), max_size=3))
def test_no_keyword_is_broken_or_lost(proposed: list[str], known: list[str]) -> None:
    """What is new is shown whole, and what is not shown is known."""
    kept = clean_keywords(proposed, known=known, limit=5)
    assert set(kept) <= set(proposed)
    for word in proposed:
        repeated = {part for text in (*known, *kept) for part in folded_words(text)}
        assert set(folded_words(word)) <= repeated or len(word) > MAX_CHARACTERS


@given(st.text())
def test_any_text_has_words_without_signs(text: str) -> None:
    for word in words_in(text):
        # "Cn" is a letter that Unicode got later than this Python.
        assert unicodedata.category(word[0]) == "Cn" or unicodedata.category(word[0])[0] in "LN"
        assert not set(word) & set(" .,;:!?'\"<>{}[]\u202e\t\n")


@pytest.mark.parametrize("script", IN_SCRIPTS)
def test_a_keyword_counts_in_texts_of_its_script(script: str) -> None:
    """Of sixty texts each third has the keyword, and only these are of the group."""
    word, other = IN_SCRIPTS[script][0], "other"
    texts = [f"{other} {word}." if i % 3 == 0 else f"{other} text" for i in range(60)]
    groups = np.array([FEMALE if i % 3 == 0 else MALE for i in range(60)])
    for form in ("NFC", "NFD"):
        keyword = unicodedata.normalize(form, word)
        (found,) = evidence_from_texts("query", stems_of(texts), groups, 0, [keyword])
        assert found.documents == 20
        assert found.topic_documents == 17
        assert found.is_of_the_group


def test_a_word_of_the_query_is_no_evidence_in_any_form() -> None:
    texts = stems_of(["महिला वैज्ञानिक", "café crème"] * 30)
    groups = np.array([FEMALE, MALE] * 30)
    query = f"महिला {unicodedata.normalize('NFD', 'café')}"
    for keyword in ("महिला", "CAFÉ"):
        (found,) = evidence_from_texts(query, texts, groups, 0, [keyword])
        assert (found.documents, found.topic_documents) == (30, 0)
    # A shorter word with the same first letters is another word.
    (part,) = evidence_from_texts(query, texts, groups, 0, ["मह"])
    assert part.documents == 0


def test_scripts_without_spaces() -> None:
    """A word inside a run is found in texts and in the query; as a keyword it stays."""
    texts = stems_of(["เธอเป็นนักฟิสิกส์ชาวไทย", "她是物理学家", "เขา", "他"] * 15)
    groups = np.array([FEMALE, FEMALE, MALE, MALE] * 15)
    for keyword in ("นักฟิสิกส์", "物理学"):
        (found,) = evidence_from_texts("query", texts, groups, 0, [keyword])
        assert (found.documents, found.is_of_the_group) == (15, True)
        (known,) = evidence_from_texts(f"โรง{keyword}", texts, groups, 0, [keyword])
        assert (known.documents, known.topic_documents) == (15, 0)
        assert clean_keywords([keyword], known=[f"โรง{keyword}"]) == [keyword]
        assert clean_keywords([keyword], known=[keyword]) == []
    assert not occurs("man", {"woman"})
