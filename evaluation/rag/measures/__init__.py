"""Measures of Fair RAG on one query: pure functions of rankings, answers and verdicts."""
