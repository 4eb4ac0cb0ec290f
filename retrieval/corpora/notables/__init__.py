"""Notables: short texts on famous people, generated from the facts of Pantheon 1.0.

The shipped files (documents, schema, topics, qrels) lie beside this module; `build` makes
documents, topics and qrels anew from the facts. See README.md for source and limits.
"""
