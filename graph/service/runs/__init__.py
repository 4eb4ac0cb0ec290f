"""Runs: queuing, starting, following, resuming and ending them."""
