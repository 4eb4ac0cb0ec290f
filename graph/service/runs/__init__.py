"""Doing runs: queued, given to slots, followed, resumed, and brought to an end."""
