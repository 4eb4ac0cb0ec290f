"""Notables: short texts about famous people, generated from the facts in Pantheon 1.0.

Documents, schema, topics and judgements are beside this module; README.md describes their source
and limits. ``tools/notables`` in the project's repository made them.
"""
