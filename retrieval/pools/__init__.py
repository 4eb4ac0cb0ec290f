"""Retrievers over a small pool of texts, held in memory: a query's own documents."""
