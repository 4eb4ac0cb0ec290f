"""Documents, groups, exposure, indexes and re-rankers: finds and orders without a language model.

Engines, sources, the mathematics of fairness, encoders and the corpus ``notables`` live here.
Measures against judgements live in ``evaluation``, and the loop of a search in ``graph``.
"""
