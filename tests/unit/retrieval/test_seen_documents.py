"""The documents that searches returned last are kept, up to a limit; the oldest go first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.engines.search_only import OVERHEAD, SeenDocuments
from fairqr.retrieval.sources.documents import Document


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(1, 5))
def test_the_last_distinct_documents_are_known(ids: list[str], limit: int) -> None:
    seen = SeenDocuments(limit * (OVERHEAD + 10))
    for version, id_ in enumerate(ids):
        seen.add([Document(id_, "", str(version))])
    last = list(dict.fromkeys(reversed(ids)))[:limit]
    # In the order asked for, and in their newest version.
    newest = {id_: str(version) for version, id_ in enumerate(ids)}
    found = [(document.id, document.text) for document in seen.get("hgfedcba")]
    assert found == [(id_, newest[id_]) for id_ in "hgfedcba" if id_ in last]


def test_large_documents_make_room_for_each_other() -> None:
    seen = SeenDocuments(2 * OVERHEAD + 100)
    seen.add([Document("a", "", "x" * 40), Document("b", "", "x" * 40)])
    seen.add([Document("a", "", "x" * 50)])
    assert len(seen.get("ab")) == 2
    seen.add([Document("c", "xx", "x", {"sex": ["x" * 30, {"of": 1}]})])
    assert [document.id for document in seen.get("abc")] == ["c"]
    seen.add([Document("d", "", "x" * 10 * OVERHEAD)])
    assert [document.id for document in seen.get("abcd")] == ["d"]
