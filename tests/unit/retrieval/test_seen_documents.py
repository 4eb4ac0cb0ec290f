"""The documents that searches returned last are kept, up to a limit; the oldest go first."""

from __future__ import annotations

from fairqr.retrieval.engines.search_only import OVERHEAD, SeenDocuments
from fairqr.retrieval.sources.documents import Document


def test_large_documents_make_room_for_each_other() -> None:
    seen = SeenDocuments(2 * OVERHEAD + 100)
    seen.add([Document("a", "", "x" * 40), Document("b", "", "x" * 40)])
    seen.add([Document("a", "", "x" * 50)])
    assert len(seen.get("ab")) == 2
    seen.add([Document("c", "xx", "x", {"sex": ["x" * 30, {"of": 1}]})])
    assert [document.id for document in seen.get("abc")] == ["c"]
    seen.add([Document("d", "", "x" * 10 * OVERHEAD)])
    assert [document.id for document in seen.get("abcd")] == ["d"]
