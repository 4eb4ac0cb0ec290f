"""What is kept of a proposal, and that nothing of it is left out in silence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairqr.agents.refiners.cleaning import (
    IN_USE,
    KEYWORDS_LIMIT,
    LIMITS,
    LONGEST_PASSAGE,
    NAMES_LIMIT,
    NO_LETTERS,
    NO_TEXT,
    NO_WORDS,
    PHRASES_LIMIT,
    REPEATS_EARLIER,
    REPEATS_QUERY,
    SHOWN_CHARACTERS,
    WORD_LIMITS,
    clean_passage,
    clean_whole,
    clean_words,
    make_refinement,
    take_in_turn,
    tidy,
)
from fairqr.agents.refiners.refiner import LeftOut, Refinement
from fairqr.base.errors import one_line
from fairqr.retrieval.texts.words import folded_words, phrase_parts

# Few letters, so that repetitions are frequent.
texts = st.text(alphabet="abAB -.'_<>{}\u202e", max_size=12)
# A letter that is younger than this Python's Unicode is none for it; an example has one.
any_text = st.text(st.characters(exclude_categories=("Cs", "Cn")))
entries = st.lists(any_text | texts | st.none(), max_size=50)

SCRIPTS = ["महिला", "நடிகை", "นักฟิสิกส์", "科学家", "عالمة", "учёная"]

replies = st.fixed_dictionaries({}, optional=dict.fromkeys(LIMITS, entries) | {"passage": texts})


def refinement(reply: dict[str, Any], query: str = "physicist", **more: Any) -> Refinement:
    return make_refinement(reply, query=query, subject="female", proposer="The model", **more)


def words_of(text: str) -> list[str]:
    return [part.casefold() for part in re.findall(r"[^\W_]+", text)]


@pytest.mark.promise("agents")
@given(st.lists(any_text | texts, max_size=30), st.lists(texts, max_size=3))
@example(["A:\U00031350"], [])
def test_keywords_are_few_short_clean_and_new(candidates: list[str], in_use: list[str]) -> None:
    """Keywords are few, short and clean, whatever a model says."""
    cleaned = clean_words(candidates, KEYWORDS_LIMIT, in_use=in_use)
    assert len(cleaned.kept) <= KEYWORDS_LIMIT.entries
    seen = {word for text in in_use for word in words_of(text)}
    for keyword in cleaned.kept:
        assert 0 < len(keyword) <= KEYWORDS_LIMIT.characters
        assert not re.search(r"[<>{}\[\]\"\\\x00-\x1f\u202e]", keyword)
        assert any(character.isalpha() for character in keyword)
        for word in keyword.split(" "):
            parts = set(words_of(word))  # none of a letter that is younger than this Python
            assert not parts or not parts <= seen, f"{word!r} is a repetition"
            seen |= parts
    assert clean_words(cleaned.kept, KEYWORDS_LIMIT).kept == cleaned.kept


@pytest.mark.promise("agents")
@given(replies, texts, st.lists(texts, max_size=3))
@example({"topic": ["A™"]}, "", [])
def test_nothing_is_left_out_in_silence(
    reply: dict[str, Any], query: str, in_use: list[str]
) -> None:
    """What is not used of a model's words is listed with the reason.

    Each word that was proposed is in the refinement, or in a part that is left out.
    """
    result = refinement(reply, query, in_use=in_use)
    for field, proposed in reply.items():
        kept = " ".join(getattr(result, field))
        if field == "passage":
            kept = result.passage
            proposed = [proposed] if proposed else []
        left_out = [part.text for part in result.left_out]
        for entry in proposed:
            if entry is None:
                assert LeftOut("", NO_TEXT) in result.left_out
            elif one_line(tidy(entry), SHOWN_CHARACTERS) not in left_out:
                accounted_for = [*folded_words(kept), *folded_words(" ".join(left_out))]
                # Symbols are dropped, such as a trade mark's, which folds to letters.
                words = " ".join(phrase_parts(tidy(entry)))
                assert set(folded_words(words)) <= set(accounted_for)
    assert all(part.reason for part in result.left_out)
    assert all(len(part.text) <= SHOWN_CHARACTERS for part in result.left_out)


@given(replies)
def test_each_field_keeps_to_its_own_limits(reply: dict[str, Any]) -> None:
    result = refinement(reply)
    for field, limit in LIMITS.items():
        kept = getattr(result, field)
        assert len(kept) <= limit.entries
        for entry in kept:
            assert len(entry) <= limit.characters
            assert limit.words is None or len(phrase_parts(entry)) <= limit.words
            entry.encode()


@pytest.mark.parametrize(
    ("proposed", "query", "kept", "left_out"),
    [
        (
            ["Woman Physicist", "PHYSICIST"],
            "physicist",
            ["Woman"],
            [("Physicist", REPEATS_QUERY), ("PHYSICIST", REPEATS_QUERY)],
        ),
        (["sci-fi", "fi"], "sci fi", [], [("sci-fi", REPEATS_QUERY), ("fi", REPEATS_QUERY)]),
        (["Curie"], "Marie Skłodowska-Curie", [], [("Curie", REPEATS_QUERY)]),
        (
            ["O’Neill", "<b>bold</b>", "U.S.", "123", "…"],
            "",
            ["O’Neill", "b bold", "U.S"],
            [("b", REPEATS_EARLIER), ("123", NO_LETTERS), ("…", NO_LETTERS)],
        ),
        (["she", "she"], "", ["she"], [("she", REPEATS_EARLIER)]),
        (["lab", None], "", ["lab"], [("", NO_TEXT)]),
        (
            ["one two three four five six seven eight"],
            "",
            ["one two three four five six seven eight"],
            [],
        ),
        (["a b c d e f g h i"], "", [], [("a b c d e f g h i", "has more than 8 words")]),
        (["x" * 81], "", [], [("x" * 81, "is longer than 80 characters")]),
        (
            ["महिला", "நடிகை", "นักฟิสิกส์", "科学家", "عالمة", "учёная"],
            "",
            ["महिला", "நடிகை", "นักฟิสิกส์", "科学家", "عالمة", "учёная"],
            [],
        ),
    ],
)
def test_what_is_kept_of_words(
    proposed: list[str], query: str, kept: list[str], left_out: list[tuple[str, str]]
) -> None:
    cleaned = clean_words(proposed, KEYWORDS_LIMIT, query=query)
    assert list(cleaned.kept) == kept
    assert [(part.text, part.reason) for part in cleaned.left_out] == left_out


@pytest.mark.parametrize(
    ("proposed", "kept", "left_out"),
    [
        # A name stays whole, although a part of it occurred.
        (["Rosalind", "Rosalind Franklin"], ["Rosalind", "Rosalind Franklin"], []),
        (["woman  physicist\n"], ["woman physicist"], []),
        (["Physicist!", "the woman"], ["the woman"], [("Physicist!", REPEATS_QUERY)]),
        (["C. V. Raman", "c.v. raman"], ["C. V. Raman"], [("c.v. raman", REPEATS_EARLIER)]),
        (["She", "1984", "?"], ["1984"], [("She", IN_USE), ("?", NO_WORDS)]),
        (["क्वांटम भौतिकी", "می‌خواهم", "吴健雄"], ["क्वांटम भौतिकी", "می‌خواهم", "吴健雄"], []),
        (["a\u202eb\x00c\ud800"], ["ab c"], []),
    ],
)
def test_names_stay_whole(
    proposed: list[str], kept: list[str], left_out: list[tuple[str, str]]
) -> None:
    cleaned = clean_whole(proposed, NAMES_LIMIT, query="physicist", in_use=["she"])
    assert list(cleaned.kept) == kept
    assert [(part.text, part.reason) for part in cleaned.left_out] == left_out


def test_what_is_beyond_a_limit_is_named() -> None:
    cleaned = clean_words([f"word{n}" for n in range(10_000)], KEYWORDS_LIMIT)
    assert cleaned.kept == tuple(f"word{n}" for n in range(24))
    assert len(cleaned.left_out) == 10_000 - 24
    assert cleaned.left_out[0] == LeftOut("word24", "is beyond the 24 that are read")
    long = " ".join("abcdefghijklm")
    assert clean_whole([long], PHRASES_LIMIT).left_out == (LeftOut(long, "has more than 12 words"),)


@pytest.mark.parametrize("text", ["word " * 400, "她是物理学家" * 300])
def test_a_long_passage_ends_at_a_word(text: str) -> None:
    passage, (rest,) = clean_passage(text)
    assert LONGEST_PASSAGE - 5 <= len(passage) <= LONGEST_PASSAGE
    assert not passage.endswith((" ", "wor"))
    assert tidy(text).startswith(passage)
    assert rest.reason == "is beyond the 1,000 characters that are read"
    assert rest.text


@pytest.mark.parametrize(
    ("keywords", "in_use", "status"),
    [
        (["woman"], [], "ok"),
        (["…", "123"], [], "empty"),
        (["Physicist"], [], "repeated"),
        (["woman", "she"], ["she", "woman"], "repeated"),
    ],
)
def test_a_status_says_whether_there_is_anything(
    keywords: list[str], in_use: list[str], status: str
) -> None:
    """Nothing usable, nothing new, and something new are told apart, and explained."""
    result = refinement({"keywords": keywords}, in_use=in_use)
    assert result.status == status
    assert (status == "ok") is bool(result.keywords) is not bool(result.message)


@pytest.mark.parametrize("field", sorted({*LIMITS, "passage"}))
def test_any_field_alone_is_enough(field: str) -> None:
    reply = {field: "A long text." if field == "passage" else ["A long text"]}
    assert refinement(reply).status == "ok"


def turns(topic: Sequence[str], keywords: Sequence[str], **more: Any) -> Refinement:
    return take_in_turn(Refinement("ok", topic=tuple(topic), keywords=tuple(keywords), **more))


def test_topic_words_and_keywords_are_taken_in_turn() -> None:
    """At most eight, of both lists as many; a refiner without topic words has all of its own."""
    both = turns("abcde", "vwxyz")
    assert (both.topic, both.keywords) == ((), tuple("avbwcxdy"))
    assert turns(["lab", "she"], ["she", "her"]).keywords == ("lab", "she", "her")
    alone = Refinement("ok", keywords=tuple("abcdefghij"))
    assert take_in_turn(alone) == alone
    names = turns([], [], names=("Marie Curie",))
    assert (names.status, bool(names.message)) == ("empty", True)


def test_fields_hold_words_or_whole_texts() -> None:
    assert {*LIMITS, "passage"} <= set(Refinement.__dataclass_fields__)
    assert set(WORD_LIMITS) == {"topic", "keywords"}
