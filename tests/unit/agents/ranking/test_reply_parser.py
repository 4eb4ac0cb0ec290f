"""Replies that are to be an order or a preference: what counts as one, and what is repaired."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.agents.ranking.reply_parser import (
    Permutation,
    parse_first_of_two,
    parse_permutation,
    parse_preference,
)

orders = st.integers(2, 40).flatmap(lambda n: st.permutations(range(1, n + 1)))


@given(orders, st.sampled_from([" > ", ">", ", ", ",", "\n", " >\n", "\r\n"]), st.booleans())
def test_every_order_is_read_as_it_was_written(
    order: list[int], between: str, brackets: bool
) -> None:
    reply = between.join(f"[{number}]" if brackets else str(number) for number in order)
    permutation = parse_permutation(reply, len(order))

    assert permutation == Permutation("ok", tuple(number - 1 for number in order))


@pytest.mark.parametrize(
    "reply",
    [
        "[ 3 ] > [01] > [2] > [",
        "```json\n[3, 1, 2]\n```",
        "Here is the list of all passages that you asked me for:\n\n**[3] > [1] > [2]**",
        "[3] > [1] > [2]\n\nI put [3] first since it speaks of the query, which [1] does not.",
        "[3] The one about rivers\n[1] Something else in 1970\n[2] The rest, see [3]",
        "First I thought of [1] > [2] > [3].\nBut in the end: [3] > [1] > [2]",
    ],
)
def test_forms_of_one_and_the_same_order(reply: str) -> None:
    assert parse_permutation(reply, 3) == Permutation("ok", (2, 0, 1))


@given(st.lists(st.integers(-2, 30), min_size=1, max_size=60), st.integers(2, 25), st.booleans())
def test_repairs_agree_with_the_plain_rule(numbers: list[int], n: int, lead_in: bool) -> None:
    """Keep first mentions of those that there are, append the others; count what was done."""
    in_order: list[int] = []
    duplicates = strangers = 0
    for number in numbers:
        if not 1 <= number <= n:
            strangers += 1
        elif number in in_order:
            duplicates += 1
        else:
            in_order.append(number)
    reply = ("Ranking: " if lead_in else "") + " > ".join(f"[{number}]" for number in numbers)
    permutation = parse_permutation(reply, n)
    assert (permutation.status == "ok") == (len(in_order) > 1)
    if permutation.status != "ok":
        return
    missing = [number for number in range(1, n + 1) if number not in in_order]
    assert permutation.order == tuple(number - 1 for number in in_order + missing)
    counts = {"missing": len(missing), "duplicate": duplicates, "stranger": strangers}
    assert permutation.repairs == {kind: count for kind, count in counts.items() if count}


@pytest.mark.parametrize(
    ("reply", "n", "status"),
    [
        (" \n\t ", 5, "empty"),
        ("I'm sorry, but I can't help with that.", 5, "refused"),
        ("Passages 1, 2 and 3 are about people who lived in 1900, 1901.", 20, "parse_error"),
        ("[1] Marie Curie\n[2] Frida Kahlo who painted herself", 20, "parse_error"),
        ("[3] > [3] > [3]", 5, "parse_error"),
        ("3 1 2", 3, "parse_error"),
        ("word " * 100_000 + "[3] > [1] > [2]", 3, "parse_error"),
    ],
)
def test_what_is_no_order_has_a_status(reply: str, n: int, status: str) -> None:
    """And neither an order nor repairs."""
    assert parse_permutation(reply, n) == Permutation(status)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", ["", "Passage ", "the article ", "Answer: ", "My answer is "])
@pytest.mark.parametrize("label", ["A", "b", "B.", "(A)", "**B**", "[a]", '"A"', "`B`", "A)"])
def test_a_label_is_a_preference(before: str, label: str) -> None:
    """A letter, whatever stands around it."""
    expected = "first" if "a" in label.lower() else "second"
    assert parse_preference(f" {before}{label}\n") == expected


@pytest.mark.parametrize(
    ("reply", "preference"),
    [
        ("The more relevant passage is B.", "second"),
        ("A\n\nIt tells of physics, and B does not.", "first"),
        ("They differ in detail.\nAnswer: B", "second"),
        ("A\nB", "parse_error"),
        ("I'm sorry, but I can't compare people.", "refused"),
        ("Passage A is about a woman and passage B is about a man.", "parse_error"),
        (" \n\t", "empty"),
        ("AB", "parse_error"),
    ],
)
def test_what_is_read_as_a_preference(reply: str, preference: str) -> None:
    assert parse_preference(reply) == preference


@pytest.mark.parametrize(
    ("reply", "first"),
    [
        ("[2] > [1]", "second"),
        ("[1] > [2]", "first"),
        ("Here is the ranking:\n\n[2] > [1]", "second"),
        ("2, 1", "second"),
        ("[2]", "parse_error"),
        ("Passage 2 is the more relevant one.", "parse_error"),
        ("I am sorry, but I cannot rank these people.", "refused"),
        ("", "empty"),
    ],
)
def test_a_pair_is_read_as_a_ranking_of_two(reply: str, first: str) -> None:
    assert parse_first_of_two(reply) == first


@given(st.text(), st.integers(2, 30))
def test_any_text_is_read_somehow(reply: str, n: int) -> None:
    permutation = parse_permutation(reply, n)
    if permutation.status == "ok":
        assert sorted(permutation.order) == list(range(n))
        assert permutation.repairs.get("missing", 0) <= n - 2
    else:
        assert (permutation.order, dict(permutation.repairs)) == ((), {})

    assert parse_preference(reply.upper()) == parse_preference(reply.upper().lower())


@pytest.mark.parametrize(
    "piece",
    ["[1] > ", "1, ", "[", "[1", " ", "\n", "\n1. ", "1.", "I ", "- ", "x1 ", "sorry ", "a", "("],
)
def test_a_reply_of_a_million_characters_is_read_in_no_time(piece: str) -> None:
    began = time.process_time()
    parse_permutation("[2] > [1] " + piece * (1_000_000 // len(piece)), 3)
    parse_preference(piece * (1_000_000 // len(piece)))

    assert time.process_time() - began < 3
