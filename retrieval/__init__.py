"""Documents, groups, exposure, indexes and re-rankers: everything that needs no language model.

Engines, sources, the mathematics of fairness, encoders and the corpus ``notables`` live here.
Measures against judgements live in ``evaluation``, and the loop of a search in ``graph``.
"""
