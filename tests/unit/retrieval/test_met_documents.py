"""What searches have met is kept, up to a limit, and what was met longest ago goes first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.engines.met import MetDocuments
from fairqr.retrieval.sources.documents import Document


def document(id_: str, text: str = "") -> Document:
    return Document(id_, "", text)


def test_documents_come_in_the_order_asked_for_and_unknown_ones_are_left_out() -> None:
    met = MetDocuments()
    met.add([document("a"), document("b")])
    assert [found.id for found in met.get(["b", "x", "a"])] == ["b", "a"]


def test_a_document_met_again_is_the_newer_one() -> None:
    met = MetDocuments()
    met.add([document("a", "old")])
    met.add([document("a", "new")])
    assert [found.text for found in met.get(["a"])] == ["new"]
    assert len(met) == 1


def test_a_document_that_was_read_outlives_one_that_was_not() -> None:
    met = MetDocuments(limit=2)
    met.add([document("a"), document("b")])
    met.get(["a"])
    met.add([document("c")])
    assert [found.id for found in met.get(["a", "b", "c"])] == ["a", "c"]


def test_large_documents_make_room_for_each_other() -> None:
    met = MetDocuments(max_characters=100)
    met.add([document("a", "x" * 40), document("b", "x" * 40)])
    met.add([document("a", "x" * 50)])
    assert {found.id for found in met.get("ab")} == {"a", "b"}
    met.add([Document("c", "xx", "x", {"sex": ["x" * 10, {"of": 1}]})])
    assert {found.id for found in met.get("abc")} == {"b", "c"}
    met.add([document("d", "x" * 101)])
    assert {found.id for found in met.get("abcd")} == {"d"}


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(1, 5))
def test_the_last_distinct_documents_are_known(ids: list[str], limit: int) -> None:
    met = MetDocuments(limit)
    for id_ in ids:
        met.add([document(id_)])
    last = list(dict.fromkeys(reversed(ids)))[:limit]
    assert {found.id for found in met.get("abcdefgh")} == set(last)


def test_threads_may_use_it_at_the_same_time() -> None:
    met = MetDocuments(limit=50)

    def work(start: int) -> None:
        for number in range(start, start + 200):
            met.add([document(str(number))])
            met.get([str(number - 1), str(number)])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(0, 1600, 200)))
    assert len(met) == 50
