"""Refiners, which propose words that lead a query toward its topic and toward a group."""
