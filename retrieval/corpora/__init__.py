"""Corpora that ship with the project, each in a package of its own."""
