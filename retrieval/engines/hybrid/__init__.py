"""Hybrid retrieval: words and vectors as one estimate of relevance."""
