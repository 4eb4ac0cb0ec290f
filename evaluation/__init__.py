"""Measures, collections and experiments: the top layer, still empty."""
