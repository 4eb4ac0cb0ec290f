"""Words of texts in every script."""

from __future__ import annotations

import gc
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairqr.agents.attribution.overlap import content_words
from fairqr.agents.refiners.cleaning import KEYWORDS_LIMIT, clean_words
from fairqr.retrieval.engines.hybrid.text_reader import hashed_terms
from fairqr.retrieval.texts.words import (
    document_terms,
    folded_words,
    holders_of,
    query_terms,
    terms_of,
    words_in,
)

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


UNSPACED = {
    "她是物理学家": "物理学",
    "เธอเป็นนักฟิสิกส์ชาวไทย": "นักฟิสิกส์",
    "彼女はノーベル物理学賞を受賞した": "物理学賞",
    "アインシュタインの論文": "論文",
    "ນາງເປັນນັກວິທະຍາສາດ": "ນັກວິທະຍາສາດ",
    "သူမသည်ရူပဗေဒပညာရှင်ဖြစ်သည်": "ရူပဗေဒ",
    "AI研究者の女性": "研究者",
    "黒猫がいる": "猫",
}


@pytest.mark.parametrize(("text", "word"), UNSPACED.items())
def test_a_word_is_found_inside_a_run_of_a_script_without_spaces(text: str, word: str) -> None:
    """By an index, by names, by evidence and by overlap alike."""
    assert set(query_terms(word)) <= set(document_terms(text))
    assert set(hashed_terms(word)) <= set(hashed_terms(text))
    if len(word) > 1:
        assert set(folded_words(word)) <= set(folded_words(text))
        assert set(terms_of(word)) <= set(terms_of(text))
        assert holders_of([word], {"it": text, "other": "她 เธอ 彼女 アイ"}) == {"it"}


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("物理学", ["物理", "理学"]),
        ("学", ["学"]),
        ("AI研究・2024年", ["ai", "研究", "2024", "年"]),
        ("น้ำใจ", ["น้ำ", "ำใ", "ใจ"]),
        ("plain words", ["plain", "words"]),
        ("여성 과학자", ["여성", "과학자"]),
        ("", []),
    ],
)
def test_runs_without_spaces_are_read_in_pairs(text: str, pairs: list[str]) -> None:
    assert folded_words(text) == pairs


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("ＡＢＣ１２３", "ABC123"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("株式会社ＡＢＣの本", "株式会社ABCの本"),
        ("ｶﾞｸｼｬﾄｶﾞｸｾｲ", "ガクシャトガクセイ"),
        ("ｶ\u3099クシャ", "ガクシャ"),
        ("ﾡﾤ", "ᄀᄂ"),
        ("the ﬁnal eﬀect", "the final effect"),
        ("\ufee3\ufeae\ufee3", "مرم"),
        ("⼥性", "女性"),
    ],
)
def test_other_forms_of_letters_are_the_plain_ones(text: str, plain: str) -> None:
    """Of full and half width, ligatures and radicals, as they are typed and copied from pages."""
    assert query_terms(text) == query_terms(plain) != []
    assert document_terms(text) == document_terms(plain)
    assert folded_words(text) == folded_words(plain) != []
    assert holders_of([plain], {"it": f"({text})"}) == {"it"}
    assert holders_of([text], {"it": f"({plain})"}) == {"it"}


@pytest.mark.parametrize("text", ["2019，2020", "3½", "Word™ ²", "１，２"])
def test_signs_do_not_join_the_words_beside_them(text: str) -> None:
    assert "," not in "".join(query_terms(text))
    assert "wordtm" not in query_terms(text)
    assert not {"31", "312"} & {*query_terms(text)}


@pytest.mark.parametrize("keyword", ["นักฟิสิกส์", "物理学"])
def test_a_keyword_stays_beside_a_query_that_only_contains_it(keyword: str) -> None:
    """Some engines find whole runs alone."""
    longer = clean_words([keyword], KEYWORDS_LIMIT, query=f"โรง{keyword}")
    same = clean_words([keyword], KEYWORDS_LIMIT, query=keyword)

    assert longer.kept == (keyword,)
    assert same.kept == ()


@pytest.mark.parametrize(("part", "word"), [("man", "woman"), ("मह", "महिला")])
def test_a_word_of_a_script_with_spaces_is_whole(part: str, word: str) -> None:
    assert part not in folded_words(word)


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
            words = [words_in("two words") for _ in range(300)]
        finally:
            gc.set_threshold(*usual)
            gc.callbacks.remove(collects)

    assert words == [["two", "words"]] * 300
    assert meanwhile == [None] * len(meanwhile) != []
