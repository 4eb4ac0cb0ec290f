"""Measures, collections and experiments: the top layer."""
