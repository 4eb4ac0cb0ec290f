"""The room of a prompt: shares are fair, nothing goes over, and order is kept."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import PromptError
from fairqr.prompts.budget import (
    LEAST_SHARE,
    NO_DOCUMENTS,
    Budget,
    Count,
    NoRoomError,
    cut,
    estimated_tokens,
    fair_shares,
    render_documents,
)
from fairqr.prompts.template import PromptTemplate

TEMPLATE = PromptTemplate.model_validate(
    {
        "id": "answer",
        "version": "v1",
        "description": "",
        "messages": [{"role": "user", "content": "{question}{documents}"}],
        "item": "{number}. {title}: {text}",
        "input_variables": ("question", "documents"),
    }
)


def words(text: str) -> int:
    """Count words and marks, the end of a line among them, as many tokenizers do."""
    return len(re.findall(r"\w+|\n|[^\w\s]", text))


def whole(count: Count) -> Callable[[Sequence[Mapping[str, str]]], int]:
    """Return what counts the tokens of messages."""
    return lambda messages: sum(count(message["content"]) for message in messages)


COUNTS: list[Count] = [len, words, estimated_tokens]
LENGTHS = st.lists(st.integers(0, 50), max_size=8)
TEXTS = st.text(alphabet=st.sampled_from("ab <>/é日😀1.\n{}"), max_size=60)


class TestFairShares:
    @given(LENGTHS, st.integers(-5, 400))
    def test_the_shares_are_fair(self, lengths: list[int], total: int) -> None:
        """All is given out; who is cut gets no less than anybody else, but for a remainder of 1."""
        shares = fair_shares(lengths, total)
        assert len(shares) == len(lengths)
        assert all(0 <= share <= length for share, length in zip(shares, lengths, strict=True))
        assert sum(shares) == min(max(total, 0), sum(lengths))
        was_cut = [share for share, length in zip(shares, lengths, strict=True) if share < length]
        if was_cut:
            assert max(shares) <= min(was_cut) + 1
            assert max(was_cut) - min(was_cut) <= 1

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 20))
    def test_no_other_division_is_fairer(self, lengths: list[int], total: int) -> None:
        """Brute force: among all divisions of as much, the sorted shares are the greatest."""
        shares = fair_shares(lengths, total)
        spent = min(total, sum(lengths))
        divisions = itertools.product(*(range(length + 1) for length in lengths))
        best = max(sorted(each) for each in divisions if sum(each) == spent)
        assert sorted(shares) == best


class TestCutting:
    @pytest.mark.parametrize("count", COUNTS)
    @given(text=TEXTS, limit=st.integers(-1, 70))
    def test_a_cut_is_a_begin_within_the_limit(self, count: Count, text: str, limit: int) -> None:
        """The whole text where it fits; else a begin with a mark; else nothing."""
        kept = cut(text, limit, count)
        assert count(kept) <= max(limit, 0)
        if limit >= 1 and count(text) <= limit:
            assert kept == text
        elif kept:
            assert kept.endswith("…")
            assert text.startswith(kept[:-1])

    def test_as_much_is_kept_as_fits(self) -> None:
        """One token less than the limit would not be fair."""
        assert cut("a b c d e f", 4, words) == "a b c…"
        assert cut("abcdefgh", 4, len) == "abc…"
        assert cut("abcdefgh", 1, len) == ""


class TestDocuments:
    @pytest.mark.parametrize("count", COUNTS)
    @given(
        sources=st.lists(st.fixed_dictionaries({"title": TEXTS, "text": TEXTS}), max_size=5),
        budget=st.integers(-3, 250),
    )
    def test_documents_keep_to_the_budget(
        self, count: Count, sources: list[dict[str, str]], budget: int
    ) -> None:
        """Never more tokens than there are, one line for a document, in order, and no tag."""
        text = render_documents(TEMPLATE, sources, count, budget)
        assert count(text) <= max(budget, count(NO_DOCUMENTS))
        assert not re.search(r"<\s*/?\s*[^\W\d]", text)
        if text == NO_DOCUMENTS:
            return
        numbers = [int(found) for found in re.findall(r"^(\d)\.", text, re.MULTILINE)]
        assert numbers == sorted(set(numbers))
        assert len(text.splitlines()) <= len(sources)

    def test_shares_are_equal_where_all_are_long(self) -> None:
        """No document crowds out another, whatever its rank and length; titles outlive texts."""
        sources = [{"title": "t", "text": "word " * n} for n in (1000, 100, 3, 500)]
        assert render_documents(TEMPLATE, sources, words, 29).count(". t: word") == 4
        lines = render_documents(TEMPLATE, sources, words, 100).splitlines()
        counts = [words(line) for line in lines]
        assert counts[2] == words("3. t: word word word")
        assert max(counts[0], counts[1], counts[3]) - min(counts[0], counts[1], counts[3]) <= 1
        assert 95 <= sum(counts) + len(lines) <= 100

    def test_nothing_to_show_and_numbers_of_ones_own(self) -> None:
        source = {"title": "a", "text": "b"}
        assert render_documents(TEMPLATE, [], words, 100) == NO_DOCUMENTS
        for budget in (0, -10):
            assert render_documents(TEMPLATE, [source], words, budget) == NO_DOCUMENTS
        assert render_documents(TEMPLATE, [{**source, "number": "17"}], words, 50) == "17. a: b"
        with pytest.raises(PromptError, match="needs 'text', which the documents do not have"):
            render_documents(TEMPLATE, [{"title": "a"}], words, 50)

    def test_a_tokenizer_that_sees_more_in_the_whole_is_kept_to_as_well(self) -> None:
        """Joined lines may have more tokens than each by itself: the sum is checked."""

        def greedy(text: str) -> int:
            return len(text) + 5 * text.count("\n")

        sources = [{"title": "t", "text": "x" * 50} for _ in range(4)]
        values = Budget(90, 5, greedy, whole(greedy)).fill(TEMPLATE, "Why?", sources)
        assert 60 < greedy("".join(values.values())) <= 90


class TestRoom:
    @given(st.lists(st.integers(0, 40), max_size=8), st.integers(-3, 200))
    def test_each_document_is_shown_or_the_number_that_fits_is_told(
        self, lengths: list[int], room: int
    ) -> None:
        """Brute force: the longest run of documents whose fair shares are all enough."""
        sources = [{"title": "t", "text": "x" * length} for length in lengths]
        lines = [len(f"1. t: {source['text']}") for source in sources]

        def enough(number: int) -> bool:
            shares = fair_shares(lines[:number], room - number)
            needed = [min(length, LEAST_SHARE) for length in lines[:number]]
            return all(share >= least for share, least in zip(shares, needed, strict=True))

        budget = Budget(room, 0, len, whole(len))
        if room <= len(NO_DOCUMENTS):
            with pytest.raises(NoRoomError, match="alone has about 4 tokens"):
                budget.fill(TEMPLATE, "Why?", sources)
        elif enough(len(sources)):
            shown = budget.fill(TEMPLATE, "Why?", sources)["documents"]
            assert shown.count("\n") + 1 == max(len(sources), 1)
            assert len(shown) <= room
        else:
            fitting = max(number for number in range(len(sources)) if enough(number))
            with pytest.raises(NoRoomError, match=f"{fitting} of the {len(sources)} documents"):
                budget.fill(TEMPLATE, "Why?", sources)

    def test_a_question_is_cut_to_its_limit_and_to_what_the_prompt_leaves(self) -> None:
        for room, limit, question in (
            (100, 5, "abcd…"),
            (10, 8, "abcde…"),
            (100, 20, "abcdefghij"),
        ):
            values = Budget(room, limit, len, whole(len)).fill(TEMPLATE, "abcdefghij", [])
            assert values == {"question": question, "documents": NO_DOCUMENTS}


class TestEstimate:
    @given(TEXTS, TEXTS)
    def test_a_longer_text_has_no_fewer_tokens(self, text: str, more: str) -> None:
        """Else cutting could not search."""
        assert estimated_tokens(text) <= estimated_tokens(text + more)
        assert estimated_tokens("") == 0

    @pytest.mark.parametrize(
        ("text", "tokens"),
        [("four letters is", 4), ("1234", 4), ("a, b", 2), ("日本", 4), ("😀", 3), ("Ж", 1)],
    )
    def test_what_counts_how_much(self, text: str, tokens: int) -> None:
        """Letters by fours, digits and marks by one, other scripts by their bytes."""
        assert estimated_tokens(text) == tokens
