"""Measures, collections, experiments, audits, probes and their reports.

What judges rankings lives here: it runs searches and compares them with judgements and targets.
What a search needs lives below, such as exposure and divergence in ``retrieval/fairness``.
"""
