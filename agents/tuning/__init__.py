"""Tunes a causal language model, so that its rankings lean toward no group."""
