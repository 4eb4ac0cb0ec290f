"""Weights of the embedded models: where they come from, and the cache for them."""
