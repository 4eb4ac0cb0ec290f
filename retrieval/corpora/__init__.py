"""Corpora that ship with the project, one package each."""
