"""Words of texts in every script."""

from __future__ import annotations

import gc
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairqr.agents.attribution.overlap import content_words
from fairqr.agents.refiners.cleaning import KEYWORDS_LIMIT, clean_words
from fairqr.retrieval.texts.words import folded_words, occurs, words_in

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


def test_a_word_is_found_inside_a_run_of_a_script_without_spaces() -> None:
    """But a keyword stays beside a query that only contains it, and an English word is whole."""
    for text, keyword in (("เธอเป็นนักฟิสิกส์ชาวไทย", "นักฟิสิกส์"), ("她是物理学家", "物理学")):
        assert occurs(keyword, set(folded_words(text)))
        longer = clean_words([keyword], KEYWORDS_LIMIT, query=f"โรง{keyword}")
        assert longer.kept == (keyword,)
        same = clean_words([keyword], KEYWORDS_LIMIT, query=keyword)
        assert same.kept == ()
    assert not occurs("man", {"woman"})
    assert not occurs("मह", {"महिला"})


def test_words_are_found_while_other_threads_find_some() -> None:
    """Also in the middle: making a list may collect garbage, which lets other threads go on."""
    meanwhile = []
    usual = gc.get_threshold()
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
