"""The peer of the index: tantivy as one uses it without us, with the same analysis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tantivy

from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.words import ANALYZER_NAME, english_analyzer

# As ours.
WRITER_BYTES = 64 << 20


class BareIndex:
    """A tantivy index with stored ids."""

    def __init__(self, folder: Path) -> None:
        self.index = tantivy.Index.open(str(folder))
        self.index.register_tokenizer(ANALYZER_NAME, english_analyzer())

    @classmethod
    def build(cls, folder: Path, documents: Iterable[Document]) -> BareIndex:
        """Write documents into a new folder and open it."""
        folder.mkdir(parents=True)
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("body", tokenizer_name=ANALYZER_NAME, index_option="freq")
        tantivy.Index(builder.build(), str(folder))
        bare = cls(folder)
        bare._write(documents, replace=False)
        return bare

    def update(self, documents: Sequence[Document]) -> None:
        """Replace documents in one transaction, and see them."""
        self._write(documents, replace=True)

    def _write(self, documents: Iterable[Document], *, replace: bool) -> None:
        with self.index.writer(WRITER_BYTES, 1) as writer:
            for document in documents:
                if replace:
                    writer.delete_documents_by_term("id", document.id)
                entry = tantivy.Document()
                entry.add_text("id", document.id)
                entry.add_text("body", f"{document.title}\n{document.text}")
                writer.add_document(entry)
            writer.commit()
        self.index.reload()

    def hits(self, query: str, n: int) -> list[tuple[float, tantivy.DocAddress]]:
        """Return scores and addresses, without the ids."""
        parsed = self.index.parse_query(query, ["body"])
        return self.index.searcher().search(parsed, n, count=False).hits

    def search(self, query: str, n: int) -> list[tuple[float, str]]:
        """Return scores and ids, which are read from the stored documents."""
        parsed = self.index.parse_query(query, ["body"])
        searcher = self.index.searcher()
        hits = searcher.search(parsed, n, count=False).hits
        return [(score, searcher.doc(address)["id"][0]) for score, address in hits]
