"""Retrievers over a small pool of texts in memory, such as a query's own documents."""
