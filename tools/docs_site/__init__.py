"""Builds the site of the documentation, and the reference in it from the code."""
