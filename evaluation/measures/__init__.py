"""Measures as objects: with parameters, a text that is read as it is written, and conventions."""
