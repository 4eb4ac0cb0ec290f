"""Notables: short texts on famous people, generated from the facts of Pantheon 1.0.

Documents, schema, topics and judgements lie beside this module; see README.md for their source and
limits. ``tools/notables`` in the project's repository made them.
"""
