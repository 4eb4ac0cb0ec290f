"""The embedded engine: BM25 by tantivy, in process, in one folder."""
